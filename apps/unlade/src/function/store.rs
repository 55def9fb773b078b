//! `unlade fn store`: a directory as an S3 store.

use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use unlade_runtime::control::ended_by_signal;
use unlade_runtime::logs::LogConfig;

use super::parent::mind_parent;
use crate::daemon;
use unlade_command::output::line;

/// Arguments of `unlade fn store`.
#[derive(Debug, Args)]
pub(super) struct StoreArgs {
    /// The directory; made where it is not there
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Where to listen; port 0 is one that is free
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9000")]
    listen: SocketAddr,
    /// The access key that requests must be signed with; none: they need not be
    #[arg(long, value_name = "ID", requires = "secret_key_file")]
    access_key: Option<String>,
    /// A file with the secret
    #[arg(long, value_name = "FILE", requires = "access_key")]
    secret_key_file: Option<PathBuf>,
    /// A file with more keys: a line each, the access key, a space, the secret
    #[arg(long, value_name = "FILE")]
    keys_file: Option<PathBuf>,
    /// Standard input is a socket to a gateway, which takes the events of changed objects
    #[arg(long, hide = true)]
    gateway_socket: bool,
    /// End when the process that started this one has ended
    #[arg(long, hide = true)]
    die_with_parent: bool,
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// The directory, the address, or what stopped it.
pub(super) fn run(args: StoreArgs) -> Result<ExitCode> {
    let log = LogConfig::default();
    let start = daemon::Start { check: false, log: &log };
    start.run("", daemon::nothing_more, || serve(args))
}

fn serve(args: StoreArgs) -> Result<()> {
    mind_parent(args.die_with_parent)?;
    let mut keys = match &args.keys_file {
        Some(file) => pairs(file)?,
        None => Vec::new(),
    };
    if let (Some(access_key_id), Some(file)) = (args.access_key, args.secret_key_file) {
        let secret = std::fs::read_to_string(&file);
        let secret = secret.with_context(|| file.display().to_string())?;
        let secret_access_key = secret.trim_end().to_owned();
        keys.push(unlade_s3_store::Keys { access_key_id, secret_access_key });
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut store = unlade_s3_store::Store::listen(args.listen, &args.dir, keys).await?;
        if args.gateway_socket {
            store = store.with_gateway(gateway()?);
        }
        let ended = ended_by_signal()?;
        line(format_args!("http://{}", store.address()?))?;
        tokio::select! {
            served = store.serve() => served?,
            () = ended => {}
        }
        Ok(())
    })
}

/// The socket to the gateway, which is the standard input.
fn gateway() -> Result<tokio::net::UnixStream> {
    let stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    stream.set_nonblocking(true).context("standard input is no socket")?;
    tokio::net::UnixStream::from_std(stream).context("standard input is no socket")
}

fn pairs(file: &Path) -> Result<Vec<unlade_s3_store::Keys>> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let mut keys = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [] => {}
            [id, secret] => keys.push(unlade_s3_store::Keys {
                access_key_id: id.to_owned(),
                secret_access_key: secret.to_owned(),
            }),
            _ => bail!("{}:{}: a line is ACCESS_KEY SECRET", file.display(), number + 1),
        }
    }
    if keys.is_empty() {
        bail!("{}: there is no key in it, and without one anybody is served", file.display());
    }
    Ok(keys)
}
