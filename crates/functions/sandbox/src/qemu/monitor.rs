//! QEMU's monitor: QMP, one line of JSON for each message.

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixStream as Socket;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

/// Longest line.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Most unread events.
const EVENTS_MAX: usize = 256;

/// A connection to QEMU's monitor.
pub(super) struct Monitor {
    socket: BufReader<UnixStream>,
    events: VecDeque<Value>,
}

impl Monitor {
    /// Opens the connection.
    ///
    /// # Errors
    /// The system call failed.
    pub async fn new(socket: Socket) -> io::Result<Monitor> {
        socket.set_nonblocking(true)?;
        let socket = BufReader::new(UnixStream::from_std(socket)?);
        let mut monitor = Monitor { socket, events: VecDeque::new() };
        monitor.execute("qmp_capabilities", Value::Null).await?;
        Ok(monitor)
    }

    /// Writes the state of devices to an open file of QEMU's, or reads it from there; RAM that is
    /// shared with a file is in that file.
    ///
    /// # Errors
    /// The system call failed, or QEMU reported an error.
    pub async fn migrate(&mut self, command: &str, number: i32) -> io::Result<()> {
        let on = |name: &str| json!({"capability": name, "state": true});
        let capabilities = json!({"capabilities": [on("x-ignore-shared"), on("events")]});
        self.execute("migrate-set-capabilities", capabilities).await?;
        self.execute(command, json!({"uri": format!("file:/proc/self/fd/{number}")})).await?;
        loop {
            let event = self.event("MIGRATION").await?;
            match event["data"]["status"].as_str() {
                Some("completed") => return Ok(()),
                Some("failed") => {
                    let said = self.execute("query-migrate", Value::Null).await?;
                    let why = said["error-desc"].as_str().unwrap_or("it does not say why");
                    return Err(io::Error::other(format!("QEMU: {command}: {why}")));
                }
                _ => {}
            }
        }
    }

    async fn execute(&mut self, command: &str, arguments: Value) -> io::Result<Value> {
        let mut asked = json!({"execute": command});
        if !arguments.is_null() {
            asked["arguments"] = arguments;
        }
        self.socket.get_mut().write_all(format!("{asked}\n").as_bytes()).await?;
        loop {
            let mut said = self.line().await?;
            if let Some(value) = said.get_mut("return") {
                return Ok(value.take());
            }
            if let Some(why) = said["error"]["desc"].as_str() {
                return Err(io::Error::other(format!("QEMU: {command}: {why}")));
            }
            if said.get("event").is_some() {
                if self.events.len() >= EVENTS_MAX {
                    self.events.pop_front();
                }
                self.events.push_back(said);
            }
        }
    }

    async fn event(&mut self, name: &str) -> io::Result<Value> {
        loop {
            let said = match self.events.pop_front() {
                Some(event) => event,
                None => self.line().await?,
            };
            if said["event"].as_str() == Some(name) {
                return Ok(said);
            }
        }
    }

    async fn line(&mut self) -> io::Result<Value> {
        let mut line = Vec::new();
        let mut limited = (&mut self.socket).take(LINE_BYTES_MAX);
        limited.read_until(b'\n', &mut line).await?;
        if line.last() != Some(&b'\n') {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "QEMU ended"));
        }
        serde_json::from_slice(&line).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_qemu(script: &'static [&'static str]) -> io::Result<()> {
        let (ours, theirs) = Socket::pair().unwrap();
        let thread = std::thread::spawn(move || {
            use std::io::{BufRead, Write};
            let mut lines = io::BufReader::new(theirs.try_clone().unwrap()).lines();
            let mut theirs = theirs;
            theirs.write_all(b"{\"QMP\": {}}\n").unwrap();
            let mut asked = Vec::new();
            for answer in script {
                let Some(Ok(line)) = lines.next() else { break };
                asked.push(line);
                theirs.write_all(answer.as_bytes()).unwrap();
            }
            asked
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let done = runtime
            .block_on(async { Monitor::new(ours).await?.migrate("migrate-incoming", 7).await });
        let asked = thread.join().unwrap();
        assert!(asked[0].contains("qmp_capabilities"));
        assert!(asked.len() < 3 || asked[2].contains("file:/proc/self/fd/7"), "{asked:?}");
        done
    }

    #[test]
    fn it_waits_until_the_state_was_moved() {
        let moved = "{\"event\": \"MIGRATION\", \"data\": {\"status\": \"active\"}}\n\
            {\"return\": {}}\n\
            {\"event\": \"MIGRATION\", \"data\": {\"status\": \"completed\"}}\n";
        let ok = "{\"return\": {}}\n";
        let script = Box::leak(Box::new([ok, ok, moved]));
        with_qemu(script).unwrap();
    }

    #[test]
    fn what_qemu_refuses_is_an_error_with_its_words() {
        let script = &["{\"return\": {}}\n", "{\"error\": {\"desc\": \"no such thing\"}}\n"];
        let error = with_qemu(script).unwrap_err();
        assert!(error.to_string().contains("no such thing"), "{error}");
        let failed = &[
            "{\"return\": {}}\n",
            "{\"return\": {}}\n",
            "{\"return\": {}}\n{\"event\": \"MIGRATION\", \"data\": {\"status\": \"failed\"}}\n",
            "{\"return\": {\"error-desc\": \"another machine\"}}\n",
        ];
        let error = with_qemu(failed).unwrap_err();
        assert!(error.to_string().contains("another machine"), "{error}");
        let ended = with_qemu(&["{\"return\": {}}\n"]).unwrap_err();
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        let kinds = [UnexpectedEof, BrokenPipe, ConnectionReset];
        assert!(kinds.contains(&ended.kind()), "{ended}");
    }
}
