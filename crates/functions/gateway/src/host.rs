//! The functions of a gateway, and the execution of the pool's actions: the life of instances.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, oneshot};
use unlade_fn_model::isolation::{Image, Isolation, Mode, Origin, Template};
use unlade_fn_model::lambda::Refusal;
use unlade_fn_model::lifecycle::{Edition, Record, Version};
use unlade_fn_model::manifest::{Backend, OwnKeys};
use unlade_fn_model::pool::{Action, FunctionId, InstanceId, InvocationId, Pool, Refused, Share};
use unlade_fn_model::{Manifest, ManifestError};
use unlade_guest_protocol::control::ControlHead;
use unlade_metrics::{Event, Meter};
use unlade_s3::hint;

use crate::attached_instance::{self, AttachedInstance, Availability};
use crate::auth::Keys;
use crate::config::{DEFAULT_TENANT, GatewayConfig, REGION, TenantConfig};
use crate::deploy::{self, Revision};
use crate::function::{Function, key};
use crate::function_log::Place;
use crate::observed::{Observatory, Observed};
use crate::permit;
use crate::registry::Registry;
use crate::sources::Sources;
use crate::store::Access;
use crate::tenant::relay;
use crate::tenants::Tenants;
use crate::web::address::Addresses;
use crate::web::apis::Apis;

mod rights;

/// Interval of the checks of idle instances.
const TICK: Duration = Duration::from_millis(500);
/// Interval of the measurements of instances.
const MEASURE: Duration = Duration::from_secs(5);
/// Most long bodies of unauthenticated senders at a time.
const UPLOADS_MAX: usize = 2;
/// Minimum charge of an instance.
const CHARGE_BYTES_MIN: u64 = 4 << 20;

/// An instance that was assigned to an invocation.
pub struct Assigned {
    /// The instance.
    pub attached_instance: Rc<AttachedInstance>,
    /// True if this is its first invocation.
    pub is_first: bool,
}

/// An invocation that is counted as running, until it is dropped.
pub struct Entered {
    host: Rc<Host>,
    name: String,
    observed: Rc<Observed>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.host.running.set(self.host.running.get() - 1);
        self.observed.meter.running.fetch_sub(1, Relaxed);
        let mut running_by = self.host.running_by.borrow_mut();
        if let Some(running) = running_by.get_mut(&self.name) {
            *running -= 1;
            if *running == 0 {
                running_by.remove(&self.name);
            }
        }
    }
}

/// The state of a gateway.
pub struct Host {
    /// The configuration.
    pub config: GatewayConfig,
    /// The address of the store: of the built-in one, or as far as the configuration names it.
    pub access: Option<Access>,
    /// The directory that contains the guest's package.
    pub guest: PathBuf,
    /// The metrics.
    pub meter: Arc<Meter>,
    /// The records of deployed functions.
    pub registry: Registry,
    /// The metrics and logs of functions.
    pub observatory: Observatory,
    backends: HashMap<Backend, Rc<dyn Isolation>>,
    pool: RefCell<Pool>,
    functions: RefCell<BTreeMap<String, Rc<Function>>>,
    by_id: RefCell<HashMap<FunctionId, Rc<Function>>>,
    attached_instances: RefCell<BTreeMap<InstanceId, Rc<AttachedInstance>>>,
    waiting: RefCell<HashMap<InvocationId, oneshot::Sender<Result<Assigned, Refused>>>>,
    /// Its tenants.
    pub tenants: Tenants,
    /// All functions that are not dropped yet: those that are served or tried, and those with
    /// instances that finish their work.
    alive: RefCell<Vec<Weak<Function>>>,
    /// The rules for each tenant's functions.
    rules: RefCell<BTreeMap<String, TenantConfig>>,
    /// The rights of the roles that stacks have made, by tenant and name.
    stack_roles: RefCell<BTreeMap<String, BTreeMap<String, serde_json::Value>>>,
    /// Queues that feed functions.
    pub sources: Sources,
    /// HTTP APIs.
    pub apis: Apis,
    /// The port of the listener for function URLs and HTTP APIs, once it is bound.
    pub urls_port: Cell<Option<u16>>,
    /// The keys of callers; `None` without authentication.
    pub keys: RefCell<Option<Keys>>,
    /// Permits of functions that are being tried.
    pub trials: Semaphore,
    /// Permits of long bodies whose senders are not authenticated yet.
    pub uploads: Semaphore,
    next: Cell<u64>,
    /// Number of unanswered invocations.
    pub running: Cell<usize>,
    /// Number of unanswered invocations, by function.
    running_by: RefCell<HashMap<String, u32>>,
    /// True once the log has the reason why instances are not frozen.
    has_told_unfrozen: Cell<bool>,
}

