//! `unlade nvme read` and `unlade nvme write`.

use super::host::HostArgs;
use super::notice::Notice;
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::time::Instant;
use tokio::task::JoinHandle;
use unlade_command::output::line;
use unlade_config::ByteSize;
use unlade_nvme::initiator::{Address, Namespace};

/// Bytes of one step.
const STEP_BYTES: usize = 1 << 20;
/// Steps at a time.
const STEPS_MAX: usize = 8;

/// Read a part of a namespace into a file
///
/// Offset and length need not be of whole blocks.
#[derive(Debug, Args)]
pub struct ReadArgs {
    /// nvme+tcp://HOST:PORT/NSID?nqn=NQN, or nvme+tls://…; port and NQN may be left out
    address: Address,
    /// Where to begin
    #[arg(long, default_value = "0", value_name = "BYTES")]
    offset: ByteSize,
    /// How much; to the end of the namespace where nothing is said
    #[arg(long, value_name = "BYTES")]
    length: Option<ByteSize>,
    /// The file; `-` is standard output
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    host: HostArgs,
}

/// Write a file to a namespace
///
/// Offset and length are of whole blocks; --pad fills the last one with zeroes. What was there
/// before is lost.
#[derive(Debug, Args)]
pub struct WriteArgs {
    /// nvme+tcp://HOST:PORT/NSID?nqn=NQN, or nvme+tls://…; port and NQN may be left out
    address: Address,
    /// Where to begin
    #[arg(long, default_value = "0", value_name = "BYTES")]
    offset: ByteSize,
    /// The file; `-` is standard input
    #[arg(long = "in", value_name = "FILE")]
    input: PathBuf,
    /// Fill the last block with zeroes
    #[arg(long)]
    pad: bool,
    #[command(flatten)]
    host: HostArgs,
}

fn progress(bytes: Option<u64>) -> ProgressBar {
    let progress = bytes.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    let style =
        ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta} {msg}");
    match style {
        Ok(style) => progress.with_style(style),
        Err(_) => progress,
    }
}

fn report(verb: &str, bytes: u64, started: Instant, to_stderr: bool) -> Result<()> {
    let seconds = started.elapsed().as_secs_f64().max(1e-9);
    let rate = bytes as f64 / seconds / 1e6;
    let text = format!("{verb} {bytes} bytes in {seconds:.3} s, {rate:.1} MB/s");
    if to_stderr {
        eprintln!("{text}");
        return Ok(());
    }
    line(text)
}

/// Runs `unlade nvme read`.
///
/// # Errors
/// The namespace cannot be read, or the file not written.
pub async fn read(args: &ReadArgs) -> Result<()> {
    let namespace = args.host.namespace(&args.address).await?;
    let size = namespace.size_bytes();
    let start = args.offset.0;
    let length = args.length.map_or_else(|| size.saturating_sub(start), |length| length.0);
    let Some(end) = start.checked_add(length).filter(|end| *end <= size) else {
        bail!("--offset {start} and --length {length} go beyond the namespace's {size} bytes");
    };
    let is_stdout = args.out.as_os_str() == "-";
    let mut out: Box<dyn Write> = match is_stdout {
        true => Box::new(std::io::stdout()),
        false => Box::new(
            File::create(&args.out).with_context(|| format!("creating {}", args.out.display()))?,
        ),
    };
    let (began, bar) = (Instant::now(), progress(Some(length)));
    let _notice = Notice::start(namespace.controller(), args.address.peer(), &bar);
    let block = u64::from(namespace.block_bytes());
    let (mut at, mut waiting) = (start / block * block, VecDeque::new());
    while at < end || !waiting.is_empty() {
        while at < end && waiting.len() < STEPS_MAX {
            let bytes = (STEP_BYTES as u64).min(end.next_multiple_of(block) - at);
            waiting.push_back((at, read_step(&namespace, at, bytes as usize)));
            at += bytes;
        }
        let Some((from, step)) = waiting.pop_front() else { break };
        let content = step.await.context("reading")??;
        // Blocks at both ends may be wanted in part.
        let first = start.saturating_sub(from) as usize;
        let last = (end - from).min(content.len() as u64) as usize;
        out.write_all(&content[first..last]).with_context(|| args.out.display().to_string())?;
        bar.inc((last - first) as u64);
    }
    out.flush().with_context(|| args.out.display().to_string())?;
    bar.finish_and_clear();
    report("read", length, began, is_stdout)?;
    namespace.controller().close().await;
    Ok(())
}

