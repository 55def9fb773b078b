//! The worker between a guest and a store, in one process: the guest speaks the protocol of
//! `docs/guest-protocol.md`, the store is the embedded one, or one that follows a script.

mod bed;
mod brought;
mod copies;
mod copies_measured;
mod failures;
mod hostile;
mod invocations;
mod objects;
mod prefetch;
mod relay;
mod shared;
mod streams;
mod writes;
