//! Both directions of an established connection, and the snapshot that carries them elsewhere.

use unlade_net::state::TlsSnapshot;

use crate::control::{self, Alert, Message, Side};
use crate::deframe::{self, ALERT, APPLICATION_DATA, HANDSHAKE, HEADER_BYTES};
use crate::device;
use crate::error::RecordError;
use crate::keys::Keys;
use crate::seal::{self, Layout, PLAINTEXT_BYTES_MAX};
use crate::suite::Suite;

/// Empty records in a row that a peer may send.
pub const EMPTY_RECORDS_MAX: u32 = 32;
/// KeyUpdates that a peer may send with no application data between them.
pub const KEY_UPDATES_MAX: u32 = 32;
/// Alerts of no consequence that a peer may send.
pub const WARNINGS_MAX: u32 = 4;
/// Attempts of a TLS 1.2 peer to renegotiate that are refused before the connection is.
pub const RENEGOTIATIONS_MAX: u32 = 1;
/// Records over which a peer may spread one post-handshake message.
pub const FRAGMENTS_MAX: u32 = 8;

/// What a call of [`RecordLayer::receive`] leaves behind. Both are levels, not edges: they stay
/// until the cause is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// The peer sends nothing more; whatever follows is ignored (RFC 8446 §6.1).
    pub close_notify: bool,
    /// [`RecordLayer::take_output`] has something to send.
    pub output_pending: bool,
}

/// The TLS record layer of one established connection, both directions.
///
/// Server side by default; [`crate::client`] makes one for the other end.
pub struct RecordLayer {
    side: Side,
    read: Keys,
    write: Keys,
    /// Ciphertext, from the first record that is not done with.
    incoming: Vec<u8>,
    /// Where in `incoming` the next record starts; beyond 0 only while `partial` is there.
    next: usize,
    partial: Option<Partial>,
    owed: Owed,
    counters: Counters,
    close_received: bool,
    write_closed: bool,
    failed: Option<RecordError>,
}

/// A handshake message of which some records have come. Their ciphertext stays at the front of
/// `incoming`, so that a snapshot can be taken here as well: the next owner reads them again.
struct Partial {
    content: Vec<u8>,
    records: u32,
    /// Sequence number of the first of the records.
    sequence: u64,
}

/// Control records to be sent before anything else. They are kept as intents and sealed when
/// taken, so that the keys in a snapshot are always those of the next record on the wire.
#[derive(Default)]
struct Owed {
    key_update: bool,
    no_renegotiation: bool,
    fatal_alert: Option<u8>,
}

#[derive(Default)]
struct Counters {
    empty_records: u32,
    key_updates: u32,
    warnings: u32,
    renegotiations: u32,
}

impl Counters {
    /// One more of `what`; an error above the limit.
    fn count(count: &mut u32, max: u32, what: &'static str) -> Result<(), RecordError> {
        *count += 1;
        if *count > max { Err(RecordError::Flood(what)) } else { Ok(()) }
    }
}

impl core::fmt::Debug for RecordLayer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RecordLayer")
            .field("suite", &self.suite_name())
            .field("read_sequence", &self.read.sequence())
            .field("write_sequence", &self.write.sequence())
            .field("incoming_bytes", &self.incoming.len())
            .finish_non_exhaustive()
    }
}

impl RecordLayer {
    /// The server's end of the connection that `snapshot` describes. Call
    /// [`RecordLayer::process`] before waiting for the transport: a whole record may have come
    /// with the snapshot.
    ///
    /// # Errors
    /// [`RecordError::Snapshot`] where version, suite, lengths or sequence numbers make no sense.
    pub fn from_snapshot(snapshot: &TlsSnapshot) -> Result<RecordLayer, RecordError> {
        RecordLayer::for_side(Side::Server, snapshot)
    }

    pub(crate) fn for_side(side: Side, snapshot: &TlsSnapshot) -> Result<RecordLayer, RecordError> {
        let suite = Suite::find(snapshot.version, snapshot.suite)
            .ok_or(RecordError::Snapshot("cipher suite unknown in this version"))?;
        Ok(RecordLayer {
            side,
            read: Keys::new(suite, snapshot.read.clone())?,
            write: Keys::new(suite, snapshot.write.clone())?,
            incoming: snapshot.ciphertext.clone(),
            next: 0,
            partial: None,
            owed: Owed::default(),
            counters: Counters::default(),
            close_received: false,
            write_closed: false,
            failed: None,
        })
    }

