//! Sends a response to the client: its head and the first part of the body in one write, then the
//! rest.

mod sealed;

use std::io;
use std::time::Duration;

use tokio::time::Instant;
use unlade_http::forward::{self, Body, ResponseTerms};
use unlade_http::{BodyFraming, ResponseHead};
use unlade_metrics::{Begin, Event};
use unlade_runtime::Stream;
use unlade_splice::head::Head;
use unlade_steering::splice::End;

use crate::buffer::PipeLease;
use crate::closing;
use crate::config::Timeouts;
use crate::direct_return::{Begun, DirectReturn, Judged, Looks};
use crate::exchange::Failed;
use crate::incoming::{Incoming, ReadEvent};
use crate::splice::{self, Turn};
use crate::timer::{Elapsed, Timer};
use crate::upload::{Upload, UploadError};
use crate::upstream::Upstream;
use crate::worker::Worker;

/// A response that is being sent.
pub(crate) struct Delivery<'c> {
    /// The worker.
    pub worker: &'c Worker,
    /// The client.
    pub client: &'c mut Stream,
    /// The connection's timer.
    pub timer: &'c mut Timer,
    /// Timeouts of the listener.
    pub timeouts: &'c Timeouts,
    /// Direct return of the response, in a pool that has it.
    pub direct: Option<DirectReturn<'c>>,
    /// The unsent rest of the request.
    pub upload: Upload,
    /// Bytes that the server has sent so far, from the head on.
    pub incoming: Incoming,
    /// Number of the bytes of the response that came, while the response can be returned directly.
    pub came_bytes: u64,
    /// Time since the end of the response, if it is seen later.
    pub age: Duration,
}

/// The result of a delivery.
pub(crate) struct Delivered {
    /// `Ok`: the whole response was sent, and all of the request that was not abandoned.
    pub outcome: Result<(), Failed>,
    /// Bytes were sent to the client.
    pub begun: bool,
    /// The connection to the server, if this response leaves it reusable.
    pub upstream: Option<Upstream>,
    /// Bytes of the body sent, framing included.
    pub response_bytes: u64,
    /// Time since the end of the response, if it is seen later.
    pub age: Duration,
}

