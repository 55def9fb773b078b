//! Weight of a client (`copier.shares` of Copier, SOSP 2025, §4.5.2).

use std::fs;

use rustix::net::UCred;
use unlade_copy_scheduler::share::WEIGHT_MAX;

use crate::daemon::config::Weights;
use crate::daemon::message::Class;

/// Divisor for the weight of a background client.
const BACKGROUND_DIVISOR: u32 = 4;

/// Returns the weight of a client.
pub(crate) fn weight_of(weights: &Weights, client: &UCred, class: Class) -> u32 {
    let by_user = weights.uid.get(&client.uid.as_raw().to_string());
    let by_group = || weights.gid.get(&client.gid.as_raw().to_string());
    let named = by_user.or_else(by_group).copied();
    let by_cgroup = || weights.cgroup.then(|| cgroup_weight(client)).flatten();
    let weight = named.or_else(by_cgroup).unwrap_or(weights.default);
    match class {
        Class::Normal => weight,
        Class::Background => (weight / BACKGROUND_DIVISOR).max(1),
    }
}

/// Returns `cpu.weight` of the client's cgroup, which has the same range and default as weights
/// here. `None` without a version 2 hierarchy with the cpu controller at the usual place. If
/// another process has the client's PID by now, the only effect is a wrong weight.
fn cgroup_weight(client: &UCred) -> Option<u32> {
    let pid = client.pid.as_raw_nonzero();
    let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let path = cgroup_path(&cgroups)?;
    let text = fs::read_to_string(format!("/sys/fs/cgroup/{path}/cpu.weight")).ok()?;
    parse_weight(&text)
}

/// Returns the version 2 path in `/proc/PID/cgroup`, if it is below the visible root.
fn cgroup_path(cgroups: &str) -> Option<&str> {
    let path = cgroups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    path.split('/').all(|part| part != "..").then_some(path)
}

fn parse_weight(text: &str) -> Option<u32> {
    text.trim().parse().ok().filter(|weight| (1..=WEIGHT_MAX).contains(weight))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{getgid, getpid, getuid};

    fn own() -> UCred {
        UCred { pid: getpid(), uid: getuid(), gid: getgid() }
    }

    #[test]
    fn the_user_goes_before_the_group_before_the_default() {
        let (uid, gid) = (getuid().as_raw().to_string(), getgid().as_raw().to_string());
        let mut weights = Weights { cgroup: false, default: 7, ..Weights::default() };
        assert_eq!(weight_of(&weights, &own(), Class::Normal), 7);
        assert_eq!(weight_of(&weights, &own(), Class::Background), 1);
        weights.gid.insert(gid, 50);
        assert_eq!(weight_of(&weights, &own(), Class::Normal), 50);
        weights.uid.insert(uid, 300);
        assert_eq!(weight_of(&weights, &own(), Class::Normal), 300);
        assert_eq!(weight_of(&weights, &own(), Class::Background), 75);
        let by_cgroup = weight_of(&Weights::default(), &own(), Class::Normal);
        assert!((1..=WEIGHT_MAX).contains(&by_cgroup));
    }

    #[test]
    fn a_cgroup_elsewhere_has_no_weight() {
        assert_eq!(cgroup_path("1:cpu:/x\n0::/user.slice/a\n"), Some("user.slice/a"));
        assert_eq!(cgroup_path("0::/../../other\n"), None);
        assert_eq!(cgroup_path("1:cpu:/x\n"), None);
        assert_eq!(parse_weight("100\n"), Some(100));
        for text in ["", "0", "10001", "-1", "x"] {
            assert_eq!(parse_weight(text), None, "{text}");
        }
    }
}
