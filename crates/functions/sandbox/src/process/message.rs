//! What gateway and keeper, keeper and zygote say to each other, each in a packet.

use serde::{Deserialize, Serialize};

/// Of the gateway's to the keeper; a [`super::spec::Spec`] came first, beside it the zygote's
/// control socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToKeeper {
    /// Make the root and groups of an instance.
    Make {
        /// Its number.
        slot: u32,
    },
    /// Put a process into the groups of an instance: it has not gone there by itself.
    Join {
        /// The instance's number.
        slot: u32,
        /// The process, as the host counts.
        pid: i32,
    },
    /// Kill what is left of an instance, and take its root and groups away.
    Remove {
        /// Its number.
        slot: u32,
    },
}

/// Of the keeper's to the gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromKeeper {
    /// The zygote's process, as the host counts: it has become the interpreter.
    Launched {
        /// Its number.
        pid: i32,
    },
    /// There is no sandbox.
    Failed {
        /// What was tried, and what the system said.
        why: String,
    },
    /// An instance can start; beside it the files that a process writes `0` to to go into its groups.
    Made {
        /// Its number.
        slot: u32,
    },
    /// It cannot.
    NotMade {
        /// Its number.
        slot: u32,
        /// What was tried, and what the system said.
        why: String,
    },
    /// A process was put into its groups; or not: `why`.
    Joined {
        /// The instance's number.
        slot: u32,
        /// What the system said.
        why: Option<String>,
    },
    /// Nothing of an instance is left: its number may be used again.
    Removed {
        /// Its number.
        slot: u32,
    },
    /// The zygote has ended, and everything in its namespace with it.
    Ended {
        /// Its status, in words.
        how: String,
    },
}

/// Of the zygote's to the keeper, before it is the interpreter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromZygote {
    /// It is in its user namespace: who is who there is to be said.
    Unmapped,
    /// It cannot go on.
    Failed {
        /// What was tried, and what the system said.
        why: String,
    },
}

/// Of the keeper's to the zygote; the specification came first, with the control socket and the files
/// of its groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToZygote {
    /// It was said.
    Mapped,
}
