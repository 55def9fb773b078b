//! The object server with `tls = "nic"`: records sealed and opened by the engine of a software NIC,
//! clients behind a wire that loses, reorders and doubles frames, every byte compared. And a
//! connection of the chassis alone, that leaves its device, moves, and comes back to one.

mod moved;
mod net;
mod served;
