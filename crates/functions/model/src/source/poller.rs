//! The poller of one mapping: a machine that decides when to ask the queue, which messages are a batch,
//! and what becomes of them. It has no clock and no I/O: inputs come with the time, and each returns
//! the actions to carry out.
//!
//! At most one request for messages is open. A batch is invoked when it is full, or when its first
//! message has waited for the window. A batch is open until it is settled: its messages deleted, left
//! to their visibility timeout, or released. After an error the queue is not asked for a while, longer
//! each time; what was received before is invoked without a pause.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::message::{Message, Outcome};

/// Most messages of one request, as in SQS.
pub const RECEIVE_MAX: usize = 10;
/// Longest wait of a request for messages, as in SQS.
pub const WAIT_MAX: Duration = Duration::from_secs(20);
/// Pause after a first error; doubled with each further one.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The settings of a poller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Most messages of a batch.
    pub batch_size: usize,
    /// Longest wait for a full batch.
    pub window: Duration,
    /// Most open batches.
    pub concurrency: usize,
    /// Most bytes of the records of a batch; one message may have more.
    pub bytes_max: usize,
}

/// An action to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask the queue; [`Poller::received`] or [`Poller::receive_failed`] follows.
    Receive {
        /// Most messages.
        max: usize,
        /// The time to wait for the first one; whole seconds.
        wait: Duration,
    },
    /// Invoke the function; [`Poller::invoked`] follows.
    Invoke {
        /// The number of the batch.
        batch: u64,
        /// Its messages.
        messages: Vec<Message>,
    },
    /// End the messages of a batch; [`Poller::settled`] follows.
    Settle {
        /// The number of the batch.
        batch: u64,
        /// Messages to delete.
        delete: Vec<Message>,
        /// Number of messages that stay as they are, until their visibility timeout.
        left: usize,
        /// Messages to make visible again.
        release: Vec<Message>,
        /// The time after which they are visible; whole seconds.
        after: Duration,
    },
}

/// A message that waits for its batch.
#[derive(Clone, Debug)]
struct Gathered {
    message: Message,
    at: Instant,
}

/// The pause after an error, with this number of errors before it.
fn pause_after(errors: u32) -> Duration {
    let factor = 1_u32.checked_shl(errors).unwrap_or(u32::MAX);
    PAUSE.saturating_mul(factor).min(PAUSE_MAX)
}

/// See the [module](self).
#[derive(Debug)]
pub struct Poller {
    settings: Settings,
    is_enabled: bool,
    /// The start of the open request for messages.
    receiving: Option<Instant>,
    /// Most messages of the next request: fewer after an answer that was too long.
    receive_max: usize,
    gathered: VecDeque<Gathered>,
    /// Open batches; those that are being settled have no messages.
    open: BTreeMap<u64, Vec<Message>>,
    next_batch: u64,
    /// Failed requests for messages since the last answer.
    receive_errors: u32,
    /// Failed invocations since the last success.
    invoke_errors: u32,
    /// The time until which the queue is not asked.
    paused_until: Option<Instant>,
}

impl Poller {
    /// A poller without messages, which is disabled.
    pub fn new(settings: Settings) -> Poller {
        Poller {
            settings,
            is_enabled: false,
            receiving: None,
            receive_max: RECEIVE_MAX,
            gathered: VecDeque::new(),
            open: BTreeMap::new(),
            next_batch: 1,
            receive_errors: 0,
            invoke_errors: 0,
            paused_until: None,
        }
    }

    /// Changes the settings, and whether messages are taken. A poller that is disabled releases what
    /// it has gathered; open batches go on.
    pub fn set(&mut self, settings: Settings, is_enabled: bool, now: Instant) -> Vec<Action> {
        self.settings = settings;
        self.is_enabled = is_enabled;
        (self.receive_errors, self.invoke_errors, self.paused_until) = (0, 0, None);
        self.receive_max = RECEIVE_MAX;
        self.step(now)
    }

    /// The queue has answered.
    pub fn received(&mut self, messages: Vec<Message>, now: Instant) -> Vec<Action> {
        let began = self.receiving.take();
        self.receive_errors = 0;
        // A queue that does not wait must not be asked without end.
        if messages.is_empty() && began.is_some_and(|began| now < began + PAUSE) {
            self.pause(PAUSE, now);
        }
        for message in messages {
            let is_same = |own: &&mut Gathered| own.message.id == message.id;
            match self.gathered.iter_mut().find(is_same) {
                // It has become visible meanwhile: the newer receipt is the valid one.
                Some(own) => own.message = message,
                None => self.gathered.push_back(Gathered { message, at: now }),
            }
        }
        self.step(now)
    }

    /// The queue could not be asked, or its answer was too long.
    pub fn receive_failed(&mut self, is_too_long: bool, now: Instant) -> Vec<Action> {
        self.receiving = None;
        if is_too_long {
            self.receive_max = (self.receive_max / 2).max(1);
        }
        let pause = pause_after(self.receive_errors);
        self.receive_errors = self.receive_errors.saturating_add(1);
        self.pause(pause, now);
        self.step(now)
    }

