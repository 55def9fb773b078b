//! Clean-up of an interrupted process that is building or using a lab: it becomes
//! `unlade-lab down`. Becoming another program ends every thread at once, so nothing goes on
//! building what is being removed.

use super::plan::LabName;
use anyhow::{Context, Result};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use tokio::signal::unix::{SignalKind, signal};

/// The lab to remove, if there is one now.
static CURRENT: Mutex<Option<LabName>> = Mutex::new(None);

/// A lab that goes when the process is interrupted, as long as this exists.
#[derive(Debug)]
pub struct Interruptible(());

impl Drop for Interruptible {
    fn drop(&mut self) {
        *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// From now on SIGINT and SIGTERM remove `name`. One lab at a time.
///
/// # Errors
/// The signals cannot be watched.
pub fn remove_on_interrupt(name: &LabName) -> Result<Interruptible> {
    static WATCH: OnceLock<()> = OnceLock::new();
    *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = Some(name.clone());
    if WATCH.set(()).is_ok() {
        watch().context("watching for SIGINT and SIGTERM")?;
    }
    Ok(Interruptible(()))
}

fn watch() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let wait = move || {
        let status = runtime.block_on(async {
            let mut interrupt = signal(SignalKind::interrupt()).ok()?;
            let mut terminate = signal(SignalKind::terminate()).ok()?;
            tokio::select! {
                _ = interrupt.recv() => Some(130),
                _ = terminate.recv() => Some(143),
            }
        });
        if let Some(status) = status {
            end(status);
        }
    };
    std::thread::Builder::new().name("interrupt".to_owned()).spawn(wait)?;
    Ok(())
}

/// Ends the process with `status`, the lab removed.
fn end(status: i32) {
    let current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let (Some(name), Ok(exe)) = (current, std::env::current_exe()) {
        let script = format!("\"$0\" down --name \"$1\"; exit {status}");
        let error = Command::new("sh").args(["-c", &script]).arg(exe).arg(name.as_str()).exec();
        eprintln!("unlade-lab: lab `{name}` is not removed: {error}");
    }
    std::process::exit(status);
}
