//! The installed compiler: its arguments, and the sources of zstd compiled with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::tools::{self, Plugin, ROOT, run};

/// A function whose copy is turned, and a program with it.
const CODE: &str = "\
#include <stdio.h>
#include <string.h>
static char a[1 << 16], b[1 << 16];
__attribute__((noinline)) unsigned f(char *restrict d, const char *restrict s, unsigned x)
{
    memcpy(d, s, sizeof a);
    for (unsigned i = 0; i < 1000; i++)
        x = x * 3 + (i ^ x >> 3);
    return x + (unsigned char)d[5];
}
int main(void)
{
    memset(b, 7, sizeof b);
    return printf(\"%u\\n\", f(a, b, 1)) < 0;
}
";

/// Compresses and expands, and prints a sum of the compressed bytes.
const ZSTD_MAIN: &str = "\
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include \"zstd.h\"
enum { N = 3 << 20, PIECE = 40000 };
static unsigned long sum(const unsigned char *p, size_t n)
{
    unsigned long h = 1;
    while (n--) h = h * 31 + *p++;
    return h;
}
static size_t stream(unsigned char *out, size_t room, unsigned char *in, int level)
{
    ZSTD_CStream *s = ZSTD_createCStream();
    ZSTD_initCStream(s, level);
    ZSTD_outBuffer o = {out, room, 0};
    for (size_t at = 0; at < N; at += PIECE) {
        ZSTD_inBuffer i = {in + at, at + PIECE < N ? PIECE : N - at, 0};
        while (i.pos < i.size) if (ZSTD_isError(ZSTD_compressStream(s, &o, &i))) abort();
    }
    while (ZSTD_endStream(s, &o)) ;
    ZSTD_freeCStream(s);
    return o.pos;
}
static void expand(unsigned char *out, unsigned char *in, size_t n)
{
    ZSTD_DStream *s = ZSTD_createDStream();
    ZSTD_outBuffer o = {out, N, 0};
    for (size_t at = 0; at < n; at += PIECE) {
        ZSTD_inBuffer i = {in + at, at + PIECE < n ? PIECE : n - at, 0};
        while (i.pos < i.size) if (ZSTD_isError(ZSTD_decompressStream(s, &o, &i))) abort();
    }
    ZSTD_freeDStream(s);
}
int main(void)
{
    size_t room = ZSTD_compressBound(N);
    unsigned char *in = malloc(N), *out = malloc(room), *back = malloc(N);
    unsigned x = 1;
    for (size_t i = 0; i < N; i++) {
        x = x * 1103515245 + 12345;
        in[i] = i % 70000 < 9000 ? (unsigned char)(x >> 24) : (unsigned char)(i * i >> 9 ^ i % 251);
    }
    for (int level = -3; level <= 13; level += 4) {
        size_t n = ZSTD_compress(out, room, in, N, level);
        memset(back, 0, N);
        if (ZSTD_decompress(back, N, out, n) != N || memcmp(in, back, N)) abort();
        printf(\"%d %zu %lx\\n\", level, n, sum(out, n));
        n = stream(out, room, in, level);
        memset(back, 0, N);
        expand(back, out, n);
        if (memcmp(in, back, N)) abort();
        printf(\"%d %zu %lx\\n\", level, n, sum(out, n));
    }
    return 0;
}
";

/// Installs library, plugin and compiler below the directory.
pub fn install(prefix: &Path) -> PathBuf {
    let mut install = Command::new(Path::new(ROOT).join("install.sh"));
    run(install.arg("--prefix").arg(prefix).arg("--libraries").arg(tools::libraries()));
    let plugin = Plugin::build(false);
    let mut make = Command::new("make");
    make.args(["-s", "-C"]).arg(Path::new(ROOT).join("compiler")).arg("install");
    make.arg(format!("BUILD={}", plugin.path.parent().unwrap().display()));
    run(make.arg(format!("PREFIX={}", prefix.display())));
    prefix.join("bin/unlade-cc")
}

/// The compiler, without the caller's settings.
fn command(compiler: &Path) -> Command {
    let mut command = Command::new(compiler);
    for name in ["THRESHOLD", "WINDOW", "CLANG", "PLUGIN", "LIBRARIES", "REMARKS"] {
        command.env_remove(format!("UNLADE_CC_{name}"));
    }
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Compiles with `-Werror`; nothing may be said.
fn quiet(compiler: &Path, arguments: &[&str], directory: &Path) -> Output {
    let mut command = command(compiler);
    let output = run(command.args(["-Werror", "-O2"]).args(arguments).current_dir(directory));
    assert!(output.stderr.is_empty(), "{arguments:?}: {}", text(&output.stderr));
    output
}

/// Checks what `unlade-cc` does with arguments.
pub fn check_arguments(compiler: &Path, directory: &Path) {
    fs::write(directory.join("a.c"), CODE).unwrap();
    fs::write(directory.join("empty.S"), ".text\n").unwrap();
    let expected = {
        run(Command::new("clang-14").args(["a.c", "-o", "plain"]).current_dir(directory));
        run(&mut Command::new(directory.join("plain"))).stdout
    };
    let prints = |program: &str| {
        assert_eq!(run(&mut Command::new(directory.join(program))).stdout, expected, "{program}");
    };
    quiet(compiler, &["a.c", "-o", "one"], directory);
    prints("one");
    quiet(compiler, &["-c", "a.c", "-o", "a.o"], directory);
    quiet(compiler, &["a.o", "-o", "two"], directory);
    prints("two");
    quiet(compiler, &["-c", "empty.S", "-o", "empty.o"], directory);
    quiet(compiler, &["-shared", "-fPIC", "a.c", "-o", "a.so"], directory);
    let needed = run(Command::new("readelf").arg("-d").arg(directory.join("a.so"))).stdout;
    assert!(text(&needed).contains("[libunlade_copier.so.0]"), "{}", text(&needed));
    assert!(text(&quiet(compiler, &["-E", "a.c"], directory).stdout).contains("int main"));
    // The linker warns of the C library.
    run(command(compiler).args(["-O2", "-static", "a.c", "-o", "static"]).current_dir(directory));
    prints("static");
    let code = |flags: &[&str]| {
        let arguments = [&["-S", "-emit-llvm", "a.c", "-o", "-"], flags].concat();
        text(&quiet(compiler, &arguments, directory).stdout)
    };
    assert!(code(&[]).contains("@unlade.copy"));
    assert!(!code(&["-ffreestanding"]).contains("@unlade.copy"));
    assert!(!code(&["-mllvm", "-unlade-threshold=70000"]).contains("@unlade.copy"));
    let version = text(&run(command(compiler).arg("--version")).stdout);
    assert!(version.contains("clang version 14"), "{version}");
    check_messages(compiler, directory);
}

fn check_messages(compiler: &Path, directory: &Path) {
    let said = |flags: &[&str], variable: (&str, &str)| {
        let mut command = command(compiler);
        command.args(["-O2", "-c", "a.c", "-o", "a.o"]).args(flags).current_dir(directory);
        let output = command.env(variable.0, variable.1).output().unwrap();
        (output.status.success(), text(&output.stderr))
    };
    let (_, turned) = said(&["-Rpass=unlade"], ("UNLADE_CC_WINDOW", ""));
    assert!(turned.contains("a.c:6:5: remark: copy made by the copy service"), "{turned}");
    let (_, same) = said(&[], ("UNLADE_CC_REMARKS", "yes"));
    assert_eq!(same, turned);
    let (_, left) = said(&["-Rpass-missed=unlade"], ("UNLADE_CC_WINDOW", "9999999"));
    assert!(
        left.contains("a.c:6:5: remark: copy left alone: its bytes are used too soon"),
        "{left}"
    );
    let why = " instructions, before an access that may use or change the bytes, line 9 ";
    assert!(left.contains("; the farthest sync is after ") && left.contains(why), "{left}");
    let (is_compiled, wrong) = said(&[], ("UNLADE_CC_THRESHOLD", "4k"));
    assert!(is_compiled && wrong.contains("`4k` is ignored; give a number"), "{wrong}");
    let (is_compiled, missing) = said(&[], ("UNLADE_CC_PLUGIN", "/nowhere.so"));
    assert!(!is_compiled && missing.contains("unlade-cc: /nowhere.so is missing"), "{missing}");
    let mut link = command(compiler);
    link.args(["a.o", "-o", "x"]).env("UNLADE_CC_LIBRARIES", "/nowhere").current_dir(directory);
    let output = link.output().unwrap();
    let missing = text(&output.stderr);
    assert!(
        !output.status.success() && missing.contains("libunlade_copier.so is missing"),
        "{missing}"
    );
}

/// The sources of zstd in cargo's registry.
fn zstd() -> Option<PathBuf> {
    let mut metadata = Command::new(std::env::var_os("CARGO")?);
    metadata.args(["metadata", "--locked", "--format-version", "1"]).current_dir(ROOT);
    let output = metadata.output().ok().filter(|output| output.status.success())?;
    let text = text(&output.stdout);
    let mut quoted = text.split('"');
    let manifest =
        quoted.find(|part| part.contains("/zstd-sys-") && part.ends_with("/Cargo.toml"))?;
    let library = Path::new(manifest).parent()?.join("zstd/lib");
    library.exists().then_some(library)
}

/// Compresses with zstd, compiled by clang, by `unlade-cc`, and by `unlade-cc` with a library that
/// copies as late as it may.
pub fn check_zstd(compiler: &Path, directory: &Path) {
    let Some(library) = zstd() else {
        println!("skipped: cargo has no sources of zstd-sys here");
        return;
    };
    let main = directory.join("main.c");
    fs::write(&main, ZSTD_MAIN).unwrap();
    let mut sources = vec![main];
    for part in ["common", "compress", "decompress"] {
        let files = fs::read_dir(library.join(part)).unwrap().map(|entry| entry.unwrap().path());
        sources.extend(files.filter(|path| path.extension().is_some_and(|end| end == "c")));
    }
    sources.sort();
    let flags = ["-O2", "-w", "-DZSTD_DISABLE_ASM", "-DZSTD_LEGACY_SUPPORT=0", "-I"];
    let build = |compiler: &mut Command, program: &str| {
        run(compiler
            .args(flags)
            .arg(&library)
            .args(&sources)
            .arg("-o")
            .arg(directory.join(program)));
    };
    build(&mut Command::new("clang-14"), "plain");
    let mut keen = command(compiler);
    build(keen.envs([("UNLADE_CC_THRESHOLD", "64"), ("UNLADE_CC_WINDOW", "1")]), "turned");
    let expected = run(&mut Command::new(directory.join("plain"))).stdout;
    assert_eq!(text(&expected).lines().count(), 10);
    let turned = || Command::new(directory.join("turned"));
    for options in ["", "polling=always", "enabled=0"] {
        assert_eq!(run(turned().env("COPIER_OPTIONS", options)).stdout, expected, "{options}");
    }
    let late = directory.join("late.so");
    let source = Path::new(ROOT).join("tests/compiler/deferred.c");
    run(Command::new("cc").args(["-O1", "-shared", "-fPIC", "-o"]).arg(&late).arg(source));
    let output = run(turned().env("LD_PRELOAD", &late));
    assert_eq!(output.stdout, expected, "late copies");
    let count = text(&output.stderr);
    assert!(count.starts_with("submitted ") && count != "submitted 0\n", "{count}");
    print!("zstd: {count}");
}
