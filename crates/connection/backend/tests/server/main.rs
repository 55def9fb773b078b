//! The whole server, from its sockets to its files.

mod common;
mod http;
mod killed;
mod tls;
