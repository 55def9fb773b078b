//! Identifiers of flows.

/// Largest number of flows of a shard.
pub const FLOWS_MAX: usize = 1 << 17;

/// Identifies a flow in its shard; the creator of flows chooses it. Its lower bits are an index
/// below [`FLOWS_MAX`], which two existing flows never share; the other bits are a generation
/// that distinguishes a flow from earlier ones with the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct FlowId(pub u32);

impl FlowId {
    /// Creates the id for `index` with this `generation`, modulo 2^15.
    pub fn new(index: u32, generation: u32) -> FlowId {
        FlowId((index % FLOWS_MAX as u32) | generation.wrapping_mul(FLOWS_MAX as u32))
    }

    /// Its index.
    pub fn index(self) -> usize {
        self.0 as usize % FLOWS_MAX
    }

    /// The next id with this index.
    pub fn successor(self) -> FlowId {
        FlowId(self.0.wrapping_add(FLOWS_MAX as u32))
    }
}
