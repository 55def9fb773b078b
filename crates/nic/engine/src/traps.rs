//! Regression tests for known pitfalls, one test each.

mod composed;
mod pdus;
mod place;
mod presume;
mod receive;
mod transmit;
