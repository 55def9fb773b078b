//! Resource limits of the process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of descriptors to the hard limit: a service needs descriptors for every
/// client. A refusal is logged, and the limit stays.
pub fn raise_descriptor_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, "the limit of descriptors (ulimit -n) stays as it is");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_of_descriptors_becomes_the_hard_limit() {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let most = maximum.unwrap_or(1 << 20);
        // One less than the hard limit does not affect the other tests of this process.
        let lower = Rlimit { current: Some(most - 1), maximum };
        setrlimit(Resource::Nofile, lower).unwrap();
        raise_descriptor_limit();
        assert_eq!(getrlimit(Resource::Nofile).current, maximum);
    }
}
