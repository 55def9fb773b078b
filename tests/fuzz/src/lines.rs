//! A client of the copy daemon that writes any values anywhere into the shared memory: lines,
//! positions, progress, rings, at any moment between two turns of the service.

use std::num::NonZeroU16;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use unlade_copy_kernels::guard::Fault;
use unlade_copy_kernels::{Regions, Space};
use unlade_copy_scheduler::Micros;
use unlade_copy_service::manual::{Manual, Remaining};
use unlade_shm::{Arena, Flags, Kind, Memory, Queue, SyncKind, SyncTask, Task, Ticket};

const SLOTS: u32 = 16;
/// Bytes of each of the client's regions.
const REGION_BYTES: u64 = 4096;
/// The client owns regions 1 and 2; the third belongs to another client.
const REGIONS: u16 = 2;
/// Far more turns than the content of a full queue takes.
const TURNS_MAX: u32 = 10_000;
/// Steps of one input.
const STEPS_MAX: usize = 512;
/// Later than any delay.
const END: Micros = Micros(u64::MAX / 2);

/// Steps of a script, by number.
pub mod step {
    #![allow(missing_docs)]
    pub const WORDS: u8 = 0;
    pub const TASK: u8 = 1;
    pub const SYNC: u8 = 2;
    pub const PROGRESS: u8 = 3;
    pub const TURN: u8 = 4;
    pub const ACQUIRE: u8 = 5;
    pub const HANDLER: u8 = 6;
    pub const DOZE: u8 = 7;
    pub const COUNT: u8 = 8;
}

/// A script's bytes, followed by zeros.
struct Script<'s>(&'s [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }
    fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }
    fn word(&mut self) -> u32 {
        u32::from(self.short()) << 16 | u32::from(self.short())
    }
    fn long(&mut self) -> u64 {
        u64::from(self.word()) << 32 | u64::from(self.word())
    }
    /// A number, mostly below `below`, sometimes any.
    fn number(&mut self, below: u64) -> u64 {
        match self.byte() {
            0..240 => u64::from(self.short()) % below,
            240..248 => below.wrapping_sub(u64::from(self.byte())),
            _ => self.long(),
        }
    }
}

/// The client's regions, and the invariant of every copy: both its ranges are in one of them.
struct Watched(Regions);

impl Watched {
    fn check(place: u64, len: u64) {
        let (region, offset) = (place >> 48, place & ((1 << 48) - 1));
        assert!((1..=u64::from(REGIONS)).contains(&region), "region {region}");
        assert!(offset + len <= REGION_BYTES, "{len} bytes at {offset}");
    }
}

impl Space for Watched {
    fn place(&self, region: u16, offset: u64, len: u64) -> Option<u64> {
        let place = self.0.place(region, offset, len)?;
        Watched::check(place, len);
        Some(place)
    }
    fn copy(&self, dst: u64, src: u64, len: u64) -> Result<(), Fault> {
        Watched::check(dst, len);
        Watched::check(src, len);
        self.0.copy(dst, src, len)
    }
}

/// Both ends of a queue, and the client's regions.
struct Peer {
    queue: Queue,
    service: Manual,
    now: Micros,
}

fn again(arena: &Arena) -> OwnedFd {
    arena.fd().try_clone_to_owned().expect("descriptors are left")
}

impl Peer {
    /// Makes the peer; `None` if bad addresses cannot be caught.
    fn new() -> Option<Peer> {
        let guard = unlade_copy_kernels::guard::install().ok()?;
        unlade_copy_kernels::guard::unblock().ok()?;
        let regions = Regions::new(guard, REGIONS, REGION_BYTES * u64::from(REGIONS));
        for number in 1..=REGIONS {
            let region = Arena::create("fuzz-region", REGION_BYTES as usize).expect("memory");
            regions.add(number, REGION_BYTES, again(&region)).expect("a region");
        }
        let arena = Arena::create("fuzz-queue", Queue::bytes_for(SLOTS).expect("slots"));
        let arena = arena.expect("memory");
        let other = Arena::attach(again(&arena)).expect("the same memory");
        let queue = Queue::create(Memory::from(arena), SLOTS).expect("a queue");
        let served = Queue::attach(Memory::from(other)).expect("the same queue");
        let service = Manual::new(served, Arc::new(Watched(regions)));
        Some(Peer { queue, service, now: Micros(0) })
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.byte() % step::COUNT {
            step::WORDS => self.write(script),
            step::TASK => {
                let ticket = self.ticket(script);
                self.queue.publish(ticket, &task(script));
            }
            step::SYNC => {
                let kind = if script.byte().is_multiple_of(2) {
                    SyncKind::Promote
                } else {
                    SyncKind::Abort
                };
                let ticket = self.ticket(script);
                // A full queue is acceptable.
                let _ = self.queue.push_sync(SyncTask { ticket, bits: script.word(), kind });
            }
            step::PROGRESS => self.change_progress(script),
            step::TURN => self.turn(script),
            step::ACQUIRE => {
                let _ = self.queue.try_acquire();
            }
            step::HANDLER => {
                let _ = self.queue.pop_handler();
            }
            _ => {
                let _ = self.service.doze();
            }
        }
    }

