//! Buffers and pipes for bodies, kept by the worker.
//!
//! A buffer belongs to a connection only from the arrival of bytes until they are written. A
//! worker that keeps up reuses the same few buffers, and they stay in its cache.

use std::cell::RefCell;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

/// Size of a buffer: one read(2) of this size needs one wake-up, and several buffers fit the L2
/// cache.
pub(crate) const BUFFER_BYTES: usize = 256 * 1024;
/// Buffers that a worker keeps for the next use.
const BUFFERS_FREE_MAX: usize = 16;
/// Requested capacity of a pipe: the most that one splice(2) moves.
pub(crate) const PIPE_BYTES: usize = 1024 * 1024;
/// Empty pipes that a worker keeps.
const PIPES_FREE_MAX: usize = 64;

/// The buffers of a worker.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    free: Rc<RefCell<Vec<Box<[u8]>>>>,
}

/// A buffer in use; returned to the worker when dropped.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    home: Rc<RefCell<Vec<Box<[u8]>>>>,
}

impl Buffers {
    /// Returns a buffer of [`BUFFER_BYTES`] with unspecified content.
    pub(crate) fn take(&self) -> Buffer {
        let bytes = self.free.borrow_mut().pop();
        let bytes = bytes.unwrap_or_else(|| vec![0; BUFFER_BYTES].into_boxed_slice());
        Buffer { bytes, home: self.free.clone() }
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut free = self.home.borrow_mut();
        if free.len() < BUFFERS_FREE_MAX {
            free.push(std::mem::take(&mut self.bytes));
        }
    }
}

/// The pipes of a worker.
#[derive(Debug, Default)]
pub(crate) struct Pipes {
    free: Rc<RefCell<Vec<Pipe>>>,
}

/// Both ends of a pipe, with its content.
#[derive(Debug)]
pub(crate) struct Pipe {
    pub(crate) reader: OwnedFd,
    pub(crate) writer: OwnedFd,
}

/// A pipe in use. When dropped, an empty pipe is returned to the worker; any other is closed.
#[derive(Debug)]
pub(crate) struct PipeLease {
    pipe: Option<Pipe>,
    /// Bytes in the pipe.
    pub(crate) held_bytes: usize,
    home: Rc<RefCell<Vec<Pipe>>>,
}

impl Pipes {
    /// Returns an empty pipe.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub(crate) fn take(&self) -> io::Result<PipeLease> {
        let pooled = self.free.borrow_mut().pop();
        let pipe = match pooled {
            Some(pipe) => pipe,
            None => make()?,
        };
        Ok(PipeLease { pipe: Some(pipe), held_bytes: 0, home: self.free.clone() })
    }
}

fn make() -> io::Result<Pipe> {
    let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
    // Without the privilege, or beyond the user's quota, the default capacity is kept.
    let _ = fcntl_setpipe_size(&writer, PIPE_BYTES);
    Ok(Pipe { reader, writer })
}

impl PipeLease {
    /// Returns the pipe, which exists until the lease is dropped.
    pub(crate) fn ends(&self) -> io::Result<&Pipe> {
        self.pipe.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for PipeLease {
    fn drop(&mut self) {
        if let (Some(pipe), 0) = (self.pipe.take(), self.held_bytes) {
            let mut free = self.home.borrow_mut();
            if free.len() < PIPES_FREE_MAX {
                free.push(pipe);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again() {
        let buffers = Buffers::default();
        let mut first = buffers.take();
        first[0] = 7;
        let address = first.as_ptr();
        drop(first);
        let second = buffers.take();
        assert_eq!((second.as_ptr(), second.len()), (address, BUFFER_BYTES));
        let many: Vec<Buffer> = (0..BUFFERS_FREE_MAX + 5).map(|_| buffers.take()).collect();
        drop(many);
        assert_eq!(buffers.free.borrow().len(), BUFFERS_FREE_MAX);
    }

    #[test]
    fn only_an_empty_pipe_is_used_again() {
        let pipes = Pipes::default();
        let mut pipe = pipes.take().unwrap();
        pipe.held_bytes = 1;
        drop(pipe);
        assert_eq!(pipes.free.borrow().len(), 0);
        drop(pipes.take().unwrap());
        assert_eq!(pipes.free.borrow().len(), 1);
        let again = pipes.take().unwrap();
        assert_eq!(pipes.free.borrow().len(), 0);
        assert!(again.ends().is_ok());
    }
}
