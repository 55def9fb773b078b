//! The program as a caller sees it: exit codes, messages, help.

use std::process::{Command, Output};

fn unlade(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_unlade")).args(args).output().unwrap()
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn wrong_usage_is_2_failure_is_1() {
    for args in [&[][..], &["lb"], &["no-such-command"]] {
        assert_eq!(unlade(args).status.code(), Some(2), "{args:?}");
    }
    for command in ["lb", "backend"] {
        let output = unlade(&[command, "--config", "/nonexistent/x.toml"]);
        assert_eq!(output.status.code(), Some(1));
        let error = error(&output);
        assert!(error.starts_with("unlade: ") && error.contains("/nonexistent/x.toml"), "{error}");
    }
    assert_eq!(unlade(&["--version"]).status.code(), Some(0));
}

#[test]
fn every_command_has_help_with_examples() {
    for args in [&["--help"][..], &["lb", "--help"], &["backend", "--help"]] {
        let output = unlade(args);
        assert!(output.status.success());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("Examples:"), "{args:?}: {text}");
    }
}

#[test]
fn configurations_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("backend.toml");
    let path = file.display().to_string();
    std::fs::write(&file, "http = \"127.0.0.1:8080\"\nroot = \"/srv\"\n").unwrap();
    let output = unlade(&["backend", "--config", &path, "--check"]);
    assert!(output.status.success(), "{}", error(&output));
    std::fs::write(&file, "http = \"127.0.0.1:8080\"\nrooot = \"/srv\"\n").unwrap();
    let output = unlade(&["backend", "--config", &path, "--check"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(error(&output).contains("`root`"), "{}", error(&output));
}

#[test]
fn help_lists_every_product() {
    let help = String::from_utf8(unlade(&["--help"]).stdout).unwrap();
    for product in ["lb", "backend", "copyd", "nvme", "nic", "fn", "lab", "bench", "doctor"] {
        let listed = help.lines().any(|line| line.trim_start().starts_with(&format!("{product} ")));
        assert!(listed, "{product} is missing:\n{help}");
    }
}

/// A program of its own has them: it is given every argument as it is, and its status is passed on.
#[test]
fn labs_and_benchmarks_are_forwarded() {
    let beside = tempfile::tempdir().unwrap();
    let program = beside.path().join("unlade");
    std::fs::copy(env!("CARGO_BIN_EXE_unlade"), &program).unwrap();
    let run = |args: &[&str]| Command::new(&program).env("PATH", "").args(args).output().unwrap();
    let missing = run(&["lab", "status"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(error(&missing).contains("`unlade-lab`"), "{}", error(&missing));
    let lab = beside.path().join("unlade-lab");
    std::fs::write(&lab, "#!/bin/sh\necho \"$@\"\nexit 3\n").unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&lab, executable).unwrap();
    for (args, due) in [
        (&["lab", "up", "--help"][..], "up --help\n"),
        (&["lab", "exec", "client", "--", "ls", "-l"], "exec client -- ls -l\n"),
        (&["bench", "handoff", "--quick"], "bench handoff --quick\n"),
        (&["bench", "--help"], "bench --help\n"),
    ] {
        let output = run(args);
        assert_eq!(String::from_utf8_lossy(&output.stdout), due, "{}", error(&output));
        assert_eq!(output.status.code(), Some(3));
    }
}
