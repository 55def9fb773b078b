//! A minimal guest: one call at a time.

use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use unlade_guest_protocol::descriptor::{MORE, PART};
use unlade_guest_protocol::region::{ENTRY_BYTES, SLOT_BYTES, word};
use unlade_guest_protocol::{
    Completion, Deframer, Extent, Frame, HandlerStatus, Header, InvokeHead, Operation, ReplyHead,
    Status, Submission,
};
use unlade_runtime::descriptors::receive;
use unlade_shm::Arena;

pub struct Guest {
    pub instance: u64,
    /// The memory that the instance brought.
    pub memory: Option<OwnedFd>,
    pub socket: UnixStream,
    pub arena: Arena,
    pub header: Header,
    deframer: Deframer,
    frames: VecDeque<Frame>,
    submissions: u32,
    completions: u32,
    next_call: u64,
}

/// The response to a call.
#[derive(Debug)]
pub struct Came {
    pub status: Status,
    pub flags: u16,
    pub meta: Value,
    pub body: Vec<u8>,
    /// Number of parts in which the body arrived.
    pub pieces: usize,
}

impl Came {
    /// The result of a call that must succeed.
    pub fn done(self) -> Value {
        assert_eq!(self.status, Status::Done, "{}", self.meta);
        self.meta["result"].clone()
    }

    /// The code of an error.
    pub fn code(&self) -> &str {
        assert_ne!(self.status, Status::Done, "{}", self.meta);
        self.meta["error"]["Code"].as_str().unwrap_or_default()
    }
}

impl Guest {
    /// Greets, and attaches the region.
    pub fn greet(socket: UnixStream, instance: u64, memory: Option<OwnedFd>) -> Guest {
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let (arena, header) = hello(&socket, 0x1234, memory.as_ref());
        Guest {
            instance,
            socket,
            memory,
            arena,
            header,
            deframer: Deframer::default(),
            frames: VecDeque::new(),
            submissions: 0,
            completions: 0,
            next_call: 1,
        }
    }

    /// Greets again, as after a restore.
    pub fn greet_again(&mut self) {
        (self.arena, self.header) = hello(&self.socket, 0x5678, self.memory.as_ref());
        (self.submissions, self.completions) = (0, 0);
    }

    pub fn epoch(&self) -> u64 {
        self.header.epoch
    }