type Step<T> = JoinHandle<Result<T, unlade_nvme::initiator::DeviceError>>;

fn read_step(namespace: &Namespace, offset: u64, bytes: usize) -> Step<Vec<u8>> {
    let namespace = namespace.clone();
    tokio::spawn(async move { namespace.read_owned(offset, vec![0; bytes]).await })
}

fn write_step(namespace: &Namespace, offset: u64, bytes: Vec<u8>) -> Step<()> {
    let namespace = namespace.clone();
    tokio::spawn(async move { namespace.write(offset, Bytes::from(bytes)).await })
}

/// Runs `unlade nvme write`.
///
/// # Errors
/// The file cannot be read, or the namespace not written.
pub async fn write(args: &WriteArgs) -> Result<()> {
    let namespace = args.host.namespace(&args.address).await?;
    let name = || args.input.display().to_string();
    let (mut input, known): (Box<dyn Read>, Option<u64>) = match args.input.as_os_str() == "-" {
        true => (Box::new(std::io::stdin()), None),
        false => {
            let mut file = File::open(&args.input).with_context(name)?;
            let bytes = file.seek(SeekFrom::End(0)).with_context(name)?;
            file.rewind().with_context(name)?;
            (Box::new(file), Some(bytes))
        }
    };
    let block = u64::from(namespace.block_bytes());
    let start = args.offset.0;
    if !start.is_multiple_of(block) {
        bail!("--offset {start} is not of whole blocks of {block} bytes");
    }
    if let Some(bytes) = known {
        check_room(&namespace, start, bytes, args.pad)?;
    }
    let (began, bar) = (Instant::now(), progress(known));
    let _notice = Notice::start(namespace.controller(), args.address.peer(), &bar);
    let (mut at, mut total, mut waiting) = (start, 0, VecDeque::new());
    loop {
        let mut content = Vec::with_capacity(STEP_BYTES);
        let count = input.by_ref().take(STEP_BYTES as u64).read_to_end(&mut content);
        let count = count.with_context(name)? as u64;
        if count == 0 {
            break;
        }
        check_room(&namespace, at, count, args.pad)?;
        content.resize(count.next_multiple_of(block) as usize, 0);
        waiting.push_back((count, write_step(&namespace, at, content)));
        at += count.next_multiple_of(block);
        if waiting.len() == STEPS_MAX {
            total += finish_write(&mut waiting, &bar).await?;
        }
    }
    while !waiting.is_empty() {
        total += finish_write(&mut waiting, &bar).await?;
    }
    namespace.flush().await?;
    bar.finish_and_clear();
    report("wrote", total, began, false)?;
    namespace.controller().close().await;
    Ok(())
}

async fn finish_write(waiting: &mut VecDeque<(u64, Step<()>)>, bar: &ProgressBar) -> Result<u64> {
    let Some((count, step)) = waiting.pop_front() else { return Ok(0) };
    step.await.context("writing")??;
    bar.inc(count);
    Ok(count)
}

fn check_room(namespace: &Namespace, start: u64, bytes: u64, pad: bool) -> Result<()> {
    let (block, size) = (u64::from(namespace.block_bytes()), namespace.size_bytes());
    if !pad && !bytes.is_multiple_of(block) {
        bail!("{bytes} bytes are not of whole blocks of {block}; --pad fills the last one");
    }
    let end = start.checked_add(bytes.next_multiple_of(block));
    if end.is_none_or(|end| end > size) {
        bail!("{bytes} bytes from {start} on go beyond the namespace's {size} bytes");
    }
    Ok(())
}
