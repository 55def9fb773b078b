//! One test for each thing that is easily got wrong.

mod receive;
mod transmit;
