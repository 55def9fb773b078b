//! `unlade doctor`: what works on this machine, what falls back, and why. Nothing is concluded
//! from version numbers: every probe does, small, what the real thing does ([`probes`], [`copy`], [`nic`],
//! [`functions`]).

mod copy;
mod finding;
mod functions;
mod nic;
mod probes;

use anyhow::Result;
use clap::Args;
use finding::{Finding, Outcome, Part};
use std::process::ExitCode;
use unlade_command::output::line;

const LONG_ABOUT: &str = "\
Probes the machine, offload by offload, in a network namespace of its own that is removed \
afterwards. `works` was tried and did; `falls back` says what happens instead; `missing` keeps \
the named feature from being used at all.

Copies need nothing of the machine but a second core: what `falls back` there costs time. A device \
for TLS needs a TAP device; NVMe/TCP needs nothing. Functions need root and Python.

Ends with status 0 when connections can be handed over, 1 when they can only be proxied.";

const AFTER_HELP: &str = "\
Examples:
  unlade doctor
  unlade doctor --json | jq '.[] | select(.outcome != \"works\")'";

/// Say what works on this machine, what falls back, and why
#[derive(Debug, Args)]
#[command(long_about = LONG_ABOUT, after_long_help = AFTER_HELP)]
pub struct DoctorArgs {
    /// One JSON array instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs `unlade doctor`.
///
/// # Errors
/// Standard output cannot be written.
pub fn run(args: &DoctorArgs) -> Result<ExitCode> {
    let findings = all();
    match args.json {
        true => line(serde_json::to_string(&findings)?)?,
        false => print(&findings)?,
    }
    let offload = findings
        .iter()
        .filter(|finding| finding.part == Part::ConnectionOffload)
        .all(|finding| finding.outcome == Outcome::Works);
    if !args.json {
        line(match offload {
            true => "\nConnections can be handed over on this machine.",
            false => {
                "\nConnections cannot be handed over on this machine: `unlade lb` proxies them."
            }
        })?;
    }
    Ok(if offload { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn all() -> Vec<Finding> {
    let connections = probes::all().into_iter();
    connections.chain(copy::all()).chain(nic::all()).chain(functions::all()).collect()
}

fn print(findings: &[Finding]) -> Result<()> {
    for (part, title) in [
        (Part::ConnectionOffload, "connection offload"),
        (Part::Better, "makes it better"),
        (Part::CopyOffload, "copy offload"),
        (Part::ProtocolOffload, "protocol offload"),
        (Part::Functions, "functions"),
        (Part::Lab, "labs and experiments"),
    ] {
        line(format_args!("{title}"))?;
        for finding in findings.iter().filter(|finding| finding.part == part) {
            let outcome = match finding.outcome {
                Outcome::Works => "works",
                Outcome::FallsBack => "falls back",
                Outcome::Missing => "missing",
            };
            line(format_args!("  {:<24} {outcome:<11} {}", finding.feature, finding.detail))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_probed_and_explained() {
        let findings = all();
        for part in [
            Part::ConnectionOffload,
            Part::Better,
            Part::CopyOffload,
            Part::ProtocolOffload,
            Part::Functions,
            Part::Lab,
        ] {
            assert!(findings.iter().any(|finding| finding.part == part), "{part:?}");
        }
        for finding in &findings {
            assert!(!finding.detail.is_empty(), "{}", finding.feature);
        }
        let json = serde_json::to_value(&findings).unwrap();
        assert!(json[0]["outcome"].is_string() && json[0]["feature"].is_string());
    }
}
