//! Random programs, compiled without the pass and with it: at each level of optimisation, against a
//! library that copies as late as it may, the real library, and AddressSanitizer.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::generator::Generator;
use crate::tools::{self, Plugin, run};

const LEVELS: [&str; 4] = ["-O0", "-O1", "-O2", "-O3"];
/// Programs of a run, if UNLADE_ROUNDS is not set.
const ROUNDS: u64 = 4;
/// Programs in which a missing rule must show.
const MUTANT_ROUNDS: u64 = 40;
/// Rules without which programs compute something else.
const MUTANTS: [&str; 4] = ["read-destination", "write-destination", "write-source", "merge"];
/// Short copies, and syncs nearby: many copies are turned.
const KEEN: [(&str, &str); 2] = [("UNLADE_CC_THRESHOLD", "64"), ("UNLADE_CC_WINDOW", "1")];

/// A directory with one program and what it needs.
struct Bench<'a> {
    directory: &'a Path,
    deferred: PathBuf,
    /// Directory of the installed libraries.
    libraries: PathBuf,
}

impl Bench<'_> {
    fn new<'a>(directory: &'a Path, prefix: &Path) -> Bench<'a> {
        let deferred = directory.join("deferred.o");
        let source = Path::new(tools::ROOT).join("tests/compiler/deferred.c");
        run(Command::new("cc").args(["-O1", "-c", "-o"]).arg(&deferred).arg(source));
        Bench { directory, deferred, libraries: prefix.join("lib") }
    }

    fn source(&self, seed: u64) -> PathBuf {
        let source = self.directory.join("program.c");
        fs::write(&source, Generator::new(seed).program()).unwrap();
        source
    }

    /// Compiles the program to an object.
    fn object(&self, source: &Path, plugin: Option<&Plugin>, flags: &[&str]) -> PathBuf {
        let object = self.directory.join("program.o");
        let mut command = Command::new("clang-14");
        command.args(["-w", "-c", "-o"]).arg(&object).arg(source).args(flags).envs(KEEN);
        if let Some(plugin) = plugin {
            command.arg(format!("-fpass-plugin={}", plugin.path.display()));
        }
        run(&mut command);
        object
    }

    fn link(&self, object: &Path, linker: &[&str], libraries: &[&Path]) -> PathBuf {
        let program = self.directory.join("program");
        let mut command = Command::new(linker[0]);
        command.args(&linker[1..]).arg("-o").arg(&program).arg(object).args(libraries);
        run(command.arg(format!("-Wl,-rpath,{}", self.libraries.display())));
        program
    }

    /// The output of the program without the pass.
    fn reference(&self, source: &Path) -> Vec<u8> {
        let object = self.object(source, None, &["-O0"]);
        run(&mut program(&self.link(&object, &["cc"], &[]))).stdout
    }

    /// Runs the program with the library that copies late.
    fn deferred(&self, source: &Path, plugin: &Plugin, level: &str) -> Output {
        let object = self.object(source, Some(plugin), &[level]);
        program(&self.link(&object, &["cc"], &[&self.deferred])).output().unwrap()
    }

    fn real(&self, source: &Path, plugin: &Plugin, level: &str) -> Output {
        let object = self.object(source, Some(plugin), &[level]);
        let library = self.libraries.join("libunlade_copier.so");
        let mut command = program(&self.link(&object, &["cc"], &[&library]));
        command.env("COPIER_OPTIONS", "polling=always").output().unwrap()
    }

    /// The sanitizer reports uses of a destination, and frees of both ranges. Reads of a source are
    /// right.
    fn sanitized(&self, source: &Path, plugin: &Plugin, level: &str) -> Output {
        let object = self.object(source, Some(plugin), &[level, "-fsanitize=address", "-g"]);
        let library = self.libraries.join("libunlade_copier.so");
        let mut command = program(&self.link(&object, &["gcc", "-fsanitize=address"], &[&library]));
        command.env("COPIER_OPTIONS", "sanitize_sources=0").env("ASAN_OPTIONS", "detect_leaks=0");
        command.output().unwrap()
    }
}

