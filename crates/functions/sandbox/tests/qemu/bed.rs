//! A store, a worker and its gateway's connection, in this thread; a function in a directory.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use unlade_fn_model::isolation::{Image, Isolation, Mode, Preload, Runtime};
use unlade_fn_sandbox::qemu::{Qemu, QemuConfig};
use unlade_fn_worker::config::{InstanceConfig, StoreConfig, TenantConfig, WorkerConfig};
use unlade_guest_protocol::CallContext;
use unlade_guest_protocol::control::{ControlHead, Message, WriteMode};
use unlade_runtime::descriptors::send_with;

pub const REGION_BYTES: u64 = 16 << 20;
const ID: &str = "AKIDTEST";
const SECRET: &str = "a/secret+of=tests";

/// Runs a future on the thread's local set.
pub fn run(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, work);
    drop(local);
    runtime.shutdown_background();
}

/// Creates the backend, if machines are available.
pub fn machines() -> Option<Qemu> {
    let config = QemuConfig { boot_timeout: Duration::from_secs(80), ..QemuConfig::default() };
    let qemu = Qemu::new(config);
    match qemu.probe() {
        Ok(()) => Some(qemu),
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

/// Creates an image with a source text as its function.
pub fn image(dir: &Path, function: &str, source: &str) -> Image {
    let code = dir.join("code");
    fs::create_dir_all(&code).unwrap();
    fs::write(code.join("app.py"), source).unwrap();
    Image {
        function: function.to_owned(),
        handler: "app.handler".to_owned(),
        code,
        guest: Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../guest/python"),
        runtime: Runtime::Python,
        python: PathBuf::from("/usr/bin/python3"),
        node: "/usr/bin/node".into(),
        packages: Vec::new(),
        environment: BTreeMap::from([("GREETING".to_owned(), "hello".to_owned())]),
        memory_bytes: 128 << 20,
        scratch_bytes: 16 << 20,
        mode: Mode::Offload,
        preload: Preload { handler: true, modules: Vec::new() },
        relay: None,
        network: false,
        region_bytes: REGION_BYTES,
    }
}

pub struct Bed {
    gateway: UnixStream,
    input: Vec<u8>,
    unread: VecDeque<Message>,
    objects: PathBuf,
    invocations: u64,
}

impl Bed {
    pub async fn new(dir: &Path) -> Bed {
        let objects = dir.join("objects");
        fs::create_dir_all(objects.join("box")).unwrap();
        let keys =
            unlade_s3_store::Keys { access_key_id: ID.into(), secret_access_key: SECRET.into() };
        let address = (Ipv4Addr::LOCALHOST, 0).into();
        let store = unlade_s3_store::Store::listen(address, &objects, Some(keys)).await.unwrap();
        let text = format!(
            "endpoint = \"http://{}\"\n[credentials]\nfrom = \"keys\"\naccess_key_id = \"{ID}\"\n\
             secret_access_key = \"{SECRET}\"\n",
            store.address().unwrap()
        );
        tokio::task::spawn_local(store.serve());
        let store: StoreConfig = unlade_config::parse(&text, "test").unwrap();
        let config = WorkerConfig {
            control: dir.join("control"),
            relay: None,
            admin: None,
            copies: unlade_fn_worker::config::CopiesConfig::default(),
            store,
            services: unlade_fn_worker::cut::ServicesConfig::default(),
            instance: InstanceConfig::default(),
            tenant: TenantConfig::default(),
            drain_timeout: Duration::from_secs(10),
            log: unlade_runtime::logs::LogConfig::default(),
        };
        let meter = std::sync::Arc::new(unlade_metrics::Meter::new());
        let tenant = unlade_fn_worker::open::tenant(&config, meter).unwrap();
        let listener = UnixListener::bind(&config.control).unwrap();
        tokio::task::spawn_local(unlade_fn_worker::control::serve(tenant, listener));
        let gateway = UnixStream::connect(&config.control).await.unwrap();
        let (input, unread) = (Vec::new(), VecDeque::new());
        let mut bed = Bed { gateway, input, unread, objects, invocations: 0 };
        let policy = json!({"statements": [
            {"effect": "allow", "actions": ["*"], "resources": ["*"]}]});
        bed.say(ControlHead::Role { role: 1, policy }).await;
        bed
    }

    /// The path of an object in the store.
    pub fn object(&self, key: &str) -> PathBuf {
        self.objects.join("box").join(key)
    }

    async fn say(&mut self, message: impl Into<Message>) {
        let mut bytes = Vec::new();
        message.into().encode(&mut bytes).unwrap();
        self.gateway.write_all(&bytes).await.unwrap();
    }

    /// Attaches an instance, and waits until it has greeted.
    pub async fn attach(&mut self, instance: u64, channel: OwnedFd, region: Option<OwnedFd>) {
        let region = region.expect("a machine brings its region");
        let function = "f".to_owned();
        let said = ControlHead::Attach { instance, role: 1, function, region_bytes: REGION_BYTES };
        let mut bytes = Vec::new();
        Message::from(said).encode(&mut bytes).unwrap();
        let gateway = &self.gateway;
        let send = || send_with(gateway, &bytes, &[channel.as_fd(), region.as_fd()]);
        assert_eq!(gateway.async_io(Interest::WRITABLE, send).await.unwrap(), bytes.len());
        self.expect(|said| match said {
            ControlHead::Gone { reason, .. } | ControlHead::Refused { reason, .. } => {
                panic!("{reason}")
            }
            said => {
                matches!(said, ControlHead::Ready { instance: found, .. } if *found == instance)
            }
        })
        .await;
    }

    /// Sends an invocation; returns its number.
    pub async fn begin(&mut self, instance: u64, event: Value) -> String {
        self.invocations += 1;
        let invocation = format!("i-{}", self.invocations);
        let said = ControlHead::Invoke {
            instance,
            invocation: invocation.clone(),
            handler: "app.handler".to_owned(),
            function: "f".to_owned(),
            deadline_ms: u64::MAX >> 12,
            memory_mib: 128,
            writes: WriteMode::DurableReply,
            context: CallContext::default(),
        };
        self.say(Message { said, bytes: event.to_string().into_bytes() }).await;
        invocation
    }

    /// Invokes; returns the result once the writes are durable.
    pub async fn invoke(&mut self, instance: u64, event: Value) -> Value {
        let invocation = self.begin(instance, event).await;
        let is_reply = |said: &ControlHead| match said {
            ControlHead::Gone { reason, .. } | ControlHead::Refused { reason, .. } => {
                panic!("{reason}")
            }
            said => matches!(said, ControlHead::Replied { .. }),
        };
        let reply = self.expect(is_reply).await;
        self.say(ControlHead::Settle { invocation: invocation.clone() }).await;
        // A worker with pending writes reports an invocation twice: after its reply, and here.
        let is_settled = |said: &ControlHead| matches!(said, ControlHead::Settled { invocation: of, .. } if *of == invocation);
        let settled = self.expect(is_settled).await;
        let ControlHead::Settled { failed, .. } = settled.said else { unreachable!() };
        assert!(failed.is_empty(), "{failed:?}");
        serde_json::from_slice(&reply.bytes).unwrap()
    }

    /// Waits until the worker reports the end of an instance.
    pub async fn gone(&mut self, instance: u64) {
        let is_it = |said: &ControlHead| matches!(said, ControlHead::Gone { instance: i, .. } if *i == instance);
        self.expect(is_it).await;
    }

    async fn expect(&mut self, wanted: impl Fn(&ControlHead) -> bool) -> Message {
        if let Some(at) = self.unread.iter().position(|message| wanted(&message.said)) {
            return self.unread.remove(at).unwrap();
        }
        loop {
            while let Some((message, taken)) = Message::decode(&self.input).unwrap() {
                self.input.drain(..taken);
                if wanted(&message.said) {
                    return message;
                }
                self.unread.push_back(message);
            }
            assert!(self.gateway.read_buf(&mut self.input).await.unwrap() > 0, "no worker");
        }
    }
}

/// The nonce of the HELLO in a channel, which stays there.
pub async fn nonce(channel: &OwnedFd) -> u64 {
    let socket = std::os::unix::net::UnixStream::from(channel.try_clone().unwrap());
    socket.set_nonblocking(true).unwrap();
    let socket = UnixStream::from_std(socket).unwrap();
    // u32 bytes, u8 kind, u16 version, u16, u64 nonce.
    let mut hello = [0; 17];
    let peek = || {
        let flags = rustix::net::RecvFlags::PEEK;
        let (bytes, _) = rustix::net::recv(&socket, &mut hello, flags)?;
        match bytes == 17 {
            true => Ok(()),
            false => Err(std::io::ErrorKind::WouldBlock.into()),
        }
    };
    socket.async_io(Interest::READABLE, peek).await.unwrap();
    assert_eq!(hello[4], 1, "a HELLO");
    u64::from_le_bytes(hello[9..17].try_into().unwrap())
}

/// Numbers of this process's children that are machines of a function.
pub fn machines_of(function: &str) -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let lists = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("children")));
    let lists: Vec<String> = lists.map(Result::unwrap_or_default).collect();
    let numbers = lists.iter().flat_map(|list| list.split_whitespace());
    let word = format!("-name\0{function}/");
    let is_machine = |number: &&str| {
        let command = fs::read_to_string(format!("/proc/{number}/cmdline")).unwrap_or_default();
        command.contains(&word)
    };
    numbers.filter(is_machine).map(str::to_owned).collect()
}

/// The user of a process.
pub fn user(process: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
    line.split_whitespace().next().unwrap().to_owned()
}
