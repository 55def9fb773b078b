//! Compiles the eBPF programs with clang.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// Names of the object files and their sources.
const OBJECTS: [&str; 6] = ["steer", "direct", "splice", "splice_vector", "impair", "strip"];

fn main() {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    for object in OBJECTS {
        compile(object);
    }
}

fn compile(object: &str) {
    let source = format!("bpf/{object}.bpf.c");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let arch = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => "x86",
        Ok("aarch64") => "arm64",
        Ok("riscv64") => "riscv",
        _ => "other",
    };
    let triple = env::var("TARGET").unwrap_or_default().replace("-unknown", "");
    let status = Command::new(&clang)
        .args(["-target", "bpf", "-O2", "-g", "-Wall", "-Werror", "-mcpu=v3"])
        .arg(format!("-D__TARGET_ARCH_{arch}"))
        // asm/types.h of Debian's multiarch layout.
        .arg(format!("-I/usr/include/{triple}"))
        .args(["-c", &source, "-o"])
        .arg(out.join(format!("{object}.bpf.o")))
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => fail(&format!("{clang} failed on {source}: {status}")),
        Err(error) => fail(&format!(
            "{clang}: {error}; install clang and libbpf-dev (scripts/setup does), or set CLANG"
        )),
    }
}

fn fail(message: &str) -> ! {
    eprintln!("error: {message}");
    std::process::exit(1)
}
