//! The instructions that do it.

/// Which instructions a key uses. All give the same results, and a [`Progress`](crate::Progress)
/// of one goes on with another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// The RustCrypto crates, which run everywhere, in constant time.
    Portable,
}

impl Backend {
    /// All, the fastest first.
    pub const ALL: [Backend; 1] = [Backend::Portable];

    /// The fastest one of this machine.
    pub fn best() -> Backend {
        Backend::Portable
    }

    /// True where this machine has the instructions.
    pub fn is_supported(self) -> bool {
        match self {
            Backend::Portable => true,
        }
    }
}