impl Host {
    /// Creates a host without functions.
    pub fn new(
        config: GatewayConfig,
        backends: HashMap<Backend, Rc<dyn Isolation>>,
        tenants: Tenants,
        access: Option<Access>,
        guest: PathBuf,
        meter: Arc<Meter>,
    ) -> Rc<Host> {
        let pool = RefCell::new(Pool::new(config.limits()));
        let (registry, apis) = (Registry::new(&config.state), Apis::new(&config.state));
        let observatory = Observatory::new(config.function_log, config.metrics_functions_max);
        let (rules, trials) = (config.tenant.clone(), Semaphore::new(config.starting_max));
        Rc::new(Host {
            config,
            access,
            guest,
            meter,
            registry,
            observatory,
            backends,
            pool,
            functions: RefCell::default(),
            by_id: RefCell::default(),
            attached_instances: RefCell::default(),
            waiting: RefCell::default(),
            tenants,
            alive: RefCell::default(),
            rules: RefCell::new(rules),
            stack_roles: RefCell::default(),
            sources: Sources::default(),
            apis,
            urls_port: Cell::default(),
            keys: RefCell::default(),
            trials,
            uploads: Semaphore::new(UPLOADS_MAX),
            next: Cell::new(1),
            running: Cell::new(0),
            running_by: RefCell::default(),
            has_told_unfrozen: Cell::new(false),
        })
    }

