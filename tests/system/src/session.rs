//! Random client sessions: requests, timing of writes and reads, and the end of the connection.

use std::fmt;
use std::time::Duration;
use unlade_testkit::Random;

/// Maximum number of batches of a session.
const BATCHES_MAX: usize = 5;
/// Maximum number of requests of one batch.
const DEPTH_MAX: usize = 16;
/// Maximum size of a body that is sent among other requests.
const SMALL_BODY_BYTES_MAX: usize = 2_000;
/// Maximum size of a body that is sent alone.
const BODY_BYTES_MAX: usize = 200_000;
/// Longest pause between two batches that does not exceed the servers' idle time.
const PAUSE_MS_MAX: usize = 40;
/// Range of pauses longer than the second after which a server gives an idle connection back.
const IDLE_MS: (usize, usize) = (1_100, 700);
/// Placeholder of the prefix of the session's own names.
pub const OWN: &str = "{own}";
/// Placeholder of the host name.
pub const HOST: &str = "{host}";

/// A shared, read-only object.
#[derive(Debug, Clone)]
pub struct Object {
    /// Path in a URL.
    pub path: String,
    /// Content.
    pub bytes: Vec<u8>,
    /// Its entity tag, quotes included.
    pub etag: String,
}

/// Expected response, besides being equal for both front ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Oracle {
    /// No further expectation.
    Any,
    /// 200 with the object of this index.
    Whole(usize),
    /// 200 with these bytes.
    Content(Vec<u8>),
    /// 206 with this part of the object of this index.
    Part(usize, std::ops::Range<usize>),
    /// This status.
    Status(u16),
}

/// One request.
#[derive(Debug, Clone)]
pub struct Request {
    /// Head, with the placeholders [`OWN`] and [`HOST`].
    pub head: String,
    /// Body.
    pub body: Vec<u8>,
    /// The response never has a body.
    pub head_only: bool,
    /// The request uses a name of the session's own, whose time and tag differ in each run.
    pub own: bool,
    /// The request is invalid: the connection ends with the response.
    pub bad: bool,
    /// Expected response.
    pub oracle: Oracle,
}

impl Request {
    fn new(head: String) -> Request {
        Request {
            head,
            body: Vec::new(),
            head_only: false,
            own: false,
            bad: false,
            oracle: Oracle::Any,
        }
    }

    /// Returns method and target, for messages.
    pub fn title(&self) -> String {
        let line = self.head.split("\r\n").next().unwrap_or_default();
        let extra: Vec<&str> = self.head.split("\r\n").skip(1).filter(|l| !l.is_empty()).collect();
        let extra: Vec<&str> = extra.into_iter().filter(|l| !l.starts_with("Host:")).collect();
        let mut title: String = format!("{line} [{}]", extra.join("; "));
        if title.len() > 160 {
            title = format!("{}… ({} bytes)", &title[..120], self.head.len());
        }
        format!("{title}{}", if self.body.is_empty() { "" } else { " +body" })
    }
}

/// Pipelined requests.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Requests in order.
    pub requests: Vec<Request>,
    /// Pauses of the write: position in thousandths of the whole, and length in ms.
    pub splits: Vec<(usize, u64)>,
    /// Pause before the batch is written.
    pub before: Duration,
}

/// End of a session by the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// Closes its direction after the last response and waits for the peer's end.
    Finish,
    /// Closes its direction after the last request, before it reads.
    HalfClose,
    /// The last request has `Connection: close`.
    Said,
    /// The last request is invalid.
    Bad,
    /// Resets after this number of bytes of the last batch's responses.
    Abort(usize),
    /// Closes with unread input after this number of bytes of the last batch's responses.
    Walk(usize),
    /// Closes at once after the last response.
    Drop,
}

