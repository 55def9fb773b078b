//! Instances that bring the memory of their region, such as a machine whose memory is a file.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags};
use serde_json::json;
use unlade_guest_protocol::control::ControlHead;
use unlade_guest_protocol::region::SLOT_BYTES;
use unlade_guest_protocol::{Operation, Submission};
use unlade_shm::Arena;

use crate::bed::{Bed, body_of, script};

const REGION_BYTES: usize = 4 << 20;

fn sealed(bytes: usize) -> OwnedFd {
    Arena::create("brought", bytes).unwrap().fd().try_clone_to_owned().unwrap()
}

fn unsealed(bytes: u64) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("unsealed", flags).unwrap();
    rustix::fs::ftruncate(&file, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::GROW).unwrap();
    file
}

#[test]
fn memory_that_an_instance_brings_is_used_in_every_epoch() {
    let mut bed = Bed::with(|config| config.instance.host_slots = 1024);
    let mut guest = bed.gateway.attach_with(1, sealed(REGION_BYTES), REGION_BYTES as u64);
    assert!(guest.header.region_bytes <= REGION_BYTES as u64);
    assert!(guest.header.host_slots >= 32, "{:?}", guest.header);
    guest.call("CreateBucket", json!({"Bucket": "box"}), b"").done();
    let (put, body) = (json!({"Bucket": "box", "Key": "k"}), body_of(6 << 20));
    guest.call("PutObject", put.clone(), &body).done();
    for _ in 0..3 {
        let before = guest.epoch();
        guest.greet_again();
        assert_ne!(guest.epoch(), before);
        assert!(guest.call("GetObject", put.clone(), b"").body == body);
    }
}

#[test]
fn memory_that_cannot_be_relied_on_is_refused() {
    let mut bed = Bed::new();
    let region_bytes = REGION_BYTES as u64;
    for (file, said, why) in [
        (Some(sealed(REGION_BYTES)), region_bytes + 1, "were said"),
        (Some(sealed(64 * 1024)), 64 * 1024, "are no region"),
        (Some(unsealed(region_bytes)), region_bytes, "shrink"),
        (Some(std::fs::File::open("/proc/self/exe").unwrap().into()), region_bytes, "memfd"),
        (None, region_bytes, "no memory"),
    ] {
        let (channel, number) = bed.gateway.say_attach(1, said, file);
        let message = bed.gateway.expect(
            |said| matches!(said, ControlHead::Refused { instance: Some(found), .. } if *found == number),
        );
        let ControlHead::Refused { reason, .. } = message.said else { unreachable!() };
        assert!(reason.contains(why), "{reason}");
        drop(channel);
    }
    bed.guest().call("ListBuckets", json!({}), b"").done();
}

/// The instance greets again while a body is being read: the read ends, and none of its data is
/// written into the memory, which now belongs to the next epoch.
#[test]
fn nothing_of_an_epoch_before_is_written_into_the_next() {
    const PIECE_BYTES: usize = 256 * 1024;
    let head = format!("HTTP/1.1 200 X\r\ncontent-length: {}\r\n\r\n", 9 * PIECE_BYTES);
    // Four chunks arrive; the others never do.
    let (address, closed) = script::halting(head + &"a".repeat(4 * PIECE_BYTES));
    let mut bed = Bed::with(|config| {
        config.store.endpoint = Some(format!("http://{address}"));
        config.instance.window_slots = 4;
    });
    let mut guest = bed.gateway.attach_with(1, sealed(REGION_BYTES), REGION_BYTES as u64);
    let call = guest.begin("GetObject", json!({"Bucket": "box", "Key": "k"}), b"");
    let first = guest.completion();
    assert_eq!((first.call, first.body.bytes as usize), (call, PIECE_BYTES));
    for _ in 0..3 {
        assert_eq!(guest.read(first.token, 0).body.bytes as usize, PIECE_BYTES);
    }
    // This READ takes over the read-ahead, and waits.
    let waits = guest.submission(99, Operation::Read);
    guest.submit(&Submission { token: first.token, ..waits });
    guest.greet_again();
    let start = guest.header.host_slots_offset as usize;
    let clean = vec![7; guest.header.host_slots as usize * SLOT_BYTES as usize];
    guest.arena.copy_in(start, &clean).unwrap();
    closed.recv_timeout(Duration::from_secs(20)).expect("the fetch has ended");
    assert_eq!(guest.call("NoOperation", json!({}), b"").code(), "Unsupported");
    let mut found = Vec::new();
    guest.arena.append_to(start, clean.len(), &mut found).unwrap();
    assert!(found == clean, "the slots were written to");
}
