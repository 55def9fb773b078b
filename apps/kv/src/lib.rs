//! A key-value server that speaks RESP2, like Redis: one thread, an event loop, values in memory.
//! Its purpose is to measure copies. This source has two builds:
//! ```text
//!               SET                                        GET
//! synchronous   socket → input → value                     value → output → socket
//! offloaded     socket ────────→ value, after the answer   value ─────────→ socket
//! ```
//! A type parameter selects the build, [`copies::Copies`]; both run the same commands. Modules, in
//! the order in which a request reaches them:
//! - [`run`]: starts one of the builds; [`server`]: the event loop; `connection`: one client;
//! - [`parse`]: splits bytes into arguments, without I/O;
//! - `arguments`: the words of a request; `table`: the commands; `state`: shared by connections;
//! - `command`: executes commands; `info`: information about the server;
//! - `store`: keys, values, deadlines; `value`: bytes that may still be arriving; `pool`: buffers;
//! - `output`: pending answers;
//! - [`copies`]: the two builds.
//!
//! It stores nothing on disk, and supports strings and one database only.
#![forbid(unsafe_code)]

mod arguments;
mod command;
mod connection;
pub mod copies;
mod info;
mod output;
pub mod parse;
mod pool;
pub mod run;
pub mod server;
mod state;
mod store;
mod table;
mod value;

pub use copies::{Copies, Offloaded, Synchronous};
pub use server::{Config, Server, ServerError};
pub use state::Limits;
