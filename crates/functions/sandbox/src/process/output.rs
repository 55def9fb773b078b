//! The captured output of a template: logged line by line, and its end kept for errors. The pipe is
//! always read, so that no writer blocks; excess lines are counted and not logged. An instance has a
//! pipe of its own, which the gateway reads.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::pipe::PipeFlags;
use std::os::fd::OwnedFd;
use tokio::net::unix::pipe::Receiver;

/// Longest line of the log.
const LINE_BYTES_MAX: usize = 2048;
/// Most lines of a template in a [`PERIOD`].
const LINES_MAX: u32 = 2000;
const PERIOD: Duration = Duration::from_secs(1);
/// Bytes of a pipe, as Linux makes it.
const PIPE_BYTES_MAX: usize = 64 * 1024;
/// Bytes of the end that are kept for errors.
const TAIL_BYTES_MAX: usize = 4096;

/// The end of the output.
#[derive(Clone, Debug, Default)]
pub struct Tail(Arc<Mutex<Vec<u8>>>);

impl Tail {
    fn add(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(bytes);
        let over = kept.len().saturating_sub(TAIL_BYTES_MAX);
        kept.drain(..over);
    }

    /// The text without unprintable characters.
    pub fn text(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&kept).trim().to_owned()
    }
}

/// Creates a pipe for the output.
///
/// # Errors
/// The system call failed.
pub fn pipe() -> std::io::Result<(Receiver, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    Ok((Receiver::from_owned_fd(reader)?, writer))
}

/// Creates a pipe for the output of an instance: the reading end, which does not block, and the
/// writing end.
///
/// # Errors
/// The system call failed.
pub fn pair() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    Ok((reader, writer))
}

/// The end of what is in a pipe of [`pair`] now.
pub fn now(reader: &OwnedFd) -> String {
    let mut bytes = vec![0; PIPE_BYTES_MAX];
    let count = rustix::io::read(reader, &mut bytes).unwrap_or(0);
    let from = count.saturating_sub(TAIL_BYTES_MAX);
    String::from_utf8_lossy(bytes.get(from..count).unwrap_or_default()).trim().to_owned()
}

/// The output of a template.
pub struct Output {
    pipe: Receiver,
    function: String,
    tail: Tail,
    lines: Mutex<Lines>,
}

impl Output {
    /// The output that comes from this pipe.
    pub fn new(pipe: Receiver, function: String, tail: Tail) -> Arc<Output> {
        Arc::new(Output { pipe, function, tail, lines: Lines::new(Instant::now()).into() })
    }

    /// Reads until every writer has closed the pipe.
    pub async fn run(self: Arc<Output>) {
        while self.pipe.readable().await.is_ok() && self.drain() {
            tokio::task::yield_now().await;
        }
        self.lines().end(&mut |line| say(&self.function, line));
    }

    /// Reads what is in the pipe now; false if every writer has closed it.
    pub fn drain(&self) -> bool {
        let mut buffer = [0; 16 * 1024];
        let mut taken = 0;
        while taken < PIPE_BYTES_MAX {
            match self.pipe.try_read(&mut buffer) {
                Ok(0) => return false,
                Ok(count) => {
                    let bytes = buffer.get(..count).unwrap_or_default();
                    self.tail.add(bytes);
                    let say = &mut |line: &str| say(&self.function, line);
                    self.lines().add(bytes, Instant::now(), say);
                    taken += count;
                }
                Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
            }
        }
        true
    }

    fn lines(&self) -> std::sync::MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn say(function: &str, line: &str) {
    tracing::info!(target: "function", function, "{line}");
}

/// Splits bytes into lines, within the limits.
struct Lines {
    pending: Vec<u8>,
    /// True while the rest of an overlong line is skipped.
    skips: bool,
    since: Instant,
    said: u32,
    dropped: u64,
}

impl Lines {
    fn new(now: Instant) -> Lines {
        Lines { pending: Vec::new(), skips: false, since: now, said: 0, dropped: 0 }
    }

    fn add(&mut self, bytes: &[u8], now: Instant, say: &mut dyn FnMut(&str)) {
        if now.duration_since(self.since) >= PERIOD {
            self.count(say);
            (self.since, self.said) = (now, 0);
        }
        let mut parts = bytes.split(|byte| *byte == b'\n').peekable();
        while let Some(part) = parts.next() {
            let room = LINE_BYTES_MAX - self.pending.len();
            if !self.skips {
                self.pending.extend_from_slice(&part[..part.len().min(room)]);
            }
            let whole = parts.peek().is_some();
            if !self.skips && (whole || part.len() > room) {
                self.line(say);
            }
            self.skips = !whole && (self.skips || part.len() > room);
        }
    }

    fn line(&mut self, say: &mut dyn FnMut(&str)) {
        let line = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        if self.said == LINES_MAX {
            self.dropped += 1;
            return;
        }
        self.said += 1;
        say(line.trim_end());
    }

    /// Logs the number of dropped lines.
    fn count(&mut self, say: &mut dyn FnMut(&str)) {
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            say(&format!("({dropped} lines were dropped: more than {LINES_MAX} in a second)"));
        }
    }

    fn end(&mut self, say: &mut dyn FnMut(&str)) {
        if !self.pending.is_empty() {
            self.line(say);
        }
        self.count(say);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(parts: &[&[u8]]) -> Vec<String> {
        let now = Instant::now();
        let (mut lines, mut out) = (Lines::new(now), Vec::new());
        for part in parts {
            lines.add(part, now, &mut |line| out.push(line.to_owned()));
        }
        lines.end(&mut |line| out.push(line.to_owned()));
        out
    }

    #[test]
    fn lines_are_put_together() {
        assert_eq!(said(&[b"a\nb", b"c\n\n", b"d"]), ["a", "bc", "", "d"]);
        assert!(said(&[]).is_empty());
    }

    #[test]
    fn long_lines_and_many_are_cut() {
        let long = vec![b'x'; 3 * LINE_BYTES_MAX];
        let out = said(&[&long, &long, b"rest\nnext\n"]);
        assert_eq!(out.iter().map(String::len).collect::<Vec<_>>(), [LINE_BYTES_MAX, 4]);
        let many = b"y\n".repeat(LINES_MAX as usize + 5);
        let out = said(&[&many]);
        assert_eq!(out.len(), LINES_MAX as usize + 1);
        assert!(out.last().unwrap().starts_with("(5 lines were dropped"), "{:?}", out.last());
    }

    #[test]
    fn the_tail_is_the_last_of_it() {
        let tail = Tail::default();
        tail.add(&vec![b'a'; TAIL_BYTES_MAX]);
        tail.add(b"end\n");
        let text = tail.text();
        assert!(text.ends_with("aend") && text.len() <= TAIL_BYTES_MAX);
    }
}
