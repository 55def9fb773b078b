//! Settings with which virtual links keep the order of packets, so that TCP retransmits none.

use super::cpu;
use crate::lab::namespace::write_sysctls;
use crate::lab::plan::Plan;
use anyhow::Result;
use unlade_command::namespace::inside;

/// Keeps this thread, and the labs and loads it starts from now on, on one processor: between
/// several, virtual links swap packets by themselves.
///
/// # Errors
/// This thread may not run there.
pub fn one_processor() -> Result<()> {
    cpu::stay_on(cpu::first_processor())
}

/// Switches tail loss probes off (RFC 8985): they repeat a segment when a timer of two round trips
/// runs out, here well below a millisecond, so that a busy machine makes them without a loss.
///
/// # Errors
/// A namespace of the lab is gone.
pub fn without_probes(plan: &Plan) -> Result<()> {
    let off = [("ipv4/tcp_early_retrans".to_owned(), "0")];
    plan.nodes().try_for_each(|node| inside(&plan.namespace(node), || write_sysctls(&off)))
}
