//! Generates the C header from the sources, and sets the name of the shared library.

use std::env;
use std::path::PathBuf;

/// Interface version of the header: the number in the shared library's name.
const SONAME: &str = "libunlade_copier.so.0";

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
            bindings.write_to_file(out);
        }
        Err(error) => fail(&format!("the header cannot be generated: {error}")),
    }
}

fn fail(message: &str) -> ! {
    eprintln!("error: {message}");
    std::process::exit(1)
}
