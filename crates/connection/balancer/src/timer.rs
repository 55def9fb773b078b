//! Time limits of one connection, with a single timer that is seldom moved.
//!
//! A limit is almost always met long before its time. Therefore the runtime's timer stays where it
//! is while it is earlier than the limit in force. When it fires too early it is moved. The usual
//! request costs no operation on the timer wheel.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// The time limit has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Elapsed;

/// The timer of one connection.
#[derive(Debug, Default)]
pub(crate) struct Timer {
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timer {
    /// Waits for `future`, at most `after` from its first poll that is not ready.
    pub(crate) async fn limit<F: Future>(
        &mut self,
        after: Duration,
        future: F,
    ) -> Result<F::Output, Elapsed> {
        let mut future = pin!(future);
        let mut deadline = None;
        poll_fn(|context| {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Ok(output));
            }
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + after);
            self.poll_until(deadline, context).map(|()| Err(Elapsed))
        })
        .await
    }

    /// As [`Timer::limit`], with a point in time.
    pub(crate) async fn until<F: Future>(
        &mut self,
        deadline: Instant,
        future: F,
    ) -> Result<F::Output, Elapsed> {
        let mut future = pin!(future);
        poll_fn(|context| {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Ok(output));
            }
            self.poll_until(deadline, context).map(|()| Err(Elapsed))
        })
        .await
    }

    /// Ready once `deadline` has passed.
    fn poll_until(&mut self, deadline: Instant, context: &mut Context<'_>) -> Poll<()> {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if sleep.deadline() > deadline {
            sleep.as_mut().reset(deadline);
        }
        while sleep.as_mut().poll(context).is_ready() {
            if sleep.deadline() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn limits_shorten_and_lengthen() {
        let mut timer = Timer::default();
        let second = Duration::from_secs(1);
        for seconds in [5, 1, 60, 2] {
            let start = Instant::now();
            assert_eq!(timer.limit(seconds * second, pending::<()>()).await, Err(Elapsed));
            let waited = start.elapsed();
            assert!(waited >= seconds * second && waited < (seconds + 1) * second, "{waited:?}");
            assert_eq!(timer.limit(second, ready(7)).await, Ok(7));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_left_behind_does_not_end_the_next_wait() {
        let mut timer = Timer::default();
        let second = Duration::from_secs(1);
        let brief = tokio::time::sleep(second / 2);
        assert_eq!(timer.limit(second, brief).await, Ok(()));
        // The wheel still has the old deadline, which passes during this wait.
        let longer = tokio::time::sleep(3 * second);
        assert_eq!(timer.limit(10 * second, longer).await, Ok(()));
        let past = Instant::now();
        assert_eq!(timer.until(past, pending::<()>()).await, Err(Elapsed));
    }
}