    /// An invocation has ended.
    pub fn invoked(&mut self, batch: u64, outcome: Outcome, now: Instant) -> Vec<Action> {
        let Some(messages) = self.open.get_mut(&batch).map(std::mem::take) else {
            return Vec::new();
        };
        let (mut delete, mut release, mut after) = (Vec::new(), Vec::new(), Duration::ZERO);
        let mut left = 0;
        match outcome {
            Outcome::Handled { failed } => {
                self.invoke_errors = 0;
                let count = messages.len();
                delete = messages;
                delete.retain(|message| !failed.contains(&message.id));
                left = count - delete.len();
            }
            Outcome::Failed => {
                left = messages.len();
                self.invoke_failed(now);
            }
            Outcome::Refused => {
                release = messages;
                after = self.invoke_failed(now);
            }
        }
        let mut actions = vec![Action::Settle { batch, delete, left, release, after }];
        actions.extend(self.step(now));
        actions
    }

    /// The messages of a batch have ended.
    pub fn settled(&mut self, batch: u64, now: Instant) -> Vec<Action> {
        self.open.remove(&batch);
        self.step(now)
    }

    /// The time has come for which [`Poller::due`] asked.
    pub fn tick(&mut self, now: Instant) -> Vec<Action> {
        self.step(now)
    }

    /// The time of the next [`Poller::tick`]; `None` if only an input can change anything.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        if !self.is_enabled {
            return None;
        }
        let window = self.gathered.front().map(|first| first.at + self.settings.window);
        [window, self.paused_until].into_iter().flatten().filter(|at| *at > now).min()
    }

    /// True if no batch is open and no message is gathered. A request for messages may be open.
    pub fn is_idle(&self) -> bool {
        self.open.is_empty() && self.gathered.is_empty()
    }

    /// True while a request for messages is open.
    pub fn is_receiving(&self) -> bool {
        self.receiving.is_some()
    }

    /// Pauses after a failed invocation; returns the length.
    fn invoke_failed(&mut self, now: Instant) -> Duration {
        let pause = pause_after(self.invoke_errors);
        self.invoke_errors = self.invoke_errors.saturating_add(1);
        self.pause(pause, now);
        pause
    }

    fn pause(&mut self, pause: Duration, now: Instant) {
        let until = now + pause;
        self.paused_until = Some(self.paused_until.map_or(until, |before| before.max(until)));
    }

    fn step(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        if !self.is_enabled {
            if !self.gathered.is_empty() {
                let release = self.gathered.drain(..).map(|own| own.message).collect();
                let batch = self.begin(Vec::new());
                let (delete, left, after) = (Vec::new(), 0, Duration::ZERO);
                actions.push(Action::Settle { batch, delete, left, release, after });
            }
            return actions;
        }
        while self.open.len() < self.settings.concurrency {
            let Some(messages) = self.take_batch(now) else { break };
            let batch = self.begin(messages.clone());
            actions.push(Action::Invoke { batch, messages });
        }
        actions.extend(self.receive(now));
        actions
    }

    fn begin(&mut self, messages: Vec<Message>) -> u64 {
        let batch = self.next_batch;
        self.next_batch += 1;
        self.open.insert(batch, messages);
        batch
    }

    /// The number of gathered messages that fit into one batch.
    fn fitting(&self) -> usize {
        let mut bytes = 0;
        let fits = |own: &&Gathered| {
            bytes += own.message.record.len() + 1;
            bytes <= self.settings.bytes_max
        };
        let count = self.gathered.iter().take(self.settings.batch_size).take_while(fits).count();
        // A message that is longer than a batch may be goes alone.
        count.max(usize::from(!self.gathered.is_empty()))
    }

    fn take_batch(&mut self, now: Instant) -> Option<Vec<Message>> {
        let first = self.gathered.front()?;
        let count = self.fitting();
        let is_full = count == self.settings.batch_size || count < self.gathered.len();
        (is_full || now >= first.at + self.settings.window)
            .then(|| self.gathered.drain(..count).map(|own| own.message).collect())
    }

    fn receive(&mut self, now: Instant) -> Option<Action> {
        let has_room = self.gathered.len() < self.settings.batch_size;
        let has_place = self.open.len() < self.settings.concurrency;
        let is_paused = self.paused_until.is_some_and(|until| now < until);
        if self.receiving.is_some() || is_paused || !has_room || !has_place {
            return None;
        }
        self.paused_until = None;
        let mut wait = WAIT_MAX;
        if let Some(first) = self.gathered.front() {
            let rest = (first.at + self.settings.window).saturating_duration_since(now);
            wait = wait.min(Duration::from_secs(rest.as_secs()));
            // The window ends before a request with a wait could.
            if wait.is_zero() {
                return None;
            }
        }
        self.receiving = Some(now);
        let max = self.receive_max.min(self.settings.batch_size - self.gathered.len());
        Some(Action::Receive { max, wait })
    }
}
