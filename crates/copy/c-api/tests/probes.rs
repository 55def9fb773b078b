//! The probes of the built library: their notes, and that the kernel counts them when a program
//! copies.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{ROOT, has, libraries, program, run};

mod support;

/// A probe as `readelf -n` shows it.
#[derive(Debug)]
struct Probe {
    name: String,
    location: u64,
    semaphore: u64,
    arguments: usize,
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap()
}

/// The probes of a library or program. `None` if there is no readelf.
fn probes(path: &Path) -> Option<Vec<Probe>> {
    if !has("readelf") {
        println!("skipped: no readelf");
        return None;
    }
    let text = run(Command::new("readelf").arg("--notes").arg("--wide").arg(path)).stdout;
    let text = String::from_utf8(text).unwrap();
    let mut found = Vec::new();
    for note in text.split("Provider: ").skip(1) {
        let mut lines = note.lines().map(str::trim);
        if lines.next() != Some("unlade_copy") {
            continue;
        }
        let name = lines.next().unwrap().strip_prefix("Name: ").unwrap().to_owned();
        let places = lines.next().unwrap();
        let place = |key: &str| hex(places.split(key).nth(1).unwrap().split(',').next().unwrap());
        let (location, semaphore) = (place("Location: "), place("Semaphore: "));
        let arguments = lines.next().unwrap().strip_prefix("Arguments: ").unwrap();
        let arguments = arguments.split_whitespace().count();
        found.push(Probe { name, location, semaphore, arguments });
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Some(found)
}

/// Offset in the file of an address of the loaded library.
fn file_offset(path: &Path, address: u64) -> u64 {
    let text = run(Command::new("readelf").arg("--segments").arg("--wide").arg(path)).stdout;
    let text = String::from_utf8(text).unwrap();
    let loads = text.lines().filter(|line| line.trim_start().starts_with("LOAD"));
    let mut found = loads.filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (offset, start, bytes) = (hex(words[1]), hex(words[2]), hex(words[4]));
        (start..start + bytes).contains(&address).then(|| address - start + offset)
    });
    found.next().unwrap_or_else(|| panic!("{address:#x} is in no segment of the file\n{text}"))
}

fn library() -> PathBuf {
    libraries().join("libunlade_copier.so").canonicalize().unwrap()
}

#[test]
fn the_library_has_each_probe_once() {
    let Some(found) = probes(&library()) else { return };
    let names: Vec<_> = found.iter().map(|it| (it.name.as_str(), it.arguments)).collect();
    assert_eq!(names, [("done", 5), ("submit", 5), ("sync", 3), ("waited", 2)]);
    let bytes = fs::read(library()).unwrap();
    for probe in &found {
        let at = file_offset(&library(), probe.location) as usize;
        assert_eq!(bytes[at], if cfg!(target_arch = "x86_64") { 0x90 } else { 0x1f }, "{probe:?}");
        assert_eq!(at as u64, probe.location, "perf takes the address for the offset");
        // In the file, so that the kernel can count tracers there, and zero.
        let at = file_offset(&library(), probe.semaphore) as usize;
        assert_eq!(bytes[at..at + 2], [0, 0], "{probe:?}");
    }
}

/// A program that is linked statically has the probes, and none of functions that were removed.
#[test]
fn static_programs_have_valid_probes() {
    if let Some(missing) = ["cc", "readelf"].into_iter().find(|tool| !has(tool)) {
        return println!("skipped: no {missing}");
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("static");
    let mut cc = Command::new("cc");
    cc.arg(Path::new(ROOT).join("examples/readme.c")).arg("-o").arg(&path);
    cc.arg("-I").arg(Path::new(ROOT).join("include")).arg("-Wl,--gc-sections");
    cc.arg(libraries().join("libunlade_copier.a"));
    run(cc.args(["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"]));
    let found = probes(&path).unwrap();
    let names: Vec<_> = found.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["done", "submit", "sync", "waited"]);
    let bytes = fs::read(&path).unwrap();
    for probe in &found {
        let at = file_offset(&path, probe.location) as usize;
        assert_eq!(bytes[at], if cfg!(target_arch = "x86_64") { 0x90 } else { 0x1f }, "{probe:?}");
    }
}

/// The tracefs of this kernel.
struct Tracefs {
    path: PathBuf,
    /// Holds the directory where it was mounted for this test.
    mounted: Option<tempfile::TempDir>,
}

impl Tracefs {
    /// Uses the one that is mounted, or mounts it.
    ///
    /// # Errors
    /// The reason why there is none with user probes.
    fn new() -> Result<Tracefs, String> {
        let usual = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"].map(PathBuf::from);
        let tracefs = match usual.into_iter().find(|path| path.join("uprobe_events").exists()) {
            Some(path) => Tracefs { path, mounted: None },
            None => Tracefs::mount()?,
        };
        let opened = OpenOptions::new().append(true).open(tracefs.path.join("uprobe_events"));
        let why = |error| format!("the kernel has no user probes, or they need root: {error}");
        opened.map(|_| tracefs).map_err(why)
    }

