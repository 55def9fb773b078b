//! The checks find the problems that they are for.

use std::fs;
use std::path::PathBuf;

use xtask::layers::{Dependency, table, violations};
use xtask::{changed, documents, driven, links, metrics, promises, readmes, tidy};

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
            "docs/a/code.md",
            &format!("# A\n## Follow the data\n{row}\n## End\n| `x/y` |"),
        )
    };
    assert!(check("| thing | `a/src/one.rs` | `two.rs` → `word` | `a/src/sub/` |").is_empty());
    assert!(check("| `a/src/three.rs` |")[0].starts_with("docs/a/code.md:3: `a/src/three.rs`"));
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
    let check = |rows: &str| {
        let text = format!("# A\n## B\n| n | promise | shown by |\n|---|---|---|\n{rows}");
        promises::check_promises(root.path(), "s.md", &text)
    };
    let holds = "| 1 | Holds | `a/src/t.rs::it_holds` |\n";
    assert!(check(holds).is_empty());
    assert!(check("| 1 | Holds | `crates/a/src/t.rs::by_macro` |\n").is_empty());
    assert!(check("| 1 | Holds | `unlade bench migrate` |\n").is_empty());
    assert!(check("| 1 | Holds | |\n")[0].starts_with("s.md:5: promise 1 names no test or bench"));
    assert_eq!(check("| 1 | As in `a/src/t.rs` | |\n").len(), 1, "the last column has evidence");
    assert!(check("| 1 | A | `a/src/t.rs::it_fails` |\n")[0].contains("does not exist"));
    assert!(check("| 1 | A | `a/src/u.rs` |\n")[0].contains("does not exist"));
    assert!(check("| 1 | A | `a/src/t.rs`; *pending* |\n")[0].contains("is pending"));
    assert_eq!(check("| 1 | A | *pending* |\n").len(), 2);
    assert!(check("| 3 | A | `a/src/t.rs` |\n")[0].contains("promise 3 should be 1"));
    let number = check(&format!("{holds}| 1a | A | `a/src/t.rs` |\n"));
    assert!(number[0].contains("promise 1a should be 2"), "{number:?}");
    let limits = format!("{holds}\n| limit | key |\n|---|---|\n| bytes | `k` |\n");
    assert!(check(&limits).is_empty(), "a table of something else");
    let missed = format!("{holds}## Not promised\n- Speed.\n1. Peace.\n| 7 | A | |\n");
    assert!(check(&missed).is_empty(), "{:?}", check(&missed));
    assert_eq!(check(&format!("{missed}## C\n| 7 | A | `a/src/t.rs` |\n")).len(), 1);
    assert_eq!(promises::check_promises(root.path(), "s.md", "# Nothing\n").len(), 1);
}

#[test]
fn links_to_nothing_are_found() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("docs/a")).unwrap();
    let page = "# A page\n## What `is` here, and why\n## Again\n## Again\n```\n# code\n```\n";
    fs::write(root.path().join("docs/a/page.md"), page).unwrap();
    fs::write(root.path().join("README.md"), "").unwrap();
    let check = |text: &str| links::check_links(root.path(), "docs/a/other.md", text);
    let right = "[a](page.md) [b](../../README.md), [`c`](page.md#what-is-here-and-why)\n\
                 [d](page.md#again-1) [e](https://e.example/#x) [f](#own) [g](../a)\n# Own\n\
                 `[h](missing.md)` and `code over\ntwo [i](missing.md) lines`\n\n\
                 ```\n[j](missing.md)\n```\n";
    assert!(check(right).is_empty(), "{:?}", check(right));
    let missing = check("\n[a](missing.md)\n");
    assert!(missing[0].starts_with("docs/a/other.md:2: `missing.md` leads to no file"));
    assert_eq!(check("[a](page.md#nowhere)").len(), 1);
    assert_eq!(check("[a](page.md#code)").len(), 1, "code has no headings");
    assert_eq!(check("[a](page.md#again-2)").len(), 1);
    assert_eq!(check("[a](#nowhere)").len(), 1);
    assert_eq!(check("[`a`](b.md) [c](d.md)").len(), 2);
}

#[test]
fn pages_that_the_book_does_not_list_are_found() {
    let pages = ["docs/SUMMARY.md", "docs/a.md", "docs/b/c.md"].map(str::to_owned);
    let check = |text: &str| links::check_summary(text, &pages);
    assert!(check("- [A](a.md)\n  - [C](./b/c.md)\n").is_empty());
    let problems = check("- [A](a.md)\n");
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].contains("does not list docs/b/c.md"), "{problems:?}");
}

#[test]
fn crates_without_a_map_of_their_files_are_found() {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    for name in ["crates/a/b", "apps/c", "research/d"] {
        write(&format!("{name}/Cargo.toml"), "");
        write(&format!("{name}/src/lib.rs"), "");
    }
    let check = || readmes::check(root.path()).unwrap();
    let problems = check();
    assert_eq!(problems.len(), 3, "{problems:?}");
    assert!(problems[0].starts_with("crates/a/b/README.md: is missing"), "{problems:?}");
    for name in ["crates/a/b", "apps/c", "research/d"] {
        write(&format!("{name}/README.md"), "# B\n`one.rs` and `src/two.rs`, `sub/x.rs`\n");
    }
    assert!(check().is_empty(), "{:?}", check());
    for name in ["one.rs", "two.rs", "sub/x.rs", "sub/y.rs", "tests.rs"] {
        write(&format!("crates/a/b/src/{name}"), "");
    }
    assert!(check().is_empty(), "{:?}", check());
    write("crates/a/b/src/three.rs", "");
    write("crates/a/b/src/more/x.rs", "");
    let problems = check();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[0].contains("does not name src/more"), "{problems:?}");
}

