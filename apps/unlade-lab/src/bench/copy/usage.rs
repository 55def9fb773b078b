//! Processor time of the thread that measures, and of the service's threads.

use std::fs;
use std::ops::{Add, Sub};
use unlade_sys::usage::{ThreadUsage, cpu_of_thread};

/// Prefix of the names of the service's threads.
const SERVICE_THREADS: &str = "copyd-";

/// Seconds of the calling thread, and of the service's threads in this process.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CopyTime {
    pub client_s: f64,
    pub service_s: f64,
}

impl CopyTime {
    pub fn now() -> CopyTime {
        let client = ThreadUsage::now().unwrap_or_default();
        CopyTime { client_s: client.cpu.as_secs_f64(), service_s: service_s() }
    }

    /// Both.
    pub fn total_s(self) -> f64 {
        self.client_s + self.service_s
    }

    /// The same for each of `units`.
    pub fn per(self, units: f64) -> CopyTime {
        CopyTime { client_s: self.client_s / units, service_s: self.service_s / units }
    }
}

impl Sub for CopyTime {
    type Output = CopyTime;

    fn sub(self, before: CopyTime) -> CopyTime {
        CopyTime {
            client_s: self.client_s - before.client_s,
            service_s: self.service_s - before.service_s,
        }
    }
}

impl Add for CopyTime {
    type Output = CopyTime;

    fn add(self, other: CopyTime) -> CopyTime {
        CopyTime {
            client_s: self.client_s + other.client_s,
            service_s: self.service_s + other.service_s,
        }
    }
}

/// Seconds of the service's threads that live.
fn service_s() -> f64 {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return 0.0 };
    let times = threads.flatten().filter_map(|thread| {
        let name = fs::read_to_string(thread.path().join("comm")).ok()?;
        let tid = thread.file_name().to_str()?.parse().ok()?;
        let is_service = name.starts_with(SERVICE_THREADS);
        is_service.then(|| cpu_of_thread(tid).unwrap_or_default().as_secs_f64())
    });
    times.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use unlade_copy::{Config, Polling, Service};

    #[test]
    fn time_of_the_service_is_told_apart() {
        let before = CopyTime::now();
        let polling = Config { polling: Polling::Always, ..Config::default() };
        let service = Service::start(polling).unwrap();
        let mut used = CopyTime::default();
        // It polls, so its time goes on, and with it this loop ends.
        while used.service_s <= 0.0 || used.client_s <= 0.0 {
            used = CopyTime::now() - before;
        }
        assert!(used.total_s() >= used.per(2.0).total_s());
        drop(service);
    }
}
