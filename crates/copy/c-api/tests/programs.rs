//! C programs with the installed library: the header, pkg-config, the corpus with and without
//! AddressSanitizer, stress.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

use support::{ROOT, has, libraries, program, run};

mod support;

/// Marks the line in a bad program that the report must name.
const MARK: &str = "/* submitted here */";

/// Prefix of the installed library.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<TempDir> = OnceLock::new();
    let installed = PREFIX.get_or_init(|| {
        let prefix = tempfile::tempdir().unwrap();
        let mut install = Command::new(Path::new(ROOT).join("install.sh"));
        run(install.arg("--prefix").arg(prefix.path()).arg("--libraries").arg(libraries()));
        prefix
    });
    installed.path()
}

/// Removes the installation: statics are not dropped.
struct Remove;
impl Drop for Remove {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(prefix());
    }
}

/// Output of pkg-config, as words.
fn flags(arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.args(arguments).arg("unlade-copier");
    command.env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig"));
    let output = run(&mut command);
    String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
}

/// Compiles a program against the shared library.
fn compile(compiler: &[String], source: &Path, program: &Path) {
    let mut command = Command::new(&compiler[0]);
    command.args(&compiler[1..]).args(["-g", "-O1", "-Wall", "-Wextra", "-Werror"]);
    command.args(["-pthread", "-UNDEBUG", "-o"]).arg(program).arg(source);
    command.args(flags(&["--cflags", "--libs"]));
    command.arg(format!("-Wl,-rpath,{}", prefix().join("lib").display()));
    run(&mut command);
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// The programs of a part of the corpus.
fn sources(part: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(Path::new(ROOT).join("corpus").join(part)).unwrap();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

/// The checked-in header.
fn header() -> String {
    fs::read_to_string(Path::new(ROOT).join("include/unlade/copier.h")).unwrap()
}

fn the_checked_in_header_is_current() {
    let made = fs::read_to_string(concat!(env!("OUT_DIR"), "/copier.h")).unwrap();
    if std::env::var_os("UNLADE_WRITE_HEADER").is_some() {
        fs::write(Path::new(ROOT).join("include/unlade/copier.h"), &made).unwrap();
    }
    assert!(
        made == header(),
        "include/unlade/copier.h is old: run this test with UNLADE_WRITE_HEADER=1"
    );
}

/// Functions declared in the header: the word before the first parenthesis of a prototype.
fn declared() -> BTreeSet<String> {
    let text = header();
    let code = text.lines().filter(|line| !line.starts_with([' ', '#', '/', '}']));
    let name = |line: &str| Some(line.split_once('(')?.0.rsplit([' ', '*']).next()?.to_owned());
    code.filter_map(name).collect()
}

fn the_library_exports_what_the_header_declares() {
    let mut nm = Command::new("nm");
    nm.args(["-D", "--defined-only"]).arg(prefix().join("lib/libunlade_copier.so"));
    let output = String::from_utf8(run(&mut nm).stdout).unwrap();
    let exported: BTreeSet<String> = output
        .lines()
        .filter_map(|line| line.split_once(" T ").map(|(_, name)| name.to_owned()))
        .filter(|name| !name.starts_with("rust_") && !name.starts_with("_R"))
        .collect();
    assert_eq!(exported, declared());
    assert!(exported.len() >= 24, "{exported:?}");
    let manual = fs::read_to_string(Path::new(ROOT).join("man/unlade_copier.3")).unwrap();
    for name in &exported {
        assert!(manual.contains(name.as_str()), "the manual lacks {name}");
    }
}

fn the_readme_compiles_and_runs() {
    let directory = tempfile::tempdir().unwrap();
    let source = Path::new(ROOT).join("examples/readme.c");
    let program = directory.path().join("shared");
    let mut cc = Command::new("cc");
    cc.arg(&source).args(flags(&["--cflags", "--libs"])).arg("-o").arg(&program);
    run(&mut cc);
    let output = run(Command::new(&program).env("LD_LIBRARY_PATH", prefix().join("lib")));
    assert_eq!(output.stdout, b"7340032\n");
    // Static linking: only the archive, and the libraries listed by pkg-config.
    let program = directory.path().join("static");
    let all = flags(&["--static", "--cflags", "--libs"]);
    let archive = prefix().join("lib/libunlade_copier.a");
    let mut cc = Command::new("cc");
    cc.arg(&source);
    for flag in all {
        match flag.as_str() {
            "-lunlade_copier" => cc.arg(&archive),
            _ => cc.arg(flag),
        };
    }
    run(cc.arg("-o").arg(&program));
    assert_eq!(run(&mut Command::new(&program)).stdout, b"7340032\n");
}

fn the_header_is_cpp_and_strict_c_too() {
    let directory = tempfile::tempdir().unwrap();
    let text = "#include <unlade/copier.h>\n#include <unlade/copier.h>\n\
                int main(void) { char a[8] = {1}, b[8]; amemcpy(b, a, 8);\n\
                (amemmove)(a, b, 4); return csync(b, 8) || csync_all(); }\n";
    let with = |name: &str, compiler: &str| {
        let source = directory.path().join(name);
        fs::write(&source, text).unwrap();
        compile(&words(compiler), &source, &directory.path().join("program"));
        run(&mut Command::new(directory.path().join("program")));
    };
    with("strict.c", "cc -std=c99 -pedantic");
    with("sites.c", "cc -std=c11 -DCOPIER_NO_SITES");
    match has("c++") {
        true => with("program.cc", "c++ -std=c++11"),
        false => println!("skipped: no C++ compiler"),
    }
}

fn good_programs_are_right(compiler: &str, environment: &[(&str, &str)]) {
    programs_end_well("good", compiler, environment);
}

fn programs_end_well(part: &str, compiler: &str, environment: &[(&str, &str)]) {
    let directory = tempfile::tempdir().unwrap();
    for source in sources(part) {
        let program = directory.path().join(source.file_stem().unwrap());
        compile(&words(compiler), &source, &program);
        let mut command = self::program(&program);
        let output = run(command.envs(environment.iter().copied()));
        assert!(output.stderr.is_empty(), "{source:?}: {output:?}");
    }
}

/// Options that select other code paths of the library.
const WAYS: [&[(&str, &str)]; 3] = [
    &[],
    &[("COPIER_OPTIONS", "enabled=0")],
    &[("COPIER_OPTIONS", "polling=always:threads=2:queue_len=64")],
];

fn good_programs_succeed_with_all_options() {
    WAYS.iter().for_each(|way| good_programs_are_right("cc", way));
}

/// Bad addresses and ranges fail as documented, in the service and in the caller.
fn bad_addresses_end_in_efault_and_bad_ranges_in_einval() {
    WAYS.iter().for_each(|way| programs_end_well("wrong", "cc", way));
}

/// Compilers that support AddressSanitizer here. `UNLADE_ASAN_CC` adds another one.
fn sanitizers() -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("probe.c");
    fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let mut candidates = vec!["clang".to_owned(), "gcc".to_owned()];
    candidates.extend(std::env::var("UNLADE_ASAN_CC"));
    let works = |compiler: &String| {
        let words = words(compiler);
        let program = directory.path().join("probe");
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg("-fsanitize=address").arg("-o").arg(&program).arg(&source);
        let compiled = command.output().is_ok_and(|output| output.status.success());
        let runs = compiled && Command::new(&program).status().is_ok_and(|status| status.success());
        if !runs {
            println!("skipped: {compiler} has no AddressSanitizer here (libclang-rt-dev, libasan)");
        }
        runs
    };
    candidates.into_iter().filter(works).collect()
}

fn bad_programs_are_reported(compiler: &str) {
    let directory = tempfile::tempdir().unwrap();
    for source in sources("bad") {
        let text = fs::read_to_string(&source).unwrap();
        let line = text.lines().position(|line| line.contains(MARK)).unwrap() + 1;
        let place = format!("submitted at {}:{line}\n", source.display());
        let program = directory.path().join(source.file_stem().unwrap());
        compile(&words(compiler), &source, &program);
        let output = self::program(&program).output().unwrap();
        let report = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{source:?} ended well\n{report}");
        assert!(report.contains("ERROR: AddressSanitizer"), "{source:?}: {report}");
        assert!(report.contains(&place), "{source:?}: no `{place}` in {report}");
    }
}

/// Checks of sources can be disabled for reads, but not for frees.
fn sources_can_be_exempt(compiler: &str) {
    let directory = tempfile::tempdir().unwrap();
    let exempt = [("COPIER_OPTIONS", "sanitize_sources=0")];
    for (name, ends_well) in [("write_src", true), ("free_src", false), ("write_dst", false)] {
        let source = Path::new(ROOT).join(format!("corpus/bad/{name}.c"));
        let program = directory.path().join(name);
        compile(&words(compiler), &source, &program);
        let mut command = self::program(&program);
        let output = command.env("ASAN_OPTIONS", "detect_leaks=0").envs(exempt).output().unwrap();
        assert_eq!(output.status.success(), ends_well, "{name}: {output:?}");
    }
}

/// Without the header's macros the report has the caller's address.
fn plain_calls_are_placed(compiler: &str) {
    let directory = tempfile::tempdir().unwrap();
    let source = Path::new(ROOT).join("corpus/bad/write_src.c");
    let program = directory.path().join("plain");
    compile(&words(&format!("{compiler} -DCOPIER_NO_SITES")), &source, &program);
    let output = self::program(&program).output().unwrap();
    let report = String::from_utf8_lossy(&output.stderr).into_owned();
    let place = report.lines().find(|line| line.contains("submitted at")).unwrap_or_default();
    assert!(place.contains(" in main "), "{report}");
}

fn the_sanitizer_finds_mistakes_and_nothing_else() {
    for compiler in sanitizers() {
        let compiler = format!("{compiler} -fsanitize=address");
        bad_programs_are_reported(&compiler);
        sources_can_be_exempt(&compiler);
        plain_calls_are_placed(&compiler);
        good_programs_are_right(&compiler, &[]);
        good_programs_are_right(&compiler, &[("COPIER_OPTIONS", "enabled=0")]);
    }
}

/// The script runs in a directory of the same depth as the crate, below a root without libraries,
/// and must name the release directory of that root.
fn libraries_are_sought_in_the_release_directory_of_the_workspace() {
    let crate_path = Path::new(ROOT);
    let workspace = crate_path.ancestors().nth(3).unwrap();
    assert!(workspace.join("Cargo.lock").exists(), "{workspace:?} is not the workspace");
    let root = tempfile::tempdir().unwrap();
    let root = root.path().canonicalize().unwrap();
    let copy = root.join(crate_path.strip_prefix(workspace).unwrap());
    fs::create_dir_all(&copy).unwrap();
    fs::create_dir_all(root.join("target/release")).unwrap();
    fs::copy(crate_path.join("install.sh"), copy.join("install.sh")).unwrap();
    let header = copy.join("include/unlade/copier.h");
    fs::create_dir_all(header.parent().unwrap()).unwrap();
    fs::copy(crate_path.join("include/unlade/copier.h"), header).unwrap();
    let staging = root.join("staging");
    let mut install = Command::new(copy.join("install.sh"));
    let output = install.env("DESTDIR", &staging).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let message = String::from_utf8(output.stderr).unwrap();
    let missing = message.strip_prefix("install.sh: ").and_then(|text| text.split_once(" is miss"));
    let library = Path::new(missing.unwrap_or_else(|| panic!("{message}")).0);
    let directory = library.parent().unwrap().canonicalize().unwrap();
    assert_eq!(directory, root.join("target/release"), "{message}");
    assert!(!staging.exists(), "the script installed something");
}

/// Copies of a source that is given up are made by moving pages, where the kernel can.
fn pages_move_and_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("last_use");
    compile(&words("cc"), &Path::new(ROOT).join("corpus/good/last_use.c"), &program);
    let remapped = |options: &str| {
        let output = run(self::program(&program).env("COPIER_OPTIONS", options)).stdout;
        let text = String::from_utf8(output).unwrap();
        let (number, served) =
            text.trim().strip_prefix("remapped ").unwrap().split_once(", served ").unwrap();
        (number.parse::<u32>().unwrap(), served == "1")
    };
    let (always, is_served) = remapped("remaps=always");
    let can = is_served && unlade_copy_kernels::remap::Remapper::of_process().is_some();
    assert_eq!(always > 0, can, "{always} copies were moved");
    assert_eq!(remapped("remaps=never").0, 0);
    assert_eq!(remapped("enabled=0"), (0, false));
}

