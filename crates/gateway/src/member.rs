//! The life of one instance: started, attached, invoked, ended.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use function::isolation::{Instance, Origin, Started, Template, Usage};
use function::pool::InstanceId;
use meter::Event;
use tokio::sync::{Notify, mpsc, oneshot};
use wire::guest::control::Said;

use crate::host::{Function, Host};
use crate::link::{Heard, Link, Reply};

/// Memory that an instance shares with its worker, where what it runs in provides it.
pub const REGION_BYTES: u64 = 16 << 20;

/// How long an instance whose channel has closed may take to end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How an invocation ended in its instance.
#[derive(Debug)]
pub enum Ended {
    /// The handler has returned.
    Replied(Reply),
    /// The worker did not hand it over.
    Refused(String),
    /// The instance is no more.
    Gone(String),
}

/// An instance that has greeted.
pub struct Member {
    /// The pool's number, and the worker's.
    pub id: InstanceId,
    /// Whose it is.
    pub function: Rc<Function>,
    /// Where it is attached.
    pub link: Rc<Link>,
    /// How it came to be.
    pub origin: Origin,
    /// How long its start took.
    pub start: Duration,
    /// Ends it.
    pub stop: Notify,
    instance: Rc<dyn Instance>,
    running: RefCell<Option<oneshot::Sender<Ended>>>,
    gone: RefCell<Option<String>>,
}

impl Member {
    /// An invocation begins; its end comes once.
    pub fn begin(&self) -> oneshot::Receiver<Ended> {
        let (sender, receiver) = oneshot::channel();
        match &*self.gone.borrow() {
            // It ended between being given and being used.
            Some(why) => drop(sender.send(Ended::Gone(why.clone()))),
            None => *self.running.borrow_mut() = Some(sender),
        }
        receiver
    }

    /// Whether an invocation is running.
    pub fn is_running(&self) -> bool {
        self.running.borrow().is_some()
    }

    /// What it has used; nothing where it has gone.
    pub fn usage(&self) -> Option<Usage> {
        self.instance.usage().ok()
    }

    fn end(&self, ended: Ended) {
        if let Some(running) = self.running.borrow_mut().take() {
            let _ = running.send(ended);
        }
    }
}

/// Starts an instance, and stays with it until it has ended.
pub async fn live(host: Rc<Host>, id: InstanceId, function: Rc<Function>) {
    let patience = host.config.start_timeout;
    let started = async {
        // A template has its backend's own limit: a machine that boots in software takes longer than
        // an instance, and who comes after it needs it as well.
        let template = host.template(&function).await?;
        let started = tokio::time::timeout(patience, start(&host, id, &function, template)).await;
        let late = |_| Err(format!("it did not start within {} s", patience.as_secs_f64()));
        started.unwrap_or_else(late)
    };
    let (member, heard) = match started.await {
        Ok(started) => started,
        Err(why) => {
            tracing::warn!(function = %function.name, instance = id, why, "no instance");
            host.meter.add(Event::FnStartFailed);
            return host.gone(id, Some(&why));
        }
    };
    host.meter.add(match member.origin {
        Origin::Cold => Event::FnStartCold,
        Origin::Restored => Event::FnStartRestored,
    });
    host.admit(member.clone());
    host.ready(id);
    let why = serve(&host, &member, heard).await;
    tracing::debug!(function = %function.name, instance = id, why, "an instance has ended");
    member.instance.kill();
    member.link.say(Said::Detach { instance: id });
    member.link.forget(id);
    *member.gone.borrow_mut() = Some(why.clone());
    member.end(Ended::Gone(why));
    // Its memory is free when it has really gone.
    let _ = tokio::time::timeout(patience, member.instance.ended()).await;
    host.gone(id, None);
}

type Heards = mpsc::UnboundedReceiver<Heard>;

async fn start(
    host: &Rc<Host>,
    id: InstanceId,
    function: &Rc<Function>,
    template: Rc<dyn Template>,
) -> Result<(Rc<Member>, Heards), String> {
    let link = function.tenant.link(host.config.start_timeout).await?;
    let begin = Instant::now();
    let name = format!("{}-{id}", function.name);
    let started = template.start(&name).await.map_err(|error| error.to_string())?;
    let Started { channel, region, origin, instance } = started;
    let mut heard = link.listen(id);
    let region_bytes = region.as_ref().map_or(0, |_| REGION_BYTES);
    let attach = Said::Attach {
        instance: id,
        role: function.role,
        function: function.name.clone(),
        region_bytes,
    };
    let descriptors = std::iter::once(channel).chain(region).collect();
    link.say_with(attach, Vec::new(), descriptors);
    let greeted = tokio::select! {
        heard = heard.recv() => match heard {
            Some(Heard::Ready) => Ok(()),
            Some(Heard::Gone(why) | Heard::Refused(why)) => Err(why),
            Some(Heard::Replied(_)) | None => Err("it has not greeted".to_owned()),
        },
        why = instance.ended() => Err(why),
    };
    if let Err(why) = greeted {
        instance.kill();
        link.forget(id);
        return Err(why);
    }
    let member = Member {
        id,
        function: function.clone(),
        link,
        origin,
        start: begin.elapsed(),
        stop: Notify::new(),
        instance,
        running: RefCell::default(),
        gone: RefCell::default(),
    };
    Ok((Rc::new(member), heard))
}

/// Why it ended.
async fn serve(host: &Rc<Host>, member: &Member, mut heard: Heards) -> String {
    let instance = member.instance.clone();
    let mut ended = instance.ended();
    loop {
        let heard = tokio::select! {
            heard = heard.recv() => heard,
            why = &mut ended => return why,
            () = member.stop.notified() => return "stopped".to_owned(),
        };
        match heard {
            Some(Heard::Replied(reply)) => member.end(Ended::Replied(reply)),
            Some(Heard::Refused(why)) => member.end(Ended::Refused(why)),
            Some(Heard::Gone(why)) if member.link.is_lost() => return why,
            // How its process ended says more than that its channel did.
            Some(Heard::Gone(why)) => {
                return tokio::time::timeout(LAST_WORDS, &mut ended).await.unwrap_or(why);
            }
            None => return "the I/O worker is gone".to_owned(),
            Some(Heard::Ready) => continue,
        }
        // Free before its caller is answered: what it wrote is the worker's now.
        host.ready(member.id);
    }
}
