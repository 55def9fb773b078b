//! Tests of the whole unit with a simulated accelerator, which receives the descriptors through a
//! socket.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

use super::probe::Mode;
use super::*;
use crate::guard::{self, Kind};

/// Behaviour of the simulated accelerator for a copy.
#[derive(Clone, Copy)]
enum SimulatedResult {
    Copy,
    /// Copies this number of bytes, and reports a page fault.
    Fault(u32),
    /// Reports this status.
    Fail(u8),
}

struct Bench {
    unit: Dsa,
    orders: UnixStream,
}

impl Bench {
    fn new(batch_max: usize, entries: usize) -> Option<Bench> {
        let guard = match guard::install() {
            Ok(guard) => guard,
            Err(error) => {
                println!("skipped: {error}");
                return None;
            }
        };
        let queue = Queue {
            name: "wq0.0".to_owned(),
            path: "/dev/null".into(),
            mode: Mode::Shared,
            entries,
            bytes_max: 2 << 20,
            batch_max,
        };
        let (orders, file) = UnixStream::pair().unwrap();
        let portal = Portal::Written(File::from(OwnedFd::from(file)));
        let mut unit = Dsa::with(portal, &queue, guard);
        assert_eq!(unit.batch_max, 1, "no batches through a file");
        // The socket accepts batches, unlike the driver, so they are tested too.
        unit.batch_max = batch_max;
        Some(Bench { unit, orders })
    }

    fn submit(&mut self, buffers: &mut [(Vec<u8>, Vec<u8>)]) -> Result<Batch, Refused> {
        let chunk = |(from, to): &mut (Vec<u8>, Vec<u8>)| Chunk {
            dst: to.as_mut_ptr(),
            src: from.as_ptr(),
            len: from.len(),
        };
        let chunks: Vec<Chunk> = buffers.iter_mut().map(chunk).collect();
        // SAFETY: whole vectors, which the test does not touch until the batch is reported.
        unsafe { self.unit.submit(&chunks) }
    }

    /// Takes descriptors out of the queue, and executes them.
    fn play(&mut self, plays: &[SimulatedResult]) {
        let mut order = [0; 64];
        self.orders.read_exact(&mut order).unwrap();
        if order[7] == 1 {
            let count = u32::from_le_bytes(order[32..36].try_into().unwrap()) as usize;
            let list = word(&order, 16);
            assert_eq!((count, list % 64), (plays.len(), 0));
            for (at, play) in plays.iter().enumerate() {
                // SAFETY: the unit's list, which stays valid while the batch is in progress.
                let one = unsafe { with_exposed_provenance::<[u8; 64]>(list + 64 * at).read() };
                perform(&one, *play);
            }
            let fine = plays.iter().all(|play| matches!(play, SimulatedResult::Copy));
            report(&order, if fine { 1 } else { 5 }, 0, 0);
        } else {
            perform(&order, plays[0]);
            for play in &plays[1..] {
                self.orders.read_exact(&mut order).unwrap();
                perform(&order, *play);
            }
        }
    }
}

fn word(order: &[u8; 64], at: usize) -> usize {
    u64::from_le_bytes(order[at..at + 8].try_into().unwrap()) as usize
}

fn perform(order: &[u8; 64], play: SimulatedResult) {
    assert_eq!(order[7], 3, "a memmove");
    let size = u32::from_le_bytes(order[32..36].try_into().unwrap());
    let (from, to) = (word(order, 16), word(order, 24));
    let copy = |bytes: u32| {
        let (src, dst) = (with_exposed_provenance::<u8>(from), with_exposed_provenance_mut(to));
        // SAFETY: the unit exposed both ranges, and they belong to the accelerator for now.
        unsafe { std::ptr::copy_nonoverlapping(src, dst, bytes as usize) };
    };
    match play {
        SimulatedResult::Copy => {
            copy(size);
            report(order, 1, 0, 0);
        }
        SimulatedResult::Fault(done) => {
            copy(done);
            report(order, 0x83, done, to + done as usize);
        }
        SimulatedResult::Fail(status) => report(order, status, 0, 0),
    }
}

/// Writes a completion record, with the status last.
fn report(order: &[u8; 64], status: u8, done: u32, address: usize) {
    let record = word(order, 8);
    assert_eq!(record % 32, 0);
    let mut bytes = [0_u8; 32];
    bytes[4..8].copy_from_slice(&done.to_le_bytes());
    bytes[8..16].copy_from_slice(&(address as u64).to_le_bytes());
    // SAFETY: the record that the unit exposed and waits for.
    unsafe {
        with_exposed_provenance_mut::<[u8; 32]>(record).write(bytes);
        with_exposed_provenance_mut::<u8>(record).write_volatile(status);
    }
}

fn buffers(count: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    (0..count).map(|at| (vec![at as u8 + 1; BYTES_MIN + at], vec![0; BYTES_MIN + at])).collect()
}

fn are_copied(buffers: &[(Vec<u8>, Vec<u8>)]) -> bool {
    buffers.iter().all(|(from, to)| from == to)
}

