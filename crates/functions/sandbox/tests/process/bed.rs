//! A sandbox with the real zygote, and the host's side of its instances' channels.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::MemfdFlags;
use serde_json::{Value, json};
use unlade_fn_model::isolation::{
    Image, Instance, Isolation, IsolationError, Mode, Origin, Preload, Runtime, Started, Template,
};
use unlade_fn_sandbox::process::{Launcher, Process, ProcessConfig};
use unlade_guest_protocol::{CallContext, Deframer, Frame, InvokeHead, Layout};

/// Runs the code in the event, and returns its `result`.
const APP: &str = "\
import os

def handler(event, context):
    scope = {'event': event}
    exec(event['code'], scope)
    return scope.get('result')
";

/// The directories of control groups that instances may be in.
pub const CONTROLLERS: [&str; 6] = ["memory", "cpu", "cpuacct", "pids", "freezer", "unified"];

/// The test environment; removed with everything in it.
pub struct Bed {
    /// The function's directory, and others.
    pub directory: tempfile::TempDir,
    /// The backend.
    pub process: Process,
    /// The input of templates.
    pub image: Image,
}

/// Creates a test environment, or prints the reason why that is impossible.
pub fn bed() -> Option<Bed> {
    bed_with(|_| {})
}

/// Creates a test environment with another configuration.
pub fn bed_with(change: impl FnOnce(&mut ProcessConfig)) -> Option<Bed> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    static BEDS: AtomicU32 = AtomicU32::new(0);
    let function = format!("tested-{}", BEDS.fetch_add(1, Ordering::Relaxed));
    let mut config = ProcessConfig::default();
    change(&mut config);
    let launcher = Launcher {
        program: env!("CARGO_BIN_EXE_sandbox-launcher").into(),
        arguments: Vec::new(),
        init: Vec::new(),
    };
    let process = Process::new(config, launcher);
    if let Err(error) = process.probe() {
        println!("skipped: {error}");
        return None;
    }
    let found = std::process::Command::new("python3").arg("--version").output();
    if !found.is_ok_and(|output| output.status.success()) {
        println!("skipped: there is no python3");
        return None;
    }
    let code = code(directory.path(), "code", APP);
    let image = Image {
        function,
        handler: "app.handler".to_owned(),
        code,
        guest: Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../guest/python"),
        runtime: Runtime::Python,
        python: "python3".into(),
        node: "/usr/bin/node".into(),
        packages: Vec::new(),
        environment: [("GIVEN".to_owned(), "yes".to_owned())].into(),
        memory_bytes: 128 << 20,
        scratch_bytes: 16 << 20,
        mode: Mode::Offload,
        preload: Preload { handler: true, modules: Vec::new() },
        relay: None,
        network: false,
        region_bytes: 0,
    };
    Some(Bed { directory, process, image })
}

/// Creates a function's directory, with this text as its `app.py`.
pub fn code(directory: &Path, name: &str, app: &str) -> PathBuf {
    let code = directory.join(name);
    std::fs::create_dir_all(&code).unwrap();
    std::fs::write(code.join("app.py"), app).unwrap();
    std::fs::set_permissions(&code, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(code.join("app.py"), PermissionsExt::from_mode(0o644)).unwrap();
    code
}

impl Bed {
    /// Creates a template of the image.
    pub async fn template(&self) -> Rc<dyn Template> {
        self.process.prepare(&self.image).await.unwrap()
    }

    /// The error of a template's creation.
    pub async fn refusal(&self) -> IsolationError {
        match self.process.prepare(&self.image).await {
            Ok(_) => panic!("a template was made"),
            Err(error) => error,
        }
    }

    /// Returns true if the machine limits memory by control groups.
    pub fn limits_memory(&self) -> bool {
        let limited = !self.groups("memory").is_empty();
        if !limited {
            println!("skipped: there is no control group for memory");
        }
        limited
    }

    /// The control groups of its templates.
    pub fn groups(&self, controller: &str) -> Vec<PathBuf> {
        let roots = [Path::new("/sys/fs/cgroup").join(controller), "/sys/fs/cgroup".into()];
        let whose = format!("{}-", std::process::id());
        let own = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(&whose) && name.ends_with(&self.image.function)
        };
        let templates = roots.iter().flat_map(|root| std::fs::read_dir(root.join("unlade")));
        templates.flatten().flatten().map(|group| group.path()).filter(own).collect()
    }

    /// Waits until everything of the sandboxes is removed: processes, control groups, mounts.
    pub async fn nothing_is_left(&self) {
        for _ in 0..1500 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if self.left().is_empty() {
                return;
            }
        }
        panic!("left: {:?}", self.left());
    }

    fn left(&self) -> Vec<String> {
        let mut left: Vec<String> =
            descendants().iter().map(|pid| format!("process {pid}: {}", command(*pid))).collect();
        for controller in CONTROLLERS {
            left.extend(self.groups(controller).iter().map(|group| format!("{group:?}")));
        }
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let own = self.directory.path().to_str().unwrap();
        left.extend(mounts.lines().filter(|line| line.contains(own)).map(str::to_owned));
        left
    }
}

