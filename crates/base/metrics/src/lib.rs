//! Counting: what happened, how often, how long it took. No I/O.
//!
//! - [`Event`] is the closed list of what is counted, [`Gauge`] of what is held at the moment,
//!   [`Stage`] of what is timed;
//! - [`Meter`] holds the figures and is updated from any thread without a lock;
//! - [`Meter::render`] is their OpenMetrics text, [`Meter::stages_json`] the times in detail.
//!
//! Names are stable: a family is renamed or removed only with an entry in the change log.
#![forbid(unsafe_code)]

mod event;
mod gauge;
mod histogram;
mod label;
mod registry;
mod render;
mod shard;
mod stage;
mod stages;

pub use event::Event;
pub use gauge::Gauge;
pub use label::{
    AdoptionRefusal, CallEnd, CopyBy, CopyFallback, Direction, Fallback, HEAD_REASONS, Health,
    Mode, OffloadRefusal, PrefetchEnd, RefusedConnection, StatusClass, Trigger, UpstreamFailure,
};
pub use registry::{Held, Meter, Role};
pub use render::render_each;
pub use stage::Stage;

/// One family of metrics: what [`Meter::render`] prints above its samples.
pub(crate) struct Family {
    /// Without the suffix that the sample's type demands; begins with `unlade_`.
    pub(crate) name: &'static str,
    /// One sentence.
    pub(crate) help: &'static str,
    /// The label that tells the family's samples apart.
    pub(crate) label: Option<&'static str>,
    /// How many values the label has.
    pub(crate) count: usize,
    /// The label's value for an index below `count`.
    pub(crate) text: fn(usize) -> &'static str,
}
