//! Processor time of the whole process.

use std::ops::Sub;
use std::time::Duration;
use unlade_sys::usage::ProcessUsage;

/// Seconds of all threads of this process, and of processes that it has waited for.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ProcessTime {
    pub user_s: f64,
    pub system_s: f64,
}

impl ProcessTime {
    pub fn now() -> ProcessTime {
        let own = ProcessUsage::now().unwrap_or_default();
        let children = ProcessUsage::of_children().unwrap_or_default();
        let sum = |own: Duration, children: Duration| (own + children).as_secs_f64();
        ProcessTime {
            user_s: sum(own.user, children.user),
            system_s: sum(own.system, children.system),
        }
    }
}

impl Sub for ProcessTime {
    type Output = ProcessTime;

    fn sub(self, before: ProcessTime) -> ProcessTime {
        ProcessTime {
            user_s: self.user_s - before.user_s,
            system_s: self.system_s - before.system_s,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_was_used_is_seen() {
        let used = |from| ProcessTime::now() - from;
        let from = ProcessTime::default();
        while used(from).user_s <= 0.0 {}
        assert!(used(ProcessTime::now()).system_s >= 0.0);
    }
}
