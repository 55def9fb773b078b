//! Both directions of an established connection, and the snapshot of their state.

use unlade_net::state::TlsSnapshot;
use zeroize::Zeroizing;

use crate::control::{self, Alert, Message, Side};
use crate::deframe;
use crate::delegation::Delegation;
use crate::device_keys;
use crate::error::RecordError;
use crate::keys::Keys;
use crate::record::{ALERT, APPLICATION_DATA, HANDSHAKE, HEADER_BYTES, PLAINTEXT_BYTES_MAX};
use crate::seal::{self, Layout};
use crate::suite::Suite;

/// Most consecutive empty records from a peer.
pub const EMPTY_RECORDS_MAX: u32 = 32;
/// Most KeyUpdates from a peer without application data between them.
pub const KEY_UPDATES_MAX: u32 = 32;
/// Most alerts without effect from a peer.
pub const WARNINGS_MAX: u32 = 4;
/// Most renegotiation requests of a TLS 1.2 peer that are refused with a warning; one more ends
/// the connection.
pub const RENEGOTIATIONS_MAX: u32 = 1;
/// Most records over which a peer may spread one post-handshake message.
pub const FRAGMENTS_MAX: u32 = 8;

/// The state after a call of [`RecordLayer::receive`]. Both flags are level-triggered: they stay
/// set until the cause is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// The peer sends no more data; later bytes are ignored (RFC 8446 §6.1).
    pub close_notify: bool,
    /// [`RecordLayer::take_output`] has bytes to send.
    pub output_pending: bool,
}

/// The TLS record layer of one established connection, both directions.
///
/// Server side by default; [`crate::client`] makes one for the client's end.
pub struct RecordLayer {
    side: Side,
    read: Keys,
    write: Keys,
    /// Ciphertext, from the first unfinished record on.
    incoming: Vec<u8>,
    /// Offset in `incoming` of the next record; nonzero only while `partial` is set.
    next: usize,
    partial: Option<PartialMessage>,
    owed: PendingControl,
    counters: Counters,
    close_received: bool,
    write_closed: bool,
    /// Another machine seals the next records.
    delegated: bool,
    failed: Option<RecordError>,
}

/// A handshake message of which some records have arrived. Their ciphertext stays at the front of
/// `incoming`, so that a snapshot can be taken at this point too: the next owner reads them again.
struct PartialMessage {
    content: Vec<u8>,
    records: u32,
    /// Sequence number of the first of these records.
    sequence: u64,
}

