//! The messages between gateway and supervisor, and between supervisor and zygote, one in each
//! packet.

use serde::{Deserialize, Serialize};

/// A message from the gateway to the supervisor. The first packet is a [`super::spec::Spec`], with
/// the zygote's control socket attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToSupervisor {
    /// Creates the root and groups of an instance.
    Make {
        /// The number of the instance.
        slot: u32,
    },
    /// Moves a process into the groups of an instance that it has not entered itself.
    Join {
        /// The number of the instance.
        slot: u32,
        /// The process, in the host's PID namespace.
        pid: i32,
    },
    /// Kills the remaining processes of an instance, and removes its root and groups.
    Remove {
        /// The number of the instance.
        slot: u32,
    },
    /// The zygote has closed its control socket, which means that it is ending: its namespace ends
    /// with it, when no instance is frozen any more.
    Ending,
}

/// A message from the supervisor to the gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromSupervisor {
    /// The zygote has become the interpreter.
    Launched {
        /// The process, in the host's PID namespace.
        pid: i32,
    },
    /// There is no sandbox.
    Failed {
        /// The failed operation, and the error of the system.
        why: String,
    },
    /// The resources of an instance are ready; attached are the files to which a process writes
    /// `0` to enter its groups.
    Made {
        /// The number of the instance.
        slot: u32,
    },
    /// The resources of an instance could not be created.
    NotMade {
        /// The number of the instance.
        slot: u32,
        /// The failed operation, and the error of the system.
        why: String,
    },
    /// A process was moved into its groups, or `why` has the error.
    Joined {
        /// The number of the instance.
        slot: u32,
        /// The error of the system.
        why: Option<String>,
    },
    /// Everything of an instance was removed: its number may be reused.
    Removed {
        /// The number of the instance.
        slot: u32,
    },
    /// The zygote has ended, with all processes of its namespace.
    Ended {
        /// Its exit status, as text.
        how: String,
    },
}

/// A message from the zygote to the supervisor, before the zygote becomes the interpreter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromZygote {
    /// It is in its user namespace: the users must be mapped.
    Unmapped,
    /// It has failed.
    Failed {
        /// The failed operation, and the error of the system.
        why: String,
    },
}

/// A message from the supervisor to the zygote. The first packet is the specification, with the
/// control socket and the files of its groups attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToZygote {
    /// The users are mapped.
    Mapped,
}
