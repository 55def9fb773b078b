//! One test for each thing that is easily got wrong.

mod pdus;
mod receive;
mod transmit;
