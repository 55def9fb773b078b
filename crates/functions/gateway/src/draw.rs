//! Random numbers that choose the version of an alias with weights.

/// A random number from 0 up to but not including 1.
pub(crate) fn draw() -> f64 {
    const BITS: u32 = 53;
    // The version and the variant of a UUID are in its other bits.
    let (_, low) = uuid::Uuid::new_v4().as_u64_pair();
    (low & ((1 << BITS) - 1)) as f64 / (1_u64 << BITS) as f64
}
