//! The file of an accepted event: a line of JSON with its state, and the event. It is replaced as a
//! whole and synced, so an event is there with its former or its next state.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use unlade_fn_model::asynchronous::{Ended, Pending};

use crate::deploy::time_ms;

/// The state of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventState {
    /// The tenant of its function; absent in files of early releases.
    pub tenant: Option<String>,
    /// The key of its function: `NAME` or `NAME:VERSION`.
    pub function: String,
    /// The qualifier of the invocation, whose configuration applies; absent for none.
    #[serde(default)]
    pub qualifier: Option<String>,
    /// The time of its acceptance, in milliseconds since the UNIX epoch.
    #[serde(default)]
    pub accepted_ms: u64,
    /// Attempts in which the function ran and failed.
    #[serde(default)]
    pub failures: u32,
    /// Its end, once it has ended.
    #[serde(default)]
    pub ended: Option<Ended>,
    /// The destinations that do not have its end yet.
    #[serde(default)]
    pub pending: Vec<Pending>,
    /// The trace of its caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}

/// An accepted event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedEvent {
    /// Its file, whose name is its number.
    pub path: PathBuf,
    /// Its state.
    pub state: EventState,
    /// The event.
    pub event: Vec<u8>,
}

impl AcceptedEvent {
    /// Its number, a UUID.
    pub fn number(&self) -> &str {
        self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// Writes the file. It is durable when this returns.
    ///
    /// # Errors
    /// The system call failed.
    pub async fn store(&self) -> io::Result<()> {
        let own = self.clone();
        let written = tokio::task::spawn_blocking(move || own.write()).await;
        written.unwrap_or_else(|error| Err(io::Error::other(error)))
    }

    /// Writes the file. If that fails, a next gateway finds the former state: the event, or the message
    /// about its end, is then made again.
    pub async fn keep(&self) {
        if let Err(error) = self.store().await {
            tracing::error!(%error, path = %self.path.display(), "an event's state cannot be kept");
        }
    }

    fn write(&self) -> io::Result<()> {
        let fresh = self.path.with_extension("new");
        let mut file = File::create(&fresh)?;
        file.write_all(&serde_json::to_vec(&self.state).map_err(io::Error::other)?)?;
        file.write_all(b"\n")?;
        file.write_all(&self.event)?;
        file.sync_all()?;
        fs::rename(&fresh, &self.path)?;
        let directory = self.path.parent().ok_or_else(|| io::Error::other("no directory"))?;
        File::open(directory)?.sync_all()
    }

    /// Reads a file; one of an earlier release has the function's name in its first line.
    ///
    /// # Errors
    /// The file cannot be read, or is none.
    pub fn read(path: &Path) -> io::Result<AcceptedEvent> {
        let bytes = fs::read(path)?;
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let end = end.ok_or_else(|| io::Error::other("it has no line"))?;
        let (line, event) = (&bytes[..end], bytes[end + 1..].to_vec());
        let state = match line.first() {
            Some(b'{') => serde_json::from_slice(line).map_err(io::Error::other)?,
            _ => EventState::of_earlier(&String::from_utf8_lossy(line), path)?,
        };
        Ok(AcceptedEvent { path: path.to_owned(), state, event })
    }
}

impl EventState {
    fn of_earlier(line: &str, path: &Path) -> io::Result<EventState> {
        let (tenant, function) = match line.split_once('/') {
            Some((tenant, function)) => (Some(tenant.to_owned()), function),
            None => (None, line),
        };
        let modified = fs::metadata(path)?.modified()?;
        Ok(EventState {
            tenant,
            function: function.to_owned(),
            qualifier: function.split_once(':').map(|(_, version)| version.to_owned()),
            accepted_ms: time_ms(modified),
            failures: 0,
            ended: None,
            pending: Vec::new(),
            trace: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use unlade_fn_model::asynchronous::Condition;
    use unlade_fn_model::destination::Target;

    use super::*;

    #[tokio::test]
    async fn an_event_comes_back_with_its_state() {
        let directory = tempfile::tempdir().unwrap();
        let target = Target::parse("arn:aws:sqs:us-east-1:123456789012:q").unwrap();
        let mut own = AcceptedEvent {
            path: directory.path().join("n-1"),
            state: EventState {
                tenant: Some("t".to_owned()),
                function: "f:3".to_owned(),
                qualifier: Some("live".to_owned()),
                accepted_ms: 7,
                failures: 0,
                ended: None,
                pending: Vec::new(),
                trace: Some("Root=1".to_owned()),
            },
            event: b"{\n\"a\": 1}".to_vec(),
        };
        assert_eq!(own.number(), "n-1");
        own.store().await.unwrap();
        assert_eq!(AcceptedEvent::read(&own.path).unwrap(), own);
        own.state.failures = 2;
        own.state.ended = Some(Ended {
            condition: Condition::RetriesExhausted,
            timestamp: "now".to_owned(),
            attempts: 2,
            version: "3".to_owned(),
            response: None,
        });
        own.state.pending = vec![Pending { target, is_dead_letter: true, attempts: 4 }];
        own.store().await.unwrap();
        assert_eq!(AcceptedEvent::read(&own.path).unwrap(), own);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn files_of_earlier_releases_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("n-2");
        fs::write(&path, "t/f:2\n{}").unwrap();
        let own = AcceptedEvent::read(&path).unwrap();
        assert_eq!((own.state.tenant.as_deref(), own.state.function.as_str()), (Some("t"), "f:2"));
        assert_eq!((own.state.qualifier.as_deref(), own.event.as_slice()), (Some("2"), &b"{}"[..]));
        assert!(own.state.accepted_ms > 0);
        fs::write(&path, "f\n{}").unwrap();
        assert_eq!(AcceptedEvent::read(&path).unwrap().state.tenant, None);
        for wrong in ["", "no line", "{\"a\": 1}\n{}"] {
            fs::write(&path, wrong).unwrap();
            assert!(AcceptedEvent::read(&path).is_err(), "{wrong}");
        }
    }
}
