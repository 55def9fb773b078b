//! `unlade-lab impair`: makes one link of the namespace it runs in bad, until its input ends.

use crate::load::parse_duration;
use anyhow::{Context, Result};
use clap::Args;
use std::process::ExitCode;
use std::time::Duration;
use unlade_command::input;
use unlade_command::output::line;
use unlade_steering::impair::{ImpairConfig, Impairment};
use unlade_testkit::line::{Chance, Chances};

/// Make a link lose, double and delay packets
#[derive(Debug, Args)]
pub struct ImpairArgs {
    /// The link
    #[arg(long)]
    interface: String,
    /// Share of the packets that are lost: 0.01 or 1%
    #[arg(long, value_parser = parse_probability, default_value = "0")]
    loss: f64,
    /// Share of the packets that come twice
    #[arg(long, value_parser = parse_probability, default_value = "0")]
    duplicate: f64,
    /// Share of the packets that are late, so that others overtake them
    #[arg(long, value_parser = parse_probability, default_value = "0")]
    delay: f64,
    /// How late at most; each is late by a random part of it
    #[arg(long, value_parser = parse_duration, default_value = "3ms")]
    delay_max: Duration,
    /// Decides the fate of the first, second, … packet of each direction
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Reads `0.01` or `1%`.
pub fn parse_probability(text: &str) -> Result<f64, String> {
    let (number, unit) = match text.strip_suffix('%') {
        Some(percent) => (percent, 0.01),
        None => (text, 1.0),
    };
    let probability = number.trim().parse::<f64>().ok().map(|number| number * unit);
    probability
        .filter(|probability| (0.0..=1.0).contains(probability))
        .ok_or_else(|| format!("`{text}` is no probability; write 0.01 or 1%"))
}

/// Runs `unlade-lab impair`: an empty line when the link is bad, the counters as one JSON object at
/// the end.
///
/// # Errors
/// The link is not there, or the kernel refuses the programs.
pub fn run(args: &ImpairArgs) -> Result<ExitCode> {
    let config = ImpairConfig {
        interface: args.interface.clone(),
        chances: Chances {
            loss: Chance::of(args.loss),
            duplicate: Chance::of(args.duplicate),
            late: Chance::of(args.delay),
            damage: Chance::default(),
        },
        delay_max: args.delay_max,
        seed: args.seed,
    };
    let link = Impairment::open(&config)
        .with_context(|| format!("making {} a bad link", args.interface))?;
    line("")?;
    input::wait_for_end();
    let counters = link.counters()?;
    line(serde_json::json!({
        "seen_packets": counters.seen,
        "lost_packets": counters.dropped,
        "duplicated_packets": counters.duplicated,
        "delayed_packets": counters.delayed,
        "released_packets": counters.released,
        "overflowed_packets": counters.overflowed,
    }))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities() {
        assert_eq!(parse_probability("0.01"), Ok(0.01));
        assert_eq!(parse_probability("1%"), Ok(0.01));
        assert_eq!(parse_probability("100 %"), Ok(1.0));
        for bad in ["", "1.5", "-1%", "200%", "NaN", "x"] {
            assert!(parse_probability(bad).is_err(), "{bad}");
        }
    }
}