/// One session.
#[derive(Debug, Clone)]
pub struct Session {
    /// Batches in order.
    pub batches: Vec<Batch>,
    /// End of the session.
    pub leave: Leave,
    /// Uses TLS.
    pub tls: bool,
    /// Uses TLS 1.2, if it uses TLS.
    pub tls12: bool,
    /// Uses IPv6.
    pub v6: bool,
    /// Size of a small receive buffer; None for the default.
    pub receive_buffer_bytes: Option<usize>,
    /// Number of bytes of a read and the pause after it; None for a fast reader.
    pub slow: Option<(usize, Duration)>,
}

/// Kinds of generated sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manners {
    /// All kinds.
    Any,
    /// Only sessions that cause neither resets nor retransmissions.
    Orderly,
}

impl Session {
    /// Generates a session.
    pub fn random(random: &mut Random, objects: &[Object], manners: Manners) -> Session {
        let leave = leave(random, manners);
        let count = 1 + random.below(BATCHES_MAX);
        let mut own = OwnNames::default();
        let mut batches: Vec<Batch> =
            (0..count).map(|_| batch(random, objects, &mut own)).collect();
        let idle = random.percent(4);
        for (number, batch) in batches.iter_mut().enumerate() {
            let pause_ms = match (idle && number > 0, random.percent(50)) {
                (true, _) => IDLE_MS.0 + random.below(IDLE_MS.1),
                (false, true) => random.below(PAUSE_MS_MAX),
                (false, false) => 0,
            };
            batch.before = Duration::from_millis(pause_ms as u64);
        }
        let last = batches.last_mut();
        match (last.and_then(|batch| batch.requests.last_mut()), leave) {
            (Some(last), Leave::Said) => last.head = with_header(&last.head, "Connection: close"),
            (Some(last), Leave::Bad) => *last = bad(random),
            _ => {}
        }
        let tls = random.percent(50);
        let small = manners == Manners::Any && random.percent(15);
        let slow = small && random.percent(60);
        Session {
            batches,
            leave,
            tls,
            tls12: tls && random.percent(25),
            v6: random.percent(40),
            receive_buffer_bytes: small.then(|| 2_048 << random.below(4)),
            slow: slow.then(|| {
                let pause = Duration::from_millis(1 + random.below(4) as u64);
                (1_024 << random.below(4), pause)
            }),
        }
    }
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = ["plain", "TLS 1.3", "TLS 1.2"];
        let tls = tls[usize::from(self.tls) + usize::from(self.tls12)];
        write!(f, "{tls}, IPv{}, leaves by {:?}", if self.v6 { 6 } else { 4 }, self.leave)?;
        if let Some(bytes) = self.receive_buffer_bytes {
            write!(f, ", SO_RCVBUF {bytes}")?;
        }
        if let Some((bytes, pause)) = self.slow {
            write!(f, ", reads {bytes} and waits {pause:?}")?;
        }
        for (number, batch) in self.batches.iter().enumerate() {
            write!(f, "\n  batch {number}")?;
            if !batch.before.is_zero() {
                write!(f, " after {:?}", batch.before)?;
            }
            if !batch.splits.is_empty() {
                write!(f, ", written in pieces (thousandths, ms) {:?}", batch.splits)?;
            }
            for request in &batch.requests {
                write!(f, "\n    {}", request.title())?;
            }
        }
        Ok(())
    }
}

/// Returns true if `UNLADE_HARD=1` includes clients that pipeline or half-close. They are not yet
/// served reliably while they are relayed ("Not promised" in docs/specification/connection.md).
fn hard() -> bool {
    std::env::var_os("UNLADE_HARD").is_some()
}

fn leave(random: &mut Random, manners: Manners) -> Leave {
    let half_close = if hard() { Leave::HalfClose } else { Leave::Finish };
    let orderly = [Leave::Finish, Leave::Finish, half_close, Leave::Said];
    if manners == Manners::Orderly || random.percent(60) {
        return random.pick(&orderly);
    }
    let magnitude = 4 + random.below(14);
    let bytes = 1 + random.below(1 << magnitude);
    let rest =
        [Leave::Bad, Leave::Bad, Leave::Abort(bytes), Leave::Walk(bytes), Leave::Drop, Leave::Drop];
    random.pick(&rest)
}

