//! The server's side of the handshake.

use unlade_net::state::TlsSnapshot;

use super::Psk;
use super::error::PskError;
use super::exchange::{self, GROUPS, Group, KeyShare};
use super::messages::{self, CLIENT_HELLO, ClientHello, FINISHED, ServerHello};
use super::records::{self, MessageReader};
use super::schedule::{self, EarlySecret, TrafficSecrets, Transcript};
use crate::control::Side;
use crate::keys::Keys;
use crate::layer::RecordLayer;
use crate::suite::{Suite, TLS13};

/// Finds the key for an identity of a client.
type Lookup<'l> = dyn Fn(&[u8]) -> Option<Psk> + Send + 'l;

/// A connection whose client has proved possession of the key.
#[derive(Debug)]
pub struct Accepted {
    /// The record layer, with all bytes that followed the handshake: call
    /// [`RecordLayer::process`](crate::RecordLayer::process) before waiting for the transport.
    pub record: RecordLayer,
    /// The identity of the key that the client used.
    pub identity: Vec<u8>,
}

/// A handshake from the server's side.
pub struct Server<'l> {
    lookup: Box<Lookup<'l>>,
    reader: MessageReader,
    /// Keys of the sending direction, once they exist.
    write: Option<Keys>,
    stage: Stage,
}

/// The expected message.
enum Stage {
    ClientHello,
    /// The second ClientHello that was requested, with a share of this group.
    Retried {
        transcript: Transcript,
        suite: &'static Suite,
        group: Group,
    },
    Finished(Box<ServerFlight>),
    Over,
}

/// The state after the server's flight, with the derived secrets.
struct ServerFlight {
    suite: &'static Suite,
    identity: Vec<u8>,
    /// Up to the server's Finished.
    transcript: Transcript,
    traffic: TrafficSecrets,
    application: TrafficSecrets,
}

/// The selected pre-shared key.
struct SelectedPsk {
    psk: Psk,
    /// Its index in the client's list.
    index: usize,
}

impl core::fmt::Debug for Server<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("psk::Server")
    }
}

