//! The table, its decoder, and what clients write into it.

use std::sync::atomic::{AtomicBool, Ordering};

use unlade_copy_scheduler::admit::{CallSite, Costs, QUEUED_BYTES_MIN, QueuedTiming, Request};
use unlade_testkit::cases;

use super::board::Written;
use super::layout::{HEADER_WORDS, site};
use super::*;
use crate::{Config, Copier, CopyOptions, Service};

const CLASS: usize = 6;

fn view_of(number: u32) -> View {
    let mut site = CallSite::default();
    let request =
        Request { class: CLASS, bytes: 65_536, pending_bytes: 0, is_awake: true, run: 128 };
    let seen =
        QueuedTiming { submit_ns: number, window_ns: number, wait_ns: number, line_ns: None };
    for _ in 0..9 {
        site.observe_inline(CLASS, 65_536, number, None);
        site.observe_window(CLASS, number);
        site.decide(&Costs::default(), &request);
        site.observe_queued(CLASS, 65_536, true, &seen);
    }
    site.view(CLASS)
}

fn written(view: &View) -> Written<'_> {
    Written {
        client: 3,
        serving: Serving::Daemon,
        address: 0x1234,
        class: CLASS,
        name: None,
        bytes: Some(65_536),
        since_ns: None,
        view,
    }
}

#[test]
fn a_site_is_read_as_it_was_written() {
    let board = Board::private(77, 3, 2);
    let entry = board.acquire(3).unwrap();
    let view = view_of(20_000);
    let now = Written { name: Some(("src/a.c", 12)), since_ns: Some(99), ..written(&view) };
    board.write(entry, &now);
    board.count(entry, true, 5);
    board.count(entry, false, 3);
    board.count_unqueued(entry, false);
    (0..3).for_each(|at_ns| board.note_change(State::Trial, at_ns, &now));
    let report = decode(&board.image()).unwrap();
    assert_eq!((report.pid, report.changes_total, report.unsettled), (77, 3, 0));
    let [site] = &report.sites[..] else { panic!("{report:?}") };
    assert_eq!((site.place(), site.client, site.since_ns), ("src/a.c:12".to_owned(), 3, 99));
    assert_eq!((site.serving, site.class, &site.view), (Serving::Daemon, CLASS, &view));
    let counts = (site.counts.queued, site.counts.queued_bytes, site.counts.at_once);
    assert_eq!(counts, (5, 5 * 65_536, 3));
    assert_eq!((site.counts.unreachable, site.counts.full), (1, 0));
    assert_eq!(site.queued_part(), 5.0 / 8.0);
    // The ring has room for two.
    let [first, last] = &report.changes[..] else { panic!("{report:?}") };
    assert_eq!((first.number, first.at_ns, last.number, last.at_ns), (1, 1, 2, 2));
    assert_eq!((last.from, last.to, last.cause), (State::Trial, view.state, view.cause));
    assert_eq!(report.site_of(last), Some(site));
    // Another write keeps the name.
    board.write(entry, &written(&view));
    assert_eq!(decode(&board.image()).unwrap().sites[0].place(), "src/a.c:12");
}

#[test]
fn entries_are_taken_once_and_cleared() {
    let board = Board::private(1, 2, 1);
    let view = view_of(20_000);
    let (first, second) = (board.acquire(1).unwrap(), board.acquire(1).unwrap());
    assert!(first != second && board.acquire(1).is_none());
    board.write(first, &Written { name: Some(("a", 1)), ..written(&view) });
    board.count(first, true, 9);
    assert_eq!(decode(&board.image()).unwrap().unshown, 1);
    board.release(first);
    assert_eq!(board.acquire(2), Some(first));
    // Not written yet.
    let report = decode(&board.image()).unwrap();
    assert_eq!((report.sites.len(), report.unsettled), (0, 2));
    board.write(first, &written(&view));
    let report = decode(&board.image()).unwrap();
    assert_eq!((report.sites.len(), report.sites[0].counts.queued), (1, 0));
    assert_eq!(report.sites[0].file, None);
}

