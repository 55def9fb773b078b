//! The messages of zygote and supervisor, and the tasks that wait for them. The zygote is
//! untrusted: each of its messages must match a pending request.

use std::collections::{HashMap, VecDeque};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, UCred};
use rustix::process::Pid;
use serde::Deserialize;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::process::Child;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use unlade_fn_model::isolation::Unpreloaded;

use super::config::INSTANCES_MAX;
use super::message::{FromSupervisor, ToSupervisor};
use super::output::Tail;
use super::packet;

/// Longest wait for the rest of the output.
const PRINTED_TIMEOUT: Duration = Duration::from_secs(1);

/// The reason why the zygote has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// True if the function's code caused the end; otherwise the sandbox could not be created or
    /// kept.
    pub of_function: bool,
    /// The known details.
    pub why: String,
}

/// A child of the zygote.
#[derive(Debug)]
pub struct Forked {
    /// The process, in its PID namespace.
    pub pid: i32,
    /// Receives the reason of its end.
    pub ended: watch::Receiver<Option<String>>,
}

/// The root and groups of a future instance.
#[derive(Debug)]
pub struct Spare {
    /// Its number.
    pub slot: u32,
    /// The files to which a process writes to enter its groups.
    pub groups: Vec<OwnedFd>,
}

/// Pending requests and free numbers.
pub struct ZygoteState {
    asked: Mutex<Asked>,
    slots: Mutex<Slots>,
    zygote: AtomicI32,
    supervisor: AtomicI32,
}

#[derive(Default)]
struct Asked {
    forks: HashMap<String, oneshot::Sender<Result<Forked, String>>>,
    living: HashMap<i32, watch::Sender<Option<String>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ZygoteState {
    /// Creates a state without requests.
    pub fn new(slots: Slots) -> ZygoteState {
        ZygoteState {
            asked: Mutex::default(),
            slots: Mutex::new(slots),
            zygote: AtomicI32::new(0),
            supervisor: AtomicI32::new(0),
        }
    }

    /// The numbers of instances. The guard must not be held across an await.
    pub fn slots(&self) -> MutexGuard<'_, Slots> {
        locked(&self.slots)
    }

    /// Registers a fork; `None` if the name is in use.
    pub fn fork(&self, name: &str) -> Option<oneshot::Receiver<Result<Forked, String>>> {
        let mut asked = locked(&self.asked);
        if asked.forks.contains_key(name) {
            return None;
        }
        let (answer, receiver) = oneshot::channel();
        asked.forks.insert(name.to_owned(), answer);
        Some(receiver)
    }

    /// Cancels a registered fork.
    pub fn forget(&self, name: &str) {
        let mut asked = locked(&self.asked);
        if asked.forks.get(name).is_some_and(oneshot::Sender::is_closed) {
            asked.forks.remove(name);
        }
    }

    /// The processes of the template itself, the zygote's first; empty when it has ended.
    pub fn processes(&self) -> Vec<Pid> {
        let both = [&self.zygote, &self.supervisor];
        both.into_iter().filter_map(|pid| Pid::from_raw(pid.load(Ordering::Relaxed))).collect()
    }

    fn said(&self, packet: FromZygote) {
        let mut asked = locked(&self.asked);
        match packet {
            FromZygote { forked: Some(name), pid: Some(pid), .. } => {
                let Some(answer) = asked.forks.remove(&name) else { return };
                let (end, ended) = watch::channel(None);
                if answer.send(Ok(Forked { pid, ended })).is_ok() {
                    asked.living.insert(pid, end);
                }
            }
            FromZygote { error: Some(why), fork: Some(name), .. } => {
                if let Some(answer) = asked.forks.remove(&name) {
                    let _ = answer.send(Err(why));
                }
            }
            FromZygote { exited: Some(pid), status, .. } => {
                if let Some(end) = asked.living.remove(&pid) {
                    end.send_replace(Some(match status {
                        Some(status) if status >= 0 => format!("it ended with status {status}"),
                        _ => "a signal ended it".to_owned(),
                    }));
                }
            }
            _ => {}
        }
    }

    fn end(&self, how: &str) {
        self.zygote.store(0, Ordering::Relaxed);
        self.supervisor.store(0, Ordering::Relaxed);
        let mut asked = locked(&self.asked);
        for (_, answer) in asked.forks.drain() {
            let _ = answer.send(Err(how.to_owned()));
        }
        for (_, end) in asked.living.drain() {
            end.send_replace(Some(format!("its template ended: {how}")));
        }
        self.slots().end(how);
    }
}