impl<'l> Server<'l> {
    /// Waits for a client. `lookup` returns the key of an identity, if there is one.
    pub fn new(lookup: impl Fn(&[u8]) -> Option<Psk> + Send + 'l) -> Server<'l> {
        Server {
            lookup: Box::new(lookup),
            reader: MessageReader::default(),
            write: None,
            stage: Stage::ClientHello,
        }
    }

    /// Processes bytes from the client, and appends the answer to `out`; returns the connection
    /// once the handshake is complete.
    ///
    /// # Errors
    /// Any [`PskError`]; send `out`, which may contain an alert, and close.
    pub fn advance(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Accepted>, PskError> {
        self.reader.push(input);
        let advanced = self.messages(out);
        if let Err(error) = &advanced {
            self.stage = Stage::Over;
            records::send_alert(self.write.as_mut(), error, out);
        }
        advanced
    }

    fn messages(&mut self, out: &mut Vec<u8>) -> Result<Option<Accepted>, PskError> {
        if matches!(self.stage, Stage::Over) {
            return Err(PskError::Over);
        }
        while let Some(message) = self.reader.message()? {
            let kind = message.first().copied().unwrap_or_default();
            match (core::mem::replace(&mut self.stage, Stage::Over), kind) {
                (Stage::ClientHello, CLIENT_HELLO) => self.client_hello(&message, None, out)?,
                (Stage::Retried { transcript, suite, group }, CLIENT_HELLO) => {
                    self.client_hello(&message, Some((transcript, suite, group)), out)?;
                }
                (Stage::Finished(sent), FINISHED) => {
                    return self.finish(&message, &sent).map(Some);
                }
                _ => return Err(PskError::unexpected("a handshake message out of place")),
            }
        }
        Ok(None)
    }

    fn client_hello(
        &mut self,
        message: &[u8],
        retried: Option<(Transcript, &'static Suite, Group)>,
        out: &mut Vec<u8>,
    ) -> Result<(), PskError> {
        let hello = ClientHello::read(message)?;
        let chosen = self.choose(&hello)?;
        let suite = chosen.psk.hash.suite();
        let (mut transcript, asked) = match retried {
            Some((transcript, before, group)) if core::ptr::eq(before, suite) => {
                (transcript, Some(group))
            }
            Some(_) => return Err(PskError::illegal("another key after a HelloRetryRequest")),
            None => (Transcript::new(suite), None),
        };
        check_binder(&hello, message, &chosen, &transcript)?;
        transcript.add(message);
        let candidates = GROUPS.into_iter().filter(|&group| asked.is_none_or(|one| one == group));
        let share = candidates.into_iter().find_map(|group| {
            let share = hello.shares.iter().find(|share| share.0 == group.number())?;
            Some((group, share.1))
        });
        match share {
            Some((group, theirs)) => self.answer(&hello, &chosen, transcript, group, theirs, out),
            None if asked.is_some() => Err(PskError::illegal("not the key share asked for")),
            None => self.retry(&hello, suite, transcript, out),
        }
    }

    /// The first key in the client's list that this server has and whose suite the client offers.
    fn choose(&self, hello: &ClientHello<'_>) -> Result<SelectedPsk, PskError> {
        let mut known = false;
        for (index, identity) in hello.identities.iter().enumerate() {
            let Some(psk) = (self.lookup)(identity) else { continue };
            psk.check()?;
            known = true;
            if hello.suites.contains(&psk.hash.suite().number) {
                return Ok(SelectedPsk { psk, index });
            }
        }
        if known {
            return Err(PskError::Incompatible("the client does not offer the key's cipher suite"));
        }
        let first = hello.identities.first().copied().unwrap_or_default();
        let shown = &first[..first.len().min(super::IDENTITY_BYTES_MAX)];
        let offered = format!("{:?}", String::from_utf8_lossy(shown));
        Err(PskError::UnknownIdentity { offered })
    }

    fn retry(
        &mut self,
        hello: &ClientHello<'_>,
        suite: &'static Suite,
        mut transcript: Transcript,
        out: &mut Vec<u8>,
    ) -> Result<(), PskError> {
        let group = GROUPS
            .into_iter()
            .find(|group| hello.groups.contains(&group.number()))
            .ok_or(PskError::Incompatible("no group for the key exchange"))?;
        transcript.restart(suite);
        let asked = ServerHello::Retry { group: Some(group.number()), cookie: &[] };
        let message = asked.write(&[0; 32], hello.session, suite.number);
        transcript.add(&message);
        records::send_plain(&message, out);
        if !hello.session.is_empty() {
            records::send_change_cipher_spec(out);
        }
        // No bytes may follow the first ClientHello.
        self.reader.at_boundary()?;
        self.stage = Stage::Retried { transcript, suite, group };
        Ok(())
    }

    fn answer(
        &mut self,
        hello: &ClientHello<'_>,
        chosen: &SelectedPsk,
        mut transcript: Transcript,
        group: Group,
        theirs: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), PskError> {
        let suite = chosen.psk.hash.suite();
        let share = KeyShare::new(group)?;
        let agreed = ServerHello::Agreed {
            group: group.number(),
            public: &share.public,
            selected: Some(chosen.index as u16),
        };
        let message = agreed.write(&exchange::random()?, hello.session, suite.number);
        let shared = share.agree(theirs)?;
        transcript.add(&message);
        records::send_plain(&message, out);
        if !hello.session.is_empty() {
            records::send_change_cipher_spec(out);
        }
        let handshake = EarlySecret::new(suite, &chosen.psk.key).handshake(&shared)?;
        let traffic = handshake.traffic(&transcript.hash())?;
        let mut keys = schedule::keys(suite, &traffic.server)?;
        let mut flight = messages::encrypted_extensions();
        transcript.add(&flight);
        let finished = schedule::finished(suite, &traffic.server, &transcript.hash())?;
        let finished = messages::message(FINISHED, |out| out.extend_from_slice(&finished));
        transcript.add(&finished);
        flight.extend_from_slice(&finished);
        records::send_protected(&mut keys, &flight, out)?;
        let application = handshake.application(&transcript.hash())?;
        // From now on sending, of an alert, uses the next key already (RFC 8446 §4.4.4).
        self.write = Some(schedule::keys(suite, &application.server)?);
        self.reader.protect(schedule::keys(suite, &traffic.client)?)?;
        let identity = chosen.psk.identity.clone();
        self.stage = Stage::Finished(Box::new(ServerFlight {
            suite,
            identity,
            transcript,
            traffic,
            application,
        }));
        Ok(())
    }

    fn finish(&mut self, message: &[u8], sent: &ServerFlight) -> Result<Accepted, PskError> {
        let expected =
            schedule::finished(sent.suite, &sent.traffic.client, &sent.transcript.hash())?;
        if !schedule::constant_time_eq(&message[4..], &expected) {
            return Err(PskError::WrongKey);
        }
        self.reader.at_boundary()?;
        let reader = core::mem::take(&mut self.reader);
        let snapshot = TlsSnapshot {
            version: TLS13,
            suite: sent.suite.number,
            read: schedule::direction(sent.suite, &sent.application.client)?,
            write: schedule::direction(sent.suite, &sent.application.server)?,
            ciphertext: reader.into_leftover(),
        };
        let record = RecordLayer::for_side(Side::Server, &snapshot)?;
        Ok(Accepted { record, identity: sent.identity.clone() })
    }
}

/// Checks the proof that the client has the key (RFC 8446 §4.2.11.2).
fn check_binder(
    hello: &ClientHello<'_>,
    message: &[u8],
    chosen: &SelectedPsk,
    transcript: &Transcript,
) -> Result<(), PskError> {
    let suite = chosen.psk.hash.suite();
    let mut truncated = transcript.clone();
    truncated.add(&message[..hello.binders_at]);
    let expected = EarlySecret::new(suite, &chosen.psk.key).binder(&truncated.hash())?;
    let given = hello.binders.get(chosen.index).copied().unwrap_or_default();
    if schedule::constant_time_eq(given, &expected) { Ok(()) } else { Err(PskError::WrongKey) }
}
