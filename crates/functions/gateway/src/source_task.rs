//! The task of one event source mapping: it carries out the actions of a [`Poller`], and tells it what
//! has come of them.

use std::rc::Rc;
use std::time::Instant;

use tokio::sync::mpsc;
use unlade_fn_model::lambda::Refusal;
use unlade_fn_model::lifecycle::Qualifier;
use unlade_fn_model::source::{Action, Mapping, Message, Outcome, Poller, message};
use unlade_metrics::{Event, MessageEnd, PollResult};

use crate::behalf::CallError;
use crate::draw::draw;
use crate::function::{Function, key};
use crate::host::Host;
use crate::invoke::invoke;
use crate::source_queue;
use crate::sources::{Problem, Start, Status};

/// The result of an action.
enum Heard {
    Received(Vec<Message>),
    ReceiveFailed { is_too_long: bool },
    Invoked(u64, Outcome),
    Settled(u64),
}

/// The surroundings of an action.
#[derive(Clone)]
struct Feed {
    host: Rc<Host>,
    function: String,
    mapping: Mapping,
    status: Rc<Status>,
    said: mpsc::UnboundedSender<Heard>,
}

/// Takes messages of queues from now on: each mapping has a task.
pub fn run(host: &Rc<Host>) {
    let own = Rc::downgrade(host);
    host.sources.start_by(move |start| {
        if let Some(host) = own.upgrade() {
            tokio::task::spawn_local(feed(host, start));
        }
    });
}

