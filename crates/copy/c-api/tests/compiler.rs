//! The compiler pass: its rules, random programs, and programs of others, compiled with it.

#[path = "compiler/generator.rs"]
mod generator;
#[path = "compiler/installed.rs"]
mod installed;
#[path = "compiler/random.rs"]
mod random;
#[path = "compiler/rules.rs"]
mod rules;
#[allow(dead_code, reason = "shared with other tests")]
mod support;
#[path = "compiler/tools.rs"]
mod tools;

use std::path::Path;

use tools::{Plugin, ROOT};

/// Returns true, and tells why, if the tests cannot run here.
fn is_skipped() -> bool {
    let missing = tools::missing();
    if let Some(missing) = missing {
        println!("skipped: no {missing} (clang-14, llvm-14-dev)");
    }
    missing.is_some()
}

#[test]
fn every_rule_has_a_case_that_fails_without_it() {
    if is_skipped() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    rules::every_rule_has_a_case(&Path::new(ROOT).join("compiler/src"));
    rules::every_rule_is_needed(&Plugin::build(true), directory.path());
}

#[test]
fn random_programs_compute_the_same() {
    if is_skipped() {
        return;
    }
    let (prefix, directory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    installed::install(prefix.path());
    random::programs_compute_the_same(&Plugin::build(false), directory.path(), prefix.path());
}

#[test]
fn random_programs_show_that_a_rule_is_missing() {
    if is_skipped() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    random::missing_rules_show(&Plugin::build(true), directory.path());
}

#[test]
fn the_compiler_takes_the_arguments_of_clang() {
    if is_skipped() {
        return;
    }
    let (prefix, directory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    installed::check_arguments(&installed::install(prefix.path()), directory.path());
}

#[test]
fn zstd_compresses_to_the_same_bytes() {
    if is_skipped() {
        return;
    }
    let (prefix, directory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    installed::check_zstd(&installed::install(prefix.path()), directory.path());
}
