//! Events of changed objects in the built-in store, on their way to functions. Each becomes an accepted
//! asynchronous event before the store removes it, so it is invoked at least once.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;

use hyper::header::{HeaderMap, HeaderValue};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use unlade_fn_model::lifecycle::reference::ACCOUNT;
use unlade_fn_model::lifecycle::{Qualifier, Reference, arn};
use unlade_guest_protocol::notification::{GatewayMessage, LineReader, StoreMessage, WINDOW, line};
use unlade_metrics::{Event, NotificationResult};

use crate::auth::Caller;
use crate::config::REGION;
use crate::draw::draw;
use crate::events::Events;
use crate::function::{Function, key};
use crate::host::Host;
use crate::invoke::Input;
use crate::permission::{SOURCE_ACCOUNT, SOURCE_ARN, may_invoke};

/// The service that invokes functions for objects.
const SERVICE: &str = "s3.amazonaws.com";
/// Wait before an event is offered again, while the table of accepted events is full.
const PAUSE: Duration = Duration::from_millis(100);
const READ_BYTES: usize = 16 * 1024;
/// Accepted events whose numbers are remembered: a store that was killed may send them again.
const RECENT_MAX: usize = 2 * WINDOW;

/// An event that the store has sent.
struct Sent {
    number: u64,
    bucket: String,
    function: String,
    event: Vec<u8>,
}

/// A function that a bucket may invoke, and the qualifier of the invocation.
type Target = (Rc<Function>, Option<Qualifier>);

/// The reason why a function is not invoked for a bucket.
enum Untargeted {
    /// It does not exist, or is not served.
    Absent(String),
    /// Its policy does not let the bucket invoke it.
    Denied(String),
}

impl Untargeted {
    fn text(&self) -> &str {
        match self {
            Untargeted::Absent(why) | Untargeted::Denied(why) => why,
        }
    }
}

/// Serves the connections to the built-in store, one after the other: each of its processes has one.
pub async fn run(
    host: Rc<Host>,
    events: Rc<Events>,
    mut connections: mpsc::UnboundedReceiver<UnixStream>,
) {
    let recent = RefCell::default();
    while let Some(stream) = connections.recv().await {
        if let Err(error) = converse(&host, &events, &recent, stream).await {
            tracing::error!(%error, "the built-in store's events");
        }
    }
}

/// Serves a connection until the store ends it.
async fn converse(
    host: &Rc<Host>,
    events: &Rc<Events>,
    recent: &RefCell<VecDeque<u64>>,
    stream: UnixStream,
) -> io::Result<()> {
    let (read, write) = stream.into_split();
    let (sender, sent) = mpsc::channel(WINDOW);
    // An answer to each event of the window and each question; the store bounds both.
    let (say, said) = mpsc::unbounded_channel();
    let reading = receive(host, read, (sender, say.clone()));
    tokio::select! {
        ended = reading => ended,
        ended = take_all((host, events), recent, sent, say) => ended,
        ended = answer(write, said) => ended,
    }
}

async fn answer(
    mut write: OwnedWriteHalf,
    mut said: mpsc::UnboundedReceiver<GatewayMessage>,
) -> io::Result<()> {
    while let Some(message) = said.recv().await {
        write.write_all(&line(&message).map_err(io::Error::other)?).await?;
    }
    Ok(())
}

async fn receive(
    host: &Host,
    mut read: OwnedReadHalf,
    (sender, say): (mpsc::Sender<Sent>, mpsc::UnboundedSender<GatewayMessage>),
) -> io::Result<()> {
    let (mut lines, mut piece) = (LineReader::default(), vec![0; READ_BYTES]);
    loop {
        let bytes = read.read(&mut piece).await?;
        if bytes == 0 {
            return Ok(());
        }
        lines.push(&piece[..bytes]);
        while let Some(message) = lines.next_message().map_err(io::Error::other)? {
            match message {
                StoreMessage::Event { number, bucket, function, event } => {
                    let event = event.to_string().into_bytes();
                    let sent = Sent { number, bucket, function, event };
                    sender.try_send(sent).map_err(|_| {
                        io::Error::other(format!("more than {WINDOW} events were sent at a time"))
                    })?;
                }
                StoreMessage::Check { question, bucket, functions } => {
                    let refused = functions.into_iter().filter_map(|function| {
                        let why = target(host, &bucket, &function).err()?;
                        Some((function, why.text().to_owned()))
                    });
                    let refused = refused.collect();
                    let _ = say.send(GatewayMessage::Checked { question, refused });
                }
                StoreMessage::Refused { count } => {
                    tracing::warn!(
                        count,
                        "the built-in store refused changes: as many events as may be wait in it"
                    );
                    host.meter.add_n(Event::FnNotification(NotificationResult::Refused), count);
                }
            }
        }
    }
}