type Made = Result<Spare, String>;

/// The numbers of instances: free, spare, or requested.
pub struct Slots {
    spares_wanted: usize,
    outbox: mpsc::UnboundedSender<ToSupervisor>,
    spares: VecDeque<Spare>,
    waiting: VecDeque<oneshot::Sender<Made>>,
    joins: HashMap<u32, oneshot::Sender<Option<String>>>,
    free: Vec<u32>,
    next: u32,
    making: usize,
}

impl Slots {
    /// Creates numbers of which none is in use.
    pub fn new(spares: u32, outbox: mpsc::UnboundedSender<ToSupervisor>) -> Slots {
        Slots {
            spares_wanted: spares as usize,
            outbox,
            spares: VecDeque::new(),
            waiting: VecDeque::new(),
            joins: HashMap::new(),
            free: Vec::new(),
            next: 0,
            making: 0,
        }
    }

    /// Takes a spare one, or requests one.
    ///
    /// # Errors
    /// The limit of instances is reached.
    pub fn take(&mut self) -> Result<oneshot::Receiver<Made>, String> {
        let (sender, receiver) = oneshot::channel();
        match self.spares.pop_front() {
            Some(spare) => {
                let _ = sender.send(Ok(spare));
            }
            None => {
                self.waiting.push_back(sender);
                self.refill();
                if self.making < self.waiting.len() {
                    self.waiting.pop_back();
                    return Err(format!("a template has {INSTANCES_MAX} instances at most"));
                }
            }
        }
        self.refill();
        Ok(receiver)
    }

    /// Requests spare ones up to the configured number.
    pub fn refill(&mut self) {
        let wanted = self.waiting.len() + self.spares_wanted;
        while self.spares.len() + self.making < wanted {
            let slot = match self.free.pop() {
                Some(slot) => slot,
                None if self.next < INSTANCES_MAX => {
                    self.next += 1;
                    self.next - 1
                }
                None => return,
            };
            self.making += 1;
            // If the supervisor has ended, the waiting tasks are notified of that.
            let _ = self.outbox.send(ToSupervisor::Make { slot });
        }
    }

    /// Requests that a process is moved into groups.
    pub fn join(&mut self, slot: u32, pid: i32) -> oneshot::Receiver<Option<String>> {
        let (sender, receiver) = oneshot::channel();
        self.joins.insert(slot, sender);
        let _ = self.outbox.send(ToSupervisor::Join { slot, pid });
        receiver
    }

    /// Requests the removal of an instance's resources.
    pub fn release(&mut self, slot: u32) {
        let _ = self.outbox.send(ToSupervisor::Remove { slot });
    }

    /// Tells the supervisor that the zygote has closed its socket.
    pub fn ending(&mut self) {
        let _ = self.outbox.send(ToSupervisor::Ending);
    }

    fn made(&mut self, mut made: Made) {
        self.making = self.making.saturating_sub(1);
        while let Some(waiting) = self.waiting.pop_front() {
            // If the waiting task was cancelled, the next one gets it.
            match waiting.send(made) {
                Ok(()) => return,
                Err(back) => made = back,
            }
        }
        if let Ok(spare) = made {
            self.spares.push_back(spare);
        }
    }

    fn said(&mut self, message: FromSupervisor, beside: Vec<OwnedFd>) {
        match message {
            FromSupervisor::Made { slot } => self.made(Ok(Spare { slot, groups: beside })),
            FromSupervisor::NotMade { slot, why } => {
                self.free.push(slot);
                self.made(Err(why));
            }
            FromSupervisor::Joined { slot, why } => {
                if let Some(answer) = self.joins.remove(&slot) {
                    let _ = answer.send(why);
                }
            }
            FromSupervisor::Removed { slot } => {
                self.free.push(slot);
                self.refill();
            }
            _ => {}
        }
    }

    fn end(&mut self, how: &str) {
        self.spares.clear();
        self.joins.clear();
        for waiting in self.waiting.drain(..) {
            let _ = waiting.send(Err(how.to_owned()));
        }
    }
}

