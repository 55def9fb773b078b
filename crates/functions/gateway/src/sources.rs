//! Queues that feed functions: a task for each event source mapping of a record, started, changed and
//! ended with it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use tokio::sync::watch;
use unlade_fn_model::lifecycle::Record;
use unlade_fn_model::source::Mapping;

use crate::host::Host;
use crate::source_task::feed;

/// The tasks of all mappings.
pub struct Sources {
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
    pub last: RefCell<Option<Result<(), String>>>,
    /// True while a message or a request for messages is on its way.
    pub is_busy: Cell<bool>,
}

impl Status {
    /// Sets the result of a request or an invocation; a new problem is logged.
    pub fn note(&self, function: &str, queue: &str, result: Result<(), String>) {
        let before = self.last.replace(Some(result.clone()));
        if let Err(why) = &result
            && before.as_ref() != Some(&result)
        {
            tracing::warn!(function, queue, why, "messages of a queue are not processed");
        }
    }

    /// `LastProcessingResult`.
    pub fn text(&self) -> String {
        match &*self.last.borrow() {
            None => "No records processed".to_owned(),
            Some(Ok(())) => "OK".to_owned(),
            Some(Err(why)) => format!("PROBLEM: {why}"),
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
            tasks: RefCell::default(),
            running: Rc::default(),
            ending: watch::Sender::new(false),
        }
    }
}

impl Sources {
    /// Runs the mappings of a function's record, and no others of it.
    pub fn apply(&self, host: &Rc<Host>, function: &str, record: Option<&Record>) {
        if *self.ending.borrow() {
            return;
        }
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
            let running = Running(self.running.clone());
            let ending = self.ending.subscribe();
            let task = feed(
                host.clone(),
                function.to_owned(),
                changes.subscribe(),
                Rc::clone(&status),
                ending,
            );
            tokio::task::spawn_local(async move {
                let _running = running;
                task.await;
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
