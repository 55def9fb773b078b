//! One instance: started, attached, invoked, ended.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc, oneshot};
use unlade_fn_model::isolation::{Instance, Origin, Runtime, Started, Template, Usage};
use unlade_fn_model::pool::InstanceId;
use unlade_guest_protocol::control::ControlHead;

use crate::function::Function;
use crate::instance_log::{InstanceLog, Report};
use crate::link::{InstanceEvent, Link, Reply};

/// Bytes of the memory that an instance shares with its worker, if the isolation backend provides
/// it.
pub const REGION_BYTES: u64 = 16 << 20;

/// Time in which a runtime that starts in the instance does so, as Lambda's: until then, an instance that has
/// not been invoked is not frozen.
const INIT_TIME: Duration = Duration::from_secs(10);

/// Timeout of an instance's end after its channel has closed.
pub const LAST_WORDS: Duration = Duration::from_secs(1);

/// The end of an invocation in its instance.
#[derive(Debug)]
pub enum Ended {
    /// The handler has returned.
    Replied(Reply),
    /// The worker refused to pass it on.
    Refused(String),
    /// The instance has ended.
    Gone(String),
}

/// An instance that has greeted.
pub struct AttachedInstance {
    /// The number in the pool and in the worker.
    pub id: InstanceId,
    /// The function.
    pub function: Rc<Function>,
    /// The connection to the worker where it is attached.
    pub link: Rc<Link>,
    /// The origin of the instance.
    pub origin: Origin,
    /// The duration of its start.
    pub start: Duration,
    /// Requests its end.
    pub stop: Notify,
    /// The isolation backend's handle.
    pub instance: Rc<dyn Instance>,
    running: RefCell<Option<oneshot::Sender<Ended>>>,
    gone: RefCell<Option<String>>,
    freezing: Freezing,
    /// Its output.
    pub log: Rc<InstanceLog>,
    /// The begin of the running invocation, or of the last one.
    began: Cell<Option<Instant>>,
    /// Number of begun invocations.
    begun: Cell<u64>,
}

/// The freezing of an instance.
#[derive(Debug, Default)]
struct Freezing {
    /// True from its assignment to an invocation until the reply.
    is_assigned: Cell<bool>,
    is_frozen: Cell<bool>,
    /// True once freezing has failed, which is not tried again.
    has_failed: Cell<bool>,
}

impl AttachedInstance {
    /// Marks it as assigned to an invocation: it is not frozen any more.
    pub fn assign(&self) {
        self.freezing.is_assigned.set(true);
    }

    /// The time after which it is to be frozen, if it stays idle.
    fn freeze_after(&self) -> Option<Duration> {
        let Freezing { is_assigned, is_frozen, has_failed } = &self.freezing;
        if is_assigned.get() || is_frozen.get() || has_failed.get() {
            return None;
        }
        let after = self.instance.freeze_after()?;
        let is_starting =
            self.begun.get() == 0 && self.function.manifest.runtime != Runtime::Python;
        Some(if is_starting { after.max(INIT_TIME) } else { after })
    }

    /// Freezes it, unless it was assigned meanwhile.
    fn freeze(&self) -> Option<io::Result<()>> {
        if self.freezing.is_assigned.get() {
            return None;
        }
        let frozen = self.instance.freeze();
        self.freezing.is_frozen.set(frozen.is_ok());
        self.freezing.has_failed.set(frozen.is_err());
        Some(frozen)
    }

    /// Lets a frozen instance go on. One that cannot is killed.
    fn thaw(&self) {
        if self.freezing.is_frozen.replace(false)
            && let Err(error) = self.instance.thaw()
        {
            tracing::error!(instance = self.id, %error, "a frozen instance does not go on");
            self.instance.kill();
        }
    }

    /// Begins an invocation; the receiver gets its end once.
    pub fn begin(&self, invocation: &str) -> oneshot::Receiver<Ended> {
        let (sender, receiver) = oneshot::channel();
        self.assign();
        self.log.begin(invocation);
        self.thaw();
        self.begun.set(self.begun.get() + 1);
        self.began.set(Some(Instant::now()));
        match &*self.gone.borrow() {
            // The instance ended between assignment and use.
            Some(why) => drop(sender.send(Ended::Gone(why.clone()))),
            None => *self.running.borrow_mut() = Some(sender),
        }
        receiver
    }

