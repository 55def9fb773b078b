//! The pages of the reference (`docs/reference`) agree with the code. With `UNLADE_BLESS=1` the
//! tests write the pages.

#[path = "reference/configuration.rs"]
mod configuration;
#[path = "reference/keys.rs"]
mod keys;
#[path = "reference/metrics.rs"]
mod metrics;
#[path = "reference/page.rs"]
mod page;

const COMMANDS: &str = "\
# Commands

A test generates this page from the `--help` of the programs: `UNLADE_BLESS=1 cargo test -p unlade
--test reference` writes it. The commands of `unlade-lab` are in [lab-commands.md](lab-commands.md).
";

/// `unlade lab` and `unlade bench` pass their arguments to `unlade-lab`.
const ELSEWHERE: &[(&str, &str)] = &[
    ("lab", "Runs `unlade-lab` with the same arguments: [lab-commands.md](lab-commands.md)."),
    (
        "bench",
        "Runs `unlade-lab bench` with the same arguments: [lab-commands.md](lab-commands.md).",
    ),
];

#[test]
fn the_page_of_commands_is_the_help() {
    let commands = page::commands(env!("CARGO_BIN_EXE_unlade"), "unlade", ELSEWHERE);
    for command in ["lb", "nvme target", "fn serve"] {
        assert!(commands.contains(&format!("\n## `unlade {command}`\n")), "{command}");
    }
    page::settle("commands.md", &format!("{COMMANDS}{commands}"));
}

#[test]
fn every_metric_has_a_product() {
    metrics::assert_sorted();
}

#[test]
fn the_metrics_of_every_process_are_valid_openmetrics() {
    metrics::assert_valid();
}

#[test]
fn the_page_of_metrics_has_every_family() {
    page::settle("metrics.md", &metrics::page());
}

#[test]
fn the_walk_through_a_configuration_finds_all_kinds_of_tables() {
    configuration::assert_walk();
}

#[test]
fn documented_files_have_every_key() {
    configuration::assert_complete();
}

#[test]
fn the_page_of_configuration_files_is_the_help() {
    page::settle("configuration.md", &configuration::page());
}
