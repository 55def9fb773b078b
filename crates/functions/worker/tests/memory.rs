//! The memory that a large upload costs the worker: in a process of its own, because its peak is
//! measured.

#[allow(dead_code, reason = "the bed of the other tests")]
#[path = "worker/bed/mod.rs"]
mod bed;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;

use bed::Bed;
use serde_json::json;
use unlade_guest_protocol::descriptor::PART;
use unlade_guest_protocol::region::SLOT_BYTES;
use unlade_guest_protocol::{Extent, Operation, Status, Submission};

const BODY_BYTES: u64 = 1 << 30;
/// Much larger than a chunk and its overhead, much smaller than a body.
const GROWTH_BYTES_MAX: u64 = 96 << 20;

/// The peak memory of this process.
fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

/// A store that counts the bytes of one body, and discards them.
fn counter() -> (SocketAddr, mpsc::Receiver<(u64, u64)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (said, counted) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.extend(byte);
        }
        let head = String::from_utf8(head).unwrap();
        let announced = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let announced: u64 = announced.unwrap().parse().unwrap();
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
        let mut body = (&mut stream).take(announced);
        let came = std::io::copy(&mut body, &mut std::io::sink()).unwrap();
        said.send((announced, came)).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\netag: \"e\"\r\ncontent-length: 0\r\n\r\n").unwrap();
        let _ = stream.read(&mut [0]);
    });
    (address, counted)
}

#[test]
fn a_gibibyte_goes_through_little_memory() {
    let (address, counted) = counter();
    let mut bed = Bed::with(|config| config.store.endpoint = Some(format!("http://{address}")));
    let mut guest = bed.guest();
    let Some(before) = peak_bytes() else {
        println!("skipped: /proc/self/status does not say the peak of memory");
        return;
    };
    let text = json!({"service": "s3", "operation": "PutObject",
        "parameters": {"Bucket": "box", "Key": "k"}, "body_bytes": BODY_BYTES})
    .to_string();
    guest.arena.copy_in(guest.header.guest_meta_offset as usize, text.as_bytes()).unwrap();
    // The two halves of the slots alternate; their content is irrelevant.
    let half = guest.header.guest_slots / 2;
    let piece = u64::from(half * SLOT_BYTES);
    for at in 0..BODY_BYTES / piece {
        if at >= 2 {
            let part = guest.completion();
            assert_eq!((part.flags, part.status), (PART, Status::Done), "{}", guest.meta(&part));
        }
        let operation = if at == 0 { Operation::Call } else { Operation::Body };
        let plain = guest.submission(1, operation);
        let body = Extent { first_slot: at as u32 % 2 * half, bytes: piece as u32 };
        let meta_bytes = if at == 0 { text.len() as u32 } else { 0 };
        let more = (at + 1) * piece < BODY_BYTES;
        guest.submit(&Submission { more, meta_bytes, body, ..plain });
    }
    assert_eq!(guest.end(1).done()["ETag"], "\"e\"");
    let (announced, came) = counted.recv().unwrap();
    assert!(announced > BODY_BYTES);
    assert_eq!(came, announced);
    let grown = peak_bytes().unwrap() - before;
    assert!(grown < GROWTH_BYTES_MAX, "the peak has grown by {grown} bytes");
}
