//! Sandboxed processes with the real zygote: the visibility, rights and limits of an instance.

mod bed;
mod imports;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use bed::{CONTROLLERS, Guest, bed, bed_with, code, descendants, guest};
use serde_json::{Value, json};
use unlade_fn_model::isolation::{IsolationError, Mode, Origin, Preload, Template};

/// Makes a call of the C library; returns its result, or the error number.
const CALL: &str = "\
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    ctypes.set_errno(0)
    done = getattr(libc, name)(*arguments)
    return ctypes.get_errno() if done == -1 else 'done'
def tried(what, *arguments):
    try:
        return what(*arguments) and 'done' or 'done'
    except OSError as error:
        return error.errno
";
const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EROFS: i32 = 30;
const ENOSPC: i32 = 28;
const EAFNOSUPPORT: i32 = 97;

fn run(guest: &mut Guest, code: &str) -> Value {
    guest.run(&format!("{CALL}{code}"))
}

#[tokio::test]
async fn an_instance_greets_and_answers() {
    let Some(mut bed) = bed() else { return };
    bed.image.preload.modules.push("json".to_owned());
    let template = bed.template().await;
    let mut one = guest(&template, "one").await;
    assert_eq!(one.origin, Origin::Restored);
    let said = one.run("import os, sys; result = [os.environ['GIVEN'], 'json' in sys.modules, \
                        os.getcwd(), sys.path[0], os.environ['TZ'], os.uname().nodename.startswith('tested-')]");
    assert_eq!(said, json!(["yes", true, "/var/task", "/var/task", ":UTC", true]));
    let usage = one.instance.usage().unwrap();
    assert!(usage.private_bytes > 100_000 && usage.private_bytes < 64 << 20, "{usage:?}");
    assert!(usage.pss_bytes > usage.private_bytes, "{usage:?}");
    let whole = template.usage().unwrap();
    assert!(whole.pss_bytes > 1 << 20 && !whole.cpu.is_zero(), "{whole:?}");
    one.instance.kill();
    assert_eq!(one.instance.ended().await, "a signal ended it");
    assert_eq!(one.instance.ended().await, "a signal ended it", "it can be asked again");
    drop((one, template));
    bed.nothing_is_left().await;
}

/// Waits until an instance that is to be frozen is frozen; false if this machine cannot do that.
async fn is_frozen(guest: &Guest) -> bool {
    if let Err(error) = guest.instance.freeze() {
        println!("skipped: {error}");
        return false;
    }
    for _ in 0..15_000 {
        if guest.instance.is_frozen() {
            return true;
        }
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    panic!("it is not frozen");
}

#[tokio::test]
async fn a_frozen_instance_goes_on_when_it_is_thawed_and_ends_when_it_is_killed() {
    let Some(bed) = bed() else { return };
    let template = bed.template().await;
    let mut one = guest(&template, "one").await;
    let two = guest(&template, "two").await;
    if !is_frozen(&one).await || !is_frozen(&two).await {
        return;
    }
    one.ask("result = 1");
    assert!(one.instance.is_frozen(), "an event does not wake it");
    one.instance.thaw().unwrap();
    assert_eq!(one.answer(), 1);
    assert!(!one.instance.is_frozen());
    assert!(is_frozen(&one).await);
    one.instance.kill();
    assert_eq!(one.instance.ended().await, "a signal ended it");
    // The last frozen one ends with its template.
    drop((one, two, template));
    bed.nothing_is_left().await;
}

#[tokio::test]
async fn an_instance_prints_to_a_pipe_of_its_own() {
    let Some(bed) = bed() else { return };
    let template = bed.template().await;
    let (mut one, mut two) = (guest(&template, "one").await, guest(&template, "two").await);
    one.run(
        "import os, sys; print('first'); sys.stderr.write('second\\n'); os.write(1, b'third\\n')",
    );
    two.run("print('other')");
    let printed = |guest: &Guest| {
        let mut text = [0; 4096];
        let count = rustix::io::read(guest.instance.take_output().unwrap(), &mut text).unwrap();
        String::from_utf8_lossy(&text[..count]).into_owned()
    };
    let mut lines: Vec<String> = printed(&one).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["first", "second", "third"]);
    assert_eq!(printed(&two), "other\n");
    assert!(two.instance.take_output().is_none(), "it was taken");
    drop((one, two, template));
    bed.nothing_is_left().await;
}

