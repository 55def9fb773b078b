//! Identifiers of connections.

/// Identifier of a connection in a stack; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Id {
    /// A small index for tables, reused after the connection has ended.
    pub fn index(self) -> usize {
        self.index as usize
    }
}
