//! A key-value server that speaks the protocol of Redis (RESP2 and RESP3): one thread, an event
//! loop, values in memory.
//!
//! Its purpose is to measure copies, and to be an example of a program that absorbs them. Use it
//! with any Redis client that sends strings; it is no product. This source has two builds:
//!
//! ```text
//!               SET                                        GET
//! synchronous   socket → input → value                     value → output → socket
//! offloaded     socket ────────→ value, after the answer   value ─────────→ socket
//! ```
//!
//! A type parameter selects the build, [`copies::Copies`]; both run the same commands. Modules, in
//! the order in which a request reaches them:
//! - [`run`]: starts one of the builds; [`server`]: the event loop; `connection`: one client;
//! - [`parse`]: splits bytes into arguments, without I/O;
//! - `arguments`: the words of a request; `table`: the commands; `state`: shared by connections;
//!   `session`: what commands know of their connection;
//! - `command`: finds, checks, queues and runs commands, which are in the folder `command`;
//!   `context`: a command being executed; `failure`: why it has no result;
//! - `databases`, `store`: keys, values, deadlines, watches; `value`: bytes that may still be
//!   arriving; `pool`: buffers;
//! - `pattern`, `bits`, `lcs`, `extended`: computations on keys and values;
//! - `output`: pending answers;
//! - [`copies`]: the two builds.
//!
//! ```
//! use std::io::{Read, Write};
//! use std::net::TcpStream;
//! use std::os::fd::AsFd;
//! use std::os::unix::net::UnixStream;
//! use std::sync::mpsc;
//!
//! use unlade_kv::run::{Mode, run};
//! use unlade_kv::{Config, Limits};
//!
//! let (listen, limits) = ("127.0.0.1:0".parse()?, Limits::default());
//! let config = Config { listen, limits, allows_debug: false };
//! let (stop, stopped) = UnixStream::pair()?; // the server ends when its end can be read
//! let (ready, address) = mpsc::channel();
//! let running = std::thread::spawn(move || {
//!     run(Mode::Sync, &config, stopped.as_fd(), |address| ready.send(address).expect("awaited"))
//! });
//!
//! let mut client = TcpStream::connect(address.recv()?)?;
//! client.write_all(b"SET key 5\r\nEXISTS key\r\nGET key\r\n")?;
//! let mut answer = [0; 16];
//! client.read_exact(&mut answer)?;
//! assert_eq!(&answer, b"+OK\r\n:1\r\n$1\r\n5\r\n");
//! drop(stop);
//! running.join().expect("no panic")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limits
//! It stores nothing on disk, and supports strings only. One thread; the offloaded build has those
//! of the copy service. [`Limits`] bound keys, values, memory and clients. No
//! `unsafe`.
#![forbid(unsafe_code)]

mod arguments;
mod bits;
mod command;
mod connection;
mod context;
pub mod copies;
mod databases;
mod extended;
mod failure;
mod lcs;
mod output;
pub mod parse;
mod pattern;
mod pool;
pub mod run;
pub mod server;
mod session;
mod state;
mod store;
mod table;
mod value;

pub use copies::{Copies, Offloaded, Synchronous};
pub use server::{Config, Server, ServerError};
pub use state::Limits;
