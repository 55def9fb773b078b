//! Environment variables that configure a run.

/// Returns the number in an environment variable, or `otherwise`.
///
/// # Panics
/// The variable is set and not a number.
pub fn env_number(name: &str, otherwise: usize) -> usize {
    unlade_testkit::setting(name).map_or(otherwise, |number| number as usize)
}

/// Returns hosts whose connections are handed over, the one that moves most the most often; or the
/// one in `UNLADE_HOST`, for example `off.objects.lab` to test proxying alone.
pub fn hosts() -> Vec<String> {
    match std::env::var("UNLADE_HOST") {
        Ok(host) => vec![host],
        Err(_) => ["one", "one", "one", "eight", "unlimited"]
            .map(|name| format!("{name}.objects.lab"))
            .to_vec(),
    }
}
