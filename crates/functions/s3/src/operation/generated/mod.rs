//! Operations on configurations, generated from the API's description; few functions use them.

mod put;
mod read;
mod remove;
mod shapes;

pub(super) const TABLES: [&[super::schema::Operation]; 3] =
    [read::TABLE, put::TABLE, remove::TABLE];
