//! Decides if a connection is handed to the server that answers its request, and starts the
//! handover.
//!
//! [`Offload::decide`] is the policy: the route's mode, requests that need a proxy, and the
//! estimates of `auto`. [`HandOver`] moves connections; without it everything is proxied.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unlade_http::RequestHead;
use unlade_runtime::{Stream, WorkerInfo};

use crate::auto::{Auto, DecisionInput, LeaveReason, RequestKey, ServedRequests};
use crate::config::OffloadMode;
use crate::fallback::Declined;
use crate::pace::AnsweredBy;
use crate::plan::Plan;
use crate::pool::Pool;
use crate::route::{Route, ScopeKey};
use crate::server::Server;

/// A future of the current thread.
pub(crate) type LocalBoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The origin of a connection, for its return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnOrigin {
    /// Index of its listener.
    pub listener: usize,
    /// Requests that it has had, including those at servers as far as they are known.
    pub requests: u64,
}

/// A connection that comes back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReturnInfo {
    /// Its origin.
    pub origin: ConnOrigin,
    /// The route of its last request.
    pub route: Option<usize>,
    /// Idle time of its client at the server.
    pub idle: Duration,
    /// A server may have carried out the request at the front of its input.
    pub is_ambiguous: bool,
}

impl From<ConnOrigin> for ReturnInfo {
    fn from(origin: ConnOrigin) -> ReturnInfo {
        ReturnInfo { origin, route: None, idle: Duration::ZERO, is_ambiguous: false }
    }
}

/// A request whose connection is to be handed over.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    /// The configuration that routed it.
    pub plan: Arc<Plan>,
    /// Index of the route.
    pub route: usize,
    /// The pool.
    pub pool: Arc<Pool>,
    /// Index of the server in the pool.
    pub server: usize,
    /// The scope of further requests that the server may answer.
    pub scope: ScopeKey,
    /// Key of the request in the policy's estimates.
    pub key: RequestKey,
    /// The origin that the connection returns to.
    pub origin: ConnOrigin,
}

/// Moves connections.
pub(crate) trait HandOver {
    /// Checks if `server` can take a connection now. It is cheap, and called before anything is
    /// frozen.
    ///
    /// # Errors
    /// The obstacle.
    fn ready(&self, server: &Server) -> Result<(), Declined>;

    /// Hands `stream` over. The request is unconsumed in [`Stream::input`]. On success the
    /// connection has left this worker until it comes home (`accept::resume`); on
    /// failure it is unchanged.
    ///
    /// # Errors
    /// The stream, and the reason.
    fn hand_over(
        &self,
        stream: Stream,
        candidate: Candidate,
    ) -> LocalBoxFuture<'_, Result<(), Kept>>;
}

/// A connection that was not handed over.
#[derive(Debug)]
pub(crate) struct Kept {
    /// The unchanged stream.
    pub stream: Box<Stream>,
    /// The reason.
    pub why: Declined,
    /// Ambiguous delivery: the server was sent the request and has not reported if it has answered
    /// it. If it were sent again, a request that is not idempotent might be carried out twice (RFC
    /// 9110 §9.2.2).
    pub is_ambiguous: bool,
}

impl Kept {
    /// Creates the value for a request that no server has seen.
    pub(crate) fn new(stream: impl Into<Box<Stream>>, why: Declined) -> Kept {
        Kept { stream: stream.into(), why, is_ambiguous: false }
    }
}

/// The decision about a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Hand the connection over.
    HandOver,
    /// Proxy: the route does not offload.
    Off,
    /// Proxy; the reason is counted.
    Proxy(Declined),
}

/// A request with its route and server.
pub(crate) struct Routed<'r> {
    /// The route.
    pub route: &'r Route,
    /// The server.
    pub server: &'r Server,
    /// Key of the request in the policy's estimates.
    pub key: RequestKey,
    /// The connection has TLS.
    pub tls: bool,
    /// Requests that the connection has had before.
    pub requests_before: u64,
    /// The connection may be moved; only the request may prevent it.
    pub may_leave: bool,
}

