//! A request whose body is streamed.
//!
//! The request asks for permission first (`expect: 100-continue`): if the store refuses, no byte
//! of the body is sent. Each chunk is gathered, signed and sent before the next one is requested,
//! so memory holds only one chunk.

use std::time::{Duration, SystemTime};

use unlade_http::BodyFraming;
use unlade_s3::{Head, Request};

use super::chunked::{CHUNK_BYTES, Encoder, Framing, Trailer};
use super::connection::{Connection, Sent, broken};
use super::http::{
    Destination, HttpReader, HttpStore, method_name, receive_head, receive_next, written,
};
use super::sign::Payload;
use super::transport::{Incoming, Outgoing, TransportError};

/// Longest wait for the interim response before the body is sent without it (RFC 9110 §10.1.1).
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of a chunk's head and end.
const AROUND_BYTES: usize = 512;

/// The head of the response, the framing of its body, and true if the connection can be reused.
type Answer = (Head, BodyFraming, bool);

impl HttpStore {
    /// See [`Transport::upload`](super::Transport::upload).
    pub(super) async fn send_as_it_comes(
        &self,
        request: &Request,
        body: &mut dyn Outgoing,
    ) -> Result<Incoming, TransportError> {
        let (bucket, region) = (request.bucket.as_deref(), request.region.as_deref());
        let place = self.place(bucket, region, |bucket| request.path(bucket));
        let (head, encoder) = self.stream_head(request, &place, body.bytes())?;
        let (mut connection, was_kept) = match self.pool.take(&place.host) {
            Some(kept) => (kept, true),
            None => (self.connect(&place.host).await?, false),
        };
        let asked = self.ask(&mut connection, request, &head).await;
        let refused = asked.map_err(|error| match error {
            TransportError::Broken { host, why, .. } => {
                TransportError::Broken { host, why, was_kept }
            }
            other => other,
        })?;
        let early = match refused {
            Some(answer) => Some(answer),
            None => self.send_body(&mut connection, request, encoder, body).await?,
        };
        let is_early = early.is_some();
        let (head, framing, keep) = match early {
            Some(answer) => answer,
            None => receive_head(&mut connection, request.operation.method).await?,
        };
        if is_early && (200..300).contains(&head.status) {
            return Err(broken(&connection.host, "it answered before it had all of the body"));
        }
        // The rest of the body will not be sent, so the connection cannot be reused.
        let keep = keep && !is_early;
        let body = HttpReader::new(connection, framing, keep, self.pool.clone());
        Ok(Incoming { head, body: Box::new(body) })
    }

    /// The signed head of the request, and the encoder of its body.
    fn stream_head(
        &self,
        request: &Request,
        place: &Destination,
        body_bytes: u64,
    ) -> Result<(Vec<u8>, Encoder), TransportError> {
        let mut headers = request.headers.clone();
        let algorithm = request.wanted_digest().map(str::to_owned);
        let trailer = algorithm.as_deref().and_then(Trailer::new);
        if let (Some(algorithm), Some(trailer)) = (&algorithm, &trailer) {
            let name = "x-amz-sdk-checksum-algorithm";
            headers.retain(|(found, _)| found != name);
            headers.push((name.to_owned(), algorithm.clone()));
            headers.push(("x-amz-trailer".to_owned(), trailer.name().to_owned()));
        }
        let signer = self.signer_of(request);
        let signs_chunks = signer.is_some() && self.endpoint.signs_bodies;
        let has_trailer = trailer.is_some();
        if signs_chunks || has_trailer {
            encode_content(&mut headers);
            let name = "x-amz-decoded-content-length".to_owned();
            headers.push((name, body_bytes.to_string()));
        }
        let (method, url) = (method_name(request.operation.method), self.url(request, place));
        let (region, now) = (self.region(request), SystemTime::now());
        let encoder = |framing| Encoder::new(framing, body_bytes, CHUNK_BYTES);
        let length =
            |encoder: &Encoder| ("content-length".to_owned(), encoder.encoded_bytes().to_string());
        let encoder = match signer {
            Some(signer) if signs_chunks => {
                let payload = Payload::Chunks { has_trailer };
                // The length is not signed: the chunks determine it.
                let sealed = signer.seal(method, &url, &headers, payload, region, now)?;
                headers.extend(sealed.headers);
                encoder(Framing::Chunks { signer: Some(sealed.chunks), trailer })
            }
            _ => {
                let payload =
                    if has_trailer { Payload::UnsignedTrailer } else { Payload::Unsigned };
                match signer {
                    Some(signer) => {
                        let own = &headers;
                        let more = signer.headers(method, &url, own, payload, region, now)?;
                        headers.extend(more);
                    }
                    None if has_trailer => {
                        let value = "STREAMING-UNSIGNED-PAYLOAD-TRAILER".to_owned();
                        headers.push(("x-amz-content-sha256".to_owned(), value));
                    }
                    None => {}
                }
                encoder(match has_trailer {
                    true => Framing::Chunks { signer: None, trailer },
                    false => Framing::Plain,
                })
            }
        };
        headers.push(length(&encoder));
        headers.push(("expect".to_owned(), "100-continue".to_owned()));
        Ok((written(request, place, &headers), encoder))
    }

