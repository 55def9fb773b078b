//! Pages of the reference: they are compared with the checked-in files, or written.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// Environment variable that makes the tests write the pages.
const BLESS: &str = "UNLADE_BLESS";

/// Compares `text` with the page `docs/reference/NAME`, or writes the page if `UNLADE_BLESS` is 1.
pub fn settle(name: &str, text: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = root.join("docs/reference").join(name);
    if std::env::var_os(BLESS).is_some_and(|value| value == "1") {
        std::fs::write(&page, text).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
        return;
    }
    let found = std::fs::read_to_string(&page).unwrap_or_default();
    if found == text {
        return;
    }
    let same = found.lines().zip(text.lines()).take_while(|(found, due)| found == due).count();
    let line = |text: &str| text.lines().nth(same).unwrap_or("(end of the page)").to_owned();
    panic!(
        "docs/reference/{name}:{} differs from the code.\n  page: {}\n  code: {}\n\
         Run this test with {BLESS}=1 to write the page, and commit it.",
        same + 1,
        line(&found),
        line(text),
    );
}

/// The text of `--help` of a command of `program`.
pub fn help(program: &str, command: &[String]) -> String {
    let mut run = Command::new(program);
    // The width decides where the text is wrapped, and some options show variables.
    run.args(command).arg("--help").env_clear().env("COLUMNS", "100");
    let output = run.output().unwrap_or_else(|error| panic!("{program}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {command:?} --help: {errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n").trim_end().to_owned()
}

/// The names under `Commands:` in the text of a `--help`.
fn sub_commands(help: &str) -> Vec<String> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    // Continuation lines are indented further.
    let names = listed.filter_map(|line| line.strip_prefix("  ").filter(|l| !l.starts_with(' ')));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// The help of every command of `program`, each under a heading. Commands in `elsewhere` belong to
/// another program: the text beside them is their section.
pub fn commands(program: &str, name: &str, elsewhere: &[(&str, &str)]) -> String {
    let mut text = String::new();
    section(&mut text, program, name, &mut Vec::new(), elsewhere);
    text
}

fn section(
    text: &mut String,
    program: &str,
    name: &str,
    command: &mut Vec<String>,
    elsewhere: &[(&str, &str)],
) {
    let whole = [&[name.to_owned()], &command[..]].concat().join(" ");
    // Writing to a string does not fail.
    let _ = write!(text, "\n## `{whole}`\n\n");
    let other = elsewhere.iter().find(|(other, _)| [*other] == command[..]);
    if let Some((_, reference)) = other {
        let _ = writeln!(text, "{reference}");
        return;
    }
    let help = help(program, command);
    assert!(!help.contains("```"), "{whole}: the help would end its code block");
    let _ = write!(text, "```text\n{help}\n```\n");
    for sub_command in sub_commands(&help) {
        command.push(sub_command);
        section(text, program, name, command, elsewhere);
        command.pop();
    }
}
