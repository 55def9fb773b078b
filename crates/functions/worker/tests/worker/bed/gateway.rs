//! The gateway's end of the control socket.

use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use unlade_guest_protocol::CallContext;
use unlade_guest_protocol::control::{ControlHead, FailedWrite, Message, ObjectName, WriteMode};
use unlade_runtime::descriptors::send_with;

use super::guest::Guest;

pub struct Gateway {
    socket: UnixStream,
    input: Vec<u8>,
    unread: VecDeque<Message>,
    next_instance: u64,
    /// Pending writes of invocations that have replied.
    pending: HashMap<String, u32>,
}

impl Gateway {
    pub fn connect(control: &Path) -> Gateway {
        let socket = UnixStream::connect(control).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Gateway {
            socket,
            input: Vec::new(),
            unread: VecDeque::new(),
            next_instance: 1,
            pending: HashMap::new(),
        }
    }

    pub fn say(&mut self, message: impl Into<Message>) {
        let mut bytes = Vec::new();
        message.into().encode(&mut bytes).unwrap();
        self.socket.write_all(&bytes).unwrap();
    }

    pub fn say_bytes(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    pub fn role(&mut self, role: u64, policy: Value) {
        self.say(ControlHead::Role { role, policy });
    }

    /// Attaches an instance; its number is the guest's `instance`.
    pub fn attach(&mut self, role: u64) -> Guest {
        let (own, instance) = self.say_attach(role, 0, None);
        let guest = Guest::greet(own, instance, None);
        self.ready(guest)
    }

    /// Attaches an instance that brings its memory.
    pub fn attach_with(&mut self, role: u64, memory: OwnedFd, region_bytes: u64) -> Guest {
        let own_memory = memory.try_clone().unwrap();
        let (own, instance) = self.say_attach(role, region_bytes, Some(memory));
        let guest = Guest::greet(own, instance, Some(own_memory));
        self.ready(guest)
    }

    /// Sends the request to attach an instance; returns its end of the channel, and its number.
    pub fn say_attach(
        &mut self,
        role: u64,
        region_bytes: u64,
        memory: Option<OwnedFd>,
    ) -> (UnixStream, u64) {
        let instance = self.next_instance;
        self.next_instance += 1;
        let (own, channel) = UnixStream::pair().unwrap();
        let mut bytes = Vec::new();
        let said = ControlHead::Attach { instance, role, function: "f".into(), region_bytes };
        Message::from(said).encode(&mut bytes).unwrap();
        let mut beside = vec![channel.as_fd()];
        beside.extend(memory.as_ref().map(AsFd::as_fd));
        let sent = send_with(&self.socket, &bytes, &beside).unwrap();
        assert_eq!(sent, bytes.len());
        (own, instance)
    }

    fn ready(&mut self, guest: Guest) -> Guest {
        let instance = guest.instance;
        let epoch = guest.epoch();
        self.expect(|said| {
            matches!(said, ControlHead::Ready { instance: i, epoch: e } if *i == instance && *e == epoch)
        });
        guest
    }

    /// The next message that matches; others are kept.
    pub fn expect(&mut self, wanted: impl Fn(&ControlHead) -> bool) -> Message {
        if let Some(at) = self.unread.iter().position(|message| wanted(&message.said)) {
            return self.unread.remove(at).unwrap();
        }
        loop {
            while let Some((message, taken)) = Message::decode(&self.input).unwrap() {
                self.input.drain(..taken);
                if wanted(&message.said) {
                    return message;
                }
                self.unread.push_back(message);
            }
            let mut buffer = [0; 65536];
            let read = self.socket.read(&mut buffer).expect("the worker says something");
            assert!(read > 0, "the worker has gone; it had said {:?}", self.unread);
            self.input.extend_from_slice(&buffer[..read]);
        }
    }

    /// Receives messages until the worker has disconnected.
    pub fn rest(&mut self) -> Vec<Message> {
        let mut buffer = [0; 65536];
        loop {
            match self.socket.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(read) => self.input.extend_from_slice(&buffer[..read]),
            }
        }
        let mut rest: Vec<Message> = self.unread.drain(..).collect();
        while let Some((message, taken)) = Message::decode(&self.input).unwrap() {
            self.input.drain(..taken);
            rest.push(message);
        }
        rest
    }

    pub fn hint(&mut self, invocation: &str, role: u64, objects: Vec<ObjectName>, event: &[u8]) {
        let said = ControlHead::Hint { invocation: invocation.into(), role, objects };
        self.say(Message { said, bytes: event.to_vec() });
    }

    pub fn invoke(&mut self, guest: &Guest, invocation: &str, writes: WriteMode, event: &[u8]) {
        let said = ControlHead::Invoke {
            instance: guest.instance,
            invocation: invocation.into(),
            handler: "app.handler".into(),
            function: "f".into(),
            deadline_ms: 0,
            memory_mib: 128,
            writes,
            context: CallContext::default(),
        };
        self.say(Message { said, bytes: event.to_vec() });
    }

    pub fn replied(&mut self, id: &str) -> Message {
        let is_it = |said: &ControlHead| matches!(said, ControlHead::Replied { invocation, .. } if invocation == id);
        let message = self.expect(is_it);
        let ControlHead::Replied { pending_writes, .. } = message.said else { unreachable!() };
        self.pending.insert(id.to_owned(), pending_writes);
        message
    }

    /// The failed writes of an invocation, once it has replied and all writes have ended.
    pub fn settle(&mut self, id: &str) -> Vec<FailedWrite> {
        if !self.pending.contains_key(id) {
            self.replied(id);
        }
        match self.pending.remove(id) {
            Some(0) => Vec::new(),
            _ => self.settled(id),
        }
    }

    /// The failed writes of an invocation that will not reply.
    pub fn give_up(&mut self, id: &str) -> Vec<FailedWrite> {
        self.say(ControlHead::Settle { invocation: id.into() });
        self.settled(id)
    }

    fn settled(&mut self, id: &str) -> Vec<FailedWrite> {
        let message = self.expect(
            |said| matches!(said, ControlHead::Settled { invocation, .. } if invocation == id),
        );
        match message.said {
            ControlHead::Settled { failed, .. } => failed,
            _ => unreachable!(),
        }
    }

    pub fn gone(&mut self, guest: &Guest) -> String {
        let due = guest.instance;
        let message = self
            .expect(|said| matches!(said, ControlHead::Gone { instance, .. } if *instance == due));
        match message.said {
            ControlHead::Gone { reason, .. } => reason,
            _ => unreachable!(),
        }
    }
}
