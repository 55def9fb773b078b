//! Every copy loop of this machine by size, and the time of the calibration that chooses among them.

use crate::bench::figures::median;
use crate::bench::record::Sink;
use anyhow::Result;
use serde_json::{Map, Value, json};
use std::time::Instant;
use unlade_command::output::line;
use unlade_copy_kernels::{Kernel, calibrate, kernel, stream};

/// Bytes that a loop copies between two looks at the clock, or one copy if it is longer.
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

/// Runs the part.
///
/// # Errors
/// Results cannot be written.
pub fn run(quick: bool, sink: &mut Sink) -> Result<()> {
    let (rounds, sizes) = if quick { (5, &SIZES[..10]) } else { (15, &SIZES[..]) };
    let loops: Vec<&Kernel> = kernel::available().iter().chain(stream::available()).collect();
    let source = vec![1_u8; sizes.last().copied().unwrap_or_default()];
    let mut target = vec![2_u8; source.len()];
    let names: Vec<String> = loops.iter().map(|kernel| format!("{:>12}", kernel.name())).collect();
    line(format_args!("{:>9}{}  GB/s", "bytes", names.concat()))?;
    for &bytes in sizes {
        let mut speeds = vec![Vec::new(); loops.len()];
        for _ in 0..rounds {
            for (kernel, speeds) in loops.iter().zip(&mut speeds) {
                speeds.push(bytes_per_s(kernel, &source[..bytes], &mut target[..bytes]));
            }
        }
        let medians: Vec<f64> = speeds.iter().map(median).collect();
        for (kernel, speed) in loops.iter().zip(&medians) {
            let case = map(json!({ "part": "loops", "bytes": bytes }));
            sink.write(case, kernel.name(), map(json!({ "throughput_bytes_per_s": speed })))?;
        }
        let cells: Vec<String> = medians.iter().map(|it| format!("{:>12.1}", it / 1e9)).collect();
        line(format_args!("{bytes:>9}{}", cells.concat()))?;
    }
    calibration(sink)
}

/// Speed of one loop. A first copy warms the caches and is not counted.
fn bytes_per_s(kernel: &Kernel, source: &[u8], target: &mut [u8]) -> f64 {
    let copies = (ROUND_BYTES / source.len()).max(1);
    kernel.copy_slice(target, source);
    let begin = Instant::now();
    for _ in 0..copies {
        kernel.copy_slice(target, source);
    }
    (copies * source.len()) as f64 / begin.elapsed().as_secs_f64()
}

/// Time of a calibration, and the cost that it finds of a line which another core wrote.
fn calibration(sink: &mut Sink) -> Result<()> {
    let begin = Instant::now();
    let found = calibrate::calibrate();
    let calibrated_ms = begin.elapsed().as_secs_f64() * 1e3;
    let lines: Vec<f64> =
        (0..5).filter_map(|_| calibrate::remote_line_ns()).map(f64::from).collect();
    // Without a second core there is no such line.
    let remote_line_ns = (!lines.is_empty()).then(|| median(&lines));
    let metrics = json!({ "calibration_ms": calibrated_ms, "remote_line_ns": remote_line_ns,
        "chosen_bytes_per_us": found.bytes_per_us() });
    sink.write(map(json!({ "part": "loops", "what": "calibration" })), "offload", map(metrics))?;
    line(format_args!("calibrated in {calibrated_ms:.1} ms; remote line: {remote_line_ns:?} ns"))
}

fn map(value: Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loop_copies_and_has_a_speed() {
        let source = vec![3_u8; 4096];
        for kernel in kernel::available().iter().chain(stream::available()) {
            let mut target = vec![0_u8; 4096];
            assert!(bytes_per_s(kernel, &source, &mut target) > 0.0, "{}", kernel.name());
            assert_eq!(target, source, "{}", kernel.name());
        }
    }
}
