//! Alerts and post-handshake messages: control information from the peer.

use crate::error::RecordError;

/// Alert levels and the descriptions used here (RFC 8446 §6).
pub(crate) const WARNING: u8 = 1;
pub(crate) const FATAL: u8 = 2;
pub(crate) const CLOSE_NOTIFY: u8 = 0;
const USER_CANCELED: u8 = 90;
pub(crate) const NO_RENEGOTIATION: u8 = 100;

/// Longest accepted handshake message after the handshake.
const MESSAGE_BYTES_MAX: usize = 1 << 14;

const HELLO_REQUEST: u8 = 0;
const CLIENT_HELLO: u8 = 1;
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// The local end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

/// An alert from the peer that does not end the connection at once.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Alert {
    /// The peer sends no more data.
    CloseNotify,
    /// A warning without effect.
    Warning,
}

/// Parses the alert that is the content of one record (RFC 8446 §6, RFC 5246 §7.2).
pub(crate) fn alert(is_13: bool, content: &[u8]) -> Result<Alert, RecordError> {
    let &[level, description] = content else {
        return Err(RecordError::Decode("an alert that is not two bytes long"));
    };
    match (level, description) {
        // TLS 1.3 ignores the level; close_notify is a warning in all other versions.
        (WARNING | FATAL, CLOSE_NOTIFY) => Ok(Alert::CloseNotify),
        (WARNING | FATAL, USER_CANCELED) if is_13 => Ok(Alert::Warning),
        (WARNING, _) if !is_13 => Ok(Alert::Warning),
        (WARNING | FATAL, _) => Err(RecordError::AlertReceived(description)),
        _ => Err(RecordError::IllegalParameter("an alert of an unknown level")),
    }
}

/// A post-handshake message that is accepted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// The peer has changed its sending key; `requested`: this end must change its own.
    KeyUpdate { requested: bool },
    /// A TLS 1.2 peer requests renegotiation.
    Renegotiation,
    /// A session ticket, which is ignored.
    Ticket,
}

/// Parses the first message in `content`; returns it with its length if it is complete (RFC 8446
/// §4, §4.6).
pub(crate) fn message(
    is_13: bool,
    side: Side,
    content: &[u8],
) -> Result<Option<(Message, usize)>, RecordError> {
    let Some((&kind, _)) = content.split_first() else {
        return Ok(None);
    };
    // The type is checked first, before the length is complete.
    match (is_13, side, kind) {
        (true, _, KEY_UPDATE)
        | (true, Side::Client, NEW_SESSION_TICKET)
        | (false, Side::Client, HELLO_REQUEST)
        | (false, Side::Server, CLIENT_HELLO) => {}
        _ => return Err(RecordError::UnexpectedMessage("a handshake message out of place")),
    }
    let Some(&[_, high, middle, low]) = content.first_chunk::<4>() else {
        return Ok(None);
    };
    let body_bytes = u32::from_be_bytes([0, high, middle, low]) as usize;
    if kind == KEY_UPDATE && body_bytes != 1 {
        return Err(RecordError::Decode("a KeyUpdate that is not one byte long"));
    }
    if body_bytes > MESSAGE_BYTES_MAX {
        return Err(RecordError::Decode("a handshake message above the limit"));
    }
    let Some(body) = content.get(4..4 + body_bytes) else {
        return Ok(None);
    };
    let message = match (kind, body) {
        (KEY_UPDATE, [0]) => Message::KeyUpdate { requested: false },
        (KEY_UPDATE, [1]) => Message::KeyUpdate { requested: true },
        (KEY_UPDATE, _) => {
            return Err(RecordError::IllegalParameter("a KeyUpdate of an unknown kind"));
        }
        (NEW_SESSION_TICKET, _) => Message::Ticket,
        _ => Message::Renegotiation,
    };
    Ok(Some((message, 4 + body_bytes)))
}

/// This end's own KeyUpdate (RFC 8446 §4.6.3).
pub(crate) fn key_update(request_peer: bool) -> [u8; 5] {
    [KEY_UPDATE, 0, 0, 1, request_peer.into()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_are_classified() {
        assert_eq!(alert(true, &[1, 0]), Ok(Alert::CloseNotify));
        assert_eq!(alert(true, &[2, 0]), Ok(Alert::CloseNotify));
        assert_eq!(alert(true, &[1, 90]), Ok(Alert::Warning));
        assert_eq!(alert(true, &[1, 100]), Err(RecordError::AlertReceived(100)));
        assert_eq!(alert(false, &[1, 100]), Ok(Alert::Warning));
        assert_eq!(alert(false, &[2, 40]), Err(RecordError::AlertReceived(40)));
        assert!(matches!(alert(false, &[3, 0]), Err(RecordError::IllegalParameter(_))));
        for content in [&[][..], &[1], &[1, 0, 0], &[1, 0, 1, 0]] {
            assert!(matches!(alert(true, content), Err(RecordError::Decode(_))));
        }
    }

    #[test]
    fn only_post_handshake_messages_are_accepted() {
        for kind in 0..=255u8 {
            for (is_13, side) in [
                (true, Side::Server),
                (true, Side::Client),
                (false, Side::Server),
                (false, Side::Client),
            ] {
                let taken = message(is_13, side, &[kind]);
                let may = match (is_13, side) {
                    (true, Side::Server) => kind == 24,
                    (true, Side::Client) => kind == 24 || kind == 4,
                    (false, Side::Server) => kind == 1,
                    (false, Side::Client) => kind == 0,
                };
                assert_eq!(taken.is_ok(), may, "{is_13} {side:?} {kind}");
            }
        }
    }

    #[test]
    fn key_updates_are_read_strictly() {
        let server = |content: &[u8]| message(true, Side::Server, content);
        assert_eq!(
            server(&key_update(true)),
            Ok(Some((Message::KeyUpdate { requested: true }, 5)))
        );
        assert_eq!(
            server(&key_update(false)),
            Ok(Some((Message::KeyUpdate { requested: false }, 5)))
        );
        for short in 0..5 {
            assert_eq!(server(&key_update(true)[..short]), Ok(None));
        }
        assert!(matches!(server(&[24, 0, 0, 1, 2]), Err(RecordError::IllegalParameter(_))));
        assert!(matches!(server(&[24, 0, 0, 2]), Err(RecordError::Decode(_))));
        assert!(matches!(
            message(true, Side::Client, &[4, 0xff, 0, 0]),
            Err(RecordError::Decode(_))
        ));
    }
}
