//! A request at the listener: its head, and its end.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::SystemTime;

use hyper::body::Incoming;
use hyper::header::{HeaderName, HeaderValue};
use hyper::http::request::Parts;
use serde_json::json;
use tokio::sync::watch;
use unlade_fn_http_event::{Cors, HttpRequest, Response, cors};
use unlade_metrics::{Event, FnHttpEnd};

use super::address::name_of;
use super::body::{Bodies, Held, Unread};
use crate::answer::{Reply, json_reply, set};
use crate::call_context::{TRACE_HEADER, is_trace};
use crate::denials::Denials;
use crate::deploy::time_ms;
use crate::host::Host;
use crate::invoke::uuid;
use crate::request::header;

/// Longest head: target, names and values of its fields, in bytes.
pub const HEAD_BYTES_MAX: usize = 32 * 1024;
/// The field with the clients and proxies of a request.
const FORWARDED_FOR: &str = "x-forwarded-for";
/// The field with the port of the listener.
const FORWARDED_PORT: &str = "x-forwarded-port";
/// The field with the scheme of the request.
const FORWARDED_PROTO: &str = "x-forwarded-proto";

/// The state of the listener.
pub struct Web {
    /// Functions and instances.
    pub host: Rc<Host>,
    /// True while the gateway is ending: each connection then ends after its current request.
    pub ending: watch::Receiver<bool>,
    /// The count and the log of denied requests.
    pub denials: Denials,
    /// Memory for bodies.
    bodies: Bodies,
}

impl Web {
    /// Creates the state of a listener.
    pub fn new(host: Rc<Host>, ending: watch::Receiver<bool>) -> Web {
        Web { host, ending, denials: Denials::default(), bodies: Bodies::default() }
    }

    /// Counts the end of a request.
    pub fn count(&self, end: FnHttpEnd) {
        self.host.meter.add(Event::FnHttpRequest(end));
    }

    /// Reads a body.
    ///
    /// # Errors
    /// The body is too long or incomplete, does not arrive in time, or there is no memory for it.
    pub async fn body(&self, body: Incoming) -> Result<Held, Ended> {
        let held = self.bodies.read(body, self.host.config.urls_timeout).await;
        held.map_err(|unread| match unread {
            Unread::TooLarge => {
                Ended::message(413, FnHttpEnd::TooLarge, "Request Entity Too Large")
            }
            Unread::Full => Ended::message(503, FnHttpEnd::Full, "Service Unavailable"),
            Unread::Slow => {
                let mut ended = Ended::message(408, FnHttpEnd::Slow, "Request Timeout");
                set(&mut ended.reply, "connection", "close");
                ended
            }
            Unread::Broken => Ended::message(400, FnHttpEnd::Invalid, "Bad Request"),
        })
    }
}

/// The end of a request.
pub struct Ended {
    /// How it is counted.
    pub end: FnHttpEnd,
    /// The response.
    pub reply: Reply,
}

impl Ended {
    /// A response of the listener itself.
    pub fn message(status: u16, end: FnHttpEnd, message: &str) -> Ended {
        Ended { end, reply: json_reply(status, json!({ "message": message }).to_string()) }
    }

    /// There is no such URL, API, stage or route.
    pub fn not_found() -> Ended {
        Ended::message(404, FnHttpEnd::NotFound, "Not Found")
    }

    /// The response of a function, or of a configuration.
    pub fn response(end: FnHttpEnd, response: Response) -> Ended {
        let mut reply = Reply::new(response.body.into());
        let status = hyper::StatusCode::from_u16(response.status);
        *reply.status_mut() = status.unwrap_or(hyper::StatusCode::BAD_GATEWAY);
        let mut ended = Ended { end, reply };
        ended.append(response.headers);
        ended
    }

    /// Appends header fields, whose form the maker has checked.
    fn append(&mut self, fields: Vec<(String, String)>) {
        for (name, value) in fields {
            let name = HeaderName::from_bytes(name.as_bytes());
            let value = HeaderValue::from_bytes(value.as_bytes());
            if let (Ok(name), Ok(value)) = (name, value) {
                self.reply.headers_mut().append(name, value);
            }
        }
    }

    /// Puts the fields of CORS in the place of those that a function gave.
    pub fn with_cors(mut self, own: Option<&Cors>, head: &Head) -> Ended {
        let Some(own) = own else { return self };
        let headers = self.reply.headers_mut();
        let given: Vec<HeaderName> =
            headers.keys().filter(|name| cors::is_own(name.as_str())).cloned().collect();
        for name in given {
            headers.remove(name);
        }
        self.append(own.response(head.header("origin")));
        self
    }
}

/// The length of a head, in bytes.
pub fn head_bytes(parts: &Parts) -> usize {
    let target = parts.uri.path_and_query().map_or(0, |target| target.as_str().len());
    let fields = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    target + fields.sum::<usize>()
}

/// The head of a request.
pub struct Head {
    /// `GET`.
    pub method: String,
    /// The path at the listener, as received.
    pub path: String,
    /// The query, without `?`.
    pub query: String,
    /// The name of the host in the request, without port.
    pub domain_name: String,
    /// Header fields in their order; names are in small letters.
    pub headers: Vec<(String, String)>,
    /// The client.
    pub peer: SocketAddr,
    /// The identifier of the request, and of its invocation.
    pub id: String,
    /// The time of the request, in milliseconds since the UNIX epoch.
    pub time_ms: u64,
    /// The trace of the client.
    pub trace: Option<String>,
}

impl Head {
    /// The head of a request from an address; `None` without a host.
    pub fn new(parts: &Parts, peer: SocketAddr, port: Option<u16>) -> Option<Head> {
        let named = parts.uri.authority().map(|authority| authority.as_str());
        let domain_name = name_of(named.or_else(|| header(&parts.headers, "host"))?);
        let (mut headers, mut clients) = (Vec::new(), Vec::new());
        for (name, value) in &parts.headers {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            match name.as_str() {
                FORWARDED_FOR => clients.push(value),
                FORWARDED_PORT | FORWARDED_PROTO => {}
                name => headers.push((name.to_owned(), value)),
            }
        }
        clients.push(peer.ip().to_canonical().to_string());
        for (name, value) in [
            (FORWARDED_FOR, clients.join(", ")),
            (FORWARDED_PORT, port.unwrap_or_default().to_string()),
            (FORWARDED_PROTO, "http".to_owned()),
        ] {
            headers.push((name.to_owned(), value));
        }
        let trace = header(&parts.headers, TRACE_HEADER).filter(|trace| is_trace(trace));
        Some(Head {
            method: parts.method.as_str().to_owned(),
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            domain_name: domain_name.to_owned(),
            headers,
            peer,
            id: uuid(),
            time_ms: time_ms(SystemTime::now()),
            trace: trace.map(str::to_owned),
        })
    }

    /// A header field; `name` is in small letters.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(own, _)| own == name);
        found.next().map(|(_, value)| value.as_str())
    }

    /// The request as a function sees it, with a path of the URL or API, and the client's address.
    pub fn request<'a>(
        &'a self,
        path: &'a str,
        body: &'a [u8],
        source_ip: &'a str,
    ) -> HttpRequest<'a> {
        HttpRequest {
            method: &self.method,
            path,
            query: &self.query,
            protocol: "HTTP/1.1",
            headers: &self.headers,
            body,
            source_ip,
        }
    }
}