/// Policy of one worker, and its [`HandOver`].
pub(crate) struct Offload {
    origin: Instant,
    auto: RefCell<Auto>,
    mover: RefCell<Option<Rc<dyn HandOver>>>,
}

impl Offload {
    /// Creates a policy that proxies everything until [`Offload::install`] is called.
    pub(crate) fn new(info: WorkerInfo, plan: &Plan) -> Offload {
        let seed = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(info.index as u64 + 1);
        Offload {
            origin: Instant::now(),
            auto: RefCell::new(Auto::new(plan.routes.len(), seed)),
            mover: RefCell::new(None),
        }
    }

    /// Installs `mover`, which can move connections from now on.
    pub(crate) fn install(&self, mover: Rc<dyn HandOver>) {
        *self.mover.borrow_mut() = Some(mover);
    }

    /// Handles a plan in which the routes have other numbers.
    pub(crate) fn replan(&self, plan: &Plan) {
        self.auto.borrow_mut().reset_routes(plan.routes.len());
    }

    /// Decides about one request.
    pub(crate) fn decide(&self, routed: &Routed<'_>, head: &RequestHead) -> Verdict {
        if routed.route.offload == OffloadMode::Off {
            return Verdict::Off;
        }
        if takes_a_proxy(head) {
            return Verdict::Proxy(Declined::request());
        }
        if !routed.may_leave {
            return Verdict::Proxy(Declined::draining());
        }
        let ready = match &*self.mover.borrow() {
            None => Err(Declined::unsupported()),
            Some(mover) => mover.ready(routed.server),
        };
        if let Err(why) = ready {
            return Verdict::Proxy(why);
        }
        if routed.route.offload == OffloadMode::Auto && !self.is_expected_to_pay(routed) {
            return Verdict::Proxy(Declined::policy());
        }
        Verdict::HandOver
    }

    fn is_expected_to_pay(&self, routed: &Routed<'_>) -> bool {
        let question = DecisionInput {
            key: routed.key,
            tls: routed.tls,
            requests_before: routed.requests_before,
            requests_per_migration: routed.route.requests_per_migration.limit(),
            now: self.origin.elapsed(),
        };
        self.auto.borrow_mut().decide(&question).offload
    }

    /// Hands a connection over.
    ///
    /// # Errors
    /// The unchanged stream, and the reason.
    pub(crate) async fn hand_over(&self, stream: Stream, candidate: Candidate) -> Result<(), Kept> {
        let mover = self.mover.borrow().clone();
        match mover {
            Some(mover) => mover.hand_over(stream, candidate).await,
            None => Err(Kept::new(stream, Declined::unsupported())),
        }
    }

    /// Learns from a proxied response of a route with `offload = "auto"`: see
    /// [`Auto::learn_proxied`].
    pub(crate) fn learn_proxied(&self, key: RequestKey, tls: bool, bytes: u64, busy: Duration) {
        self.auto.borrow_mut().learn_proxied(key, tls, bytes, busy);
    }

    /// Learns the pace of answered requests of a connection: see [`Auto::learn_pace`].
    pub(crate) fn learn_pace(
        &self,
        route: usize,
        way: AnsweredBy,
        (requests, bytes): (u64, u64),
        took: Option<Duration>,
        waited: Duration,
    ) {
        let served = ServedRequests { requests, bytes, took, waited, now: self.origin.elapsed() };
        self.auto.borrow_mut().learn_pace(route, way, served);
    }

    /// Learns the cost of a migration: see [`Auto::learn_migration`].
    pub(crate) fn learn_migration(&self, route: usize, tls: bool, cost: Duration, good: bool) {
        self.auto.borrow_mut().learn_migration(route, tls, cost, good);
    }

    /// Learns from a server's report about a connection: see [`Auto::learn_returned`].
    pub(crate) fn learn_returned(
        &self,
        key: RequestKey,
        requests: u64,
        bytes: u64,
        left: LeaveReason,
    ) {
        self.auto.borrow_mut().learn_returned(key, requests, bytes, left);
    }

