//! One test for each thing that is easily got wrong.

mod composed;
mod pdus;
mod place;
mod presume;
mod receive;
mod transmit;
