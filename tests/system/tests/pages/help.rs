//! Checks command lines of `unlade` and `unlade-lab` against the help of the programs: every
//! sub-command and every option exists. Nothing is run.

use std::collections::BTreeMap;
use std::process::Command;
use system_tests::{text, unlade, unlade_lab};

/// Programs whose commands are checked.
const PROGRAMS: [&str; 2] = ["unlade", "unlade-lab"];
/// Words that a command may follow, besides the ends of others.
const PREFIXES: [&str; 2] = ["sudo", "exec"];
/// Words that end a command in a line.
const ENDS: [&str; 7] = ["|", "&&", "||", ";", "&", "--", ">"];

/// Help texts, by command line.
#[derive(Debug, Default)]
pub struct Helps(BTreeMap<Vec<String>, String>);

impl Helps {
    /// Returns the help of a command, whose first word is `unlade` or `unlade-lab`; empty if there
    /// is no such command.
    fn of(&mut self, words: &[String]) -> &str {
        self.0.entry(words.to_vec()).or_insert_with(|| {
            let program = if words[0] == "unlade" { unlade().to_owned() } else { unlade_lab() };
            let output = Command::new(program).args(&words[1..]).arg("--help").output();
            text(&output.expect("the program starts"))
        })
    }

    /// Returns what is wrong with the command `words`; empty if it has existing sub-commands and
    /// options only. A placeholder such as `NAME` or `…` ends the sub-commands.
    pub fn problems(&mut self, words: &[String]) -> Vec<String> {
        let mut command: Vec<String> = Vec::new();
        let mut rest = words.iter().peekable();
        command.extend(rest.next().cloned());
        while let Some(word) = rest.peek().filter(|word| word.starts_with(char::is_lowercase)) {
            // `unlade lab` and `unlade bench` become the other program.
            match (command.len(), command[0].as_str(), word.as_str()) {
                (1, "unlade", "lab") => command = vec!["unlade-lab".to_owned()],
                (1, "unlade", "bench") => command = vec!["unlade-lab".into(), "bench".into()],
                _ => {
                    let names = sub_commands(self.of(&command));
                    if names.is_empty() {
                        break;
                    }
                    let longer = [&command[..], &[(*word).clone()]].concat();
                    // The list lacks hidden commands.
                    if !names.contains(word) && self.of(&longer).is_empty() {
                        return vec![format!("`{}` has no command `{word}`", command.join(" "))];
                    }
                    command = longer;
                }
            }
            rest.next();
        }
        let help = self.of(&command).to_owned();
        let placeholder = rest.peek().is_some_and(|word| !word.starts_with('-'));
        if placeholder && !sub_commands(&help).is_empty() {
            // The options of the command that it stands for are not known.
            return Vec::new();
        }
        let known: Vec<&str> = help.split(|c: char| !(c.is_alphanumeric() || c == '-')).collect();
        let options = rest.filter(|word| word.starts_with('-'));
        let either = options.flat_map(|options| options.split('|'));
        let names = either.map(|option| option.split('=').next().unwrap_or(option));
        let unknown = names.filter(|name| !known.contains(name));
        unknown.map(|name| format!("`{}` has no option `{name}`", command.join(" "))).collect()
    }
}

/// The names below `Commands:` of a help text.
fn sub_commands(help: &str) -> Vec<String> {
    let section = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = section.take_while(|line| line.starts_with("  "));
    lines
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| Some(line.split_whitespace().next()?.to_owned()))
        .collect()
}

/// Returns the commands of `unlade` and `unlade-lab` in shell text, as words without quotes.
pub fn commands(shell: &str) -> Vec<Vec<String>> {
    let joined = shell.replace("\\\n", " ");
    let mut found = Vec::new();
    for line in joined.lines() {
        let line = line.split(" #").next().unwrap_or_default();
        let mut words = line.split_whitespace();
        // A command begins a line, or follows the end of another one or a prefix.
        let mut begins = true;
        while let Some(word) = words.next() {
            let bare = word.trim_start_matches(['"', '$', '(']);
            let name = bare.strip_prefix("target/release/").unwrap_or(bare);
            let is_command = (begins || bare.len() < word.len()) && PROGRAMS.contains(&name);
            begins = ENDS.contains(&word) || PREFIXES.contains(&word) || word.ends_with(';');
            if !is_command {
                continue;
            }
            let mut command = vec![name.to_owned()];
            for word in words.by_ref() {
                let plain = word.trim_end_matches([';', ')', '"', '\'', ',', ']']);
                if ENDS.contains(&word) || word.contains('>') {
                    break;
                }
                command.push(plain.trim_start_matches(['[', '\'']).to_owned());
                if plain.len() < word.len() && !word.ends_with([']', '\'']) {
                    break;
                }
            }
            found.push(command);
            begins = true;
        }
    }
    found
}

#[test]
fn commands_are_found_in_shell_text() {
    let found = commands(
        "a | unlade lab up --tls \\\n  --x=1 && b -p unlade d\neval \"$(unlade fn env)\"   # unlade c\n",
    );
    let words: Vec<String> = found.iter().map(|command| command.join(" ")).collect();
    assert_eq!(words, ["unlade lab up --tls --x=1", "unlade fn env"]);
}