#[tokio::test]
async fn nothing_of_the_host_can_be_changed_or_seen() {
    let Some(bed) = bed() else { return };
    let others = code(bed.directory.path(), "others", "SECRET = 1\n");
    let template = bed.template().await;
    let mut one = guest(&template, "one").await;
    for path in ["/x", "/usr/x", "/var/task/x", "/etc/x", "/proc/self/comm", "/dev/x", "/opt/x"] {
        let said = run(&mut one, &format!("result = tried(open, {path:?}, 'w')"));
        assert_eq!(said, EROFS, "{path}");
    }
    let own = bed.directory.path().to_str().unwrap();
    let others = others.to_str().unwrap();
    for path in ["/etc/shadow", "/home", "/roots/0", "/sys", "/run/netns", own, others] {
        assert_eq!(run(&mut one, &format!("result = tried(os.stat, {path:?})")), ENOENT, "{path}");
    }
    let said = one.run("import os; result = sorted(os.listdir('/'))");
    let names: Vec<&str> = said.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    for name in &names {
        let known =
            ["bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "opt", "proc", "roots"];
        let known = [&known[..], &["root", "sbin", "tmp", "usr", "var"]].concat();
        assert!(known.contains(name), "{name} in {names:?}");
    }
    assert_eq!(one.run("import os; result = os.listdir('/roots')"), json!([]));
    // Only channel, region and standard streams are open.
    let said = one.run("import os; result = len(os.listdir('/proc/self/fd'))");
    assert!(said.as_u64().unwrap() <= 6, "{said} descriptors");
    assert_eq!(
        one.run(
            "import os; result = [p for p in os.listdir('/proc') if p.isdigit()] == \
                        [str(os.getpid())]"
        ),
        true,
        "nobody else's processes"
    );
    drop((one, template));
    bed.nothing_is_left().await;
}

#[tokio::test]
async fn an_instance_has_no_rights() {
    let Some(bed) = bed() else { return };
    let template = bed.template().await;
    let mut one = guest(&template, "one").await;
    let status = one.run("result = open('/proc/self/status').read()");
    let status = status.as_str().unwrap();
    let value = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_start_matches(':').split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(value(set), ["0000000000000000"], "{set}");
    }
    assert_eq!(value("NoNewPrivs"), ["1"]);
    assert_eq!(value("Seccomp"), ["2"]);
    let user = &value("Uid")[0];
    assert_ne!(user, "0");
    assert!(value("Uid").iter().chain(&value("Gid")).all(|id| id == user));
    assert!(value("Groups").is_empty());
    for tried in [
        "call('ptrace', 16, 1, 0, 0)",
        "call('unshare', 0x20000)",
        "call('unshare', 0x10000000)",
        "call('mount', b'x', b'/tmp', b'tmpfs', 0, None)",
        "call('umount2', b'/proc', 2)",
        "call('setns', 0, 0)",
        "call('syscall', 434, 1, 0) and call('syscall', 438, 3, 0, 0)",
        "call('syscall', 425, 8, 0)",
        "call('syscall', 321, 0, 0, 0)",
        "call('syscall', 323, 0)",
        "call('syscall', 250, 0, 0)",
        "call('shmget', 0, 4096, 0o1600)",
        "call('semget', 0, 1, 0o1600)",
        "call('msgget', 0, 0o1600)",
        "call('mq_open', b'/x', 0o102, 0o600, None)",
        "tried(os.chroot, '/tmp')",
        "tried(os.setuid, 0)",
        "tried(os.setgroups, [0])",
        "tried(os.sethostname if hasattr(os, 'sethostname') else __import__('socket').sethostname, 'x')",
    ] {
        if cfg!(target_arch = "x86_64") || !tried.contains("syscall") {
            let said = run(&mut one, &format!("import os; result = {tried}"));
            assert_eq!(said, EPERM, "{tried}");
        }
    }
    if cfg!(target_arch = "x86_64") {
        // New namespaces by clone, and a call by its x32 number: getpid.
        assert_eq!(
            run(&mut one, "result = call('syscall', 56, 0x20000000 | 17, 0, 0, 0, 0)"),
            EPERM
        );
        assert_eq!(run(&mut one, "result = call('syscall', 0x40000000 + 39)"), 38);
    }
    drop((one, template));
    bed.nothing_is_left().await;
}

