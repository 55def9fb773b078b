//! Waiting for all copies of a queue.

use std::ffi::c_int;

use crate::channel::Channel;
use crate::{sanitize, shm};

/// Waits for all copies of a queue, and runs its handlers.
///
/// # Errors
/// The error number of a failed copy.
pub(crate) fn sync_all(channel: &Channel) -> Result<(), c_int> {
    let synced = channel.sync_all();
    sanitize::over(|_, queue| queue == channel.id);
    if shm::is_used() {
        shm::publish_all();
    }
    synced
}