fn batch(random: &mut Random, objects: &[Object], own: &mut OwnNames) -> Batch {
    let single = random.percent(50) || !hard();
    let depth = if single { 1 } else { 1 + random.below(DEPTH_MAX) };
    let alone = depth == 1;
    let requests = (0..depth).map(|_| request(random, objects, own, alone)).collect();
    let splits = match random.percent(30) {
        true => (0..1 + random.below(3))
            .map(|_| (random.below(1000), random.below(12) as u64))
            .collect(),
        false => Vec::new(),
    };
    Batch { requests, splits, before: Duration::ZERO }
}

/// Objects that the session has stored under its own names. A name that was read is not changed any
/// more: the servers share a directory, and each caches an object for a second.
#[derive(Default)]
struct OwnNames {
    content: Vec<Option<Vec<u8>>>,
    unread: Vec<usize>,
}

impl OwnNames {
    /// Returns a name that may still be changed.
    fn changeable(&mut self, random: &mut Random) -> usize {
        if self.unread.is_empty() || random.percent(30) {
            self.unread.push(self.content.len());
            self.content.push(None);
        }
        random.pick(&self.unread)
    }
}

fn request(random: &mut Random, objects: &[Object], own: &mut OwnNames, alone: bool) -> Request {
    match random.below(100) {
        0..45 => get(random, objects),
        45..58 => range(random, objects),
        58..65 => head(random, objects),
        65..74 => conditional(random, objects),
        74..80 => missing(random),
        80..82 => odd(random),
        _ => of_own(random, own, alone),
    }
}

/// Picks an object of up to 1 MiB, in most cases a small one.
fn pick_object(random: &mut Random, objects: &[Object]) -> usize {
    let most = [4 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20];
    let most = most[random.below(5).min(random.below(5))];
    loop {
        let number = random.below(objects.len());
        if objects[number].bytes.len() <= most {
            return number;
        }
    }
}

/// Returns header lines without an effect.
fn decoration(random: &mut Random) -> String {
    let lines = [
        "User-Agent: a client\r\n",
        "Accept: */*\r\n",
        "Accept-Encoding: identity\r\n",
        "X-Forwarded-For: 192.0.2.1\r\n",
        "Cookie: a=b; c=d\r\n",
        "Connection: keep-alive\r\n",
    ];
    let mut text: String =
        lines.iter().filter(|_| random.percent(15)).map(|line| line.to_string()).collect();
    if random.percent(3) {
        text.push_str(&format!("X-Long: {}\r\n", "x".repeat(random.below(6_000))));
    }
    text
}

fn plain(random: &mut Random, method: &str, target: &str, extra: &str) -> Request {
    let decoration = decoration(random);
    Request::new(format!("{method} {target} HTTP/1.1\r\nHost: {HOST}\r\n{decoration}{extra}\r\n"))
}

fn with_header(head: &str, line: &str) -> String {
    let without = head.replace("Connection: keep-alive\r\n", "");
    match without.strip_suffix("\r\n\r\n") {
        Some(start) => format!("{start}\r\n{line}\r\n\r\n"),
        None => without,
    }
}

fn get(random: &mut Random, objects: &[Object]) -> Request {
    let number = pick_object(random, objects);
    let query = if random.percent(10) { "?a=1&b=%20" } else { "" };
    let target = match random.percent(4) {
        true => format!("http://{HOST}{}{query}", objects[number].path),
        false => format!("{}{query}", objects[number].path),
    };
    Request { oracle: Oracle::Whole(number), ..plain(random, "GET", &target, "") }
}

fn head(random: &mut Random, objects: &[Object]) -> Request {
    let number = pick_object(random, objects);
    let request = plain(random, "HEAD", &objects[number].path, "");
    Request { head_only: true, oracle: Oracle::Status(200), ..request }
}

