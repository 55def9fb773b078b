//! The way of events to the gateway, over a socket ([`unlade_guest_protocol::notification`]): the oldest
//! first, each until the gateway has taken it. Questions about functions go the same way.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use unlade_guest_protocol::notification::{GatewayMessage, LineReader, StoreMessage, WINDOW, line};

use crate::disk::Disk;
use crate::outbox::Question;
use crate::vault::Vault;

/// Most questions without an answer; more wait.
pub const QUESTIONS_MAX: usize = 16;
const READ_BYTES: usize = 16 * 1024;

/// The refused functions of a question, with the reasons.
type Refused = Vec<(String, String)>;

async fn send<T: Serialize>(write: &mut (impl AsyncWrite + Unpin), message: &T) -> io::Result<()> {
    write.write_all(&line(message).map_err(io::Error::other)?).await
}

/// Runs a file system operation on a thread that may block.
async fn on_disk<D: Disk, T: Send + 'static>(
    vault: &Arc<Vault<D>>,
    act: impl FnOnce(&Vault<D>) -> T + Send + 'static,
) -> io::Result<T> {
    let vault = vault.clone();
    tokio::task::spawn_blocking(move || act(&vault)).await.map_err(io::Error::other)
}

/// Sends events and questions until the gateway ends the connection.
///
/// # Errors
/// The connection failed, or the gateway's bytes are no messages.
pub async fn run<D: Disk>(
    vault: &Arc<Vault<D>>,
    stream: UnixStream,
    mut questions: mpsc::Receiver<Question>,
) -> io::Result<()> {
    let (mut read, mut write) = stream.into_split();
    let (mut lines, mut piece) = (LineReader::default(), vec![0; READ_BYTES]);
    let mut sent = BTreeSet::new();
    let mut asked: HashMap<u64, oneshot::Sender<Refused>> = HashMap::new();
    let mut last_question = 0;
    loop {
        while sent.len() < WINDOW
            && let Some(number) = vault.outbox.next(&sent)
        {
            match on_disk(vault, move |vault| vault.record(number)).await? {
                Ok(record) => {
                    let (bucket, function, event) = (record.bucket, record.function, record.event);
                    let message = StoreMessage::Event { number, bucket, function, event };
                    send(&mut write, &message).await?;
                    sent.insert(number);
                }
                Err(error) => {
                    tracing::error!(%error, number, "store: an event cannot be read, and is left alone");
                    vault.outbox.remove(number);
                }
            }
        }
        let count = vault.outbox.take_refused();
        if count > 0 {
            send(&mut write, &StoreMessage::Refused { count }).await?;
        }
        let may_ask = asked.len() < QUESTIONS_MAX;
        tokio::select! {
            found = read.read(&mut piece) => {
                let bytes = found?;
                if bytes == 0 {
                    return Ok(());
                }
                lines.push(&piece[..bytes]);
                while let Some(message) = lines.next_message().map_err(io::Error::other)? {
                    match message {
                        GatewayMessage::Taken { number } if sent.remove(&number) => {
                            on_disk(vault, move |vault| vault.remove_event(number)).await?;
                        }
                        GatewayMessage::Taken { number } => {
                            tracing::warn!(number, "store: an event is taken that was not sent");
                        }
                        GatewayMessage::Checked { question, refused } => {
                            if let Some(answer) = asked.remove(&question) {
                                // The asker may have gone.
                                let _ = answer.send(refused);
                            }
                        }
                    }
                }
            }
            Some(question) = questions.recv(), if may_ask => {
                last_question += 1;
                let Question { bucket, functions, answer } = question;
                let message = StoreMessage::Check { question: last_question, bucket, functions };
                // A question that is too long has no answer.
                match line(&message) {
                    Ok(line) => {
                        asked.retain(|_, answer| !answer.is_closed());
                        asked.insert(last_question, answer);
                        write.write_all(&line).await?;
                    }
                    Err(error) => tracing::warn!(%error, "store: a question for the gateway"),
                }
            }
            () = vault.outbox.news.notified() => {}
        }
    }
}