    /// Sends a head; returns the response if the store refuses the body.
    async fn ask(
        &self,
        connection: &mut Connection,
        request: &Request,
        head: &[u8],
    ) -> Result<Option<Answer>, TransportError> {
        connection.send(head, b"").await?;
        let heard = receive_next(connection, request.operation.method);
        match tokio::time::timeout(CONTINUE_TIMEOUT, heard).await {
            Ok(heard) => heard,
            Err(_) => Ok(None),
        }
    }

    /// Sends the body; returns the response if it arrived before the whole body was sent.
    async fn send_body(
        &self,
        connection: &mut Connection,
        request: &Request,
        mut encoder: Encoder,
        body: &mut dyn Outgoing,
    ) -> Result<Option<Answer>, TransportError> {
        let mut out = Vec::with_capacity(CHUNK_BYTES + AROUND_BYTES);
        loop {
            out.clear();
            let is_last = encoder.next_bytes() as u64 == encoder.left_bytes();
            let gathered = gather(&mut encoder, body, &mut out, is_last);
            let answer = self.meanwhile(connection, request, gathered).await?;
            if answer.is_some() {
                return Ok(answer);
            }
            match self.send_piece(connection, request, &out).await {
                Ok(None) if is_last => return Ok(None),
                // Other tasks run after each chunk.
                Ok(None) => tokio::task::yield_now().await,
                Ok(answer) => return Ok(answer),
                // A store may respond and close before it has read the body.
                Err(unsent) => {
                    return receive_head(connection, request.operation.method)
                        .await
                        .map(Some)
                        .or(Err(unsent));
                }
            }
        }
    }

    /// Awaits work, or a response.
    async fn meanwhile(
        &self,
        connection: &mut Connection,
        request: &Request,
        work: impl Future<Output = Result<(), TransportError>>,
    ) -> Result<Option<Answer>, TransportError> {
        tokio::pin!(work);
        loop {
            let heard = tokio::select! {
                biased;
                done = &mut work => return done.map(|()| None),
                heard = connection.listen() => heard,
            };
            let heard = heard.map_err(|error| broken(&connection.host, error))?;
            if heard == 0 {
                return Err(broken(&connection.host, "it ended within a body that it was sent"));
            }
            let answer = receive_next(connection, request.operation.method).await?;
            if answer.is_some() {
                return Ok(answer);
            }
        }
    }

    async fn send_piece(
        &self,
        connection: &mut Connection,
        request: &Request,
        piece: &[u8],
    ) -> Result<Option<Answer>, TransportError> {
        let mut rest = piece;
        loop {
            match connection.send_until_heard(rest).await? {
                Sent::All => return Ok(None),
                Sent::Until(bytes) => rest = rest.get(bytes..).unwrap_or_default(),
            }
            let answer = receive_next(connection, request.operation.method).await?;
            if answer.is_some() {
                return Ok(answer);
            }
        }
    }
}

/// Assembles the next chunk, and the trailer after the last one.
async fn gather(
    encoder: &mut Encoder,
    body: &mut dyn Outgoing,
    out: &mut Vec<u8>,
    is_last: bool,
) -> Result<(), TransportError> {
    let due = encoder.next_bytes();
    if due > 0 {
        encoder.open(out);
        let end = out.len() + due;
        while out.len() < end {
            let room = end - out.len();
            body.pull(out, room).await?;
        }
        encoder.close(out);
    }
    if is_last {
        // The last byte waits for this: with it the object would appear although its sender has
        // not finished.
        body.end().await?;
        encoder.finish(out);
    }
    Ok(())
}

/// Adds this transfer's encoding to the object's own encodings.
fn encode_content(headers: &mut Vec<(String, String)>) {
    const NAME: &str = "content-encoding";
    match headers.iter_mut().find(|(name, _)| name == NAME) {
        Some((_, own)) if !own.is_empty() => own.push_str(",aws-chunked"),
        Some((_, own)) => *own = "aws-chunked".to_owned(),
        None => headers.push((NAME.to_owned(), "aws-chunked".to_owned())),
    }
}
