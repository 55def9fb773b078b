//! What a thread has used: getrusage(2).

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// What the calling thread has used since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadUsage {
    /// Processor time, in the program and in the kernel.
    pub cpu: Duration,
    /// How often the processor was taken from it although it had more to do.
    pub involuntary_switches: u64,
}

impl ThreadUsage {
    /// Of the calling thread, now.
    ///
    /// # Errors
    /// The kernel's; none is documented for this call.
    pub fn now() -> io::Result<ThreadUsage> {
        let mut usage = MaybeUninit::<libc::rusage>::uninit();
        // SAFETY: the kernel fills the structure, which is of its type and lives on this stack.
        if unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call succeeded, so all of it is filled.
        let usage = unsafe { usage.assume_init() };
        let time = |time: libc::timeval| {
            Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
        };
        Ok(ThreadUsage {
            cpu: time(usage.ru_utime) + time(usage.ru_stime),
            involuntary_switches: usage.ru_nivcsw as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_is_used_is_counted() {
        let before = ThreadUsage::now().unwrap();
        let mut sum = 0u64;
        while ThreadUsage::now().unwrap().cpu < before.cpu + Duration::from_millis(20) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(ThreadUsage::now().unwrap().involuntary_switches >= before.involuntary_switches);
    }
}
