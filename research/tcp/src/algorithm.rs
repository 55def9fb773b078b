//! The choice of a congestion control algorithm.

use crate::congestion::Congestion;
use crate::cubic::Cubic;
use crate::new_reno::NewReno;

/// Congestion control algorithm of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// RFC 9438.
    #[default]
    Cubic,
    /// RFC 5681, with the connection's loss recovery.
    NewReno,
}

impl Algorithm {
    /// The algorithm's state at the start of a connection.
    pub(crate) fn start(self, mss_bytes: u32) -> Box<dyn Congestion> {
        match self {
            Algorithm::Cubic => Box::new(Cubic::new(mss_bytes)),
            Algorithm::NewReno => Box::new(NewReno::new(mss_bytes)),
        }
    }
}
