//! The library in its process: start, forks, and the report at the end.

use std::sync::OnceLock;

use crate::options::{Options, VARIABLE};
use crate::{copies, counters, real, receives};

static STATISTICS: OnceLock<String> = OnceLock::new();

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = at_end;

#[cfg_attr(test, allow(dead_code))]
extern "C" fn at_load() {
    real::resolve_all();
    let text = std::env::var(VARIABLE).unwrap_or_default();
    let (options, complaints) = Options::parse(&text);
    for complaint in complaints {
        eprintln!("{complaint}");
    }
    if let Some(to) = &options.statistics {
        let _ = STATISTICS.set(to.clone());
    }
    // SAFETY: the function lives as long as the process, since the library is never unloaded.
    let failed = unsafe { libc::pthread_atfork(None, None, Some(after_fork)) } != 0;
    if !failed && options.is_enabled {
        options.apply();
    }
}

extern "C" fn after_fork() {
    copies::after_fork();
    receives::after_fork();
}

#[cfg_attr(test, allow(dead_code))]
extern "C" fn at_end() {
    let Some(to) = STATISTICS.get() else { return };
    let text = counters::text();
    match to.as_str() {
        "stderr" => eprint!("{text}"),
        path => {
            let path = format!("{path}.{}", std::process::id());
            if let Err(error) = std::fs::write(&path, text) {
                eprintln!("unlade: {VARIABLE}: statistics: {path}: {error}");
            }
        }
    }
}
