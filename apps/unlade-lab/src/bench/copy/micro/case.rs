//! The cases of the part: what is copied, how, and beside what.

use serde_json::{Map, Value, json};
use std::hint::black_box;
use std::time::Duration;

const SIZES: [usize; 11] = [
    512,
    1 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
];
/// Windows, in multiples of the time that the copy takes.
const WINDOWS: [u32; 3] = [0, 1, 4];
pub const LINE_BYTES: usize = 64;
/// Time for the copies of one way in a round, without their preparation.
const ROUND: Duration = Duration::from_micros(1500);

/// How the program asks for its copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interface {
    /// `Copier::scope` and `Scope::copy`.
    Rust,
    /// `amemcpy` and `csync`.
    C,
}

/// One case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    pub bytes: usize,
    pub is_cold: bool,
    /// Duration of the work between copy and use, in multiples of the time of the copy.
    pub window: u32,
    pub interface: Interface,
    /// Another thread of the machine computes all the time.
    pub has_hog: bool,
}

impl Case {
    /// All cases with or without a hog.
    pub fn all(has_hog: bool) -> impl Iterator<Item = Case> {
        let interfaces = [Interface::Rust, Interface::C];
        let uses = interfaces.into_iter().flat_map(|interface| {
            WINDOWS
                .into_iter()
                .flat_map(move |window| [false, true].map(|is_cold| (interface, window, is_cold)))
        });
        uses.flat_map(move |(interface, window, is_cold)| {
            SIZES.into_iter().map(move |bytes| Case { bytes, is_cold, window, interface, has_hog })
        })
    }

    pub fn fields(self) -> Map<String, Value> {
        let fields = json!({
            "bytes": self.bytes,
            "cache": if self.is_cold { "cold" } else { "warm" },
            "window": self.window,
            "interface": self.interface.name(),
            "hog": self.has_hog,
        });
        fields.as_object().cloned().unwrap_or_default()
    }

    pub fn label(self) -> String {
        let cache = if self.is_cold { "cold" } else { "warm" };
        let hog = if self.has_hog { " hog" } else { "" };
        let bytes = unlade_config::ByteSize(self.bytes as u64);
        format!("{} {cache} {}x {bytes}{hog}", self.interface.name(), self.window)
    }

    /// The work between copy and use, where the copy alone takes `copy_ns`.
    pub fn window(self, copy_ns: f64) -> Duration {
        Duration::from_nanos((f64::from(self.window) * copy_ns) as u64)
    }

    /// Copies of one way in a round.
    pub fn repeats(self, copy_ns: f64) -> usize {
        let each_ns = copy_ns * f64::from(1 + self.window) + 1.0;
        ((ROUND.as_nanos() as f64 / each_ns) as usize).clamp(3, 256)
    }
}

impl Interface {
    pub fn name(self) -> &'static str {
        match self {
            Interface::Rust => "rust",
            Interface::C => "c",
        }
    }
}

/// Source and destination of a case.
pub struct Buffers {
    pub source: Vec<u8>,
    pub destination: Vec<u8>,
}

impl Buffers {
    pub fn new(bytes: usize) -> Buffers {
        let source = (0..bytes).map(|at| (at % 251) as u8).collect();
        // Written, so that its pages are there.
        Buffers { source, destination: vec![1; bytes] }
    }

    /// Into the caches of this core, as far as they hold them, or out of all.
    pub fn prepare(&self, is_cold: bool) {
        if is_cold {
            unlade_copy_kernels::evict(&self.source);
            unlade_copy_kernels::evict(&self.destination);
        } else {
            black_box(read_lines(&self.source));
            black_box(read_lines(&self.destination));
        }
    }
}

/// Reads one byte of each line.
pub fn read_lines(bytes: &[u8]) -> u64 {
    bytes.iter().step_by(LINE_BYTES).map(|byte| u64::from(*byte)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_occurs_once_in_each_way() {
        let cases: Vec<Case> = Case::all(false).collect();
        assert_eq!(cases.len(), SIZES.len() * WINDOWS.len() * 2 * 2);
        for (at, case) in cases.iter().enumerate() {
            assert!(!cases[..at].contains(case) && !case.has_hog);
        }
        let fields = cases[0].fields();
        assert_eq!((&fields["cache"], &fields["window"]), (&json!("warm"), &json!(0)));
        assert_eq!(cases[0].label(), "rust warm 0x 512B");
    }

    #[test]
    fn windows_and_repeats_follow_the_time_of_a_copy() {
        let case = Case {
            bytes: 1 << 20,
            is_cold: true,
            window: 4,
            interface: Interface::C,
            has_hog: true,
        };
        assert_eq!(case.window(1000.0), Duration::from_micros(4));
        assert_eq!((case.repeats(1.0), case.repeats(30_000.0), case.repeats(1e9)), (256, 9, 3));
    }
}
