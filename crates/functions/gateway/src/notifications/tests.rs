//! The gateway's end of the connection; this test is the store.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::LocalSet;
use unlade_fn_model::Manifest;
use unlade_fn_model::isolation::{Image, Isolation, IsolationError, Local, Template};
use unlade_fn_model::lifecycle::{Record, Statement, Version};
use unlade_fn_model::manifest::Backend;
use unlade_metrics::{Meter, Role};

use super::*;
use crate::config::GatewayConfig;
use crate::deploy;
use crate::tenants::{Own, Tenants};

const ARN: &str = "arn:aws:lambda:us-east-1:000000000000:function:f";
/// A function that does not exist.
const OTHER: &str = "arn:aws:lambda:us-east-1:000000000000:function:g";
const BUCKET: &str = "photos";
const PATIENCE: Duration = Duration::from_secs(30);

/// Starts nothing: accepted events stay in their files.
struct Nothing;

impl Isolation for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }

    fn probe(&self) -> Result<(), IsolationError> {
        Ok(())
    }

    fn prepare<'a>(&'a self, _: &'a Image) -> Local<'a, Result<Rc<dyn Template>, IsolationError>> {
        let why = "nothing starts".to_owned();
        Box::pin(async { Err(IsolationError::Unusable { backend: "nothing", why }) })
    }
}

/// A gateway with a function that the bucket may invoke, and the store's end of its connection.
struct Bed {
    host: Rc<Host>,
    state: tempfile::TempDir,
    connections: mpsc::UnboundedSender<UnixStream>,
    store: UnixStream,
    lines: LineReader,
}

impl Bed {
    async fn start() -> Bed {
        let state = tempfile::tempdir().unwrap();
        let text = format!("state = \"{}\"\n", state.path().display());
        let config: GatewayConfig = unlade_config::parse(&text, "fn.toml").unwrap();
        let tenants = Tenants::start(&config, Path::new("/nothing"), None, Own::default()).unwrap();
        let backend: Rc<dyn Isolation> = Rc::new(Nothing);
        let backends = HashMap::from([(Backend::default(), backend)]);
        let meter = Arc::new(Meter::for_role(Role::Gateway));
        let host = Host::new(config, backends, tenants, None, PathBuf::new(), meter);
        let manifest = Manifest::of_handler("app.handler");
        let edition = deploy::edition(manifest, 1, &[], &deploy::stamp());
        let mut record = Record::new("default", edition);
        let text = |text: &str| text.to_owned();
        let statement = Statement {
            sid: text("s3"),
            action: text("lambda:InvokeFunction"),
            principal: text(SERVICE),
            conditions: vec![
                (text("ArnLike"), text("AWS:SourceArn"), format!("arn:aws:s3:::{BUCKET}")),
                (text("StringEquals"), text("AWS:SourceAccount"), text(ACCOUNT)),
            ],
        };
        record.add_permission(None, statement, None, deploy::stamp()).unwrap();
        std::fs::create_dir_all(deploy::code(state.path(), "f", 1)).unwrap();
        let made = host.make_edition("f", "default", Version::Latest, &record.latest).unwrap();
        host.registry.change("f", |_| Ok((Some(record), ()))).await.unwrap();
        host.publish(&made);
        let events = Events::open(state.path()).unwrap();
        let (connections, received) = mpsc::unbounded_channel();
        tokio::task::spawn_local(run(host.clone(), events, received));
        let (store, other) = UnixStream::pair().unwrap();
        connections.send(other).unwrap();
        Bed { host, state, connections, store, lines: LineReader::default() }
    }

    async fn say(&mut self, message: &StoreMessage) {
        self.store.write_all(&line(message).unwrap()).await.unwrap();
    }

    async fn answer(&mut self) -> GatewayMessage {
        let answer = async {
            loop {
                if let Some(message) = self.lines.next_message().unwrap() {
                    return message;
                }
                let mut piece = [0; 4096];
                let bytes = self.store.read(&mut piece).await.unwrap();
                assert!(bytes > 0, "the gateway ended the connection");
                self.lines.push(&piece[..bytes]);
            }
        };
        tokio::time::timeout(PATIENCE, answer).await.expect("an answer")
    }

    async fn event(&mut self, number: u64, bucket: &str, function: &str) {
        let event = json!({"Records": [{"number": number}]});
        let (bucket, function) = (bucket.to_owned(), function.to_owned());
        self.say(&StoreMessage::Event { number, bucket, function, event }).await;
    }

    /// Waits until the gateway has ended the connection.
    async fn until_ended(&mut self) {
        let mut piece = [0; 64];
        let ended = async {
            // A reset is an end, too: the gateway has not read everything.
            while self.store.read(&mut piece).await.is_ok_and(|bytes| bytes > 0) {}
        };
        tokio::time::timeout(PATIENCE, ended).await.expect("it ends");
    }

    fn count(&self, result: NotificationResult) -> u64 {
        self.host.meter.value(Event::FnNotification(result))
    }

    async fn until_counted(&self, result: NotificationResult, due: u64) {
        let counted = async {
            while self.count(result) < due {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, counted).await.expect("it is counted");
    }

    /// The accepted events, and the qualifiers of their invocations.
    fn accepted(&self) -> Vec<(Value, Value)> {
        let files = std::fs::read_dir(self.state.path().join("events")).unwrap();
        let read = |path: PathBuf| {
            let text = std::fs::read_to_string(path).unwrap();
            let (state, event) = text.split_once('\n').unwrap();
            let state: Value = serde_json::from_str(state).unwrap();
            assert_eq!((&state["tenant"], &state["function"]), (&json!("default"), &json!("f")));
            (serde_json::from_str(event).unwrap(), state["qualifier"].clone())
        };
        let paths = files.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_none()).map(read).collect()
    }
}

