//! The sandboxes in which `bench fn` starts instances.

use clap::ValueEnum;

/// The sandbox of instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// A process in namespaces of its own
    Process,
    /// A virtual machine
    Qemu,
}

impl Backend {
    /// The name in a record of results.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Process => "process",
            Backend::Qemu => "qemu",
        }
    }
}
