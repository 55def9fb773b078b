//! Notices about a connection while it is used.

use indicatif::ProgressBar;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use unlade_nvme::initiator::{Controller, Link, LinkWatch, Loss, Reconnect};

/// How often the progress is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Without progress for so long, the bar says so.
const QUIET: Duration = Duration::from_secs(3);

/// Says on standard error when the connection to a controller is lost and when it is there again,
/// and at a progress bar what is waited for. Ends when it is dropped.
pub struct Notice(JoinHandle<()>);

impl Notice {
    /// Begins to tell; `peer` is where the controller is.
    pub fn start(controller: &Controller, peer: String, bar: &ProgressBar) -> Notice {
        let reconnect = controller.options().reconnect;
        let state = State { peer, reconnect, bar: bar.clone(), lost: None, attempts: 0 };
        Notice(tokio::spawn(state.tell(controller.link())))
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct State {
    peer: String,
    reconnect: Reconnect,
    bar: ProgressBar,
    lost: Option<Instant>,
    attempts: u32,
}

impl State {
    async fn tell(mut self, mut link: LinkWatch) {
        let mut look = tokio::time::interval(LOOK_EVERY);
        let (mut position, mut moved) = (self.bar.position(), Instant::now());
        loop {
            tokio::select! {
                changed = link.changed() => match changed {
                    Some(link) => self.changed(&link),
                    None => return,
                },
                _ = look.tick() => {}
            }
            if position != self.bar.position() {
                (position, moved) = (self.bar.position(), Instant::now());
            }
            self.bar.set_message(self.message(moved.elapsed()));
        }
    }

    fn changed(&mut self, link: &Link) {
        match link {
            Link::Lost(loss) => {
                self.attempts = loss.attempts;
                if self.lost.is_none() {
                    self.lost = Some(Instant::now());
                    self.say(&lost(&self.peer, loss, &self.reconnect));
                }
            }
            Link::Up => {
                if let Some(since) = self.lost.take() {
                    let seconds = since.elapsed().as_secs_f64();
                    self.say(&format!("connected to {} again after {seconds:.1} s", self.peer));
                }
            }
            // The command fails with the reason.
            Link::Gone(_) => self.lost = None,
        }
    }

    fn say(&self, text: &str) {
        self.bar.suspend(|| eprintln!("{text}"));
    }

    /// Text of the progress bar beside the figures.
    fn message(&self, quiet: Duration) -> String {
        match self.lost {
            Some(since) => format!(
                "connection lost {} s ago, attempt {} of {}",
                since.elapsed().as_secs(),
                self.attempts + 1,
                self.reconnect.attempts_max
            ),
            None if quiet >= QUIET => format!("no answer for {} s", quiet.as_secs()),
            None => String::new(),
        }
    }
}

fn lost(peer: &str, loss: &Loss, reconnect: &Reconnect) -> String {
    let start = format!("connection to {peer} lost: {}", loss.reason);
    match reconnect.attempts_max {
        0 => start,
        attempts => format!(
            "{start}; trying to connect again, {attempts} times within {} (--reconnects)",
            humantime::format_duration(Duration::from_secs(reconnect.pauses().as_secs()))
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_told_with_how_long_it_is_tried_again() {
        let loss = Loss { reason: "the stream ended".into(), attempts: 0 };
        let text = lost("192.0.2.1:4420", &loss, &Reconnect::default());
        assert!(text.contains("192.0.2.1:4420 lost: the stream ended"), "{text}");
        assert!(text.contains("20 times within 1m 11s"), "{text}");
        let never = Reconnect { attempts_max: 0, ..Reconnect::default() };
        assert!(!lost("192.0.2.1:4420", &loss, &never).contains("again"));
    }
}
