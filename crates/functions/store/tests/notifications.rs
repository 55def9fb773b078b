//! Notifications over HTTP and the socket to a gateway, which this test is.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use unlade_guest_protocol::notification::{GatewayMessage, LineReader, StoreMessage, line};
use unlade_s3_store::Store;

const ARN: &str = "arn:aws:lambda:us-east-1:000000000000:function:f";

/// Sends a request; returns the response as text.
async fn ask(address: SocketAddr, method: &str, target: &str, fields: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let request = format!(
        "{method} {target} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{fields}\
         content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

fn document(arn: &str, events: &[&str]) -> String {
    let events: String = events.iter().map(|event| format!("<Event>{event}</Event>")).collect();
    format!(
        "<NotificationConfiguration><CloudFunctionConfiguration><Id>one</Id><Filter><S3Key>\
         <FilterRule><Name>suffix</Name><Value>.jpg</Value></FilterRule></S3Key></Filter>\
         <CloudFunction>{arn}</CloudFunction>{events}</CloudFunctionConfiguration>\
         </NotificationConfiguration>"
    )
}

/// The gateway's end of the socket.
struct Gateway {
    stream: UnixStream,
    lines: LineReader,
}

impl Gateway {
    async fn next(&mut self) -> StoreMessage {
        loop {
            if let Some(message) = self.lines.next_message().unwrap() {
                return message;
            }
            let mut piece = [0; 4096];
            let bytes = self.stream.read(&mut piece).await.unwrap();
            assert!(bytes > 0, "the store has ended");
            self.lines.push(&piece[..bytes]);
        }
    }

    async fn event(&mut self) -> (u64, Value) {
        match self.next().await {
            StoreMessage::Event { number, event, .. } => (number, event["Records"][0].clone()),
            other => panic!("{other:?}"),
        }
    }

    async fn say(&mut self, message: &GatewayMessage) {
        self.stream.write_all(&line(message).unwrap()).await.unwrap();
    }
}

async fn start(dir: &std::path::Path) -> (SocketAddr, Gateway, tokio::task::JoinHandle<()>) {
    let store = Store::listen((Ipv4Addr::LOCALHOST, 0).into(), dir, None).await.unwrap();
    let (own, other) = UnixStream::pair().unwrap();
    let store = store.with_gateway(other);
    let address = store.address().unwrap();
    let serving = tokio::spawn(async move { store.serve().await.unwrap() });
    (address, Gateway { stream: own, lines: LineReader::default() }, serving)
}

#[tokio::test]
async fn a_configuration_is_checked_by_the_gateway_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (address, mut gateway, serving) = start(dir.path()).await;
    let put = |document: String, fields: &'static str| async move {
        ask(address, "PUT", "/box?notification", fields, &document).await
    };
    let wrong = put(document(ARN, &["s3:ObjectCreated:*"]), "").await;
    assert!(wrong.contains("NoSuchBucket"), "{wrong}");
    ask(address, "PUT", "/box", "", "").await;
    let none = ask(address, "GET", "/box?notification", "", "").await;
    assert!(none.contains("200 OK") && !none.contains("CloudFunction>"), "{none}");
    for (document, code) in [
        (document(ARN, &["s3:ObjectTagging:Put"]), "InvalidArgument"),
        (document("f", &["s3:ObjectCreated:*"]), "InvalidArgument"),
        (document(ARN, &[]), "MalformedXML"),
        ("<NotificationConfiguration>".to_owned(), "MalformedXML"),
        (
            "<NotificationConfiguration><EventBridgeConfiguration/></NotificationConfiguration>"
                .to_owned(),
            "NotImplemented",
        ),
    ] {
        let wrong = put(document.clone(), "").await;
        assert!(wrong.contains(code), "{document}: {wrong}");
    }
    let (asked, ()) = tokio::join!(put(document(ARN, &["s3:ObjectCreated:*"]), ""), async {
        let StoreMessage::Check { question, bucket, functions } = gateway.next().await else {
            panic!("no question");
        };
        assert_eq!((bucket.as_str(), functions.as_slice()), ("box", &[ARN.to_owned()][..]));
        let refused = vec![(ARN.to_owned(), "no permission".to_owned())];
        gateway.say(&GatewayMessage::Checked { question, refused }).await;
    });
    let due = "Unable to validate the following destination configurations";
    assert!(asked.contains(due) && asked.contains("no permission"), "{asked}");
    let (asked, ()) = tokio::join!(put(document(ARN, &["s3:ObjectCreated:*"]), ""), async {
        let StoreMessage::Check { question, .. } = gateway.next().await else {
            panic!("no question");
        };
        gateway.say(&GatewayMessage::Checked { question, refused: Vec::new() }).await;
    });
    assert!(asked.starts_with("HTTP/1.1 200"), "{asked}");
    let found = ask(address, "GET", "/box?notification", "", "").await;
    for part in ["<Id>one</Id>", ARN, "s3:ObjectCreated:*", "<Name>Suffix</Name>", ".jpg"] {
        assert!(found.contains(part), "{part}: {found}");
    }
    // Nobody is asked.
    let skipped = "x-amz-skip-destination-validation: true\r\n";
    let asked = put(document(ARN, &["s3:ObjectRemoved:*"]), skipped).await;
    assert!(asked.starts_with("HTTP/1.1 200"), "{asked}");
    let gone = put("<NotificationConfiguration/>".to_owned(), "").await;
    assert!(gone.starts_with("HTTP/1.1 200"), "{gone}");
    let none = ask(address, "GET", "/box?notification", "", "").await;
    assert!(!none.contains("CloudFunction>"), "{none}");
    serving.abort();
}

