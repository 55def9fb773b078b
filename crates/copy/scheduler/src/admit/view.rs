//! State of a site and class of lengths, with the measurements that led to it: for a reader that
//! wants to know why.

use super::recent::Recent;

/// State of a site and class of lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// Too few inline copies are measured.
    #[default]
    NotLearnt,
    /// Copies are made inline.
    AtOnce,
    /// Some copies are queued and measured.
    Trial,
    /// Copies are queued.
    Queued,
    /// Copies are made inline until the allowance for losses has grown.
    Suspended,
}

/// Cause of a [`State`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Cause {
    /// Too few inline copies are measured.
    #[default]
    Unmeasured,
    /// The cost model expects no gain.
    Forecast,
    /// The service sleeps, and such copies do not wake it, or it is waking up.
    Asleep,
    /// Queued copies are being measured.
    Trial,
    /// The queued copies of a trial gained too little.
    TrialLost,
    /// Queued copies take less time, as measured.
    Pays,
    /// Queued copies took too long in several runs.
    Loses,
    /// Syncs had to wait for queued copies.
    Late,
    /// The allowance for losses is used up.
    Allowance,
    /// Copies are shorter than [`Costs::queued_bytes_min`](super::Costs::queued_bytes_min).
    Short,
}

impl State {
    /// All states, by their codes.
    pub const ALL: [State; 5] =
        [State::NotLearnt, State::AtOnce, State::Trial, State::Queued, State::Suspended];

    /// Number of the state.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The state with this number.
    pub fn from_code(code: u8) -> Option<State> {
        State::ALL.get(usize::from(code)).copied()
    }
}

impl Cause {
    /// All causes, by their codes.
    pub const ALL: [Cause; 10] = [
        Cause::Unmeasured,
        Cause::Forecast,
        Cause::Asleep,
        Cause::Trial,
        Cause::TrialLost,
        Cause::Pays,
        Cause::Loses,
        Cause::Late,
        Cause::Allowance,
        Cause::Short,
    ];

    /// Number of the cause.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The cause with this number.
    pub fn from_code(code: u8) -> Option<Cause> {
        Cause::ALL.get(usize::from(code)).copied()
    }
}

/// State of a site and class of lengths, and its measurements. All times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct View {
    /// The state.
    pub state: State,
    /// Its cause.
    pub cause: Cause,
    /// Inline copies alone.
    pub copy: Recent,
    /// Inline copies with the reading of their bytes.
    pub inline: Recent,
    /// From a copy to the first sync of its bytes.
    pub window: Recent,
    /// Queued copies without their wait: submission, and reading of the bytes. Of the last trial
    /// and since.
    pub base: Recent,
    /// Submissions.
    pub submit: Recent,
    /// Mean wait of a queued copy.
    pub wait_ns: f32,
    /// Expected time of a queued copy, when a trial was last considered; 0 before.
    pub forecast_ns: f32,
    /// Time that may still be lost.
    pub allowance_ns: f32,
    /// Time that was lost so far by queueing, without what was gained.
    pub lost_ns: f64,
    /// Runs of inline copies until queueing is considered again.
    pub runs: u16,
}

/// This part of the windows, in percent, is shorter than the one that counts.
pub const WINDOW_PERCENT: usize = 20;

impl View {
    /// Copies that are too short to be queued.
    pub fn short() -> View {
        View { state: State::AtOnce, cause: Cause::Short, ..View::default() }
    }

    /// The window that counts: four of five are longer. `None` before one is measured.
    pub fn window_ns(&self) -> Option<f32> {
        self.window.quantile(WINDOW_PERCENT)
    }

    /// Time of a queued copy, as measured; `None` before a trial.
    pub fn queued_ns(&self) -> Option<f32> {
        self.base.median().map(|base_ns| base_ns + self.wait_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_name_one_state_and_one_cause() {
        for (code, state) in State::ALL.into_iter().enumerate() {
            assert_eq!(
                (usize::from(state.code()), State::from_code(code as u8)),
                (code, Some(state))
            );
        }
        for (code, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(
                (usize::from(cause.code()), Cause::from_code(code as u8)),
                (code, Some(cause))
            );
        }
        let (states, causes) = (State::ALL.len() as u8, Cause::ALL.len() as u8);
        assert_eq!((State::from_code(states), Cause::from_code(causes)), (None, None));
    }
}
