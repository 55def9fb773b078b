//! Functions with a runtime of their own at the limits: libraries of the package, many bodies that
//! are open, stores that lose or refuse streamed bodies, and clients that are slow, idle or odd.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use system_tests::functions::{Answer, Gateway};
use system_tests::{needs, needs_functions};

/// A runtime that executes the event as Python. `answer(VALUE)` responds, `api(METHOD, PATH, BODY)` is
/// a request to the Runtime API, `s3(METHOD, PATH, BODY, HEADERS)` one to the endpoint, as an SDK
/// signs it.
const PYTHON: &str = r#"#!/usr/bin/python3
import http.client, json, os, socket, threading
API = os.environ["AWS_LAMBDA_RUNTIME_API"]
ENDPOINT = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=U/20260101/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=00"}

def exchange(address, method, path, body=None, headers={}):
    connection = http.client.HTTPConnection(address)
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    return response, response.read()

def api(method, path, body=None, headers={}):
    return exchange(API, method, "/2018-06-01/runtime/" + path, body, headers)

def s3(method, path, body=None, headers={}):
    return exchange(ENDPOINT, method, path, body, SIGNED | headers)

while True:
    response, event = api("GET", "invocation/next")
    ID = response.headers["Lambda-Runtime-Aws-Request-Id"]
    answer = lambda value: api("POST", f"invocation/{ID}/response", json.dumps(value))[0].status
    try:
        exec(json.loads(event), globals())
    except Exception as error:
        api("POST", f"invocation/{ID}/error", json.dumps({"errorMessage": repr(error)}))
"#;

/// A gateway with the runtime as a function.
fn python(config: &str, manifest: &str) -> Gateway {
    let gateway = Gateway::start(config);
    let output = gateway.try_deploy_bootstrap("python", manifest, PYTHON.as_bytes());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    gateway
}

fn run(gateway: &Gateway, code: &str) -> Answer {
    gateway.invoke("python", &json!(code))
}

fn answered(gateway: &Gateway, code: &str) -> Value {
    let answer = run(gateway, code);
    assert!(answer.is_success(), "{code}: {answer:?}");
    answer.json()
}

/// A library that ends init where it is loaded, and leaves a mark everywhere else.
const LIBRARY: &str = r#"
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) {
    char program[256] = {0};
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0) _exit(56);
    if (strstr(program, "/unlade")) _exit(57);
    int mark = open("/tmp/" NAME, O_CREAT | O_WRONLY | O_APPEND, 0644);
    if (write(mark, program, strlen(program)) < 0 || write(mark, "\n", 1) < 0) _exit(58);
    close(mark);
}
int shown(void) { return 7; }
"#;

fn compiled(directory: &Path, arguments: &[&str], source: &str) {
    let file = directory.join("source.c");
    std::fs::write(&file, source).unwrap();
    let output = Command::new("cc").args(arguments).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::remove_file(file).unwrap();
}

/// The processes of init below a process: their variables, and the files that are mapped into them.
fn of_init(gateway: u32) -> Vec<(Vec<u8>, String)> {
    let parent = |pid: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let is_below = |pid: u32| {
        std::iter::successors(Some(pid), |pid| parent(*pid)).take(64).any(|pid| pid == gateway)
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let found = pids.filter(|pid| is_below(*pid)).filter_map(|pid| {
        let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).ok();
        let words = String::from_utf8(read("cmdline")?).ok()?;
        let is_init = words.starts_with("/opt/unlade/init\0") || words.ends_with("\0--instance\0");
        is_init.then_some(())?;
        let maps = String::from_utf8(read("maps")?).ok()?;
        Some((read("environ")?, maps))
    });
    found.collect()
}

