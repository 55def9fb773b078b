//! Discovery of the accelerator's work queues that this process could use.
//!
//! The driver lists its queues below `/sys/bus/dsa/devices`, with their configuration by an
//! administrator (`accel-config`). A queue for user space has a device file in `/dev/dsa`. Queues
//! of the compression accelerator are on the same bus, with device files elsewhere.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Maximum number of queues that are examined.
pub const QUEUES_MAX: usize = 256;
/// Maximum number of bytes that are read of an attribute.
const ATTRIBUTE_BYTES_MAX: u64 = 256;

/// Submission mode of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One process owns the queue, and counts its entries (MOVDIR64B).
    Dedicated,
    /// Any process may submit, and learns if there was room (ENQCMD).
    Shared,
}

/// A queue that a process can open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Name, for example `wq0.1`.
    pub name: String,
    /// Path of the device file.
    pub path: PathBuf,
    /// Submission mode.
    pub mode: Mode,
    /// Number of entries.
    pub entries: usize,
    /// Maximum length of a copy, in bytes.
    pub bytes_max: u64,
    /// Maximum number of descriptors in a batch; 1 if the queue accepts no batches.
    pub batch_max: usize,
}

/// Reason why a queue is unusable.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// The queue belongs to a kernel driver, or has no type.
    #[error("its type is {0:?}; `accel-config config-wq --type=user` makes it one for programs")]
    Type(String),
    /// The queue is disabled.
    #[error("its state is {0:?}; `accel-config enable-wq` switches it on")]
    State(String),
    /// The mode is unknown.
    #[error("its mode is {0:?}; only shared and dedicated are known")]
    Mode(String),
    /// The queue has no device file here: it belongs to another accelerator, or udev has not
    /// created it.
    #[error("{} is not there; is it a queue of another accelerator?", .0.display())]
    NoFile(PathBuf),
    /// A required attribute is missing or not a number.
    #[error("its attribute {name} cannot be read: {source}")]
    Attribute {
        /// Name of the attribute.
        name: &'static str,
        /// The error.
        source: io::Error,
    },
}

/// Result of the probe. Both lists are empty without an accelerator.
#[derive(Debug, Default)]
pub struct ProbeResult {
    /// Usable queues, by name.
    pub usable: Vec<Queue>,
    /// Existing but unusable queues with the reason, by name.
    pub unusable: Vec<(String, Unusable)>,
}

/// Searches for queues on this machine.
pub fn probe() -> ProbeResult {
    probe_at(Path::new("/sys/bus/dsa/devices"), Path::new("/dev/dsa"))
}

/// Searches for queues below other directories: that of the bus, and that of the device files.
pub fn probe_at(bus: &Path, files: &Path) -> ProbeResult {
    let mut found = ProbeResult::default();
    let names = fs::read_dir(bus).into_iter().flatten().flatten();
    let mut names: Vec<String> = names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("wq"))
        .take(QUEUES_MAX)
        .collect();
    names.sort();
    for name in names {
        match queue(&bus.join(&name), files, &name) {
            Ok(queue) => found.usable.push(queue),
            Err(why) => found.unusable.push((name, why)),
        }
    }
    found
}

fn queue(attributes: &Path, files: &Path, name: &str) -> Result<Queue, Unusable> {
    let text = |name| text(attributes, name);
    let number = |name| number(name, &text(name)?);
    match text("type")? {
        user if user == "user" => {}
        other => return Err(Unusable::Type(other)),
    }
    match text("state")? {
        enabled if enabled == "enabled" => {}
        other => return Err(Unusable::State(other)),
    }
    let mode = match text("mode")?.as_str() {
        "dedicated" => Mode::Dedicated,
        "shared" => Mode::Shared,
        other => return Err(Unusable::Mode(other.to_owned())),
    };
    let path = files.join(name);
    if !path.exists() {
        return Err(Unusable::NoFile(path));
    }
    Ok(Queue {
        name: name.to_owned(),
        path,
        mode,
        entries: number("size")? as usize,
        bytes_max: number("max_transfer_size")?,
        // The attribute is missing if the device accepts no batches.
        batch_max: number("max_batch_size").unwrap_or(1) as usize,
    })
}

fn text(attributes: &Path, name: &'static str) -> Result<String, Unusable> {
    let read = || {
        let mut text = String::new();
        let file = File::open(attributes.join(name))?;
        file.take(ATTRIBUTE_BYTES_MAX).read_to_string(&mut text)?;
        Ok(text.trim_end().to_owned())
    };
    read().map_err(|source| Unusable::Attribute { name, source })
}

fn number(name: &'static str, text: &str) -> Result<u64, Unusable> {
    text.parse().map_err(|_| {
        let source = io::Error::new(io::ErrorKind::InvalidData, format!("{text:?} is no number"));
        Unusable::Attribute { name, source }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(directory: &Path, attributes: &[(&str, &str)]) {
        fs::create_dir_all(directory).unwrap();
        for (name, text) in attributes {
            fs::write(directory.join(name), format!("{text}\n")).unwrap();
        }
    }

    #[test]
    fn queues_are_sorted_into_usable_and_not() {
        let root = tempfile::tempdir().unwrap();
        let (bus, files) = (root.path().join("bus"), root.path().join("dev"));
        fs::create_dir_all(&files).unwrap();
        let sizes = [("size", "16"), ("max_transfer_size", "2097152"), ("max_batch_size", "32")];
        let make = |name: &str, kind: &str, state: &str, mode: &str| {
            write(&bus.join(name), &[("type", kind), ("state", state), ("mode", mode)]);
            write(&bus.join(name), &sizes);
            fs::write(files.join(name), "").unwrap();
        };
        make("wq0.0", "user", "enabled", "shared");
        make("wq0.1", "user", "enabled", "dedicated");
        make("wq0.2", "kernel", "enabled", "dedicated");
        make("wq0.3", "user", "disabled", "dedicated");
        make("wq0.4", "user", "enabled", "strange");
        make("wq1.0", "user", "enabled", "shared");
        make("wq2.0", "user", "enabled", "shared");
        write(&bus.join("dsa0"), &[("state", "enabled")]);
        fs::remove_file(files.join("wq1.0")).unwrap();
        fs::write(bus.join("wq2.0/size"), "many").unwrap();
        fs::remove_file(bus.join("wq0.1/max_batch_size")).unwrap();

        let found = probe_at(&bus, &files);
        let queue = |name: &str, mode, batch_max| Queue {
            name: name.to_owned(),
            path: files.join(name),
            mode,
            entries: 16,
            bytes_max: 2 << 20,
            batch_max,
        };
        let usable = [queue("wq0.0", Mode::Shared, 32), queue("wq0.1", Mode::Dedicated, 1)];
        assert_eq!(found.usable, usable);
        let why: Vec<&str> = found.unusable.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(why, ["wq0.2", "wq0.3", "wq0.4", "wq1.0", "wq2.0"]);
        let reasons: Vec<String> = found.unusable.iter().map(|(_, why)| why.to_string()).collect();
        let parts =
            ["\"kernel\"", "\"disabled\"", "\"strange\"", "not there", "\"many\" is no number"];
        for (reason, part) in reasons.iter().zip(parts) {
            assert!(reason.contains(part), "{reason}");
        }
    }

    #[test]
    fn a_machine_without_the_bus_has_no_queues() {
        let root = tempfile::tempdir().unwrap();
        let found = probe_at(&root.path().join("nothing"), root.path());
        assert!(found.usable.is_empty() && found.unusable.is_empty());
    }
}
