//! Bodies that the copy service copies: the bytes are the same for each copier, also when a
//! session ends meanwhile.

use std::time::Duration;

use serde_json::json;
use unlade_fn_worker::copies::CopyService;
use unlade_guest_protocol::control::{ObjectName, WriteMode};
use unlade_guest_protocol::descriptor::{PENDING, PREFETCHED};
use unlade_guest_protocol::region::SLOT_BYTES;
use unlade_guest_protocol::{Operation, Status};
use unlade_metrics::{CopyBy, CopyFallback, Event};
use unlade_shm::Arena;
use unlade_testkit::{Random, cases};

use crate::bed::Bed;
use crate::bed::guest::Guest;

fn bed(service: CopyService) -> Bed {
    Bed::with(|config| config.copies.service = service)
}

fn copied(bed: &Bed, by: CopyBy) -> u64 {
    bed.meter.value(Event::HostioCopied(by))
}

fn named(key: &str) -> ObjectName {
    ObjectName { bucket: "box".into(), key: key.into(), version: None, range: None }
}

/// Sizes around slots, the guest's 16 slots, and the service's minimum.
const SIZES: &[usize] = &[
    1, 4095, 4097, 65_535, 65_536, 65_537, 262_143, 262_144, 262_145, 1_048_575, 1_048_576,
    1_048_577, 2_500_001,
];

/// Writes, reads, and reads a prefetched object; returns values that must be equal in all runs.
fn all_ways(bed: &mut Bed, guest: &mut Guest, key: &str, body: &[u8]) -> serde_json::Value {
    let name = json!({"Bucket": "box", "Key": key});
    let put = guest.call("PutObject", name.clone(), body).done();
    assert!(guest.call("GetObject", name.clone(), b"").body == body);
    bed.gateway.hint(key, 1, vec![named(key)], b"");
    bed.gateway.invoke(guest, key, WriteMode::DurableReply, b"{}");
    guest.invoked();
    let ahead = guest.call("GetObject", name.clone(), b"");
    assert_eq!(ahead.flags, PREFETCHED);
    assert!(ahead.body == body, "{} bytes, ahead", body.len());
    // A write that may still be pending is read like any other.
    let typed = json!({"Bucket": "box", "Key": key, "ContentType": "a/b"});
    let flags = guest.call("PutObject", typed, &body[1..]).flags;
    assert_eq!(flags, PENDING);
    assert!(guest.call("GetObject", name, b"").body == body[1..]);
    // A result is sent in the guest's slots.
    let result = &body[..body.len().min(16 * SLOT_BYTES as usize)];
    guest.reply(key, result);
    assert!(bed.gateway.replied(key).bytes == result);
    assert!(bed.gateway.settle(key).is_empty());
    put["ETag"].clone()
}

#[test]
fn bodies_are_the_same_whoever_copies() {
    let (seed, mut tags) = (unlade_testkit::seed(), Vec::new());
    for service in [CopyService::Off, CopyService::Always, CopyService::Auto] {
        let mut bed = bed(service);
        let mut guest = bed.guest();
        guest.call("CreateBucket", json!({"Bucket": "box"}), b"").done();
        let mut random = Random::new(seed);
        let mut found = Vec::new();
        for (number, &size) in SIZES.iter().enumerate() {
            let size = if random.once_in(4) { 1 + random.below(size) } else { size };
            let body = random.bytes(size);
            found.push(all_ways(&mut bed, &mut guest, &format!("k{number}"), &body));
        }
        match service {
            CopyService::Off => assert_eq!(copied(&bed, CopyBy::Service), 0),
            CopyService::Always => {
                // All except bodies that fit into no slot.
                assert!(copied(&bed, CopyBy::Service) > 5_000_000);
                let full = Event::HostioCopyFallback(CopyFallback::Full);
                assert_eq!(bed.meter.value(full), 0);
            }
            CopyService::Auto => {}
        }
        tags.push(found);
    }
    assert_eq!(tags[0], tags[1]);
    assert_eq!(tags[0], tags[2]);
}

