//! Metrics: counters of events, gauges, and histograms of durations. No I/O.
//!
//! - [`Event`] is the closed list of counters, [`Gauge`] the closed list of gauges, [`Stage`] the
//!   closed list of timed stages;
//! - [`Meter`] contains the values and is updated from any thread without a lock;
//! - [`Meter::render`] is their OpenMetrics text, [`Meter::stages_json`] the times in detail;
//! - [`metric_set!`] declares a small set of counters and gauges without a meter;
//! - [`OpenMetrics`] writes the text of both.
//!
//! Names are stable: a family is renamed or removed only with an entry in the change log.
//!
//! ```
//! use unlade_metrics::{Event, Meter};
//!
//! let meter = Meter::new();
//! meter.add(Event::TlsHandshake);
//! meter.add_n(Event::BytesOut, 1448);
//!
//! let text = meter.render();
//! assert!(text.contains("\nunlade_lb_tls_handshakes_total 1\n"));
//! assert!(text.contains("\nunlade_lb_sent_bytes_total 1448\n"));
//! assert!(text.ends_with("# EOF\n"));
//! ```
#![forbid(unsafe_code)]

mod event;
mod gauge;
mod histogram;
mod label;
mod openmetrics;
mod recording;
mod registry;
mod render;
mod set;
mod shard;
mod stage;
mod stages;

pub use event::Event;
pub use gauge::Gauge;
pub use label::{
    AdoptionRefusal, Begin, CallEnd, CopyBy, CopyFallback, CutRefusal, CutService, DeliveryResult,
    Direction, EventEnd, Fallback, FinalClass, FnDenial, FnHttpEnd, FnRuntime, Health, MessageEnd,
    Mode, NotificationResult, OffloadRefusal, PerformResult, PollResult, PrefetchEnd,
    REQUEST_HEAD_REASONS, REQUEST_REASONS, RESPONSE_REASONS, RefusedConnection, RequestHeadReason,
    RequestReason, ResponseReason, RuleResult, SealingRefusal, SidecarFailure, StatusClass,
    Treatment, Trigger, Unfit, UpstreamFailure,
};
pub use openmetrics::{Histograms, Kind, Labels, OpenMetrics, Reading, Samples};
pub use registry::{GaugeGuard, Meter, Role};
pub use render::render_each;
pub use set::{AtomicCounter, AtomicGauge};
pub use stage::Stage;

/// One family of metrics: the text that [`Meter::render`] prints above its samples.
pub(crate) struct Family {
    /// The name without the suffix that the sample's type requires; begins with `unlade_`.
    pub(crate) name: &'static str,
    /// A sentence that describes the family.
    pub(crate) help: &'static str,
    /// The label that distinguishes the family's samples.
    pub(crate) label: Option<&'static str>,
    /// The number of values of the label.
    pub(crate) count: usize,
    /// The label's value for an index below `count`.
    pub(crate) text: fn(usize) -> &'static str,
    /// The description of the label's value for an index below `count`.
    pub(crate) meaning: fn(usize) -> &'static str,
}
