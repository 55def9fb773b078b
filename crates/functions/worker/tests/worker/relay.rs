//! Relayed connections to the store.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use unlade_fn_worker::config::RelayConfig;

use crate::bed::Bed;

fn ask(stream: &mut UnixStream, close: bool) -> String {
    let end = if close { "connection: close\r\n" } else { "" };
    let request = format!("GET /box HTTP/1.1\r\nhost: any\r\n{end}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = stream.read(&mut buffer).unwrap();
        text.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&text);
        if read == 0 || (!close && text.contains("</Error>")) {
            return text.into_owned();
        }
    }
}

fn connect(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

#[test]
fn an_instance_reaches_the_store_and_no_more_at_a_time_than_may() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("relay");
    let relay = RelayConfig { path: path.clone(), connections_max: 1 };
    let _bed = Bed::with(|config| config.relay = Some(relay));
    let mut first = connect(&path);
    // The store responds: the worker has not signed the request.
    let answer = ask(&mut first, false);
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    let mut second = connect(&path);
    assert_eq!(second.read(&mut [0; 16]).unwrap(), 0, "the second is closed");
    let answer = ask(&mut first, true);
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
}
