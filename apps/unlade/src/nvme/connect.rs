//! `unlade nvme discover` and `unlade nvme connect`.

use super::host::HostArgs;
use super::notice::Notice;
use anyhow::{Context, Result};
use clap::Args;
use indicatif::ProgressBar;
use std::sync::Arc;
use std::time::Duration;
use unlade_command::output::line;
use unlade_config::ByteSize;
use unlade_nvme::initiator::{Address, Controller, discover as ask};
use unlade_nvme_wire::Nqn;
use unlade_nvme_wire::discovery::{DiscoveryEntry, EntryKind, Security};
use unlade_nvme_wire::fabrics::DISCOVERY_NQN;

/// List the subsystems that the discovery controller at an address knows
#[derive(Debug, Args)]
pub struct DiscoverArgs {
    /// nvme+tcp://HOST:PORT; discovery controllers are at 4420, or at 8009
    address: Address,
    #[command(flatten)]
    host: HostArgs,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// Connect, show the controller and its namespaces, and check that the connection stays
///
/// This makes no block device: for that the kernel's initiator is there (`nvme connect`). It shows
/// what can be reached, and with --stay that signs of life are answered.
#[derive(Debug, Args)]
pub struct ConnectArgs {
    /// nvme+tcp://HOST:PORT?nqn=NQN, or nvme+tls://…; port and NQN may be left out
    address: Address,
    #[command(flatten)]
    host: HostArgs,
    /// Stay connected for so long, and count signs of life; 0s leaves at once
    #[arg(long, value_parser = humantime::parse_duration, default_value = "0s")]
    stay: Duration,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `unlade nvme discover`.
///
/// # Errors
/// No discovery controller, or it is not understood.
pub async fn discover(args: &DiscoverArgs) -> Result<()> {
    let options =
        args.host.options(Nqn::new(DISCOVERY_NQN)?)?.for_discovery(Nqn::new(DISCOVERY_NQN)?);
    let connector = args.host.connector(&args.address, &options)?;
    let entries = ask(Arc::new(connector), options)
        .await
        .with_context(|| format!("asking {}", args.address))?;
    if entries.is_empty() && !args.json {
        line("no subsystems")?;
    }
    for entry in &entries {
        match args.json {
            true => line(entry_json(entry))?,
            false => line(format_args!(
                "{:<9} {:<5} {}:{} {}",
                kind(entry.kind),
                security(entry.security),
                entry.address.trim(),
                entry.service.trim(),
                entry.subsystem,
            ))?,
        }
    }
    Ok(())
}

fn kind(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::Nvm => "subsystem",
        EntryKind::Referral => "referral",
        EntryKind::Current => "discovery",
        EntryKind::Other(_) => "other",
    }
}

fn security(security: Security) -> &'static str {
    match security {
        Security::None => "plain",
        Security::Tls13 => "tls",
        Security::Other(_) => "other",
    }
}

fn entry_json(entry: &DiscoveryEntry) -> serde_json::Value {
    serde_json::json!({
        "kind": kind(entry.kind),
        "security": security(entry.security),
        "address": entry.address.trim(),
        "service": entry.service.trim(),
        "subsystem": entry.subsystem.as_str(),
        "port_id": entry.port_id,
    })
}

/// Runs `unlade nvme connect`.
///
/// # Errors
/// No controller, or it went away.
pub async fn connect(args: &ConnectArgs) -> Result<()> {
    let controller = args.host.connect(&args.address).await?;
    let report = report(&controller).await?;
    if !args.json {
        print(&report)?;
    }
    let notice = Notice::start(&controller, args.address.peer(), &ProgressBar::hidden());
    tokio::time::sleep(args.stay).await;
    // It may have been lost meanwhile, and not come back.
    controller.identity().await?;
    let stats = controller.stats();
    if args.json {
        let mut report = report;
        report["keep_alives"] = stats.keep_alives.into();
        report["reconnects"] = stats.reconnects.into();
        line(report)?;
    } else if !args.stay.is_zero() {
        line(format_args!(
            "stayed {}: {} signs of life answered, {} reconnections, {} events",
            humantime::format_duration(args.stay),
            stats.keep_alives,
            stats.reconnects,
            stats.events
        ))?;
    }
    drop(notice);
    controller.close().await;
    Ok(())
}

async fn report(controller: &Controller) -> Result<serde_json::Value> {
    let identity = controller.identity().await?;
    let (id, version, digests, queues) = controller.agreed().await?;
    let mut namespaces = Vec::new();
    for number in controller.namespaces().await? {
        let namespace = controller.namespace(number).await?;
        namespaces.push(serde_json::json!({
            "number": number,
            "size_bytes": namespace.size_bytes(),
            "block_bytes": namespace.block_bytes(),
            "read_only": namespace.is_read_only(),
        }));
    }
    Ok(serde_json::json!({
        "subsystem": controller.options().subsystem.as_str(),
        "host": controller.options().host.nqn.as_str(),
        "model": identity.model.trim(),
        "serial": identity.serial.trim(),
        "firmware": identity.firmware.trim(),
        "controller": id,
        "version": format!("{}.{}.{}", version >> 16, version >> 8 & 0xff, version & 0xff),
        "header_digest": digests.header,
        "data_digest": digests.data,
        "queues": queues,
        "in_capsule_bytes": identity.in_capsule_bytes(),
        "transfer_bytes_max": identity.transfer_bytes_max(),
        "namespaces": namespaces,
    }))
}

fn print(report: &serde_json::Value) -> Result<()> {
    let text = |key: &str| report[key].as_str().unwrap_or_default().to_owned();
    line(format_args!("subsystem   {}", text("subsystem")))?;
    line(format_args!(
        "controller  {} {} (serial {}, firmware {}), number {}, NVMe {}",
        text("model"),
        if text("model").is_empty() { "(no model)" } else { "" },
        text("serial"),
        text("firmware"),
        report["controller"],
        text("version"),
    ))?;
    let digest = |key: &str| if report[key] == true { "yes" } else { "no" };
    line(format_args!(
        "connection  {} I/O queues, header digest {}, data digest {}",
        report["queues"],
        digest("header_digest"),
        digest("data_digest"),
    ))?;
    for namespace in report["namespaces"].as_array().into_iter().flatten() {
        let size = ByteSize(namespace["size_bytes"].as_u64().unwrap_or_default());
        let read_only = if namespace["read_only"] == true { ", read-only" } else { "" };
        line(format_args!(
            "namespace   {}: {size}, blocks of {}{read_only}",
            namespace["number"], namespace["block_bytes"]
        ))?;
    }
    Ok(())
}
