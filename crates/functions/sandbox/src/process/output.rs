//! The captured output of a template and its instances: logged line by line, and its end kept for
//! errors. The pipe is always read, so that no writer blocks; excess lines are counted and not
//! logged.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::pipe::PipeFlags;
use std::os::fd::OwnedFd;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;

/// Longest line of the log.
const LINE_BYTES_MAX: usize = 2048;
/// Most lines of a template in a [`PERIOD`].
const LINES_MAX: u32 = 200;
const PERIOD: Duration = Duration::from_secs(1);
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

/// Reads until every writer has closed the pipe.
pub async fn read(mut pipe: Receiver, function: String, tail: Tail) {
    let mut buffer = vec![0; 16 * 1024];
    let mut lines = Lines::new(Instant::now());
    while let Ok(count) = pipe.read(&mut buffer).await {
        if count == 0 {
            break;
        }
        tail.add(&buffer[..count]);
        lines.add(&buffer[..count], Instant::now(), &mut |line| say(&function, line));
    }
    lines.end(&mut |line| say(&function, line));
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
        if std::mem::take(&mut self.dropped) > 0 {
            say("(lines were left out: there were too many)");
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
        assert!(out.last().unwrap().contains("left out"));
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
