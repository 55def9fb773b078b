//! Messages that pass through an intermediary: their heads rewritten, their bodies unchanged.
//!
//! [`request`] and [`response`] write a head anew from the parsed one: without the fields of one hop
//! (RFC 9110 §7.6.1), with framing fields that follow from the parsed framing. [`Body`] finds the end
//! of a body in the bytes that are passed on.

mod body;
mod head;

pub use body::Body;
pub use head::{ClientOrigin, ResponseTerms, request, response, switching};
