//! The output of one instance: its lines belong to the invocation that runs, between the lines
//! START, END and REPORT that Lambda has.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::unix::pipe::Receiver;
use unlade_fn_model::log::Lines;

use crate::function::Function;
use crate::function_log::Place;
use crate::observed::Observed;

/// Most bytes of the log that a caller gets, as Lambda's.
pub const TAIL_BYTES_MAX: usize = 4096;
/// Most bytes that are read at a time: one who prints without end does not stop the others.
const READ_BYTES_MAX: usize = 256 * 1024;
const BUFFER_BYTES: usize = 16 * 1024;

/// The end of an invocation, for its line REPORT.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// The time in the handler.
    pub duration: Duration,
    /// The memory limit in MiB.
    pub memory_mib: u64,
    /// The most memory that the instance has had, in bytes, if it is known.
    pub memory_peak_bytes: Option<u64>,
    /// The duration of the instance's start, if this was its first invocation.
    pub init: Option<Duration>,
}

impl Report {
    /// The line, as Lambda's. Its MB are MiB.
    pub fn line(&self, request: &str) -> String {
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        let duration_ms = ms(self.duration);
        let mut line = format!(
            "REPORT RequestId: {request}\tDuration: {duration_ms:.2} ms\tBilled Duration: {:.0} \
             ms\tMemory Size: {} MB\t",
            duration_ms.ceil(),
            self.memory_mib,
        );
        if let Some(peak) = self.memory_peak_bytes {
            line.push_str(&format!("Max Memory Used: {} MB\t", peak.div_ceil(1 << 20)));
        }
        if let Some(init) = self.init {
            line.push_str(&format!("Init Duration: {:.2} ms\t", ms(init)));
        }
        line
    }
}

/// See the [module](self).
pub struct InstanceLog {
    observed: Rc<Observed>,
    place: Place,
    /// The pipe; absent if the host does not have what the instance prints.
    output: Option<Receiver>,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    lines: Lines,
    request: Option<Rc<str>>,
    /// The end of the invocation's lines.
    tail: String,
}

impl InstanceLog {
    /// Reads the output of an instance until nobody can print any more. Spawns a task on the
    /// thread's local set.
    ///
    /// # Errors
    /// It is no pipe.
    pub fn start(
        function: &Function,
        instance: u64,
        output: Option<OwnedFd>,
    ) -> io::Result<Rc<InstanceLog>> {
        let place = Place { version: function.version.to_string(), instance: Some(instance) };
        let log = Rc::new(InstanceLog {
            observed: function.observed.clone(),
            place,
            output: output.map(Receiver::from_owned_fd).transpose()?,
            state: RefCell::default(),
        });
        if log.output.is_some() {
            tokio::task::spawn_local(log.clone().run());
        }
        Ok(log)
    }

    async fn run(self: Rc<InstanceLog>) {
        let Some(output) = &self.output else { return };
        while output.readable().await.is_ok() && self.drain() {
            tokio::task::yield_now().await;
        }
        self.end_line();
    }

    /// Reads what is there now; false at the end.
    fn drain(&self) -> bool {
        let Some(output) = &self.output else { return false };
        let (mut buffer, mut taken) = ([0; BUFFER_BYTES], 0);
        while taken < READ_BYTES_MAX {
            match output.try_read(&mut buffer) {
                Ok(0) => return false,
                Ok(count) => {
                    self.print(buffer.get(..count).unwrap_or_default());
                    taken += count;
                }
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        true
    }

    fn print(&self, bytes: &[u8]) {
        let state = &mut *self.state.borrow_mut();
        let State { lines, request, tail } = state;
        lines.add(bytes, &mut |line| self.line(request.as_ref(), tail, line));
    }

    fn end_line(&self) {
        let state = &mut *self.state.borrow_mut();
        let State { lines, request, tail } = state;
        lines.end(&mut |line| self.line(request.as_ref(), tail, line));
    }

    fn line(&self, request: Option<&Rc<str>>, tail: &mut String, line: String) {
        if request.is_some() {
            keep(tail, &line);
        }
        self.observed.log.print(&self.place, request, line);
    }

    fn note(&self, request: &Rc<str>, line: String) {
        keep(&mut self.state.borrow_mut().tail, &line);
        self.observed.log.note(&self.place, Some(request), line);
    }

    /// Begins an invocation: what was printed before belongs to none.
    pub fn begin(&self, request: &str) {
        self.drain();
        self.end_line();
        let request: Rc<str> = request.into();
        let state = &mut *self.state.borrow_mut();
        state.tail.clear();
        state.request = Some(request.clone());
        let start = format!("START RequestId: {request} Version: {}", self.place.version);
        keep(&mut state.tail, &start);
        self.observed.log.note(&self.place, Some(&request), start);
    }

    /// Ends the invocation that runs; returns the end of its log. `printed` is what the guest
    /// reports, which counts if the host does not have the output itself; `failure` is the host's
    /// reason.
    pub fn end(&self, printed: &str, failure: Option<&str>, report: &Report) -> String {
        let Some(request) = self.state.borrow().request.clone() else { return String::new() };
        match self.output {
            Some(_) => {
                self.drain();
            }
            None => self.print(printed.as_bytes()),
        }
        self.end_line();
        if let Some(failure) = failure {
            self.note(&request, failure.to_owned());
        }
        self.note(&request, format!("END RequestId: {request}"));
        self.note(&request, report.line(&request));
        let state = &mut *self.state.borrow_mut();
        state.request = None;
        last(&std::mem::take(&mut state.tail)).to_owned()
    }

    /// Adds a line about an invocation that has ended, also to the end of its log.
    pub fn add(&self, request: &str, mut tail: String, line: &str) -> String {
        self.observed.log.note(&self.place, Some(&request.into()), line.to_owned());
        keep(&mut tail, line);
        last(&tail).to_owned()
    }
}

/// Adds a line to the end of a log.
fn keep(tail: &mut String, line: &str) {
    tail.push_str(last(line));
    tail.push('\n');
    if tail.len() > 4 * TAIL_BYTES_MAX {
        *tail = last(tail).to_owned();
    }
}

/// The last [`TAIL_BYTES_MAX`] bytes of a text, without a part of a character.
fn last(text: &str) -> &str {
    let from = text.ceil_char_boundary(text.len().saturating_sub(TAIL_BYTES_MAX));
    &text[from..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_lambdas() {
        let report = Report {
            duration: Duration::from_micros(12_346),
            memory_mib: 128,
            memory_peak_bytes: Some((30 << 20) + 1),
            init: Some(Duration::from_micros(1500)),
        };
        assert_eq!(
            report.line("r"),
            "REPORT RequestId: r\tDuration: 12.35 ms\tBilled Duration: 13 ms\tMemory Size: 128 \
             MB\tMax Memory Used: 31 MB\tInit Duration: 1.50 ms\t"
        );
        let warm = Report { memory_peak_bytes: None, init: None, ..report };
        assert!(warm.line("r").ends_with("Memory Size: 128 MB\t"));
    }

    #[test]
    fn the_tail_is_the_end_in_whole_characters() {
        let mut tail = String::new();
        for _ in 0..10_000 {
            keep(&mut tail, "é");
        }
        keep(&mut tail, &"ß".repeat(TAIL_BYTES_MAX));
        let kept = last(&tail);
        assert!(kept.len() <= TAIL_BYTES_MAX && kept.len() > TAIL_BYTES_MAX - 4, "{}", kept.len());
        assert!(kept.ends_with("ß\n") && !kept.contains('é'));
    }
}
