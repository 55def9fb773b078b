//! The log of a function: its last lines, for readers, and each line in the gateway's own log.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use unlade_fn_model::log::{Entry, Page, Rate, Ring, Wanted};

use crate::config::FunctionLogConfig;
use crate::function_meter::FunctionMeter;

/// The place of a line: a version of the function and an instance of it.
#[derive(Clone, Debug)]
pub struct Place {
    /// The version.
    pub version: String,
    /// The instance; `None` for the template.
    pub instance: Option<u64>,
}

/// See the [module](self).
pub struct FunctionLog {
    function: String,
    meter: Arc<FunctionMeter>,
    state: RefCell<State>,
}

struct State {
    ring: Ring,
    rate: Rate,
}

impl FunctionLog {
    /// An empty log.
    pub fn new(
        function: &str,
        config: &FunctionLogConfig,
        meter: Arc<FunctionMeter>,
    ) -> FunctionLog {
        let bytes_max = usize::try_from(config.bytes_max.0).unwrap_or(usize::MAX);
        let state = State { ring: Ring::new(bytes_max), rate: Rate::new(config.lines_per_s) };
        FunctionLog { function: function.to_owned(), meter, state: state.into() }
    }

    /// Adds a line that the function has printed, unless there are too many.
    pub fn print(&self, place: &Place, request: Option<&Rc<str>>, text: String) {
        self.meter.log_lines.fetch_add(1, Relaxed);
        if !self.state.borrow_mut().rate.admit(Instant::now()) {
            self.meter.log_lines_dropped.fetch_add(1, Relaxed);
            return;
        }
        self.add_dropped(place, request);
        let (function, version, instance) = (&self.function, &place.version, place.instance);
        let request_id = request.map(|request| &**request);
        tracing::info!(target: "function", function, version, instance, request_id, "{text}");
        self.add(place, request, text);
    }

    /// Adds a line of the host's about an invocation.
    pub fn note(&self, place: &Place, request: Option<&Rc<str>>, text: String) {
        self.add_dropped(place, request);
        self.add(place, request, text);
    }

    /// Says how many lines were dropped, once they can be followed by another one.
    fn add_dropped(&self, place: &Place, request: Option<&Rc<str>>) {
        let dropped = self.state.borrow_mut().rate.take_dropped();
        if dropped > 0 {
            let function = &self.function;
            tracing::warn!(target: "function", function, dropped, "lines were dropped");
            let text =
                format!("({dropped} lines were dropped: more than function_log.lines_per_s)");
            self.add(place, request, text);
        }
    }

    fn add(&self, place: &Place, request: Option<&Rc<str>>, text: String) {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.state.borrow_mut().ring.add(Entry {
            number: 0,
            at_ms: u64::try_from(at.as_millis()).unwrap_or(u64::MAX),
            version: place.version.clone(),
            instance: place.instance,
            request: request.map(|request| request.to_string()),
            text,
        });
    }

    /// The lines that a reader asks for.
    pub fn page(&self, wanted: &Wanted) -> Page {
        self.state.borrow().ring.page(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_rate_are_dropped_counted_and_said() {
        let meter = Arc::new(FunctionMeter::default());
        let config = FunctionLogConfig { lines_per_s: 3, ..FunctionLogConfig::default() };
        let log = FunctionLog::new("f", &config, meter.clone());
        let place = Place { version: "$LATEST".to_owned(), instance: Some(7) };
        let request: Rc<str> = "r".into();
        // They may fall into two seconds, and not into more than a few.
        for number in 0..100 {
            log.print(&place, Some(&request), format!("line {number}"));
        }
        let dropped = meter.log_lines_dropped.load(Relaxed);
        assert_eq!(meter.log_lines.load(Relaxed), 100);
        assert!(dropped > 0);
        log.note(&place, Some(&request), "END".to_owned());
        let page = log.page(&Wanted::default());
        let texts: Vec<&str> = page.lines.iter().map(|line| line.text.as_str()).collect();
        assert_eq!((texts[0], *texts.last().unwrap()), ("line 0", "END"));
        let said = |text: &&str| text.strip_prefix('(')?.split(' ').next()?.parse::<u64>().ok();
        assert_eq!(texts.iter().filter_map(said).sum::<u64>(), dropped, "{texts:?}");
        assert_eq!(
            texts.iter().filter(|text| text.starts_with("line")).count() as u64,
            100 - dropped
        );
        assert!(page.lines.iter().all(|line| line.instance == Some(7)));
    }
}
