//! The allocator of an arena's slots: first-fit runs of adjacent units.

/// The free units of an arena, in runs.
#[derive(Debug)]
pub struct Runs {
    taken: Vec<bool>,
    free: usize,
}

impl Runs {
    /// Creates an allocator of `count` free units.
    pub fn new(count: u32) -> Runs {
        Runs { taken: vec![false; count as usize], free: count as usize }
    }

    /// Takes a run; `None` if no free run is as long. An empty run may begin anywhere.
    pub fn take(&mut self, count: u32) -> Option<u32> {
        let count = count as usize;
        if count > self.free {
            return None;
        }
        let mut start = 0;
        while start + count <= self.taken.len() {
            match self.taken[start..start + count].iter().rposition(|&taken| taken) {
                Some(at) => start += at + 1,
                None => {
                    self.taken[start..start + count].fill(true);
                    self.free -= count;
                    return u32::try_from(start).ok();
                }
            }
        }
        None
    }

    /// Releases a run that was taken.
    pub fn give(&mut self, first: u32, count: u32) {
        let run = first as usize..(first as usize + count as usize).min(self.taken.len());
        debug_assert!(self.taken[run.clone()].iter().all(|&taken| taken));
        self.free += run.len();
        self.taken[run].fill(false);
    }

    /// Number of free units.
    pub fn free(&self) -> usize {
        self.free
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unlade_testkit::cases;

    /// Compares with a list of the taken runs: none overlap, and a refused run fits nowhere.
    #[test]
    fn runs_do_not_overlap_and_are_found_where_there_are() {
        cases(300, |random| {
            const COUNT: u32 = 40;
            let mut runs = Runs::new(COUNT);
            let mut held: Vec<(u32, u32)> = Vec::new();
            for _ in 0..100 {
                if random.once_in(3) && !held.is_empty() {
                    let at = random.below(held.len() as u64) as usize;
                    let (first, count) = held.swap_remove(at);
                    runs.give(first, count);
                } else {
                    let count = 1 + random.below(9) as u32;
                    let is_free =
                        |unit: u32| !held.iter().any(|(f, c)| (*f..f + c).contains(&unit));
                    let fits = (0..=COUNT - count).any(|first| (first..first + count).all(is_free));
                    let taken = runs.take(count);
                    assert_eq!(taken.is_some(), fits);
                    if let Some(first) = taken {
                        assert!((first..first + count).all(is_free));
                        held.push((first, count));
                    }
                }
                let used: u32 = held.iter().map(|(_, count)| count).sum();
                assert_eq!(runs.free(), (COUNT - used) as usize);
            }
        });
    }
}