#[tokio::test]
async fn there_is_no_network() {
    let Some(bed) = bed() else { return };
    let template = bed.template().await;
    let mut one = guest(&template, "one").await;
    for family in ["AF_INET", "AF_INET6", "AF_NETLINK", "AF_PACKET"] {
        let said = run(
            &mut one,
            &format!(
                "import socket; result = tried(socket.socket, socket.{family}, socket.SOCK_RAW)"
            ),
        );
        assert_eq!(said, EAFNOSUPPORT, "{family}");
    }
    let said = run(
        &mut one,
        "import socket; result = [tried(socket.socketpair), \
                              socket.if_nameindex() if 0 else len(open('/proc/self/net/dev').readlines())]",
    );
    assert_eq!(said, json!(["done", 3]), "two lines of head, and lo");
    drop((one, template));
    bed.nothing_is_left().await;
}

#[tokio::test]
async fn stock_instances_see_the_network() {
    let Some(mut bed) = bed() else { return };
    bed.image.mode = Mode::Sdk;
    bed.image.network = true;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let template = bed.template().await;
    let mut one = guest(&template, "one").await;
    let said = one.run(&format!(
        "import socket; s = socket.create_connection(('localhost', {port})); \
                                 s.sendall(b'x'); result = s.getpeername()[1]"
    ));
    assert_eq!(said, port);
    drop((one, template));
    bed.nothing_is_left().await;
}

#[tokio::test]
async fn a_relay_that_starts_again_is_reached() {
    let Some(mut bed) = bed() else { return };
    let seen = bed.directory.path().join("tcp");
    std::fs::create_dir(&seen).unwrap();
    std::fs::set_permissions(&seen, PermissionsExt::from_mode(0o755)).unwrap();
    let path = seen.join("relay");
    bed.image.relay = Some(path.clone());
    let template = bed.template().await;
    let mut one = guest(&template, "one").await;
    for _ in 0..2 {
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
        let connects = "\
import os, socket
s = socket.socket(socket.AF_UNIX)
result = tried(s.connect, os.environ['UNLADE_RELAY_PATH'])
";
        assert_eq!(run(&mut one, connects), "done");
        drop(listener);
        std::fs::remove_file(&path).unwrap();
    }
    drop((one, template));
    bed.nothing_is_left().await;
}

#[tokio::test]
async fn instances_are_apart() {
    let Some(bed) = bed() else { return };
    let template = bed.template().await;
    let (mut one, mut two) = (guest(&template, "one").await, guest(&template, "two").await);
    one.run("open('/tmp/mine', 'w').write('x'); open('/dev/shm/also', 'w').write('x')");
    assert_eq!(one.run("import os; result = sorted(os.listdir('/tmp'))"), json!(["also", "mine"]));
    assert_eq!(
        two.run("import os; result = os.listdir('/tmp') + os.listdir('/dev/shm')"),
        json!([])
    );
    let users = [&mut one, &mut two].map(|guest| guest.run("import os; result = os.getuid()"));
    assert_ne!(users[0], users[1]);
    let pid = two.run("import os; result = os.getpid()");
    for target in [pid.to_string(), "1".to_owned()] {
        for signal in [0, 2, 9, 19] {
            let said =
                run(&mut one, &format!("import os; result = tried(os.kill, {target}, {signal})"));
            assert_eq!(said, EPERM, "signal {signal} to {target}");
        }
        for file in ["mem", "environ", "maps", "root/tmp", "fd/0"] {
            let path = format!("/proc/{target}/{file}");
            assert_eq!(run(&mut one, &format!("result = tried(open, {path:?})")), ENOENT, "{path}");
        }
    }
    assert_eq!(two.run("result = 5"), 5);
    // The `/tmp` of each is removed with it; a new instance with the same number has an empty one.
    drop(one);
    for number in 0..4 {
        let mut next = guest(&template, &format!("next-{number}")).await;
        assert_eq!(next.run("import os; result = os.listdir('/tmp')"), json!([]));
    }
    drop((two, template));
    bed.nothing_is_left().await;
}

