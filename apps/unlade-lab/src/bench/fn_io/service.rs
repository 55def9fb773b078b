//! A server of a few operations of DynamoDB and SQS, in the JSON protocol that botocore uses: the peer
//! of functions that call services. It keeps what it is given, and checks no signature.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use md5::{Digest, Md5};
use serde_json::{Value, json};

/// Longest head of a request, most fields in it, and longest body.
const HEAD_BYTES_MAX: usize = 16 * 1024;
const FIELDS_MAX: usize = 64;
const BODY_BYTES_MAX: usize = 1 << 20;

/// All that was written.
#[derive(Debug, Default)]
pub struct Kept {
    /// Items by table and the text of their `id`.
    pub items: BTreeMap<(String, String), Value>,
    /// Bodies of messages, in their order.
    pub messages: Vec<String>,
}

/// The server; it ends when this does.
#[derive(Debug)]
pub struct Service {
    pub address: SocketAddr,
    kept: Arc<Mutex<Kept>>,
    is_ending: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Service {
    /// Listens on a free port of the loopback interface.
    ///
    /// # Errors
    /// The system's.
    pub fn start() -> Result<Service> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let kept = Arc::new(Mutex::new(Kept::default()));
        let is_ending = Arc::new(AtomicBool::new(false));
        let (shared, ending) = (Arc::clone(&kept), Arc::clone(&is_ending));
        let accepting = std::thread::spawn(move || accept(&listener, &shared, &ending));
        Ok(Service { address, kept, is_ending, accepting: Some(accepting) })
    }

    /// Uses what is kept.
    pub fn with<T>(&self, use_it: impl FnOnce(&mut Kept) -> T) -> T {
        use_it(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Relaxed);
        // A connection of its own makes `accept` return.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.accepting.take() {
            let _ = thread.join();
        }
    }
}

/// A thread a connection: there is one for each instance, or one for each worker.
fn accept(listener: &TcpListener, kept: &Arc<Mutex<Kept>>, is_ending: &AtomicBool) {
    let mut connections: Vec<(TcpStream, JoinHandle<()>)> = Vec::new();
    for stream in listener.incoming() {
        if is_ending.load(Ordering::Relaxed) {
            break;
        }
        connections.retain(|(_, thread)| !thread.is_finished());
        let Ok(mut stream) = stream else { continue };
        let Ok(own) = stream.try_clone() else { continue };
        let kept = Arc::clone(kept);
        let serve = move || {
            while let Ok(true) = exchange(&mut stream, &kept) {}
            // The other handle would keep the connection open.
            let _ = stream.shutdown(Shutdown::Both);
        };
        connections.push((own, std::thread::spawn(serve)));
    }
    for (stream, thread) in connections {
        let _ = stream.shutdown(Shutdown::Both);
        let _ = thread.join();
    }
}

/// A request.
#[derive(Debug)]
struct Asked {
    /// The last part of `x-amz-target`.
    operation: String,
    body: Vec<u8>,
}

/// One request and its answer; false where the connection has ended before a request.
fn exchange(stream: &mut TcpStream, kept: &Mutex<Kept>) -> Result<bool> {
    let Some(asked) = receive(stream)? else { return Ok(false) };
    let answered = answer(&asked, &mut kept.lock().unwrap_or_else(PoisonError::into_inner));
    let (status, value) = match answered {
        Ok(value) => ("200 OK", value),
        Err(error) => {
            let kind = "com.amazon.coral.service#ValidationException";
            ("400 Bad Request", json!({"__type": kind, "message": format!("{error:#}")}))
        }
    };
    let body = value.to_string();
    let mut sum = flate2::Crc::new();
    sum.update(body.as_bytes());
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: {}\r\n\
         x-amzn-RequestId: 00000000-0000-4000-8000-000000000000\r\nx-amz-crc32: {}\r\n\r\n",
        body.len(),
        sum.sum(),
    );
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat())?;
    Ok(true)
}

fn receive(stream: &mut TcpStream) -> Result<Option<Asked>> {
    let mut bytes = Vec::new();
    loop {
        if let Some((mut asked, head_bytes, length)) = head(&bytes)? {
            while bytes.len() < head_bytes + length {
                if !more(stream, &mut bytes)? {
                    bail!("the connection ended within a body");
                }
            }
            asked.body = bytes[head_bytes..head_bytes + length].to_vec();
            return Ok(Some(asked));
        }
        if bytes.len() > HEAD_BYTES_MAX {
            bail!("the head is too long");
        }
        if !more(stream, &mut bytes)? {
            return Ok(None);
        }
    }
}

