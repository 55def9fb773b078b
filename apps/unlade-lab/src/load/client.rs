//! One connection of the load: what it sends, what it waits for, what it makes of the answer.
//! The socket is non-blocking; when to call is the worker's business.

use super::outcome::Outcome;
use super::response::{Finished, Malformed, Reader};
use super::target::Target;
use super::tls::{Fault as TlsFault, Tls};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Instant;
use unlade_testkit::Random;

/// Bytes received at one go.
pub const RECEIVE_BYTES: usize = 256 * 1024;
/// Bytes asked for where a response's head is expected: large enough for a small response,
/// small enough that a large one's body is left for dropping.
const HEAD_RECEIVE_BYTES: usize = 16 * 1024;
/// Body bytes dropped at one go.
pub const DROP_BYTES: usize = 16 << 20;
/// Reads of one connection before it is another's turn.
const READS_PER_TURN: usize = 8;

/// State that all connections of a worker share.
pub struct Shared<'s> {
    pub targets: &'s [Target],
    /// Body length of each target, as first seen.
    pub lengths: Vec<Option<u64>>,
    pub verify: Verify,
    pub pipeline: usize,
    pub requests_per_connection: Option<u64>,
    /// Requests that may still be sent.
    pub budget: Option<u64>,
    /// No request is begun any more.
    pub stopping: bool,
    pub copy_bodies: bool,
    pub outcome: Outcome,
    /// Where ciphertext and responses are received.
    pub inbox: Vec<u8>,
    /// Never written: bodies that are not verified are dropped in the kernel.
    pub sink: Vec<u8>,
    /// Plaintext of the requests that are about to be sent.
    pub requests: Vec<u8>,
    pub sent: u64,
}

/// Which bodies are summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    Never,
    /// One in this many.
    Sample(u64),
    All,
}

impl Verify {
    fn wants(self, request: u64) -> bool {
        match self {
            Verify::Never => false,
            Verify::Sample(every) => request.is_multiple_of(every.max(1)),
            Verify::All => true,
        }
    }
}

/// A request whose response is due.
struct InFlight {
    target: usize,
    begun: Instant,
    verify: bool,
    has_first_byte: bool,
}

/// Why a connection is at its end.
#[derive(Debug, thiserror::Error)]
pub enum End {
    #[error("all that was asked for is answered")]
    Done,
    #[error("the server said it would close")]
    ServerCloses,
    #[error("cannot connect: {0}")]
    Refused(Errno),
    #[error("the connection broke: {0}")]
    Reset(Errno),
    #[error("the server closed in the middle of a response")]
    ClosedEarly,
    #[error("the server sent {0}")]
    Malformed(Malformed),
    #[error("TLS: {0}")]
    Tls(String),
    #[error("nothing came for too long")]
    Timeout,
}

/// One connection.
pub struct Client {
    pub socket: OwnedFd,
    tls: Option<Box<Tls>>,
    reader: Reader,
    in_flight: VecDeque<InFlight>,
    out: Vec<u8>,
    out_sent: usize,
    connected: bool,
    /// When it last got somewhere.
    pub progress: Instant,
    begun: u64,
    closing: bool,
}

impl Client {
    pub fn new(socket: OwnedFd, tls: Option<Tls>, now: Instant) -> Client {
        Client {
            socket,
            tls: tls.map(Box::new),
            reader: Reader::default(),
            in_flight: VecDeque::new(),
            out: Vec::new(),
            out_sent: 0,
            connected: false,
            progress: now,
            begun: 0,
            closing: false,
        }
    }

    /// Returns true if the connection waits for its socket to become writable.
    pub fn wants_write(&self) -> bool {
        !self.connected || self.out_sent < self.out.len()
    }

    /// The socket takes bytes.
    pub fn on_writable(
        &mut self,
        shared: &mut Shared<'_>,
        random: &mut Random,
        now: Instant,
    ) -> Result<(), End> {
        if !self.connected {
            match rustix::net::sockopt::socket_error(&self.socket) {
                Ok(Ok(())) => {}
                Ok(Err(errno)) | Err(errno) => return Err(End::Refused(errno)),
            }
            self.connected = true;
            self.progress = now;
            shared.outcome.connections += 1;
        }
        self.go_on(shared, random, now)
    }

    /// The socket has bytes, or its end.
    pub fn on_readable(
        &mut self,
        shared: &mut Shared<'_>,
        random: &mut Random,
        now: Instant,
    ) -> Result<(), End> {
        for _ in 0..READS_PER_TURN {
            let more = match self.tls.is_some() {
                true => self.receive_tls(shared, now)?,
                false => self.receive_plain(shared, now)?,
            };
            if !more {
                break;
            }
        }
        self.go_on(shared, random, now)
    }

