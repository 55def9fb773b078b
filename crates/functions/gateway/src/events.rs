//! Asynchronous invocations: stored in files until they have been executed, so that an accepted
//! one is executed at least once, even if the gateway ends (as Lambda's asynchronous ones).

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use unlade_fn_model::lambda::Refusal;
use unlade_fn_model::pool::Refused;
use unlade_metrics::Event;

use crate::function::Function;
use crate::host::Host;
use crate::invoke::{invoke, uuid};

/// Most accepted invocations that have not been executed.
pub const EVENTS_MAX: usize = 10_000;
/// Attempts of an invocation whose function fails: one, and two retries, as in Lambda.
const ATTEMPTS_MAX: u32 = 3;
/// Wait before the second attempt; doubled before the next.
const PAUSE: Duration = Duration::from_secs(1);
/// Wait before another attempt to get an instance.
const THROTTLED_PAUSE: Duration = Duration::from_millis(500);
/// Attempts to get an instance.
const THROTTLED_MAX: u32 = 7200;

/// The queue of asynchronous invocations, in a directory.
pub struct Events {
    directory: PathBuf,
    count: std::cell::Cell<usize>,
}

impl Events {
    /// Opens the directory; [`Events::replay`] executes its invocations.
    ///
    /// # Errors
    /// The system call failed.
    pub fn open(state: &Path) -> io::Result<Rc<Events>> {
        let directory = state.join("events");
        fs::create_dir_all(&directory)?;
        Ok(Rc::new(Events { directory, count: std::cell::Cell::new(0) }))
    }

    /// Accepts an invocation, which is durable when this returns. Returns its number, a UUID.
    ///
    /// # Errors
    /// The queue is full, or the system call failed.
    pub async fn accept(
        self: &Rc<Events>,
        host: &Rc<Host>,
        function: &Function,
        event: Vec<u8>,
    ) -> Result<String, Refusal> {
        if self.count.get() >= EVENTS_MAX {
            return Err(Refusal::Throttled(Refused::Concurrency));
        }
        self.count.set(self.count.get() + 1);
        let number = uuid();
        let path = self.directory.join(&number);
        let name = format!("{}/{}", function.tenant.name, function.key());
        let (function, bytes) = (name.clone(), event.clone());
        let file = path.clone();
        let written = tokio::task::spawn_blocking(move || write(&file, &name, &bytes)).await;
        if let Err(error) = written.unwrap_or_else(|error| Err(io::Error::other(error))) {
            self.count.set(self.count.get() - 1);
            return Err(Refusal::Service(format!("the event cannot be kept: {error}")));
        }
        let (events, host) = (self.clone(), host.clone());
        tokio::task::spawn_local(async move { events.make(&host, &path, &function, event).await });
        Ok(number)
    }

    /// Executes invocations that a previous gateway had accepted.
    ///
    /// # Errors
    /// The system call failed.
    pub fn replay(self: &Rc<Events>, host: &Rc<Host>) -> io::Result<usize> {
        let mut replayed = 0;
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if path.extension().is_some() {
                // The file is incomplete: the invocation was never accepted.
                fs::remove_file(&path)?;
                continue;
            }
            let bytes = fs::read(&path)?;
            let Some(at) = bytes.iter().position(|byte| *byte == b'\n') else {
                tracing::error!(path = %path.display(), "is no event, and left alone");
                continue;
            };
            let function = String::from_utf8_lossy(&bytes[..at]).into_owned();
            let event = bytes[at + 1..].to_vec();
            self.count.set(self.count.get() + 1);
            replayed += 1;
            let (events, host) = (self.clone(), host.clone());
            tokio::task::spawn_local(async move {
                events.make(&host, &path, &function, event).await;
            });
        }
        Ok(replayed)
    }

    async fn make(&self, host: &Rc<Host>, path: &Path, function: &str, event: Vec<u8>) {
        let (mut failures, mut throttled) = (0, 0);
        loop {
            // Another tenant may own the name meanwhile; earlier releases did not record the
            // tenant.
            let (tenant, name) = match function.split_once('/') {
                Some((tenant, name)) => (Some(tenant), name),
                None => (None, function),
            };
            let is_it = |found: &Rc<Function>| tenant.is_none_or(|own| found.tenant.name == own);
            let Some(found) = host.function(name).filter(is_it) else {
                tracing::warn!(function, "an event's function is not there any more");
                break;
            };
            match invoke(host, &found, event.clone(), Vec::new()).await {
                Ok(answer) if !answer.is_error => break,
                Err(
                    Refusal::Reserved(_)
                    | Refusal::Throttled(Refused::Concurrency | Refused::Waited | Refused::Memory),
                ) if throttled < THROTTLED_MAX => {
                    throttled += 1;
                    tokio::time::sleep(THROTTLED_PAUSE).await;
                    continue;
                }
                Ok(_) | Err(_) => failures += 1,
            }
            if failures >= ATTEMPTS_MAX {
                host.meter.add(Event::FnEventLost);
                tracing::error!(function, path = %path.display(), "an event has failed for good");
                break;
            }
            tokio::time::sleep(PAUSE * 2_u32.pow(failures - 1)).await;
        }
        if let Err(error) = fs::remove_file(path) {
            tracing::error!(%error, path = %path.display(), "an event will be made again");
        }
        self.count.set(self.count.get() - 1);
    }
}

fn write(path: &Path, function: &str, event: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = File::create(&fresh)?;
    file.write_all(function.as_bytes())?;
    file.write_all(b"\n")?;
    file.write_all(event)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    let directory = path.parent().ok_or_else(|| io::Error::other("no directory"))?;
    File::open(directory)?.sync_all()
}
