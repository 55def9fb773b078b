//! The client's side of the handshake.

use unlade_net::state::TlsSnapshot;

use super::Psk;
use super::error::PskError;
use super::exchange::{self, GROUPS, Group, KeyShare};
use super::messages::{
    self, ClientHelloParams, ENCRYPTED_EXTENSIONS, FINISHED, SERVER_HELLO, ServerHello,
};
use super::records::{self, MessageReader};
use super::schedule::{self, EarlySecret, HandshakeSecret, TrafficSecrets, Transcript};
use crate::control::Side;
use crate::keys::Keys;
use crate::layer::RecordLayer;
use crate::suite::{Suite, TLS13};

/// A handshake from the client's side. Creating it writes the ClientHello to `out`.
pub struct Client {
    psk: Psk,
    suite: &'static Suite,
    random: [u8; 32],
    transcript: Transcript,
    reader: MessageReader,
    /// Keys of the sending direction, once they exist.
    write: Option<Keys>,
    stage: Stage,
}

/// The expected message.
enum Stage {
    ServerHello { share: KeyShare, retried: bool },
    Extensions { handshake: HandshakeSecret, traffic: TrafficSecrets },
    Finished { handshake: HandshakeSecret, traffic: TrafficSecrets },
    Over,
}

impl core::fmt::Debug for Client {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("psk::Client").field("psk", &self.psk).finish_non_exhaustive()
    }
}

impl Client {
    /// Starts a handshake with `psk`; the first flight is appended to `out`.
    ///
    /// # Errors
    /// [`PskError::Key`], [`PskError::Internal`].
    pub fn new(psk: Psk, out: &mut Vec<u8>) -> Result<Client, PskError> {
        psk.check()?;
        let suite = psk.hash.suite();
        let mut client = Client {
            suite,
            random: exchange::random()?,
            transcript: Transcript::new(suite),
            reader: MessageReader::default(),
            write: None,
            stage: Stage::Over,
            psk,
        };
        client.hello(KeyShare::new(GROUPS[0])?, &[], false, out)?;
        Ok(client)
    }

    fn hello(
        &mut self,
        share: KeyShare,
        cookie: &[u8],
        retried: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), PskError> {
        let offer = ClientHelloParams {
            random: &self.random,
            suite: self.suite.number,
            group: share.group,
            public: &share.public,
            cookie,
            identity: &self.psk.identity,
            binder_bytes: self.suite.secret_bytes,
        };
        let (mut hello, binders_at) = offer.write();
        let mut truncated = self.transcript.clone();
        truncated.add(&hello[..binders_at]);
        let binder = EarlySecret::new(self.suite, &self.psk.key).binder(&truncated.hash())?;
        hello[binders_at + 3..].copy_from_slice(&binder);
        self.transcript.add(&hello);
        records::send_plain(&hello, out);
        self.stage = Stage::ServerHello { share, retried };
        Ok(())
    }

    /// Processes bytes from the server, and appends the answer to `out`; returns the connection
    /// once the handshake is complete.
    ///
    /// # Errors
    /// Any [`PskError`]; send `out`, which may contain an alert, and close.
    pub fn advance(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<RecordLayer>, PskError> {
        self.reader.push(input);
        let advanced = self.messages(out);
        if let Err(error) = &advanced {
            self.stage = Stage::Over;
            records::send_alert(self.write.as_mut(), error, out);
        }
        advanced
    }

    fn messages(&mut self, out: &mut Vec<u8>) -> Result<Option<RecordLayer>, PskError> {
        if matches!(self.stage, Stage::Over) {
            return Err(PskError::Over);
        }
        while let Some(message) = self.reader.message()? {
            let kind = message.first().copied().unwrap_or_default();
            match (core::mem::replace(&mut self.stage, Stage::Over), kind) {
                (Stage::ServerHello { share, retried }, SERVER_HELLO) => {
                    self.server_hello(&message, share, retried, out)?;
                }
                (Stage::Extensions { handshake, traffic }, ENCRYPTED_EXTENSIONS) => {
                    messages::check_encrypted_extensions(&message)?;
                    self.transcript.add(&message);
                    self.stage = Stage::Finished { handshake, traffic };
                }
                (Stage::Finished { handshake, traffic }, FINISHED) => {
                    return self.finish(&message, &handshake, &traffic, out).map(Some);
                }
                _ => return Err(PskError::unexpected("a handshake message out of place")),
            }
        }
        Ok(None)
    }

    fn server_hello(
        &mut self,
        message: &[u8],
        share: KeyShare,
        retried: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), PskError> {
        match ServerHello::read(message, self.suite.number)? {
            ServerHello::Retry { .. } if retried => {
                Err(PskError::unexpected("a second HelloRetryRequest"))
            }
            ServerHello::Retry { group, cookie } => {
                self.transcript.restart(self.suite);
                self.transcript.add(message);
                let share = match group {
                    Some(number) => {
                        let group = Group::find(number).filter(|&group| group != share.group);
                        let unusable = "a group that was not offered, or was used";
                        KeyShare::new(group.ok_or(PskError::illegal(unusable))?)?
                    }
                    None if cookie.is_empty() => {
                        return Err(PskError::illegal("a HelloRetryRequest that changes nothing"));
                    }
                    // Everything except the cookie stays unchanged (RFC 8446 §4.1.2).
                    None => share,
                };
                self.hello(share, cookie, true, out)
            }
            ServerHello::Agreed { selected: None, .. } => Err(PskError::Incompatible(
                "the server does not take the key, and would show a certificate",
            )),
            ServerHello::Agreed { group, public, selected } => {
                if group != share.group.number() || selected != Some(0) {
                    return Err(PskError::illegal("a group or key that was not offered"));
                }
                let shared = share.agree(public)?;
                self.transcript.add(message);
                let handshake = EarlySecret::new(self.suite, &self.psk.key).handshake(&shared)?;
                let traffic = handshake.traffic(&self.transcript.hash())?;
                self.reader.protect(schedule::keys(self.suite, &traffic.server)?)?;
                self.write = Some(schedule::keys(self.suite, &traffic.client)?);
                self.stage = Stage::Extensions { handshake, traffic };
                Ok(())
            }
        }
    }

    fn finish(
        &mut self,
        message: &[u8],
        handshake: &HandshakeSecret,
        traffic: &TrafficSecrets,
        out: &mut Vec<u8>,
    ) -> Result<RecordLayer, PskError> {
        let expected = schedule::finished(self.suite, &traffic.server, &self.transcript.hash())?;
        if !schedule::constant_time_eq(&message[4..], &expected) {
            return Err(PskError::WrongKey);
        }
        self.reader.at_boundary()?;
        self.transcript.add(message);
        let application = handshake.application(&self.transcript.hash())?;
        let ours = schedule::finished(self.suite, &traffic.client, &self.transcript.hash())?;
        let ours = messages::message(FINISHED, |out| out.extend_from_slice(&ours));
        let keys = self.write.as_mut().ok_or(PskError::Internal("no keys to send with"))?;
        records::send_protected(keys, &ours, out)?;
        let reader = core::mem::take(&mut self.reader);
        let snapshot = TlsSnapshot {
            version: TLS13,
            suite: self.suite.number,
            read: schedule::direction(self.suite, &application.server)?,
            write: schedule::direction(self.suite, &application.client)?,
            ciphertext: reader.into_leftover(),
        };
        Ok(RecordLayer::for_side(Side::Client, &snapshot)?)
    }
}