fn range(random: &mut Random, objects: &[Object]) -> Request {
    let number = pick_object(random, objects);
    let Object { path, bytes, etag } = &objects[number];
    let length = bytes.len();
    if length < 4 || random.percent(20) {
        let odd = [
            format!("bytes={}-", length + 10),
            "bytes=5-2".to_owned(),
            "bytes=0-0,2-3".to_owned(),
            "pages=1-2".to_owned(),
            "bytes=-0".to_owned(),
            "bytes=a-b".to_owned(),
        ];
        let range = format!("Range: {}\r\n", random.pick(&odd));
        return plain(random, "GET", path, &range);
    }
    let first = random.below(length);
    let last = first + random.below(length - first);
    let (text, part) = match random.below(4) {
        0 => (format!("{first}-"), first..length),
        1 => (format!("-{}", length - first), first..length),
        2 => (format!("{first}-{}", length + 100), first..length),
        _ => (format!("{first}-{last}"), first..last + 1),
    };
    let if_range = match random.below(10) {
        0 => format!("If-Range: {etag}\r\n"),
        1 => {
            let extra = format!("Range: bytes={text}\r\nIf-Range: \"other\"\r\n");
            return Request { oracle: Oracle::Whole(number), ..plain(random, "GET", path, &extra) };
        }
        _ => String::new(),
    };
    let extra = format!("Range: bytes={text}\r\n{if_range}");
    Request { oracle: Oracle::Part(number, part), ..plain(random, "GET", path, &extra) }
}

fn conditional(random: &mut Random, objects: &[Object]) -> Request {
    let number = pick_object(random, objects);
    let Object { path, etag, .. } = &objects[number];
    let (line, oracle) = match random.below(6) {
        0 => (format!("If-None-Match: {etag}"), Oracle::Status(304)),
        1 => ("If-None-Match: \"other\"".to_owned(), Oracle::Whole(number)),
        2 => (format!("If-Match: {etag}"), Oracle::Whole(number)),
        3 => ("If-Match: \"other\"".to_owned(), Oracle::Status(412)),
        4 => ("If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT".to_owned(), Oracle::Whole(number)),
        _ => ("If-Unmodified-Since: Sun, 06 Nov 1994 08:49:37 GMT".to_owned(), Oracle::Status(412)),
    };
    Request { oracle, ..plain(random, "GET", path, &format!("{line}\r\n")) }
}

fn missing(random: &mut Random) -> Request {
    let target = random.pick(&["/nothing", "/set/99", "/4KiB/below", "/set/", "/", "/set/00%00"]);
    let head_only = random.percent(20);
    let method = if head_only { "HEAD" } else { "GET" };
    Request { head_only, ..plain(random, method, target, "") }
}

/// Returns a request that is answered without an object.
fn odd(random: &mut Random) -> Request {
    let method = random.pick(&["OPTIONS", "POST", "PATCH", "BREW"]);
    let extra = if method == "OPTIONS" { "" } else { "Content-Length: 0\r\n" };
    plain(random, method, "/4KiB", extra)
}

/// Returns a PUT, GET or DELETE of a name of the session's own.
fn of_own(random: &mut Random, own: &mut OwnNames, alone: bool) -> Request {
    let target = |number: usize| format!("/{OWN}-{number}.txt");
    let made = match random.below(10) {
        0..5 => {
            let number = own.changeable(random);
            let most = if alone { BODY_BYTES_MAX } else { SMALL_BODY_BYTES_MAX };
            let bytes = random.below(most);
            let body = random.bytes(bytes);
            let replaced = own.content[number].replace(body.clone()).is_some();
            let status = Oracle::Status(if replaced { 204 } else { 201 });
            Request { oracle: status, ..put(random, &target(number), body) }
        }
        5..9 if !own.content.is_empty() => {
            let number = random.below(own.content.len());
            own.unread.retain(|other| *other != number);
            let oracle = match &own.content[number] {
                Some(content) => Oracle::Content(content.clone()),
                None => Oracle::Status(404),
            };
            Request { oracle, ..plain(random, "GET", &target(number), "") }
        }
        _ => {
            let number = own.changeable(random);
            let was_there = own.content[number].take().is_some();
            let status = Oracle::Status(if was_there { 204 } else { 404 });
            Request { oracle: status, ..plain(random, "DELETE", &target(number), "") }
        }
    };
    Request { own: true, ..made }
}

