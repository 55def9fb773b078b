//! A small TCP that copies nothing and keeps what a device says of each segment. Sans-IO: segments,
//! buffers and the time are arguments.
#![forbid(unsafe_code)]