    /// The addresses of function URLs and HTTP APIs.
    pub fn addresses(&self) -> Addresses<'_> {
        Addresses { domain: &self.config.urls_domain, port: self.urls_port.get() }
    }

    /// A unique number.
    pub fn next(&self) -> u64 {
        let next = self.next.get();
        self.next.set(next + 1);
        next
    }

    /// The function with this name, or the version with this key ([`key`]).
    pub fn function(&self, key: &str) -> Option<Rc<Function>> {
        self.functions.borrow().get(key).cloned()
    }

    /// All functions, with their versions.
    pub fn functions(&self) -> Vec<Rc<Function>> {
        self.functions.borrow().values().cloned().collect()
    }

    /// Creates a function that is not served yet.
    ///
    /// # Errors
    /// The manifest is invalid, or it chooses something that its tenant may not.
    pub fn make(&self, name: &str, revision: Revision) -> Result<Rc<Function>, ManifestError> {
        let Revision { manifest, code, tenant, version, role: role_name } = revision;
        manifest.check()?;
        let wrong = |key: &str, why: String| ManifestError { key: key.to_owned(), why };
        permit::check(&tenant, &self.rules(&tenant), &manifest, role_name.as_deref())?;
        let tenant = self.tenants.get(&tenant).ok_or_else(|| {
            wrong("tenant", format!("{tenant:?} is not in the gateway's configuration"))
        })?;
        if !self.backends.contains_key(&manifest.isolation) {
            let why = format!("{:?} is not offered by this gateway", manifest.isolation);
            return Err(wrong("isolation", why));
        }
        let function = Rc::new(Function {
            is_deployed: code.starts_with(self.config.state.join("functions")),
            id: self.next(),
            name: name.to_owned(),
            hints: manifest.templates()?,
            preload: RefCell::new(manifest.preload.clone()),
            manifest,
            version,
            code: self.registry.code(&code),
            role_name,
            role: self.next(),
            observed: self.observatory.observe(&tenant.name, name),
            tenant,
            template: tokio::sync::Mutex::default(),
            is_removed: Cell::new(false),
            removed: Rc::default(),
            share: Cell::default(),
        });
        let mut alive = self.alive.borrow_mut();
        alive.retain(|function| function.strong_count() > 0);
        alive.push(Rc::downgrade(&function));
        Ok(function)
    }

    /// Tells the worker the rights of a function.
    pub fn entitle(&self, function: &Function) {
        function.tenant.role(function.role, self.policy(function));
    }

    /// Creates the function of an edition, which is not served yet.
    ///
    /// # Errors
    /// As [`Host::make`].
    pub fn make_edition(
        &self,
        name: &str,
        tenant: &str,
        version: Version,
        edition: &Edition,
    ) -> Result<Rc<Function>, ManifestError> {
        let role = permit::role_name(&edition.role)?.map(str::to_owned);
        let code = deploy::code(&self.config.state, name, edition.code);
        let (manifest, tenant) = (edition.manifest.clone(), tenant.to_owned());
        self.make(name, Revision { manifest, code, tenant, version, role })
    }

    /// The rights of a function.
    pub fn policy(&self, function: &Function) -> serde_json::Value {
        let rules = self.rules(&function.tenant.name);
        permit::policy(&function.name, &rules, &function.manifest, function.role_name.as_deref())
    }

    /// Refuses a function that chooses something that its tenant may not.
    ///
    /// # Errors
    /// The forbidden choice, and the configuration line that would allow it.
    pub fn permit(&self, function: &Function) -> Result<(), ManifestError> {
        let tenant = &function.tenant.name;
        let role = function.role_name.as_deref();
        permit::check(tenant, &self.rules(tenant), &function.manifest, role)
    }

    /// Returns true if a tenant that is no longer configured must stay, because it has functions.
    pub fn stays(&self, tenant: &str, rules: &BTreeMap<String, TenantConfig>) -> bool {
        let is_gone = !rules.contains_key(tenant) && tenant != DEFAULT_TENANT;
        is_gone && self.functions().iter().any(|function| function.tenant.name == tenant)
    }

    /// Applies new rules, also to the calls of instances that run. A function that they forbid is
    /// no longer served until it is deployed again: its instances end with what they run. A tenant
    /// that stays keeps its rules.
    pub fn rule(self: &Rc<Host>, rules: &BTreeMap<String, TenantConfig>) {
        let mut before = self.rules.borrow().clone();
        before.retain(|tenant, _| self.stays(tenant, rules));
        before.extend(rules.clone());
        *self.rules.borrow_mut() = before;
        self.entitle_all();
        for function in self.functions() {
            if let Err(error) = self.permit(&function) {
                tracing::error!(function = %function.name, %error, "is not served any more");
                self.remove(&function.key());
            }
        }
    }

    /// Tells the workers the rights of all functions that they know. Instances of a tenant that is
    /// gone keep theirs until they end.
    fn entitle_all(&self) {
        let alive: Vec<_> = self.alive.borrow().iter().filter_map(Weak::upgrade).collect();
        let has_rules =
            |tenant: &str| tenant == DEFAULT_TENANT || self.rules.borrow().contains_key(tenant);
        for function in alive {
            let tenant = &function.tenant;
            if tenant.has_role(function.role) && has_rules(&tenant.name) {
                self.entitle(&function);
            }
        }
    }

    /// Serves a function in place of the previous one with its key, whose instances finish their
    /// work.
    pub fn publish(&self, function: &Rc<Function>) {
        self.entitle(function);
        self.share(function);
        self.by_id.borrow_mut().insert(function.id, function.clone());
        let before = self.functions.borrow_mut().insert(function.key(), function.clone());
        self.retire(before);
    }

    /// Tells the pool the limits of a function: those of its record, and of its manifest.
    fn share(&self, function: &Function) {
        let record = self.registry.get(&function.name).filter(|_| function.is_deployed);
        let reserved = record.as_ref().and_then(|record| record.reserved);
        let warm = record.map_or(0, |record| record.warm(function.version)) as usize;
        let concurrency = reserved.unwrap_or(function.manifest.concurrency) as usize;
        let share = Share {
            concurrency: concurrency.max(warm).max(1),
            keep_alive: function.manifest.keep_alive,
            charge_bytes: self.charge_bytes(&function.manifest),
            warm,
        };
        if function.share.replace(Some(share)) != Some(share) {
            self.pool.borrow_mut().set(function.id, share);
        }
    }

    /// Serves the versions of a function's record, and no others, and takes messages of its queues. A
    /// version that cannot be served is logged and omitted.
    pub fn reconcile(self: &Rc<Host>, name: &str) {
        let record = self.registry.get(name);
        let is_due = |function: &Rc<Function>| {
            let due = record.as_ref().is_some_and(|record| {
                let is_there = record.edition(function.version).is_some();
                is_there && record.tenant == function.tenant.name
            });
            due || function.name != name || !function.is_deployed
        };
        for function in self.functions().iter().filter(|function| !is_due(function)) {
            self.remove(&function.key());
        }
        self.sources.apply(name, record.as_deref());
        let Some(record) = record else { return };
        for (version, edition) in record.editions() {
            match self.function(&key(name, version)) {
                Some(function) => self.share(&function),
                None => self.serve_edition(name, &record, version, edition),
            }
        }
    }

    fn serve_edition(&self, name: &str, record: &Record, version: Version, edition: &Edition) {
        match self.make_edition(name, &record.tenant, version, edition) {
            Ok(function) => self.publish(&function),
            Err(error) => {
                self.meter.add(Event::FnDeployRefused);
                tracing::error!(function = name, %version, %error, "is not served");
            }
        }
    }

    /// Counts an invocation as running.
    ///
    /// # Errors
    /// As many of its function are running as are reserved for it.
    pub fn enter(self: &Rc<Host>, function: &Function) -> Result<Entered, Refusal> {
        let reserved = self.registry.get(&function.name).and_then(|record| record.reserved);
        let mut running_by = self.running_by.borrow_mut();
        let running = running_by.get(&function.name).copied().unwrap_or_default();
        if let Some(reserved) = reserved.filter(|reserved| running >= *reserved) {
            return Err(Refusal::Reserved(reserved));
        }
        running_by.insert(function.name.clone(), running + 1);
        function.observed.meter.running.fetch_add(1, Relaxed);
        self.running.set(self.running.get() + 1);
        let (name, observed) = (function.name.clone(), function.observed.clone());
        Ok(Entered { host: self.clone(), name, observed })
    }

    /// The number of started instances of a function.
    pub fn available(&self, function: &Function) -> usize {
        self.pool.borrow().available(function.id)
    }

    /// Applies new limits.
    pub fn limit(self: &Rc<Host>, limits: unlade_fn_model::pool::Limits) {
        let actions = self.pool.borrow_mut().limit(limits);
        self.act(actions);
    }

    /// Stops serving a function or a version; returns true if it existed.
    pub fn remove(&self, key: &str) -> bool {
        let found = self.functions.borrow_mut().remove(key);
        let there_was = found.is_some();
        self.retire(found);
        there_was
    }

    fn retire(&self, function: Option<Rc<Function>>) {
        let Some(function) = function else { return };
        function.is_removed.set(true);
        function.removed.notify_one();
        let actions = self.pool.borrow_mut().remove(function.id);
        for action in actions {
            match action {
                Action::Stop { instance } => self.stop(instance),
                Action::Refuse { invocation, why } => self.tell(invocation, Err(why)),
                // The removal of a function starts nothing.
                Action::Start { .. } | Action::Run { .. } => {}
            }
        }
        self.by_id.borrow_mut().remove(&function.id);
    }

    /// The template of a function, created if absent. Concurrent callers wait for the same one.
    ///
    /// # Errors
    /// The reason why there is none, for humans.
    pub async fn template(
        self: &Rc<Host>,
        function: &Rc<Function>,
    ) -> Result<Rc<dyn Template>, String> {
        let mut slot = function.template.lock().await;
        if let Some(template) = &*slot {
            return Ok(template.clone());
        }
        let template = self.prepare(function).await?;
        *slot = Some(template.clone());
        drop(slot);
        let (watched, weak) = (template.clone(), Rc::downgrade(function));
        let removed = function.removed.clone();
        tokio::task::spawn_local(async move {
            // A template ends with its function, after the last instance.
            let why = tokio::select! {
                why = watched.ended() => why,
                () = removed.notified() => return,
            };
            let Some(function) = weak.upgrade() else { return };
            tracing::warn!(function = %function.name, why, "its template has ended");
            let mut slot = function.template.lock().await;
            if slot.as_ref().is_some_and(|found| Rc::ptr_eq(found, &watched)) {
                *slot = None;
            }
        });
        Ok(template)
    }

    /// Creates a template that is not shared.
    ///
    /// # Errors
    /// The reason why there is none, for humans.
    pub async fn prepare(&self, function: &Function) -> Result<Rc<dyn Template>, String> {
        let backend = self.backends.get(&function.manifest.isolation).ok_or("no isolation")?;
        let image = self.image(function);
        let template = backend.prepare(&image).await.map_err(|error| error.to_string())?;
        let place = Place { version: function.version.to_string(), instance: None };
        for line in template.printed().lines() {
            function.observed.log.note(&place, None, line.to_owned());
        }
        if let Some(found) = template.unpreloaded() {
            let (name, why) = (&function.name, &found.why);
            tracing::warn!(function = %name, why, "not preloaded: each instance imports it itself");
            self.meter.add(Event::FnUnpreloaded);
            function.preload.borrow_mut().without(found);
        }
        Ok(template)
    }

    fn image(&self, function: &Function) -> Image {
        let manifest = &function.manifest;
        let mut environment = BTreeMap::new();
        let mut set = |name: &str, value: &str| {
            environment.insert(name.to_owned(), value.to_owned());
        };
        set("AWS_LAMBDA_FUNCTION_NAME", &function.name);
        set("AWS_LAMBDA_FUNCTION_VERSION", &function.version.to_string());
        set("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", &(manifest.memory.0 >> 20).to_string());
        set("_HANDLER", &manifest.handler);
        set("TZ", ":UTC");
        // Without this glibc would return the top of the heap after each invocation, and fault it
        // in again in the next one (mallopt(3)).
        set("MALLOC_MMAP_THRESHOLD_", "33554432");
        set("MALLOC_TRIM_THRESHOLD_", "67108864");
        let region = self.access.as_ref().map_or(REGION, |access| &access.region);
        set("AWS_REGION", region);
        set("AWS_DEFAULT_REGION", region);
        if let (false, Some(access)) = (manifest.mode.is_offloaded(), &self.access) {
            // The baselines have the usual environment of functions: keys, and a network path to
            // the store.
            set("AWS_ENDPOINT_URL_S3", &access.endpoint);
            set("AWS_ACCESS_KEY_ID", &access.access_key_id);
            set("AWS_SECRET_ACCESS_KEY", &access.secret_access_key);
            set("AWS_EC2_METADATA_DISABLED", "true");
        }
        if let (true, Some(endpoint)) =
            (manifest.mode.is_offloaded(), self.endpoint(&function.tenant.name))
        {
            // The guest refuses clients of any other store, because their calls would be sent to
            // this one.
            set("UNLADE_STORE_ENDPOINT", endpoint);
        }
        if manifest.keys == OwnKeys::Ignore {
            set("UNLADE_KEYS", "ignore");
        }
        environment.extend(manifest.environment.clone());
        let python = manifest.python.as_ref().unwrap_or(&self.config.python);
        let relay = relay(&self.config.tenant_dir(&function.tenant.name));
        Image {
            function: function.name.clone(),
            handler: manifest.handler.clone(),
            code: function.code.path.clone(),
            guest: self.guest.clone(),
            runtime: manifest.runtime,
            python: python.clone(),
            node: self.config.node.clone(),
            packages: [manifest.packages.clone(), self.config.packages.clone()].concat(),
            environment,
            memory_bytes: manifest.memory.0,
            scratch_bytes: self.scratch_bytes(manifest),
            mode: manifest.mode,
            preload: function.preload.borrow().clone(),
            relay: (manifest.mode == Mode::Tcp).then_some(relay),
            network: manifest.mode == Mode::Stock,
            region_bytes: attached_instance::REGION_BYTES,
        }
    }

    /// The size of `/tmp` of a function's instances.
    pub fn scratch_bytes(&self, manifest: &Manifest) -> u64 {
        manifest.scratch.unwrap_or(self.config.scratch).0
    }

    /// The charge of an instance until instances are measured: its memory, and a `/tmp` beyond the
    /// usual size.
    fn charge_bytes(&self, manifest: &Manifest) -> u64 {
        let more = self.scratch_bytes(manifest).saturating_sub(self.config.scratch.0);
        manifest.memory.0.saturating_add(more)
    }

    /// The endpoint of a tenant's store, if it is known.
    fn endpoint(&self, tenant: &str) -> Option<&str> {
        let of_tenant = self.config.tenant.get(tenant);
        let own = of_tenant.and_then(|tenant| tenant.store.as_ref());
        match own.or(self.config.store.as_ref()) {
            Some(store) => store.get("endpoint").and_then(|endpoint| endpoint.as_str()),
            None => self.access.as_ref().map(|access| access.endpoint.as_str()),
        }
    }

    /// Objects that the function will read according to its manifest.
    pub fn hints(
        function: &Function,
        event: &[u8],
    ) -> Vec<unlade_guest_protocol::control::ObjectName> {
        if function.hints.is_empty() || event.len() > hint::EVENT_BYTES_MAX {
            return Vec::new();
        }
        let Ok(event) = serde_json::from_slice(event) else { return Vec::new() };
        function.hints.iter().filter_map(|template| template.fill(&event)).collect()
    }

    /// Assigns an instance to an invocation.
    ///
    /// # Errors
    /// The reason why there is none.
    pub async fn assign(self: &Rc<Host>, function: &Function) -> Result<Assigned, Refused> {
        let invocation = self.next();
        let (sender, receiver) = oneshot::channel();
        self.waiting.borrow_mut().insert(invocation, sender);
        let actions = self.pool.borrow_mut().arrive(function.id, invocation, Instant::now());
        self.act(actions);
        receiver.await.unwrap_or(Err(Refused::Removed))
    }

    /// Removes an instance that has ended.
    pub fn gone(self: &Rc<Host>, instance: InstanceId, why: Option<&str>) {
        self.attached_instances.borrow_mut().remove(&instance);
        let actions = self.pool.borrow_mut().gone(instance, why);
        self.act(actions);
    }

    /// Adds an instance that has started.
    pub fn admit(&self, attached_instance: Rc<AttachedInstance>) {
        self.attached_instances.borrow_mut().insert(attached_instance.id, attached_instance);
    }

    /// All instances.
    pub fn attached_instances(&self) -> Vec<Rc<AttachedInstance>> {
        self.attached_instances.borrow().values().cloned().collect()
    }

    /// The numbers of instances by state.
    pub fn census(&self) -> unlade_fn_model::pool::Census {
        self.pool.borrow().census()
    }

    fn stop(&self, instance: InstanceId) {
        if let Some(attached_instance) = self.attached_instances.borrow().get(&instance) {
            attached_instance.stop.notify_one();
        }
    }

    fn tell(&self, invocation: InvocationId, what: Result<Assigned, Refused>) {
        if let Some(sender) = self.waiting.borrow_mut().remove(&invocation) {
            let _ = sender.send(what);
        }
    }

    fn act(self: &Rc<Host>, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Start { instance, function } => {
                    let found = self.by_id.borrow().get(&function).cloned();
                    let host = self.clone();
                    tokio::task::spawn_local(async move {
                        match found {
                            Some(function) => live(host, instance, function).await,
                            None => host.gone(instance, Some("the function was removed")),
                        }
                    });
                }
                Action::Run { instance, invocation, is_first } => {
                    let attached_instance =
                        self.attached_instances.borrow().get(&instance).cloned();
                    // The pool keeps it until its task reports its end.
                    let Some(attached_instance) = attached_instance else { continue };
                    attached_instance.assign();
                    self.tell(invocation, Ok(Assigned { attached_instance, is_first }));
                }
                Action::Stop { instance } => self.stop(instance),
                Action::Refuse { invocation, why } => {
                    self.meter.add(Event::FnRefused);
                    self.tell(invocation, Err(why));
                }
            }
        }
    }

    /// Runs periodic work: stops old instances and measures the others.
    pub async fn tick(self: Rc<Host>) {
        let mut measured = Instant::now();
        loop {
            tokio::time::sleep(TICK).await;
            let actions = self.pool.borrow_mut().tick(Instant::now());
            self.act(actions);
            if measured.elapsed() >= MEASURE {
                measured = Instant::now();
                self.measure().await;
            }
        }
    }

    /// Charges each function with the memory of its oldest instance plus a quarter, and with the mean
    /// content of `/tmp`. A measurement of memory is expensive, and the oldest instance has grown to
    /// its full size.
    async fn measure(self: &Rc<Host>) {
        let mut found: HashMap<FunctionId, Vec<Rc<AttachedInstance>>> = HashMap::new();
        for attached_instance in self.attached_instances.borrow().values() {
            found.entry(attached_instance.function.id).or_default().push(attached_instance.clone());
        }
        for (function, attached_instances) in found {
            let Some(oldest) = attached_instances.first() else { continue };
            let Some(usage) = oldest.usage() else { continue };
            let used = |one: &Rc<AttachedInstance>| one.instance.scratch_used_bytes();
            let scratch_bytes = attached_instances.iter().map(used).sum::<u64>();
            let charge = measured_charge_bytes(
                usage.private_bytes,
                oldest.function.manifest.memory.0,
                scratch_bytes / attached_instances.len() as u64,
            );
            let actions = self.pool.borrow_mut().charge(function, charge);
            self.act(actions);
            tokio::task::yield_now().await;
        }
    }

    /// The memory of a function's template, if there is one.
    pub fn template_usage(function: &Function) -> Option<unlade_fn_model::isolation::Usage> {
        let slot = function.template.try_lock().ok()?;
        slot.as_ref().and_then(|template| template.usage().ok())
    }
}

