//! Requests of the HTTP API: authentication, bodies, queries.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::http::request;
use unlade_fn_model::lambda::{Denial, EVENT_BYTES_MAX, Refusal};

use crate::auth::{CONTENT_SHA256, Caller, Head, sha256};
use crate::host::Host;

/// Timeout of a body that is read before its signature can be verified.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(300);

/// Decodes percent encoding (RFC 3986 §2.1).
///
/// # Errors
/// A `%` without two digits, or the text is not UTF-8.
pub fn unpercent(text: &str) -> Result<String, Refusal> {
    let wrong = || Refusal::Parameter(format!("{text:?} is not in percent notation"));
    let decoded = unlade_http::percent::decoded(text).ok_or_else(wrong)?;
    String::from_utf8(decoded).map_err(|_| wrong())
}

/// A request of an authenticated caller, and its body.
pub struct AuthenticatedRequest {
    /// The caller.
    pub caller: Caller,
    /// Method, URI and header fields.
    pub head: request::Parts,
    /// The body.
    pub body: Payload,
}

/// A body that was read, because its hash is signed, or that is still unread.
pub enum Payload {
    /// It was read and compared.
    Taken(Bytes),
    /// It is unread.
    Coming {
        /// Its bytes.
        body: Incoming,
        /// The hash in the caller's signature.
        sha256: Option<String>,
    },
}

impl Payload {
    /// Reads the bytes; returns the SHA-256 if it is still to be compared.
    ///
    /// # Errors
    /// The body is too long or incomplete.
    pub async fn collect(self, bytes_max: usize) -> Result<(Bytes, Option<String>), Refusal> {
        match self {
            Payload::Taken(bytes) if bytes.len() > bytes_max => Err(Refusal::TooLarge(bytes_max)),
            Payload::Taken(bytes) => Ok((bytes, None)),
            Payload::Coming { body, sha256 } => Ok((collect(body, bytes_max).await?, sha256)),
        }
    }

    /// Reads the bytes and compares them with the signed hash.
    ///
    /// # Errors
    /// The body is too long, incomplete, or not the signed one.
    pub async fn signed(self, bytes_max: usize) -> Result<Bytes, Refusal> {
        let (bytes, due) = self.collect(bytes_max).await?;
        compare(&bytes, due.as_deref())?;
        Ok(bytes)
    }
}

/// Compares a body with the signed hash.
///
/// # Errors
/// They differ.
pub fn compare(bytes: &[u8], due: Option<&str>) -> Result<(), Refusal> {
    if due.is_none_or(|due| due == sha256(bytes)) {
        return Ok(());
    }
    let why = format!("the body is not the one whose SHA-256 {CONTENT_SHA256} gives");
    Err(Refusal::Denied(Denial::Signature, why))
}

/// Authenticates the caller. Clients need not announce the hash of a body; it is then read first,
/// up to `bytes_max`, after the check of all other parts of the signature.
///
/// # Errors
/// The caller is denied, or the body is too long.
pub async fn identify(
    host: &Host,
    request: Request<Incoming>,
    bytes_max: usize,
) -> Result<AuthenticatedRequest, Refusal> {
    let (parts, body) = request.into_parts();
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    let head = Head { method: parts.method.as_str(), target, headers: &parts.headers };
    let claim = match &*host.keys.borrow() {
        Some(keys) => keys.claim(head, SystemTime::now())?,
        None => {
            let body = Payload::Coming { body, sha256: None };
            return Ok(AuthenticatedRequest { caller: Caller::Anyone, head: parts, body });
        }
    };
    let announced = claim.announced()?.map(str::to_owned);
    let (caller, body) = match announced {
        Some(hash) => (claim.verify(head, &hash)?, Payload::Coming { body, sha256: Some(hash) }),
        None => {
            // Its sender is unknown still: few long ones are in memory at a time.
            let is_long = bytes_max > EVENT_BYTES_MAX;
            let _place = match is_long {
                true => host.uploads.acquire().await.ok(),
                false => None,
            };
            let late = |_| Refusal::Content(format!("no body within {UPLOAD_TIMEOUT:?}"));
            let collected = tokio::time::timeout(UPLOAD_TIMEOUT, collect(body, bytes_max)).await;
            let bytes = collected.map_err(late)??;
            let own = bytes.clone();
            let hash = match is_long {
                true => tokio::task::spawn_blocking(move || sha256(&own)).await,
                false => Ok(sha256(&own)),
            };
            let hash = hash.map_err(|error| Refusal::Service(error.to_string()))?;
            (claim.verify(head, &hash)?, Payload::Taken(bytes))
        }
    };
    Ok(AuthenticatedRequest { caller, head: parts, body })
}

async fn collect(body: Incoming, bytes_max: usize) -> Result<Bytes, Refusal> {
    let collected = Limited::new(body, bytes_max).collect().await;
    let collected =
        collected.map_err(|error| match error.is::<http_body_util::LengthLimitError>() {
            true => Refusal::TooLarge(bytes_max),
            false => Refusal::Content(error.to_string()),
        })?;
    Ok(collected.to_bytes())
}

/// A header field; `None` if it is absent or not ASCII.
pub fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// The parameters of a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    /// Parses a query; `+` stands for itself, as in AWS's APIs.
    ///
    /// # Errors
    /// The percent encoding is wrong.
    pub fn parse(text: &str) -> Result<Query, Refusal> {
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((unpercent(name)?, unpercent(value)?))
        };
        let pairs = text.split('&').filter(|part| !part.is_empty()).map(pair);
        Ok(Query { pairs: pairs.collect::<Result<_, Refusal>>()? })
    }

    /// The parameters of these pairs.
    pub fn of(pairs: &[(&str, &str)]) -> Query {
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Query { pairs: pairs.iter().map(pair).collect() }
    }

    /// The first value of a parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// All values of a parameter.
    pub fn all(&self, name: &str) -> Vec<String> {
        let own = self.pairs.iter().filter(|(found, _)| found == name);
        own.map(|(_, value)| value.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_have_parameters() {
        let query = Query::parse("Qualifier=%24LATEST&tagKeys=a%20b&tagKeys=c&List&=").unwrap();
        assert_eq!(query.get("Qualifier"), Some("$LATEST"));
        assert_eq!(query.all("tagKeys"), ["a b", "c"]);
        assert_eq!((query.get("List"), query.get("Marker")), (Some(""), None));
        assert_eq!(Query::parse("a=%zz").unwrap_err().status(), 400);
        assert_eq!(Query::parse("").unwrap(), Query::default());
    }
}
