//! An instance: the channel to the worker, the two ports, `bootstrap`, and the replies.

use std::cell::{RefCell, RefMut};
use std::io::Result;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::rc::Rc;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, mpsc};
use tokio::task::LocalSet;
use unlade_guest_protocol::frame::FRAME_BYTES_MAX;
use unlade_guest_protocol::{Frame, HandlerStatus, ReplyHead};

use crate::bootstrap::{Bootstrap, Ports};
use crate::invocation::{self, End, Invocations, Outcome};
use crate::link::{Held, Invoked, Link};
use crate::{endpoint, http, runtime_api};

/// Port of the Runtime API.
const RUNTIME_API: &str = "127.0.0.1:9001";
/// Port of the endpoint for SDKs.
const ENDPOINT: &str = "127.0.0.1:9002";
/// Longest result that a frame carries: the end of the log, in JSON, may have six bytes for each.
const INLINE_BYTES_MAX: usize = FRAME_BYTES_MAX - 32 * 1024;

/// What the servers share.
pub struct Instance {
    /// The channel to the worker.
    pub link: Rc<Link>,
    ports: Ports,
    states: RefCell<Invocations>,
    changes: Notify,
    bootstrap: RefCell<Rc<Bootstrap>>,
    /// The slots of the last result, until the next invocation.
    lent: RefCell<Option<Held>>,
}

impl Instance {
    /// The states of its invocations.
    pub fn states(&self) -> RefMut<'_, Invocations> {
        self.states.borrow_mut()
    }

    /// Waits for the next change of the states.
    pub fn change(&self) -> Notified<'_> {
        self.changes.notified()
    }

    /// Tells that the states have changed.
    pub fn changed(&self) {
        self.changes.notify_waiters();
        let tried = self.states().tried();
        self.reply(tried);
    }

    /// Replies to the host.
    pub fn reply(&self, outcome: Option<Outcome>) {
        let Some(Outcome { id, mut status, mut result }) = outcome else { return };
        let bootstrap = self.bootstrap.borrow().clone();
        let log_tail = bootstrap.output.take();
        let mut result_slot = None;
        if result.len() > INLINE_BYTES_MAX {
            match self.link.whole(&result) {
                Some(held) => {
                    result_slot = Some(held.first);
                    *self.lent.borrow_mut() = Some(held);
                }
                None => {
                    let room = self.link.slots_bytes();
                    let why = format!("{} bytes; the region has room for {room}", result.len());
                    result = invocation::error("Function.ResponseSizeTooLarge", &why);
                    status = HandlerStatus::Error;
                }
            }
        }
        let result_bytes = result.len() as u32;
        let head = ReplyHead { id, status, log_tail, result_bytes, result_slot };
        let follows = if result_slot.is_some() { Vec::new() } else { result.to_vec() };
        if let Err(error) = self.link.send(&Frame::Reply(head, follows)) {
            eprintln!("unlade: the reply: {error}");
        }
    }

    fn start(self: &Rc<Instance>) -> Result<()> {
        let bootstrap = Rc::new(Bootstrap::start(&self.ports)?);
        watch(&bootstrap);
        *self.bootstrap.borrow_mut() = bootstrap;
        Ok(())
    }

    fn invoked(self: &Rc<Instance>, Invoked { head, event }: Invoked) -> Result<()> {
        *self.lent.borrow_mut() = None;
        if self.states().invoked(head, event) {
            self.bootstrap.borrow().kill();
            self.start()?;
            self.states().restarted();
        }
        self.changed();
        Ok(())
    }
}

/// Passes the output of a `bootstrap` on, as long as somebody may print.
fn watch(bootstrap: &Rc<Bootstrap>) {
    let bootstrap = bootstrap.clone();
    tokio::task::spawn_local(async move { bootstrap.output.run().await });
}

/// Runs an instance on its channel; returns its exit status.
///
/// # Errors
/// The channel, a port or `bootstrap` fails.
pub fn run(channel: OwnedFd) -> Result<u8> {
    // Orphans of `bootstrap` become children of this process.
    let own = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(own))?;
    let (link, service) = Link::greet(channel)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let local = LocalSet::new();
    local.block_on(&runtime, async move {
        let mut ended = signal(SignalKind::child())?;
        let runtime_api = TcpListener::bind(RUNTIME_API).await?;
        let endpoint = TcpListener::bind(ENDPOINT).await?;
        let ports = Ports { runtime_api: RUNTIME_API.into(), endpoint: ENDPOINT.into() };
        let (sender, mut arrived) = mpsc::unbounded_channel();
        let mut service = std::pin::pin!(service.run(sender));
        let bootstrap = match Bootstrap::start(&ports) {
            Ok(bootstrap) => Rc::new(bootstrap),
            Err(error) => {
                tokio::task::spawn_local(refuse(link, arrived, error.to_string()));
                return service.await.map(|()| 0);
            }
        };
        watch(&bootstrap);
        let instance = Rc::new(Instance {
            link: link.clone(),
            ports,
            states: Invocations::new().into(),
            changes: Notify::new(),
            bootstrap: bootstrap.into(),
            lent: RefCell::default(),
        });
        tokio::task::spawn_local(http::serve(runtime_api, instance.clone(), runtime_api::answer));
        tokio::task::spawn_local(http::serve(endpoint, link, endpoint::answer));
        loop {
            tokio::select! {
                ended = &mut service => return ended.map(|()| 0),
                Some(invoked) = arrived.recv() => instance.invoked(invoked)?,
                _ = ended.recv() => {
                    let bootstrap = instance.bootstrap.borrow().clone();
                    let Some(status) = bootstrap.reap() else { continue };
                    let printed = bootstrap.output.take();
                    let why = format!("bootstrap ended: {status}. {}", printed.trim_end());
                    let end = instance.states().ended(&why);
                    match end {
                        End::Stay(outcome) => instance.reply(outcome),
                        End::Leave => return Ok(exit_code(status)),
                    }
                }
            }
        }
    })
}

/// Answers every invocation of a `bootstrap` that cannot be executed.
async fn refuse(link: Rc<Link>, mut arrived: mpsc::UnboundedReceiver<Invoked>, why: String) {
    let result = invocation::error("Runtime.InvalidEntrypoint", &why);
    while let Some(Invoked { head, .. }) = arrived.recv().await {
        let head = ReplyHead {
            id: head.id,
            status: HandlerStatus::Error,
            log_tail: String::new(),
            result_bytes: result.len() as u32,
            result_slot: None,
        };
        if link.send(&Frame::Reply(head, result.to_vec())).is_err() {
            return;
        }
    }
}

/// The status with which the instance ends after its `bootstrap`: the same one; after a signal this
/// process ends by that signal.
fn exit_code(status: ExitStatus) -> u8 {
    let by_signal = status.signal().and_then(rustix::process::Signal::from_named_raw);
    if let Some(signal) = by_signal {
        let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
    }
    // A runtime that leaves without an error has still left its instance.
    status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
