//! A template: a zygote, and the start of instances.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Stdio;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags};
use serde::Serialize;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};
use unlade_fn_model::isolation::{
    Image, IsolationError, Local, Origin, Preload, Started, Template, Unpreloaded, Usage,
};

use super::config::{Launcher, ProcessConfig};
use super::error::system;
use super::groups::{self, Account, Hierarchy, Limits};
use super::instance::{self, Sandboxed, SlotOwner};
use super::output::{self, Tail};
use super::serve::{self, Ending, Forked, Parties, Slots, Spare, ZygoteState};
use super::spec::Spec;
use super::{packet, root, usage};

/// A ready zygote and its supervisor. They end when neither the template nor an instance holds
/// this.
pub struct ZygoteHandle {
    /// The function's name.
    pub function: String,
    /// The pending requests.
    pub state: Arc<ZygoteState>,
    /// The limits of an instance.
    pub limits: Limits,
    hierarchies: Vec<Hierarchy>,
    group: String,
    ids_first: u32,
    freeze_after: Option<Duration>,
    preload: Preload,
    /// Variables of each instance, beyond those of the zygote.
    environment: BTreeMap<String, String>,
    unpreloaded: OnceLock<Unpreloaded>,
    start_timeout: Duration,
    control: Arc<UnixStream>,
    ended: watch::Receiver<Option<Ending>>,
    tail: Tail,
    /// Dropping this ends the task that serves the sockets, and with it the sockets.
    _stop: oneshot::Sender<()>,
}

/// The template of a zygote.
pub struct Zygote(Arc<ZygoteHandle>);

/// A request to fork, as the zygote parses it.
#[derive(Serialize)]
struct Fork<'a> {
    fork: &'a str,
    environment: &'a BTreeMap<String, String>,
    /// Number of attached descriptors that are files of groups.
    groups: usize,
    root: PathBuf,
    user: u32,
    /// Most processes and threads of this user.
    processes: u32,
}

fn pair(kind: SocketType) -> Result<(OwnedFd, OwnedFd), IsolationError> {
    let flags = SocketFlags::CLOEXEC;
    let (own, other) = socketpair(AddressFamily::UNIX, kind, flags, None)
        .map_err(|source| system("a pair of sockets", source))?;
    rustix::io::ioctl_fionbio(&own, true).map_err(|source| system("a socket", source))?;
    Ok((own, other))
}

/// Registers a packet socket as a stream, which is the only type that the runtime supports; the
/// runtime does not check the socket's type.
fn watched(descriptor: OwnedFd) -> Result<UnixStream, IsolationError> {
    let socket = std::os::unix::net::UnixStream::from(descriptor);
    UnixStream::from_std(socket).map_err(|error| system("watching a socket", error))
}

impl Zygote {
    /// Starts a zygote, and waits until it is ready.
    ///
    /// # Errors
    /// It cannot be created, or the function cannot be imported.
    pub async fn start(
        image: &Image,
        spec: Spec,
        config: &ProcessConfig,
        launcher: &Launcher,
    ) -> Result<Zygote, IsolationError> {
        let (supervisor, supervisors) = pair(SocketType::SEQPACKET)?;
        let (control, zygotes) = pair(SocketType::SEQPACKET)?;
        let (printed, print) = output::pipe().map_err(|error| system("a pipe", error))?;
        let also = print.try_clone().map_err(|error| system("a pipe", error))?;
        let mut command = Command::new(&launcher.program);
        command.args(&launcher.arguments).env_clear();
        command
            .stdin(Stdio::from(supervisors))
            .stdout(Stdio::from(print))
            .stderr(Stdio::from(also));
        let child = command
            .spawn()
            .map_err(|source| system(format!("starting {}", launcher.program.display()), source))?;
        // Closes this process's copies of the descriptors.
        drop(command);
        packet::send(&supervisor, &spec, &[zygotes.as_fd()])
            .map_err(|source| system("telling the supervisor of the sandbox", source))?;
        drop(zygotes);
        if !spec.hierarchies.iter().any(|hierarchy| hierarchy.controllers.contains("memory")) {
            tracing::warn!(function = image.function, "no control group limits its memory");
        }
        let tail = Tail::default();
        let output = output::Output::new(printed, image.function.clone(), tail.clone());
        let reading = tokio::spawn(output.clone().run());
        let control = Arc::new(watched(control)?);
        let (outbox, inbox) = mpsc::unbounded_channel();
        let state = Arc::new(ZygoteState::new(Slots::new(config.spares, outbox)));
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = oneshot::channel();
        let (end, ended) = watch::channel(None);
        let parties = Parties {
            child,
            supervisor: watched(supervisor)?,
            control: control.clone(),
            reading,
            tail: tail.clone(),
        };
        tokio::spawn(serve::run(parties, state.clone(), inbox, stopped, ready, end));
        let held = ZygoteHandle {
            function: image.function.clone(),
            state,
            limits: spec.limits,
            hierarchies: spec.hierarchies,
            group: spec.group,
            ids_first: spec.ids_first,
            freeze_after: config.freeze_after(),
            preload: image.preload.clone(),
            environment: spec.instance_environment,
            unpreloaded: OnceLock::new(),
            start_timeout: config.start_timeout,
            control,
            ended,
            tail,
            _stop: stop,
        };
        held.until_ready(is_ready).await?;
        // The output of the import is in the pipe.
        output.drain();
        Ok(Zygote(Arc::new(held)))
    }
}

