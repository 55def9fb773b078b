//! Operations on configurations, made of the API's description: what few functions ask for.

mod put;
mod read;
mod remove;
mod shapes;

pub(super) const TABLES: [&[super::Operation]; 3] = [read::TABLE, put::TABLE, remove::TABLE];
