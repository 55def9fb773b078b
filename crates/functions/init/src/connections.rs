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
    /// New connections that wait.
    waiting: usize,
    /// Connections that have to close: no more than wait for their places.
    closing: usize,
}

/// The state of one connection.
#[derive(Debug, Default)]
struct Line {
    /// Requests in progress.
    requests: Cell<usize>,
    /// Its number among the idle ones.
    idle: Cell<Option<u64>>,
    is_closing: Cell<bool>,
    /// It has had a request, or is not waited for any more.
    is_used: Cell<bool>,
    has_ended: Cell<bool>,
    closing: Notify,
}

/// One connection, until this is dropped.
#[derive(Debug)]
pub struct Connection {
    all: Rc<Connections>,
    line: Rc<Line>,
}

/// A new connection that waits, until this is dropped.
struct Waiting<'a>(&'a Connections);

impl Waiting<'_> {
    fn new(all: &Connections) -> Waiting<'_> {
        all.state.borrow_mut().waiting += 1;
        Waiting(all)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state.borrow_mut().waiting -= 1;
    }
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

    /// Adds a connection, which is not idle before [`Connection::give_up_waiting`]. If there are too
    /// many, the one is closed that has been idle for longest; if none is idle, this waits until one is,
    /// or has ended.
    pub async fn add(self: &Rc<Connections>) -> Connection {
        let waiting = Waiting::new(self);
        loop {
            let changed = self.changed.notified();
            if self.take_place() {
                drop(waiting);
                return Connection { all: self.clone(), line: Rc::default() };
            }
            self.make_place();
            changed.await;
        }
    }

    /// Takes a place if one is free; returns true if so.
    fn take_place(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let is_free = state.count < self.most;
        state.count += usize::from(is_free);
        is_free
    }

    /// Closes a connection that is idle, unless as many close as wait.
    fn make_place(&self) {
        let mut state = self.state.borrow_mut();
        if state.closing < state.waiting
            && let Some((_, line)) = state.idle.pop_first()
        {
            state.closing += 1;
            line.idle.set(None);
            line.is_closing.set(true);
            line.closing.notify_one();
        }
    }

    /// A connection has no request.
    fn rest(&self, line: &Rc<Line>) {
        let mut state = self.state.borrow_mut();
        let number = state.next;
        state.next += 1;
        state.idle.insert(number, line.clone());
        line.idle.set(Some(number));
        drop(state);
        self.changed.notify_waiters();
    }

    /// A connection is not among the idle ones any more, nor among those that have to close.
    fn stir(&self, line: &Line) {
        let mut state = self.state.borrow_mut();
        if let Some(number) = line.idle.take() {
            state.idle.remove(&number);
        }
        if line.is_closing.take() {
            state.closing -= 1;
            drop(state);
            self.changed.notify_waiters();
        }
    }
}

impl Connection {
    /// A request begins: the connection is not closed, even if that was due.
    pub fn begin(&self) -> Busy {
        let line = &self.line;
        line.requests.set(line.requests.get() + 1);
        line.is_used.set(true);
        self.all.stir(line);
        Busy { all: self.all.clone(), line: line.clone() }
    }

    /// The first request has not come in its time: without it the connection is idle.
    pub fn give_up_waiting(&self) {
        if !self.line.is_used.replace(true) {
            self.all.rest(&self.line);
        }
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
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};
    use unlade_testkit::cases;

    const MOST: usize = 4;

    /// A connection as the test knows it.
    struct Known {
        connection: Connection,
        requests: Vec<Busy>,
        /// The time at which it became idle.
        idle_since: Option<usize>,
        is_used: bool,
        has_to_close: bool,
    }

    impl Known {
        fn new(connection: Connection) -> Known {
            let (requests, idle_since) = (Vec::new(), None);
            Known { connection, requests, idle_since, is_used: false, has_to_close: false }
        }
    }

    type Add = Pin<Box<dyn Future<Output = Connection>>>;

    /// Polls the new connections, in their order, until none goes on.
    fn settle(waiting: &mut Vec<Add>, known: &mut Vec<Known>) {
        let mut context = Context::from_waker(Waker::noop());
        waiting.retain_mut(|add| match add.as_mut().poll(&mut context) {
            Poll::Pending => true,
            Poll::Ready(connection) => {
                known.push(Known::new(connection));
                false
            }
        });
    }

    /// Marks those that have to close: as many as wait, those first that have been idle for longest.
    fn mark(known: &mut [Known], waiting: usize) {
        while known.iter().filter(|one| one.has_to_close).count() < waiting {
            let idle = known.iter_mut().filter(|one| !one.has_to_close);
            let longest = idle.filter(|one| one.idle_since.is_some());
            let Some(due) = longest.min_by_key(|one| one.idle_since) else { return };
            due.has_to_close = true;
        }
    }

    #[test]
    fn the_one_is_closed_that_has_been_idle_for_longest() {
        cases(300, |random| {
            let all = Connections::new(MOST);
            let mut known: Vec<Known> = Vec::new();
            let mut waiting: Vec<Add> = Vec::new();
            for now in 0..200 {
                let at = random.below(known.len().max(1));
                match (random.below(7), known.get_mut(at)) {
                    // One that has to close may have its next request before it does.
                    (0, Some(one)) => {
                        one.requests.push(one.connection.begin());
                        (one.idle_since, one.is_used, one.has_to_close) = (None, true, false);
                    }
                    (1, Some(one)) if !one.requests.is_empty() => {
                        one.requests.pop();
                        one.idle_since = one.requests.is_empty().then_some(now);
                    }
                    (2, Some(_)) => drop(known.swap_remove(at)),
                    (3 | 4, _) if waiting.len() < 3 => {
                        let all = all.clone();
                        waiting.push(Box::pin(async move { all.add().await }));
                    }
                    (5, Some(one)) => {
                        one.connection.give_up_waiting();
                        if !std::mem::replace(&mut one.is_used, true) {
                            one.idle_since = Some(now);
                        }
                    }
                    (6, _) if !waiting.is_empty() && random.once_in(4) => {
                        drop(waiting.swap_remove(random.below(waiting.len())));
                    }
                    _ => {}
                }
                settle(&mut waiting, &mut known);
                assert!(waiting.is_empty() || known.len() == MOST, "it waits without need");
                mark(&mut known, waiting.len());
                for one in &known {
                    assert_eq!(one.connection.line.is_closing.get(), one.has_to_close);
                }
                let state = all.state.borrow();
                assert_eq!((state.count, state.waiting), (known.len(), waiting.len()));
                let idle = |one: &&Known| one.idle_since.is_some() && !one.has_to_close;
                assert_eq!(state.idle.len(), known.iter().filter(idle).count());
            }
        });
    }
}