/// Feeds a function until its mapping is removed, or the gateway ends. Messages on their way are
/// finished then. A request for messages is awaited if the mapping is removed; if the gateway ends, its
/// messages become visible again after their visibility timeout.
async fn feed(host: Rc<Host>, start: Start) {
    let Start { function, mut changes, status, mut ending, running: _running } = start;
    let Some(mapping) = changes.borrow_and_update().clone() else { return };
    let (said, mut heard) = mpsc::unbounded_channel();
    let mut feed = Feed { host, function, mapping, status, said };
    let mut poller = Poller::new(feed.mapping.settings());
    let is_enabled = feed.mapping.enabled;
    let mut actions = poller.set(feed.mapping.settings(), is_enabled, Instant::now());
    let (mut is_removed, mut is_ending) = (false, *ending.borrow_and_update());
    loop {
        for action in actions {
            feed.act(action);
        }
        feed.status.is_busy.set(!poller.is_idle() || poller.is_receiving());
        let is_done = is_ending || is_removed && !poller.is_receiving();
        if is_done && poller.is_idle() {
            return;
        }
        let due = poller.due(Instant::now());
        let tick = async {
            match due {
                Some(due) => tokio::time::sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        actions = tokio::select! {
            // `feed` itself has a sender: the channel stays open.
            Some(heard) = heard.recv() => {
                let now = Instant::now();
                match heard {
                    Heard::Received(messages) => poller.received(messages, now),
                    Heard::ReceiveFailed { is_too_long } => poller.receive_failed(is_too_long, now),
                    Heard::Invoked(batch, outcome) => poller.invoked(batch, outcome, now),
                    Heard::Settled(batch) => poller.settled(batch, now),
                }
            }
            _ = changes.changed(), if !is_removed && !is_ending => {
                match changes.borrow_and_update().clone() {
                    Some(mapping) => feed.mapping = mapping,
                    None => is_removed = true,
                }
                let is_enabled = feed.mapping.enabled && !is_removed;
                poller.set(feed.mapping.settings(), is_enabled, Instant::now())
            }
            _ = ending.changed(), if !is_ending => {
                is_ending = true;
                poller.set(feed.mapping.settings(), false, Instant::now())
            }
            () = tick => poller.tick(Instant::now()),
        };
    }
}

impl Feed {
    /// Carries out an action in a task of its own.
    fn act(&self, action: Action) {
        let own = self.clone();
        tokio::task::spawn_local(async move {
            let heard = match action {
                Action::Receive { max, wait } => own.receive(max, wait.as_secs()).await,
                Action::Invoke { batch, messages } => {
                    Heard::Invoked(batch, own.invoke(&messages).await)
                }
                Action::Settle { batch, delete, left, release, after } => {
                    own.host.meter.add_n(Event::FnMessage(MessageEnd::Left), left as u64);
                    own.settle(&delete, &release, after.as_secs()).await;
                    Heard::Settled(batch)
                }
            };
            // After its end the task does not listen.
            let _ = own.said.send(heard);
        });
    }

    fn note(&self, result: Result<(), Problem>) {
        self.status.note(&self.function, &self.mapping.queue.arn, result);
    }

    /// The version that serves the mapping now.
    fn version(&self) -> Result<Rc<Function>, String> {
        let record = self.host.registry.get(&self.function);
        let record = record.ok_or_else(|| "the function is not there any more".to_owned())?;
        let qualifier = self.mapping.qualifier.as_deref().map(Qualifier::parse).transpose();
        let said = |refusal: Refusal| refusal.message();
        let version = record.choose(qualifier.map_err(said)?.as_ref(), draw()).map_err(said)?;
        let found = self.host.function(&key(&self.function, version));
        found.ok_or_else(|| format!("version {version} of the function is not served"))
    }

    async fn receive(&self, max: usize, wait_s: u64) -> Heard {
        let received = match self.version() {
            Ok(function) => {
                source_queue::receive(&function, &self.mapping.queue, (max, wait_s)).await
            }
            Err(why) => Err(CallError::Failed(why)),
        };
        let result = match &received {
            Ok(messages) if messages.is_empty() => PollResult::Empty,
            Ok(_) => PollResult::Messages,
            Err(CallError::Denied(_)) => PollResult::Denied,
            Err(_) => PollResult::Failed,
        };
        self.host.meter.add(Event::FnPoll(result));
        match received {
            Ok(messages) => {
                // A problem with messages stays until messages are handled.
                let is_over = matches!(&*self.status.last.borrow(), Some(Err(Problem::Queue(_))));
                if is_over {
                    self.note(Ok(()));
                }
                Heard::Received(messages)
            }
            Err(error) => {
                self.note(Err(Problem::Queue(format!("ReceiveMessage: {error}"))));
                Heard::ReceiveFailed { is_too_long: error == CallError::TooLong }
            }
        }
    }

    async fn invoke(&self, messages: &[Message]) -> Outcome {
        let function = match self.version() {
            Ok(function) => function,
            Err(why) => {
                self.note(Err(Problem::Messages(why)));
                return Outcome::Refused;
            }
        };
        match invoke(&self.host, &function, message::event(messages).into()).await {
            Ok(answer) if answer.is_error => {
                self.note(Err(Problem::Messages("the function has failed".to_owned())));
                Outcome::Failed
            }
            Ok(answer) => {
                self.note(Ok(()));
                match self.mapping.reports_failures {
                    true => message::reported(&answer.result, messages),
                    false => Outcome::Handled { failed: Default::default() },
                }
            }
            Err(refusal) => {
                self.note(Err(Problem::Messages(refusal.message())));
                match refusal {
                    Refusal::Throttled(_) | Refusal::Reserved(_) => Outcome::Refused,
                    // It is not known whether it has run.
                    _ => Outcome::Failed,
                }
            }
        }
    }

    async fn settle(&self, delete: &[Message], release: &[Message], after_s: u64) {
        let meter = &self.host.meter;
        let function = match self.version() {
            Ok(function) => function,
            Err(why) => {
                self.note(Err(Problem::Messages(why)));
                meter.add_n(Event::FnMessage(MessageEnd::Undeleted), delete.len() as u64);
                meter.add_n(Event::FnMessage(MessageEnd::Left), release.len() as u64);
                return;
            }
        };
        let queue = &self.mapping.queue;
        let deleted = source_queue::delete(&function, queue, delete).await;
        let released = source_queue::release(&function, queue, (release, after_s)).await;
        meter.add_n(Event::FnMessage(MessageEnd::Deleted), deleted.done as u64);
        meter.add_n(Event::FnMessage(MessageEnd::Undeleted), (delete.len() - deleted.done) as u64);
        meter.add_n(Event::FnMessage(MessageEnd::Released), released.done as u64);
        meter.add_n(Event::FnMessage(MessageEnd::Left), (release.len() - released.done) as u64);
        if let Some(error) = deleted.error.or(released.error) {
            self.note(Err(Problem::Messages(error)));
        }
    }
}
