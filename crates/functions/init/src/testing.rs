//! A host that follows a script, for tests of this side of the guest protocol.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use serde_json::Value;
use tokio::task::LocalSet;
use unlade_guest_protocol::descriptor::{DESCRIPTOR_BYTES, MORE, PART};
use unlade_guest_protocol::region::{ENTRY_BYTES, SLOT_BYTES, word};
use unlade_guest_protocol::{
    Completion, Deframer, Extent, Frame, Header, Layout, Operation, Status, Submission,
};
use unlade_shm::Arena;

use crate::link::Link;

/// Number of the only epoch.
const EPOCH: u64 = 7;
/// Bytes for the meta of one completion, and number of such places.
const META: (u32, u32) = (4096, 16);

/// The host's end of the channel.
pub struct Host {
    socket: UnixStream,
    arena: Arena,
    header: Header,
    deframer: Deframer,
    taken: u32,
    completed: u32,
    said: u32,
    /// Tokens that were released.
    pub released: Vec<u64>,
}

/// Runs a guest with a host in another thread; returns the guest's result.
pub fn hosted<T>(
    slots: (u32, u32),
    memory_bytes: u64,
    script: impl FnOnce(Host) + Send + 'static,
    guest: impl AsyncFnOnce(Rc<Link>) -> T,
) -> T {
    let (own, other) = UnixStream::pair().unwrap();
    let (guest_slots, host_slots) = slots;
    let layout = Layout { ring_entries: 64, meta_bytes: META.0 * META.1, guest_slots, host_slots };
    let thread = std::thread::spawn(move || script(Host::greet(own, layout)));
    let (link, service) = Link::greet(other.into(), memory_bytes).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let value = LocalSet::new().block_on(&runtime, async move {
        let (invoked, _arrived) = tokio::sync::mpsc::unbounded_channel();
        let service = tokio::task::spawn_local(service.run(invoked));
        let value = guest(link).await;
        service.abort();
        value
    });
    drop(runtime);
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
    value
}

impl Host {
    fn greet(socket: UnixStream, layout: Layout) -> Host {
        let header = layout.header(EPOCH).unwrap();
        let arena = Arena::create("unlade-test", header.region_bytes as usize).unwrap();
        arena.copy_in(0, &header.encode()).unwrap();
        arena.store(word::HOST_SLEEPS, 1, Ordering::SeqCst).unwrap();
        let deframer = Deframer::default();
        let (taken, completed, said, released) = (0, 0, 0, Vec::new());
        let mut host = Host { socket, arena, header, deframer, taken, completed, said, released };
        let Some(Frame::Hello { nonce }) = host.frame() else { panic!("no HELLO") };
        let region_bytes = host.header.region_bytes;
        let mut bytes = Vec::new();
        Frame::Welcome { nonce, epoch: EPOCH, region_bytes }.encode(&mut bytes).unwrap();
        unlade_sys::descriptors::send(&host.socket, &bytes, &[host.arena.fd()]).unwrap();
        host
    }