    fn mount() -> Result<Tracefs, String> {
        let directory = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tracefs", "tracefs"]).arg(directory.path());
        let output = mount.output().map_err(|error| format!("mount: {error}"))?;
        let path = directory.path().to_owned();
        match output.status.success() {
            true => Ok(Tracefs { path, mounted: Some(directory) }),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        if self.mounted.is_some() {
            let _ = Command::new("umount").arg(&self.path).status();
        }
    }
}

/// Events of the kernel at the library's probes; removed at the end.
struct Events {
    tracefs: Tracefs,
    group: String,
    names: Vec<String>,
}

impl Events {
    fn control(&self, text: &str) {
        let file = OpenOptions::new().append(true).open(self.tracefs.path.join("uprobe_events"));
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.unwrap_or_else(|error| panic!("uprobe_events: `{text}`: {error}"));
    }

    fn enable(&self, is_on: bool) -> std::io::Result<()> {
        let path = self.tracefs.path.join("events").join(&self.group).join("enable");
        fs::write(path, if is_on { "1" } else { "0" })
    }

    /// Number of times that each event has occurred, by name.
    fn counts(&self) -> Vec<(String, u64)> {
        let text = fs::read_to_string(self.tracefs.path.join("uprobe_profile")).unwrap();
        let count = |name: &String| {
            let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let names = [name.clone(), format!("{}:{name}", self.group)];
            let mut counts =
                lines.filter(|words| names.iter().any(|name| words.get(1) == Some(&name.as_str())));
            counts.next().map_or(0, |words| words[2].parse().unwrap())
        };
        self.names.iter().map(|name| (name.clone(), count(name))).collect()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let _ = self.enable(false);
        for name in &self.names {
            let text = format!("-:{}/{name}\n", self.group);
            let file =
                OpenOptions::new().append(true).open(self.tracefs.path.join("uprobe_events"));
            let _ = file.and_then(|mut file| file.write_all(text.as_bytes()));
        }
    }
}

#[test]
fn probes_fire_when_a_program_copies() {
    let tracefs = match Tracefs::new() {
        Ok(tracefs) => tracefs,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let Some(found) = probes(&library()) else { return };
    if !has("cc") {
        return println!("skipped: no cc");
    }
    let directory = tempfile::tempdir().unwrap();
    // A copy of its own: other programs that use this build do not count.
    let traced = directory.path().canonicalize().unwrap().join("libunlade_copier.so.0");
    fs::copy(library(), &traced).unwrap();
    let source = directory.path().join("program.c");
    fs::write(&source, PROGRAM).unwrap();
    let path = directory.path().join("program");
    let mut cc = Command::new("cc");
    cc.arg(&source).arg("-I").arg(Path::new(ROOT).join("include")).arg(&traced);
    run(cc.arg("-o").arg(&path));

    let group = format!("unlade_test_{}", std::process::id());
    // Names are unique: the profile of some kernels shows no group.
    let name = |probe: &Probe| format!("{}_{}", probe.name, std::process::id());
    let mut events = Events { tracefs, group, names: Vec::new() };
    for probe in &found {
        let (at, count) =
            (file_offset(&traced, probe.location), file_offset(&traced, probe.semaphore));
        let (group, name) = (&events.group, name(probe));
        events.control(&format!("p:{group}/{name} {}:{at:#x}({count:#x})\n", traced.display()));
        events.names.push(name);
    }
    events.enable(true).unwrap();
    let mut command = program(&path);
    run(command.env("LD_LIBRARY_PATH", directory.path()).env("COPIER_OPTIONS", "polling=scenario"));
    let counts = events.counts();
    let of = |name: &str| {
        let name = format!("{name}_{}", std::process::id());
        counts.iter().find(|(found, _)| *found == name).map(|(_, count)| *count).unwrap()
    };
    // 10 synchronous copies and 10 queued ones, each with one sync. A queued copy is done in one
    // or more parts, and its sync may find it done.
    assert_eq!((of("submit"), of("sync")), (20, 20), "{counts:?}");
    assert!(of("done") >= 20, "{counts:?}");
    assert!(of("waited") <= 10, "{counts:?}");

    // Without a tracer nothing counts.
    events.enable(false).unwrap();
    run(&mut command);
    assert_eq!(events.counts(), counts);
}

const PROGRAM: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <unlade/copier.h>

int main(void)
{
    size_t n = 1000;
    struct copier_task_opts queued = {sizeof queued, COPIER_QUEUED, 0, 0};
    char *from = malloc(n), *to = malloc(n);
    for (int i = 0; i < 10; i++) {
        memset(from, i, n);
        amemcpy(to, from, n); /* too small to be queued */
        if (csync(to, n) != 0 || memcmp(to, from, n) != 0)
            return 1;
        memset(from, i + 100, n);
        if (_amemcpy(to, from, n, -1, NULL, NULL, &queued) != 0)
            return 2;
        if (csync(to, n) != 0 || memcmp(to, from, n) != 0)
            return 3;
    }
    return 0;
}
"#;
