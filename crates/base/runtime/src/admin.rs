//! The admin endpoint: `/metrics`, `/healthz`, `/version` and routes that a command adds. It has
//! its own thread, so that it answers even if every worker is busy.
//!
//! Read-only: GET and HEAD. It has no authentication and belongs on a loopback or management
//! address.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::LocalSet;
use unlade_http::{BodyFraming, HeadLimits, Method, RequestHead};
use unlade_metrics::Meter;

use crate::Phase;
use crate::listen::{self, ListenError, ListenOptions};

/// Most concurrent admin connections; more wait in the kernel's backlog.
pub const CONNECTIONS_MAX: usize = 32;
/// Time limit for a request's head, and for the next request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the client to read an answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failed accept (descriptors exhausted), to avoid a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Limits for a request; a scraper's request is small.
const LIMITS: HeadLimits =
    HeadLimits { head_bytes_max: 8 * 1024, headers_max: 64, target_bytes_max: 2 * 1024 };

/// The Content-Type of `/metrics`.
pub const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The health of a process: 200 if it should receive traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// 200.
    Ok,
    /// 503: finishing its requests.
    Draining,
    /// 503, with the reason.
    Failing(String),
}

impl From<Phase> for Health {
    fn from(phase: Phase) -> Health {
        match phase {
            Phase::Running => Health::Ok,
            Phase::Draining | Phase::Stopping => Health::Draining,
        }
    }
}

impl Health {
    /// The health of a process with a flag for draining.
    pub fn by_flag(is_draining: Arc<AtomicBool>) -> impl Fn() -> Health + Send + Sync + 'static {
        move || match is_draining.load(Ordering::Relaxed) {
            true => Health::Draining,
            false => Health::Ok,
        }
    }
}

/// The answer of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Content-Type.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
}

impl Answer {
    /// An answer with status 200 and plain text.
    pub fn text(body: impl Into<String>) -> Answer {
        Answer { status: 200, content_type: "text/plain; charset=utf-8", body: body.into() }
    }

    /// An answer with status 200 and JSON that the caller has written.
    pub fn json(body: impl Into<String>) -> Answer {
        Answer { status: 200, content_type: "application/json", body: body.into() }
    }

    /// The same answer with another status.
    pub fn with_status(self, status: u16) -> Answer {
        Answer { status, ..self }
    }
}

/// Computes an answer from the query of the request. Runs on the admin thread; it may block that
/// thread only.
pub type Handler = Box<dyn Fn(Option<&str>) -> Answer + Send + Sync>;

/// Paths and their handlers.
pub struct Routes {
    handlers: BTreeMap<String, Handler>,
}

impl std::fmt::Debug for Routes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.handlers.keys()).finish()
    }
}

impl Routes {
    /// Routes for `/metrics` from `meter`, `/healthz` from `health`, `/version` from `name` and
    /// `version`.
    pub fn new(
        meter: Arc<Meter>,
        health: impl Fn() -> Health + Send + Sync + 'static,
        name: &'static str,
        version: &'static str,
    ) -> Routes {
        let metrics = move |_: Option<&str>| Answer {
            status: 200,
            content_type: METRICS_TYPE,
            body: meter.render(),
        };
        let healthz = move |_: Option<&str>| match health() {
            Health::Ok => Answer::text("ok\n"),
            Health::Draining => Answer::text("draining\n").with_status(503),
            Health::Failing(why) => Answer::text(format!("failing: {why}\n")).with_status(503),
        };
        Routes { handlers: BTreeMap::new() }
            .route("/metrics", metrics)
            .route("/healthz", healthz)
            .route("/version", move |_| Answer::text(format!("{name} {version}\n")))
    }

    /// Adds or replaces the route of an exact path.
    pub fn route(
        mut self,
        path: &str,
        handler: impl Fn(Option<&str>) -> Answer + Send + Sync + 'static,
    ) -> Routes {
        self.handlers.insert(path.to_owned(), Box::new(handler));
        self
    }

