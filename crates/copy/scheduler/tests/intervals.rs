//! Range arithmetic at the limits of the number range: zero, powers of two and their neighbours,
//! the ends of the address space. The oracle counts in 128 bits, segment by segment.

use std::collections::BTreeSet;

use proptest::prelude::*;
use unlade_copy_scheduler::Ticket;
use unlade_copy_scheduler::index::Index;
use unlade_copy_scheduler::span::{GRANULE_SHIFT_MAX, Run, SEGMENTS_MAX, Segments, Span};

/// A number near a value where arithmetic might overflow.
fn edge() -> impl Strategy<Value = u64> {
    let near = (0u32..64, -2i64..=2).prop_map(|(bit, by)| (1u64 << bit).wrapping_add_signed(by));
    prop_oneof![
        4 => near,
        2 => (0u64..6).prop_map(|by| u64::MAX - by),
        2 => 0u64..300,
        1 => any::<u64>(),
    ]
}

fn span() -> impl Strategy<Value = Span> {
    (edge(), edge()).prop_map(|(start, len)| Span { start, len })
}

/// Returns the first byte of a span and the byte behind its last valid one.
fn ends(span: Span) -> (u128, u128) {
    let end = u128::from(span.start) + u128::from(span.len);
    (span.start.into(), end.min(u64::MAX.into()))
}

fn touch(one: Span, other: Span) -> bool {
    let ((a, b), (c, d)) = (ends(one), ends(other));
    a.max(c) < b.min(d)
}

/// Valid tasks: few or many segments, each of few or very many bytes.
fn segments() -> impl Strategy<Value = (u64, u8)> {
    (0..=GRANULE_SHIFT_MAX, 1..=SEGMENTS_MAX, edge()).prop_map(|(shift, count, last)| {
        let granule = 1u64 << shift;
        let len = u64::from(count - 1) * granule + 1 + last % granule;
        (len, shift)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn spans_meet_where_they_have_a_byte_in_common(one in span(), other in span()) {
        prop_assert_eq!(one.touches(other), touch(one, other));
        prop_assert_eq!(one.touches(other), other.touches(one));
        let ((a, b), (c, d)) = (ends(one), ends(other));
        let met = one.intersection(other).map(|met| (u128::from(met.start), u128::from(met.len)));
        let due = touch(one, other).then(|| (a.max(c), b.min(d) - a.max(c)));
        prop_assert_eq!(met, due);
        prop_assert_eq!(one.intersection(other), other.intersection(one));
        prop_assert_eq!(one.fits(), u128::from(one.start) + u128::from(one.len) <= u64::MAX.into());
    }

    #[test]
    fn a_task_is_divided_by_its_granule(len in edge(), shift in 0u8..=64) {
        let count = match shift {
            0..=GRANULE_SHIFT_MAX => u128::from(len).div_ceil(1 << shift),
            _ => 0,
        };
        let is_right = (1..=u128::from(SEGMENTS_MAX)).contains(&count);
        let made = Segments::new(len, shift);
        prop_assert_eq!(made.is_some(), is_right);
        prop_assert_eq!(made.map_or(0, |made| made.count().into()), if is_right { count } else { 0 });
    }

    #[test]
    fn segments_touch_what_has_their_bytes(
        (len, shift) in segments(),
        offset in edge(),
        some in edge(),
        bits in any::<u32>(),
        budget in edge(),
    ) {
        let segments = Segments::new(len, shift).expect("such a task can be");
        let granule = 1u128 << shift;
        // A check of each byte would take too long, so the oracle uses the definition of each
        // segment.
        let bytes_of = |number: u32| {
            let start = u128::from(number) * granule;
            (start, (start + granule).min(len.into()))
        };
        let end = (u128::from(offset) + u128::from(some)).min(len.into());
        let touched = (0..segments.count()).filter(|&number| {
            let (first, behind) = bytes_of(number);
            first.max(offset.into()) < behind.min(end)
        });
        prop_assert_eq!(touched.fold(0, |all, number| all | 1u32 << number), segments.touching(offset, some));
        let Some(run) = Run::lowest(bits & segments.all()) else { return Ok(()) };
        let bytes = segments.bytes(run);
        prop_assert_eq!(u128::from(bytes.start), bytes_of(run.first).0);
        prop_assert_eq!(u128::from(bytes.start) + u128::from(bytes.len), bytes_of(run.first + run.count - 1).1);
        prop_assert_eq!(segments.touching(bytes.start, bytes.len), run.bits());
        prop_assert_eq!(1u32 << segments.at(bytes.start), run.bits() & run.bits().wrapping_neg());
        let part = segments.within_budget(run, budget);
        prop_assert!(part.first == run.first && (1..=run.count).contains(&part.count));
        prop_assert!(part.count == 1 || u128::from(part.count) * granule <= budget.into());
        let next = u128::from(part.count + 1) * granule;
        prop_assert!(part.count == run.count || next > budget.into());
    }

    #[test]
    fn the_index_finds_what_a_scan_finds(
        steps in prop::collection::vec((span(), any::<bool>(), span()), 1..60),
    ) {
        let (mut index, mut kept) = (Index::default(), Vec::<(Ticket, Span)>::new());
        for (number, (mut span, is_removed, range)) in steps.into_iter().enumerate() {
            // An indexed span has bytes and does not wrap.
            span.len = span.len.clamp(1, (u64::MAX - span.start).max(1));
            span.start = span.start.min(u64::MAX - span.len);
            let ticket = Ticket(number as u64);
            index.insert(ticket, span);
            kept.push((ticket, span));
            if is_removed {
                let (ticket, span) = kept.swap_remove(number % kept.len());
                index.remove(ticket, span);
            }
            let found: Vec<Ticket> = index.touching(range).map(|(ticket, _)| ticket).collect();
            let scan = kept.iter().filter(|(_, span)| touch(*span, range)).map(|(ticket, _)| *ticket);
            prop_assert_eq!(found.len(), found.iter().collect::<BTreeSet<_>>().len(), "each once");
            prop_assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), scan.collect());
        }
        for (ticket, span) in kept {
            index.remove(ticket, span);
        }
        prop_assert!(index.is_empty());
    }
}
