//! Header fields, and responses whose bodies arrive.

use std::io::Result;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Frame;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, Response, StatusCode};
use tokio::sync::mpsc;

use crate::http::Body;

/// Header fields as text: UTF-8, or else Latin-1.
pub fn fields(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |(name, value): (&HeaderName, &HeaderValue)| {
        let value = std::str::from_utf8(value.as_bytes()).map_or_else(
            |_| value.as_bytes().iter().map(|byte| char::from(*byte)).collect(),
            str::to_owned,
        );
        (name.as_str().to_owned(), value)
    };
    headers.iter().map(text).collect()
}

/// A response with the header fields of a service; invalid ones are left out.
pub fn response(status: u16, fields: Vec<(String, String)>, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in fields {
        let pair = (HeaderName::try_from(name), HeaderValue::try_from(value));
        if let (Ok(name), Ok(value)) = pair {
            response.headers_mut().append(name, value);
        }
    }
    response
}

/// The body of an answer, as its pieces arrive. A body that breaks off ends its connection.
struct Pieces(mpsc::Receiver<Result<Bytes>>);

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|bytes| bytes.map(Frame::data)))
    }
}

/// A body that arrives.
pub fn arriving(pieces: mpsc::Receiver<Result<Bytes>>) -> Body {
    Pieces(pieces).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_both_encodings_are_text() {
        let mut headers = HeaderMap::new();
        for value in [&b"plain"[..], "\u{fc}\u{20ac}".as_bytes(), b"caf\xe9"] {
            headers.append("x-amz-meta-a", HeaderValue::from_bytes(value).unwrap());
        }
        let values: Vec<_> = fields(&headers).into_iter().map(|(_, value)| value).collect();
        assert_eq!(values, ["plain", "\u{fc}\u{20ac}", "caf\u{e9}"]);
    }
}