impl Availability for Rc<Host> {
    fn ready(&self, instance: InstanceId) {
        let actions = self.pool.borrow_mut().ready(instance, Instant::now());
        self.act(actions);
    }

    fn ending(&self, instance: InstanceId) {
        self.pool.borrow_mut().ending(instance);
    }

    fn froze(&self, function: &Function, frozen: std::io::Result<()>) {
        self.meter.add(if frozen.is_ok() { Event::FnFrozen } else { Event::FnUnfrozen });
        if let Err(error) = frozen
            && !self.has_told_unfrozen.replace(true)
        {
            let name = &function.name;
            tracing::warn!(function = %name, %error, "idle instances go on: they are not frozen");
        }
    }
}

/// The charge of an instance with this private memory, memory limit and content of `/tmp`.
fn measured_charge_bytes(private_bytes: u64, memory_bytes_max: u64, scratch_bytes: u64) -> u64 {
    let memory = (private_bytes / 4 * 5).max(CHARGE_BYTES_MIN).min(memory_bytes_max);
    memory.saturating_add(scratch_bytes)
}

/// Starts an instance, and serves it until it has ended.
async fn live(host: Rc<Host>, id: InstanceId, function: Rc<Function>) {
    let patience = host.config.start_timeout;
    let started = async {
        // The backend has its own timeout for a template: a machine that boots in software takes
        // longer than an instance, and later starts need the template as well.
        let template = host.template(&function).await?;
        let start = attached_instance::start(id, &function, template, patience);
        let started = tokio::time::timeout(patience, start).await;
        let late = |_| Err(format!("it did not start within {} s", patience.as_secs_f64()));
        started.unwrap_or_else(late)
    };
    let (attached_instance, heard) = match started.await {
        Ok(started) => started,
        Err(why) => {
            tracing::warn!(function = %function.name, instance = id, why, "no instance");
            host.meter.add(Event::FnStartFailed);
            return host.gone(id, Some(&why));
        }
    };
    host.meter.add(match attached_instance.origin {
        Origin::Cold => Event::FnStartCold,
        Origin::Restored => Event::FnStartRestored,
    });
    function.observed.meter.init_duration.add(attached_instance.start);
    host.admit(attached_instance.clone());
    host.ready(id);
    let why = attached_instance::serve(&host, &attached_instance, heard).await;
    host.ending(id);
    tracing::debug!(function = %function.name, instance = id, why, "an instance has ended");
    attached_instance.instance.kill();
    attached_instance.link.say(ControlHead::Detach { instance: id });
    attached_instance.link.forget(id);
    attached_instance.close(why);
    // Its memory is free only after its real end.
    let _ = tokio::time::timeout(patience, attached_instance.instance.ended()).await;
    host.gone(id, None);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_charged_its_memory_and_its_files() {
        let mib = |number: u64| number << 20;
        assert_eq!(measured_charge_bytes(mib(40), mib(128), 0), mib(50));
        assert_eq!(measured_charge_bytes(mib(1), mib(128), 0), CHARGE_BYTES_MIN);
        assert_eq!(measured_charge_bytes(mib(120), mib(128), mib(300)), mib(428));
    }
}
