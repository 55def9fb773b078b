//! A key-value server that speaks RESP2, as Redis does it: one thread, an event loop, values in
//! memory. It is a program to measure copies with, and built twice from this source:
//!
//! ```text
//!               SET                                        GET
//! synchronous   socket → input → value                     value → output → socket
//! offloaded     socket ────────→ value, after the answer   value ─────────→ socket
//! ```
//! Which of the two is a type parameter, [`copies::Copies`]; both run the same commands. In the order
//! that a request meets them:
//! - [`run`]: starts one of the builds; [`server`]: the event loop; `connection`: one client;
//! - [`parse`]: bytes into arguments, without I/O;
//! - `command`: what they mean; `info`: what the server says of itself;
//! - `store`: keys, values, deadlines; `value`: bytes that may still be on their way; `pool`: buffers;
//! - `output`: answers until the socket takes them;
//! - [`copies`]: the two builds.
//!
//! It keeps nothing on disk, knows strings only, and one database.
#![forbid(unsafe_code)]

mod command;
mod connection;
pub mod copies;
mod info;
mod output;
pub mod parse;
mod pool;
pub mod run;
pub mod server;
mod store;
mod value;

pub use copies::{Copies, Offloaded, Synchronous};
pub use server::{Config, Limits, Server, ServerError};