impl ZygoteHandle {
    async fn until_ready(
        &self,
        ready: oneshot::Receiver<Option<Unpreloaded>>,
    ) -> Result<(), IsolationError> {
        let deadline = Instant::now() + self.start_timeout;
        tokio::select! {
            ready = timeout_at(deadline, ready) => match ready {
                Ok(Ok(unpreloaded)) => {
                    if let Some(why) = unpreloaded {
                        let _ = self.unpreloaded.set(why);
                    }
                    self.state.slots().refill();
                    Ok(())
                }
                Ok(Err(_)) => Err(self.failure(self.end().await)),
                Err(_) => Err(self.late("import")),
            },
            end = self.end() => Err(self.failure(end)),
        }
    }

    /// Waits for the end of the zygote; returns the reason.
    async fn end(&self) -> Ending {
        let mut ended = self.ended.clone();
        let found = ended.wait_for(Option::is_some).await;
        found.ok().and_then(|found| found.clone()).unwrap_or_else(|| Ending {
            of_function: false,
            why: "its supervisor was lost".to_owned(),
        })
    }

    fn failure(&self, end: Ending) -> IsolationError {
        match end.of_function {
            true => self.function(end.why),
            false => system(format!("the sandbox of {}", self.function), io::Error::other(end.why)),
        }
    }

    fn origin(&self) -> Origin {
        let mut imported = self.preload.clone();
        if let Some(unpreloaded) = self.unpreloaded.get() {
            imported.without(unpreloaded);
        }
        if imported.is_any() { Origin::Restored } else { Origin::Cold }
    }

    fn function(&self, why: String) -> IsolationError {
        IsolationError::Function { function: self.function.clone(), why }
    }

    fn late(&self, what: &str) -> IsolationError {
        let printed = self.tail.text();
        let seconds = self.start_timeout.as_secs_f32();
        self.function(format!("its {what} took more than {seconds} s. {printed}").trim().to_owned())
    }

    /// The resource account of one of its groups.
    fn account(&self, name: &str) -> Account {
        Account::new(&self.hierarchies, &self.group, name)
    }

    async fn start(self: &Arc<ZygoteHandle>, name: &str) -> Result<Started, IsolationError> {
        let deadline = Instant::now() + self.start_timeout;
        let started = tokio::select! {
            started = timeout_at(deadline, self.started(name)) => started,
            end = self.end() => return Err(self.failure(end)),
        };
        started.unwrap_or_else(|_| Err(self.late("start")))
    }

    async fn started(self: &Arc<ZygoteHandle>, name: &str) -> Result<Started, IsolationError> {
        let spare = self.spare().await?;
        // Releases the number if a later step fails.
        let pending = Pending { held: self.clone(), slot: Some(spare.slot), name };
        let (own, guests) = pair(SocketType::STREAM)?;
        set_socket_passcred(&own, true).map_err(|source| system("a channel", source))?;
        let (output, print) = output::pair().map_err(|error| system("a pipe", error))?;
        let forked = self.fork(name, &spare, guests, print).await?;
        let channel = watched(own)?;
        let (pid, ended) = self.greeted(&channel, &spare, forked, &output).await?;
        let process = rustix::process::pidfd_open(pid, PidfdFlags::empty())
            .map_err(|source| system("opening the instance's process", source))?;
        let channel = channel.into_std().map_err(|source| system("a channel", source))?;
        let channel = OwnedFd::from(channel);
        set_socket_passcred(&channel, false).map_err(|source| system("a channel", source))?;
        let slot = pending.done();
        let account = self.account(&groups::of_instance(slot));
        let memory_bytes_max = self.limits.memory_bytes;
        let owner = self.clone();
        let instance = Sandboxed::new(owner, slot, pid, process, account, memory_bytes_max, ended)
            .with_output(output)
            .frozen_after(self.freeze_after);
        Ok(Started { channel, region: None, origin: self.origin(), instance: Rc::new(instance) })
    }

