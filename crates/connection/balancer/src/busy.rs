//! Measures the time spent inside the polls of a future. On a thread that never blocks this is its
//! processor time. Each poll costs two clock readings.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::{Duration, Instant};

/// Runs `future`; returns its output and the time that the thread spent in it.
pub(crate) async fn measured<F: Future>(future: F) -> (F::Output, Duration) {
    let mut future = pin!(future);
    let mut busy = Duration::ZERO;
    let output = poll_fn(|context| {
        let start = Instant::now();
        let polled = future.as_mut().poll(context);
        busy += start.elapsed();
        polled
    })
    .await;
    (output, busy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiting_is_not_being_busy() {
        let start = Instant::now();
        let (output, busy) = measured(async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            7
        })
        .await;
        assert_eq!(output, 7);
        assert!(busy < start.elapsed() - Duration::from_millis(40), "{busy:?}");
    }
}
