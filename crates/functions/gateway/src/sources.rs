//! Queues that feed functions: a task for each event source mapping of a record, started, changed and
//! ended with it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use tokio::sync::watch;
use unlade_fn_model::lifecycle::Record;
use unlade_fn_model::source::Mapping;

/// The start of a mapping's task.
pub struct Start {
    /// The function.
    pub function: String,
    /// The mapping, and its changes; `None` once it is removed.
    pub changes: watch::Receiver<Option<Mapping>>,
    /// The state, for the description.
    pub status: Rc<Status>,
    /// True once the gateway ends.
    pub ending: watch::Receiver<bool>,
    /// To be kept until the task ends.
    pub running: Running,
}

type Starter = Box<dyn Fn(Start)>;

/// The tasks of all mappings.
pub struct Sources {
    /// Starts the task of a mapping.
    starter: RefCell<Option<Starter>>,
    tasks: RefCell<BTreeMap<String, Task>>,
    /// Tasks that have not ended, those of removed mappings included.
    running: Rc<Cell<usize>>,
    ending: watch::Sender<bool>,
}

struct Task {
    function: String,
    mapping: watch::Sender<Option<Mapping>>,
    status: Rc<Status>,
}

/// The state of a mapping's task, for its description.
#[derive(Debug, Default)]
pub struct Status {
    /// The result of the last request or invocation.
    pub last: RefCell<Option<Result<(), Problem>>>,
    /// True while a message or a request for messages is on its way.
    pub is_busy: Cell<bool>,
}

/// The reason why messages are not processed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The queue gives no messages.
    Queue(String),
    /// Messages cannot be handled or ended.
    Messages(String),
}

impl Problem {
    /// The reason, for humans.
    pub fn why(&self) -> &str {
        let (Problem::Queue(why) | Problem::Messages(why)) = self;
        why
    }
}

impl Status {
    /// Sets the result of a request or an invocation; a new problem is logged.
    pub fn note(&self, function: &str, queue: &str, result: Result<(), Problem>) {
        let before = self.last.replace(Some(result.clone()));
        if let Err(problem) = &result
            && before.as_ref() != Some(&result)
        {
            let why = problem.why();
            tracing::warn!(function, queue, why, "messages of a queue are not processed");
        }
    }

    /// `LastProcessingResult`.
    pub fn text(&self) -> String {
        match &*self.last.borrow() {
            None => "No records processed".to_owned(),
            Some(Ok(())) => "OK".to_owned(),
            Some(Err(problem)) => format!("PROBLEM: {}", problem.why()),
        }
    }
}

/// A task that has not ended, until this is dropped.
pub struct Running(Rc<Cell<usize>>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Default for Sources {
    fn default() -> Sources {
        Sources {
            starter: RefCell::default(),
            tasks: RefCell::default(),
            running: Rc::default(),
            ending: watch::Sender::new(false),
        }
    }
}

impl Sources {
    /// Sets what starts the task of a mapping. Without it no messages are taken.
    pub fn start_by(&self, starter: impl Fn(Start) + 'static) {
        *self.starter.borrow_mut() = Some(Box::new(starter));
    }

    /// Runs the mappings of a function's record, and no others of it.
    pub fn apply(&self, function: &str, record: Option<&Record>) {
        let starter = self.starter.borrow();
        let Some(starter) = starter.as_ref().filter(|_| !*self.ending.borrow()) else { return };
        let mut tasks = self.tasks.borrow_mut();
        let is_due = |uuid: &String| record.is_some_and(|record| record.sources.contains_key(uuid));
        tasks.retain(|uuid, task| {
            let stays = task.function != function || is_due(uuid);
            if !stays {
                task.mapping.send_replace(None);
            }
            stays
        });
        for (uuid, mapping) in record.iter().flat_map(|record| &record.sources) {
            if let Some(task) = tasks.get(uuid) {
                task.mapping.send_if_modified(|own| {
                    let is_other = own.as_ref() != Some(mapping);
                    *own = Some(mapping.clone());
                    is_other
                });
                continue;
            }
            let (changes, status) = (watch::Sender::new(Some(mapping.clone())), Rc::default());
            self.running.set(self.running.get() + 1);
            starter(Start {
                function: function.to_owned(),
                changes: changes.subscribe(),
                status: Rc::clone(&status),
                ending: self.ending.subscribe(),
                running: Running(self.running.clone()),
            });
            let (function, mapping) = (function.to_owned(), changes);
            tasks.insert(uuid.clone(), Task { function, mapping, status });
        }
    }

    /// The state of a mapping; `None` if it has no task.
    pub fn status(&self, uuid: &str) -> Option<Rc<Status>> {
        self.tasks.borrow().get(uuid).map(|task| task.status.clone())
    }

    /// Takes no further messages: batches that run are finished, what is gathered is released.
    pub fn drain(&self) {
        self.ending.send_replace(true);
    }

    /// True while a task has not ended.
    pub fn is_busy(&self) -> bool {
        self.running.get() > 0
    }
}
