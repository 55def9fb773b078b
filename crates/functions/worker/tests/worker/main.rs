//! The worker between a guest and a store, in one process: the guest implements the protocol of
//! `docs/guest-protocol.md`; the store is the embedded one, or a scripted one.

mod bed;
mod behalf;
mod brought;
mod copies;
mod copies_measured;
mod cut;
mod failures;
mod hostile;
mod invocations;
mod objects;
mod prefetch;
mod relay;
mod shared;
mod streams;
mod writes;
