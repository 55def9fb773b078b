//! Frames of the channel between an instance and its worker.

use super::invocation::{InvokeHead, ReplyHead};
use super::{VERSION, split_head, u16_at, u32_at, u64_at};
use unlade_bytes::{DecodeError, Frames};

/// Most bytes of a frame after its length.
pub const FRAME_BYTES_MAX: usize = 64 * 1024;
/// Bytes of the length field.
pub const LENGTH_BYTES: usize = 4;

mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const WELCOME: u8 = 2;
    pub(super) const BELL: u8 = 3;
    pub(super) const INVOKE: u8 = 4;
    pub(super) const REPLY: u8 = 5;
    pub(super) const BYE: u8 = 6;
}

/// One message of the channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Guest: greets after its start or restore.
    Hello {
        /// Random, new after each restore.
        nonce: u64,
    },
    /// Host: answers with the region. The memfd is sent with the frame, if there is one.
    Welcome {
        /// The nonce of the HELLO.
        nonce: u64,
        /// The epoch of the following descriptors.
        epoch: u64,
        /// Size of the region.
        region_bytes: u64,
    },
    /// Wakes the receiver, which then checks its ring.
    Bell,
    /// Host: starts an invocation; with the bytes of its event, unless they are in slots.
    Invoke(InvokeHead, Vec<u8>),
    /// Guest: the result of the invocation, with its bytes unless they are in slots.
    Reply(ReplyHead, Vec<u8>),
    /// The reason of the channel's end.
    Bye(String),
}

impl Frame {
    /// Appends the frame. A frame longer than [`FRAME_BYTES_MAX`] is not written.
    ///
    /// # Errors
    /// [`DecodeError::TooLong`]: the payload must be sent in slots.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), DecodeError> {
        let start = out.len();
        out.extend_from_slice(&[0; LENGTH_BYTES]);
        self.encode_content(out);
        let length = out.len() - start - LENGTH_BYTES;
        if length > FRAME_BYTES_MAX {
            out.truncate(start);
            return Err(DecodeError::TooLong { what: "frame", length, limit: FRAME_BYTES_MAX });
        }
        out[start..start + LENGTH_BYTES].copy_from_slice(&(length as u32).to_le_bytes());
        Ok(())
    }

    fn encode_content(&self, out: &mut Vec<u8>) {
        match self {
            Frame::Hello { nonce } => {
                out.push(kind::HELLO);
                out.extend_from_slice(&VERSION.to_le_bytes());
                out.extend_from_slice(&[0; 2]);
                out.extend_from_slice(&nonce.to_le_bytes());
            }
            Frame::Welcome { nonce, epoch, region_bytes } => {
                out.push(kind::WELCOME);
                out.extend_from_slice(&VERSION.to_le_bytes());
                out.extend_from_slice(&[0; 2]);
                for word in [nonce, epoch, region_bytes] {
                    out.extend_from_slice(&word.to_le_bytes());
                }
            }
            Frame::Bell => out.push(kind::BELL),
            Frame::Invoke(head, event) => {
                out.push(kind::INVOKE);
                out.extend_from_slice(&head.to_json());
                out.push(0);
                out.extend_from_slice(event);
            }
            Frame::Reply(head, result) => {
                out.push(kind::REPLY);
                out.extend_from_slice(&head.to_json());
                out.push(0);
                out.extend_from_slice(result);
            }
            Frame::Bye(why) => {
                out.push(kind::BYE);
                out.extend_from_slice(why.as_bytes());
            }
        }
    }

    /// Decodes the frame at the front of `input`; returns it with its length, `None` if more input
    /// is needed.
    ///
    /// # Errors
    /// The channel cannot be resynchronised and must end.
    pub fn decode(input: &[u8]) -> Result<Option<(Frame, usize)>, DecodeError> {
        let Some((length, rest)) = input.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > FRAME_BYTES_MAX {
            return Err(DecodeError::TooLong { what: "frame", length, limit: FRAME_BYTES_MAX });
        }
        let Some(content) = rest.get(..length) else { return Ok(None) };
        let (&kind, content) = content.split_first().ok_or(DecodeError::Truncated)?;
        Ok(Some((decode_content(kind, content)?, LENGTH_BYTES + length)))
    }
}

fn decode_content(kind: u8, content: &[u8]) -> Result<Frame, DecodeError> {
    let exactly = |bytes: usize| match content.len() {
        found if found < bytes => Err(DecodeError::Truncated),
        found if found > bytes => Err(DecodeError::Trailing(found - bytes)),
        _ => Ok(()),
    };
    match kind {
        kind::HELLO => {
            exactly(12)?;
            version(content)?;
            Ok(Frame::Hello { nonce: u64_at(content, 4)? })
        }
        kind::WELCOME => {
            exactly(28)?;
            version(content)?;
            Ok(Frame::Welcome {
                nonce: u64_at(content, 4)?,
                epoch: u64_at(content, 12)?,
                region_bytes: u64_at(content, 20)?,
            })
        }
        kind::BELL => exactly(0).map(|()| Frame::Bell),
        kind::INVOKE => {
            let (head, event) = split_head(content);
            Ok(Frame::Invoke(InvokeHead::from_json(head, event.len())?, event.to_vec()))
        }
        kind::REPLY => {
            let (head, result) = split_head(content);
            Ok(Frame::Reply(ReplyHead::from_json(head, result.len())?, result.to_vec()))
        }
        kind::BYE => Ok(Frame::Bye(String::from_utf8_lossy(content).into_owned())),
        other => Err(DecodeError::Undefined { what: "frame kind", value: other.into() }),
    }
}