#[tokio::test]
async fn an_event_comes_until_it_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let (address, mut gateway, serving) = start(dir.path()).await;
    ask(address, "PUT", "/box", "", "").await;
    let all = document(ARN, &["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]);
    let skipped = "x-amz-skip-destination-validation: true\r\n";
    ask(address, "PUT", "/box?notification", skipped, &all).await;
    let answer = ask(address, "PUT", "/box/a%20b.jpg", "", "hello").await;
    ask(address, "PUT", "/box/a.txt", "", "hello").await;
    let copied = "x-amz-copy-source: /box/a.txt\r\n";
    ask(address, "PUT", "/box/c.jpg", copied, "").await;
    ask(address, "DELETE", "/box/c.jpg", "", "").await;
    let (number, put) = gateway.event().await;
    let id = put["responseElements"]["x-amz-request-id"].as_str().unwrap();
    assert!(answer.contains(id), "{answer}: {put}");
    assert_eq!(put["requestParameters"]["sourceIPAddress"], "127.0.0.1");
    assert_eq!(put["userIdentity"]["principalId"], "Anonymous");
    let object = &put["s3"]["object"];
    assert_eq!(object["key"], "a+b.jpg");
    assert_eq!(
        (&object["size"], &object["eTag"]),
        (&5.into(), &"5d41402abc4b2a76b9719d911017c592".into())
    );
    let (copied_number, copied) = gateway.event().await;
    assert_eq!(copied["eventName"], "ObjectCreated:Copy");
    let (_, removed) = gateway.event().await;
    assert_eq!(removed["eventName"], "ObjectRemoved:Delete");
    let sequencer = |event: &Value| event["s3"]["object"]["sequencer"].as_str().unwrap().to_owned();
    assert!(sequencer(&copied) < sequencer(&removed));
    gateway.say(&GatewayMessage::Taken { number }).await;
    let outbox = dir.path().join(".unlade/outbox");
    let intents = || {
        let entries = std::fs::read_dir(&outbox).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|kind| kind == "intent")).count()
    };
    let is_removed = async {
        while intents() > 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), is_removed).await.unwrap();
    // The gateway ends, and so does the store; the next one sends the others again.
    drop(gateway);
    tokio::time::timeout(std::time::Duration::from_secs(30), serving).await.unwrap().unwrap();
    let (_, mut gateway, serving) = start(dir.path()).await;
    let (again, event) = gateway.event().await;
    assert_eq!((again, &event), (copied_number, &copied));
    let (_, event) = gateway.event().await;
    assert_eq!(event, removed);
    serving.abort();
}

#[tokio::test]
async fn a_store_without_a_gateway_refuses_configurations_and_makes_no_events() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::listen((Ipv4Addr::LOCALHOST, 0).into(), dir.path(), None).await.unwrap();
    let address = store.address().unwrap();
    let serving = tokio::spawn(async move { store.serve().await.unwrap() });
    ask(address, "PUT", "/box", "", "").await;
    let all = document(ARN, &["s3:ObjectCreated:*"]);
    let refused = ask(address, "PUT", "/box?notification", "", &all).await;
    assert!(refused.contains("NotImplemented") && refused.contains("unlade fn serve"), "{refused}");
    let none = ask(address, "PUT", "/box?notification", "", "<NotificationConfiguration/>").await;
    assert!(none.starts_with("HTTP/1.1 200"), "{none}");
    // Rules of a store that had a gateway.
    std::fs::create_dir_all(dir.path().join(".unlade/notifications")).unwrap();
    let rules = format!(r#"[{{"id":"a","function":"{ARN}","events":["s3:ObjectCreated:*"]}}]"#);
    std::fs::write(dir.path().join(".unlade/notifications/box"), rules).unwrap();
    let put = ask(address, "PUT", "/box/k", "", "v").await;
    assert!(put.starts_with("HTTP/1.1 200"), "{put}");
    assert!(!dir.path().join(".unlade/outbox").exists());
    serving.abort();
}
