//! Sends the records of a piece to the client, as they are.
//!
//! ```text
//!  early   the program has taken the header, and the records are the client's
//!  late    first records ──► client; the rest bypasses the sockets
//!  relay   records ──► buffer or splice(2) ──► client
//! ```

use unlade_http::forward::Body;
use unlade_metrics::{self as metrics, Begin, Event};

use super::{Delivery, write};
use crate::exchange::Failed;
use crate::timer::Elapsed;
use crate::upstream::Upstream;

impl Delivery<'_> {
    /// Passes on `bytes` bytes of records, of which the first may have come. `is_last`: nothing follows them.
    /// Bytes behind them stay.
    pub(crate) async fn run_piece(
        &mut self,
        bytes: u64,
        is_last: bool,
        upstream: &mut Upstream,
    ) -> Result<(), Failed> {
        let came_bytes = self.incoming.data().len() as u64;
        let left = if is_last { bytes.saturating_sub(came_bytes) } else { u64::MAX };
        let Some(direct) = &mut self.direct else { return self.relay_piece(bytes, upstream).await };
        if is_last {
            direct.splices.note_length(direct.path, bytes);
        }
        if direct.is_early {
            if is_last && came_bytes == 0 && direct.has_header() {
                return self.follow_piece(bytes, upstream).await;
            }
            let is_ahead = direct.client.as_ref().is_some_and(|client| client.is_ahead());
            direct.cancel(upstream);
            self.worker.meter.add(Event::DirectReturnUnfit(metrics::Unfit::Head));
            if is_ahead {
                return Err(Failed::Server);
            }
        } else if is_last && direct.is_worth_it(bytes) {
            return self.begin_piece(bytes, upstream).await;
        }
        if upstream.end.as_ref().is_some_and(|end| !end.fits(bytes) || !is_last) {
            direct.splices.relay(&mut upstream.end, left);
        }
        self.relay_piece(bytes, upstream).await
    }

    /// Waits for the end of records that are direct from the first byte on.
    async fn follow_piece(&mut self, bytes: u64, upstream: &mut Upstream) -> Result<(), Failed> {
        self.direct.iter().for_each(|direct| direct.settle(upstream, false));
        self.worker.meter.add(Event::DirectReturned(Begin::Early));
        let mut sent = 0;
        let outcome = self.await_end(upstream, bytes, 0, &mut sent).await;
        if let Some(direct) = &self.direct {
            match &outcome {
                Ok(()) => direct.expect_another(),
                Err(_) => direct.abort(upstream),
            }
        }
        outcome
    }

    /// Relays the first records, and lets the rest bypass the sockets, if that is possible.
    async fn begin_piece(&mut self, bytes: u64, upstream: &mut Upstream) -> Result<(), Failed> {
        self.came_bytes = self.incoming.data().len() as u64;
        let (mut body, mut sent) = (Body::Length(bytes), 0);
        if self.came_bytes > bytes {
            return Err(Failed::Server);
        }
        if self.came_bytes > 0 {
            let came = Ok(self.incoming.data().len());
            self.pass_on(came, &mut body, false, &mut sent).await?;
        }
        while !body.is_done() {
            self.go_on(upstream, &mut body, false, &mut sent).await?;
        }
        Ok(())
    }

    /// Passes on `bytes` bytes through this process.
    async fn relay_piece(&mut self, mut bytes: u64, upstream: &mut Upstream) -> Result<(), Failed> {
        while bytes > 0 {
            let came = self.incoming.data();
            if !came.is_empty() {
                let due = bytes.min(came.len() as u64) as usize;
                write(self.client, self.timeouts, &came[..due], false).await?;
                self.incoming.consume(due);
                bytes -= due as u64;
                continue;
            }
            if self.worker.plan().config.body.splices(bytes)
                && let Ok(pipe) = self.worker.pipes.take()
            {
                let (mut body, mut sent) = (Body::Length(bytes), 0);
                self.splice(upstream, pipe, &mut body, &mut sent).await?;
                bytes = body.blind_bytes();
                continue;
            }
            self.incoming.make_room();
            let reading = self.incoming.fill(&mut upstream.tcp, &self.worker.buffers);
            match self.timer.limit(self.timeouts.body_stall, reading).await {
                Err(Elapsed) => return Err(Failed::Slow),
                Ok(Ok(1..)) => {}
                Ok(_) => return Err(Failed::Server),
            }
        }
        Ok(())
    }
}
