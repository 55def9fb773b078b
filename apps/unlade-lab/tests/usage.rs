//! The program as a caller sees it: exit codes, messages, help.

use std::process::{Command, Output};

fn lab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_unlade-lab")).args(args).output().unwrap()
}

#[test]
fn wrong_usage_is_2() {
    for args in [&[][..], &["up", "--name", "A-B"], &["no-such-command"]] {
        assert_eq!(lab(args).status.code(), Some(2), "{args:?}");
    }
    assert_eq!(lab(&["--version"]).status.code(), Some(0));
}

#[test]
fn every_command_has_help_with_examples() {
    for args in [
        &["--help"][..],
        &["bench", "handoff", "--help"],
        &["bench", "migrate", "--help"],
        &["bench", "soak", "--help"],
        &["bench", "record", "--help"],
        &["load", "--help"],
    ] {
        let output = lab(args);
        assert!(output.status.success());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("Examples:"), "{args:?}: {text}");
    }
}

#[test]
fn help_lists_every_command() {
    let help = String::from_utf8(lab(&["--help"]).stdout).unwrap();
    let commands = ["up", "down", "status", "exec", "restart", "bench", "load", "floor", "impair"];
    for command in commands.into_iter().chain(["kv"]) {
        let listed = help.lines().any(|line| line.trim_start().starts_with(&format!("{command} ")));
        assert!(listed, "{command} is missing:\n{help}");
    }
}
