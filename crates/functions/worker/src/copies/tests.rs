use super::*;
use crate::quota::Limits;
use tokio::task::LocalSet;
use unlade_metrics::Meter;
use unlade_testkit::{Random, cases};

const ARENA_BYTES: usize = 4 << 20;
/// Not made unless somebody needs it.
const PUT_OFF: CopyOptions =
    CopyOptions { lazy_us: Some(u32::MAX), queued: false, handler: None, site: 0 };

fn local<T>(work: impl AsyncFnOnce() -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, work())
}

fn copies(service: CopyService) -> Rc<Copies> {
    let quota = Quota::new(Limits { calls_max: 100, held_bytes_max: 1 << 30 });
    Copies::new(service, quota, Arc::new(Meter::new()))
}

fn with_cores(service: CopyService, cores: usize) -> Rc<Copies> {
    let made = copies(service);
    let (quota, meter) = (made.quota.clone(), made.meter.clone());
    let (client, under_way) = (OnceCell::new(), RefCell::default());
    let (next, how) = (Cell::new(0), made.how.clone());
    Rc::new(Copies { service, cores, quota, meter, client, under_way, next, how })
}

fn arena() -> Rc<Arena> {
    Rc::new(Arena::create("copies-test", ARENA_BYTES).unwrap())
}

fn content(arena: &Arena) -> Vec<u8> {
    let mut all = vec![0; arena.len_bytes()];
    arena.copy_out(0, &mut all).unwrap();
    all
}

fn made_by(copies: &Copies, by: CopyBy) -> u64 {
    copies.meter.value(Event::HostioCopy(by))
}

fn fallbacks(copies: &Copies, why: CopyFallback) -> u64 {
    copies.meter.value(Event::HostioCopyFallback(why))
}

/// Copies a body into an arena and back.
async fn there_and_back(copies: &Rc<Copies>, arena: &Rc<Arena>, random: &mut Random) {
    const SIZES: &[usize] =
        &[0, 1, 1023, 65_535, 65_536, 65_537, 262_143, 262_144, 262_145, 1_048_576, 1_048_577];
    let bytes = match random.once_in(3) {
        true => random.below(2_000_000),
        false => random.pick(SIZES),
    };
    let offset = random.below(ARENA_BYTES - bytes);
    let around = random.below(50) as usize;
    let from = Rc::new(random.bytes(bytes + around));
    copies.fill(arena, offset, &from, around..around + bytes).await.unwrap().unwrap();
    let back = copies.append(arena, offset, bytes, b"before".to_vec()).await.unwrap().unwrap();
    assert_eq!(back[..6], *b"before");
    assert!(back[6..] == from[around..], "{bytes} bytes at {offset}");
}

#[test]
fn the_bytes_are_the_same_whoever_copies() {
    for service in [CopyService::Off, CopyService::Always, CopyService::Auto] {
        local(async || {
            let (copies, arena) = (with_cores(service, 8), arena());
            let _calls = (copies.quota.call().unwrap(), copies.quota.call().unwrap());
            let mut random = Random::new(unlade_testkit::seed());
            for _ in 0..60 {
                there_and_back(&copies, &arena, &mut random).await;
            }
            assert_eq!(copies.under_way(), 0);
            let (worker, by_service) =
                (made_by(&copies, CopyBy::Worker), made_by(&copies, CopyBy::Service));
            assert_eq!(worker + by_service, 120);
            match service {
                CopyService::Off => {
                    assert_eq!((by_service, copies.client.get().is_some()), (0, false))
                }
                // Only the empty ones.
                CopyService::Always => assert!(by_service > worker),
                CopyService::Auto => {}
            }
        });
    }
}