#[test]
fn sessions_at_the_same_time_do_not_mix() {
    let mut bed = bed(CopyService::Always);
    bed.guest().call("CreateBucket", json!({"Bucket": "box"}), b"").done();
    let guests: Vec<_> = (0..4).map(|_| bed.guest()).collect();
    let run = |mut guest: Guest| {
        let mut random = Random::numbered(unlade_testkit::seed(), guest.instance);
        for round in 0..12 {
            let name = json!({"Bucket": "box", "Key": format!("{}", guest.instance)});
            let size = random.pick(SIZES);
            let body = random.bytes(size);
            guest.call("PutObject", name.clone(), &body).done();
            assert!(guest.call("GetObject", name, b"").body == body, "round {round}");
        }
    };
    let start = |guest| std::thread::spawn(move || run(guest));
    let threads: Vec<_> = guests.into_iter().map(start).collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(copied(&bed, CopyBy::Service) > 0);
}

/// A session ends in any state: the others continue, all of its resources are released, and its
/// object is complete or absent.
#[test]
fn sessions_that_end_in_the_middle_of_a_copy() {
    let mut bed = Bed::with(|config| {
        config.copies.service = CopyService::Always;
        // Leaked reservations of killed sessions would soon exceed this limit.
        config.tenant.held_bytes_max = unlade_config::ByteSize(6 << 20);
    });
    let mut good = bed.guest();
    good.call("CreateBucket", json!({"Bucket": "box"}), b"").done();
    cases(40, |random| {
        // A new name: a store may confuse two writes of one object if one of them is incomplete.
        let name = json!({"Bucket": "box", "Key": format!("{}", random.next())});
        let bytes = (1 << 20) - random.below(1000);
        let body = random.bytes(bytes);
        let mut bad = bed.guest();
        let call = bad.begin("PutObject", name.clone(), &body);
        for _ in 0..random.below(3) * random.below(20_000) {
            std::hint::spin_loop();
        }
        match random.below(4) {
            0 => drop(bad),
            1 => bad.greet_again(),
            2 => {
                let cancel = bad.submission(call, Operation::Cancel);
                bad.submit(&cancel);
                bad.end(call);
            }
            _ => bad.end(call).done().as_object().map(drop).unwrap(),
        }
        let mine = random.bytes(300_000);
        let other = json!({"Bucket": "box", "Key": "other"});
        good.call("PutObject", other.clone(), &mine).done();
        assert!(good.call("GetObject", other, b"").body == mine);
        let got = good.call("GetObject", name.clone(), b"");
        let (status, found) = (got.status, got.body.len());
        let is_whole = status == Status::Done && found > 1_000_000;
        assert!(is_whole || got.code() == "NoSuchKey", "{status:?} {found} {}", got.meta);
    });
}

/// A prefetched object is being copied into slots when its epoch ends, in memory that the next
/// epoch also uses.
#[test]
fn nothing_of_an_epoch_before_is_copied_into_the_next() {
    const REGION_BYTES: usize = 4 << 20;
    let mut bed = Bed::with(|config| {
        config.copies.service = CopyService::Always;
        config.instance.host_slots = 1024;
    });
    let mut writer = bed.guest();
    writer.call("CreateBucket", json!({"Bucket": "box"}), b"").done();
    let name = json!({"Bucket": "box", "Key": "k"});
    writer.call("PutObject", name.clone(), &vec![1; 1 << 20]).done();
    let memory = Arena::create("brought", REGION_BYTES).unwrap();
    let memory = memory.fd().try_clone_to_owned().unwrap();
    let mut guest = bed.gateway.attach_with(1, memory, REGION_BYTES as u64);
    cases(25, |random| {
        let id = format!("{}", random.next());
        bed.gateway.hint(&id, 1, vec![named("k")], b"");
        bed.gateway.invoke(&guest, &id, WriteMode::Sync, b"{}");
        guest.invoked();
        if random.once_in(2) {
            // The whole object has arrived.
            std::thread::sleep(Duration::from_millis(5));
        }
        guest.begin("GetObject", name.clone(), b"");
        for _ in 0..random.below(3) * random.below(20_000) {
            std::hint::spin_loop();
        }
        guest.greet_again();
        let start = guest.header.host_slots_offset as usize;
        let clean = vec![7; guest.header.host_slots as usize * SLOT_BYTES as usize];
        guest.arena.copy_in(start, &clean).unwrap();
        assert_eq!(guest.call("NoOperation", json!({}), b"").code(), "Unsupported");
        let mut found = Vec::new();
        guest.arena.append_to(start, clean.len(), &mut found).unwrap();
        assert!(found == clean, "the slots were written to");
    });
}
