//! Messages between the built-in store and the gateway about changed objects, over an `AF_UNIX` stream:
//! one JSON object a line.
//!
//! The store sends each event until the gateway has taken it, the oldest first. The two are processes of
//! one program and trust each other; lengths are checked, and an invalid line ends the connection.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Most bytes of a line. A key has 1 KiB, which is 3 KiB when it is encoded; a configuration has 100 ARNs.
pub const LINE_BYTES_MAX: usize = 64 * 1024;
/// Most events that the store has sent and the gateway has not taken.
pub const WINDOW: usize = 64;

/// A message of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum StoreMessage {
    /// An object has changed, and a function is to be invoked for it.
    Event {
        /// The number of the event in the store; numbers of a key increase with its changes.
        number: u64,
        /// The bucket.
        bucket: String,
        /// The ARN of the function.
        function: String,
        /// The event, as S3 sends it.
        event: serde_json::Value,
    },
    /// A configuration names functions: do they exist, and may the bucket invoke them?
    Check {
        /// The number of the question, which is in its answer.
        question: u64,
        /// The bucket.
        bucket: String,
        /// The ARNs of the functions.
        functions: Vec<String>,
    },
    /// Changes were refused: the store holds as many events as it may.
    Refused {
        /// The number of changes since the last such message.
        count: u64,
    },
}

/// A message of the gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum GatewayMessage {
    /// The gateway has the event of this number, durably.
    Taken {
        /// The number.
        number: u64,
    },
    /// The answer to a question.
    Checked {
        /// The number of the question.
        question: u64,
        /// The refused functions: the ARN and the reason.
        refused: Vec<(String, String)>,
    },
}

/// The reason why the bytes of a peer are no messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LineError {
    /// A line is longer than [`LINE_BYTES_MAX`].
    TooLong,
    /// A line is no message; the text says where.
    Invalid(String),
}

impl std::fmt::Display for LineError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LineError::TooLong => write!(f, "a line has more than {LINE_BYTES_MAX} bytes"),
            LineError::Invalid(why) => write!(f, "a line is no message: {why}"),
        }
    }
}

impl std::error::Error for LineError {}

/// Encodes a message as a line.
///
/// # Errors
/// The line is longer than [`LINE_BYTES_MAX`].
pub fn line<T: Serialize>(message: &T) -> Result<Vec<u8>, LineError> {
    let text = serde_json::to_vec(message);
    let mut text = text.map_err(|error| LineError::Invalid(error.to_string()))?;
    text.push(b'\n');
    if text.len() > LINE_BYTES_MAX { Err(LineError::TooLong) } else { Ok(text) }
}

/// Splits received bytes into messages.
#[derive(Clone, Debug, Default)]
pub struct LineReader {
    received: Vec<u8>,
    /// Bytes without a line end, which are not searched again.
    searched: usize,
}

impl LineReader {
    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
    }

    /// The next message; `None` if its line is not complete.
    ///
    /// # Errors
    /// The line is too long, or no message.
    pub fn next_message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, LineError> {
        let Some(end) = memchr::memchr(b'\n', &self.received[self.searched..]) else {
            self.searched = self.received.len();
            let is_long = self.searched >= LINE_BYTES_MAX;
            return if is_long { Err(LineError::TooLong) } else { Ok(None) };
        };
        let end = self.searched + end;
        self.searched = 0;
        if end >= LINE_BYTES_MAX {
            return Err(LineError::TooLong);
        }
        let message = serde_json::from_slice(&self.received[..end]);
        self.received.drain(..=end);
        message.map(Some).map_err(|error| LineError::Invalid(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events() -> Vec<StoreMessage> {
        let event = serde_json::json!({"Records": [{"s3": {"object": {"key": "a%0Ab"}}}]});
        let (bucket, function) = ("box".to_owned(), "arn:aws:lambda:x:0:function:f".to_owned());
        let functions = vec![function.clone(), String::new()];
        vec![
            StoreMessage::Event { number: u64::MAX, bucket: bucket.clone(), function, event },
            StoreMessage::Check { question: 1, bucket, functions },
            StoreMessage::Refused { count: 3 },
        ]
    }

    #[test]
    fn messages_do_not_depend_on_how_the_bytes_arrive() {
        let sent = events();
        let bytes: Vec<u8> = sent.iter().flat_map(|message| line(message).unwrap()).collect();
        for piece in [1, 2, 7, bytes.len()] {
            let (mut reader, mut found) = (LineReader::default(), Vec::new());
            for piece in bytes.chunks(piece) {
                reader.push(piece);
                while let Some(message) = reader.next_message::<StoreMessage>().unwrap() {
                    found.push(message);
                }
            }
            assert_eq!(found, sent);
        }
        let taken = GatewayMessage::Taken { number: 7 };
        let mut reader = LineReader::default();
        reader.push(&line(&taken).unwrap());
        assert_eq!(reader.next_message(), Ok(Some(taken)));
    }

    #[test]
    fn a_long_line_and_one_that_is_no_message_are_errors() {
        let mut reader = LineReader::default();
        reader.push(&vec![b' '; LINE_BYTES_MAX - 1]);
        assert_eq!(reader.next_message::<StoreMessage>(), Ok(None));
        reader.push(b" ");
        assert_eq!(reader.next_message::<StoreMessage>(), Err(LineError::TooLong));
        let functions = vec!["f".repeat(LINE_BYTES_MAX)];
        let long = StoreMessage::Check { question: 1, bucket: String::new(), functions };
        assert_eq!(line(&long), Err(LineError::TooLong));
        for wrong in ["\n", "{}\n", "{\"kind\":\"other\"}\n", "{\"kind\":\"taken\"}\n"] {
            let mut reader = LineReader::default();
            reader.push(wrong.as_bytes());
            let found = reader.next_message::<GatewayMessage>();
            assert!(matches!(found, Err(LineError::Invalid(_))), "{wrong}");
        }
    }
}
