//! The object server with `tls = "nic"`: the engine of a software NIC encrypts and decrypts
//! records, and the clients are behind a wire that loses, reorders and duplicates frames. Every
//! byte is compared. Further tests move a single connection of `unlade-runtime` off its device and
//! back.

mod moved;
mod net;
mod served;