    /// Everything the next owner needs, with the ciphertext that has come and is not opened.
    ///
    /// Take the output and send it first: what is owed to the peer (an answer to its KeyUpdate)
    /// is not part of a snapshot, nor is the end of a direction. [`RecordLayer::is_movable`] says
    /// whether that matters now.
    pub fn to_snapshot(&self) -> TlsSnapshot {
        let mut read = self.read.secrets().clone();
        if let Some(partial) = &self.partial {
            read.sequence = partial.sequence;
        }
        TlsSnapshot {
            version: self.read.suite().version,
            suite: self.read.suite().number,
            read,
            write: self.write.secrets().clone(),
            ciphertext: self.incoming.clone(),
        }
    }

    /// True where a snapshot carries all there is: nothing is owed to the peer, and neither
    /// direction is closed or failed. Bytes that are not opened yet are no obstacle.
    pub fn is_movable(&self) -> bool {
        self.failed.is_none()
            && !self.close_received
            && !self.write_closed
            && !self.output_pending()
    }

    /// IANA name of the cipher suite.
    pub fn suite_name(&self) -> &'static str {
        self.read.suite().name
    }

    /// Protocol version on the wire: 0x0303 or 0x0304.
    pub fn version(&self) -> u16 {
        self.read.suite().version
    }

    /// Bytes of ciphertext that have come and are not opened: part of a record, as a rule.
    pub fn incoming_bytes(&self) -> usize {
        self.incoming.len()
    }

    /// Gives back the memory of an idle connection's buffer.
    pub fn trim(&mut self) {
        self.incoming.shrink_to_fit();
    }

    // Receiving.

    /// Takes `ciphertext` from the transport and appends what it holds to `plaintext`, in order.
    ///
    /// # Errors
    /// Any [`RecordError`] of the peer's making; it stays, and an alert is there to be taken.
    /// What came before it has been appended to `plaintext`.
    pub fn receive(
        &mut self,
        ciphertext: &[u8],
        plaintext: &mut Vec<u8>,
    ) -> Result<Received, RecordError> {
        self.incoming.extend_from_slice(ciphertext);
        self.process(plaintext)
    }

    /// The buffer of unopened ciphertext: append to it from the socket, then call
    /// [`RecordLayer::process`]. Do nothing but append.
    pub fn receive_spare(&mut self) -> &mut Vec<u8> {
        &mut self.incoming
    }

    /// Opens every complete record in the buffer and appends the content to `plaintext`.
    ///
    /// # Errors
    /// As [`RecordLayer::receive`].
    pub fn process(&mut self, plaintext: &mut Vec<u8>) -> Result<Received, RecordError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let processed = self.process_records(plaintext);
        self.compact();
        if let Err(error) = processed {
            self.fail(error);
            return Err(error);
        }
        Ok(Received { close_notify: self.close_received, output_pending: self.output_pending() })
    }

    fn process_records(&mut self, plaintext: &mut Vec<u8>) -> Result<(), RecordError> {
        while !self.close_received {
            let input = &self.incoming[self.next..];
            let Some(header) = deframe::header(self.read.suite(), input)? else {
                break;
            };
            let from = plaintext.len();
            let record = &input[..header.record_bytes()];
            let content_type = deframe::open(&self.read, header, record, plaintext)?;
            self.next += header.record_bytes();
            self.on_record(content_type, plaintext, from)?;
        }
        Ok(())
    }

    /// A record was authentic; what it contains is in `plaintext`, behind `from`.
    fn on_record(
        &mut self,
        content_type: u8,
        plaintext: &mut Vec<u8>,
        from: usize,
    ) -> Result<(), RecordError> {
        let sequence = self.read.sequence();
        self.read.advance();
        if content_type == APPLICATION_DATA && self.partial.is_none() {
            return self.on_data(plaintext.len() - from);
        }
        let content = plaintext.split_off(from);
        self.on_control(content_type, &content, sequence)
    }

    /// Judges the header of a record that is opened elsewhere, by a device, as one that is opened
    /// here; before the rest of the record is there.
    ///
    /// # Errors
    /// As [`RecordLayer::receive`].
    pub fn check_header(&mut self, header: &[u8; HEADER_BYTES]) -> Result<(), RecordError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if self.close_received {
            return Ok(());
        }
        let checked = deframe::header(self.read.suite(), header).map(drop);
        checked.inspect_err(|error| self.fail(*error))
    }

    /// Takes a record that was authentic and opened elsewhere, by a device: the type in its header,
    /// and all that was sealed, with TLS 1.3 padding and inner type too. Application data is
    /// appended to `plaintext`.
    ///
    /// # Errors
    /// As [`RecordLayer::receive`].
    pub fn receive_opened(
        &mut self,
        content_type: u8,
        opened: &[u8],
        plaintext: &mut Vec<u8>,
    ) -> Result<Received, RecordError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if !self.close_received {
            let from = plaintext.len();
            plaintext.extend_from_slice(opened);
            let taken = deframe::finish(self.read.suite(), content_type, plaintext, from)
                .and_then(|content_type| self.on_record(content_type, plaintext, from));
            if let Err(error) = taken {
                plaintext.truncate(from);
                self.fail(error);
                return Err(error);
            }
        }
        Ok(Received { close_notify: self.close_received, output_pending: self.output_pending() })
    }

    /// The peer has said that it sends nothing more.
    pub fn is_closed_by_peer(&self) -> bool {
        self.close_received
    }

    /// Why the connection has to end, where it has to.
    pub fn failure(&self) -> Option<RecordError> {
        self.failed
    }

    /// A record that was to be opened elsewhere is not authentic, or none: the connection ends as
    /// if it had been received here.
    pub fn refuse(&mut self, error: RecordError) {
        if self.failed.is_none() {
            self.fail(error);
        }
    }

    fn on_data(&mut self, bytes: usize) -> Result<(), RecordError> {
        if bytes == 0 {
            let count = &mut self.counters.empty_records;
            return Counters::count(count, EMPTY_RECORDS_MAX, "empty records");
        }
        self.counters.empty_records = 0;
        self.counters.key_updates = 0;
        Ok(())
    }

    fn on_control(
        &mut self,
        content_type: u8,
        content: &[u8],
        sequence: u64,
    ) -> Result<(), RecordError> {
        if content_type == HANDSHAKE {
            return self.on_handshake(content, sequence);
        }
        if self.partial.is_some() {
            // RFC 8446 §5.1: nothing comes between the records of one message.
            return Err(RecordError::UnexpectedMessage("a record inside a handshake message"));
        }
        if content_type != ALERT {
            return Err(RecordError::UnexpectedMessage("content of an unknown type"));
        }
        match control::alert(self.read.suite().is_13(), content)? {
            Alert::CloseNotify => self.close_received = true,
            Alert::Warning => {
                Counters::count(&mut self.counters.warnings, WARNINGS_MAX, "warnings")?;
            }
        }
        Ok(())
    }

    fn on_handshake(&mut self, content: &[u8], sequence: u64) -> Result<(), RecordError> {
        if content.is_empty() {
            return Err(RecordError::UnexpectedMessage("an empty handshake record"));
        }
        let mut partial =
            self.partial.take().unwrap_or(Partial { content: Vec::new(), records: 0, sequence });
        partial.content.extend_from_slice(content);
        Counters::count(&mut partial.records, FRAGMENTS_MAX, "fragments of a message")?;
        let mut done = 0;
        while let Some((message, bytes)) =
            control::message(self.read.suite().is_13(), self.side, &partial.content[done..])?
        {
            done += bytes;
            self.on_message(message, done == partial.content.len())?;
        }
        if done < partial.content.len() {
            partial.content.drain(..done);
            self.partial = Some(partial);
        }
        Ok(())
    }

    fn on_message(&mut self, message: Message, last_in_record: bool) -> Result<(), RecordError> {
        let counters = &mut self.counters;
        match message {
            Message::Ticket => {}
            Message::Renegotiation => {
                let count = &mut counters.renegotiations;
                Counters::count(count, RENEGOTIATIONS_MAX, "attempts to renegotiate")?;
                self.owed.no_renegotiation = true;
            }
            Message::KeyUpdate { requested } => {
                if !last_in_record {
                    // RFC 8446 §5.1: a key changes at the end of a record.
                    return Err(RecordError::UnexpectedMessage("bytes behind a KeyUpdate"));
                }
                Counters::count(&mut counters.key_updates, KEY_UPDATES_MAX, "KeyUpdates")?;
                self.read = self.read.next_generation()?;
                // One answer serves all requests since the last one (RFC 8446 §4.6.3).
                self.owed.key_update |= requested;
            }
        }
        Ok(())
    }

    /// Drops the ciphertext that is done with.
    fn compact(&mut self) {
        if self.close_received || self.failed.is_some() {
            self.incoming.clear();
            self.next = 0;
        } else if self.partial.is_none() {
            self.incoming.drain(..self.next);
            self.next = 0;
        }
    }

    fn fail(&mut self, error: RecordError) {
        self.owed = Owed { fatal_alert: error.alert(), ..Owed::default() };
        self.failed = Some(error);
        self.compact();
    }

    // Sending.

    /// Seals `plaintext` into records of at most 16 KiB and appends them to `out`, behind
    /// whatever control records are due.
    ///
    /// # Errors
    /// [`RecordError::Closed`] after close_notify or a failure, [`RecordError::Exhausted`] where
    /// TLS 1.2 has no key left. `out` then holds whole records of a part of `plaintext`.
    pub fn seal(&mut self, plaintext: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
        out.reserve(self.layout(plaintext.len()).sealed_bytes());
        for content in plaintext.chunks(PLAINTEXT_BYTES_MAX) {
            self.take_output(out);
            self.writable()?;
            seal::append_record(&mut self.write, APPLICATION_DATA, content, out)?;
        }
        self.writable()
    }

    /// From now on records are not sealed here but by a device, on their way: what is made has
    /// headers, nonces and types, the content in the clear, and room for the tag.
    pub fn leave_sealing(&mut self) {
        self.write.leave_sealing();
    }

    /// From now on records are sealed here again: the device has let go of the connection.
    pub fn resume_sealing(&mut self) {
        self.write.resume_sealing();
    }

    /// True where a message of the handshake has come in part.
    pub fn is_within_message(&self) -> bool {
        self.partial.is_some()
    }

    /// The keys of both directions for a device, the one of what is received first. Nothing where
    /// the suite table names no device's cipher for the suite.
    pub fn device_keys(&self) -> Option<(device::Keys, device::Keys)> {
        self.read.for_device().zip(self.write.for_device())
    }

    /// The ciphertext that has come and is not opened, to be opened elsewhere from now on. Nothing
    /// where a message is there in part: it would be read twice.
    pub fn take_incoming(&mut self) -> Option<Vec<u8>> {
        self.partial.is_none().then(|| core::mem::take(&mut self.incoming))
    }

    /// How often the keys were changed: for reading, and for writing.
    pub fn generations(&self) -> (u32, u32) {
        (self.read.generation(), self.write.generation())
    }

    /// Where `plaintext_bytes` of plaintext go in a buffer for [`RecordLayer::seal_in_place`].
    pub fn layout(&self, plaintext_bytes: usize) -> Layout {
        Layout::new(self.write.suite(), plaintext_bytes)
    }

    /// Seals in place what has been put into the slots of `buffer`, of which the first
    /// `filled_bytes` bytes of plaintext count; gives the length of the records made of it, which
    /// lie at the start of `buffer`.
    ///
    /// # Errors
    /// [`RecordError::OutputPending`] where control records are to be taken and sent first (the
    /// buffer is unchanged; call again), [`RecordError::BufferLength`] where `buffer` or
    /// `filled_bytes` do not fit the layout; else as [`RecordLayer::seal`], and then nothing of
    /// `buffer` may be sent.
    pub fn seal_in_place(
        &mut self,
        buffer: &mut [u8],
        layout: &Layout,
        filled_bytes: usize,
    ) -> Result<usize, RecordError> {
        self.writable()?;
        if self.output_pending() {
            return Err(RecordError::OutputPending);
        }
        let (given, needed) = (buffer.len(), layout.sealed_bytes());
        if given < needed || filled_bytes > layout.plaintext_bytes() {
            return Err(RecordError::BufferLength { given, needed });
        }
        let sealed_bytes = layout.sealed_bytes_of(filled_bytes);
        for record in buffer[..sealed_bytes].chunks_mut(layout.stride()) {
            seal::seal_record(&mut self.write, APPLICATION_DATA, record)?;
        }
        Ok(sealed_bytes)
    }

    /// The next record of application data, but for its `content_bytes` of content, which are
    /// elsewhere, such as in a file: what is before the content, and what is behind it. Only where
    /// sealing is left to a device.
    ///
    /// # Errors
    /// [`RecordError::OutputPending`] where control records are to be taken and sent first,
    /// [`RecordError::BufferLength`] where a record cannot have so much content,
    /// [`RecordError::Seal`] where sealing is not left to a device; else as [`RecordLayer::seal`].
    pub fn frame_elsewhere(
        &mut self,
        content_bytes: usize,
    ) -> Result<(Vec<u8>, Vec<u8>), RecordError> {
        self.writable()?;
        if self.output_pending() {
            return Err(RecordError::OutputPending);
        }
        seal::frame_elsewhere(&mut self.write, content_bytes)
    }

    /// As [`RecordLayer::seal`], with the plaintext written straight to its place in `out`: `fill`
    /// is called once for each record, in order, and must fill all of the slice it is given.
    ///
    /// # Errors
    /// Those of `fill` and of [`RecordLayer::seal`]. `out` then holds control records at most, and
    /// none of the plaintext has been sealed.
    pub fn seal_with(
        &mut self,
        plaintext_bytes: usize,
        out: &mut Vec<u8>,
        mut fill: impl FnMut(&mut [u8]) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        self.take_output(out);
        self.writable()?;
        let layout = self.layout(plaintext_bytes);
        let start = out.len();
        out.resize(start + layout.sealed_bytes(), 0);
        let buffer = &mut out[start..];
        let filled = layout.slots(buffer).try_for_each(&mut fill);
        let sealed =
            filled.and_then(|()| Ok(self.seal_in_place(buffer, &layout, plaintext_bytes)?));
        if sealed.is_err() {
            out.truncate(start);
        }
        sealed.map(|_| ())
    }

    /// True where [`RecordLayer::take_output`] has something to send.
    pub fn output_pending(&self) -> bool {
        let owed = &self.owed;
        !self.write_closed
            && (owed.key_update
                || owed.no_renegotiation
                || owed.fatal_alert.is_some()
                || self.key_update_due())
    }

    /// Appends the control records that are due: answers to KeyUpdates, our own KeyUpdate where
    /// the key has been used for long enough, alerts. They precede any further [`seal`].
    ///
    /// [`seal`]: RecordLayer::seal
    pub fn take_output(&mut self, out: &mut Vec<u8>) {
        if !self.output_pending() {
            return;
        }
        let owed = core::mem::take(&mut self.owed);
        let sent = match owed.fatal_alert {
            Some(description) => {
                let sent = self.send_alert(control::FATAL, description, out);
                self.write_closed = true;
                sent
            }
            None => self.send_owed(&owed, out),
        };
        if let Err(error) = sent {
            self.write_closed = true;
            self.failed.get_or_insert(error);
        }
    }

    fn send_owed(&mut self, owed: &Owed, out: &mut Vec<u8>) -> Result<(), RecordError> {
        if owed.no_renegotiation {
            self.send_alert(control::WARNING, control::NO_RENEGOTIATION, out)?;
        }
        if owed.key_update || self.key_update_due() {
            self.change_write_key(false, out)?;
        }
        Ok(())
    }

    /// Changes our sending key (RFC 8446 §4.6.3) and, on request, asks the peer to change its own.
    /// Gives false where the protocol, TLS 1.2, has no such thing.
    ///
    /// # Errors
    /// As [`RecordLayer::seal`].
    pub fn update_keys(
        &mut self,
        request_peer: bool,
        out: &mut Vec<u8>,
    ) -> Result<bool, RecordError> {
        self.writable()?;
        if !self.write.suite().is_13() {
            return Ok(false);
        }
        self.change_write_key(request_peer, out)?;
        // This is an answer as well.
        self.owed.key_update = false;
        Ok(true)
    }

    /// Says that nothing more will be sent. Nothing happens where that, or a fatal alert, was
    /// said before.
    pub fn close_notify(&mut self, out: &mut Vec<u8>) {
        self.take_output(out);
        if self.writable().is_ok() {
            // Without a key left there is no way to say it, and the FIN must do.
            let _ = self.send_alert(control::WARNING, control::CLOSE_NOTIFY, out);
            self.write_closed = true;
        }
    }

    /// True where a TLS 1.2 key has been used for so long that the connection should be closed
    /// when the current response is done. TLS 1.3 changes its key instead.
    pub fn wants_close(&self) -> bool {
        let suite = self.write.suite();
        !suite.is_13() && self.write.sequence() >= suite.records_soft
    }

    fn writable(&self) -> Result<(), RecordError> {
        if self.write_closed || self.failed.is_some() { Err(RecordError::Closed) } else { Ok(()) }
    }

    fn key_update_due(&self) -> bool {
        let suite = self.write.suite();
        suite.is_13() && self.write.sequence() >= suite.records_soft
    }

    fn change_write_key(
        &mut self,
        request_peer: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), RecordError> {
        let next = self.write.next_generation()?;
        let message = control::key_update(request_peer);
        seal::append_record(&mut self.write, HANDSHAKE, &message, out)?;
        self.write = next;
        Ok(())
    }

    fn send_alert(
        &mut self,
        level: u8,
        description: u8,
        out: &mut Vec<u8>,
    ) -> Result<(), RecordError> {
        seal::append_record(&mut self.write, ALERT, &[level, description], out)
    }
}

#[cfg(test)]
mod tests;
