//! Options of the whole process: `COPIER_OPTIONS`, and `set_copier_opt`.

use std::ffi::c_int;

use unlade_copy::{Config, Polling, Remaps};

use crate::abi;

/// The environment variable: `KEY=VALUE` items, separated by colons.
pub(crate) const VARIABLE: &str = "COPIER_OPTIONS";
/// Maximum number of threads of a service.
const THREADS_MAX: u32 = 64;
/// Range of queue lengths.
const QUEUE_LENGTHS: std::ops::RangeInclusive<u32> = 16..=4096;
/// Maximum number of reported errors in the variable.
const COMPLAINTS_MAX: usize = 8;

/// Settings of the library in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub is_enabled: bool,
    pub config: Config,
    /// Look for AddressSanitizer, and report copies to it.
    pub sanitize: bool,
    /// Also report reads of a source that is not synced.
    pub sanitize_sources: bool,
    /// Which copies of a source that is given up are made by moving pages.
    pub remaps: Remaps,
}

impl Settings {
    /// Returns the defaults, changed by the variable's text, and messages for its errors.
    pub fn parse(text: &str) -> (Settings, Vec<String>) {
        let mut settings = Settings {
            is_enabled: true,
            config: Config::default(),
            sanitize: true,
            sanitize_sources: true,
            remaps: Remaps::Measured,
        };
        let mut complaints = Vec::new();
        for item in text.split(':').filter(|item| !item.is_empty()) {
            if settings.set(item).is_none() && complaints.len() < COMPLAINTS_MAX {
                complaints.push(format!(
                    "unlade: {VARIABLE}: `{item}` is ignored; known are enabled=0|1, threads=N, \
                     queue_len=N, polling=adaptive|scenario|always, sanitize=0|1, \
                     sanitize_sources=0|1, remaps=measured|always|never"
                ));
            }
        }
        (settings, complaints)
    }

    fn set(&mut self, item: &str) -> Option<()> {
        let (key, value) = item.split_once('=')?;
        match key {
            "enabled" => self.is_enabled = switch(value)?,
            "threads" => self.set_threads(value.parse().ok()?)?,
            "queue_len" => self.set_queue_len(value.parse().ok()?)?,
            "polling" => {
                self.config.polling = match value {
                    "adaptive" => Polling::Adaptive,
                    "scenario" => Polling::Scenario,
                    "always" => Polling::Always,
                    _ => return None,
                }
            }
            "sanitize" => self.sanitize = switch(value)?,
            "remaps" => {
                self.remaps = match value {
                    "measured" => Remaps::Measured,
                    "always" => Remaps::Always,
                    "never" => Remaps::Never,
                    _ => return None,
                }
            }
            "sanitize_sources" => self.sanitize_sources = switch(value)?,
            _ => return None,
        }
        Some(())
    }

    fn set_threads(&mut self, threads: u32) -> Option<()> {
        self.config.threads_max = (1..=THREADS_MAX).contains(&threads).then_some(threads)? as usize;
        Some(())
    }

    fn set_queue_len(&mut self, len: u32) -> Option<()> {
        let fits = QUEUE_LENGTHS.contains(&len) && len.is_power_of_two();
        self.config.slots = fits.then_some(len)?;
        Some(())
    }

    /// Applies the start options in `opt`.
    ///
    /// # Errors
    /// EINVAL: a field is out of range.
    pub fn with(mut self, opt: &abi::Opt) -> Result<Settings, c_int> {
        if let Some(is_enabled) = on_or_off(opt.enabled)? {
            self.is_enabled = is_enabled;
        }
        if opt.threads != 0 {
            self.set_threads(opt.threads).ok_or(libc::EINVAL)?;
        }
        if opt.queue_len != 0 {
            self.set_queue_len(opt.queue_len).ok_or(libc::EINVAL)?;
        }
        match opt.polling {
            0 => {}
            abi::COPIER_POLL_ADAPTIVE => self.config.polling = Polling::Adaptive,
            abi::COPIER_POLL_SCENARIO => self.config.polling = Polling::Scenario,
            abi::COPIER_POLL_ALWAYS => self.config.polling = Polling::Always,
            _ => return Err(libc::EINVAL),
        }
        Ok(self)
    }
}

/// Value of a switch; `None` if it is 0.
///
/// # Errors
/// EINVAL: the value is unknown.
pub(crate) fn on_or_off(field: u32) -> Result<Option<bool>, c_int> {
    match field {
        0 => Ok(None),
        abi::COPIER_ON => Ok(Some(true)),
        abi::COPIER_OFF => Ok(Some(false)),
        _ => Err(libc::EINVAL),
    }
}

fn switch(value: &str) -> Option<bool> {
    match value {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_is_parsed_and_errors_are_reported() {
        let (settings, complaints) = Settings::parse(
            "threads=2:queue_len=64:polling=always:sanitize_sources=0:remaps=never",
        );
        assert!(complaints.is_empty());
        assert_eq!((settings.config.threads_max, settings.config.slots), (2, 64));
        assert_eq!(settings.config.polling, Polling::Always);
        assert!(settings.is_enabled && settings.sanitize && !settings.sanitize_sources);
        assert_eq!(settings.remaps, Remaps::Never);
        let (settings, complaints) =
            Settings::parse("threads=0:queue_len=63:polling=never:enabled=yes:x:y=1:remaps=1:");
        assert_eq!(complaints.len(), 7);
        assert_eq!(settings, Settings::parse("").0);
    }

    #[test]
    fn fields_out_of_range_are_refused() {
        let (settings, _) = Settings::parse("");
        let opt = |opt: abi::Opt| settings.with(&opt);
        assert_eq!(opt(abi::Opt::default()), Ok(settings));
        let ok = opt(abi::Opt { threads: 3, enabled: 2, queue_len: 32, ..Default::default() });
        let ok = ok.unwrap();
        assert_eq!((ok.config.threads_max, ok.is_enabled, ok.config.slots), (3, false, 32));
        for bad in [
            abi::Opt { enabled: 3, ..Default::default() },
            abi::Opt { threads: 65, ..Default::default() },
            abi::Opt { queue_len: 17, ..Default::default() },
            abi::Opt { queue_len: 8192, ..Default::default() },
            abi::Opt { polling: 4, ..Default::default() },
        ] {
            assert_eq!(opt(bad), Err(libc::EINVAL));
        }
    }
}