    pub fn send(&mut self, frame: &Frame) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes).unwrap();
        self.socket.write_all(&bytes).unwrap();
    }

    fn read_frames(&mut self) {
        let (mut bytes, mut none) = (Vec::new(), VecDeque::new());
        let read = receive(&self.socket, &mut bytes, &mut none).expect("the worker says something");
        assert!(read > 0, "the worker has closed the channel");
        self.deframer.push(&bytes);
        while let Some(frame) = self.deframer.next_frame().unwrap() {
            if frame != Frame::Bell {
                self.frames.push_back(frame);
            }
        }
    }

    /// The next frame that is not a BELL.
    pub fn frame(&mut self) -> Frame {
        loop {
            if let Some(frame) = self.frames.pop_front() {
                return frame;
            }
            self.read_frames();
        }
    }

    /// The next invocation and its event.
    pub fn invoked(&mut self) -> (InvokeHead, Vec<u8>) {
        let Frame::Invoke(head, mut event) = self.frame() else { panic!("no invocation") };
        if let Some(extent) = head.slots() {
            event = self.host_body(extent);
        }
        (head, event)
    }

    pub fn reply(&mut self, id: &str, result: &[u8]) {
        let inline = result.len() <= 60_000;
        let head = ReplyHead {
            id: id.into(),
            status: HandlerStatus::Done,
            log_tail: "printed".into(),
            result_bytes: result.len() as u32,
            result_slot: (!inline).then_some(0),
        };
        if !inline {
            self.arena.copy_in(self.header.guest_slots_offset as usize, result).unwrap();
        }
        let follows = if inline { result.to_vec() } else { Vec::new() };
        self.send(&Frame::Reply(head, follows));
    }

    fn host_body(&self, extent: Extent) -> Vec<u8> {
        let at = self.header.host_slots_offset as usize
            + extent.first_slot as usize * SLOT_BYTES as usize;
        let mut out = Vec::new();
        self.arena.append_to(at, extent.bytes as usize, &mut out).unwrap();
        out
    }

    /// Creates a descriptor of this epoch.
    pub fn submission(&self, call: u64, operation: Operation) -> Submission {
        Submission {
            call,
            operation,
            more: false,
            epoch: self.epoch() as u32,
            meta_offset: 0,
            meta_bytes: 0,
            body: Extent { first_slot: 0, bytes: 0 },
            token: 0,
        }
    }

    pub fn submit(&mut self, submission: &Submission) {
        self.submit_bytes(&submission.encode());
    }

    pub fn submit_bytes(&mut self, bytes: &[u8; 64]) {
        let index = self.submissions & (self.header.submission_entries - 1);
        let at = self.header.submission_offset + index * ENTRY_BYTES;
        self.arena.copy_in(at as usize, bytes).unwrap();
        self.submissions = self.submissions.wrapping_add(1);
        self.arena.store(word::SUBMISSION_TAIL, self.submissions, Ordering::SeqCst).unwrap();
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.arena.load(word::HOST_SLEEPS, Ordering::SeqCst).unwrap() == 1 {
            // The worker may have closed the channel because of an earlier submission.
            let mut bell = Vec::new();
            Frame::Bell.encode(&mut bell).unwrap();
            let _ = self.socket.write_all(&bell);
        }
    }

    fn poll_completion(&mut self) -> Option<Completion> {
        let tail = self.arena.load(word::COMPLETION_TAIL, Ordering::SeqCst).unwrap();
        if tail == self.completions {
            return None;
        }
        let index = self.completions & (self.header.completion_entries - 1);
        let at = self.header.completion_offset + index * ENTRY_BYTES;
        let mut bytes = [0; 64];
        self.arena.copy_out(at as usize, &mut bytes).unwrap();
        self.completions = self.completions.wrapping_add(1);
        self.arena.store(word::COMPLETION_HEAD, self.completions, Ordering::SeqCst).unwrap();
        let completion = Completion::decode(&bytes).unwrap();
        assert_eq!(completion.epoch, self.epoch() as u32);
        Some(completion)
    }

    /// The next completion.
    pub fn completion(&mut self) -> Completion {
        loop {
            if let Some(completion) = self.poll_completion() {
                return completion;
            }
            self.arena.store(word::GUEST_SLEEPS, 1, Ordering::SeqCst).unwrap();
            std::sync::atomic::fence(Ordering::SeqCst);
            let found = self.poll_completion();
            if found.is_none() {
                self.read_frames();
            }
            self.arena.store(word::GUEST_SLEEPS, 0, Ordering::SeqCst).unwrap();
            if let Some(completion) = found {
                return completion;
            }
        }
    }

    /// Submits a call with its body; returns its number.
    pub fn begin(&mut self, operation: &str, parameters: Value, body: &[u8]) -> u64 {
        let text = json!({"service": "s3", "operation": operation, "parameters": parameters});
        self.begin_text(Operation::Call, text, body)
    }

    /// Submits a request to another service with its body; returns its number.
    pub fn begin_request(&mut self, head: Value, body: &[u8]) -> u64 {
        self.begin_text(Operation::Request, head, body)
    }

    fn begin_text(&mut self, first: Operation, mut text: Value, body: &[u8]) -> u64 {
        let call = self.next_call;
        self.next_call += 1;
        let inline = !body.is_empty() && body.len() <= 4096;
        (text["body_bytes"], text["inline"]) = (body.len().into(), inline.into());
        let mut meta = text.to_string().into_bytes();
        if inline {
            meta.push(0);
            meta.extend_from_slice(body);
        }
        let base = self.header.guest_meta_offset as usize;
        self.arena.copy_in(base, &meta).unwrap();
        let slots = self.header.guest_slots as usize * SLOT_BYTES as usize;
        let mut pieces = if inline { [].chunks(slots) } else { body.chunks(slots) };
        let count = pieces.len();
        for at in 0..count.max(1) {
            let piece = pieces.next().unwrap_or_default();
            self.arena.copy_in(self.header.guest_slots_offset as usize, piece).unwrap();
            let more = at + 1 < count;
            let kind = if at == 0 { first } else { Operation::Body };
            let body = Extent { first_slot: 0, bytes: piece.len() as u32 };
            let plain = self.submission(call, kind);
            let meta_bytes = if at == 0 { meta.len() as u32 } else { 0 };
            self.submit(&Submission { more, meta_bytes, body, ..plain });
            if more {
                let part = self.completion();
                assert_eq!((part.call, part.flags), (call, PART), "{part:?}");
            }
        }
        call
    }

    /// Makes a call, and reads all of its body.
    pub fn call(&mut self, operation: &str, parameters: Value, body: &[u8]) -> Came {
        let call = self.begin(operation, parameters, body);
        self.end(call)
    }

    /// Waits for the end of a call, and reads all of its body.
    pub fn end(&mut self, call: u64) -> Came {
        let first = loop {
            let completion = self.completion();
            assert_eq!(completion.call, call);
            if completion.flags & PART == 0 {
                break completion;
            }
        };
        let meta = self.meta(&first);
        let mut came = Came {
            status: first.status,
            flags: first.flags & !MORE,
            meta,
            body: self.host_body(first.body),
            pieces: 1,
        };
        let mut last = first;
        while last.flags & MORE != 0 {
            last = self.read(first.token, 0);
            assert_eq!(last.status, Status::Done);
            assert!(last.body.bytes > 0);
            came.body.extend(self.host_body(last.body));
            came.pieces += 1;
        }
        if first.token != 0 {
            self.release(first.token);
        }
        came
    }

    /// Reads the next part of a body.
    pub fn read(&mut self, token: u64, bytes: u32) -> Completion {
        let call = self.next_call;
        self.next_call += 1;
        let body = Extent { first_slot: 0, bytes };
        let plain = self.submission(call, Operation::Read);
        self.submit(&Submission { token, body, ..plain });
        let completion = self.completion();
        assert_eq!(completion.call, call);
        completion
    }

    pub fn piece(&self, completion: &Completion) -> Vec<u8> {
        self.host_body(completion.body)
    }

    pub fn release(&mut self, token: u64) {
        let plain = self.submission(0, Operation::Release);
        self.submit(&Submission { token, ..plain });
    }

    pub fn meta(&self, completion: &Completion) -> Value {
        if completion.meta_bytes == 0 {
            return Value::Null;
        }
        let at = (self.header.host_meta_offset + completion.meta_offset) as usize;
        let mut text = Vec::new();
        self.arena.append_to(at, completion.meta_bytes as usize, &mut text).unwrap();
        serde_json::from_slice(&text).unwrap()
    }
}

