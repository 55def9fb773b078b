//! Probes of copy offload.

use super::finding::{Finding, Outcome, Part};
use anyhow::{Context, Result, bail};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use std::fs;
use unlade_copy::{Config, Copier, Service};
use unlade_copy_kernels::dsa::probe::ProbeResult;
use unlade_copy_kernels::populate::{Ranges, Validity};
use unlade_copy_kernels::{dsa, kernel};
use unlade_sys::fault::{Faults, userfaultfd};

/// Bytes that the service is made to copy.
const COPY_BYTES: usize = 256 << 10;
/// Bytes that the kernel is asked to map.
const POPULATE_BYTES: usize = 64 << 10;

/// All of them. What is missing costs time, never a copy: the program copies by itself then.
pub fn all() -> Vec<Finding> {
    let finding = |feature, result: Result<String>| match result {
        Ok(detail) => Finding { part: Part::CopyOffload, feature, outcome: Outcome::Works, detail },
        Err(error) => Finding {
            part: Part::CopyOffload,
            feature,
            outcome: Outcome::FallsBack,
            detail: format!("{error:#}"),
        },
    };
    vec![
        finding("copy service", service()),
        finding(
            "cores to spare",
            cores(std::thread::available_parallelism().map_or(1, usize::from)),
        ),
        finding("copy loops", loops()),
        finding(
            "fast `rep movsb`",
            movsb(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
        ),
        finding("stores past the caches", streams()),
        finding("DSA work queues", accelerator(&dsa::probe::probe())),
        finding("MADV_POPULATE_WRITE", populate()),
        finding("sealed memfds", sealing()),
        finding("userfaultfd", faults()),
        finding("huge pages", huge_pages(&fs::read_to_string(HUGE_PAGES).unwrap_or_default())),
    ]
}

/// Has a copy made.
fn service() -> Result<String> {
    let service = Service::start(Config::default()).context("programs copy by themselves")?;
    let copier = Copier::new(service.attach()?);
    let source: Vec<u8> = (0..COPY_BYTES).map(|at| (at % 251) as u8).collect();
    let (source, copy) = copier.queue_owned(source, vec![0; COPY_BYTES]).wait()?;
    if source != copy {
        bail!("a copy has other bytes than its source");
    }
    Ok(format!("{} were copied by way of a queue", unlade_config::ByteSize(COPY_BYTES as u64)))
}

fn cores(count: usize) -> Result<String> {
    match count {
        0 | 1 => {
            bail!("one only: the service would take it from the program; copies are made at once")
        }
        _ => Ok(format!("{count}: the service can have one while the program runs")),
    }
}

fn loops() -> Result<String> {
    let kernels = kernel::available();
    let names: Vec<&str> = kernels.iter().map(kernel::Kernel::name).collect();
    match kernels.first() {
        Some(first) if first.is_guarded() => {
            Ok(format!("{}; the first is preferred", names.join(", ")))
        }
        _ => bail!(
            "none of our own for this processor: the C library's, in which a bad address ends the process"
        ),
    }
}

/// ERMS and FSRM, from the text of `/proc/cpuinfo`.
fn movsb(cpuinfo: &str) -> Result<String> {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = |name: &str| flags.split_ascii_whitespace().any(|flag| flag == name);
    match (has("erms"), has("fsrm")) {
        (_, true) => Ok("FSRM: also for short copies".to_owned()),
        (true, false) => {
            Ok("ERMS: for long copies; short ones are left to vector loops".to_owned())
        }
        (false, false) => bail!("the processor announces neither ERMS nor FSRM; vector loops copy"),
    }
}

fn streams() -> Result<String> {
    match unlade_copy_kernels::stream::available().first() {
        Some(stream) => {
            let from =
                unlade_config::ByteSize(unlade_copy_kernels::stream::STREAM_BYTES_MIN as u64);
            Ok(format!("{}, for copies from {from} on", stream.name()))
        }
        None => bail!("no such loop for this processor; large copies go through the caches"),
    }
}

fn accelerator(found: &ProbeResult) -> Result<String> {
    let names: Vec<&str> = found.usable.iter().map(|queue| queue.name.as_str()).collect();
    match (names.is_empty(), found.unusable.first()) {
        (false, _) => Ok(names.join(", ")),
        (true, Some((name, why))) => bail!("{name} is of no use: {why}; processors copy"),
        (true, None) => bail!("the machine has none; processors copy"),
    }
}

/// Has pages of this process mapped for writing.
fn populate() -> Result<String> {
    let buffer: Vec<u8> = Vec::with_capacity(POPULATE_BYTES);
    match Ranges::new().validate(buffer.as_ptr().addr(), POPULATE_BYTES, true)? {
        Validity::Mapped => {
            Ok("the kernel maps a destination at once, before it is copied to".to_owned())
        }
        _ => bail!("needs Linux 5.14; pages that are not there fault in the copy, one by one"),
    }
}

/// Means that programs share with `unlade copyd`.
fn sealing() -> Result<String> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("unlade-doctor", flags).context(NO_DAEMON)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&file, seals).context(NO_DAEMON)?;
    match fcntl_get_seals(&file).context(NO_DAEMON)?.contains(seals) {
        true => Ok("programs can share memory with `unlade copyd`".to_owned()),
        false => bail!(NO_DAEMON),
    }
}

const NO_DAEMON: &str = "`unlade copyd` does not run; a program can have the service inside";

fn faults() -> Result<String> {
    if userfaultfd(Faults::All).is_ok() {
        return Ok("permitted, also for faults of system calls; copies do not need it".to_owned());
    }
    match userfaultfd(Faults::UserOnly) {
        Ok(_) => Ok("permitted for a program's own faults; copies do not need it".to_owned()),
        Err(error) => bail!("{error}; copies do not need it"),
    }
}

const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// From the text of [`HUGE_PAGES`], in which the choice is in brackets.
fn huge_pages(text: &str) -> Result<String> {
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    match chosen.map(|(chosen, _)| chosen) {
        Some("always") => Ok("given to every large buffer".to_owned()),
        Some("madvise") => Ok("given to buffers that ask for them (MADV_HUGEPAGE)".to_owned()),
        Some(other) => bail!("{other}: large copies miss the TLB at every page of 4 KiB"),
        None => bail!("not in this kernel: large copies miss the TLB at every small page"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_machine_lacks_is_said() {
        assert!(cores(1).is_err() && cores(2).is_ok());
        assert!(movsb("flags\t\t: fpu erms sse").unwrap().starts_with("ERMS"));
        assert!(movsb("flags\t\t: fsrm erms").unwrap().starts_with("FSRM"));
        assert!(movsb("Features: neon").is_err());
        assert!(huge_pages("always [madvise] never").is_ok());
        assert!(huge_pages("always madvise [never]").is_err() && huge_pages("").is_err());
        let none = accelerator(&ProbeResult::default()).unwrap_err();
        assert!(none.to_string().contains("processors copy"));
    }

    #[test]
    fn every_probe_of_this_machine_ends_with_a_word() {
        let findings = all();
        assert!(findings.iter().all(|finding| !finding.detail.is_empty()));
        assert!(findings.iter().any(|finding| finding.outcome == Outcome::Works));
    }
}