/// Takes events in the order in which they come.
async fn take_all(
    (host, events): (&Rc<Host>, &Rc<Events>),
    recent: &RefCell<VecDeque<u64>>,
    mut sent: mpsc::Receiver<Sent>,
    say: mpsc::UnboundedSender<GatewayMessage>,
) -> io::Result<()> {
    while let Some(one) = sent.recv().await {
        let number = one.number;
        let is_known = recent.borrow().contains(&number);
        if !is_known {
            take(host, events, recent, one).await;
        }
        let _ = say.send(GatewayMessage::Taken { number });
    }
    Ok(())
}

/// Accepts an event, or gives it up if its function may not be invoked. Waits while the table of accepted
/// events is full; others stay in the store.
async fn take(host: &Rc<Host>, events: &Rc<Events>, recent: &RefCell<VecDeque<u64>>, sent: Sent) {
    let Sent { number, bucket, function, event } = sent;
    let count = |result| host.meter.add(Event::FnNotification(result));
    let mut is_held = false;
    loop {
        let (found, qualifier) = match target(host, &bucket, &function) {
            Ok(target) => target,
            Err(why) => {
                let result = match why {
                    Untargeted::Absent(_) => NotificationResult::Absent,
                    Untargeted::Denied(_) => NotificationResult::Denied,
                };
                count(result);
                let why = why.text();
                tracing::error!(bucket, function, number, why, "an event of an object is lost");
                return;
            }
        };
        let input = Input { event: event.clone(), ..Input::default() };
        // An event that was begun is ended, even if the store ends meanwhile.
        let (own, of) = (events.clone(), host.clone());
        let accepting = tokio::task::spawn_local(async move {
            own.accept(&of, &found, qualifier.as_ref(), input).await
        });
        let why = match accepting.await {
            Ok(Ok(_)) => {
                let mut recent = recent.borrow_mut();
                recent.push_back(number);
                if recent.len() > RECENT_MAX {
                    recent.pop_front();
                }
                return count(NotificationResult::Accepted);
            }
            Ok(Err(refusal)) => refusal.message(),
            Err(error) => error.to_string(),
        };
        if !is_held {
            is_held = true;
            count(NotificationResult::Held);
            tracing::warn!(bucket, function, number, why, "events of objects wait");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The function of an ARN, if its resource policy lets the bucket invoke it.
fn target(host: &Host, bucket: &str, function: &str) -> Result<Target, Untargeted> {
    let absent = |why: String| Untargeted::Absent(why);
    let reference = Reference::parse(function, None).map_err(|why| absent(why.message()))?;
    let Reference { name, qualifier } = reference;
    let text = qualifier.as_ref().map(ToString::to_string);
    if arn(REGION, &name, text.as_deref()) != function {
        let due = arn(REGION, &name, text.as_deref());
        return Err(absent(format!("it is of another region or account than {due}")));
    }
    let record = host.registry.get(&name);
    let record = record.ok_or_else(|| absent(format!("there is no function {name}")))?;
    let mut source = HeaderMap::new();
    let bucket_arn = HeaderValue::try_from(format!("arn:aws:s3:::{bucket}"));
    let bucket_arn = bucket_arn.map_err(|_| absent(format!("{bucket:?} is no bucket")))?;
    source.insert(SOURCE_ARN, bucket_arn);
    source.insert(SOURCE_ACCOUNT, HeaderValue::from_static(ACCOUNT));
    let caller = Caller::Service(SERVICE.to_owned());
    let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
    if !may_invoke(&caller, (&name, &record, qualifier.as_ref()), (&source, here)) {
        return Err(Untargeted::Denied(format!(
            "its resource policy does not let {SERVICE} invoke it for arn:aws:s3:::{bucket}; add a \
             permission (AddPermission)"
        )));
    }
    let version = record.choose(qualifier.as_ref(), draw()).map_err(|why| absent(why.message()))?;
    let found = host.function(&key(&name, version));
    found.map(|found| (found, qualifier)).ok_or_else(|| absent(format!("{name} is not served")))
}

#[cfg(test)]
mod tests;
