//! The checks find the problems that they are for.

use std::fs;
use std::path::PathBuf;

use xtask::layers::{Dependency, table, violations};
use xtask::{changed, documents, metrics, tidy};

const TABLE: &str = "\
| layer | base | connection | copy | functions | research | apps |
|---|---|---|---|---|---|---|
| L4 | | | | | `tcp` | `unlade`, `unlade-lab` |
| L3 | | `balancer`, `backend` | | `worker` | | |
| L2 | `runtime` | | `client`, `service` | | | |
| L1 | `tls` | | | | | |
| L0 | `net`, `metrics` | | | | | |
";

fn judged(from: &str, to: &str, test_only: bool) -> usize {
    let arrow = Dependency { from: from.to_owned(), to: to.to_owned(), test_only };
    violations(&table(TABLE).unwrap(), &[arrow]).len()
}

#[test]
fn arrows_point_down() {
    assert_eq!(judged("connection/balancer", "base/net", false), 0);
    assert_eq!(judged("base/runtime", "base/tls", false), 0);
    assert_eq!(judged("base/tls", "base/runtime", false), 1);
    assert_eq!(judged("connection/balancer", "connection/backend", false), 1);
    assert_eq!(judged("base/net", "base/metrics", false), 1);
    assert_eq!(judged("base/net", "base/metrics", true), 0, "a test may look at a neighbour");
    assert_eq!(judged("base/net", "base/tls", true), 1);
    assert_eq!(judged("xtask", "base/net", false), 0, "what is outside stands above");
    assert_eq!(judged("base/net", "xtask", false), 1);
    assert!(table("# No table\n").is_err());
}

#[test]
fn products_stay_apart() {
    assert_eq!(judged("functions/worker", "copy/client", false), 0, "an interface");
    assert_eq!(judged("functions/worker", "copy/service", false), 1);
    assert_eq!(judged("connection/balancer", "copy/client", false), 1);
    assert_eq!(judged("connection/balancer", "copy/client", true), 1, "not in tests either");
    assert_eq!(judged("apps/unlade", "connection/balancer", false), 0);
    assert_eq!(judged("apps/unlade-lab", "functions/worker", false), 0);
}

#[test]
fn the_product_is_without_research() {
    let raised = TABLE.replace(
        "| L4 | | | | | `tcp` | `unlade`, `unlade-lab` |",
        "\
| L5 | | | | | | `unlade`, `unlade-lab` |
| L4 | | | | | `tcp` | |",
    );
    let layers = table(&raised).unwrap();
    let arrow = |from: &str| Dependency {
        from: from.to_owned(),
        to: "research/tcp".to_owned(),
        test_only: false,
    };
    assert!(violations(&layers, &[arrow("apps/unlade-lab")]).is_empty());
    assert_eq!(violations(&layers, &[arrow("apps/unlade")]).len(), 1);
}

/// A whole workspace with one forbidden dependency.
#[test]
fn a_violation_in_a_workspace_is_found() {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let package = |path: &str, name: &str, dependencies: &str| {
        let text = format!(
            "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\
             [dependencies]\n{dependencies}"
        );
        write(&format!("{path}/Cargo.toml"), &text);
        write(&format!("{path}/src/lib.rs"), "#![forbid(unsafe_code)]\n");
    };
    write("Cargo.toml", "[workspace]\nresolver = \"3\"\nmembers = [\"crates/*/*\"]\n");
    package("crates/base/net", "unlade-net", "");
    let up = "unlade-copy = { path = \"../../copy/client\" }\n";
    package("crates/copy/client", "unlade-copy", "unlade-net = { path = \"../../base/net\" }\n");
    package("crates/connection/balancer", "unlade-balancer", up);
    write(
        "ARCHITECTURE.md",
        "\
| layer | base | copy | connection |
| L2 | | | `balancer` |
| L1 | | `client` | |
| L0 | `net` | | |
",
    );
    let problems = xtask::layers::check(root.path()).unwrap();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].contains("`connection/balancer` depends on `copy/client`"), "{problems:?}");
    package("crates/connection/balancer", "unlade-balancer", "");
    assert_eq!(xtask::layers::check(root.path()).unwrap(), Vec::<String>::new());
}

#[test]
fn untidy_text_is_found() {
    let problems = |text: &str| tidy::check_text("a.rs", text);
    assert!(problems("fn main() {}\n").is_empty());
    assert!(problems("a \n")[0].starts_with("a.rs:1: ends in whitespace"));
    assert!(problems("a")[0].contains("line end"));
    assert!(problems("a\n\n")[0].contains("empty lines"));
    let mark = ["// TO", "DO: later\n"].concat();
    assert!(problems(&format!("x\n{mark}"))[0].starts_with("a.rs:2: contains a"));
    assert!(problems(&"x\n".repeat(800)).is_empty());
    assert!(problems(&"x\n".repeat(801))[0].contains("801 lines"));
    let tests =
        format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", "x\n".repeat(800), "y\n".repeat(90));
    assert!(problems(&tests).is_empty());
    assert!(tidy::check_text("a.md", &"x\n".repeat(2_000)).is_empty());
}

#[test]
fn missing_paths_are_found() {
    let root = tempfile::tempdir().unwrap();
    let source = root.path().join("crates/a/src");
    fs::create_dir_all(source.join("sub")).unwrap();
    fs::write(source.join("one.rs"), "").unwrap();
    fs::write(source.join("two.rs"), "").unwrap();
    let check = |row: &str| {
        documents::check_paths(
            root.path(),
            &format!("# A\n## Follow the data\n{row}\n## End\n| `x/y` |"),
        )
    };
    assert!(check("| thing | `a/src/one.rs` | `two.rs` → `word` | `a/src/sub/` |").is_empty());
    assert!(check("| `a/src/three.rs` |")[0].starts_with("ARCHITECTURE.md:3: `a/src/three.rs`"));
    assert_eq!(check("| `a/src/one.rs` | `three.rs` |").len(), 1);
    assert_eq!(check("| `two.rs` |").len(), 1, "a name alone has nowhere to be");
    assert_eq!(check("no table").len(), 1);
}

