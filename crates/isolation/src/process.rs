//! Sandboxed processes.
