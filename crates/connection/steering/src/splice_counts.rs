//! Segments that `bpf/splice.bpf.c` counts.

use aya::maps::{MapData, PerCpuArray};

use crate::error::SteerError;

/// `enum splice_count` of bpf/splice.bpf.c.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Count {
    Acks,
    Dropped,
    Refused,
    Corrupt,
    Unsent,
    Over,
    Forwarded,
}

/// Segments since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpliceCounts {
    /// Acknowledgements of clients that went to servers.
    pub acks: u64,
    /// Segments that a socket must not see: of bytes that bypass it.
    pub dropped: u64,
    /// Segments of clients that a TCP would refuse.
    pub refused: u64,
    /// Wrong checksums.
    pub corrupt: u64,
    /// Acknowledgements that could not be sent.
    pub unsent: u64,
    /// Splices, not segments: those that ended with the client's last acknowledgement.
    pub over: u64,
    /// Segments of servers that were sent to clients: their hosts have not done that.
    pub forwarded: u64,
}

impl SpliceCounts {
    /// Reads the map of the programs, which has a value for each processor.
    pub(crate) fn read(counts: &PerCpuArray<MapData, u64>) -> Result<SpliceCounts, SteerError> {
        let get = |count: Count| {
            let values = counts.get(&(count as u32), 0).map_err(SteerError::Map)?;
            Ok::<u64, SteerError>(values.iter().sum())
        };
        Ok(SpliceCounts {
            acks: get(Count::Acks)?,
            dropped: get(Count::Dropped)?,
            refused: get(Count::Refused)?,
            corrupt: get(Count::Corrupt)?,
            unsent: get(Count::Unsent)?,
            over: get(Count::Over)?,
            forwarded: get(Count::Forwarded)?,
        })
    }
}