async fn with_bed<F: Future<Output = ()>>(test: impl FnOnce(Bed) -> F) {
    let local = LocalSet::new();
    local.run_until(async { test(Bed::start().await).await }).await;
}

#[tokio::test]
async fn functions_of_a_configuration_must_exist_and_permit_the_bucket() {
    with_bed(|mut bed| async move {
        let mut checked = async |bucket: &str, function: &str| {
            let (bucket, functions) = (bucket.to_owned(), vec![function.to_owned()]);
            bed.say(&StoreMessage::Check { question: 7, bucket, functions }).await;
            match bed.answer().await {
                GatewayMessage::Checked { question: 7, refused } => refused,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(checked(BUCKET, ARN).await, []);
        for (bucket, function, due) in [
            ("other", ARN, "policy"),
            (BUCKET, &*format!("{ARN}:live"), "policy"),
            (BUCKET, &*ARN.replace("us-east-1", "eu-west-1"), "region"),
            (BUCKET, &*ARN.replace("000000000000", "111111111111"), "account"),
            (BUCKET, OTHER, "no function g"),
            (BUCKET, "f", "region"),
            (BUCKET, "arn:aws:sqs:us-east-1:000000000000:q", "no function"),
            ("a\nb", ARN, "no bucket"),
        ] {
            let refused = checked(bucket, function).await;
            assert_eq!(refused.len(), 1, "{bucket} {function}");
            assert!(refused[0].0 == function && refused[0].1.contains(due), "{refused:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn an_event_is_accepted_once_or_given_up_and_counted() {
    with_bed(|mut bed| async move {
        bed.event(1, BUCKET, ARN).await;
        assert_eq!(bed.answer().await, GatewayMessage::Taken { number: 1 });
        assert_eq!(bed.accepted(), [(json!({"Records": [{"number": 1}]}), Value::Null)]);
        // The store was killed before it had the answer.
        let (store, other) = UnixStream::pair().unwrap();
        bed.connections.send(other).unwrap();
        bed.store = store;
        bed.event(1, BUCKET, ARN).await;
        assert_eq!(bed.answer().await, GatewayMessage::Taken { number: 1 });
        assert_eq!((bed.accepted().len(), bed.count(NotificationResult::Accepted)), (1, 1));
        bed.event(2, "other", ARN).await;
        bed.event(3, BUCKET, OTHER).await;
        for number in [2, 3] {
            assert_eq!(bed.answer().await, GatewayMessage::Taken { number });
        }
        assert_eq!(bed.count(NotificationResult::Denied), 1);
        assert_eq!(bed.count(NotificationResult::Absent), 1);
        bed.say(&StoreMessage::Refused { count: 5 }).await;
        bed.until_counted(NotificationResult::Refused, 5).await;
        assert_eq!(bed.accepted().len(), 1);
    })
    .await;
}

#[tokio::test]
async fn events_wait_while_none_is_accepted_and_questions_do_not() {
    with_bed(|mut bed| async move {
        let (events, away) = (bed.state.path().join("events"), bed.state.path().join("away"));
        std::fs::rename(&events, &away).unwrap();
        bed.event(1, BUCKET, ARN).await;
        bed.event(2, BUCKET, ARN).await;
        bed.until_counted(NotificationResult::Held, 1).await;
        let (bucket, functions) = (BUCKET.to_owned(), vec![ARN.to_owned()]);
        bed.say(&StoreMessage::Check { question: 1, bucket, functions }).await;
        let due = GatewayMessage::Checked { question: 1, refused: Vec::new() };
        assert_eq!(bed.answer().await, due);
        assert_eq!(bed.count(NotificationResult::Accepted), 0);
        std::fs::rename(&away, &events).unwrap();
        for number in [1, 2] {
            assert_eq!(bed.answer().await, GatewayMessage::Taken { number });
        }
        assert_eq!(bed.count(NotificationResult::Held), 1);
        assert_eq!(bed.accepted().len(), 2);
    })
    .await;
}

#[tokio::test]
async fn bytes_that_are_no_messages_and_too_many_events_end_the_connection() {
    with_bed(|mut bed| async move {
        for is_too_many in [false, true] {
            if is_too_many {
                let (events, away) =
                    (bed.state.path().join("events"), bed.state.path().join("away"));
                std::fs::rename(&events, &away).unwrap();
                for number in 0..WINDOW as u64 + 2 {
                    bed.event(number + 100, BUCKET, ARN).await;
                }
                bed.until_ended().await;
                std::fs::rename(&away, &events).unwrap();
            } else {
                bed.store.write_all(b"{}\n").await.unwrap();
                bed.until_ended().await;
            }
            // The next process of the store is served.
            let (store, other) = UnixStream::pair().unwrap();
            bed.connections.send(other).unwrap();
            (bed.store, bed.lines) = (store, LineReader::default());
            bed.event(9, BUCKET, ARN).await;
            assert_eq!(bed.answer().await, GatewayMessage::Taken { number: 9 });
        }
    })
    .await;
}
