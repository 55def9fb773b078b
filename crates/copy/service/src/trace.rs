//! Tells tracers which copies the service has made.

use unlade_copy_kernels::probes::{self, Maker};
use unlade_copy_scheduler::plan::Order;

use crate::error::TaskFailure;

/// Fires the probe `done` for an order, before its segments are done: `bytes` of it are copied.
#[inline]
pub(crate) fn done(order: &Order, bytes: u64, failure: Option<TaskFailure>) {
    let dst = order.chunks.first().map_or(0, |chunk| chunk.dst);
    let error = failure.map_or(0, |failure| failure.code().get());
    probes::done(dst as usize, bytes as usize, order.ticket.0, Maker::Service, error);
}
