//! The body of an SDK's request, as it arrives.

use std::io::{Error, ErrorKind, Result};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::body::{Body as _, Incoming};

use super::chunked::Decoder;
use crate::outgoing::Source;

/// A body on its way.
pub struct Arriving {
    incoming: Incoming,
    /// The decoder of a body in chunks of its own.
    decoder: Option<Decoder>,
}

/// The body of a request, and its length; `None` if the length is not announced.
pub fn of(headers: &HeaderMap, incoming: Incoming) -> (Arriving, Option<u64>) {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let digest = text("x-amz-content-sha256").unwrap_or_default();
    let codings = text("content-encoding").unwrap_or_default();
    let is_chunked = digest.starts_with("STREAMING-")
        || codings.split(',').any(|coding| coding.trim().eq_ignore_ascii_case("aws-chunked"));
    if is_chunked {
        let length = text("x-amz-decoded-content-length").and_then(|length| length.parse().ok());
        return (Arriving { incoming, decoder: Some(Decoder::default()) }, length);
    }
    let length = incoming.size_hint().exact();
    (Arriving { incoming, decoder: None }, length)
}

impl Arriving {
    /// The body as a whole; `None` if it has more than `most` bytes or breaks off.
    pub async fn whole(mut self, most: usize) -> Option<Bytes> {
        let mut out = BytesMut::new();
        while let Some(bytes) = self.next().await.ok()? {
            if out.len() + bytes.len() > most {
                return None;
            }
            out.extend_from_slice(&bytes);
        }
        Some(out.freeze())
    }

    async fn received(&mut self) -> Result<Option<Bytes>> {
        loop {
            match self.incoming.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(Error::other(error)),
                Some(Ok(frame)) => {
                    // Trailers of HTTP itself say nothing about the object.
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }
}

impl Source for Arriving {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        let malformed = |error| Error::new(ErrorKind::InvalidData, error);
        loop {
            if let Some(decoder) = &mut self.decoder
                && let Some(bytes) = decoder.take().map_err(malformed)?
            {
                return Ok(Some(bytes));
            }
            let received = self.received().await?;
            match (&mut self.decoder, received) {
                (None, received) => return Ok(received),
                (Some(decoder), Some(bytes)) => decoder.push(&bytes),
                (Some(decoder), None) if decoder.is_done() => return Ok(None),
                (Some(_), None) => {
                    return Err(Error::new(ErrorKind::UnexpectedEof, "the body breaks off"));
                }
            }
        }
    }
}
