//! `CONFIG`: the limits, and the other options that clients of Redis query.

use crate::context::Context;
use crate::copies::Copies;
use crate::databases::DATABASES;
use crate::failure::{Answer, Failure};
use crate::pattern::is_match;
use crate::state::{Limits, Stats};

/// Options with the only value that they can have here.
const FIXED: [(&str, &str); 4] =
    [("save", ""), ("appendonly", "no"), ("timeout", "0"), ("maxmemory-policy", "noeviction")];
/// Maximum number of connections, whatever is configured.
const CLIENTS_MAX: usize = 1 << 20;

/// An option that is a limit.
#[derive(Clone, Copy)]
struct Setting {
    name: &'static str,
    /// The limit's place.
    at: fn(&mut Limits) -> &mut usize,
    /// The number is a length in bytes, and may have a unit.
    is_bytes: bool,
}

const SETTINGS: [Setting; 4] = [
    Setting { name: "maxclients", at: |limits| &mut limits.clients_max, is_bytes: false },
    Setting { name: "maxmemory", at: |limits| &mut limits.memory_bytes_max, is_bytes: true },
    Setting {
        name: "proto-max-bulk-len",
        at: |limits| &mut limits.value_bytes_max,
        is_bytes: true,
    },
    Setting {
        name: "client-query-buffer-limit",
        at: |limits| &mut limits.input_bytes_max,
        is_bytes: true,
    },
];

/// `CONFIG GET pattern …`.
pub(crate) fn get<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    let mut limits = context.state.limits;
    let mut all: Vec<(&str, String)> =
        FIXED.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    all.push(("databases", DATABASES.to_string()));
    for setting in SETTINGS {
        all.push((setting.name, (setting.at)(&mut limits).to_string()));
    }
    let is_wanted = |name: &str| {
        let mut patterns = context.words.from(2).map(<[u8]>::to_ascii_lowercase);
        patterns.any(|pattern| is_match(&pattern, name.as_bytes()))
    };
    all.retain(|(name, _)| is_wanted(name));
    context.out.map(all.len());
    for (name, value) in all {
        context.out.bulk(name.as_bytes());
        context.out.bulk(value.as_bytes());
    }
    Ok(())
}

/// `CONFIG SET name value …`: all of the values, or none.
pub(crate) fn set<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    if !context.words.len().is_multiple_of(2) {
        return Err(Failure::Syntax);
    }
    let mut limits = context.state.limits;
    let mut names = Vec::new();
    for index in (2..context.words.len()).step_by(2) {
        let name = String::from_utf8_lossy(context.word(index)).to_ascii_lowercase();
        let value = String::from_utf8_lossy(context.word(index + 1)).into_owned();
        put(&mut limits, &context.state.start_limits, &name, &value)?;
        if names.contains(&name) {
            return Err(refused(&name, "duplicate parameter"));
        }
        names.push(name);
    }
    context.state.limits = limits;
    context.out.simple("OK");
    Ok(())
}

fn refused(name: &str, reason: &str) -> Failure {
    Failure::text(format!("CONFIG SET failed (possibly related to argument '{name}') - {reason}"))
}

fn put(limits: &mut Limits, start: &Limits, name: &str, value: &str) -> Answer {
    let refused = |reason: &str| refused(name, reason);
    if let Some((_, only)) = FIXED.iter().find(|(fixed, _)| *fixed == name) {
        let is_same = value.eq_ignore_ascii_case(only);
        return is_same.then_some(()).ok_or_else(|| refused("unlade-kv has one value for it"));
    }
    let Some(setting) = SETTINGS.iter().find(|setting| setting.name == name) else {
        let said = format!("Unknown option or number of arguments for CONFIG SET - '{name}'");
        return Err(Failure::text(said));
    };
    let number = if setting.is_bytes { bytes(value) } else { value.parse().ok() };
    let kind = if setting.is_bytes { "memory value" } else { "number" };
    let number = number.ok_or_else(|| refused(&format!("argument must be a {kind}")))?;
    // No client can raise what the server may use above the memory of its start.
    if setting.is_bytes && number > start.memory_bytes_max {
        return Err(refused("it is above the memory limit that the server was started with"));
    }
    let at = (setting.at)(limits);
    *at = match setting.name {
        // In Redis, 0 means no limit: here it is that of the start.
        "maxmemory" if number == 0 => start.memory_bytes_max,
        "maxclients" if !(1..=CLIENTS_MAX).contains(&number) => {
            return Err(refused("it is 0, or too large"));
        }
        _ => number,
    };
    Ok(())
}

/// Parses a number of bytes, with a unit as Redis has them.
fn bytes(text: &str) -> Option<usize> {
    let text = text.to_ascii_lowercase();
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let factor: usize = match unit {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    number.parse::<usize>().ok()?.checked_mul(factor)
}

/// `CONFIG RESETSTAT`: sets the statistics to zero.
pub(crate) fn resetstat<C: Copies>(context: &mut Context<'_, C>) -> Answer {
    context.state.count_expired();
    let clients = context.state.stats.clients;
    context.state.stats = Stats { clients, ..Stats::default() };
    context.out.simple("OK");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units() {
        assert_eq!(bytes("12"), Some(12));
        assert_eq!(bytes("1mb"), Some(1 << 20));
        assert_eq!(bytes("2G"), Some(2_000_000_000));
        for text in ["", "mb", "-1", "1x", "99999999999999999999", "99999999999999gb"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }

    #[test]
    fn limits_stay_within_those_of_the_start() {
        let start = Limits { memory_bytes_max: 1000, ..Limits::default() };
        let mut limits = start;
        assert_eq!(put(&mut limits, &start, "maxmemory", "10"), Ok(()));
        assert_eq!(limits.memory_bytes_max, 10);
        assert_eq!(put(&mut limits, &start, "maxmemory", "0"), Ok(()));
        assert_eq!(limits.memory_bytes_max, 1000);
        for (name, value) in [
            ("maxmemory", "1001"),
            ("proto-max-bulk-len", "2k"),
            ("maxmemory", "x"),
            ("maxclients", "0"),
            ("appendonly", "yes"),
            ("no", "1"),
        ] {
            assert!(put(&mut limits, &start, name, value).is_err(), "{name} {value}");
        }
        assert_eq!(put(&mut limits, &start, "save", ""), Ok(()));
        assert_eq!(limits, start);
    }
}
