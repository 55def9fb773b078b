//! Generates the C header from the sources, and sets the name of the shared library.

use std::env;
use std::path::PathBuf;

/// Interface version of the header: the number in the shared library's name.
const SONAME: &str = "libunlade_copier.so.0";

/// Maximum length of a prototype's line.
const LINE_MAX: usize = 96;

fn main() {
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=cbindgen.toml");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
    // Functions of this process may be handlers, and threads of the service run for its whole
    // life: the library stays where it is.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // No page of the file is mapped by two segments, and offsets in the file equal addresses. The
    // kernel counts tracers in the first mapping of a semaphore's page, and perf (6.1) takes the
    // address of a probe for its offset.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,separate-loadable-segments");
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("copier.h");
    let config = match cbindgen::Config::from_file(root.join("cbindgen.toml")) {
        Ok(config) => config,
        Err(error) => fail(&format!("cbindgen.toml: {error}")),
    };
    let sources = ["abi.rs", "exports.rs", "daemon.rs"].map(|name| root.join("src").join(name));
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in sources {
        builder = builder.with_src(source);
    }
    match builder.generate() {
        Ok(bindings) => {
            let mut text = Vec::new();
            bindings.write(&mut text);
            let lines = String::from_utf8_lossy(&text).lines().map(wrapped).collect::<String>();
            if let Err(error) = std::fs::write(out, lines) {
                fail(&format!("the header cannot be written: {error}"));
            }
        }
        Err(error) => fail(&format!("the header cannot be generated: {error}")),
    }
}

/// Breaks a long prototype between its arguments.
fn wrapped(line: &str) -> String {
    let is_prototype = line.ends_with(");") && !line.starts_with([' ', '#']);
    if !is_prototype || line.len() <= LINE_MAX {
        return format!("{line}\n");
    }
    let mut lines = vec![String::new()];
    for part in line.split_inclusive(", ") {
        if lines.last().is_some_and(|last| last.len() + part.trim_end().len() > LINE_MAX) {
            lines.push("    ".to_owned());
        }
        lines.iter_mut().last().iter_mut().for_each(|last| last.push_str(part));
    }
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn fail(message: &str) -> ! {
    eprintln!("error: {message}");
    std::process::exit(1)
}
