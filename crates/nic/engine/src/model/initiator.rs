//! An initiator: its buffers, its commands, and its handling of received PDUs.

use std::collections::HashMap;

use crate::model::storage::{Meaning, Stream};
use crate::nvme::target;
use crate::placement::{Buffers, Registration};
use crate::software::pdus::Event;

/// The buffers.
#[derive(Default)]
pub(crate) struct Memory {
    pub buffers: Vec<Buffer>,
    pub registered: HashMap<Registration, usize>,
    /// A write of the device outside of a registered buffer.
    pub violation: Option<String>,
}

pub(crate) struct Buffer {
    pub bytes: Vec<u8>,
    /// The buffer is registered with the device.
    pub shared: bool,
}

impl Buffers for Memory {
    fn place(&mut self, registration: Registration, offset: u32, bytes: &[u8]) -> bool {
        let Some(index) = self.registered.get(&registration) else {
            self.violation = Some(format!("writes to {registration:?}, which was never there"));
            return false;
        };
        let buffer = &mut self.buffers[*index];
        let end = offset as usize + bytes.len();
        if !buffer.shared || end > buffer.bytes.len() {
            self.violation = Some(format!("writes to {registration:?} late, or to byte {end}"));
            return false;
        }
        buffer.bytes[offset as usize..end].copy_from_slice(bytes);
        true
    }
}

/// An active command.
pub(crate) struct Live {
    pub registration: Registration,
    pub buffer: usize,
    /// Offset of the next expected data.
    pub next: usize,
    pub staged: Vec<(usize, Vec<u8>)>,
    pub failed: bool,
    /// Software waits until the device has released the buffer.
    pub closing: bool,
}

/// The PDU that software is reading.
#[derive(Default)]
pub(crate) struct Reading {
    /// Its index in the stream, and the command of its data.
    pub index: usize,
    pub command: Option<usize>,
    pub offset: usize,
    pub data: Vec<u8>,
    /// It has started, and is not complete.
    pub open: bool,
}

/// An owned [`Event`].
pub(crate) enum OwnedEvent {
    Header(Vec<u8>),
    Data(usize, Vec<u8>, Option<Registration>),
    Recheck(usize),
    Verdict(bool),
}

impl OwnedEvent {
    pub fn of(event: Event<'_>) -> OwnedEvent {
        match event {
            Event::Header { header, .. } => OwnedEvent::Header(header.to_vec()),
            Event::Data { offset, bytes, placed } => {
                OwnedEvent::Data(offset as usize, bytes.to_vec(), placed)
            }
            Event::Recheck { data_bytes } => OwnedEvent::Recheck(data_bytes as usize),
            Event::End => OwnedEvent::Verdict(true),
            Event::Corrupt => OwnedEvent::Verdict(false),
        }
    }
}

/// The initiator's event handler.
pub(crate) struct EventHandler<'w> {
    pub stream: &'w Stream,
    pub staging: bool,
    /// Correct data may be reported as corrupt, because the stream was disturbed.
    pub excused: bool,
    pub memory: &'w mut Memory,
    pub live: &'w mut Vec<Option<Live>>,
    pub by_tag: &'w [Option<usize>],
    pub reading: &'w mut Reading,
    pub done: Vec<usize>,
}

