//! `unlade nvme key`: a new pre-shared key.

use anyhow::{Context, Result};
use clap::Args;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use unlade_command::output::line;
use unlade_nvme::secure::ConfiguredKey;

/// Make a new pre-shared key, in the interchange format that nvme-cli and targets take
#[derive(Debug, Args)]
pub struct KeyArgs {
    /// A new file for it, readable by its owner only; standard output without
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// 48 bytes for TLS_AES_256_GCM_SHA384, instead of 32 for TLS_AES_128_GCM_SHA256
    #[arg(long)]
    long: bool,
}

/// Reads an existing key.
///
/// # Errors
/// The file cannot be read, or holds no key.
pub fn read(file: &Path) -> Result<ConfiguredKey> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    ConfiguredKey::parse(&text).with_context(|| format!("{}", file.display()))
}

/// Runs `unlade nvme key`.
///
/// # Errors
/// No randomness, or the file exists or cannot be written.
pub fn run(args: &KeyArgs) -> Result<()> {
    let key = ConfiguredKey::generate(args.long)?.encode();
    let Some(path) = &args.out else { return line(key.as_str()) };
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("creating {}", path.display()))?;
    writeln!(file, "{}", key.as_str()).with_context(|| format!("writing {}", path.display()))
}
