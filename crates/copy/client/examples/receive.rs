//! A receiver: messages come through a socket. The program parses a header as soon as its bytes are
//! there, and processes the body in pieces, while the service receives the rest.
//!
//! ```sh
//! cargo run --release -p unlade-copy --example receive
//! ```

use std::error::Error;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use unlade_copy::{Config, Copier, Inbound, Service};

const MESSAGES: u32 = 64;
const BODY_BYTES: usize = 200 << 10;
/// Number of the message, length of its body, checksum of its body.
const HEADER_BYTES: usize = 16;
const PIECE_BYTES: usize = 16 << 10;
/// The checksum of no bytes.
const SUM_START: u64 = 0xcbf2_9ce4_8422_2325;

/// Extends a checksum (FNV-1a).
fn sum(before: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(before, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn send(mut socket: UnixStream) -> std::io::Result<()> {
    for number in 0..MESSAGES {
        let body: Vec<u8> =
            (0..BODY_BYTES).map(|at| (at * (number as usize + 3) + (at >> 9)) as u8).collect();
        socket.write_all(&number.to_le_bytes())?;
        socket.write_all(&(BODY_BYTES as u32).to_le_bytes())?;
        socket.write_all(&sum(SUM_START, &body).to_le_bytes())?;
        socket.write_all(&body)?;
    }
    Ok(())
}

/// Receives until the buffer has `bytes`.
fn receive_up_to(inbound: &mut Inbound, bytes: usize) -> Result<(), Box<dyn Error>> {
    while inbound.len() < bytes {
        if inbound.receive()? == 0 {
            return Err("the stream ends within a message".into());
        }
    }
    Ok(())
}

/// Receives and processes one message. Returns true if its body has the announced checksum.
fn process(inbound: &mut Inbound, number: u32) -> Result<bool, Box<dyn Error>> {
    receive_up_to(inbound, HEADER_BYTES)?;
    let header = inbound.sync(0..HEADER_BYTES)?;
    let found = u32::from_le_bytes(header[..4].try_into()?);
    let body_bytes = u32::from_le_bytes(header[4..8].try_into()?) as usize;
    let expected = u64::from_le_bytes(header[8..].try_into()?);
    if found != number || body_bytes > BODY_BYTES {
        return Err(format!("message {number} has the header of message {found}").into());
    }
    let end = HEADER_BYTES + body_bytes;
    let (mut at, mut checksum) = (HEADER_BYTES, SUM_START);
    while at < end {
        receive_up_to(inbound, at + 1)?;
        let there = inbound.len().min(end).min(at + PIECE_BYTES);
        checksum = sum(checksum, inbound.sync(at..there)?);
        at = there;
    }
    inbound.consume(end)?;
    Ok(checksum == expected)
}

fn run() -> Result<u32, Box<dyn Error>> {
    let service = Service::start(Config::default())?;
    let copier = Arc::new(Copier::new(service.attach()?));
    let (sender, receiver) = UnixStream::pair()?;
    let sending = thread::spawn(move || send(sender));
    let mut inbound = Inbound::new(Arc::clone(&copier), receiver, HEADER_BYTES + BODY_BYTES);
    let mut right = 0;
    for number in 0..MESSAGES {
        right += u32::from(process(&mut inbound, number)?);
    }
    sending.join().map_err(|_| "the sender panicked")??;
    println!("receive: {right} of {MESSAGES} messages are right");
    Ok(right)
}

fn main() -> ExitCode {
    match run() {
        Ok(MESSAGES) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("receive: {error}");
            ExitCode::FAILURE
        }
    }
}