#[test]
fn promises_name_their_evidence() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("crates/a/src")).unwrap();
    let source = "fn it_holds() {}\nrefused! {\n    by_macro: x;\n}\n";
    fs::write(root.path().join("crates/a/src/t.rs"), source).unwrap();
    let check = |text: &str| documents::check_promises(root.path(), text);
    assert!(check("1. Holds: `a/src/t.rs::it_holds`.\n2. Later: *pending*.\n").is_empty());
    assert!(check("| 1 | Holds | `crates/a/src/t.rs::by_macro` |\n").is_empty());
    assert!(check("1. Long\n   item: `unlade bench migrate`.\n").is_empty());
    assert!(check("1. Holds.\n")[0].contains("names no test or bench"));
    assert!(check("1. Holds: `a/src/t.rs::it_fails`.\n")[0].contains("does not exist"));
    assert!(check("1. Holds: `a/src/u.rs`.\n")[0].contains("does not exist"));
    assert!(check("1. A *pending*\n3. B *pending*\n")[0].contains("should be 2"));
    assert_eq!(check("# Nothing\n").len(), 1);
}

#[test]
fn a_metric_that_no_code_counts_is_found() {
    let labels = "labels! {\n    /// Why.\n    Why: \"reason\" {\n        /// No room.\n        \
                  Full => \"full\",\n        Gone => \"gone\",\n    }\n}\n";
    let declared = metrics::declarations("label.rs", labels);
    let pair = |variant: &str| ("Why".to_owned(), variant.to_owned());
    assert_eq!(declared, [pair("Full"), pair("Gone")]);
    let gauges = "                $(Gauge::$variant => $name,)*\n    Open => \"unlade_open\",\n";
    let gauge = [("Gauge".to_owned(), "Open".to_owned())];
    assert_eq!(metrics::declarations("gauge.rs", gauges), gauge);
    let events = "    Refused(why: Why) => \"unlade_refused\",\n";
    let event = [("Event".to_owned(), "Refused".to_owned())];
    assert_eq!(metrics::declarations("event.rs", events), event);
    let stages = "    Hold => MIGRATION, \"hold\";\n";
    let stage = [("Stage".to_owned(), "Hold".to_owned())];
    assert_eq!(metrics::declarations("stage.rs", stages), stage);

    assert!(metrics::uncounted(&declared, &["add(Why::Full); add(Why::Gone)"]).is_empty());
    // Patterns, longer names and names within other names do not count.
    let matched = "match why { Why::Full | Why::Gone => 1, Why::Fuller => 2, NoWhy::Gone => 3 }";
    let problems = metrics::uncounted(&declared, &[matched]);
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[0].contains("no code counts Why::Full"));
}

#[test]
fn a_stale_list_of_arrows_and_a_stale_rust_version_are_found() {
    let line = |(from, to): &(&str, &str)| format!("- `{from}` → `{to}`: a reason.\n");
    let whole: String = xtask::layers::INTERFACES.iter().map(line).collect();
    assert!(documents::check_interfaces(&whole).is_empty());
    let short: String = xtask::layers::INTERFACES.iter().skip(1).map(line).collect();
    assert_eq!(documents::check_interfaces(&short).len(), 1);
    let wrong = format!("{whole}- `base` → `connection/balancer`: no.\n");
    assert!(
        documents::check_interfaces(&wrong)[0]
            .contains("does not allow `base` → `connection/balancer`")
    );

    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("Cargo.toml"), "[package]\nrust-version = \"1.92\"\n").unwrap();
    let check = |text: &str| documents::check_rust_version(root.path(), text);
    assert!(check("with Rust 1.92 or later").is_empty());
    assert_eq!(check("with Rust 1.89 or later").len(), 1);
}

#[test]
fn doc_lines_that_ask_are_counted() {
    let file = |asking: usize| {
        let lines = format!("{}{}", "/// What it is.\n".repeat(asking), "/// It is.\n".repeat(98));
        vec![("a.rs".to_owned(), lines)]
    };
    assert!(tidy::check_words(&file(2)).is_empty());
    let problems = tidy::check_words(&file(3));
    assert!(problems[0].contains("3 of 101") && problems[0].contains("a.rs:1"), "{problems:?}");
    let code = vec![("a.rs".to_owned(), "// What a comment in code says.\n".repeat(9))];
    assert!(tidy::check_words(&code).is_empty());
}

#[test]
fn a_changed_file_belongs_to_the_innermost_package() {
    let member = |name: &str, folder: &str| (name.to_owned(), PathBuf::from(folder));
    let members = [
        member("net", "crates/base/net"),
        member("lab", "apps/unlade-lab"),
        member("unlade", "apps/unlade"),
        member("worker", "crates/functions/worker"),
        member("helper", "crates/functions/worker/helper"),
    ];
    let files = [
        "apps/unlade-lab/src/main.rs",
        "crates/functions/worker/helper/src/lib.rs",
        "crates/base/net/src/seq.rs",
        "crates/base/net/Cargo.toml",
        "README.md",
    ];
    let names = changed::owners(&members, &files.map(PathBuf::from));
    assert_eq!(names, ["helper", "lab", "net"]);
}