/// System V's are refused: their objects have no limit and outlive the instance.
#[tokio::test]
async fn shared_memory_and_semaphores_are_files() {
    let Some(bed) = bed() else { return };
    let template = bed.template().await;
    let mut one = guest(&template, "one").await;
    let shares = "\
import mmap, multiprocessing, os
lock = multiprocessing.Lock()
file = os.open('/dev/shm/own', os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 4096)
memory = mmap.mmap(file, 4096)
lock.acquire()
child = os.fork()
if child == 0:
    memory[0] = 7
    lock.release()
    os._exit(0)
lock.acquire()
result = [memory[0], os.waitpid(child, 0)[1]]
";
    assert_eq!(one.run(shares), json!([7, 0]));
    drop((one, template));
    bed.nothing_is_left().await;
}

#[tokio::test]
async fn memory_is_limited_one_by_one() {
    let Some(mut bed) = bed() else { return };
    bed.image.memory_bytes = 48 << 20;
    let template = bed.template().await;
    if !bed.limits_memory() {
        return;
    }
    let (mut one, mut two) = (guest(&template, "one").await, guest(&template, "two").await);
    one.ask("result = len(bytearray(200 << 20))");
    let how = one.instance.ended().await;
    assert_eq!(how, "a signal ended it: it met its memory limit of 48 MiB");
    assert_eq!(two.run("result = len(bytearray(8 << 20))"), 8 << 20, "its sibling lives");
    let mut three = guest(&template, "three").await;
    assert_eq!(three.run("result = 3"), 3, "and so does the template");
    drop((one, two, three, template));
    bed.nothing_is_left().await;
}

#[tokio::test]
async fn scratch_space_is_limited() {
    let Some(bed) = bed() else { return };
    let template = bed.template().await;
    let mut one = guest(&template, "one").await;
    let write =
        "def fill(path, size):\n    with open(path, 'wb') as f:\n        f.write(bytes(size))\n";
    let said = run(
        &mut one,
        &format!(
            "{write}result = [tried(fill, '/tmp/a', 8 << 20), \
                                       tried(fill, '/dev/shm/b', 12 << 20)]"
        ),
    );
    assert_eq!(said, json!(["done", ENOSPC]));
    drop((one, template));
    bed.nothing_is_left().await;
}

#[tokio::test]
async fn a_full_tmp_is_apart_from_memory_which_is_limited() {
    let Some(mut bed) = bed() else { return };
    (bed.image.memory_bytes, bed.image.scratch_bytes) = (48 << 20, 96 << 20);
    let template = bed.template().await;
    if !bed.limits_memory() {
        return;
    }
    let mut one = guest(&template, "one").await;
    assert_eq!(one.instance.scratch_used_bytes(), 0);
    let fill = "\
import os
file, count = os.open('/tmp/full', os.O_WRONLY | os.O_CREAT), 0
try:
    while True:
        count += os.write(file, bytes(1 << 16))
except OSError as error:
    result = [count, error.errno]
os.close(file)
";
    assert_eq!(one.run(fill), json!([96 << 20, ENOSPC]), "more than its memory");
    assert!(!one.instance.limit_memory(), "its files are no memory of it");
    assert_eq!(one.instance.scratch_used_bytes(), 96 << 20);
    assert!(one.instance.memory_peak_bytes().unwrap() < 48 << 20);
    let hold = "import builtins, os\nos.unlink('/tmp/full')\nbuiltins.held = b'x' * (80 << 20)\n";
    one.run(&format!("{hold}result = 1"));
    assert!(one.instance.limit_memory(), "the room for files is no room for memory");
    let how = one.instance.ended().await;
    assert_eq!(how, "a signal ended it: it met its memory limit of 48 MiB");
    drop((one, template));
    bed.nothing_is_left().await;
}