/// A packet of the zygote: one of these members is present.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FromZygote {
    ready: Option<bool>,
    unpreloaded: Option<String>,
    modules: bool,
    forked: Option<String>,
    pid: Option<i32>,
    exited: Option<i32>,
    status: Option<i32>,
    error: Option<String>,
    fork: Option<String>,
}

/// The processes of a template, as the gateway holds them.
pub struct Parties {
    /// The supervisor's process.
    pub child: Child,
    /// The supervisor's socket.
    pub supervisor: UnixStream,
    /// The zygote's socket.
    pub control: Arc<UnixStream>,
    /// The task that reads the output.
    pub reading: JoinHandle<()>,
    /// The end of the output.
    pub tail: Tail,
}

/// Processes the messages until the template is dropped or has ended; then releases the processes.
pub async fn run(
    mut parties: Parties,
    state: Arc<ZygoteState>,
    mut inbox: mpsc::UnboundedReceiver<ToSupervisor>,
    mut stopped: oneshot::Receiver<()>,
    ready: oneshot::Sender<Option<Unpreloaded>>,
    end: watch::Sender<Option<Ending>>,
) {
    let pid = parties.child.id().and_then(|pid| i32::try_from(pid).ok());
    state.supervisor.store(pid.unwrap_or(0), Ordering::Relaxed);
    let ending = tokio::select! {
        ending = hear(&parties, &state, &mut inbox, ready) => Some(ending),
        _ = &mut stopped => None,
    };
    if let Some(mut ending) = ending {
        // The rest of the output is in the pipe, whose writers have ended.
        let _ = tokio::time::timeout(PRINTED_TIMEOUT, &mut parties.reading).await;
        if ending.of_function {
            ending.why = format!("{}. {}", ending.why, parties.tail.text()).trim().to_owned();
        }
        state.end(&ending.why);
        end.send_replace(Some(ending));
    }
    // The supervisor ends with its socket, and the supervisor ends everything else.
    let Parties { mut child, supervisor, control, .. } = parties;
    drop((supervisor, control));
    let _ = child.wait().await;
}

async fn hear(
    parties: &Parties,
    state: &ZygoteState,
    inbox: &mut mpsc::UnboundedReceiver<ToSupervisor>,
    ready: oneshot::Sender<Option<Unpreloaded>>,
) -> Ending {
    let broken = |why: String| Ending { of_function: false, why };
    let mut ready = Some(ready);
    let mut control_is_open = true;
    loop {
        let of_zygote = receive(&parties.control);
        tokio::select! {
            Some(message) = inbox.recv() => {
                let tell = || Ok(packet::send(&parties.supervisor, &message, &[])?);
                let told = parties.supervisor.async_io(Interest::WRITABLE, tell).await;
                if let Err(error) = told {
                    return broken(format!("its supervisor was lost: {error}"));
                }
            }
            said = receive(&parties.supervisor) => match said {
                Ok(Some((bytes, beside))) => match serde_json::from_slice(&bytes) {
                    Ok(FromSupervisor::Launched { pid }) => state.zygote.store(pid, Ordering::Relaxed),
                    Ok(FromSupervisor::Failed { why }) => return broken(why),
                    Ok(FromSupervisor::Ended { how }) => return Ending { of_function: true, why: how },
                    Ok(message) => state.slots().said(message, beside),
                    Err(error) => return broken(format!("its supervisor said: {error}")),
                },
                Ok(None) => return broken("its supervisor has ended".to_owned()),
                Err(error) => return broken(format!("its supervisor was lost: {error}")),
            },
            said = of_zygote, if control_is_open => match said {
                Ok(Some((bytes, _))) => match serde_json::from_slice::<FromZygote>(&bytes) {
                    Ok(FromZygote { ready: Some(true), unpreloaded, modules, .. }) => {
                        let why = unpreloaded.map(|why| Unpreloaded::new(&why, modules));
                        let _ = ready.take().map(|ready| ready.send(why));
                    }
                    Ok(packet) => state.said(packet),
                    Err(error) => return Ending {
                        of_function: true,
                        why: format!("its zygote said what is no answer: {error}"),
                    },
                },
                // The supervisor reports the status.
                Ok(None) | Err(_) => {
                    control_is_open = false;
                    state.slots().ending();
                }
            },
        }
    }
}

async fn receive(socket: &UnixStream) -> std::io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    socket.async_io(Interest::READABLE, || Ok(packet::receive_bytes(socket)?)).await
}

