//! State that the servers of an instance share: the invocations, `bootstrap`, and the replies.

use std::cell::{RefCell, RefMut};
use std::io::Result;
use std::process::ExitStatus;
use std::rc::Rc;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use unlade_guest_protocol::frame::FRAME_BYTES_MAX;
use unlade_guest_protocol::{Frame, HandlerStatus, ReplyHead};

use crate::bootstrap::{Bootstrap, Launch};
use crate::invocation::{self, End, Invocations, Outcome};
use crate::link::{Held, Invoked, Link};

/// Longest result that a frame carries: the end of the log, in JSON, may have six bytes for each.
const INLINE_BYTES_MAX: usize = FRAME_BYTES_MAX - 32 * 1024;

/// State that the servers share.
pub struct Instance {
    /// The channel to the worker.
    pub link: Rc<Link>,
    /// The surroundings of `bootstrap`.
    pub launch: Launch,
    states: RefCell<Invocations>,
    changes: Notify,
    bootstrap: RefCell<Rc<Bootstrap>>,
    /// The slots of the last result, until the next invocation.
    lent: RefCell<Option<Held>>,
}

impl Instance {
    /// An instance whose `bootstrap` was started.
    pub fn new(link: Rc<Link>, launch: Launch, bootstrap: Bootstrap) -> Rc<Instance> {
        let bootstrap = Rc::new(bootstrap);
        watch(&bootstrap);
        Rc::new(Instance {
            link,
            launch,
            states: Invocations::new().into(),
            changes: Notify::new(),
            bootstrap: bootstrap.into(),
            lent: RefCell::default(),
        })
    }

    /// The states of its invocations.
    pub fn states(&self) -> RefMut<'_, Invocations> {
        self.states.borrow_mut()
    }

    /// Waits for the next change of the states.
    pub fn change(&self) -> Notified<'_> {
        self.changes.notified()
    }

    /// Tells that the states have changed.
    pub fn changed(self: &Rc<Instance>) {
        self.changes.notify_waiters();
        let tried = self.states().tried();
        self.reply(tried);
    }

    /// Replies to the host. A long result may wait for slots that bodies hold.
    pub fn reply(self: &Rc<Instance>, outcome: Option<Outcome>) {
        let Some(mut outcome) = outcome else { return };
        if outcome.result.len() <= INLINE_BYTES_MAX {
            return self.tell(outcome, None);
        }
        let instance = self.clone();
        tokio::task::spawn_local(async move {
            let held = instance.link.result(&outcome.result).await;
            if held.is_none() {
                let room = instance.link.slots_bytes();
                let why = format!("{} bytes; the region has room for {room}", outcome.result.len());
                outcome.result = invocation::error("Function.ResponseSizeTooLarge", &why);
                outcome.status = HandlerStatus::Error;
            }
            instance.tell(outcome, held);
        });
    }

    /// Replies with a result that is in slots, or follows.
    fn tell(&self, outcome: Outcome, held: Option<Held>) {
        let Outcome { id, status, result } = outcome;
        let bootstrap = self.bootstrap.borrow().clone();
        let log_tail = bootstrap.output.take();
        let result_slot = held.as_ref().map(|held| held.first);
        *self.lent.borrow_mut() = held;
        let result_bytes = result.len() as u32;
        let head = ReplyHead { id, status, log_tail, result_bytes, result_slot };
        let follows = if result_slot.is_some() { Vec::new() } else { result.to_vec() };
        if let Err(error) = self.link.send(&Frame::Reply(head, follows)) {
            eprintln!("unlade: the reply: {error}");
        }
    }

    fn start(self: &Rc<Instance>) -> Result<()> {
        let bootstrap = Rc::new(Bootstrap::start(&self.launch)?);
        watch(&bootstrap);
        *self.bootstrap.borrow_mut() = bootstrap;
        Ok(())
    }

    /// Takes an invocation, for which `bootstrap` may have to be started again.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn invoked(self: &Rc<Instance>, Invoked { head, event }: Invoked) -> Result<()> {
        *self.lent.borrow_mut() = None;
        if self.states().invoked(head, event) {
            self.bootstrap.borrow().kill();
            self.start()?;
            self.states().restarted();
        }
        self.changed();
        Ok(())
    }

    /// Takes the children that have ended; the status of `bootstrap` if the instance ends with it.
    pub fn reap(self: &Rc<Instance>) -> Option<ExitStatus> {
        let bootstrap = self.bootstrap.borrow().clone();
        let status = bootstrap.reap()?;
        let printed = bootstrap.output.take();
        let why = format!("bootstrap ended: {status}. {}", printed.trim_end());
        let end = self.states().ended(&why);
        match end {
            End::Stay(outcome) => {
                self.reply(outcome);
                None
            }
            End::Leave => Some(status),
        }
    }
}

/// Passes the output of a `bootstrap` on, as long as somebody may print.
fn watch(bootstrap: &Rc<Bootstrap>) {
    let bootstrap = bootstrap.clone();
    tokio::task::spawn_local(async move { bootstrap.output.run().await });
}