#[tokio::test]
async fn processes_are_limited_and_leave_nothing() {
    let Some(bed) = bed_with(|config| config.processes_max = 24) else { return };
    let template = bed.template().await;
    let mut one = guest(&template, "one").await;
    let bomb = "\
import os, time
count = 0
try:
    while count < 1000:
        if os.fork() == 0:
            os.setsid()
            time.sleep(600)
            os._exit(0)
        count += 1
except OSError as error:
    result = [count, error.errno]
";
    let said = one.run(bomb);
    let count = said[0].as_u64().unwrap();
    assert!((10..=24).contains(&count), "{said}");
    assert_eq!(said[1], 11, "EAGAIN");
    assert!(one.instance.usage().unwrap().private_bytes > 0);
    let mut two = guest(&template, "two").await;
    assert_eq!(
        two.run(
            "import os; p = os.fork()\nif p == 0: os._exit(3)\n\
                        result = os.waitpid(p, 0)[1] >> 8"
        ),
        3
    );
    drop(one);
    drop(two);
    let before = 3; // The launcher twice, the second time as the zygote; and spares are no processes.
    for _ in 0..1000 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        if descendants().len() < before {
            break;
        }
    }
    assert_eq!(descendants().len(), 2, "supervisor and zygote");
    drop(template);
    bed.nothing_is_left().await;
}

#[tokio::test]
async fn the_death_of_a_template_is_told() {
    let Some(bed) = bed() else { return };
    let template = bed.template().await;
    let one = guest(&template, "one").await;
    let zygote = descendants()[1];
    let zygote = rustix::process::Pid::from_raw(zygote).unwrap();
    rustix::process::kill_process(zygote, rustix::process::Signal::KILL).unwrap();
    let how = template.ended().await;
    assert!(how.starts_with("signal 9 ended it"), "{how}");
    let how = one.instance.ended().await;
    assert!(how.starts_with("its template ended: signal 9"), "{how}");
    assert!(matches!(template.start("two").await, Err(IsolationError::Function { .. })));
    assert!(template.usage().is_err() && one.instance.usage().is_err());
    bed.nothing_is_left().await;
}

#[tokio::test]
async fn the_death_of_a_keeper_ends_everything() {
    let Some(bed) = bed() else { return };
    let template = bed.template().await;
    let one = guest(&template, "one").await;
    let supervisor = rustix::process::Pid::from_raw(descendants()[0]).unwrap();
    rustix::process::kill_process(supervisor, rustix::process::Signal::KILL).unwrap();
    let how = template.ended().await;
    assert!(how.contains("supervisor"), "{how}");
    assert!(one.instance.ended().await.contains("its template ended"));
    assert!(template.start("two").await.is_err());
    drop((one, template));
    for _ in 0..500 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        if descendants().is_empty() {
            break;
        }
    }
    assert!(descendants().is_empty());
    // No process was left to remove these; a backend sweeps the groups of ended processes.
    for controller in CONTROLLERS {
        for group in bed.groups(controller) {
            removed(&group).await;
        }
    }
    bed.nothing_is_left().await;
}