fn threads_and_forks_are_supported() {
    let seed = std::env::var("UNLADE_SEED").unwrap_or_else(|_| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        (now.as_nanos() as u32).to_string()
    });
    println!("UNLADE_SEED={seed}");
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("stress");
    compile(&words("cc"), &Path::new(ROOT).join("corpus/stress.c"), &program);
    for options in ["", "queue_len=16:polling=always", "polling=scenario", "enabled=0"] {
        run(self::program(&program).arg(&seed).env("COPIER_OPTIONS", options));
    }
}

/// One test for all checks: they share an installation, and the last one removes it.
#[test]
fn programs() {
    if let Some(missing) = ["cc", "pkg-config", "nm"].into_iter().find(|program| !has(program)) {
        println!("skipped: no {missing}");
        return;
    }
    the_checked_in_header_is_current();
    libraries_are_sought_in_the_release_directory_of_the_workspace();
    let _remove = Remove;
    the_library_exports_what_the_header_declares();
    the_readme_compiles_and_runs();
    the_header_is_cpp_and_strict_c_too();
    good_programs_succeed_with_all_options();
    bad_addresses_end_in_efault_and_bad_ranges_in_einval();
    pages_move_and_are_counted();
    threads_and_forks_are_supported();
    the_sanitizer_finds_mistakes_and_nothing_else();
}
