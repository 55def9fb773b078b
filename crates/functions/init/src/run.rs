//! An instance: its channel, its two ports and its `bootstrap`, until one of them ends.

use std::collections::BTreeMap;
use std::io::Result;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::rc::Rc;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use unlade_guest_protocol::{Frame, HandlerStatus, ReplyHead};

use crate::bootstrap::{Bootstrap, Launch};
use crate::http::Answers;
use crate::instance::Instance;
use crate::link::{Invoked, Link};
use crate::settle::Settled;
use crate::{endpoint, http, invocation, runtime_api};

/// Port of the Runtime API.
const RUNTIME_API: &str = "127.0.0.1:9001";
/// Port of the endpoint for SDKs.
const ENDPOINT: &str = "127.0.0.1:9002";

/// Memory limit of an instance in MiB, if its environment names none.
const MEMORY_MIB: u64 = 128;

/// Runs an instance on its channel; returns its exit status.
///
/// # Errors
/// The channel, a port or `bootstrap` fails.
pub fn run(settled: Settled) -> Result<u8> {
    let Settled { channel, environment } = settled;
    // Orphans of `bootstrap` become children of this process.
    let own = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(own))?;
    let (link, service) = Link::greet(channel, memory_bytes(&environment))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    local.block_on(&runtime, async move {
        let mut ended = signal(SignalKind::child())?;
        let runtime_api = TcpListener::bind(RUNTIME_API).await?;
        let endpoint = TcpListener::bind(ENDPOINT).await?;
        let launch =
            Launch { environment, runtime_api: RUNTIME_API.into(), endpoint: ENDPOINT.into() };
        let (sender, mut arrived) = mpsc::unbounded_channel();
        let mut service = std::pin::pin!(service.run(sender));
        let bootstrap = match Bootstrap::start(&launch) {
            Ok(bootstrap) => bootstrap,
            Err(error) => {
                tokio::task::spawn_local(refuse(link, arrived, error.to_string()));
                return service.await.map(|()| 0);
            }
        };
        let instance = Instance::new(link.clone(), launch, bootstrap);
        let of_runtime_api = Answers {
            state: instance.clone(),
            answer: runtime_api::answer,
            refusal: runtime_api::refusal,
        };
        let of_endpoint =
            Answers { state: link, answer: endpoint::answer, refusal: endpoint::refusal };
        tokio::task::spawn_local(http::serve(runtime_api, of_runtime_api));
        tokio::task::spawn_local(http::serve(endpoint, of_endpoint));
        loop {
            tokio::select! {
                ended = &mut service => return ended.map(|()| 0),
                Some(invoked) = arrived.recv() => instance.invoked(invoked)?,
                _ = ended.recv() => if let Some(status) = instance.reap() {
                    return Ok(exit_code(status));
                },
            }
        }
    })
}

/// The memory limit of the instance, which the function's environment names.
fn memory_bytes(environment: &BTreeMap<String, String>) -> u64 {
    let named = environment.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE");
    named.and_then(|mebibytes| mebibytes.parse::<u64>().ok()).unwrap_or(MEMORY_MIB).min(1 << 20)
        << 20
}

/// Answers every invocation of a `bootstrap` that cannot be executed.
async fn refuse(link: Rc<Link>, mut arrived: mpsc::UnboundedReceiver<Invoked>, why: String) {
    let result = invocation::error("Runtime.InvalidEntrypoint", &why);
    while let Some(Invoked { head, .. }) = arrived.recv().await {
        let head = ReplyHead {
            id: head.id,
            status: HandlerStatus::Error,
            log_tail: String::new(),
            result_bytes: result.len() as u32,
            result_slot: None,
        };
        if link.send(&Frame::Reply(head, result.to_vec())).is_err() {
            return;
        }
    }
}

/// The status with which the instance ends after its `bootstrap`: the same one, or 128 and the number
/// of the signal that has ended it, as shells have it.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
