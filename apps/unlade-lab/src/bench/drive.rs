//! `unlade-lab load` inside a lab's client: a fixed number of requests, or until told to stop.

use super::helper::Helper;
use super::window::{self, Asked};
use crate::lab::node_command;
use crate::lab::plan::{Front, Node, Plan};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

/// Load on the offloading balancer.
#[derive(Debug, Clone)]
pub struct Drive<'d> {
    pub host: &'d str,
    pub tls: bool,
    pub paths: &'d [String],
    pub connections: u32,
    pub pipeline: u32,
    pub new_connection_every: Option<u64>,
    /// How long a connection may make no progress.
    pub timeout: Duration,
    pub seed: u64,
}

impl Drive<'_> {
    /// Every body is checked.
    fn command(&self, plan: &Plan) -> Result<Command> {
        let exe = std::env::current_exe().context("where is this program?")?;
        let url = window::url(Asked::Front(Front::Offload), self.host, self.tls);
        let mut command = node_command(plan, Node::Client);
        command.arg(exe).args(["load", "--json", "--url", &url, "--verify", "all"]);
        for path in self.paths {
            command.args(["--path", path]);
        }
        command.args(["--connections", &self.connections.to_string()]);
        command.args(["--pipeline", &self.pipeline.to_string()]);
        command.args(["--timeout", &format!("{}us", self.timeout.as_micros())]);
        command.args(["--seed", &self.seed.to_string()]);
        if let Some(every) = self.new_connection_every {
            command.args(["--new-connection-every", &every.to_string()]);
        }
        command.arg("--sha256sums").arg(plan.sums_file());
        Ok(command)
    }

    /// Sends `requests` and returns the load's figures.
    ///
    /// # Errors
    /// The load cannot be run, or a body is wrong; other errors are among the figures.
    pub fn run(&self, plan: &Plan, requests: u64) -> Result<Value> {
        let mut command = self.command(plan)?;
        command.args(["--requests", &requests.to_string()]);
        let value = figures(&Helper::start(&mut command, "the load")?.finish()?)?;
        if number(&value, "mismatches") > 0 {
            bail!("wrong bytes were delivered: {}", example(&value));
        }
        Ok(value)
    }

    /// Starts a load that goes on until [`Running::stop`].
    ///
    /// # Errors
    /// The load cannot be run.
    pub fn start(&self, plan: &Plan) -> Result<Running> {
        let mut command = self.command(plan)?;
        command.arg("--until-stdin-ends");
        Helper::start(&mut command, "the load").map(Running)
    }
}

/// A load that runs; dropping it kills it.
#[derive(Debug)]
pub struct Running(Helper);

impl Running {
    /// Returns true if it has ended by itself: it does when no answer comes any more.
    pub fn has_ended(&mut self) -> bool {
        self.0.has_ended()
    }

    /// Tells it to finish what is in flight, and returns its figures.
    ///
    /// # Errors
    /// It ends without any.
    pub fn stop(self) -> Result<Value> {
        figures(&self.0.finish()?)
    }
}

fn figures(printed: &str) -> Result<Value> {
    serde_json::from_str(printed)
        .with_context(|| format!("the load's result cannot be read: `{}`", printed.trim()))
}

/// A count among the load's figures.
pub fn number(figures: &Value, name: &str) -> u64 {
    figures[name].as_u64().unwrap_or(0)
}

/// One thing that went wrong, as the load saw it.
pub fn example(figures: &Value) -> &str {
    figures["example_error"].as_str().unwrap_or("no error seen")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_load() {
        assert!(figures("").is_err());
        assert!(figures("what?\n").unwrap_err().to_string().contains("what?"));
        let value = figures("{\"requests\":3,\"example_error\":null}\n").unwrap();
        assert_eq!((number(&value, "requests"), number(&value, "errors")), (3, 0));
        assert_eq!(example(&value), "no error seen");
    }
}
