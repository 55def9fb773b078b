//! The library's state in this process: the service, its queues, and their handling in a fork.
//!
//! The state is created with the first copy. A child after fork(2) has the parent's memory but
//! none of its threads. Therefore all copies are completed before a fork, as if they had been
//! `memcpy`s. The child drops its pointer to the parent's state, without touching it, and creates
//! a new state.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use unlade_copy::explain::{self, Off};
use unlade_copy::{SLOTS_MIN, Scenario, Service};

use crate::abi;
use crate::channel::Channel;
use crate::lock::Lock;
use crate::options::{Settings, VARIABLE, on_or_off};
use crate::queues::Queues;
use crate::{sanitize, shm};

/// State of the library.
pub(crate) struct Process {
    service: Option<Service>,
    /// Settings at the start.
    settings: Settings,
    /// The default queue.
    pub default: Arc<Channel>,
    /// The other queues.
    pub queues: Queues,
    scenario: Mutex<Option<Scenario>>,
}

/// Never freed: other threads may use it at any time, even while the process ends.
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
/// Settings for the start of the service; none until the environment was read. Locked during the
/// start.
static SETTINGS: Lock<Option<Settings>> = Lock::new(None);
static FORKS_ARE_WATCHED: AtomicBool = AtomicBool::new(false);
/// Forks are observed before any thread can hold a lock of the library.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    watch_forks();
}

/// Returns the state; creates it if there is none.
#[inline]
pub(crate) fn get() -> &'static Process {
    match started() {
        Some(process) => process,
        None => start(),
    }
}

/// Returns the state, if there is one.
#[inline]
pub(crate) fn started() -> Option<&'static Process> {
    // SAFETY: null, or a value leaked by `start`.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
}

#[cold]
fn start() -> &'static Process {
    watch_forks();
    SETTINGS.with(|settings| {
        if let Some(process) = started() {
            return process;
        }
        let settings = *settings.get_or_insert_with(from_environment);
        if settings.sanitize {
            sanitize::start(settings.sanitize_sources);
        }
        let process: &'static Process = Box::leak(Box::new(Process::new(settings)));
        PROCESS.store(ptr::from_ref(process).cast_mut(), Ordering::Release);
        process.watch_copies();
        process
    })
}

fn from_environment() -> Settings {
    let text = std::env::var(VARIABLE).unwrap_or_default();
    let (settings, complaints) = Settings::parse(&text);
    for complaint in complaints {
        eprintln!("{complaint}");
    }
    settings
}

impl Process {
    fn new(settings: Settings) -> Process {
        // Without a service every copy is synchronous, which is correct, too. Programs can detect
        // it with copier_get_stats.
        let may_start = settings.is_enabled && FORKS_ARE_WATCHED.load(Ordering::Relaxed);
        let service = may_start.then(|| Service::start(settings.config).ok()).flatten();
        let attachment = service.as_ref().and_then(|service| service.attach().ok());
        if attachment.is_none() {
            let off = if settings.is_enabled { Off::Failed } else { Off::Disabled };
            explain::note_off(Some(off));
        }
        Process {
            default: Arc::new(Channel::default_queue(attachment).with_remaps(settings.remaps)),
            service,
            settings,
            queues: Queues::default(),
            scenario: Mutex::new(None),
        }
    }

    /// Has every copy and sync of the default queue looked at, if something watches them: a memory
    /// that is bound, or AddressSanitizer.
    fn watch_copies(&self) {
        // A thread that binds a memory meanwhile sees this state, or this one sees the memory.
        fence(Ordering::SeqCst);
        if shm::is_used() || sanitize::is_on() {
            self.default.watch();
        }
    }

    /// Creates another queue for `len` tasks.
    ///
    /// # Errors
    /// EINVAL: `len` is 0 or too large. ENOMEM: the service has too many queues.
    pub fn new_channel(&self, len: usize) -> Result<Channel, c_int> {
        if !(1..=self.settings.config.slots as usize).contains(&len) {
            return Err(libc::EINVAL);
        }
        let Some(service) = &self.service else { return Ok(Channel::new(None)) };
        let slots = len.next_power_of_two().max(SLOTS_MIN as usize) as u32;
        let attachment = service.attach_with(1, slots).map_err(|_| libc::ENOMEM)?;
        Ok(Channel::new(Some(attachment)).with_remaps(self.settings.remaps))
    }

    /// Returns the queue of a file descriptor; the default one for -1.
    ///
    /// # Errors
    /// EBADF: it is not a queue.
    #[inline]
    pub fn channel(&self, fd: c_int) -> Result<Arc<Channel>, c_int> {
        if fd == -1 {
            return Ok(Arc::clone(&self.default));
        }
        self.queues.find(ptr::from_ref(self).addr(), fd)
    }

    /// All queues.
    pub fn channels(&self) -> Vec<Arc<Channel>> {
        let mut all = self.queues.all();
        all.insert(0, Arc::clone(&self.default));
        all
    }

    fn scenario(&self) -> MutexGuard<'_, Option<Scenario>> {
        self.scenario.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_scenario(&self, is_on: bool) {
        let mut scenario = self.scenario();
        if is_on != scenario.is_some() {
            *scenario = if is_on { self.service.as_ref().map(Service::scenario) } else { None };
        }
    }
}

/// Changes options of the process.
///
/// # Errors
/// EINVAL: a field is out of range. EBUSY: it can only be set before the first copy.
pub(crate) fn set(opt: &abi::Opt) -> Result<(), c_int> {
    let scenario = on_or_off(opt.scenario)?;
    let is_for_start = [opt.enabled, opt.threads, opt.queue_len, opt.polling] != [0; 4];
    SETTINGS.with(|settings| {
        let before = *settings.get_or_insert_with(from_environment);
        let after = before.with(opt)?;
        if is_for_start && started().is_some() {
            return Err(libc::EBUSY);
        }
        *settings = Some(after);
        Ok(())
    })?;
    if let Some(is_on) = scenario {
        get().set_scenario(is_on);
    }
    Ok(())
}

/// A memory was bound: see [`Process::watch_copies`].
pub(crate) fn watch_copies() {
    fence(Ordering::SeqCst);
    started().iter().for_each(|process| process.watch_copies());
}

/// Observes forks. If that fails, no service is started, since a fork would lose its threads.
fn watch_forks() {
    if FORKS_ARE_WATCHED.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: the three functions live as long as the process, since the library is never
    // unloaded.
    let failed = unsafe {
        libc::pthread_atfork(Some(before_fork), Some(after_fork_parent), Some(after_fork_child))
    } != 0;
    FORKS_ARE_WATCHED.store(!failed, Ordering::Relaxed);
}

/// Completes all pending copies and receives, and takes the locks, so that the child finds a
/// consistent state. Sends may wait for a peer; they stay the parent's.
extern "C" fn before_fork() {
    if let Some(process) = started() {
        for channel in process.channels() {
            channel.complete_written();
        }
        shm::publish_all();
    }
    SETTINGS.hold_for_fork();
    shm::hold_for_fork();
    sanitize::hold_for_fork();
}

extern "C" fn after_fork_parent() {
    sanitize::release_after_fork();
    shm::release_after_fork(false);
    SETTINGS.release_after_fork();
}

extern "C" fn after_fork_child() {
    PROCESS.store(ptr::null_mut(), Ordering::Release);
    sanitize::release_after_fork();
    shm::release_after_fork(true);
    SETTINGS.release_after_fork();
}