/// The credentials of the sender of a channel's next message, from the kernel; the message stays
/// in the channel. `None` at the end.
pub fn sender(channel: impl AsFd) -> rustix::io::Result<Option<UCred>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(channel, &mut parts, &mut beside, flags)?;
    if got.bytes == 0 {
        return Ok(None);
    }
    let sender = beside.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmCredentials(sender) => Some(sender),
        _ => None,
    });
    sender.map(Some).ok_or(rustix::io::Errno::BADMSG)
}

/// The number of a process in its innermost PID namespace.
pub fn inner(pid: Pid) -> Option<i32> {
    let text = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(spares: u32) -> (Slots, mpsc::UnboundedReceiver<ToSupervisor>) {
        let (outbox, inbox) = mpsc::unbounded_channel();
        (Slots::new(spares, outbox), inbox)
    }

    fn made(slots: &mut Slots, slot: u32) {
        slots.said(FromSupervisor::Made { slot }, Vec::new());
    }

    #[test]
    fn spares_are_made_ahead() {
        let (mut slots, mut inbox) = slots(2);
        slots.refill();
        assert_eq!(inbox.try_recv(), Ok(ToSupervisor::Make { slot: 0 }));
        assert_eq!(inbox.try_recv(), Ok(ToSupervisor::Make { slot: 1 }));
        assert!(inbox.try_recv().is_err());
        made(&mut slots, 0);
        made(&mut slots, 1);
        let mut taken = slots.take().unwrap();
        assert_eq!(taken.try_recv().unwrap().unwrap().slot, 0);
        assert_eq!(inbox.try_recv(), Ok(ToSupervisor::Make { slot: 2 }));
    }

    #[test]
    fn who_waits_is_served_in_order_and_who_left_is_not() {
        let (mut slots, _inbox) = slots(0);
        let (first, mut second) = (slots.take().unwrap(), slots.take().unwrap());
        drop(first);
        made(&mut slots, 0);
        assert_eq!(second.try_recv().unwrap().unwrap().slot, 0);
        made(&mut slots, 1);
        assert_eq!(slots.take().unwrap().try_recv().unwrap().unwrap().slot, 1);
        let mut third = slots.take().unwrap();
        slots.said(FromSupervisor::NotMade { slot: 2, why: "no".to_owned() }, Vec::new());
        assert_eq!(third.try_recv().unwrap().unwrap_err(), "no");
    }

    #[test]
    fn numbers_are_limited_and_used_again() {
        let (mut slots, mut inbox) = slots(0);
        let all: Vec<_> = (0..INSTANCES_MAX).map(|_| slots.take().unwrap()).collect();
        assert!(slots.take().unwrap_err().contains("at most"));
        for slot in 0..INSTANCES_MAX {
            made(&mut slots, slot);
        }
        drop(all);
        slots.release(7);
        while inbox.try_recv() != Ok(ToSupervisor::Remove { slot: 7 }) {}
        assert!(slots.take().is_err(), "it is not removed yet");
        slots.said(FromSupervisor::Removed { slot: 7 }, Vec::new());
        assert!(slots.take().is_ok());
        assert_eq!(inbox.try_recv(), Ok(ToSupervisor::Make { slot: 7 }));
    }

    #[test]
    fn a_zygote_is_not_believed() {
        let state = ZygoteState::new(slots(0).0);
        let said = |text: &str| state.said(serde_json::from_str(text).unwrap());
        said(r#"{"forked": "nobody", "pid": 5}"#);
        said(r#"{"exited": 5, "status": 0}"#);
        said(r#"{"error": "x", "fork": null}"#);
        let mut answer = state.fork("one").unwrap();
        assert!(state.fork("one").is_none(), "the name is taken");
        said(r#"{"forked": "one", "pid": 6}"#);
        let forked = answer.try_recv().unwrap().unwrap();
        said(r#"{"exited": 5, "status": 0}"#);
        assert!(forked.ended.borrow().is_none());
        said(r#"{"exited": 6, "status": -1}"#);
        assert_eq!(forked.ended.borrow().as_deref(), Some("a signal ended it"));
        let mut late = state.fork("two").unwrap();
        state.end("over");
        assert_eq!(late.try_recv().unwrap().unwrap_err(), "over");
    }
}
