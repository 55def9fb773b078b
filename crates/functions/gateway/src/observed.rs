//! The metrics, the log and the last seconds of a function, over all of its versions.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use unlade_fn_model::recent::Recent;

use crate::config::FunctionLogConfig;
use crate::function_log::FunctionLog;
use crate::function_meter::{FunctionMeter, FunctionMeters};

/// See the [module](self).
pub struct Observed {
    tenant: String,
    name: String,
    /// Its metrics.
    pub meter: Arc<FunctionMeter>,
    /// Its log.
    pub log: FunctionLog,
    recent: RefCell<Recent>,
    meters: Arc<FunctionMeters>,
}

impl Observed {
    /// Counts an answered invocation.
    pub fn answered(&self, duration: Duration, is_error: bool) {
        self.meter.invocations.fetch_add(1, Relaxed);
        self.meter.errors.fetch_add(u64::from(is_error), Relaxed);
        self.meter.duration.add(duration);
        self.recent.borrow_mut().add(duration, is_error, Instant::now());
    }

    /// Its figures, as `unlade fn top` shows them.
    pub fn figures(&self) -> Value {
        let meter = &self.meter;
        let recent = self.recent.borrow_mut().summary(Instant::now());
        json!({
            "function": self.name,
            "tenant": self.tenant,
            "rate_per_s": recent.rate_per_s,
            "errors_per_s": recent.errors_per_s,
            "p50_us": recent.p50_us,
            "p99_us": recent.p99_us,
            "invocations": meter.invocations.load(Relaxed),
            "errors": meter.errors.load(Relaxed),
            "throttles": meter.throttles.load(Relaxed),
            "running": meter.running.load(Relaxed),
            "memory_peak_bytes": meter.memory_peak_bytes.load(Relaxed),
            "cold_starts": meter.init_duration.count(),
        })
    }
}

impl Drop for Observed {
    /// Runs when the last version and its last instance have gone.
    fn drop(&mut self) {
        self.meters.remove(&self.tenant, &self.name);
    }
}

/// The functions of a gateway, while a version of them exists.
pub struct Observatory {
    log: FunctionLogConfig,
    meters: Arc<FunctionMeters>,
    functions: RefCell<BTreeMap<(String, String), Weak<Observed>>>,
}

impl Observatory {
    /// No function yet.
    pub fn new(log: FunctionLogConfig, functions_max: usize) -> Observatory {
        let meters = Arc::new(FunctionMeters::new(functions_max));
        Observatory { log, meters, functions: RefCell::default() }
    }

    /// The metrics of all functions, for the thread that serves them.
    pub fn meters(&self) -> Arc<FunctionMeters> {
        self.meters.clone()
    }

    /// A function, which all of its versions share.
    pub fn observe(&self, tenant: &str, name: &str) -> Rc<Observed> {
        let key = (tenant.to_owned(), name.to_owned());
        let mut functions = self.functions.borrow_mut();
        if let Some(found) = functions.get(&key).and_then(Weak::upgrade) {
            return found;
        }
        functions.retain(|_, function| function.strong_count() > 0);
        let meter = self.meters.add(tenant, name);
        let observed = Rc::new(Observed {
            tenant: tenant.to_owned(),
            name: name.to_owned(),
            log: FunctionLog::new(name, &self.log, meter.clone()),
            meter,
            recent: Recent::new(Instant::now()).into(),
            meters: self.meters.clone(),
        });
        functions.insert(key, Rc::downgrade(&observed));
        observed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_share_a_function_and_the_last_one_removes_it() {
        let all = Observatory::new(FunctionLogConfig::default(), 10);
        let (one, two) = (all.observe("t", "f"), all.observe("t", "f"));
        assert!(Rc::ptr_eq(&one, &two) && !Rc::ptr_eq(&one, &all.observe("u", "f")));
        one.answered(Duration::from_millis(3), true);
        one.answered(Duration::from_millis(3), false);
        let figures = two.figures();
        assert_eq!((&figures["invocations"], &figures["errors"]), (&json!(2), &json!(1)));
        assert_eq!(figures["p50_us"], 3071);
        drop(one);
        assert_eq!(all.observe("t", "f").figures()["invocations"], 2);
        drop(two);
        assert_eq!(all.observe("t", "f").figures()["invocations"], 0, "it is another one");
    }
}