#[test]
fn many_at_a_time_end_each_for_itself() {
    local(async || {
        let copies = copies(CopyService::Always);
        let tasks: Vec<_> = (0..8u64)
            .map(|number| {
                let copies = copies.clone();
                tokio::task::spawn_local(async move {
                    let (arena, mut random) = (arena(), Random::new(number));
                    for _ in 0..20 {
                        there_and_back(&copies, &arena, &mut random).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(copies.under_way(), 0);
    });
}

#[test]
fn an_epoch_that_ends_takes_its_copies_along_and_no_others() {
    local(async || {
        let copies = copies(CopyService::Always);
        copies.how.set(PUT_OFF);
        let (ending, staying) = (arena(), arena());
        let from = Rc::new(vec![7; 2 << 20]);
        let start = |arena: &Rc<Arena>| {
            let (copies, arena, from) = (copies.clone(), arena.clone(), from.clone());
            tokio::task::spawn_local(async move {
                let filled = copies.fill(&arena, 0, &from, 0..2 << 20).await.unwrap();
                let taken = copies.append(&arena, 3 << 20, 1000, Vec::new()).await.unwrap();
                (filled, taken)
            })
        };
        let (first, second) = (start(&ending), start(&staying));
        while copies.under_way() < 2 {
            tokio::task::yield_now().await;
        }
        copies.how.set(CopyOptions { queued: true, ..CopyOptions::default() });
        copies.end(&ending);
        assert_eq!(copies.under_way(), 1);
        // The memory of the next epoch, unaffected by the tasks of the previous one.
        ending.copy_in(0, &vec![5; ARENA_BYTES]).unwrap();
        let client = copies.client.get().unwrap().as_ref().unwrap();
        client.running.copier.sync_all().unwrap();
        assert!(content(&ending).iter().all(|&byte| byte == 5));
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        assert!(content(&ending).iter().all(|&byte| byte == 5));
        // The remaining copies were complete by then and were not changed.
        client.ended.notify_waiters();
        let (filled, taken) = second.await.unwrap();
        assert_eq!((filled, taken), (Ok(()), Ok(vec![0; 1000])));
        assert!(content(&staying)[..2 << 20] == **from);
        assert_eq!((copies.under_way(), Rc::strong_count(&ending)), (0, 1));
    });
}

#[test]
fn who_waits_still_is_told_of_the_end_of_the_epoch() {
    local(async || {
        let (copies, arena) = (copies(CopyService::Always), arena());
        copies.how.set(PUT_OFF);
        let waiting = copies.append(&arena, 0, 300_000, Vec::new());
        let ending = async {
            while copies.under_way() == 0 {
                tokio::task::yield_now().await;
            }
            copies.end(&arena);
            copies.client.get().unwrap().as_ref().unwrap().ended.notify_waiters();
        };
        let (ended, ()) = tokio::join!(waiting, ending);
        assert_eq!(ended, Ok(Err(EpochEnded)));
    });
}

#[test]
fn who_goes_away_gives_the_copy_up() {
    local(async || {
        let (copies, arena) = (copies(CopyService::Always), arena());
        copies.how.set(PUT_OFF);
        let from = Rc::new(vec![7; 1 << 20]);
        cases(50, |random| {
            let mut filling = Box::pin(copies.fill(&arena, 0, &from, 0..1 << 20));
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            for _ in 0..=random.below(3) {
                assert!(filling.as_mut().poll(&mut context).is_pending());
            }
            assert_eq!(copies.under_way(), 1);
            drop(filling);
            assert_eq!((copies.under_way(), Rc::strong_count(&arena)), (0, 1));
            assert_eq!(Rc::strong_count(&from), 1);
        });
        assert!(content(&arena).iter().all(|&byte| byte == 0));
    });
}

#[test]
fn more_than_may_be_under_way_are_made_at_once_and_counted() {
    local(async || {
        let (copies, arena) = (copies(CopyService::Always), arena());
        copies.how.set(PUT_OFF);
        let from = Rc::new(vec![7; 1000]);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let mut waiting = Vec::new();
        for number in 0..COPIES_MAX {
            let mut filling = Box::pin(copies.fill(&arena, number * 1000, &from, 0..1000));
            assert!(filling.as_mut().poll(&mut context).is_pending(), "{number}");
            waiting.push(filling);
        }
        assert_eq!(fallbacks(&copies, CopyFallback::Full), 0);
        copies.fill(&arena, 3 << 20, &from, 0..1000).await.unwrap().unwrap();
        assert_eq!(fallbacks(&copies, CopyFallback::Full), 1);
        assert!(content(&arena)[3 << 20..][..1000] == **from);
        drop(waiting);
        // The queue itself has fewer entries.
        let long = Rc::new(vec![7; 200 << 20]);
        let large = Rc::new(Arena::create("copies-large", 200 << 20).unwrap());
        copies.fill(&large, 0, &long, 0..200 << 20).await.unwrap().unwrap();
        assert_eq!(fallbacks(&copies, CopyFallback::Full), 2);
        assert_eq!(copies.under_way(), 0);
    });
}

#[test]
fn without_a_service_or_a_core_for_it_it_is_as_before() {
    local(async || {
        let arena = arena();
        let mut random = Random::new(7);
        let none = copies(CopyService::Always);
        none.client.set(None).unwrap();
        there_and_back(&none, &arena, &mut random).await;
        none.append(&arena, 0, 300_000, Vec::new()).await.unwrap().unwrap();
        assert!(fallbacks(&none, CopyFallback::Unavailable) >= 1);
        let few = with_cores(CopyService::Auto, SERVICE_CORES_MIN - 1);
        // No other call waits: copying inline delays none.
        few.append(&arena, 0, 300_000, Vec::new()).await.unwrap().unwrap();
        assert_eq!(fallbacks(&few, CopyFallback::Cores), 0);
        let _calls = (few.quota.call().unwrap(), few.quota.call().unwrap());
        few.append(&arena, 0, SERVICE_BYTES_MIN - 1, Vec::new()).await.unwrap().unwrap();
        assert_eq!(fallbacks(&few, CopyFallback::Cores), 0);
        few.append(&arena, 0, SERVICE_BYTES_MIN, Vec::new()).await.unwrap().unwrap();
        assert_eq!(fallbacks(&few, CopyFallback::Cores), 1);
        assert!(few.client.get().is_none());
        for copies in [none, few] {
            assert_eq!(made_by(&copies, CopyBy::Service), 0);
        }
    });
}

/// The tests of the client drive the cause: a page that cannot be accessed while the service
/// copies. A region of the worker is sealed, so no guest can cause that.
#[test]
fn what_the_service_could_not_copy_is_counted_as_the_workers() {
    let copies = copies(CopyService::Always);
    let counts = || {
        let failed = fallbacks(&copies, CopyFallback::Failed);
        let by_worker = made_by(&copies, CopyBy::Worker);
        let bytes_of_worker = copies.meter.value(Event::HostioCopied(CopyBy::Worker));
        (failed, by_worker, bytes_of_worker, made_by(&copies, CopyBy::Service))
    };
    let finished = |failed| FinishedCopy { bytes: b"content".to_vec(), failed };
    assert_eq!(copies.finished(finished(false), 7), b"content");
    assert_eq!(counts(), (0, 0, 0, 1));
    assert_eq!(copies.finished(finished(true), 7), b"content");
    assert_eq!(counts(), (1, 1, 7, 1));
}

#[test]
fn tenants_of_a_thread_have_one_service() {
    local(async || {
        let (one, two, arena) = (copies(CopyService::Always), copies(CopyService::Always), arena());
        assert!(one.client.get().is_none());
        one.append(&arena, 0, 1000, Vec::new()).await.unwrap().unwrap();
        two.append(&arena, 0, 1000, Vec::new()).await.unwrap().unwrap();
        let running =
            |copies: &Copies| copies.client.get().unwrap().as_ref().unwrap().running.clone();
        assert!(Rc::ptr_eq(&running(&one), &running(&two)));
        // Dropping one does not affect the others.
        drop(one);
        two.append(&arena, 0, 1000, Vec::new()).await.unwrap().unwrap();
        assert_eq!(made_by(&two, CopyBy::Service), 2);
    });
}

#[test]
fn what_is_not_in_the_arena_is_not_copied() {
    local(async || {
        let arena = arena();
        let from = Rc::new(vec![1; 10]);
        for service in [CopyService::Off, CopyService::Always] {
            let copies = copies(service);
            assert!(copies.append(&arena, ARENA_BYTES - 5, 6, Vec::new()).await.is_err());
            assert!(copies.fill(&arena, ARENA_BYTES - 5, &from, 0..6).await.is_err());
            assert_eq!(copies.under_way(), 0);
        }
        assert!(content(&arena).iter().all(|&byte| byte == 0));
    });
}
