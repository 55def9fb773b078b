//! The page of the commands of `unlade-lab` (`docs/reference/lab-commands.md`) agrees with the
//! code. With `UNLADE_BLESS=1` the test writes the page.

#[path = "../../unlade/tests/reference/page.rs"]
mod page;

const HEAD: &str = "\
# Commands of unlade-lab

A test generates this page from the `--help` of the program: `UNLADE_BLESS=1 cargo test -p
unlade-lab --test reference` writes it. `unlade lab` and `unlade bench` run this program.
";

#[test]
fn the_page_of_commands_is_the_help() {
    let commands = page::commands(env!("CARGO_BIN_EXE_unlade-lab"), "unlade-lab", &[]);
    for command in ["up", "bench handoff", "load"] {
        assert!(commands.contains(&format!("\n## `unlade-lab {command}`\n")), "{command}");
    }
    page::settle("lab-commands.md", &format!("{HEAD}{commands}"));
}