fn command(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ")
}

/// The processes below this thread: tests run in parallel, each in a thread of its own with its
/// own children.
pub fn descendants() -> Vec<i32> {
    let children = |path: String| -> Vec<i32> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    };
    let mut found = children("/proc/thread-self/children".to_owned());
    let mut at = 0;
    while at < found.len() {
        let pid = found[at];
        found.extend(children(format!("/proc/{pid}/task/{pid}/children")));
        at += 1;
    }
    found
}

/// An instance that has greeted.
pub struct Guest {
    /// The instance.
    pub instance: Rc<dyn Instance>,
    /// The way in which it was started.
    pub origin: Origin,
    channel: UnixStream,
    frames: Deframer,
    invocations: u32,
}

/// Starts an instance, and answers its greeting.
pub async fn guest(template: &Rc<dyn Template>, name: &str) -> Guest {
    Guest::greeted(template.start(name).await.unwrap())
}

impl Guest {
    /// Reads the HELLO, and answers.
    pub fn greeted(started: Started) -> Guest {
        let channel = UnixStream::from(started.channel);
        channel.set_nonblocking(false).unwrap();
        channel.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut guest = Guest {
            instance: started.instance,
            origin: started.origin,
            channel,
            frames: Deframer::default(),
            invocations: 0,
        };
        let Frame::Hello { nonce, .. } = guest.frame() else { panic!("no HELLO") };
        let layout = Layout { ring_entries: 8, meta_bytes: 65536, guest_slots: 4, host_slots: 4 };
        let header = layout.header(1).unwrap();
        let memory = memory(header.region_bytes, &header.encode());
        let welcome = Frame::Welcome { nonce, epoch: 1, region_bytes: header.region_bytes };
        guest.send(&welcome, Some(memory));
        guest
    }

    fn frame(&mut self) -> Frame {
        let mut buffer = [0; 65536];
        loop {
            if let Some(frame) = self.frames.next_frame().unwrap() {
                return frame;
            }
            let count = self.channel.read(&mut buffer).unwrap();
            assert!(count > 0, "the instance has ended");
            self.frames.push(&buffer[..count]);
        }
    }

    fn send(&mut self, frame: &Frame, beside: Option<OwnedFd>) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes).unwrap();
        if let Some(descriptor) = beside {
            send_with(&self.channel, &bytes, &descriptor);
        } else {
            self.channel.write_all(&bytes).unwrap();
        }
    }

    /// Sends code to run, without waiting.
    pub fn ask(&mut self, code: &str) {
        self.invocations += 1;
        let event = json!({ "code": code }).to_string();
        let head = InvokeHead {
            id: format!("r{}", self.invocations),
            handler: "app.handler".to_owned(),
            function: "tested".to_owned(),
            deadline_ms: 1 << 45,
            memory_mib: 128,
            event_bytes: event.len() as u32,
            event_slot: None,
            context: CallContext::default(),
        };
        self.send(&Frame::Invoke(head, event.into_bytes()), None);
    }

    /// Runs code; returns its `result`, or its error.
    pub fn run(&mut self, code: &str) -> Value {
        self.ask(code);
        self.answer()
    }

    /// Receives the answer.
    pub fn answer(&mut self) -> Value {
        match self.frame() {
            Frame::Reply(_, result) => serde_json::from_slice(&result).unwrap(),
            other => panic!("no answer: {other:?}"),
        }
    }
}

fn memory(bytes: u64, header: &[u8]) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = std::fs::File::from(rustix::fs::memfd_create("region", flags).unwrap());
    file.set_len(bytes).unwrap();
    file.write_all_at(header, 0).unwrap();
    file.into()
}

fn send_with(channel: &UnixStream, bytes: &[u8], descriptor: &OwnedFd) {
    unlade_sys::descriptors::send(channel, bytes, &[descriptor.as_fd()]).unwrap();
}