    /// The next frame; `None` after the end of the channel.
    pub fn frame(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.deframer.next_frame().unwrap() {
                return Some(frame);
            }
            let mut bytes = [0; 4096];
            match self.socket.read(&mut bytes).unwrap_or_default() {
                0 => return None,
                count => self.deframer.push(&bytes[..count]),
            }
        }
    }

    fn next(&mut self) -> Option<Submission> {
        loop {
            let tail = self.arena.load(word::SUBMISSION_TAIL, Ordering::SeqCst).unwrap();
            if tail == self.taken {
                self.frame()?;
                continue;
            }
            let index = self.taken & (self.header.submission_entries - 1);
            let at = self.header.submission_offset + index * ENTRY_BYTES;
            let mut bytes = [0; DESCRIPTOR_BYTES];
            self.arena.copy_out(at as usize, &mut bytes).unwrap();
            self.taken = self.taken.wrapping_add(1);
            self.arena.store(word::SUBMISSION_HEAD, self.taken, Ordering::SeqCst).unwrap();
            return Some(Submission::decode(&bytes).unwrap());
        }
    }

    /// The next submission that is no RELEASE.
    pub fn submission(&mut self) -> Submission {
        loop {
            let next = self.next().expect("the guest goes on");
            match next.operation {
                Operation::Release => self.released.push(next.token),
                _ => return next,
            }
        }
    }

    /// Waits for a RELEASE of a token; nothing else may come before.
    pub fn released(&mut self, token: u64) {
        while !self.released.contains(&token) {
            let next = self.next().expect("the guest goes on");
            assert_eq!(next.operation, Operation::Release, "{next:?}");
            self.released.push(next.token);
        }
    }

    /// The text of a call.
    pub fn text(&self, call: &Submission) -> Value {
        let mut bytes = Vec::new();
        let at = self.header.guest_meta_offset + call.meta_offset;
        self.arena.append_to(at as usize, call.meta_bytes as usize, &mut bytes).unwrap();
        serde_json::from_slice(bytes.split(|byte| *byte == 0).next().unwrap()).unwrap()
    }

    /// The bytes of one descriptor.
    pub fn bytes(&self, call: &Submission) -> Vec<u8> {
        let mut bytes = Vec::new();
        let at = self.header.guest_slots_offset + call.body.first_slot * SLOT_BYTES;
        self.arena.append_to(at as usize, call.body.bytes as usize, &mut bytes).unwrap();
        bytes
    }

    /// The whole body of a call that has begun.
    pub fn body(&mut self, call: &Submission) -> Vec<u8> {
        let mut body = self.bytes(call);
        let mut more = call.more;
        while more {
            self.part(call.call);
            let next = self.submission();
            assert_eq!((next.operation, next.call), (Operation::Body, call.call));
            body.extend(self.bytes(&next));
            more = next.more;
        }
        body
    }

    fn complete(&mut self, completion: &Completion) {
        let index = self.completed & (self.header.completion_entries - 1);
        let at = self.header.completion_offset + index * ENTRY_BYTES;
        self.arena.copy_in(at as usize, &completion.encode()).unwrap();
        self.completed = self.completed.wrapping_add(1);
        self.arena.store(word::COMPLETION_TAIL, self.completed, Ordering::SeqCst).unwrap();
        let mut bell = Vec::new();
        Frame::Bell.encode(&mut bell).unwrap();
        self.socket.write_all(&bell).unwrap();
    }

    fn bare(call: u64, status: Status) -> Completion {
        Completion::bare(call, status, EPOCH as u32)
    }

    /// Slots of a part are free.
    pub fn part(&mut self, call: u64) {
        self.complete(&Completion { flags: PART, ..Host::bare(call, Status::Done) });
    }

    /// There is no room.
    pub fn refuse(&mut self, call: u64) {
        self.complete(&Host::bare(call, Status::Refused));
    }

    /// An answer with text.
    pub fn say(&mut self, call: u64, status: Status, flags: u16, meta: &Value) {
        let (meta_offset, meta_bytes) = self.meta(meta);
        let bare = Host::bare(call, status);
        self.complete(&Completion { flags, meta_offset, meta_bytes, ..bare });
    }

    fn meta(&mut self, meta: &Value) -> (u32, u32) {
        let text = meta.to_string();
        let offset = self.said % META.1 * META.0;
        self.said += 1;
        let at = self.header.host_meta_offset + offset;
        self.arena.copy_in(at as usize, text.as_bytes()).unwrap();
        (offset, text.len() as u32)
    }

    /// Lends bytes from a slot on, with text unless that is null.
    pub fn lend(
        &mut self,
        (call, token): (u64, u64),
        meta: &Value,
        (first_slot, bytes): (u32, &[u8]),
        more: bool,
    ) {
        let at = self.header.host_slots_offset + first_slot * SLOT_BYTES;
        self.arena.copy_in(at as usize, bytes).unwrap();
        let (meta_offset, meta_bytes) = if meta.is_null() { (0, 0) } else { self.meta(meta) };
        let body = Extent { first_slot, bytes: bytes.len() as u32 };
        let flags = if more { MORE } else { 0 };
        let bare = Host::bare(call, Status::Done);
        self.complete(&Completion { flags, meta_offset, meta_bytes, body, token, ..bare });
    }
}