    /// Sends what may be sent now; says so when there is nothing left to do.
    fn go_on(
        &mut self,
        shared: &mut Shared<'_>,
        random: &mut Random,
        now: Instant,
    ) -> Result<(), End> {
        self.begin_requests(shared, random, now);
        if self.tls.is_some() {
            let mut nothing = std::mem::take(&mut shared.inbox);
            let outcome = self.advance_tls(shared, &mut nothing, 0, now);
            shared.inbox = nothing;
            outcome?;
        } else {
            self.out.append(&mut shared.requests);
        }
        self.flush()?;
        let idle = self.in_flight.is_empty() && self.is_ready();
        if idle && (self.closing || self.is_spent(shared) || shared.stopping) {
            self.say_goodbye();
            return Err(End::Done);
        }
        Ok(())
    }

    fn is_spent(&self, shared: &Shared<'_>) -> bool {
        shared.budget == Some(0)
            || shared.requests_per_connection.is_some_and(|limit| self.begun >= limit)
    }

    fn begin_requests(&mut self, shared: &mut Shared<'_>, random: &mut Random, now: Instant) {
        shared.requests.clear();
        if self.closing || shared.stopping || !self.is_ready() {
            return;
        }
        while self.in_flight.len() < shared.pipeline && !self.is_spent(shared) {
            let target = match shared.targets.len() {
                1 => 0,
                count => random.below(count as u64) as usize,
            };
            let Some(what) = shared.targets.get(target) else { return };
            shared.requests.extend_from_slice(&what.request);
            let verify = what.sum.is_some() && shared.verify.wants(shared.sent);
            self.in_flight.push_back(InFlight {
                target,
                begun: now,
                verify,
                has_first_byte: false,
            });
            self.begun += 1;
            shared.sent += 1;
            if let Some(budget) = &mut shared.budget {
                *budget -= 1;
            }
        }
    }

    /// Returns true if a request may be sent: the handshakes are over.
    fn is_ready(&self) -> bool {
        self.connected && self.tls.as_ref().is_none_or(|tls| tls.established)
    }

    fn flush(&mut self) -> Result<(), End> {
        while let Some(rest) = self.out.get(self.out_sent..).filter(|rest| !rest.is_empty()) {
            match send(&self.socket, rest, SendFlags::NOSIGNAL) {
                Ok(bytes) => self.out_sent += bytes,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(End::Reset(errno)),
            }
        }
        self.out.clear();
        self.out_sent = 0;
        Ok(())
    }

    /// One read of a plain connection; whether there may be more.
    fn receive_plain(&mut self, shared: &mut Shared<'_>, now: Instant) -> Result<bool, End> {
        let skippable = if shared.copy_bodies { 0 } else { self.reader.skippable_bytes() };
        if skippable > 0 {
            let room = usize::try_from(skippable).unwrap_or(usize::MAX).min(shared.sink.len());
            let sink = shared.sink.get_mut(..room).unwrap_or_default();
            let Some(bytes) = self.receive(sink, RecvFlags::TRUNC, now)? else { return Ok(false) };
            shared.outcome.body_bytes += bytes as u64;
            if let Some(finished) = self.reader.skipped(bytes as u64) {
                self.finish(shared, finished, now)?;
            }
            return Ok(true);
        }
        let room = match self.reader.is_between() && !shared.copy_bodies {
            true => HEAD_RECEIVE_BYTES,
            false => RECEIVE_BYTES,
        };
        let mut inbox = std::mem::take(&mut shared.inbox);
        let received =
            self.receive(inbox.get_mut(..room).unwrap_or_default(), RecvFlags::empty(), now);
        let outcome = match received {
            Ok(None) => Ok(false),
            Ok(Some(bytes)) => self
                .take_in(shared, inbox.get(..bytes).unwrap_or_default(), now)
                .map(|()| bytes == room || self.reader.skippable_bytes() > 0),
            Err(end) => Err(end),
        };
        shared.inbox = inbox;
        outcome
    }

    /// One read of a TLS connection; whether there may be more.
    fn receive_tls(&mut self, shared: &mut Shared<'_>, now: Instant) -> Result<bool, End> {
        let mut inbox = std::mem::take(&mut shared.inbox);
        let outcome = self.receive_tls_into(shared, &mut inbox, now);
        shared.inbox = inbox;
        outcome
    }

    fn receive_tls_into(
        &mut self,
        shared: &mut Shared<'_>,
        inbox: &mut [u8],
        now: Instant,
    ) -> Result<bool, End> {
        let start = self.tls.as_ref().map_or(0, |tls| tls.leftover.len());
        let room = inbox.get_mut(start..start + RECEIVE_BYTES).unwrap_or_default();
        let Some(bytes) = self.receive(room, RecvFlags::empty(), now)? else { return Ok(false) };
        shared.requests.clear();
        self.advance_tls(shared, inbox, bytes, now)?;
        Ok(bytes == RECEIVE_BYTES)
    }