#[test]
fn names_keep_their_end_and_no_control_character() {
    let view = view_of(20_000);
    let place = |name: &str| {
        let board = Board::private(1, 1, 1);
        let entry = board.acquire(1).unwrap();
        board.write(entry, &Written { name: Some((name, 7)), ..written(&view) });
        decode(&board.image()).unwrap().sites[0].place()
    };
    assert_eq!(place("a\x1b[31m\nb.c"), "a?[31m?b.c:7");
    let long = place(&format!("{}/end.c", "é".repeat(300)));
    assert!(long.ends_with("é/end.c:7") && long.len() <= 8 * site::NAME_WORDS + 2, "{long}");
}

#[test]
fn a_reader_sees_whole_entries_while_they_are_written() {
    let board = Board::private(1, 2, 2);
    let entries = [board.acquire(1).unwrap(), board.acquire(1).unwrap()];
    let views: Vec<View> = (1..40).map(|number| view_of(number * 1000)).collect();
    let is_over = AtomicBool::new(false);
    let (mut sites, mut changes) = (0, 0);
    std::thread::scope(|scope| {
        for entry in entries {
            let (board, views, is_over) = (&board, &views, &is_over);
            scope.spawn(move || {
                for view in views.iter().cycle() {
                    board.write(entry, &written(view));
                    board.note_change(
                        State::Trial,
                        view.copy.median().unwrap() as u64,
                        &written(view),
                    );
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
        for _ in 0..2_000 {
            let report = decode(&board.image()).unwrap();
            for site in &report.sites {
                assert!(views.contains(&site.view), "{:?}", site.view);
            }
            for change in &report.changes {
                let ns = change.at_ns as f32;
                assert_eq!((change.inline_ns, change.window_ns), (ns, ns));
            }
            sites += report.sites.len();
            changes += report.changes.len();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let last = decode(&board.image()).unwrap();
    // A change is lost if another thread still writes an older one to its entry.
    assert_eq!((last.sites.len(), last.changes.len() as u64 + last.unsettled), (2, 2));
    println!("{sites} sites and {changes} changes were whole");
}

#[test]
fn a_table_with_other_bytes_is_refused_or_read_and_never_more() {
    let board = Board::private(9, 3, 3);
    let view = view_of(20_000);
    for name in ["a.c", "b.c"] {
        let entry = board.acquire(1).unwrap();
        let now = Written { name: Some((name, 1)), ..written(&view) };
        board.write(entry, &now);
        board.note_change(State::NotLearnt, 1, &now);
    }
    let image = board.image();
    assert!(decode(&image).is_ok());
    for length in 0..image.len() {
        assert!(decode(&image[..length]).is_err(), "{length}");
    }
    let refused = |word: usize, value: u64| {
        let mut image = image.clone();
        image[8 * word..][..8].copy_from_slice(&value.to_ne_bytes());
        decode(&image).unwrap_err()
    };
    assert_eq!(refused(0, 7), DecodeError::NoTable);
    assert_eq!(refused(1, 2), DecodeError::Version(2));
    assert_eq!(refused(3, 4), DecodeError::Size(image.len()));
    assert_eq!(refused(2, 0), DecodeError::Header(2));
    assert_eq!(refused(7, 9), DecodeError::Header(7));
    let kind = refused(HEADER_WORDS + site::KIND, 99);
    assert_eq!(kind, DecodeError::Site { site: 0, word: site::KIND });
    cases(2_000, |random| {
        let mut image = image.clone();
        for _ in 0..1 + random.below(8_usize) {
            let at = random.below(image.len());
            image[at] = random.next() as u8;
        }
        if let Ok(report) = decode(&image) {
            let texts = report.sites.iter().map(|site| site.place() + &site.reason());
            let texts = texts.chain(report.changes.iter().map(Change::reason));
            texts.for_each(|text| assert!(text.len() < 1000 && !text.contains('\x1b')));
        }
    });
}

/// The sites of this process that are in this file.
fn own_sites() -> Vec<Site> {
    let report = of_this_process().unwrap();
    let is_here = |site: &Site| site.file.as_deref().is_some_and(|file| file.ends_with(file!()));
    report.sites.into_iter().filter(is_here).collect()
}

#[test]
fn clients_explain_what_they_decide() {
    const BYTES: usize = 8 << 10;
    const SHORT: usize = QUEUED_BYTES_MIN as usize - 1;
    let service = Service::start(Config::default()).unwrap();
    let copier = Copier::new(service.attach().unwrap());
    let (source, mut destination) = (vec![1; BYTES], vec![0; BYTES]);
    let mut short = vec![0; SHORT];
    let (mut used, mut small) = (0, 0);
    for _ in 0..300 {
        copier.scope(|scope| {
            used = line!() + 1;
            let _ = scope.copy(&source, &mut destination).sync(0..BYTES).unwrap();
            small = line!() + 1;
            let _ = scope.copy(&source[..SHORT], &mut short).sync(0..SHORT).unwrap();
        });
    }
    let sites = own_sites();
    let at = |line: u32| {
        sites.iter().find(|site| site.line == line).unwrap_or_else(|| panic!("{sites:?}"))
    };
    // It is used at once: whatever the machine, its window is shorter than the copy.
    let (used, small) = (at(used), at(small));
    assert_eq!((used.view.state, used.view.cause), (State::AtOnce, Cause::Forecast));
    assert!(used.reason().starts_with("the window of "), "{}", used.reason());
    assert!(used.reason().contains(" is shorter than the "), "{}", used.reason());
    let counts = used.counts;
    assert_eq!((counts.queued, counts.at_once_bytes), (0, counts.at_once * BYTES as u64));
    assert!((300 - 128..=300).contains(&counts.at_once), "{counts:?}");
    assert_eq!((small.view.cause, small.lengths()), (Cause::Short, (2048, Some(4096))));
    assert!(small.counts.at_once > 0 && small.reason().contains("fewer than 4096 bytes"));
    // Another process reads the same.
    let report = of_process(std::process::id()).unwrap();
    let site = report.sites.iter().find(|site| site.place() == used.place()).unwrap();
    assert_eq!(site, used);
    // One change: from not learnt to at once.
    let is_its = |change: &&Change| (change.client, change.address) == (used.client, used.address);
    let changes: Vec<&Change> = report.changes.iter().filter(is_its).collect();
    let [change] = changes[..] else { panic!("{changes:?}") };
    assert_eq!((change.from, change.to), (State::NotLearnt, State::AtOnce));
    let (used, small) = (used.place(), small.place());
    drop(copier);
    let sites = own_sites();
    assert!(sites.iter().all(|site| ![&used, &small].contains(&&site.place())), "{sites:?}");
}

#[test]
fn every_copy_of_a_thread_is_counted_once() {
    const BYTES: usize = 8 << 10;
    let service = Service::start(Config::default()).unwrap();
    let copier = Copier::new(service.attach().unwrap());
    let (source, mut destination) = (vec![1; BYTES], vec![0; BYTES]);
    // More sites than a thread has hints for: they evict each other.
    let first = 0x7000_0000_0000_usize;
    for round in 1..=40_u64 {
        for site in (0..300).map(|number| first + 64 * number) {
            let options = CopyOptions { site, ..CopyOptions::default() };
            // SAFETY: the copy is synced before either buffer is used.
            let token = unsafe {
                copier.submit(destination.as_mut_ptr(), source.as_ptr(), BYTES, &options)
            };
            copier.sync(&token, 0..BYTES).unwrap();
        }
        let report = of_this_process().unwrap();
        let is_its = |site: &&Site| (first as u64..first as u64 + 64 * 300).contains(&site.address);
        let counts: Vec<u64> = report
            .sites
            .iter()
            .filter(is_its)
            .map(|site| site.counts.at_once + site.counts.queued)
            .collect();
        assert_eq!(counts.len(), 300);
        assert!(counts.iter().all(|count| *count <= round), "{round}: {counts:?}");
        let sum: u64 = counts.iter().sum();
        // Hints that are still in use are not counted yet.
        assert!(sum >= 300 * (round / 2), "{round}: {sum}");
    }
}