    /// Learns the cost of a reclaim: see [`Auto::learn_reclaim`].
    pub(crate) fn learn_reclaim(&self, tls: bool, cost: Duration) {
        self.auto.borrow_mut().learn_reclaim(tls, cost);
    }

    /// Learns how long a client was idle between two requests: see [`Auto::learn_idle_time`].
    pub(crate) fn learn_idle_time(&self, route: usize, silence: Duration) {
        self.auto.borrow_mut().learn_idle_time(route, silence);
    }

    /// Learns that a number of idle times were shorter: see [`Auto::learn_idle_times_below`].
    pub(crate) fn learn_idle_times_below(&self, route: usize, count: u64, below: Duration) {
        self.auto.borrow_mut().learn_idle_times_below(route, count, below);
    }

    /// Returns how long a server keeps a connection without a request: see [`Auto::idle_return`].
    pub(crate) fn idle_return(&self, route: usize, occupancy: f64, most: Duration) -> Duration {
        self.auto.borrow().idle_return(route, occupancy, most)
    }

    /// Learns from the end of a connection: see [`Auto::learn_connection`].
    pub(crate) fn learn_connection(&self, route: usize, requests: u64) {
        self.auto.borrow_mut().learn_connection(route, requests);
    }
}

/// Returns true if the request needs a proxy: it may cause an interim response before the body, or
/// another protocol after it.
pub(crate) fn takes_a_proxy(head: &RequestHead) -> bool {
    head.expects_continue() || head.is_upgrade()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::LocalSet;
    use unlade_metrics::{Fallback, Meter};

    use super::*;
    use crate::accept;
    use crate::clients::Clients;
    use crate::config::BalancerConfig;
    use crate::placement::place_returned;
    use crate::server::KnownServers;
    use crate::worker::{SharedState, Worker};

    /// A fake that refuses, or answers the request itself and sends the connection home.
    struct Fake {
        refuse: Cell<Option<fn() -> Declined>>,
        is_ambiguous: Cell<bool>,
        handed: Cell<u32>,
        worker: RefCell<Option<Rc<Worker>>>,
    }

    impl HandOver for Fake {
        fn ready(&self, server: &Server) -> Result<(), Declined> {
            assert!(server.agent.is_some());
            Ok(())
        }

        fn hand_over(
            &self,
            mut stream: Stream,
            candidate: Candidate,
        ) -> LocalBoxFuture<'_, Result<(), Kept>> {
            Box::pin(async move {
                if let Some(why) = self.refuse.get() {
                    let is_ambiguous = self.is_ambiguous.get();
                    return Err(Kept { is_ambiguous, ..Kept::new(stream, why()) });
                }
                self.handed.set(self.handed.get() + 1);
                let head = RequestHead::parse(stream.input(), &candidate.plan.head_limits);
                stream.consume(head.unwrap().unwrap().head_bytes());
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\ndirect";
                stream.write_all(answer, false).await.unwrap();
                let origin =
                    ConnOrigin { requests: candidate.origin.requests + 1, ..candidate.origin };
                let worker = self.worker.borrow().clone().unwrap();
                accept::resume(worker, stream, origin);
                Ok(())
            })
        }
    }

    fn worker(server: std::net::SocketAddr, mode: &str, fake: &Rc<Fake>) -> Rc<Worker> {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:1\"\n[[route]]\npool = \"p\"\noffload = \"{mode}\"\n\
             [pool.p]\nservers = [\"{server}\"]\nagent_port = 7900\n\
             trust = {{ ca = \"/a\", certificate = \"/b\", key = \"/c\" }}\n"
        );
        let mut config = BalancerConfig::parse(&text, "test").unwrap();
        config.validate().unwrap();
        // The files are not used here.
        config.pools.get_mut("p").unwrap().trust = None;
        config.routes[0].offload = OffloadMode::Off;
        let mut plan = Plan::new(config.clone(), &mut KnownServers::default()).unwrap();
        config.routes[0].offload = serde_mode(mode);
        plan.routes = crate::route::RouteTable::new(&config.routes, |_| Some(0));
        let meter = Arc::new(Meter::new());
        let shared = SharedState { meter, clients: Arc::new(Clients::new(1)) };
        let info = WorkerInfo { index: 0, count: 1 };
        let worker = Rc::new(Worker::new(info, &shared, Arc::new(plan)));
        worker.offload.install(fake.clone());
        *fake.worker.borrow_mut() = Some(worker.clone());
        worker
    }

    fn serde_mode(mode: &str) -> OffloadMode {
        match mode {
            "always" => OffloadMode::Always,
            "auto" => OffloadMode::Auto,
            _ => OffloadMode::Off,
        }
    }

    async fn serve(worker: &Rc<Worker>) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (tcp, peer) = listener.accept().await.unwrap();
        accept::admit(worker, 0, tcp, peer);
        client
    }

    async fn origin() -> std::net::SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::task::spawn_local(async move {
            while let Ok((mut tcp, _)) = listener.accept().await {
                tokio::task::spawn_local(async move {
                    let mut request = [0; 4096];
                    while let Ok(1..) = tcp.read(&mut request).await {
                        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nproxied";
                        let _ = tcp.write_all(answer).await;
                    }
                });
            }
        });
        address
    }

    async fn get(client: &mut TcpStream, extra: &str) -> String {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{extra}\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = [0; 4096];
        let count = client.read(&mut answer).await.unwrap();
        let text = std::str::from_utf8(&answer[..count]).unwrap();
        text.rsplit("\r\n").next().unwrap().to_owned()
    }

    fn run(
        mode: &str,
        refuse: Option<fn() -> Declined>,
        test: impl AsyncFnOnce(Rc<Worker>, Rc<Fake>),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let fake = Rc::new(Fake {
                refuse: Cell::new(refuse),
                is_ambiguous: Cell::new(false),
                handed: Cell::new(0),
                worker: RefCell::new(None),
            });
            let worker = worker(origin().await, mode, &fake);
            test(worker.clone(), fake.clone()).await;
            // They own each other; the meter records its counters when it is dropped.
            fake.worker.take();
        });
    }

    fn fallbacks(worker: &Worker, why: Fallback) -> u64 {
        worker.meter.value(unlade_metrics::Event::Fallback(why))
    }

    #[test]
    fn always_hands_over_and_the_connection_comes_home() {
        run("always", None, async |worker, fake| {
            let mut client = serve(&worker).await;
            for _ in 0..3 {
                assert_eq!(get(&mut client, "").await, "direct");
            }
            assert_eq!(fake.handed.get(), 3);
            assert_eq!(worker.clients.total(), 1);
            // A request that needs a proxy stays here, on the same connection.
            let upgrade = "Connection: upgrade\r\nUpgrade: websocket\r\n";
            assert_eq!(get(&mut client, upgrade).await, "proxied");
            assert_eq!(fallbacks(&worker, Fallback::Request), 1);
            let mode = unlade_metrics::Mode::Offload;
            assert_eq!(worker.meter.value(unlade_metrics::Event::Request(mode)), 3);
        });
    }

    #[test]
    fn what_comes_back_unmoved_is_proxied() {
        run("always", Some(Declined::outbox_full), async |worker, fake| {
            let mut client = serve(&worker).await;
            assert_eq!(get(&mut client, "").await, "proxied");
            assert_eq!(fallbacks(&worker, Fallback::Overloaded), 1);
            fake.refuse.set(None);
            assert_eq!(get(&mut client, "").await, "direct");
        });
    }

    #[test]
    fn off_and_a_worker_without_means_proxy() {
        run("off", None, async |worker, fake| {
            let mut client = serve(&worker).await;
            assert_eq!(get(&mut client, "").await, "proxied");
            assert_eq!(fake.handed.get(), 0);
        });
        run("always", None, async |worker, _| {
            *worker.offload.mover.borrow_mut() = None;
            let mut client = serve(&worker).await;
            assert_eq!(get(&mut client, "").await, "proxied");
            assert_eq!(fallbacks(&worker, Fallback::Unsupported), 1);
        });
    }

    #[test]
    fn auto_proxies_what_is_small_and_hands_over_what_is_large() {
        run("auto", None, async |worker, fake| {
            // Costs are measured with the clock: this cost is larger than any pause of the
            // machine.
            worker.offload.learn_migration(0, false, Duration::from_secs(1), true);
            let mut client = serve(&worker).await;
            for _ in 0..20 {
                assert_eq!(get(&mut client, "Connection: close\r\n").await, "proxied");
                client = serve(&worker).await;
            }
            assert_eq!(fake.handed.get(), 0);
            // As if servers had reported what they sent.
            let key = RequestKey::new(0, "GET", "/", false);
            for _ in 0..20 {
                worker.offload.learn_returned(key, 1, 100 << 30, LeaveReason::Done);
            }
            assert_eq!(get(&mut client, "").await, "direct");
        });
    }

    #[test]
    fn a_returned_request_finds_its_place() {
        run("always", None, async |worker, _| {
            let origin = ConnOrigin { listener: 0, requests: 7 };
            let input = b"GET /a HTTP/1.1\r\nHost: objects.example:80\r\n\r\n";
            let candidate = place_returned(&worker, input, origin).unwrap();
            assert_eq!((candidate.route, candidate.server, candidate.origin), (0, 0, origin));
            assert!(place_returned(&worker, &input[..10], origin).is_none());
            assert!(place_returned(&worker, b"GET / HTTP/1.1\n", origin).is_none());
            // A request that needs a proxy is handled at home.
            let upgrade =
                b"GET /a HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n";
            assert!(place_returned(&worker, upgrade, origin).is_none());
        });
        run("off", None, async |worker, _| {
            let origin = ConnOrigin { listener: 0, requests: 7 };
            assert!(
                place_returned(&worker, b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n", origin).is_none()
            );
        });
    }

    /// A drain brings connections home: none leaves any more, and each response is the last one.
    #[test]
    fn while_the_process_drains_nothing_is_handed_over() {
        run("always", None, async |worker, fake| {
            let mut client = serve(&worker).await;
            assert_eq!(get(&mut client, "").await, "direct");
            worker.begin_drain();
            client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert!(answer.contains("\r\nConnection: close\r\n"), "{answer}");
            assert!(answer.ends_with("proxied"), "{answer}");
            assert_eq!(fake.handed.get(), 1);
            assert_eq!(fallbacks(&worker, Fallback::Draining), 1);
            drop(client);
            worker.all_ended().await;
        });
    }

    /// A server that was sent a request and became silent may have carried it out.
    #[test]
    fn a_request_in_doubt_is_sent_again_only_where_that_is_safe() {
        run("always", Some(Declined::channel_down), async |worker, fake| {
            fake.is_ambiguous.set(true);
            let ask = async |method: &str| {
                let mut client = serve(&worker).await;
                let request =
                    format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
                client.write_all(request.as_bytes()).await.unwrap();
                let mut answer = String::new();
                client.read_to_string(&mut answer).await.unwrap();
                assert!(answer.contains("\r\nConnection: close\r\n"), "{answer}");
                answer
            };
            for safe in ["GET", "PUT", "DELETE"] {
                assert!(ask(safe).await.ends_with("proxied"), "{safe}");
            }
            for other in ["POST", "PATCH"] {
                assert!(ask(other).await.starts_with("HTTP/1.1 502 "), "{other}");
            }
            assert_eq!(worker.meter.value(unlade_metrics::Event::RequestAmbiguous), 2);
            // Each is one fallback, with the reason of the failure.
            assert_eq!(fallbacks(&worker, Fallback::ChannelDown), 5);
            assert_eq!(fallbacks(&worker, Fallback::Draining), 0);
        });
    }
}
