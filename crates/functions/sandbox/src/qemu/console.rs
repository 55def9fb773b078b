//! The output of a machine and of QEMU: logged, and its end kept.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixStream as Socket;
use std::rc::Rc;

use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::watch;

/// Bytes of the end that are kept.
pub(super) const KEPT_BYTES: usize = 4096;
/// Longest line in the log.
const LINE_BYTES_MAX: usize = 1024;
const READ_BYTES: usize = 4096;

/// The end of the output.
#[derive(Clone, Debug)]
pub(super) struct Console {
    kept: Rc<RefCell<VecDeque<u8>>>,
    closed: watch::Receiver<()>,
}

impl Console {
    /// Reads until the machine has ended. Spawns a task on the thread's local set.
    ///
    /// # Errors
    /// The system call failed.
    pub fn listen(socket: Socket, name: &str) -> io::Result<Console> {
        socket.set_nonblocking(true)?;
        let mut stream = UnixStream::from_std(socket)?;
        let (closing, closed) = watch::channel(());
        let console = Console { kept: Rc::default(), closed };
        let (listening, name) = (console.clone(), name.to_owned());
        tokio::task::spawn_local(async move {
            let mut line = Vec::new();
            let mut content = [0; READ_BYTES];
            while let Ok(bytes @ 1..) = stream.read(&mut content).await {
                let content = content.get(..bytes).unwrap_or_default();
                listening.keep(content);
                log(&name, &mut line, content);
            }
            drop(closing);
        });
        Ok(console)
    }

    /// Waits until the end of the output.
    pub async fn closed(&self) {
        let mut closed = self.closed.clone();
        // No value is ever sent: the wait ends when the sender is dropped.
        let _ = closed.changed().await;
    }

    fn keep(&self, bytes: &[u8]) {
        let mut kept = self.kept.borrow_mut();
        kept.extend(bytes);
        let excess = kept.len().saturating_sub(KEPT_BYTES);
        kept.drain(..excess);
    }

    /// The end of the output, as text.
    pub fn tail(&self) -> String {
        let kept: Vec<u8> = self.kept.borrow().iter().copied().collect();
        String::from_utf8_lossy(&kept).trim().to_owned()
    }

    /// The last line that is not the kernel's; kernel lines begin with their time.
    pub fn last_line(&self) -> String {
        let tail = self.tail();
        let mut lines = tail.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.rfind(|line| !line.starts_with('[')).unwrap_or_default().to_owned()
    }
}

/// Logs complete lines; a longer one in parts.
fn log(name: &str, line: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        match byte {
            b'\n' => {
                let text = String::from_utf8_lossy(line);
                tracing::debug!(machine = name, "{}", text.trim_end());
                line.clear();
            }
            byte if line.len() < LINE_BYTES_MAX => line.push(*byte),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_end_is_kept() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async {
            let (ours, mut theirs) = Socket::pair().unwrap();
            let console = Console::listen(ours, "m").unwrap();
            theirs.write_all(&[b'x'; 2 * KEPT_BYTES]).unwrap();
            theirs.write_all(b"\nlast words\r\n[ 1.2] the kernel's\r\n").unwrap();
            drop(theirs);
            console.closed().await;
            assert!(console.tail().len() <= KEPT_BYTES);
            assert_eq!(console.last_line(), "last words");
        });
    }
}