fn hello(socket: &UnixStream, due: u64, memory: Option<&OwnedFd>) -> (Arena, Header) {
    let mut bytes = Vec::new();
    Frame::Hello { nonce: due }.encode(&mut bytes).unwrap();
    (&*socket).write_all(&bytes).unwrap();
    let (mut input, mut descriptors) = (Vec::new(), VecDeque::new());
    let (epoch, region_bytes) = loop {
        let read = receive(socket, &mut input, &mut descriptors).expect("a welcome");
        assert!(read > 0, "the worker has closed the channel");
        match Frame::decode(&input).unwrap() {
            None => {}
            Some((Frame::Welcome { nonce, epoch, region_bytes }, taken)) => {
                assert_eq!((nonce, taken), (due, input.len()));
                break (epoch, region_bytes);
            }
            // Bells of the previous epoch.
            Some((Frame::Bell, taken)) => drop(input.drain(..taken)),
            Some((other, _)) => panic!("{other:?}"),
        }
    };
    let came = descriptors.pop_front();
    assert_eq!(came.is_none(), memory.is_some(), "one memory, of one of the two");
    let file = came.unwrap_or_else(|| memory.unwrap().try_clone().unwrap());
    let arena = Arena::attach(file).unwrap();
    assert!(arena.len_bytes() as u64 >= region_bytes);
    let mut head = [0; unlade_guest_protocol::region::HEADER_USED_BYTES];
    arena.copy_out(0, &mut head).unwrap();
    let header = Header::decode(&head).unwrap();
    assert_eq!(header.epoch, epoch);
    (arena, header)
}
