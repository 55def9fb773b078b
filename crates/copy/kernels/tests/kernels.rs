//! Every loop against a simple one: all small lengths, the limits of all classes, all alignments,
//! with checks of the surrounding bytes.

use unlade_copy_kernels::kernel::{self, CLASSES, Kernel, class_bytes_max};
use unlade_copy_kernels::{Hint, stream};
use unlade_testkit::{Random, seed};

/// Number of bytes before and behind a target that must not change.
const MARGIN_BYTES: usize = 160;
/// Value of these bytes.
const MARGIN: u8 = 0xa5;

fn all() -> impl Iterator<Item = &'static Kernel> {
    kernel::available().iter().chain(stream::available())
}

/// Two buffers for copies of up to a given length at any alignment.
struct Bench {
    source: Vec<u8>,
    target: Vec<u8>,
}

impl Bench {
    fn new(random: &mut Random, bytes_max: usize) -> Bench {
        let mut source = vec![0; bytes_max + MARGIN_BYTES];
        random.fill(&mut source);
        Bench { source, target: vec![MARGIN; bytes_max + 3 * MARGIN_BYTES] }
    }

    /// Copies between two unaligned places and checks all bytes around the target.
    fn check(
        &mut self,
        name: &str,
        bytes: usize,
        from: usize,
        to: usize,
        copy: impl Fn(*mut u8, *const u8),
    ) {
        assert!(from < MARGIN_BYTES && to < MARGIN_BYTES);
        let to = MARGIN_BYTES + to;
        copy(self.target[to..to + bytes].as_mut_ptr(), self.source[from..from + bytes].as_ptr());
        let told = || format!("{name}: {bytes} bytes from {from} to {to}");
        let wanted = self.source[from..from + bytes].iter();
        for (at, (got, wanted)) in self.target[to..to + bytes].iter().zip(wanted).enumerate() {
            assert!(got == wanted, "{}: byte {at} is {got} and not {wanted}", told());
        }
        let around =
            |range: std::ops::Range<usize>| self.target[range].iter().all(|&b| b == MARGIN);
        assert!(around(to - MARGIN_BYTES..to), "{}: wrote before the target", told());
        let end = to + bytes;
        assert!(around(end..end + MARGIN_BYTES), "{}: wrote behind the target", told());
        self.target[to..end].fill(MARGIN);
    }

    fn check_kernel(&mut self, kernel: &Kernel, bytes: usize, from: usize, to: usize) {
        self.check(kernel.name(), bytes, from, to, |dst, src| {
            // SAFETY: `check` passes two slices of `bytes` bytes.
            unsafe { kernel.copy(dst, src, bytes) };
        });
    }
}

#[test]
fn every_small_length_at_odd_alignments() {
    let mut random = Random::new(seed());
    let mut bench = Bench::new(&mut random, 600);
    for kernel in all() {
        for bytes in 0..=600 {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (7, 3), (31, 33), (63, 15), (64, 64)] {
                bench.check_kernel(kernel, bytes, from, to);
            }
            bench.check_kernel(kernel, bytes, random.below(128), random.below(128));
        }
    }
}

#[test]
fn every_alignment_of_some_lengths() {
    let mut random = Random::new(seed());
    let mut bench = Bench::new(&mut random, 2600);
    for kernel in all() {
        for bytes in [15, 64, 129, 257, 513, 1025, 2561] {
            for from in 0..64 {
                for to in (from % 3..64).step_by(3) {
                    bench.check_kernel(kernel, bytes, from, to);
                }
            }
        }
    }
}

#[test]
fn lengths_around_powers_of_two_up_to_a_mebibyte() {
    let mut random = Random::new(seed());
    let mut bench = Bench::new(&mut random, (1 << 20) + 1);
    for kernel in all() {
        for power in 9..=20 {
            for bytes in [(1 << power) - 1, 1 << power, (1 << power) + 1] {
                bench.check_kernel(kernel, bytes, 0, 0);
                bench.check_kernel(kernel, bytes, random.below(128), random.below(128));
            }
        }
    }
}

#[test]
fn random_lengths_and_alignments() {
    let mut random = Random::new(seed());
    let mut bench = Bench::new(&mut random, 20_000);
    for kernel in all() {
        for _ in 0..400 {
            let bytes = random.below(20_000);
            bench.check_kernel(kernel, bytes, random.below(128), random.below(128));
        }
    }
}

#[test]
fn the_chosen_loop_copies_every_class_with_both_hints() {
    let mut random = Random::new(seed());
    let bytes_max = stream::STREAM_BYTES_MIN + 70_000;
    let mut bench = Bench::new(&mut random, bytes_max);
    let edges = (0..CLASSES - 1).map(class_bytes_max).flat_map(|last| [last - 1, last, last + 1]);
    for bytes in
        edges.chain([0, 1, stream::STREAM_PART_BYTES_MIN - 1, stream::STREAM_BYTES_MIN, bytes_max])
    {
        for hint in [Hint::Reuse, Hint::Stream] {
            let (from, to) = (random.below(128), random.below(128));
            bench.check("chosen", bytes, from, to, |dst, src| {
                // SAFETY: `check` passes two slices of `bytes` bytes.
                unsafe { unlade_copy_kernels::copy(dst, src, bytes, hint) };
            });
        }
    }
}