fn version(content: &[u8]) -> Result<(), DecodeError> {
    match u16_at(content, 0)? {
        VERSION => Ok(()),
        other => Err(DecodeError::Version(other)),
    }
}

/// Splits received bytes into frames. Holds at most one frame and the bytes of one read.
#[derive(Debug, Default)]
pub struct Deframer(Frames);

impl Deframer {
    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.push(bytes);
    }

    /// The next complete frame; `None` if more bytes are needed.
    ///
    /// # Errors
    /// The frame is invalid; the channel must end.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, DecodeError> {
        self.0.next_with(Frame::decode)
    }
}

/// The length of the frame at the front, including its length field; `None` if it is not known
/// yet. For readers that receive a descriptor with a frame.
///
/// # Errors
/// The announced length exceeds [`FRAME_BYTES_MAX`].
pub fn frame_bytes(input: &[u8]) -> Result<Option<usize>, DecodeError> {
    let Ok(length) = u32_at(input, 0) else { return Ok(None) };
    match length as usize {
        length if length > FRAME_BYTES_MAX => {
            Err(DecodeError::TooLong { what: "frame", length, limit: FRAME_BYTES_MAX })
        }
        length => Ok(Some(LENGTH_BYTES + length)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CallContext, Extent, HandlerStatus};
    use proptest::prelude::*;

    fn any_frame() -> impl Strategy<Value = Frame> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..300);
        prop_oneof![
            any::<u64>().prop_map(|nonce| Frame::Hello { nonce }),
            any::<[u64; 3]>().prop_map(|[nonce, epoch, region_bytes]| Frame::Welcome {
                nonce,
                epoch,
                region_bytes
            }),
            Just(Frame::Bell),
            ("\\PC{0,30}", any::<u32>(), bytes()).prop_map(|(id, memory_mib, event)| {
                let client_context = (memory_mib % 2 == 0).then(|| format!("{{\"a\": \"{id}\"}}"));
                let context = CallContext { trace: id.clone(), client_context };
                let head = InvokeHead {
                    id,
                    handler: "app.handler".into(),
                    function: "f".into(),
                    deadline_ms: 17,
                    memory_mib,
                    event_bytes: event.len() as u32,
                    event_slot: None,
                    context,
                };
                Frame::Invoke(head, event)
            }),
            ("\\PC{0,30}", any::<Option<u16>>(), bytes()).prop_map(|(id, slot, result)| {
                let (result_slot, result) = match slot {
                    Some(slot) => (Some(slot.into()), Vec::new()),
                    None => (None, result),
                };
                let head = ReplyHead {
                    id,
                    status: HandlerStatus::Done,
                    log_tail: "said\u{0}this".into(),
                    result_bytes: if slot.is_some() { 70_000 } else { result.len() as u32 },
                    result_slot,
                };
                Frame::Reply(head, result)
            }),
            "\\PC{0,40}".prop_map(Frame::Bye),
        ]
    }

    proptest! {
        #[test]
        fn frames_survive_any_split(
            frames in proptest::collection::vec(any_frame(), 1..6), chunk in 1usize..64,
        ) {
            let mut bytes = Vec::new();
            for frame in &frames {
                frame.encode(&mut bytes).unwrap();
            }
            let mut deframer = Deframer::default();
            let mut seen = Vec::new();
            for part in bytes.chunks(chunk) {
                deframer.push(part);
                while let Some(frame) = deframer.next_frame().unwrap() {
                    seen.push(frame);
                }
            }
            prop_assert_eq!(seen, frames);
        }

        #[test]
        fn hostile_bytes_never_panic(
            kind in 0u8..9, body in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut bytes = (body.len() as u32 + 1).to_le_bytes().to_vec();
            bytes.push(kind);
            bytes.extend_from_slice(&body);
            let _ = Frame::decode(&bytes);
            let _ = Frame::decode(&body);
        }
    }

    #[test]
    fn a_giant_is_refused_before_it_is_read_and_never_written() {
        let error = Frame::decode(&[0xff; 4]).unwrap_err();
        assert!(matches!(error, DecodeError::TooLong { what: "frame", .. }));
        let mut out = b"before".to_vec();
        let frame = Frame::Bye("x".repeat(FRAME_BYTES_MAX));
        assert!(frame.encode(&mut out).is_err());
        assert_eq!(out, b"before");
    }

    #[test]
    fn a_payload_is_as_long_as_its_head_says_or_in_slots() {
        let said = |json: &str, content: &[u8]| {
            let mut frame = ((json.len() + 2 + content.len()) as u32).to_le_bytes().to_vec();
            frame.push(kind::REPLY);
            frame.extend_from_slice(json.as_bytes());
            frame.push(0);
            frame.extend_from_slice(content);
            Frame::decode(&frame)
        };
        let head = r#"{"id":"a","status":"done","log_tail":"","result_bytes":3}"#;
        assert!(said(head, b"abc").is_ok());
        assert!(said(head, b"ab").is_err());
        let slotted =
            r#"{"id":"a","status":"done","log_tail":"","result_bytes":3,"result_slot":1}"#;
        assert!(said(slotted, b"").is_ok());
        assert!(said(slotted, b"abc").is_err());
        let Frame::Reply(head, _) = said(slotted, b"").unwrap().unwrap().0 else { panic!() };
        assert_eq!(head.slots(), Some(Extent { first_slot: 1, bytes: 3 }));
    }
}