#[test]
fn libraries_of_a_package_are_loaded_into_bootstrap_and_never_into_init() {
    needs_functions!();
    needs!("cc");
    let gateway = Gateway::start("");
    let source = gateway.dir.path().join("package");
    std::fs::create_dir_all(source.join("lib")).unwrap();
    let library = ["-shared", "-fPIC", "source.c", "-o"];
    let made = |name: &str, file: &str| {
        let name = format!("-DNAME=\"{name}\"");
        compiled(&source, &[&library[..], &[file, &name]].concat(), LIBRARY);
    };
    made("preloaded", "preloaded.so");
    made("found", "lib/libshown.so");
    let program = "int shown(void); int main(void) { return shown() == 7 ? 0 : 1; }";
    compiled(&source, &["source.c", "-o", "show", "-Llib", "-lshown"], program);
    // Libraries that init needs itself, under their own names.
    let needed = Command::new("ldd").arg(system_tests::unlade()).output().unwrap();
    let needed = String::from_utf8(needed.stdout).unwrap();
    let names = needed.lines().filter_map(|line| Some(line.trim().split_once(" => ")?.0));
    let names: Vec<&str> = names.filter(|name| name.starts_with("libgcc_s.")).collect();
    for name in &names {
        made("named", &format!("lib/{name}"));
    }
    let bootstrap = source.join("bootstrap");
    let script = PYTHON.replacen("import http.client", "import subprocess, http.client", 1);
    std::fs::write(&bootstrap, script).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&bootstrap, mode).unwrap();
    let manifest =
        "[environment]\nLD_PRELOAD = \"/var/task/preloaded.so\"\nSECRET = \"of the function\"\n";
    let output = gateway.try_deploy_source("python", &source, manifest);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let code = "subprocess.run(['/var/task/show'], check=True); \
                answer([open('/tmp/preloaded').read(), open('/tmp/found').read(), os.environ['SECRET']])";
    let seen = answered(&gateway, code);
    assert!(seen[0].as_str().unwrap().contains("/python"), "{seen}");
    assert_eq!(seen[1], "/var/task/show\n");
    assert_eq!(seen[2], "of the function");
    let processes = of_init(gateway.pid());
    assert!(processes.len() >= 2, "the first process and the instance: {}", processes.len());
    for (environ, maps) in processes {
        assert_eq!(String::from_utf8_lossy(&environ), "");
        assert!(!maps.contains("/var/task") && maps.contains("libc"), "{maps}");
    }
}

#[test]
fn open_bodies_feed_as_many_uploads() {
    needs_functions!();
    let gateway = python("", "memory = \"512MiB\"\ntimeout = \"2m\"\n");
    gateway.bucket("box");
    let body: Vec<u8> = (0..2 << 20).map(|at: u32| (at / 7) as u8).collect();
    gateway.put("box", "in", &body);
    // All heads have come, and no body is read, before the first upload begins.
    let code = r#"
class Narrow(http.client.HTTPConnection):
    def connect(self):
        host, port = ENDPOINT.split(":")
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        self.sock.connect((host, int(port)))

opened, statuses = [], []
for number in range(64):
    connection = Narrow(ENDPOINT)
    connection.request("GET", "/box/in", headers=SIGNED)
    opened.append((connection, connection.getresponse()))
    assert opened[-1][1].status == 200

def feed(number):
    connection, response = opened[number]
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    upload = http.client.HTTPConnection(ENDPOINT)
    upload.putrequest("PUT", f"/box/out{number}")
    for name, value in SIGNED.items():
        upload.putheader(name, value)
    upload.putheader("Content-Length", response.headers["Content-Length"])
    upload.endheaders()
    while piece := response.read(65536):
        upload.send(piece)
    statuses.append(upload.getresponse().status)

threads = [threading.Thread(target=feed, args=[number]) for number in range(64)]
for thread in threads: thread.start()
for thread in threads: thread.join()
answer(statuses)
"#;
    assert_eq!(answered(&gateway, code), json!(vec![200; 64]));
    for number in 0..64 {
        let object = gateway.object("box", &format!("out{number}"));
        assert!(object.as_ref() == Some(&body), "{number}: {:?}", object.map(|body| body.len()));
    }
}

/// The reaction of a store to bodies in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunks {
    /// It answers 501, behind the body if the key is `late`.
    Unknown,
    /// It closes the connection within the body, this number of times.
    Cut(u32),
}

/// A store of objects that takes PUT only.
struct Store {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

struct State {
    chunks: Chunks,
    /// Requests with a body in chunks.
    chunked: u32,
    objects: BTreeMap<String, Vec<u8>>,
}

impl Store {
    fn start(chunks: Chunks) -> Store {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State { chunks, chunked: 0, objects: BTreeMap::new() }));
        let shared = state.clone();
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                std::thread::spawn(move || served(&shared, stream));
            }
        });
        Store { address, state }
    }

    fn config(&self) -> String {
        format!(
            "[store]\nendpoint = \"http://{}\"\ncredentials = {{ from = \"keys\", \
             access_key_id = \"a\", secret_access_key = \"b\" }}\n",
            self.address
        )
    }

    fn object(&self, path: &str) -> Option<Vec<u8>> {
        self.state.lock().unwrap().objects.get(path).cloned()
    }

    fn chunked(&self) -> u32 {
        self.state.lock().unwrap().chunked
    }
}

