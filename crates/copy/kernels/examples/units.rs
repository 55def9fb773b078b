//! Prints the throughput of every copy loop by size, in GB/s: medians, the loops interleaved.
//!
//! `cargo run --release -p unlade-copy-kernels --example units`

use std::time::Instant;

use unlade_copy_kernels::kernel::{self, Kernel};
use unlade_copy_kernels::{Guard, Hint, calibrate, guard};

const ROUNDS: usize = 15;
const ROUND_BYTES: usize = 16 << 20;
const SIZES: [usize; 13] = [
    64,
    256,
    512,
    1 << 10,
    2 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
];

enum Unit {
    Loop(&'static Kernel),
    Chosen(Hint),
    Guarded(Guard),
}

impl Unit {
    fn name(&self) -> String {
        match self {
            Unit::Loop(kernel) => kernel.name().to_owned(),
            Unit::Chosen(Hint::Reuse) => "copy".to_owned(),
            Unit::Chosen(Hint::Stream) => "stream".to_owned(),
            Unit::Guarded(_) => "guarded".to_owned(),
        }
    }

    fn gb_s(&self, source: &[u8], target: &mut [u8]) -> f64 {
        assert_eq!(source.len(), target.len());
        let (to, from, bytes) = (target.as_mut_ptr(), source.as_ptr(), source.len());
        // SAFETY: two slices of the same length.
        let copy = || unsafe {
            match self {
                Unit::Loop(kernel) => kernel.copy(to, from, bytes),
                Unit::Chosen(hint) => kernel::copy(to, from, bytes, *hint),
                Unit::Guarded(guard) => {
                    guard.copy_guarded(to, from, bytes, Hint::Reuse).expect("memory is there");
                }
            }
        };
        let copies = (ROUND_BYTES / bytes).max(1);
        // Warm the caches for this unit.
        copy();
        let begin = Instant::now();
        (0..copies).for_each(|_| copy());
        (copies * bytes) as f64 / begin.elapsed().as_nanos() as f64
    }
}

fn main() {
    let begin = Instant::now();
    calibrate::calibrate().apply();
    let took = begin.elapsed();
    let mut units: Vec<Unit> = kernel::available().iter().map(Unit::Loop).collect();
    units.extend([Unit::Chosen(Hint::Reuse), Unit::Chosen(Hint::Stream)]);
    units.extend(guard::install().ok().map(Unit::Guarded));
    let source = vec![1_u8; SIZES[SIZES.len() - 1]];
    let mut target = vec![2_u8; source.len()];

    let names: Vec<String> = units.iter().map(|unit| format!("{:>8}", unit.name())).collect();
    println!("{:>9} {}", "bytes", names.join(" "));
    for bytes in SIZES {
        let mut rounds = vec![Vec::new(); units.len()];
        for _ in 0..ROUNDS {
            for (unit, figures) in units.iter().zip(&mut rounds) {
                figures.push(unit.gb_s(&source[..bytes], &mut target[..bytes]));
            }
        }
        let medians: Vec<String> = rounds.iter_mut().map(|figures| median(figures)).collect();
        println!("{bytes:>9} {}", medians.join(" "));
    }
    println!("calibrated in {:.1} ms", took.as_secs_f64() * 1e3);
    for _ in 0..5 {
        let begin = Instant::now();
        let line_ns = calibrate::remote_line_ns();
        println!("remote line: {line_ns:?} ns, in {:.2} ms", begin.elapsed().as_secs_f64() * 1e3);
    }
}

fn median(figures: &mut [f64]) -> String {
    figures.sort_by(f64::total_cmp);
    format!("{:>8.1}", figures[figures.len() / 2])
}
