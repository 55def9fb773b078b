//! What can be said about a service.

use std::time::Duration;

/// How a service works; [`Config::default`] is for a program that has a core to spare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// At least so many threads run.
    pub threads_min: usize,
    /// At most so many do.
    pub threads_max: usize,
    /// Where the threads are busy for less than this share of their time, and the others could do
    /// it, one ends.
    pub low_load_percent: u8,
    /// Where they are busy for more than this share, and there are clients for one more, it starts.
    pub high_load_percent: u8,
    /// For so long it must have been so.
    pub scale_after: Duration,
    /// Which devices copy beside the processor.
    pub units: Units,
    /// Tasks of a client that may be pending: a power of two, 16 to 4096.
    pub slots: u32,
    /// A client is served for so many bytes before another has its turn (the copy slice of Copier,
    /// SOSP 2025, §4.5.3).
    pub slice_bytes: u64,
    /// Progress is told, and news looked for, after so many bytes.
    pub run_bytes: u64,
    /// When a thread sleeps.
    pub polling: Polling,
    /// How long a thread that sleeps does so at most, while it has clients.
    pub sleep_max: Duration,
}

/// Devices that copy by themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Units {
    /// Those that are found when the service starts.
    #[default]
    Auto,
    /// None.
    None,
}

/// When a thread that has nothing to do sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Polling {
    /// After a while, which is longer where waiting has paid of late.
    #[default]
    Adaptive,
    /// Never while a scenario is on ([`crate::Service::scenario`]), at once otherwise.
    Scenario,
    /// Never.
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