    /// Takes a root and groups.
    async fn spare(&self) -> Result<Spare, IsolationError> {
        let unmade = |why: String| system("preparing an instance", io::Error::other(why));
        let made = self.state.slots().take().map_err(unmade)?;
        made.await.unwrap_or_else(|_| Err("its supervisor was lost".to_owned())).map_err(unmade)
    }

    /// Requests a fork; the child alone has the guest's end of the channel, and prints to a pipe of
    /// its own.
    async fn fork(
        &self,
        name: &str,
        spare: &Spare,
        channel: OwnedFd,
        print: OwnedFd,
    ) -> Result<Forked, IsolationError> {
        let failed = |source: io::Error| system(format!("forking {name}"), source);
        let Some(answer) = self.state.fork(name) else {
            let why = "another one has this name";
            return Err(failed(io::Error::new(io::ErrorKind::AlreadyExists, why)));
        };
        let request = Fork {
            fork: name,
            environment: &self.environment,
            groups: spare.groups.len(),
            root: root::of_instance(spare.slot),
            user: 1 + spare.slot,
            processes: self.limits.processes,
        };
        let mut beside = vec![channel.as_fd(), print.as_fd(), print.as_fd()];
        beside.extend(spare.groups.iter().map(AsFd::as_fd));
        self.control
            .async_io(Interest::WRITABLE, || Ok(packet::send(&*self.control, &request, &beside)?))
            .await
            .map_err(failed)?;
        drop((channel, print));
        let answer = answer.await.unwrap_or_else(|_| Err("the zygote was lost".to_owned()));
        answer.map_err(|why| failed(io::Error::other(why)))
    }

    /// Waits for the HELLO, which stays in the channel, and checks its sender: a process of the
    /// instance's user, in its groups, with the number that the zygote has reported.
    async fn greeted(
        &self,
        channel: &UnixStream,
        spare: &Spare,
        forked: Forked,
        output: &OwnedFd,
    ) -> Result<(Pid, watch::Receiver<Option<String>>), IsolationError> {
        let Forked { pid: inner, mut ended } = forked;
        let printed = || format!("{}\n{}", self.tail.text(), output::now(output)).trim().to_owned();
        let sender = tokio::select! {
            sender = channel.async_io(Interest::READABLE, || Ok(serve::sender(channel)?)) =>
                sender.map_err(|source| system("the instance's greeting", source))?,
            how = instance::known(&mut ended) => {
                return Err(self.function(format!("before it greeted, {how}. {}", printed())));
            }
        };
        let Some(sender) = sender else {
            return Err(self.function(format!("it did not greet. {}", printed())));
        };
        let user = self.ids_first + 1 + spare.slot;
        if sender.uid.as_raw() != user || serve::inner(sender.pid) != Some(inner) {
            return Err(self.function("another process greeted in its place".to_owned()));
        }
        let account = self.account(&groups::of_instance(spare.slot));
        if !account.has(sender.pid) {
            self.join(spare.slot, sender.pid).await?;
        }
        Ok((sender.pid, ended))
    }

    /// Requests that the supervisor moves a process into groups that it has not entered itself.
    async fn join(&self, slot: u32, pid: Pid) -> Result<(), IsolationError> {
        let joined = self.state.slots().join(slot, pid.as_raw_nonzero().get());
        match joined.await {
            Ok(None) => Ok(()),
            Ok(Some(why)) => Err(system("joining control groups", io::Error::other(why))),
            Err(_) => {
                Err(system("joining control groups", io::Error::other("the supervisor was lost")))
            }
        }
    }
}

impl SlotOwner for ZygoteHandle {
    fn release(&self, slot: u32) {
        self.state.slots().release(slot);
    }
}

/// A start in progress.
struct Pending<'a> {
    held: Arc<ZygoteHandle>,
    slot: Option<u32>,
    name: &'a str,
}

impl Pending<'_> {
    /// Ends the start: the instance now releases its number itself.
    fn done(mut self) -> u32 {
        self.slot.take().unwrap_or_default()
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.held.state.forget(self.name);
        if let Some(slot) = self.slot {
            self.held.release(slot);
        }
    }
}

impl Template for Zygote {
    fn start<'a>(&'a self, name: &'a str) -> Local<'a, Result<Started, IsolationError>> {
        Box::pin(self.0.start(name))
    }

    fn unpreloaded(&self) -> Option<&Unpreloaded> {
        self.0.unpreloaded.get()
    }

    fn usage(&self) -> io::Result<Usage> {
        let pids = self.0.state.processes();
        if pids.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the template has ended"));
        }
        usage::of(&pids, None)
    }

    fn ended(&self) -> Local<'_, String> {
        Box::pin(async { self.0.end().await.why })
    }

    fn printed(&self) -> String {
        self.0.tail.text()
    }
}