#[test]
fn long_pages_are_found() {
    let root = tempfile::tempdir().unwrap();
    let pages = [
        ("README.md", 10_240),
        ("ARCHITECTURE.md", 15_360),
        ("docs/nic/nvme.md", 15_360),
        ("docs/functions/sandbox.md", 15_360),
        ("docs/copy/design.md", 15_360),
    ];
    let check = || documents::check_sizes(root.path(), &["copy".to_owned()]);
    assert_eq!(check().len(), pages.len(), "all are missing");
    for (name, most) in pages {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x".repeat(most)).unwrap();
    }
    assert!(check().is_empty(), "{:?}", check());
    for (name, most) in pages {
        fs::write(root.path().join(name), "x".repeat(most + 1)).unwrap();
    }
    let problems = check();
    assert_eq!(problems.len(), pages.len(), "{problems:?}");
    assert!(problems[0].starts_with("README.md: 10241 bytes exceed 10240"), "{problems:?}");
}

/// The check of all documents runs each of the others.
#[test]
fn a_product_without_its_pages_is_found() {
    let root = tempfile::tempdir().unwrap();
    for folder in ["crates/base", "crates/copy"] {
        fs::create_dir_all(root.path().join(folder)).unwrap();
    }
    let problems = documents::check(root.path()).unwrap();
    for page in [
        "ARCHITECTURE.md",
        "README.md",
        "SECURITY.md",
        "docs/SUMMARY.md",
        "docs/copy/code.md",
        "docs/copy/design.md",
        "docs/specification/base.md",
        "docs/specification/copy.md",
        "research/README.md",
    ] {
        let named = format!("{page}: is missing; write it");
        let times = problems.iter().filter(|problem| **problem == named).count();
        assert_eq!(times, 1, "{named}: {problems:?}");
    }
    assert!(!problems.iter().any(|problem| problem.contains("base/code.md")), "{problems:?}");
    let code = "# A\n## Follow the data\n| `copy/src/gone.rs` |\n";
    let promises = "| n | promise | shown by |\n|---|---|---|\n| 1 | A | |\n";
    fs::create_dir_all(root.path().join("docs/copy")).unwrap();
    fs::create_dir_all(root.path().join("docs/specification")).unwrap();
    fs::write(root.path().join("docs/copy/code.md"), code).unwrap();
    fs::write(root.path().join("docs/specification/copy.md"), promises).unwrap();
    fs::write(root.path().join("docs/SUMMARY.md"), "- [Code](copy/gone.md)\n").unwrap();
    fs::create_dir_all(root.path().join("apps/a")).unwrap();
    fs::write(root.path().join("apps/a/Cargo.toml"), "").unwrap();
    let problems = documents::check(root.path()).unwrap();
    let starts = |with: &str| problems.iter().any(|problem| problem.starts_with(with));
    assert!(starts("docs/copy/code.md:3: `copy/src/gone.rs`"), "{problems:?}");
    assert!(starts("docs/specification/copy.md:3: promise 1 names no"), "{problems:?}");
    assert!(starts("docs/SUMMARY.md:1: `copy/gone.md` leads to no file"), "{problems:?}");
    assert!(starts("docs/SUMMARY.md: does not list docs/copy/code.md"), "{problems:?}");
    assert!(starts("apps/a/README.md: is missing"), "{problems:?}");
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

const METRICS_PAGE: &str = "\
| metric | type | unit | label | meaning |
|---|---|---|---|---|
| `unlade_a_total` | counter |  | `by` | A. |
| `unlade_b` | gauge |  |  | B. |
| `unlade_c_seconds` | histogram | seconds | `stage` | C. |
| `unlade_d_seconds` | histogram | seconds | `tenant`, `function` | D. |
| `unlade_build_info` | info |  | `version` | The version. |

`by` of `unlade_a_total`, `unlade_other_total`:

- `x`: X.
- `y`

`stage` of `unlade_c_seconds`:

- `all`: All.
";

#[test]
fn metrics_that_no_test_drives_are_named() {
    let declared = driven::declared(METRICS_PAGE);
    let names: Vec<&str> = declared.iter().map(String::as_str).collect();
    let all = [
        "unlade_a_total{by=\"x\"}",
        "unlade_a_total{by=\"y\"}",
        "unlade_b",
        "unlade_c_seconds_count{stage=\"all\"}",
        "unlade_d_seconds_count",
    ];
    assert_eq!(names, all);
    let seen = "unlade unlade_a_total{tenant=\"t\",by=\"x\"}\nunlade unlade_b\n\
                limits-0af unlade_c_seconds_count{stage=\"all\"}\n\
                unlade unlade_d_seconds_count{tenant=\"t\",function=\"f\"}\n\
                openmetrics-0af unlade_a_total{by=\"y\"}\n";
    let problems = driven::undriven(&declared, "", seen);
    assert!(problems.len() == 1 && problems[0].contains(all[1]), "{problems:?}");
    let excuse = format!("# Comment\n{}: needs a device\n", all[1]);
    assert!(driven::undriven(&declared, &excuse, seen).is_empty());
    // An exception that is not true any more, one of no metric, one without a reason.
    let stale = format!("{excuse}unlade_b: cannot be\nunlade_z: gone\nunlade_b\n");
    assert_eq!(driven::undriven(&declared, &stale, seen).len(), 3);
}