    /// Returns true if an invocation is running.
    pub fn is_running(&self) -> bool {
        self.running.borrow().is_some()
    }

    /// The resources that it has used; `None` if it has ended.
    pub fn usage(&self) -> Option<Usage> {
        self.instance.usage().ok()
    }

    /// Ends the log of the invocation that runs; returns its end. `printed` is what the guest has
    /// reported, `failure` the host's reason if it failed.
    pub fn report(&self, printed: &str, failure: Option<&str>) -> String {
        let memory_peak_bytes = self.instance.memory_peak_bytes();
        let meter = &self.function.observed.meter;
        meter.memory_peak_bytes.fetch_max(memory_peak_bytes.unwrap_or(0), Relaxed);
        let report = Report {
            duration: self.began.get().map_or(Duration::ZERO, |began| began.elapsed()),
            memory_mib: self.function.manifest.memory.0 >> 20,
            memory_peak_bytes,
            init: (self.begun.get() == 1).then_some(self.start),
        };
        self.log.end(printed, failure, &report)
    }

    /// Records the reason of its end, which is also the end of a running invocation.
    pub fn close(&self, why: String) {
        *self.gone.borrow_mut() = Some(why.clone());
        self.end(Ended::Gone(why));
    }

    fn end(&self, ended: Ended) {
        if let Some(running) = self.running.borrow_mut().take() {
            let _ = running.send(ended);
        }
    }
}

/// The receiver of changes in the availability of instances.
pub trait Availability {
    /// Marks an instance as ready for an invocation.
    fn ready(&self, instance: InstanceId);

    /// Marks an instance as ending: it receives no further invocation.
    fn ending(&self, instance: InstanceId);

    /// Counts an attempt to freeze an instance.
    fn froze(&self, function: &Function, frozen: io::Result<()>);
}

/// The messages of a worker about one instance.
pub type InstanceEvents = mpsc::UnboundedReceiver<InstanceEvent>;

/// Starts an instance, and attaches it to its tenant's worker with the function's role. `patience` limits the
/// wait for the worker.
///
/// # Errors
/// The reason why it does not start, for humans.
pub async fn start(
    id: InstanceId,
    function: &Rc<Function>,
    template: Rc<dyn Template>,
    patience: Duration,
) -> Result<(Rc<AttachedInstance>, InstanceEvents), String> {
    let link = function.tenant.link(patience).await?;
    let begin = Instant::now();
    let name = format!("{}-{id}", function.name);
    let started = template.start(&name).await.map_err(|error| error.to_string())?;
    let Started { channel, region, origin, instance } = started;
    let log = InstanceLog::start(function, id, instance.take_output());
    let log = log.map_err(|error| format!("its output: {error}"))?;
    let mut heard = link.listen(id);
    let region_bytes = region.as_ref().map_or(0, |_| REGION_BYTES);
    let (role, name) = (function.role, function.name.clone());
    let attach = ControlHead::Attach { instance: id, role, function: name, region_bytes };
    let descriptors = std::iter::once(channel).chain(region).collect();
    link.say_with(attach, Vec::new(), descriptors);
    let greeted = tokio::select! {
        heard = heard.recv() => match heard {
            Some(InstanceEvent::Ready) => Ok(()),
            Some(InstanceEvent::Gone(why) | InstanceEvent::Refused(why)) => Err(why),
            Some(InstanceEvent::Replied(_)) | None => Err("it has not greeted".to_owned()),
        },
        why = instance.ended() => Err(why),
    };
    if let Err(why) = greeted {
        instance.kill();
        link.forget(id);
        return Err(why);
    }
    let attached_instance = AttachedInstance {
        id,
        function: function.clone(),
        link,
        origin,
        start: begin.elapsed(),
        stop: Notify::new(),
        instance,
        running: RefCell::default(),
        gone: RefCell::default(),
        freezing: Freezing::default(),
        log,
        began: Cell::default(),
        begun: Cell::default(),
    };
    Ok((Rc::new(attached_instance), heard))
}