fn more(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Result<bool> {
    let mut piece = [0; 16 * 1024];
    let count = stream.read(&mut piece)?;
    bytes.extend_from_slice(&piece[..count]);
    Ok(count > 0)
}

/// The request without its body, the bytes of its head, and of its body.
fn head(bytes: &[u8]) -> Result<Option<(Asked, usize, usize)>> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut parsed = httparse::Request::new(&mut fields);
    let httparse::Status::Complete(head_bytes) = parsed.parse(bytes)? else { return Ok(None) };
    let field = |name: &str| {
        let found = parsed.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name));
        found.map(|field| String::from_utf8_lossy(field.value).trim().to_owned())
    };
    let length = field("content-length").context("a request without Content-Length")?;
    let length: usize = length.parse().context("Content-Length")?;
    if length > BODY_BYTES_MAX {
        bail!("the body is too long");
    }
    let target = field("x-amz-target").context("a request without x-amz-target")?;
    let operation = target.rsplit('.').next().unwrap_or_default().to_owned();
    Ok(Some((Asked { operation, body: Vec::new() }, head_bytes, length)))
}

fn answer(asked: &Asked, kept: &mut Kept) -> Result<Value> {
    let request: Value = serde_json::from_slice(&asked.body).context("the request's JSON")?;
    let place = |item: &Value| -> Result<(String, String)> {
        let table = request["TableName"].as_str().context("no TableName")?;
        let id = item["id"]["S"].as_str().context("no key `id`")?;
        Ok((table.to_owned(), id.to_owned()))
    };
    match asked.operation.as_str() {
        "GetItem" => {
            let item = kept.items.get(&place(&request["Key"])?);
            Ok(item.map_or_else(|| json!({}), |item| json!({"Item": item})))
        }
        "PutItem" => {
            kept.items.insert(place(&request["Item"])?, request["Item"].clone());
            Ok(json!({}))
        }
        "SendMessage" => {
            request["QueueUrl"].as_str().context("no QueueUrl")?;
            let body = request["MessageBody"].as_str().context("no MessageBody")?;
            kept.messages.push(body.to_owned());
            let sum: String = Md5::digest(body).iter().map(|byte| format!("{byte:02x}")).collect();
            // A fixed identifier: answers of all modes are compared.
            let id = "11111111-2222-4333-8444-555555555555";
            Ok(json!({"MessageId": id, "MD5OfMessageBody": sum}))
        }
        other => bail!("`{other}` is no operation of this server"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(stream: &mut TcpStream, target: &str, body: &Value) -> (u16, Value) {
        let body = body.to_string();
        let request = format!(
            "POST / HTTP/1.1\r\nX-Amz-Target: {target}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        for part in request.as_bytes().chunks(50) {
            stream.write_all(part).unwrap();
        }
        let mut bytes = Vec::new();
        loop {
            assert!(more(stream, &mut bytes).unwrap(), "an answer comes");
            let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
            let mut parsed = httparse::Response::new(&mut fields);
            let httparse::Status::Complete(head_bytes) = parsed.parse(&bytes).unwrap() else {
                continue;
            };
            let field = |name: &str| -> usize {
                let found = parsed.headers.iter().find(|field| field.name == name).unwrap();
                String::from_utf8_lossy(found.value).parse().unwrap()
            };
            let Some(body) = bytes.get(head_bytes..head_bytes + field("Content-Length")) else {
                continue;
            };
            let mut sum = flate2::Crc::new();
            sum.update(body);
            assert_eq!(field("x-amz-crc32"), sum.sum() as usize);
            return (parsed.code.unwrap(), serde_json::from_slice(body).unwrap());
        }
    }

    #[test]
    fn it_keeps_what_it_is_given_and_refuses_the_rest() {
        let service = Service::start().unwrap();
        let mut stream = TcpStream::connect(service.address).unwrap();
        let (table, item) = ("DynamoDB_20120810", json!({"id": {"S": "a"}, "n": {"N": "1"}}));
        let put = json!({"TableName": "t", "Item": item});
        let get = |id: &str| json!({"TableName": "t", "Key": {"id": {"S": id}}});
        assert_eq!(ask(&mut stream, &format!("{table}.PutItem"), &put), (200, json!({})));
        let got = ask(&mut stream, &format!("{table}.GetItem"), &get("a"));
        assert_eq!(got, (200, json!({"Item": item})));
        assert_eq!(ask(&mut stream, &format!("{table}.GetItem"), &get("b")), (200, json!({})));
        let sent = json!({"QueueUrl": "http://q/1/q", "MessageBody": "hello"});
        let (status, told) = ask(&mut stream, "AmazonSQS.SendMessage", &sent);
        // RFC 1321 gives the sum of other texts; this one is of md5sum.
        let sum = json!("5d41402abc4b2a76b9719d911017c592");
        assert_eq!((status, &told["MD5OfMessageBody"]), (200, &sum));
        assert_eq!(service.with(|kept| kept.messages.clone()), ["hello"]);
        assert_eq!(ask(&mut stream, &format!("{table}.Scan"), &put).0, 400);
        assert_eq!(ask(&mut stream, &format!("{table}.PutItem"), &json!({})).0, 400);
    }

    #[test]
    fn a_malformed_request_ends_its_connection() {
        let service = Service::start().unwrap();
        for text in ["POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "\0"]
        {
            let mut stream = TcpStream::connect(service.address).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
            assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "{text:?}");
        }
    }
}