/// Serves one connection, one request.
fn served(state: &Mutex<State>, stream: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let head = head.to_ascii_lowercase();
    let field = |name: &str| {
        let name = format!("\r\n{name}:");
        head.split_once(&name)
            .and_then(|(_, rest)| Some(rest.split_once("\r\n")?.0.trim().to_owned()))
    };
    let say = |mut stream: &TcpStream, status: &str, body: &str| {
        let length = body.len();
        let fields = format!("etag: \"e\"\r\nconnection: close\r\ncontent-length: {length}");
        write!(stream, "HTTP/1.1 {status}\r\n{fields}\r\n\r\n{body}")
    };
    let is_chunked = field("x-amz-content-sha256").is_some_and(|sum| sum.starts_with("streaming-"));
    let (mut is_unknown, mut is_cut) = (false, false);
    if is_chunked {
        let mut state = state.lock().unwrap();
        state.chunked += 1;
        match state.chunks {
            Chunks::Unknown => is_unknown = true,
            Chunks::Cut(times) => is_cut = state.chunked <= times,
        }
    }
    let unknown = "<Error><Code>NotImplemented</Code><Message>no chunks</Message></Error>";
    if is_unknown && !path.contains("late") {
        return say(reader.get_ref(), "501 Not Implemented", unknown);
    }
    if field("expect").is_some() {
        reader.get_ref().write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    let length: usize = field("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    // Nearly all of it, so that more than is kept has been sent.
    let mut body = vec![0; if is_cut { length - (1 << 16) } else { length }];
    reader.by_ref().read_exact(&mut body)?;
    if is_unknown {
        return say(reader.get_ref(), "501 Not Implemented", unknown);
    }
    if is_cut {
        return Ok(());
    }
    let body = if is_chunked { decoded(&body) } else { body };
    state.lock().unwrap().objects.insert(path, body);
    say(reader.get_ref(), "200 OK", "")
}

/// The object in `aws-chunked`.
fn decoded(mut body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let end = body.windows(2).position(|pair| pair == b"\r\n").expect("a size");
        let line = String::from_utf8_lossy(&body[..end]).into_owned();
        let size = usize::from_str_radix(line.split(';').next().unwrap(), 16).expect("hexadecimal");
        if size == 0 {
            return out;
        }
        out.extend_from_slice(&body[end + 2..end + 2 + size]);
        body = &body[end + 2 + size + 2..];
    }
}

/// Uploads as an SDK does: a request with a status of a passing failure is made again.
const UPLOAD: &str = r#"
def upload(key, count):
    statuses = []
    body = bytes(at // 7 & 255 for at in range(1 << 16)) * (count >> 16)
    while not statuses or (statuses[-1] in (500, 503) and len(statuses) < 5):
        statuses.append(s3("PUT", "/box/" + key, body)[0].status)
    return statuses
"#;

fn uploaded(count: usize) -> Vec<u8> {
    let piece: Vec<u8> = (0..1_usize << 16).map(|at| (at / 7) as u8).collect();
    piece.repeat(count >> 16)
}

#[test]
fn uploads_pass_to_a_store_that_knows_no_chunks() {
    needs_functions!();
    let store = Store::start(Chunks::Unknown);
    let gateway = python(&store.config(), "memory = \"128MiB\"\nwrites = \"sync\"\n");
    // 16 MiB are kept here.
    let code = format!("{UPLOAD}\nanswer(upload('small', 3 << 20))");
    assert_eq!(answered(&gateway, &code), json!([200]), "it is kept, and sent again");
    assert!(store.object("/box/small").unwrap() == uploaded(3 << 20));
    assert_eq!(store.chunked(), 1);
    // A store that says it behind the body has taken more than is kept.
    let code = format!("{UPLOAD}\nanswer(upload('late', 24 << 20))");
    assert_eq!(answered(&gateway, &code), json!([503, 200]), "the client sends it again");
    assert!(store.object("/box/late").unwrap() == uploaded(24 << 20));
    assert_eq!(store.chunked(), 2, "the second attempt is without chunks");
}

#[test]
fn uploads_pass_to_a_store_that_closes_connections() {
    needs_functions!();
    let store = Store::start(Chunks::Cut(2));
    let gateway = python(&store.config(), "memory = \"128MiB\"\nwrites = \"sync\"\n");
    let code = format!("{UPLOAD}\nanswer(upload('small', 3 << 20))");
    assert_eq!(answered(&gateway, &code), json!([200]), "it is kept, and sent again");
    assert!(store.object("/box/small").unwrap() == uploaded(3 << 20));
    assert_eq!(store.chunked(), 3);
    store.state.lock().unwrap().chunks = Chunks::Cut(4);
    let code = format!("{UPLOAD}\nanswer(upload('large', 24 << 20))");
    assert_eq!(answered(&gateway, &code), json!([503, 200]), "the client sends it again");
    assert!(store.object("/box/large").unwrap() == uploaded(24 << 20));
    assert_eq!(store.chunked(), 5);
}

#[test]
fn errors_and_results_that_are_too_long_or_break_off_are_told_apart() {
    needs_functions!();
    let gateway = python("", "");
    // A result or an error that breaks off, or whose length is none, is no end: the next one counts.
    let broken = r#"
host, port = API.split(":")
heads = ["Content-Length: 100\r\n\r\n{", "Content-Length: five\r\n\r\n{}",
    "Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}", "Content-Length: -1\r\n\r\n{}",
    "Transfer-Encoding: chunked\r\n\r\n5\r\n{", "Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n"]
said = []
for path in [f"invocation/{ID}/response", f"invocation/{ID}/error"]:
    for head in heads:
        raw = socket.create_connection((host, int(port)))
        raw.sendall(f"POST /2018-06-01/runtime/{path} HTTP/1.1\r\nHost: a\r\n{head}".encode())
        raw.shutdown(socket.SHUT_WR)
        # The connection ends, without an answer or with a refusal.
        reply = b"".join(iter(lambda: raw.recv(4096), b""))
        said.append(reply[9:12].decode())
answer(said)
"#;
    let said = answered(&gateway, broken);
    let said = said.as_array().unwrap();
    assert_eq!(said.len(), 12);
    assert!(said.iter().all(|code| ["", "400"].contains(&code.as_str().unwrap())), "{said:?}");
    // An error that is too long is the function's error still, not a response that is too long.
    let long = r#"
kind = {"Lambda-Runtime-Function-Error-Type": "Mine.Long"}
code = api("POST", f"invocation/{ID}/error", "x" * (256 * 1024 + 1), kind)[0].status
open("/tmp/code", "w").write(str(code))
"#;
    let answer = run(&gateway, long);
    assert_eq!(answer.error(), "Mine.Long", "{answer:?}");
    assert!(answer.json()["errorMessage"].as_str().unwrap().contains("262144"), "{answer:?}");
    assert_eq!(answered(&gateway, "answer(open('/tmp/code').read())"), json!("413"));
    let most = "api('POST', f'invocation/{ID}/error', 'x' * (256 * 1024))";
    assert_eq!(run(&gateway, most).error(), "Runtime.Unknown");
    assert_eq!(run(&gateway, "answer('x' * (6 << 20))").error(), "Function.ResponseSizeTooLarge");
}

#[test]
fn an_error_of_a_start_that_is_too_long_is_refused_and_told() {
    needs_functions!();
    let gateway = Gateway::start("check_imports = false\n");
    // It fails at its first start in each instance, and keeps /tmp.
    let start = r#"
if not os.path.exists("/tmp/code"):
    kind = {"Lambda-Runtime-Function-Error-Type": "Mine.Start"}
    response, _ = api("POST", "init/error", "x" * (256 * 1024 + 1), kind)
    open("/tmp/code", "w").write(str(response.status))
    raise SystemExit(1)

while True:"#;
    let bootstrap = PYTHON.replacen("\nwhile True:", start, 1);
    let manifest = "concurrency = 1\n";
    let output = gateway.try_deploy_bootstrap("python", manifest, bootstrap.as_bytes());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let first = run(&gateway, "answer(1)");
    // The error belongs to the invocation that waits for it; without one the start is repeated.
    assert!(first.is_success() || first.error() == "Mine.Start", "{first:?}");
    assert_eq!(answered(&gateway, "answer(open('/tmp/code').read())"), json!("413"));
}

/// Requests that the endpoint does not offer, or cannot serve now.
#[test]
fn what_is_not_offered_or_has_no_room_is_refused_clearly() {
    needs_functions!();
    let gateway = python("", "timeout = \"1m\"\n");
    gateway.bucket("box");
    let other = r#"
OTHER = {name: value.replace("/s3/", "/dynamodb/") for name, value in SIGNED.items()}
OTHER["Content-Type"] = "application/x-amz-json-1.0"
def told(reply):
    response, body = reply
    return [response.status, response.headers["Retry-After"], body.decode()]
"#;
    let odd = r#"
answer([told(s3("OPTIONS", "/box/k")), told(s3("GET", "/box/k?uploadId=u&max-parts=x")),
    told(exchange(ENDPOINT, "OPTIONS", "/", None, OTHER)),
    told(exchange(ENDPOINT, "GET", "/", None, {"Authorization": "Bearer x"}))])
"#;
    let said = answered(&gateway, &format!("{other}{odd}"));
    let due = [
        (501, "<Code>NotImplemented</Code>"),
        (400, "<Code>InvalidArgument</Code>"),
        (501, "\"__type\":\"NotImplemented\""),
        (501, "\"__type\":\"UnsupportedOperation\""),
    ];
    for (at, (status, text)) in due.into_iter().enumerate() {
        assert_eq!((&said[at][0], &said[at][1]), (&json!(status), &Value::Null), "{said}");
        assert!(said[at][2].as_str().unwrap().contains(text), "{said}");
    }
    // Each connection has a request whose body does not come.
    let busy = r#"
def occupied(address, path):
    host, port = address.split(":")
    held = []
    for number in range(128):
        one = socket.create_connection((host, int(port)))
        head = f"{path.format(number)} HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in SIGNED.items())
        one.sendall(f"{head}\r\n".encode())
        held.append(one)
    return held

held = occupied(ENDPOINT, "PUT /box/k{}")
seen = [told(s3("PUT", "/box/more", b"x" * 1000000)),
    told(exchange(ENDPOINT, "POST", "/", b"{}", OTHER))]
for one in held: one.sendall(b"x")
seen.append([one.recv(12).decode() for one in held])
# The others are idle now.
seen.append(s3("GET", "/box/k127")[1].decode())
held = occupied(API, "POST /2018-06-01/runtime/init/error?{}")
seen.append(told(api("GET", "invocation/next")))
for one in held: one.close()
answer(seen)
"#;
    let said = answered(&gateway, &format!("{other}{busy}"));
    let due = [(0, "<Code>SlowDown</Code>"), (1, "\"__type\":\"SlowDown\""), (4, "are busy")];
    for (at, text) in due {
        assert_eq!((&said[at][0], &said[at][1]), (&json!(503), &json!("1")), "{said}");
        assert!(said[at][2].as_str().unwrap().contains(text), "{said}");
    }
    assert_eq!(said[2], json!(vec!["HTTP/1.1 200"; 128]));
    assert_eq!(said[3], "x");
}

#[test]
fn idle_clients_and_odd_header_fields_are_served() {
    needs_functions!();
    let gateway = python("", "");
    gateway.bucket("box");
    let idle = r#"
held = []
for address in [API, ENDPOINT]:
    host, port = address.split(":")
    # As many as are allowed: some have sent nothing, some a part of a request, some a whole one.
    for number in range(128):
        one = socket.create_connection((host, int(port)))
        if number % 3 == 1: one.sendall(b"GET /bo")
        if number % 3 == 2:
            one.sendall(b"GET /none HTTP/1.1\r\nHost: a\r\n\r\n")
            one.recv(1)
        held.append(one)
put = s3("PUT", "/box/k", b"body", {"x-amz-meta-a": "caf\xe9"})[0].status
head, _ = s3("HEAD", "/box/k")
answer([put, head.headers["x-amz-meta-a"]])
"#;
    // A store shows `café` in the form of RFC 2047, as S3 does.
    assert_eq!(answered(&gateway, idle), json!([200, "=?UTF-8?B?Y2Fmw6k=?="]));
    let attributes = r#"
raw = http.client.HTTPConnection(ENDPOINT)
raw.putrequest("GET", "/box/k?attributes")
for name, value in [*SIGNED.items(), ("x-amz-object-attributes", "ObjectSize"), ("x-amz-object-attributes", "StorageClass")]:
    raw.putheader(name, value)
raw.endheaders()
response = raw.getresponse()
answer([response.status, response.read().decode()])
"#;
    let seen = answered(&gateway, attributes);
    let text = seen[1].as_str().unwrap();
    assert!(text.contains("<ObjectSize>4</ObjectSize>"), "{seen}");
}
