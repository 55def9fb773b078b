//! The output of `bootstrap`: passed on, and its end kept for the invocation's log.

use std::cell::RefCell;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use tokio::net::unix::pipe::Receiver;

/// Bytes of the log's end that an invocation's caller may get.
const TAIL_BYTES: usize = 4096;
/// Most bytes that are taken before an answer: a `bootstrap` that prints on does not delay it.
const TAKEN_BYTES_MAX: usize = 1 << 20;

/// The output of one `bootstrap`.
pub struct Output {
    pipe: Receiver,
    tail: RefCell<Vec<u8>>,
}

impl Output {
    /// The reading end of a pipe.
    ///
    /// # Errors
    /// It is no pipe.
    pub fn new(reader: OwnedFd) -> io::Result<Output> {
        rustix::io::ioctl_fionbio(&reader, true)?;
        Ok(Output { pipe: Receiver::from_owned_fd(reader)?, tail: RefCell::default() })
    }

    /// Passes everything on that is printed, until nobody can print any more.
    pub async fn run(&self) {
        while self.pipe.readable().await.is_ok() && self.pump() {}
    }

    /// Passes on what is there; false at the end.
    fn pump(&self) -> bool {
        let mut bytes = [0; 16 * 1024];
        let mut taken = 0;
        while taken < TAKEN_BYTES_MAX {
            match self.pipe.try_read(&mut bytes) {
                Ok(0) => return false,
                Ok(count) => {
                    let printed = bytes.get(..count).unwrap_or_default();
                    let mut tail = self.tail.borrow_mut();
                    tail.extend_from_slice(printed);
                    let excess = tail.len().saturating_sub(TAIL_BYTES);
                    tail.drain(..excess);
                    drop(tail);
                    // A lost log does not stop the function.
                    let _ = io::stderr().write_all(printed);
                    taken += count;
                }
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        true
    }

    /// The end of what was printed since the last call.
    pub fn take(&self) -> String {
        self.pump();
        String::from_utf8_lossy(&std::mem::take(&mut *self.tail.borrow_mut())).into_owned()
    }
}
