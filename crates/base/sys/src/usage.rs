//! Resources used by a thread or the process: getrusage(2).

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// Resources that the calling thread has used since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadUsage {
    /// Processor time, in the program and in the kernel.
    pub cpu: Duration,
    /// Number of times that the thread was preempted.
    pub involuntary_switches: u64,
}

impl ThreadUsage {
    /// Reads the usage of the calling thread.
    ///
    /// # Errors
    /// The kernel's; none is documented for this call.
    pub fn now() -> io::Result<ThreadUsage> {
        let usage = usage_of(libc::RUSAGE_THREAD)?;
        Ok(ThreadUsage {
            cpu: time(usage.ru_utime) + time(usage.ru_stime),
            involuntary_switches: usage.ru_nivcsw as u64,
        })
    }
}

/// No thread has a larger number (PID_MAX_LIMIT); a clock's number has no space for larger ones.
const TID_MAX: i32 = 1 << 22;

/// Processor time that a thread of this process has used until now, even while it is running.
///
/// # Errors
/// The thread does not exist.
pub fn cpu_of_thread(tid: i32) -> io::Result<Duration> {
    /// The scheduler's clock of one thread, in the low bits of a clock's number (pthread_getcpuclockid).
    const PER_THREAD_SCHED: libc::clockid_t = 0b110;
    if !(1..=TID_MAX).contains(&tid) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    let clock = (!tid << 3) | PER_THREAD_SCHED;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the structure, which is of its type and lives on this stack.
    if unsafe { libc::clock_gettime(clock, &mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// Processor time of a whole process, with all its threads, including ended ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// In the program.
    pub user: Duration,
    /// In the kernel.
    pub system: Duration,
}

impl ProcessUsage {
    /// Reads the usage of this process.
    ///
    /// # Errors
    /// The kernel's; none is documented for this call.
    pub fn now() -> io::Result<ProcessUsage> {
        usage_of(libc::RUSAGE_SELF).map(ProcessUsage::from)
    }

    /// Reads the usage of its children, and their children, that have ended and were waited for.
    ///
    /// # Errors
    /// As of [`ProcessUsage::now`].
    pub fn of_children() -> io::Result<ProcessUsage> {
        usage_of(libc::RUSAGE_CHILDREN).map(ProcessUsage::from)
    }
}

impl From<libc::rusage> for ProcessUsage {
    fn from(usage: libc::rusage) -> ProcessUsage {
        ProcessUsage { user: time(usage.ru_utime), system: time(usage.ru_stime) }
    }
}

fn usage_of(who: libc::c_int) -> io::Result<libc::rusage> {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the kernel fills the structure, which is of its type and lives on this stack.
    if unsafe { libc::getrusage(who, usage.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so the whole structure is filled.
    Ok(unsafe { usage.assume_init() })
}

fn time(time: libc::timeval) -> Duration {
    Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
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
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        assert!(cpu_of_thread(own).unwrap() >= before.cpu + Duration::from_millis(19));
        assert!(cpu_of_thread(i32::MAX).is_err() && cpu_of_thread(TID_MAX).is_err());
        let process = ProcessUsage::now().unwrap();
        assert!(process.user + process.system >= Duration::from_millis(20));
        assert!(ProcessUsage::of_children().is_ok());
    }
}
