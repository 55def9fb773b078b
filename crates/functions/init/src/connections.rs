//! The connections of a server, and which of them has been idle for longest: it is closed for a new
//! one when there are too many, so that clients that send no request cannot block others. No I/O.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use tokio::sync::Notify;

/// The connections of one server.
#[derive(Debug)]
pub struct Connections {
    most: usize,
    state: RefCell<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    count: usize,
    /// Idle connections, in the order in which they became so.
    idle: BTreeMap<u64, Rc<Line>>,
    next: u64,
}

/// What is known of one connection.
#[derive(Debug, Default)]
struct Line {
    /// Requests in progress.
    requests: Cell<usize>,
    /// Its number among the idle ones.
    idle: Cell<Option<u64>>,
    is_closing: Cell<bool>,
    has_ended: Cell<bool>,
    closing: Notify,
}

/// One connection, until this is dropped.
#[derive(Debug)]
pub struct Connection {
    all: Rc<Connections>,
    line: Rc<Line>,
}

/// A request in progress, until this is dropped.
#[derive(Debug)]
pub struct Busy {
    all: Rc<Connections>,
    line: Rc<Line>,
}

impl Connections {
    /// At most `most` connections.
    pub fn new(most: usize) -> Rc<Connections> {
        Rc::new(Connections { most, state: RefCell::default(), changed: Notify::new() })
    }

    /// Adds a connection. If there are too many, the one is closed that has been idle for longest; if
    /// none is idle, this waits until one is, or has ended.
    pub async fn add(self: &Rc<Connections>) -> Connection {
        loop {
            let changed = self.changed.notified();
            let mut state = self.state.borrow_mut();
            if state.count < self.most {
                state.count += 1;
                drop(state);
                let line = Rc::new(Line::default());
                self.rest(&line);
                return Connection { all: self.clone(), line };
            }
            if let Some((_, line)) = state.idle.pop_first() {
                line.idle.set(None);
                line.is_closing.set(true);
                line.closing.notify_one();
            }
            drop(state);
            changed.await;
        }
    }

    /// A connection has no request.
    fn rest(&self, line: &Rc<Line>) {
        let mut state = self.state.borrow_mut();
        let number = state.next;
        state.next += 1;
        state.idle.insert(number, line.clone());
        line.idle.set(Some(number));
    }

    /// A connection is not among the idle ones any more.
    fn stir(&self, line: &Line) {
        if let Some(number) = line.idle.take() {
            self.state.borrow_mut().idle.remove(&number);
        }
    }
}

impl Connection {
    /// A request begins: the connection is not closed, even if that was due.
    pub fn begin(&self) -> Busy {
        let line = &self.line;
        line.requests.set(line.requests.get() + 1);
        self.all.stir(line);
        if line.is_closing.take() {
            self.all.changed.notify_waiters();
        }
        Busy { all: self.all.clone(), line: line.clone() }
    }

    /// Waits until the connection has to be closed.
    pub async fn closing(&self) {
        while !self.line.is_closing.get() {
            self.line.closing.notified().await;
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let line = &self.line;
        line.requests.set(line.requests.get() - 1);
        if line.requests.get() == 0 && !line.has_ended.get() {
            self.all.rest(line);
            self.all.changed.notify_waiters();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.line.has_ended.set(true);
        self.all.stir(&self.line);
        self.all.state.borrow_mut().count -= 1;
        self.all.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use unlade_testkit::cases;

    const MOST: usize = 4;

    /// A connection as the test knows it.
    struct Known {
        connection: Connection,
        requests: Vec<Busy>,
        /// The time at which it became idle.
        idle_since: Option<usize>,
    }

    #[test]
    fn the_one_is_closed_that_has_been_idle_for_longest() {
        cases(300, |random| {
            let mut context = Context::from_waker(Waker::noop());
            let all = Connections::new(MOST);
            let mut known: Vec<Known> = Vec::new();
            for now in 0..100 {
                let at = random.below(known.len().max(1));
                match (random.below(4), known.get_mut(at)) {
                    (0, Some(one)) => {
                        one.requests.push(one.connection.begin());
                        one.idle_since = None;
                    }
                    (1, Some(one)) if !one.requests.is_empty() => {
                        one.requests.pop();
                        one.idle_since = one.requests.is_empty().then_some(now);
                    }
                    (2, Some(_)) => drop(known.swap_remove(at)),
                    (3, _) => {
                        let is_full = known.len() == MOST;
                        let idle = known.iter().enumerate();
                        let idle = idle.filter_map(|(at, one)| Some((one.idle_since?, at)));
                        let due = idle.min().filter(|_| is_full);
                        let mut add = pin!(all.add());
                        let mut added = add.as_mut().poll(&mut context);
                        assert_eq!(added.is_pending(), is_full);
                        if let Some((_, at)) = due {
                            let closing = |one: &Known| one.connection.line.is_closing.get();
                            let found: Vec<bool> = known.iter().map(closing).collect();
                            let expected: Vec<bool> = (0..known.len()).map(|n| n == at).collect();
                            assert_eq!(found, expected);
                            if random.once_in(3) {
                                // Its next request has come meanwhile.
                                let one = &mut known[at];
                                one.requests.push(one.connection.begin());
                                one.idle_since = None;
                                assert!(!closing(one));
                                continue;
                            }
                            known.swap_remove(at);
                            added = add.as_mut().poll(&mut context);
                            assert!(added.is_ready());
                        }
                        if let Poll::Ready(connection) = added {
                            let requests = Vec::new();
                            known.push(Known { connection, requests, idle_since: Some(now) });
                        }
                    }
                    _ => {}
                }
                let state = all.state.borrow();
                assert_eq!(state.count, known.len());
                let idle = known.iter().filter(|one| one.idle_since.is_some()).count();
                assert_eq!(state.idle.len(), idle);
            }
        });
    }
}