#[test]
fn batches_and_single_descriptors_are_copied_when_reported() {
    for batch_max in [1, 32] {
        let Some(mut bench) = Bench::new(batch_max, 16) else { return };
        let mut buffers = buffers(3);
        let batch = bench.submit(&mut buffers).unwrap();
        assert_eq!(bench.unit.poll(&batch), Progress::Pending);
        bench.play(&[SimulatedResult::Copy; 3]);
        assert_eq!(bench.unit.poll(&batch), Progress::Done);
        assert!(are_copied(&buffers));
        assert_eq!(bench.unit.left_bytes(), 0);
        let again = bench.unit.poll(&batch);
        assert_eq!(again, Progress::Failed { chunk: 0, why: Failure::Unknown });
    }
}

#[test]
fn a_batch_is_pending_until_its_last_piece_is_reported() {
    let Some(mut bench) = Bench::new(1, 16) else { return };
    let mut buffers = buffers(3);
    let batch = bench.submit(&mut buffers).unwrap();
    let mut orders = [[0; 64]; 3];
    for order in &mut orders {
        bench.orders.read_exact(order).unwrap();
    }
    for order in [&orders[2], &orders[1], &orders[0]] {
        assert_eq!(bench.unit.poll(&batch), Progress::Pending);
        perform(order, SimulatedResult::Copy);
    }
    assert_eq!(bench.unit.poll(&batch), Progress::Done);
    assert!(are_copied(&buffers));
}

#[test]
fn after_a_page_fault_the_processor_does_the_rest() {
    for batch_max in [1, 32] {
        let Some(mut bench) = Bench::new(batch_max, 16) else { return };
        let mut buffers = buffers(3);
        let batch = bench.submit(&mut buffers).unwrap();
        bench.play(&[
            SimulatedResult::Copy,
            SimulatedResult::Fault(1000),
            SimulatedResult::Fault(0),
        ]);
        assert_eq!(bench.unit.poll(&batch), Progress::Done);
        assert!(are_copied(&buffers));
        assert_eq!(bench.unit.left_bytes() as usize, BYTES_MIN + 1 - 1000 + BYTES_MIN + 2);
    }
}

#[test]
fn a_bad_address_is_the_error_of_its_piece() {
    let Some(mut bench) = Bench::new(32, 16) else { return };
    let (from, nowhere) = (vec![1; BYTES_MIN], 8_usize);
    let mut good = vec![0; BYTES_MIN];
    let chunks = [good.as_mut_ptr(), std::ptr::without_provenance_mut(nowhere)].map(|dst| Chunk {
        dst,
        src: from.as_ptr(),
        len: BYTES_MIN,
    });
    // SAFETY: nothing is mapped on the first pages, and the other addresses belong to the test.
    let batch = unsafe { bench.unit.submit(&chunks) }.unwrap();
    bench.play(&[SimulatedResult::Copy, SimulatedResult::Fault(0)]);
    let progress = bench.unit.poll(&batch);
    let Progress::Failed { chunk: 1, why: Failure::Fault(fault) } = progress else {
        panic!("{progress:?}");
    };
    assert_eq!((fault.address, fault.kind, fault.done_bytes_min), (nowhere, Kind::NotMapped, 0));
}

#[test]
fn an_error_of_the_accelerator_fails_the_piece_with_its_status() {
    let Some(mut bench) = Bench::new(1, 16) else { return };
    let mut buffers = buffers(2);
    let batch = bench.submit(&mut buffers).unwrap();
    bench.play(&[SimulatedResult::Copy, SimulatedResult::Fail(0x1a)]);
    let why = Failure::Unit { status: 0x1a };
    assert_eq!(bench.unit.poll(&batch), Progress::Failed { chunk: 1, why });
}

#[test]
fn chunks_without_room_are_copied_by_the_processor() {
    let Some(mut bench) = Bench::new(1, 16) else { return };
    let mut buffers = buffers(3);
    let batch = bench.submit(&mut buffers).unwrap();
    bench.unit.slots[0].way = Submission::Single(2);
    bench.play(&[SimulatedResult::Copy, SimulatedResult::Copy]);
    assert_eq!(bench.unit.poll(&batch), Progress::Done);
    assert!(are_copied(&buffers));
    assert_eq!(bench.unit.left_bytes() as usize, BYTES_MIN + 2);
}

#[test]
fn a_full_queue_refuses_and_is_free_again_after_the_report() {
    let Some(mut bench) = Bench::new(1, 3) else { return };
    let (mut first, mut second) = (buffers(2), buffers(2));
    let batch = bench.submit(&mut first).unwrap();
    assert!(matches!(bench.submit(&mut second), Err(Refused::Full)));
    bench.play(&[SimulatedResult::Copy; 2]);
    assert_eq!(bench.unit.poll(&batch), Progress::Done);
    let batch = bench.submit(&mut second).unwrap();
    bench.play(&[SimulatedResult::Copy; 2]);
    assert_eq!(bench.unit.poll(&batch), Progress::Done);
    assert!(are_copied(&second));
}

#[test]
fn a_file_without_room_refuses_and_a_broken_one_reports_it() {
    let Some(mut bench) = Bench::new(1, 16) else { return };
    let (reader, mut writer) = UnixStream::pair().unwrap();
    writer.set_nonblocking(true).unwrap();
    while writer.write(&[0; 64]).is_ok() {}
    bench.unit.portal = Some(Portal::Written(File::from(OwnedFd::from(writer))));
    assert!(matches!(bench.submit(&mut buffers(1)), Err(Refused::Full)));
    drop(reader);
    assert!(matches!(bench.submit(&mut buffers(1)), Err(Refused::Broken(_))));
    assert_eq!(bench.unit.entries(), 0, "what was refused takes no room");
}
