//! Configuration of a service.

use std::time::Duration;

/// Configuration of a service; [`Config::default`] is for a program that has a core to spare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Minimum number of threads.
    pub threads_min: usize,
    /// Maximum number of threads.
    pub threads_max: usize,
    /// Load, in percent of the threads' time, below which a thread ends if the others can do its
    /// work.
    pub low_load_percent: u8,
    /// Load, in percent of the threads' time, above which another thread starts if there are
    /// clients for it.
    pub high_load_percent: u8,
    /// Time for which a load condition must hold.
    pub scale_after: Duration,
    /// Devices that copy in addition to the processor.
    pub units: Units,
    /// Number of queue slots of a client: a power of two, 16 to 4096.
    pub slots: u32,
    /// Number of bytes copied for a client before the next client's turn (the copy slice of
    /// Copier, SOSP 2025, §4.5.3).
    pub slice_bytes: u64,
    /// Number of bytes after which the thread reports progress and polls for new tasks.
    pub run_bytes: u64,
    /// Sleep policy of the threads.
    pub polling: Polling,
    /// Maximum duration of one sleep of a thread that has clients.
    pub sleep_max: Duration,
}

/// Copy devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Units {
    /// All devices that are found when the service starts.
    #[default]
    Auto,
    /// No devices.
    None,
}

/// Sleep policy of an idle thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Polling {
    /// Sleep after a polling time that adapts to recent waits.
    #[default]
    Adaptive,
    /// Never sleep while a scenario is active ([`crate::Service::scenario`]); sleep at once
    /// otherwise.
    Scenario,
    /// Never sleep.
    Always,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            threads_min: 1,
            threads_max: 1,
            low_load_percent: 30,
            high_load_percent: 80,
            scale_after: Duration::from_millis(100),
            units: Units::Auto,
            slots: 1024,
            slice_bytes: 1 << 20,
            run_bytes: 16 << 10,
            polling: Polling::Adaptive,
            sleep_max: Duration::from_millis(100),
        }
    }
}

impl From<Polling> for unlade_copy_scheduler::idle::Mode {
    fn from(polling: Polling) -> unlade_copy_scheduler::idle::Mode {
        match polling {
            Polling::Adaptive => unlade_copy_scheduler::idle::Mode::Adaptive,
            Polling::Scenario => unlade_copy_scheduler::idle::Mode::Scenario,
            Polling::Always => unlade_copy_scheduler::idle::Mode::AlwaysPoll,
        }
    }
}