/// A hang is ended and counts as a failure.
fn program(path: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--signal=ABRT", "60"]).arg(path);
    command
}

/// Number of copies that the library which copies late has got.
fn submitted(output: &Output) -> u64 {
    let text = String::from_utf8_lossy(&output.stderr);
    let count = text.lines().find_map(|line| line.strip_prefix("submitted "));
    count.map_or(0, |count| count.parse().unwrap())
}

/// Returns true if gcc links programs with AddressSanitizer here.
fn has_sanitizer(directory: &Path) -> bool {
    let source = directory.join("probe.c");
    fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let mut command = Command::new("gcc");
    command.arg("-fsanitize=address").arg(&source).arg("-o").arg(directory.join("probe"));
    command.output().is_ok_and(|output| output.status.success())
}

fn first_seed() -> u64 {
    std::env::var("UNLADE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        now.as_secs() * 1000
    })
}

/// Checks random programs. UNLADE_SEED repeats a run, UNLADE_ROUNDS sets its length.
pub fn programs_compute_the_same(plugin: &Plugin, directory: &Path, prefix: &Path) {
    let bench = Bench::new(directory, prefix);
    let rounds = std::env::var("UNLADE_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    let has_sanitizer = has_sanitizer(directory);
    if !has_sanitizer {
        println!("skipped: gcc has no AddressSanitizer here (libasan)");
    }
    let first = first_seed();
    let mut copies = 0;
    for seed in first..first + rounds {
        println!("UNLADE_SEED={seed}");
        let source = bench.source(seed);
        let expected = bench.reference(&source);
        let same = |way: &str, level: &str, output: &Output| {
            let is_same = output.status.success() && output.stdout == expected;
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(is_same, "UNLADE_SEED={seed} {level} {way}: {}\n{errors}", output.status);
        };
        for level in LEVELS {
            let output = bench.deferred(&source, plugin, level);
            copies += submitted(&output);
            same("late copies", level, &output);
        }
        let level = LEVELS[(seed % 4) as usize];
        same("library", level, &bench.real(&source, plugin, level));
        if has_sanitizer {
            same("sanitizer", level, &bench.sanitized(&source, plugin, level));
        }
    }
    println!("{copies} copies in {rounds} programs");
    assert!(copies > 100 * rounds, "only {copies} copies were turned");
}

/// Checks that the programs above find a pass that lacks a rule.
pub fn missing_rules_show(plugin: &Plugin, directory: &Path) {
    // The libraries are not needed: all copies are late.
    let bench = Bench::new(directory, directory);
    for rule in MUTANTS {
        let is_found = (1..=MUTANT_ROUNDS).any(|seed| {
            let source = bench.source(seed);
            let expected = bench.reference(&source);
            let without = Mutant { bench: &bench, plugin, rule };
            without.differs(&source, &expected)
        });
        assert!(is_found, "{MUTANT_ROUNDS} programs compute the same without the rule {rule}");
    }
}

/// A pass without a rule.
struct Mutant<'a> {
    bench: &'a Bench<'a>,
    plugin: &'a Plugin,
    rule: &'a str,
}

impl Mutant<'_> {
    fn differs(&self, source: &Path, expected: &[u8]) -> bool {
        let object = self.bench.directory.join("program.o");
        let mut command = Command::new("clang-14");
        command.args(["-w", "-c", "-O1", "-o"]).arg(&object).arg(source).envs(KEEN);
        command.arg(format!("-fpass-plugin={}", self.plugin.path.display()));
        run(command.env("UNLADE_WITHOUT", self.rule));
        let path = self.bench.link(&object, &["cc"], &[&self.bench.deferred]);
        let output = program(&path).output().unwrap();
        !output.status.success() || output.stdout != expected
    }
}