    /// Hands TLS what it left over earlier and the `received` bytes that follow in `inbox`, and
    /// the requests that are due; what is due for the peer is in `out` afterwards.
    fn advance_tls(
        &mut self,
        shared: &mut Shared<'_>,
        inbox: &mut [u8],
        received: usize,
        now: Instant,
    ) -> Result<(), End> {
        let Some(mut tls) = self.tls.take() else { return Ok(()) };
        let start = tls.leftover.len();
        let Some(input) = inbox.get_mut(..start + received) else {
            return Err(End::Malformed(Malformed::Unasked));
        };
        if let Some(front) = input.get_mut(..start) {
            front.copy_from_slice(&tls.leftover);
        }
        let mut requests = std::mem::take(&mut shared.requests);
        let mut out = std::mem::take(&mut self.out);
        let outcome = tls.advance(input, &mut requests, &mut out, |plaintext| {
            self.take_in(shared, plaintext, now)
        });
        self.out = out;
        shared.requests = requests;
        let progress = match outcome {
            Ok(progress) => progress,
            Err(TlsFault::Sink(end)) => return Err(end),
            Err(TlsFault::Tls(error)) => return Err(End::Tls(error.to_string())),
            Err(TlsFault::Encode) => return Err(End::Tls("nothing more can be sent".to_owned())),
        };
        tls.leftover.clear();
        tls.leftover.extend_from_slice(input.get(progress.consumed_bytes..).unwrap_or_default());
        tls.established |= progress.established;
        if progress.closed && !self.in_flight.is_empty() {
            return Err(End::ClosedEarly);
        }
        self.closing |= progress.closed;
        self.tls = Some(tls);
        Ok(())
    }

    /// Receives into `room`; `None` when there is nothing now.
    fn receive(
        &mut self,
        room: &mut [u8],
        flags: RecvFlags,
        now: Instant,
    ) -> Result<Option<usize>, End> {
        match recv(&self.socket, room, flags) {
            Ok((_, 0)) => Err(self.end_of_stream()),
            Ok((_, bytes)) => {
                self.progress = now;
                Ok(Some(bytes))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(errno) if self.connected => Err(End::Reset(errno)),
            Err(errno) => Err(End::Refused(errno)),
        }
    }

    fn end_of_stream(&self) -> End {
        match self.in_flight.is_empty() && self.reader.is_between() {
            true if self.begun > 0 => End::ServerCloses,
            _ => End::ClosedEarly,
        }
    }

    /// Takes in bytes of the response stream.
    fn take_in(&mut self, shared: &mut Shared<'_>, bytes: &[u8], now: Instant) -> Result<(), End> {
        let mut input = bytes;
        while !input.is_empty() {
            let Some(first) = self.in_flight.front_mut() else {
                return Err(End::Malformed(Malformed::Unasked));
            };
            if !std::mem::replace(&mut first.has_first_byte, true) {
                shared.outcome.first_byte(now.saturating_duration_since(first.begun));
            }
            let verify = first.verify;
            let before = self.reader.body_bytes;
            let finished = self.reader.read(&mut input, || verify).map_err(End::Malformed)?;
            shared.outcome.body_bytes += self.reader.body_bytes - before;
            if let Some(finished) = finished {
                self.finish(shared, finished, now)?;
            }
        }
        Ok(())
    }

    /// Counts a complete response.
    fn finish(
        &mut self,
        shared: &mut Shared<'_>,
        finished: Finished,
        now: Instant,
    ) -> Result<(), End> {
        let Some(request) = self.in_flight.pop_front() else {
            return Err(End::Malformed(Malformed::Unasked));
        };
        let outcome = &mut shared.outcome;
        outcome.requests += 1;
        outcome.latency(now.saturating_duration_since(request.begun));
        let path = || {
            let target = shared.targets.get(request.target);
            let line = target.map(|target| String::from_utf8_lossy(&target.request).into_owned());
            line.and_then(|line| Some(line.split(' ').nth(1)?.to_owned())).unwrap_or_default()
        };
        if finished.status != 200 {
            outcome.bad_status += 1;
            outcome.remember(|| format!("status {} for {}", finished.status, path()));
        } else {
            let length = shared.lengths.get_mut(request.target);
            let length = length.map(|length| *length.get_or_insert(finished.body_bytes));
            if length.is_some_and(|length| length != finished.body_bytes) {
                outcome.mismatches += 1;
                outcome.remember(|| format!("{} bytes for {}", finished.body_bytes, path()));
            } else if let Some(sum) = finished.sum {
                outcome.verified += 1;
                let expected = shared.targets.get(request.target).and_then(|target| target.sum);
                if expected != Some(sum) {
                    outcome.mismatches += 1;
                    outcome.remember(|| format!("wrong SHA-256 of the body of {}", path()));
                }
            }
        }
        match finished.closes {
            true => Err(End::ServerCloses),
            false => Ok(()),
        }
    }

    /// Closes the TLS side in the orderly way, as far as the socket takes it at once.
    fn say_goodbye(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.close(&mut self.out);
            let _ = self.flush();
        }
    }

    /// Returns true if the connection is a TLS connection.
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Responses that were due when the connection ended.
    pub fn due(&self) -> usize {
        self.in_flight.len()
    }
}
