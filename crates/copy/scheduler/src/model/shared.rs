//! The memory that the client and the service share.

use std::cell::Cell;
use std::collections::BTreeMap;

use super::{Checked, check};
use crate::Ticket;
use crate::plan::Progress;

/// Progress words: the done bits and the claimed bits of each task.
#[derive(Default)]
pub(super) struct ProgressWords {
    pub(super) words: BTreeMap<Ticket, (u32, u32)>,
    /// Number of releases of unclaimed segments; checked at the end of the case.
    pub(super) bad_releases: u32,
    pub(super) questions: Cell<u32>,
}

impl Progress for ProgressWords {
    fn done(&self, ticket: Ticket) -> u32 {
        self.questions.set(self.questions.get() + 1);
        self.words.get(&ticket).map_or(0, |(done, _)| *done)
    }
    fn claim(&mut self, ticket: Ticket, bits: u32) -> u32 {
        self.questions.set(self.questions.get() + 1);
        let Some((done, claimed)) = self.words.get_mut(&ticket) else { return 0 };
        let got = bits & !(*done | *claimed);
        *claimed |= got;
        got
    }
    fn release(&mut self, ticket: Ticket, bits: u32) {
        let Some((done, claimed)) = self.words.get_mut(&ticket) else { return };
        self.bad_releases += u32::from(bits & !*claimed != 0 || bits & *done != 0);
        *claimed &= !bits;
    }
}

impl ProgressWords {
    pub(super) fn finish(&mut self, ticket: Ticket, bits: u32) -> Checked {
        let (done, claimed) = self.words.get_mut(&ticket).ok_or("finished an unknown task")?;
        check(*claimed & bits == bits && *done & bits == 0, || {
            format!("{ticket:?} {bits:b} twice")
        })?;
        *done |= bits;
        Ok(())
    }
}