impl Delivery<'_> {
    /// Sends the response that begins with `head`.
    pub(crate) async fn run(
        &mut self,
        head: &ResponseHead,
        terms: ResponseTerms,
        mut upstream: Upstream,
    ) -> Delivered {
        let mut is_extended = false;
        match self.judge_early(head, &mut upstream) {
            None => {}
            Some(Judged::Fit(known)) => return Box::pin(self.run_early(known, upstream)).await,
            Some(Judged::Unfit) => is_extended = true,
            Some(Judged::Broken) => {
                return self.broken(Failed::Server);
            }
        }
        let mut body = Body::new(head.framing());
        let mut sent = 0;
        let decode = terms.http10 && head.framing() == BodyFraming::Chunked;
        self.decide(head, &mut upstream, decode, is_extended);
        let mut outcome = match decode {
            false => self.begin(head, terms, &mut body, &mut sent).await,
            true => self.begin_decoded(head, terms, &mut body, &mut sent).await,
        };
        // If the body is malformed before the head was sent, the client can still get an error
        // status.
        let begun = !matches!(outcome, Err(Failed::Malformed(_)));
        // Bytes behind the end of the response belong to no request.
        let surplus = outcome.is_ok() && !self.incoming.data().is_empty();
        self.incoming.clear();
        while outcome.is_ok() && !(body.is_done() && self.upload.is_done()) {
            outcome = self.go_on(&mut upstream, &mut body, decode, &mut sent).await;
        }
        let whole =
            outcome.is_ok() && !surplus && !self.upload.is_abandoned() && !upstream.is_broken;
        let upstream = whole.then_some(upstream);
        Delivered { outcome, begun, upstream, response_bytes: sent, age: self.age }
    }

    /// Returns the result of a response that broke with its first bytes.
    fn broken(&self, failed: Failed) -> Delivered {
        let outcome = Err(failed);
        Delivered { outcome, begun: true, upstream: None, response_bytes: 0, age: self.age }
    }

    /// Decides about a response whose splice began early.
    fn judge_early(&mut self, head: &ResponseHead, upstream: &mut Upstream) -> Option<Judged> {
        let direct = self.direct.as_mut().filter(|direct| direct.is_early)?;
        let body_bytes = match head.framing() {
            BodyFraming::Length(bytes) => Some(bytes),
            BodyFraming::None => Some(0),
            BodyFraming::Chunked | BodyFraming::UntilClose => None,
        };
        let judged = direct.judge_head(upstream, self.incoming.data(), body_bytes);
        direct.splices.note_length(direct.path, body_bytes.unwrap_or(0));
        if matches!(judged, Judged::Unfit) {
            // The server waits with what it was granted.
            let came = (self.incoming.data().len() - head.head_bytes()) as u64;
            let left = body_bytes.map_or(u64::MAX, |bytes| bytes.saturating_sub(came));
            direct.splices.relay(&mut upstream.end, left);
            direct.is_over = true;
        }
        Some(judged)
    }

    /// Follows a response that goes to the client from its first byte on. Its head went past the sockets.
    pub(crate) async fn run_passed(&mut self, head: Head, upstream: Upstream) -> Delivered {
        if let Some(direct) = &self.direct {
            direct.splices.note_length(direct.path, head.body_bytes.into());
            direct.settle(&upstream, false);
        }
        self.worker.meter.add(Event::DirectReturned(Begin::Early));
        let delivered = self.follow_early(head, upstream, 0).await;
        if delivered.outcome.is_ok()
            && let Some(direct) = &self.direct
        {
            direct.expect_another();
        }
        delivered
    }

    /// Relays the first bytes of a response that began early, whose head came to the socket. It goes as
    /// it is.
    async fn run_early(&mut self, head: Head, upstream: Upstream) -> Delivered {
        let bytes = u64::from(head.response_bytes());
        let came = relay_spliced(self.client, self.timeouts, &mut self.incoming, bytes).await;
        match came {
            Ok(relayed) => {
                if relayed < bytes {
                    self.worker.meter.add(Event::DirectReturned(Begin::Early));
                }
                self.follow_early(head, upstream, relayed).await
            }
            Err(failed) => {
                self.direct.iter().for_each(|direct| direct.abort(&upstream));
                self.broken(failed)
            }
        }
    }

    /// Waits for the end of a response that began early, of which so many bytes were relayed.
    async fn follow_early(
        &mut self,
        head: Head,
        mut upstream: Upstream,
        relayed: u64,
    ) -> Delivered {
        let mut sent = 0;
        let bytes = u64::from(head.response_bytes());
        let outcome = self.await_end(&mut upstream, bytes, relayed, &mut sent).await;
        if outcome.is_err() {
            self.direct.iter().for_each(|direct| direct.abort(&upstream));
        }
        let is_whole = outcome.is_ok() && !upstream.is_broken;
        let response_bytes = sent.saturating_sub(head.head_bytes.into());
        let upstream = is_whole.then_some(upstream);
        Delivered { outcome, begun: true, upstream, response_bytes, age: self.age }
    }

    /// Decides whether a rest of the response can go to the client directly. A server that is to be
    /// relayed may send more than the limit; `is_extended`: it may already.
    fn decide(
        &mut self,
        head: &ResponseHead,
        upstream: &mut Upstream,
        decode: bool,
        is_extended: bool,
    ) {
        let (received, head_bytes) = (self.incoming.data().len() as u64, head.head_bytes() as u64);
        self.came_bytes = received;
        let rest = match head.framing() {
            BodyFraming::Length(bytes) => bytes,
            BodyFraming::None => 0,
            BodyFraming::Chunked | BodyFraming::UntilClose => u64::MAX,
        };
        let is_fit = rest < u64::MAX && self.upload.is_done() && !decode;
        if let Some(direct) = &mut self.direct {
            let is_possible = !direct.is_over;
            direct.is_over |= !is_fit || !direct.is_worth_it(rest);
            if is_possible {
                direct.splices.note_length(direct.path, if is_fit { rest } else { 0 });
            }
        }
        let is_relayed = self.direct.as_ref().is_none_or(|direct| direct.is_over);
        if is_relayed
            && !is_extended
            && upstream.end.as_ref().is_some_and(|end| !end.fits(head_bytes.saturating_add(rest)))
            && let Some(splices) = self.worker.splices()
        {
            let came = received.saturating_sub(head_bytes);
            let left = if rest == u64::MAX { rest } else { rest.saturating_sub(came) };
            splices.relay(&mut upstream.end, left);
        }
    }

    async fn begin(
        &mut self,
        head: &ResponseHead,
        terms: ResponseTerms,
        body: &mut Body,
        sent: &mut u64,
    ) -> Result<(), Failed> {
        let mut out = Vec::with_capacity(head.head_bytes() + 128);
        forward::response(head, self.incoming.data(), terms, &mut out);
        let behind = self.incoming.data().get(head.head_bytes()..).unwrap_or_default();
        let taken = body.advance(behind).map_err(Failed::Malformed)?;
        if !self.incoming.replace_front(head.head_bytes(), &out) {
            self.write(&out, taken > 0).await?;
            self.incoming.consume(head.head_bytes());
            out.clear();
        }
        let bytes = out.len() + taken;
        let (client, incoming) = (&mut *self.client, &self.incoming);
        let first = incoming.data().get(..bytes).unwrap_or_default();
        write(client, self.timeouts, first, false).await?;
        self.incoming.consume(bytes);
        *sent += taken as u64;
        Ok(())
    }

    async fn begin_decoded(
        &mut self,
        head: &ResponseHead,
        terms: ResponseTerms,
        body: &mut Body,
        sent: &mut u64,
    ) -> Result<(), Failed> {
        let mut out = Vec::new();
        forward::response(head, self.incoming.data(), terms, &mut out);
        let head_bytes = out.len();
        self.incoming.consume(head.head_bytes());
        let data = self.incoming.data();
        let taken = body
            .advance_with(data, |content| out.extend_from_slice(content))
            .map_err(Failed::Malformed)?;
        self.incoming.consume(taken);
        *sent += (out.len() - head_bytes) as u64;
        self.write(&out, false).await
    }

    /// Performs one step of the rest.
    async fn go_on(
        &mut self,
        upstream: &mut Upstream,
        body: &mut Body,
        decode: bool,
        sent: &mut u64,
    ) -> Result<(), Failed> {
        if body.is_done() {
            // These two are rare, and their futures large: each level above has room for them.
            return Box::pin(self.upload_only(upstream)).await;
        }
        if !self.upload.is_done() {
            return Box::pin(self.both_ways(upstream, body, decode, sent)).await;
        }
        if let (Body::Length(_), Some(direct)) = (&*body, &mut self.direct)
            && !direct.is_over
        {
            if direct.open(self.client, upstream) {
                return self.direct(upstream, body, sent).await;
            }
            direct.is_over = true;
            direct.splices.relay(&mut upstream.end, body.blind_bytes());
        }
        let may_splice = !self.client.is_tls() && !decode;
        if may_splice && self.worker.plan().config.body.splices(body.blind_bytes()) {
            // Without a free descriptor the body goes through the buffer.
            if let Ok(pipe) = self.worker.pipes.take() {
                return self.splice(upstream, pipe, body, sent).await;
            }
        }
        let reading = self.incoming.fill(&mut upstream.tcp, &self.worker.buffers);
        match self.timer.limit(self.timeouts.body_stall, reading).await {
            Err(Elapsed) => Err(Failed::Slow),
            Ok(read) => self.pass_on(read, body, decode, sent).await,
        }
    }

    /// Lets the rest of the response, or 1 GiB of it, go to the client directly.
    async fn direct(
        &mut self,
        upstream: &mut Upstream,
        body: &mut Body,
        sent: &mut u64,
    ) -> Result<(), Failed> {
        while let (Body::Length(left), Some(direct)) = (&*body, &mut self.direct) {
            match direct.begin(upstream, self.came_bytes, *left) {
                Begun::Direct(bytes) => {
                    let outcome = self.await_end(upstream, bytes, 0, sent).await;
                    if outcome.is_err() {
                        self.direct.iter().for_each(|direct| direct.abort(upstream));
                    }
                    body.skip(bytes);
                    return outcome;
                }
                Begun::Later => {
                    let reading = self.incoming.fill(&mut upstream.tcp, &self.worker.buffers);
                    match self.timer.limit(self.timeouts.body_stall, reading).await {
                        Err(Elapsed) => return Err(Failed::Slow),
                        Ok(read) => {
                            self.came_bytes += *read.as_ref().unwrap_or(&0) as u64;
                            self.pass_on(read, body, false, sent).await?;
                        }
                    }
                }
                Begun::Relayed => {
                    direct.is_over = true;
                    direct.splices.relay(&mut upstream.end, *left);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Waits until the client has acknowledged the `bytes` bytes of a splice, and relays what comes
    /// here meanwhile; `relayed` bytes were before.
    async fn await_end(
        &mut self,
        upstream: &mut Upstream,
        bytes: u64,
        relayed: u64,
        sent: &mut u64,
    ) -> Result<(), Failed> {
        let Some(direct) = &self.direct else { return Ok(()) };
        let mut looks = if direct.is_early { Looks::late() } else { Looks::soon() };
        let (mut relayed, mut watches) = (relayed, true);
        // The request had the window with it if the splice began before.
        let (begun, mut is_repeated) = (direct.acknowledged(), direct.is_early);
        let (mut acknowledged, mut since) = (begun, Instant::now());
        loop {
            let is_complete = direct.is_complete();
            if is_complete && let Some(end) = direct.end(upstream) {
                match end {
                    End::NotYet => {}
                    End::Reusable => break,
                    End::CloseServer => {
                        upstream.is_broken = true;
                        break;
                    }
                }
            }
            let watched = watches.then_some(&*self.client);
            let buffers = &self.worker.buffers;
            let is_over = || !is_complete && direct.is_complete();
            let seen = self.incoming.fill_watching(&mut upstream.tcp, buffers, watched, is_over);
            match self.timer.until(looks.next(), seen).await {
                Ok(ReadEvent::Over) => {}
                Err(Elapsed) => {
                    looks.looked();
                    if !watches && closing::is_gone(self.client.tcp()) {
                        return Err(Failed::Client);
                    }
                    let newest = direct.acknowledged();
                    if newest == begun && relayed == 0 && !is_repeated {
                        // The datagram with the rule and the window may be lost.
                        is_repeated = true;
                        direct.settle(upstream, true);
                    } else {
                        direct.settle(upstream, false);
                    }
                    if newest != acknowledged {
                        (acknowledged, since) = (newest, Instant::now());
                    } else if since.elapsed() > self.timeouts.body_stall {
                        return Err(Failed::ClientSlow);
                    }
                }
                // The client has them already if it has acknowledged everything.
                Ok(ReadEvent::Read(Ok(1..))) if is_complete => self.incoming.clear(),
                Ok(ReadEvent::Read(Ok(1..))) => {
                    let (client, incoming) = (&mut *self.client, &mut self.incoming);
                    let left = bytes - relayed;
                    let relaying = relay_spliced(client, self.timeouts, incoming, left);
                    relayed += Box::pin(relaying).await?;
                }
                Ok(ReadEvent::Read(_)) => return Err(Failed::Server),
                Ok(ReadEvent::ClientBusy) => {
                    // Its acknowledgement may have come with its next request; END sends the last
                    // one.
                    (watches, looks) = (false, Looks::soon());
                    if !direct.is_complete() {
                        direct.settle(upstream, false);
                    }
                }
                Ok(ReadEvent::ClientGone) => return Err(Failed::Client),
            }
        }
        self.age = direct.end_age();
        if let Some(pick) = direct.pick.filter(|pick| !pick.lasts_to_next_request()) {
            direct.pool.learn(pick, self.age);
        }
        *sent += bytes;
        let passed = bytes - relayed;
        let forwarded = direct.forwarded_bytes().min(passed);
        if direct.secret(upstream).is_some() {
            self.worker.backoffs.note(upstream.address, relayed + forwarded, bytes);
        }
        self.client.add_sent_bytes(passed);
        self.worker.meter.add_n(Event::DirectReturnBytes, passed - forwarded);
        self.worker.meter.add_n(Event::DirectReturnForwardedBytes, forwarded);
        Ok(())
    }

    /// Passes on bytes that were read into the empty buffer.
    async fn pass_on(
        &mut self,
        read: io::Result<usize>,
        body: &mut Body,
        decode: bool,
        sent: &mut u64,
    ) -> Result<(), Failed> {
        match read {
            Ok(1..) => {}
            Ok(_) if matches!(body, Body::UntilClose) => {
                *body = Body::Done;
                return Ok(());
            }
            _ => return Err(Failed::Server),
        }
        if decode {
            let mut out = Vec::new();
            let data = self.incoming.data();
            let advanced = body.advance_with(data, |content| out.extend_from_slice(content));
            advanced.map_err(Failed::Malformed)?;
            *sent += out.len() as u64;
            self.write(&out, false).await?;
        } else {
            let (client, incoming) = (&mut *self.client, &self.incoming);
            let taken = body.advance(incoming.data()).map_err(Failed::Malformed)?;
            let bytes = incoming.data().get(..taken).unwrap_or_default();
            write(client, self.timeouts, bytes, false).await?;
            *sent += taken as u64;
        }
        self.incoming.clear();
        Ok(())
    }

    /// Moves the body by splice(2) as long as it needs no inspection.
    async fn splice(
        &mut self,
        upstream: &Upstream,
        mut pipe: PipeLease,
        body: &mut Body,
        sent: &mut u64,
    ) -> Result<(), Failed> {
        let mut spliced = 0;
        let mut turn = Turn::default();
        let outcome = loop {
            let due = body.blind_bytes();
            if due == 0 {
                break Ok(());
            }
            let pulling = splice::pull(&upstream.tcp, &mut pipe, due);
            let moved = match self.timer.limit(self.timeouts.body_stall, pulling).await {
                Err(Elapsed) => break Err(Failed::Slow),
                Ok(Ok(moved @ 1..)) => moved as u64,
                Ok(Ok(_)) if matches!(body, Body::UntilClose) => {
                    *body = Body::Done;
                    break Ok(());
                }
                Ok(_) => break Err(Failed::Server),
            };
            body.skip(moved);
            let client = self.client.tcp();
            let mut pushed = Ok(0);
            while pipe.held_bytes > 0 && pushed.is_ok() {
                let pushing = splice::push(&mut pipe, client, false);
                pushed = limited(self.timer, self.timeouts, pushing).await;
            }
            if let Err(failed) = pushed {
                break Err(failed);
            }
            spliced += moved;
            turn.moved(moved).await;
        };
        *sent += spliced;
        self.client.add_sent_bytes(spliced);
        self.worker.meter.add_n(Event::BytesSpliced, spliced);
        outcome
    }

    /// Continues both directions of an exchange whose response began before the request ended.
    async fn both_ways(
        &mut self,
        upstream: &mut Upstream,
        body: &mut Body,
        decode: bool,
        sent: &mut u64,
    ) -> Result<(), Failed> {
        let (mut reader, writer) = upstream.tcp.split();
        let worker = self.worker;
        let (client, upload) = (&mut *self.client, &mut self.upload);
        let incoming = &mut self.incoming;
        let either = async {
            tokio::select! {
                biased;
                read = incoming.fill(&mut reader, &worker.buffers) => Ok(read),
                step = upload.step(client, writer.as_ref(), worker) => Err(step),
            }
        };
        match self.timer.limit(self.timeouts.body_stall, either).await {
            Err(Elapsed) => Err(Failed::Slow),
            Ok(Ok(read)) => self.pass_on(read, body, decode, sent).await,
            Ok(Err(step)) => self.stepped(step),
        }
    }

    async fn upload_only(&mut self, upstream: &Upstream) -> Result<(), Failed> {
        let step = self.upload.step(self.client, &upstream.tcp, self.worker);
        match self.timer.limit(self.timeouts.body_stall, step).await {
            Err(Elapsed) => Err(Failed::ClientSlow),
            Ok(step) => self.stepped(step),
        }
    }

    fn stepped(&mut self, step: Result<(), UploadError>) -> Result<(), Failed> {
        match step {
            Ok(()) => Ok(()),
            Err(UploadError::Server) => {
                self.upload.abandon();
                Ok(())
            }
            Err(UploadError::Client) => Err(Failed::Client),
            Err(UploadError::Malformed(error)) => Err(Failed::Body(error)),
            Err(UploadError::TooLarge) => Err(Failed::TooLarge),
        }
    }

    async fn write(&mut self, bytes: &[u8], more: bool) -> Result<(), Failed> {
        write(self.client, self.timeouts, bytes, more).await
    }
}

/// Writes to the client as long as it makes progress.
async fn write(
    client: &mut Stream,
    timeouts: &Timeouts,
    bytes: &[u8],
    more: bool,
) -> Result<(), Failed> {
    client.set_stall_limit(timeouts.body_stall);
    client.write_all(bytes, more).await.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => Failed::ClientSlow,
        _ => Failed::Client,
    })
}

/// Relays what came here of a spliced response, at most `bytes_max` bytes. Returns their number.
async fn relay_spliced(
    client: &mut Stream,
    timeouts: &Timeouts,
    incoming: &mut Incoming,
    bytes_max: u64,
) -> Result<u64, Failed> {
    let taken = bytes_max.min(incoming.data().len() as u64);
    let data = incoming.data().get(..taken as usize).unwrap_or_default();
    write(client, timeouts, data, false).await?;
    incoming.clear();
    Ok(taken)
}

/// Waits for the client, within the limit for stalled bodies.
async fn limited<T>(
    timer: &mut Timer,
    timeouts: &Timeouts,
    writing: impl Future<Output = io::Result<T>>,
) -> Result<T, Failed> {
    match timer.limit(timeouts.body_stall, writing).await {
        Ok(Ok(written)) => Ok(written),
        Ok(Err(_)) => Err(Failed::Client),
        Err(Elapsed) => Err(Failed::ClientSlow),
    }
}
