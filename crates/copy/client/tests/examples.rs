//! The examples find their own results right.

use std::path::PathBuf;
use std::process::Command;

/// Path of a built example. Cargo builds the examples before the tests, unless it is told to build
/// one test only.
fn example(name: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let profile = program.parent().and_then(|deps| deps.parent()).unwrap();
    let path = profile.join("examples").join(name);
    if !path.exists() {
        let mut cargo = Command::new(std::env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "unlade-copy", "--example", name]);
        assert!(cargo.status().unwrap().success(), "{name} does not build");
    }
    path
}

fn output_of(name: &str) -> String {
    let output = Command::new(example(name)).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{name}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_logged_record_is_right() {
    let output = output_of("log_pipeline");
    assert!(output.contains("400 of 400 records are right"), "{output}");
}

#[test]
fn every_received_message_is_right() {
    let output = output_of("receive");
    assert!(output.contains("64 of 64 messages are right"), "{output}");
}