    fn answer(&self, path: &str, query: Option<&str>) -> Answer {
        match self.handlers.get(path) {
            Some(handler) => handler(query),
            None => {
                let mut body = String::from("not found; there is:\n");
                for path in self.handlers.keys() {
                    let _ = writeln!(body, "  {path}");
                }
                Answer::text(body).with_status(404)
            }
        }
    }
}

/// The reason why the admin endpoint cannot start: the operator's or the machine's fault.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The address cannot be listened on.
    #[error("admin: {0}")]
    Listen(#[from] ListenError),
    /// A thread or a runtime cannot be created.
    #[error("admin: its thread cannot start: {0}; see the process and thread limits")]
    Start(#[source] io::Error),
}

/// The running endpoint. Dropping it closes it.
#[derive(Debug)]
pub struct AdminServer {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl AdminServer {
    /// The address it listens on (with the chosen port, if the configuration has port 0).
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Starts answering on `address`.
///
/// # Errors
/// The address cannot be listened on, or no thread can be started.
pub fn start(address: SocketAddr, routes: Routes) -> Result<AdminServer, AdminError> {
    let options = ListenOptions { backlog: 64, ..ListenOptions::default() };
    let listener = listen::bind(address, &options)?;
    let address = listener.local_addr().map_err(AdminError::Start)?;
    let runtime = Builder::new_current_thread().enable_all().build().map_err(AdminError::Start)?;
    let (stop, stopped) = oneshot::channel();
    let thread = std::thread::Builder::new()
        .name("admin".to_owned())
        .spawn(move || {
            let local = LocalSet::new();
            local.block_on(&runtime, async {
                tokio::select! {
                    () = accept(listener, routes) => {}
                    _ = stopped => {}
                }
            });
        })
        .map_err(AdminError::Start)?;
    tracing::info!(%address, "admin endpoint");
    Ok(AdminServer { address, stop: Some(stop), thread: Some(thread) })
}

async fn accept(listener: StdListener, routes: Routes) {
    let listener = match listen::register(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "admin endpoint lost");
            return;
        }
    };
    let routes = Rc::new(routes);
    let places = Rc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // Accepting only with a free slot leaves further connections in the kernel's backlog.
        let Ok(()) = places.acquire().await.map(|permit| permit.forget()) else { return };
        match listener.accept().await {
            Ok((tcp, _)) => {
                let (routes, places) = (routes.clone(), places.clone());
                tokio::task::spawn_local(async move {
                    if let Err(error) = serve(tcp, &routes).await {
                        tracing::debug!(%error, "admin connection");
                    }
                    places.add_permits(1);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "admin accept");
                places.add_permits(1);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(mut tcp: TcpStream, routes: &Routes) -> io::Result<()> {
    let mut input = Vec::new();
    loop {
        let head = match RequestHead::parse(&input, &LIMITS) {
            Ok(Some(head)) => head,
            Ok(None) => {
                if within(HEAD_TIMEOUT, tcp.read_buf(&mut input)).await? == 0 {
                    return Ok(());
                }
                continue;
            }
            Err(error) => {
                let answer = Answer::text(format!("{error}\n")).with_status(error.status());
                return respond(&mut tcp, &answer, true, false).await;
            }
        };
        let with_body = head.method() != Method::Head;
        let keep = head.keep_alive() && matches!(head.framing(), BodyFraming::None);
        let answer = match head.method() {
            Method::Get | Method::Head => routes.answer(head.path(&input), head.query(&input)),
            _ => Answer::text("read-only: GET and HEAD\n").with_status(405),
        };
        respond(&mut tcp, &answer, with_body, keep).await?;
        if !keep {
            return tcp.shutdown().await;
        }
        input.drain(..head.head_bytes().min(input.len()));
    }
}

async fn respond(
    tcp: &mut TcpStream,
    answer: &Answer,
    with_body: bool,
    keep: bool,
) -> io::Result<()> {
    let mut out = format!(
        "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n",
        answer.status,
        reason(answer.status),
        answer.content_type,
        answer.body.len(),
    );
    if answer.status == 405 {
        out.push_str("Allow: GET, HEAD\r\n");
    }
    out.push_str(if keep { "\r\n" } else { "Connection: close\r\n\r\n" });
    if with_body {
        out.push_str(&answer.body);
    }
    within(WRITE_TIMEOUT, tcp.write_all(out.as_bytes())).await
}

async fn within<T>(limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(limit, work).await.map_err(|_| io::ErrorKind::TimedOut)?
}

/// The reason phrase of the statuses that an admin endpoint sends (RFC 9110 §15).
fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "Status",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    struct Endpoint {
        server: AdminServer,
        draining: Arc<AtomicBool>,
    }

    fn endpoint() -> Endpoint {
        let draining = Arc::new(AtomicBool::new(false));
        let health = Health::by_flag(draining.clone());
        let routes = Routes::new(Arc::new(Meter::new()), health, "unlade", "1.2.3")
            .route("/echo", |query| {
                Answer::json(format!("{{\"query\":\"{}\"}}", query.unwrap_or("")))
            });
        let server = start(SocketAddr::from(([127, 0, 0, 1], 0)), routes).unwrap();
        Endpoint { server, draining }
    }

    impl Endpoint {
        /// Sends `request`, shuts down the sending side, returns all that is received.
        fn exchange(&self, request: &str) -> String {
            let mut tcp = std::net::TcpStream::connect(self.server.address()).unwrap();
            tcp.write_all(request.as_bytes()).unwrap();
            tcp.shutdown(std::net::Shutdown::Write).unwrap();
            let mut answer = String::new();
            tcp.read_to_string(&mut answer).unwrap();
            answer
        }

        fn get(&self, target: &str) -> String {
            self.exchange(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"))
        }
    }

    #[test]
    fn metrics_are_openmetrics_text() {
        let answer = endpoint().get("/metrics");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("Content-Type: application/openmetrics-text; version=1.0.0"));
        assert!(answer.ends_with("# EOF\n"), "{answer}");
    }

    #[test]
    fn health_follows_the_process() {
        let endpoint = endpoint();
        assert!(endpoint.get("/healthz").starts_with("HTTP/1.1 200 "));
        endpoint.draining.store(true, Ordering::Relaxed);
        let answer = endpoint.get("/healthz");
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("draining\n"), "{answer}");
    }

    #[test]
    fn version_added_routes_and_unknown_paths() {
        let endpoint = endpoint();
        assert!(endpoint.get("/version").ends_with("unlade 1.2.3\n"));
        assert!(endpoint.get("/echo?a=1").ends_with("{\"query\":\"a=1\"}"));
        let missing = endpoint.get("/nothing");
        assert!(missing.starts_with("HTTP/1.1 404 ") && missing.contains("  /metrics\n"));
    }

    #[test]
    fn only_reading_is_allowed_and_heads_are_strict() {
        let endpoint = endpoint();
        let post = "POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
        let answer = endpoint.exchange(post);
        assert!(answer.starts_with("HTTP/1.1 405 ") && answer.contains("Allow: GET, HEAD\r\n"));
        let head = endpoint.exchange("HEAD /version HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
        let bad = endpoint.exchange("GET /version HTTP/1.1\nHost: a\n\n");
        assert!(bad.starts_with("HTTP/1.1 400 "), "{bad}");
    }

    #[test]
    fn pipelined_requests_are_answered_in_order() {
        let endpoint = endpoint();
        let one = "GET /version HTTP/1.1\r\nHost: a\r\n\r\n";
        let answers = endpoint.exchange(&format!("{one}{}", one.replace("version", "healthz")));
        let (version, health) =
            (answers.find("unlade 1.2.3").unwrap(), answers.find("ok\n").unwrap());
        assert!(version < health);
    }

    #[test]
    fn dropping_it_closes_the_port() {
        let endpoint = endpoint();
        let address = endpoint.server.address();
        drop(endpoint);
        assert!(std::net::TcpStream::connect(address).is_err());
    }
}