fn put(random: &mut Random, target: &str, body: Vec<u8>) -> Request {
    if random.percent(30) {
        let coded = chunked(random, &body);
        let line = "Transfer-Encoding: chunked\r\n";
        return Request { body: coded, ..plain(random, "PUT", target, line) };
    }
    let length = format!("Content-Length: {}\r\n", body.len());
    Request { body, ..plain(random, "PUT", target, &length) }
}

fn chunked(random: &mut Random, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = body;
    while !rest.is_empty() {
        let (chunk, left) = rest.split_at(1 + random.below(rest.len()));
        let extension = if random.percent(20) { ";a=b" } else { "" };
        out.extend(format!("{:x}{extension}\r\n", chunk.len()).into_bytes());
        out.extend(chunk);
        out.extend(b"\r\n");
        rest = left;
    }
    out.extend(b"0\r\n");
    if random.percent(20) {
        out.extend(b"X-Trailer: 1\r\n");
    }
    out.extend(b"\r\n");
    out
}

/// Returns a request that must be refused: request smuggling or invalid HTTP.
fn bad(random: &mut Random) -> Request {
    let long = "x".repeat(20_000);
    let many = "A: b\r\n".repeat(150);
    let host = format!("Host: {HOST}\r\n");
    let all = [
        format!("GET /4KiB HTTP/1.1\n{host}\r\n"),
        format!("GET /4KiB HTTP/1.1\r\n{host}A: b\n\r\n"),
        format!("GET /4KiB HTTP/1.1\r\n{host}A: b\r\n c\r\n\r\n"),
        format!("GET /4KiB HTTP/1.1\r\n{host}A : b\r\n\r\n"),
        format!("PUT /x HTTP/1.1\r\n{host}Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"),
        format!("PUT /x HTTP/1.1\r\n{host}Content-Length: 3, 3\r\n\r\nabc"),
        format!("PUT /x HTTP/1.1\r\n{host}Content-Length: +3\r\n\r\nabc"),
        format!("PUT /x HTTP/1.1\r\n{host}Content-Length: -3\r\n\r\nabc"),
        format!("PUT /x HTTP/1.1\r\n{host}Content-Length: 99999999999999999999\r\n\r\nabc"),
        format!(
            "PUT /x HTTP/1.1\r\n{host}Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n\
             0\r\n\r\n"
        ),
        format!("PUT /x HTTP/1.1\r\n{host}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
        format!("PUT /x HTTP/1.1\r\n{host}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
        format!("PUT /x HTTP/1.0\r\n{host}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        format!("PUT /x HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n"),
        format!("PUT /x HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n"),
        format!("PUT /x HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n"),
        "GET /4KiB HTTP/1.1\r\n\r\n".to_owned(),
        format!("GET /4KiB HTTP/1.1\r\n{host}{host}\r\n"),
        format!("GET /4KiB HTTP/2.0\r\n{host}\r\n"),
        format!("GET /4KiB HTTP/9\r\n{host}\r\n"),
        format!("GET /4KiB\r\n{host}\r\n"),
        format!("GET  /4KiB HTTP/1.1\r\n{host}\r\n"),
        format!("G(T /4KiB HTTP/1.1\r\n{host}\r\n"),
        format!("GET 4KiB HTTP/1.1\r\n{host}\r\n"),
        format!("GET /4KiB HTTP/1.1\r\n{host}: b\r\n\r\n"),
        format!("GET /4KiB HTTP/1.1\r\n{host}X: {long}\r\n\r\n"),
        format!("GET /{long} HTTP/1.1\r\n{host}\r\n"),
        format!("GET /4KiB HTTP/1.1\r\n{host}{many}\r\n"),
        "\u{1}\u{2}\u{3}\u{4}\r\n\r\n".to_owned(),
        format!("GET /4KiB HTTP/1.1\r\n{host}Expect: miracles\r\n\r\n"),
    ];
    Request { bad: true, ..Request::new(random.pick(&all)) }
}
