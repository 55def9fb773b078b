//! Measured costs of moving pages and of copying their bytes.

use std::ops::Range;
use std::time::Instant;

use crate::area::{Area, HUGE_BYTES};
use crate::routine::Hint;

/// Pages of a measured move, and of a short one that tells the costs of a call.
const PAGES: usize = 64;
const PAGES_FEW: usize = 4;
/// Rounds of a measurement; the fastest counts.
const ROUNDS: usize = 3;
/// A move must take less than this part of the copy's time.
const GAIN: f32 = 0.9;

/// Nanoseconds of a call, and of each piece that it moves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Linear {
    pub call_ns: f32,
    pub piece_ns: f32,
}

impl Linear {
    /// From the times of a call with few pieces and of one with many.
    fn through(few: (usize, f32), many: (usize, f32)) -> Linear {
        let piece_ns = ((many.1 - few.1) / (many.0 - few.0) as f32).max(0.0);
        Linear { call_ns: (few.1 - few.0 as f32 * piece_ns).max(0.0), piece_ns }
    }

    fn of(&self, pieces: usize) -> f32 {
        self.call_ns + self.piece_ns * pieces as f32
    }
}

/// Costs of moves, and of the copies that they replace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    /// A move to absent pages, and a copy to them, by page.
    pub fresh: Linear,
    pub copied_page_ns: f32,
    /// An exchange of huge pages, and a copy of one; none if there were no huge pages.
    pub huge: Option<(Linear, f32)>,
}

/// Moves pages for a measurement: destination, source. Returns false if that failed.
pub(crate) type Move<'m> = &'m dyn Fn(Range<usize>, Range<usize>) -> bool;

impl Costs {
    /// Measures, in some milliseconds. `None` if pages cannot be moved.
    pub fn measure(
        fresh: Move<'_>,
        exchange: Move<'_>,
        is_huge: &dyn Fn(Range<usize>) -> bool,
    ) -> Option<Costs> {
        let page_bytes = crate::populate::page_bytes();
        let fastest = |pages: usize, by: Move<'_>| {
            let time = |_| time_to_fresh(pages * page_bytes, by);
            let times: Option<Vec<f32>> = (0..ROUNDS).map(time).collect();
            times.map(minimum)
        };
        let few = fastest(PAGES_FEW, fresh)?;
        let many = fastest(PAGES, fresh)?;
        let copied = fastest(PAGES, &copy)?;
        Some(Costs {
            fresh: Linear::through((PAGES_FEW, few), (PAGES, many)),
            copied_page_ns: copied / PAGES as f32,
            huge: measure_huge(exchange, is_huge),
        })
    }

    /// Returns true if so many pages should be moved to absent ones.
    pub fn fresh_pays(&self, pages: usize) -> bool {
        self.fresh.of(pages) < GAIN * self.copied_page_ns * pages as f32
    }

    /// Returns true if so many huge pages should be exchanged.
    pub fn exchange_pays(&self, pages: usize) -> bool {
        self.huge.is_some_and(|(exchange, copied_ns)| {
            exchange.of(pages) < GAIN * copied_ns * pages as f32
        })
    }
}

fn minimum(times: Vec<f32>) -> f32 {
    times.into_iter().fold(f32::INFINITY, f32::min)
}

fn timed(by: Move<'_>, dst: Range<usize>, src: Range<usize>) -> Option<f32> {
    let begin = Instant::now();
    let is_done = by(dst, src);
    is_done.then(|| begin.elapsed().as_nanos() as f32)
}

fn time_to_fresh(bytes: usize, by: Move<'_>) -> Option<f32> {
    let (src, dst) = (Area::new(bytes).ok()?, Area::new(bytes).ok()?);
    src.touch();
    timed(by, dst.pages(), src.pages())
}

/// Between warm pages, which is the fastest copy.
fn measure_huge(
    exchange: Move<'_>,
    is_huge: &dyn Fn(Range<usize>) -> bool,
) -> Option<(Linear, f32)> {
    let (src, dst) = (Area::new(2 * HUGE_BYTES).ok()?, Area::new(2 * HUGE_BYTES).ok()?);
    for area in [&src, &dst] {
        area.prefer_huge();
        area.touch();
        if !is_huge(area.pages()) {
            return None;
        }
    }
    let first = |area: &Area| area.pages().start..area.pages().start + HUGE_BYTES;
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        times[0].push(timed(&copy, first(&dst), first(&src))?);
        times[1].push(timed(exchange, first(&dst), first(&src))?);
        times[2].push(timed(exchange, dst.pages(), src.pages())?);
    }
    let [copied_ns, one, two] = times.map(minimum);
    Some((Linear::through((1, one), (2, two)), copied_ns))
}

fn copy(dst: Range<usize>, src: Range<usize>) -> bool {
    let to = std::ptr::with_exposed_provenance_mut(dst.start);
    let from = std::ptr::with_exposed_provenance(src.start);
    // SAFETY: two areas of the measurement, mapped and of the same length; no reference points
    // there.
    unsafe { crate::copy(to, from, src.len(), Hint::Reuse) };
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_that_is_not_clearly_cheaper_does_not_pay() {
        let fresh = Linear::through((4, 5_400.0), (64, 11_400.0));
        assert_eq!(fresh, Linear { call_ns: 5_000.0, piece_ns: 100.0 });
        let costs = Costs { fresh, copied_page_ns: 300.0, huge: None };
        assert!(!costs.fresh_pays(29) && costs.fresh_pays(30));
        assert!(!costs.exchange_pays(1000), "no huge pages");
        let huge = Some((Linear { call_ns: 10_000.0, piece_ns: 2_000.0 }, 13_000.0));
        let costs = Costs { huge, ..costs };
        assert!(!costs.exchange_pays(1) && costs.exchange_pays(2));
        let same = Costs { copied_page_ns: 100.0, ..costs };
        assert!(!same.fresh_pays(usize::MAX >> 13), "a page costs as much as its copy");
    }
}