/// Waits for the time until an idle instance is frozen. Without one the instance gets what is due
/// first, for example its next invocation.
async fn idle(freeze_after: Option<Duration>) {
    match freeze_after {
        None | Some(Duration::ZERO) => tokio::task::yield_now().await,
        Some(after) => tokio::time::sleep(after).await,
    }
}

/// Serves an instance; returns the reason of its end.
pub async fn serve(
    availability: &impl Availability,
    attached_instance: &AttachedInstance,
    mut heard: InstanceEvents,
) -> String {
    let instance = attached_instance.instance.clone();
    let mut ended = instance.ended();
    loop {
        let freeze_after = attached_instance.freeze_after();
        // An instance that is to stop gets no further invocation, whatever it reports; messages
        // that it sent before its end are still processed.
        let heard = tokio::select! {
            biased;
            () = attached_instance.stop.notified() => return "stopped".to_owned(),
            heard = heard.recv() => heard,
            why = &mut ended => return why,
            () = idle(freeze_after), if freeze_after.is_some() => {
                if let Some(frozen) = attached_instance.freeze() {
                    availability.froze(&attached_instance.function, frozen);
                }
                continue;
            }
        };
        match heard {
            Some(InstanceEvent::Replied(mut reply)) => {
                // Before the instance is free: what it prints afterwards is another invocation's.
                reply.log_tail = attached_instance.report(&reply.log_tail, None);
                attached_instance.end(Ended::Replied(reply));
                if instance.limit_memory() {
                    return ended.await;
                }
            }
            Some(InstanceEvent::Refused(why)) => {
                attached_instance.report("", Some(&format!("Error: {why}")));
                attached_instance.end(Ended::Refused(why));
            }
            Some(InstanceEvent::Gone(why)) if attached_instance.link.is_lost() => return why,
            // The process's exit status is more informative than the end of the channel.
            Some(InstanceEvent::Gone(why)) => {
                availability.ending(attached_instance.id);
                return tokio::time::timeout(LAST_WORDS, &mut ended).await.unwrap_or(why);
            }
            None => return "the I/O worker is gone".to_owned(),
            Some(InstanceEvent::Ready) => continue,
        }
        tokio::select! {
            biased;
            why = &mut ended => return why,
            () = std::future::ready(()) => {}
        }
        // The instance is free before its caller is answered: the worker owns its writes now.
        attached_instance.freezing.is_assigned.set(false);
        availability.ready(attached_instance.id);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::io;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use tokio::net::UnixStream;
    use tokio::task::LocalSet;
    use unlade_fn_model::Manifest;
    use unlade_fn_model::isolation::{Image, Isolation, IsolationError, Local};
    use unlade_fn_model::manifest::Backend;
    use unlade_guest_protocol::HandlerStatus;
    use unlade_metrics::{Meter, Role};

    use super::*;
    use crate::config::GatewayConfig;
    use crate::host::Host;
    use crate::tenants::{Own, Tenants};

    struct Nothing;

    impl Isolation for Nothing {
        fn name(&self) -> &'static str {
            "nothing"
        }

        fn probe(&self) -> Result<(), IsolationError> {
            Ok(())
        }

        fn prepare<'a>(
            &'a self,
            _: &'a Image,
        ) -> Local<'a, Result<Rc<dyn Template>, IsolationError>> {
            let why = "nothing starts".to_owned();
            Box::pin(async { Err(IsolationError::Unusable { backend: "nothing", why }) })
        }
    }

    /// An instance that has ended, never ends, or ends for its memory when it is looked at.
    #[derive(Clone, Copy, PartialEq)]
    enum Fixed {
        Ended,
        Endless,
        Large,
    }

    impl Instance for Fixed {
        fn ended(&self) -> Local<'_, String> {
            Box::pin(async {
                match self {
                    Fixed::Ended => "it exited".to_owned(),
                    Fixed::Endless => std::future::pending().await,
                    // The kernel needs some time to end it.
                    Fixed::Large => {
                        tokio::task::yield_now().await;
                        tokio::task::yield_now().await;
                        "it met its memory limit".to_owned()
                    }
                }
            })
        }

        fn limit_memory(&self) -> bool {
            *self == Fixed::Large
        }

        fn usage(&self) -> io::Result<Usage> {
            Ok(Usage::default())
        }

        fn kill(&self) {}
    }

    /// Counts how often an instance is free.
    #[derive(Default)]
    struct Free(Cell<u32>);

    impl Availability for Free {
        fn ready(&self, _: InstanceId) {
            self.0.set(self.0.get() + 1);
        }

        fn ending(&self, _: InstanceId) {}

        fn froze(&self, _: &Function, _: io::Result<()>) {}
    }

    fn host(state: &Path) -> Rc<Host> {
        let config = GatewayConfig { state: state.to_owned(), ..GatewayConfig::default() };
        let tenants = Tenants::start(&config, Path::new("/nothing"), None, Own::default()).unwrap();
        let backend: Rc<dyn Isolation> = Rc::new(Nothing);
        let backends = HashMap::from([(Backend::default(), backend)]);
        let meter = Arc::new(Meter::for_role(Role::Gateway));
        Host::new(config, backends, tenants, None, PathBuf::new(), meter)
    }

    /// Runs an invocation whose reply arrives together with the instance's end, or with the
    /// request to stop. Returns the end of the invocation, the reason of the instance's end, and how
    /// often the instance was free.
    async fn meets_reply(instance: Fixed) -> (Option<Ended>, String, u32) {
        let state = tempfile::tempdir().unwrap();
        let host = host(state.path());
        let manifest = Manifest::of_handler("app.handler");
        let (stream, _worker) = UnixStream::pair().unwrap();
        let (code, tenant) = (state.path().to_owned(), "default".to_owned());
        let version = unlade_fn_model::lifecycle::Version::Latest;
        let revision = crate::deploy::Revision { manifest, code, tenant, version, role: None };
        let function = host.make("f", revision).unwrap();
        let attached_instance = AttachedInstance {
            id: 1,
            log: InstanceLog::start(&function, 1, None).unwrap(),
            function,
            link: Link::new(stream),
            origin: Origin::Cold,
            start: Duration::ZERO,
            stop: Notify::new(),
            instance: Rc::new(instance),
            running: RefCell::default(),
            gone: RefCell::default(),
            freezing: Freezing::default(),
            began: Cell::default(),
            begun: Cell::default(),
        };
        let (says, heard) = mpsc::unbounded_channel();
        let running = attached_instance.begin("i");
        let reply = Reply {
            invocation: "i".to_owned(),
            status: HandlerStatus::Done,
            log_tail: String::new(),
            settled: None,
            prefetch_us: (0, 0),
            carried_bytes: (0, 0),
            result: Vec::new(),
        };
        says.send(InstanceEvent::Replied(reply)).unwrap();
        if instance == Fixed::Endless {
            attached_instance.stop.notify_one();
        }
        let free = Free::default();
        let why = serve(&free, &attached_instance, heard).await;
        drop(attached_instance);
        (running.await.ok(), why, free.0.get())
    }

    #[tokio::test]
    async fn an_instance_beyond_its_memory_answers_and_is_not_used_again() {
        let tested = async {
            let (ended, why, free) = meets_reply(Fixed::Large).await;
            assert!(matches!(ended, Some(Ended::Replied(_))), "{ended:?}");
            assert_eq!((why.as_str(), free), ("it met its memory limit", 0));
        };
        LocalSet::new().run_until(tested).await;
    }

    #[tokio::test]
    async fn a_reply_counts_where_its_instance_has_ended_and_not_where_it_is_to_stop() {
        let tested = async {
            // The order of the two events was random.
            for _ in 0..32 {
                let (ended, why, _) = meets_reply(Fixed::Ended).await;
                assert!(matches!(ended, Some(Ended::Replied(_))), "{ended:?}");
                assert_eq!(why, "it exited");
                let (ended, why, _) = meets_reply(Fixed::Endless).await;
                assert!(ended.is_none(), "{ended:?}");
                assert_eq!(why, "stopped");
            }
        };
        LocalSet::new().run_until(tested).await;
    }
}