    /// A ticket: the service's next, an old one, or an invalid one.
    fn ticket(&self, script: &mut Script<'_>) -> Ticket {
        let near = self.queue.tail().0.wrapping_sub(2);
        Ticket(near.wrapping_add(script.number(2 * u64::from(SLOTS))))
    }

    /// Writes words of the queue's memory, including the header's.
    fn write(&self, script: &mut Script<'_>) {
        let memory = self.queue.memory();
        let words = memory.len_bytes() as u64 / 8;
        let at = u64::from(script.short()) % words * 8;
        let count = 1 + usize::from(script.byte() % 8);
        let mut bytes = Vec::new();
        for _ in 0..count.min((words - at / 8) as usize) {
            let value = match script.byte() % 4 {
                0 => u64::from(script.short()),
                1 => u64::from(script.short()).wrapping_neg(),
                2 => u64::from(script.byte()) << 32 | u64::from(script.word()),
                _ => script.long(),
            };
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        let file = memory.fd().expect("a queue in shared memory");
        let written = rustix::io::pwrite(file.as_fd(), &bytes, at).expect("a sealed memfd");
        assert_eq!(written, bytes.len());
    }

    fn change_progress(&self, script: &mut Script<'_>) {
        let progress = self.queue.progress(self.ticket(script));
        let bits = match script.byte() % 4 {
            0 => u32::MAX,
            1 => 1 << (script.byte() % 32),
            _ => script.word(),
        };
        match script.byte() % 7 {
            0 => _ = progress.claim(bits),
            1 => _ = progress.finish(bits),
            2 => progress.release(bits),
            3 => _ = progress.abort_rest(bits),
            4 => _ = progress.handler_due(),
            5 => _ = progress.take_handler(),
            _ => {
                let code = NonZeroU16::new(script.short()).unwrap_or(NonZeroU16::MIN);
                progress.fail(code, bits);
            }
        }
    }

    fn turn(&mut self, script: &mut Script<'_>) {
        self.now = Micros(self.now.0 + u64::from(script.byte()) * 100);
        let run_bytes = 1 << (script.byte() % 16);
        self.service.turn(self.now, 16 * run_bytes, run_bytes);
    }

    /// Runs the service until it is idle, whatever state the script left.
    fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            if self.service.turn(END, 1 << 20, 1 << 16) != Remaining::More {
                return;
            }
        }
        panic!("the service does not come to rest: {:?}", self.service.counts());
    }
}

fn task(script: &mut Script<'_>) -> Task {
    let len_bytes = script.number(REGION_BYTES) as u32;
    let mut task = Task::copy(script.number(REGION_BYTES), script.number(REGION_BYTES), len_bytes);
    task.dst_region = u16::from(script.byte()) % (REGIONS + 2);
    task.src_region = u16::from(script.byte()) % (REGIONS + 2);
    let shape = script.byte();
    if shape & 1 != 0 {
        task.flags = task.flags | Flags::LAZY;
        task.delay_us = script.word();
    }
    if shape & 2 != 0 {
        task.flags = task.flags | Flags::HANDLER;
        (task.handler, task.argument) = (script.long(), script.long());
    }
    if shape & 4 != 0 {
        task.granule_shift = script.byte();
    }
    match shape >> 4 {
        0 => task.kind = Kind::Barrier,
        1 => task.kind = Kind::Forward,
        2 => (task.kind, task.fd) = (Kind::Receive, i32::from(script.byte())),
        3 => (task.kind, task.fd) = (Kind::Send, i32::from(script.byte())),
        _ => {}
    }
    task
}

/// A service with such a client does not panic, does not loop forever, and accesses no byte
/// outside the client's regions.
pub fn copyd_lines(data: &[u8]) {
    let Some(mut peer) = Peer::new() else { return };
    let mut script = Script(data);
    for _ in 0..STEPS_MAX {
        if script.0.is_empty() {
            break;
        }
        peer.step(&mut script);
    }
    peer.settle();
}