/// Control records that must be sent before anything else. They are stored as intents and sealed
/// when taken, so that the keys in a snapshot are always those of the next record on the wire.
#[derive(Default)]
struct PendingControl {
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
    /// Counts one more of `what`; an error above the limit.
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
    /// Makes the server's end of the connection in `snapshot`. Call [`RecordLayer::process`]
    /// before waiting for the transport: the snapshot may contain a complete record.
    ///
    /// # Errors
    /// [`RecordError::Snapshot`] if version, suite, lengths or sequence numbers are inconsistent.
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
            owed: PendingControl::default(),
            counters: Counters::default(),
            close_received: false,
            write_closed: false,
            delegated: false,
            failed: None,
        })
    }

    /// The full state for the next owner, with the received ciphertext that is not opened.
    ///
    /// Take the output and send it first: a snapshot does not contain the records owed to the peer
    /// (an answer to its KeyUpdate), nor the end of a direction. [`RecordLayer::is_movable`]
    /// returns true if neither exists now.
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

    /// Returns true if a snapshot contains the whole state: nothing is owed to the peer, and
    /// neither direction is closed or failed. Unopened bytes are allowed.
    pub fn is_movable(&self) -> bool {
        self.failed.is_none()
            && !self.close_received
            && !self.write_closed
            && !self.delegated
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

    /// Number of ciphertext bytes that were received and are not opened: usually part of a record.
    pub fn incoming_bytes(&self) -> usize {
        self.incoming.len()
    }

    /// Frees the memory of an idle connection's buffer.
    pub fn trim(&mut self) {
        self.incoming.shrink_to_fit();
    }

    // Receiving.

    /// Takes `ciphertext` from the transport and appends its content to `plaintext`, in order.
    ///
    /// # Errors
    /// Any [`RecordError`] caused by the peer; it persists, and an alert is ready to be taken. The
    /// content before the error has been appended to `plaintext`.
    pub fn receive(
        &mut self,
        ciphertext: &[u8],
        plaintext: &mut Vec<u8>,
    ) -> Result<Received, RecordError> {
        self.incoming.extend_from_slice(ciphertext);
        self.process(plaintext)
    }

    /// The buffer of unopened ciphertext: append to it from the socket, then call
    /// [`RecordLayer::process`]. Only appending is allowed.
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

    /// Handles an authentic record; its content is in `plaintext`, from `from` on.
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

    /// Checks the header of a record that a device opens, like one that is opened here, before the
    /// rest of the record has arrived.
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

    /// Processes an authentic record that a device has opened: the type in its header, and the
    /// whole sealed plaintext, including TLS 1.3 padding and inner type. Application data is
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

    /// Returns true if the peer has sent close_notify.
    pub fn is_closed_by_peer(&self) -> bool {
        self.close_received
    }

    /// The error that ends the connection, if any.
    pub fn failure(&self) -> Option<RecordError> {
        self.failed
    }

    /// Fails the connection because a record that a device should open is not authentic or not a
    /// record, as if it had been received here.
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
            // RFC 8446 §5.1: no other record may interrupt the records of one message.
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
        let mut partial = self.partial.take().unwrap_or(PartialMessage {
            content: Vec::new(),
            records: 0,
            sequence,
        });
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
                // One answer covers all requests since the last one (RFC 8446 §4.6.3).
                self.owed.key_update |= requested;
            }
        }
        Ok(())
    }

    /// Drops the processed ciphertext.
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
        self.owed = PendingControl { fatal_alert: error.alert(), ..PendingControl::default() };
        self.failed = Some(error);
        self.compact();
    }

    // Sending.

    /// Seals `plaintext` into records of at most 16 KiB and appends them to `out`, after any
    /// control records that are due.
    ///
    /// # Errors
    /// [`RecordError::Closed`] after close_notify or a failure, [`RecordError::Exhausted`] if TLS
    /// 1.2 has used its key up. `out` then contains whole records of a part of `plaintext`.
    pub fn seal(&mut self, plaintext: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
        out.reserve(self.layout(plaintext.len()).sealed_bytes());
        for content in plaintext.chunks(PLAINTEXT_BYTES_MAX) {
            self.take_output(out);
            self.writable()?;
            seal::append_record(&mut self.write, APPLICATION_DATA, content, out)?;
        }
        self.writable()
    }

    /// Leaves sealing to a device from now on: new records have headers, nonces and types, the
    /// content in the clear, and space for the tag.
    pub fn leave_sealing(&mut self) {
        self.write.leave_sealing();
    }

    /// Resumes sealing in software: the device has released the connection.
    pub fn resume_sealing(&mut self) {
        self.write.resume_sealing();
    }

    /// Returns true if a handshake message has arrived in part.
    pub fn is_within_message(&self) -> bool {
        self.partial.is_some()
    }

    /// The keys of both directions for a device, those of the receiving direction first. `None` if
    /// no device supports the suite's cipher.
    pub fn device_keys(&self) -> Option<(device_keys::Keys, device_keys::Keys)> {
        self.read.for_device().zip(self.write.for_device())
    }

    /// Takes the received ciphertext that is not opened, which will be opened elsewhere. `None` if
    /// a message has arrived in part: it would be read twice.
    pub fn take_incoming(&mut self) -> Option<Vec<u8>> {
        self.partial.is_none().then(|| core::mem::take(&mut self.incoming))
    }

    /// The number of key changes: for reading, and for writing.
    pub fn generations(&self) -> (u32, u32) {
        (self.read.generation(), self.write.generation())
    }

    /// The positions of `plaintext_bytes` of plaintext in a buffer for
    /// [`RecordLayer::seal_in_place`].
    pub fn layout(&self, plaintext_bytes: usize) -> Layout {
        Layout::new(self.write.suite(), plaintext_bytes)
    }

    /// Seals in place the content of the slots of `buffer`, of which the first `filled_bytes`
    /// bytes of plaintext are used; returns the length of the resulting records, which are at the
    /// start of `buffer`.
    ///
    /// # Errors
    /// [`RecordError::OutputPending`] if control records must be taken and sent first (the buffer
    /// is unchanged; call again), [`RecordError::BufferLength`] if `buffer` or `filled_bytes` do
    /// not fit the layout; otherwise as [`RecordLayer::seal`], and then no part of `buffer` may be
    /// sent.
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

    /// Makes the next record of application data without its `content_bytes` of content, which are
    /// elsewhere, such as in a file: returns the bytes before the content, and those after it.
    /// Only if sealing is left to a device.
    ///
    /// # Errors
    /// [`RecordError::OutputPending`] if control records must be taken and sent first,
    /// [`RecordError::BufferLength`] if a record cannot have that much content,
    /// [`RecordError::Seal`] if sealing is not left to a device; otherwise as
    /// [`RecordLayer::seal`].
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

    /// As [`RecordLayer::seal`], with the plaintext written directly to its place in `out`: `fill`
    /// is called once for each record, in order, and must fill the whole slice.
    ///
    /// Those of `fill` and of [`RecordLayer::seal`]. `out` then contains control records at most,
    /// and none of the plaintext has been sealed.
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

    /// Returns true if [`RecordLayer::take_output`] has bytes to send.
    pub fn output_pending(&self) -> bool {
        let owed = &self.owed;
        !self.write_closed
            && !self.delegated
            && (owed.key_update
                || owed.no_renegotiation
                || owed.fatal_alert.is_some()
                || self.key_update_due())
    }

    /// Appends the control records that are due: answers to KeyUpdates, this end's KeyUpdate after
    /// the key's recommended limit, alerts. They precede any further [`seal`].
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

    fn send_owed(&mut self, owed: &PendingControl, out: &mut Vec<u8>) -> Result<(), RecordError> {
        if owed.no_renegotiation {
            self.send_alert(control::WARNING, control::NO_RENEGOTIATION, out)?;
        }
        if owed.key_update || self.key_update_due() {
            self.change_write_key(false, out)?;
        }
        Ok(())
    }

    /// Changes the sending key (RFC 8446 §4.6.3) and, on request, asks the peer to change its own.
    /// Returns false for TLS 1.2, which does not support it.
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
        // This KeyUpdate is an answer as well.
        self.owed.key_update = false;
        Ok(true)
    }

    /// Ends the sending direction with close_notify. Does nothing if that, or a fatal alert, was
    /// sent before.
    pub fn close_notify(&mut self, out: &mut Vec<u8>) {
        self.take_output(out);
        if self.writable().is_ok() {
            // Without a usable key no alert can be sent; the FIN must suffice.
            let _ = self.send_alert(control::WARNING, control::CLOSE_NOTIFY, out);
            self.write_closed = true;
        }
    }

    /// Delegates the sealing of the next records, at most `records_max`. From here on this layer seals
    /// nothing, and no alert either, until [`RecordLayer::resume`]. `None`: something else has to be
    /// sent before, nothing may be sent, or the key would be exhausted.
    pub fn delegate(&mut self, records_max: u64) -> Option<Delegation> {
        let (suite, secrets) = (self.write.suite(), self.write.secrets());
        let is_usable = self.writable().is_ok()
            && !self.output_pending()
            && !self.write.leaves_sealing()
            && secrets.sequence.saturating_add(records_max) <= suite.records_soft;
        let delegation = is_usable.then(|| Delegation {
            suite,
            key: Zeroizing::new(secrets.key.clone()),
            iv: secrets.iv,
            sequence: secrets.sequence,
        });
        self.delegated |= delegation.is_some();
        delegation
    }

    /// Seals again, after another machine has sealed `records` records ([`RecordLayer::delegate`]). The
    /// number has to be right: a smaller one repeats nonces, and the peer fails at any wrong one.
    pub fn resume(&mut self, records: u64) {
        self.delegated = false;
        self.write.skip(records);
    }

    /// Returns true if a TLS 1.2 key has been used for so long that the connection should be
    /// closed after the current response. TLS 1.3 changes its key instead.
    pub fn wants_close(&self) -> bool {
        let suite = self.write.suite();
        !suite.is_13() && self.write.sequence() >= suite.records_soft
    }

    fn writable(&self) -> Result<(), RecordError> {
        match self {
            RecordLayer { delegated: true, .. } => Err(RecordError::Delegated),
            RecordLayer { write_closed: true, .. } | RecordLayer { failed: Some(_), .. } => {
                Err(RecordError::Closed)
            }
            _ => Ok(()),
        }
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