impl EventHandler<'_> {
    /// Handles all available events: `next` gets the bytes to recheck. Returns false if the stream
    /// has failed.
    pub fn take(
        &mut self,
        mut next: impl FnMut(Option<Vec<u8>>) -> Option<Option<OwnedEvent>>,
    ) -> Result<bool, String> {
        let mut again = None;
        loop {
            let Some(said) = next(again.take()) else { return Ok(false) };
            match said {
                None => return Ok(true),
                Some(OwnedEvent::Header(header)) => self.header(&header)?,
                Some(OwnedEvent::Data(offset, bytes, placed)) => {
                    self.data(offset, bytes, placed)?
                }
                Some(OwnedEvent::Recheck(count)) => again = Some(self.put(count)),
                Some(OwnedEvent::Verdict(good)) => self.verdict(good)?,
            }
        }
    }

    fn header(&mut self, header: &[u8]) -> Result<(), String> {
        let reading = &mut *self.reading;
        let (pdu, _) = self.stream.pdus.get(reading.index).ok_or("a PDU too many")?;
        if pdu.header != header || reading.open {
            return Err(format!("header {} is not what was sent", reading.index));
        }
        (reading.open, reading.offset, reading.command) = (true, 0, None);
        reading.data.clear();
        let Some(target) = target(header) else { return Ok(()) };
        let found = self.by_tag.get(usize::from(target.tag)).copied().flatten();
        let Some(command) = found else { return Ok(()) };
        let Some(live) = self.live[command].as_mut() else { return Ok(()) };
        let room = self.stream.commands[command].content.len();
        let end = target.offset as usize + target.data_bytes as usize;
        if live.next == target.offset as usize && end <= room && !live.closing {
            reading.command = Some(command);
            reading.offset = target.offset as usize;
        } else {
            // An error of the peer: the command fails, regardless of the device's result.
            live.failed = true;
        }
        Ok(())
    }

    fn data(
        &mut self,
        offset: usize,
        bytes: Vec<u8>,
        placed: Option<Registration>,
    ) -> Result<(), String> {
        let reading = &mut *self.reading;
        if offset != reading.data.len() {
            return Err(format!("data at {offset} after {}", reading.data.len()));
        }
        reading.data.extend(&bytes);
        let Some(command) = reading.command else { return Ok(()) };
        let live = self.live[command].as_mut().ok_or("gone")?;
        let at = reading.offset + offset;
        if placed == Some(live.registration) {
            return Ok(());
        }
        if self.staging {
            live.staged.push((at, bytes));
        } else {
            let buffer = &mut self.memory.buffers[live.buffer].bytes;
            buffer[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }

    /// The first bytes of the PDU's data, from their destination.
    fn put(&self, count: usize) -> Vec<u8> {
        let live = self.reading.command.and_then(|command| self.live[command].as_ref());
        let Some(live) = live else { return self.reading.data[..count].to_vec() };
        let start = self.reading.offset;
        let buffer = &self.memory.buffers[live.buffer].bytes;
        let mut bytes = buffer[start..start + count].to_vec();
        for (at, staged) in &live.staged {
            for (index, byte) in staged.iter().enumerate() {
                if let Some(place) = (at + index).checked_sub(start).filter(|at| *at < count) {
                    bytes[place] = *byte;
                }
            }
        }
        bytes
    }

    fn verdict(&mut self, good: bool) -> Result<(), String> {
        let (pdu, meaning) = &self.stream.pdus[self.reading.index];
        self.reading.index += 1;
        self.reading.open = false;
        if self.reading.data.len() != pdu.data.len() {
            return Err("a verdict before the end of the data".to_owned());
        }
        if good && self.reading.data != pdu.data {
            return Err(format!("PDU {} is called good", self.reading.index - 1));
        }
        if !good && self.reading.data == pdu.data && !self.excused {
            return Err(format!("PDU {} is called corrupt", self.reading.index - 1));
        }
        if let Some(command) = self.reading.command.take() {
            let live = self.live[command].as_mut().ok_or("gone")?;
            live.next += pdu.data.len();
            live.failed |= !good;
            if good && *meaning != Meaning::Data(command) {
                return Err("data for another command".to_owned());
            }
        }
        if let Meaning::Done(command) = meaning {
            let live = self.live[*command].as_ref().ok_or("gone")?;
            if live.next != self.stream.commands[*command].content.len() && !live.failed {
                return Err(format!("command {command} ends without its data"));
            }
            self.done.push(*command);
        }
        Ok(())
    }
}