/// Removes a control group and its children. A dying process stays in one until the kernel has
/// removed it.
async fn removed(group: &Path) {
    for _ in 0..500 {
        for inner in std::fs::read_dir(group).unwrap().flatten() {
            let _ = std::fs::remove_dir(inner.path());
        }
        if std::fs::remove_dir(group).is_ok() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("{group:?} is not empty");
}

#[tokio::test]
async fn what_cannot_be_imported_is_told() {
    let Some(mut bed) = bed() else { return };
    bed.image.preload.modules.push("nothing_like_it".to_owned());
    let error = bed.refusal().await;
    assert!(matches!(error, IsolationError::Function { .. }), "{error}");
    assert!(error.to_string().contains("No module named 'nothing_like_it'"), "{error}");
    bed.image.python = "/bin/true".into();
    let error = bed.refusal().await;
    assert!(matches!(error, IsolationError::Unusable { .. }), "{error}");
    bed.image.python = "python3".into();
    bed.image.guest = "/nowhere".into();
    let error = bed.refusal().await;
    assert!(matches!(error, IsolationError::System { .. }), "{error}");
    bed.nothing_is_left().await;
}

#[tokio::test]
async fn nothing_is_imported_for_a_cold_start() {
    let Some(mut bed) = bed() else { return };
    bed.image.preload = Preload::default();
    let template = bed.template().await;
    let mut one = guest(&template, "one").await;
    assert_eq!(one.origin, Origin::Cold);
    assert_eq!(one.run("result = 1"), 1, "it is imported when it is invoked");
    assert!(template.start("one").await.is_ok(), "a name is free again once it has started");
    drop((one, template));
    bed.nothing_is_left().await;
}

/// The zygote has executed the function's code, which can prevent a child from entering its
/// groups.
#[tokio::test]
async fn a_hostile_zygote_is_noticed() {
    let Some(mut bed) = bed() else { return };
    let stays = "\
import os, sys
zygote = sys.modules['__main__']
def settle(said, descriptors):
    count = said.get('groups', 0)
    return descriptors[: len(descriptors) - count]
zygote.settle = settle
def handler(event, context): pass
";
    bed.image.code = code(bed.directory.path(), "stays", stays);
    let template = bed.template().await;
    let Err(error) = template.start("one").await else { panic!("it was believed") };
    assert!(error.to_string().contains("another process greeted"), "{error}");
    // A child that changes its user but does not enter its groups is moved there.
    let lingers = "\
import os, sys
zygote = sys.modules['__main__']
original = zygote.settle
def settle(said, descriptors):
    count = said.pop('groups', 0)
    return original(said, descriptors[: len(descriptors) - count])
zygote.settle = settle
def handler(event, context):
    return open('/proc/self/cgroup').read()
";
    drop(template);
    bed.image.code = code(bed.directory.path(), "lingers", lingers);
    let template = bed.template().await;
    let mut one = guest(&template, "one").await;
    let groups = one.run("");
    let groups = groups.as_str().unwrap();
    assert!(!groups.lines().any(|line| line.ends_with("zygote")), "{groups}");
    // A zygote cannot send signals to the host's processes, and has no rights on the host.
    drop((one, template));
    bed.nothing_is_left().await;
}

#[tokio::test]
async fn a_hundred_instances_come_and_go() {
    // What the forks leave in the group of the zygote is several times these limits.
    let Some(mut bed) = bed_with(|config| config.processes_max = 4) else { return };
    bed.image.memory_bytes = 32 << 20;
    let template = bed.template().await;
    let begun = Instant::now();
    let local = tokio::task::LocalSet::new();
    let started = local
        .run_until(async {
            let starts: Vec<_> = (0..100)
                .map(|number| {
                    let template: Rc<dyn Template> = template.clone();
                    tokio::task::spawn_local(async move {
                        template.start(&format!("i{number}")).await.unwrap()
                    })
                })
                .collect();
            let mut started = Vec::new();
            for start in starts {
                started.push(start.await.unwrap());
            }
            started
        })
        .await;
    println!("100 instances started after {:?}", begun.elapsed());
    let mut guests: Vec<Guest> = started.into_iter().map(Guest::greeted).collect();
    let mut pids: Vec<i64> = guests
        .iter_mut()
        .map(|guest| guest.run("import os; result = os.getpid()").as_i64().unwrap())
        .collect();
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), 100);
    for guest in &mut guests {
        guest.instance.kill();
        assert_eq!(guest.instance.ended().await, "a signal ended it");
    }
    drop((guests, template));
    bed.nothing_is_left().await;
}
