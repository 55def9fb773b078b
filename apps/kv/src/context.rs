//! A command that is being executed: its words, its session, the shared state, its answer.

use std::rc::Rc;

use crate::arguments::Arguments;
use crate::copies::Copies;
use crate::databases::DATABASES;
use crate::failure::Failure;
use crate::output::Output;
use crate::parse::number;
use crate::session::Session;
use crate::state::ServerState;
use crate::store::Store;
use crate::table::Command;
use crate::value::{Lost, Origin, Value};

/// A stored value.
pub(crate) type Stored<C> = Rc<Value<<C as Copies>::Incoming>>;

/// A command that is being executed.
pub(crate) struct Context<'a, C: Copies> {
    pub state: &'a mut ServerState<C>,
    /// Number of the session.
    pub number: usize,
    pub command: &'static Command,
    pub words: Arguments<'a>,
    /// The value that arrives as a word of its own.
    pub apart: Option<Stored<C>>,
    pub out: &'a mut Output<C::Incoming>,
}

impl<'a, C: Copies> Context<'a, C> {
    /// Returns a word; an empty one if there are fewer words.
    pub fn word(&self, index: usize) -> &'a [u8] {
        self.words.get(index)
    }

    /// Returns a word as a number.
    pub fn integer(&self, index: usize) -> Result<i64, Failure> {
        number(self.word(index)).ok_or(Failure::NotANumber)
    }

    /// Returns a word as the number of a database.
    pub fn database(&self, index: usize) -> Result<usize, Failure> {
        let number = i32::try_from(self.integer(index)?).map_err(|_| Failure::NotANumber)?;
        usize::try_from(number).ok().filter(|it| *it < DATABASES).ok_or(Failure::Database)
    }

    pub fn session(&mut self) -> &mut Session<C::Incoming> {
        &mut self.state.sessions[self.number]
    }

    /// Returns the session's database.
    pub fn store(&mut self) -> &mut Store<C::Incoming> {
        let number = self.state.sessions[self.number].database;
        self.state.databases.get(number)
    }

    /// Returns the value of a key, which may still be arriving.
    pub fn value(&mut self, key: &[u8]) -> Option<Stored<C>> {
        let now_ms = self.state.now_ms;
        self.store().get(key, now_ms).cloned()
    }

    /// As [`Context::value`], and counts if there is one.
    pub fn lookup(&mut self, key: &[u8]) -> Option<Stored<C>> {
        let value = self.value(key);
        match value {
            Some(_) => self.state.stats.hits += 1,
            None => self.state.stats.misses += 1,
        }
        value
    }

    /// Removes a key whose value could not be received.
    pub fn lose(&mut self, key: &[u8]) -> Failure {
        let now_ms = self.state.now_ms;
        self.store().remove(key, now_ms);
        Failure::Lost
    }

    /// Calls `read` with the bytes of a key's value; `None` if it does not exist.
    pub fn read<T>(
        &mut self,
        key: &[u8],
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, Failure> {
        let Some(value) = self.lookup(key) else { return Ok(None) };
        match value.bytes() {
            Ok(bytes) => Ok(Some(read(bytes))),
            Err(Lost) => Err(self.lose(key)),
        }
    }

    /// Creates a value that is not stored yet.
    pub fn make(&self, bytes: &[u8], origin: Origin) -> Stored<C> {
        Rc::new(Value::copied(bytes, origin, &self.state.pool))
    }

    /// Fails if there is no memory for `len` more bytes.
    pub fn check_memory(&self, len: usize) -> Result<(), Failure> {
        let total = self.state.databases.bytes().checked_add(len);
        let fits = total.is_some_and(|total| total <= self.state.limits.memory_bytes_max);
        fits.then_some(()).ok_or(Failure::Memory)
    }

    /// Fails if a value may not have `len` bytes; otherwise returns them.
    pub fn check_size(&self, len: u64) -> Result<usize, Failure> {
        let len = usize::try_from(len).map_err(|_| Failure::Size)?;
        (len <= self.state.limits.value_bytes_max).then_some(len).ok_or(Failure::Size)
    }

    /// Answers with a value, or null.
    pub fn answer_value(&mut self, key: &[u8], value: Option<&Stored<C>>) -> Result<(), Failure> {
        match value {
            None => self.out.null(),
            Some(value) => {
                if !self.out.value(&self.state.copies, value) {
                    return Err(self.lose(key));
                }
            }
        }
        Ok(())
    }
}
