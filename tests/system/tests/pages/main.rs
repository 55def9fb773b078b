//! The pages of the documentation do what they say: README.md and the guides run block by block, and
//! print what the pages show, in form (without numbers, times, sizes, addresses, paths and hashes).
//! A block that cannot run here has a comment above it, `<!-- not run: REASON -->`. Of these blocks,
//! and of commands in the text, every sub-command and option exists.

mod form;
mod help;
mod markdown;
mod room;

use form::form;
use help::{Helps, commands};
use markdown::{Block, Kind, blocks, inline};
use room::Room;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use system_tests::{needs, needs_functions, turn};

/// Longest time that all commands of one page may take.
const PAGE_TIME: Duration = Duration::from_secs(300);
/// Pages whose blocks of commands are run.
const RUN: [&str; 5] = [
    "README.md",
    "docs/connection/guide.md",
    "docs/copy/guide.md",
    "docs/nic/guide.md",
    "docs/functions/guide.md",
];
/// First words of commands that continuous integration runs itself.
const BUILDS: [&str; 2] = ["make ", "scripts/setup"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the repository").to_owned()
}

fn read(page: &str) -> String {
    fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// Every page: those beside README.md, and those below `docs`.
fn pages() -> Vec<String> {
    let mut found: Vec<String> =
        ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(str::to_owned).to_vec();
    let mut folders = vec!["docs".to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).expect("a folder").flatten() {
            let name = format!("{folder}/{}", entry.file_name().to_string_lossy());
            match entry.path().is_dir() {
                true => folders.push(name),
                false if name.ends_with(".md") => found.push(name),
                false => {}
            }
        }
    }
    found.sort();
    found
}

fn is_build(block: &Block) -> bool {
    let lines = block.text.lines();
    let mut commands = lines.filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    commands.all(|line| BUILDS.iter().any(|word| line.starts_with(word)))
}

/// Runs a page, and compares the output of each block with the one that the page shows.
fn run(page: &str, setup: &str, room: &Room) {
    let all = blocks(page, &read(page));
    let is_run = |block: &&Block| match block.kind {
        Kind::Commands { .. } => !is_build(block),
        Kind::File(_) => true,
        Kind::NotRun(_) | Kind::Other => false,
    };
    let chosen: Vec<Block> = all.iter().filter(is_run).cloned().collect();
    let outcomes = room.play(page, setup, &chosen, PAGE_TIME);
    let mut problems = Vec::new();
    for (block, outcome) in chosen.iter().zip(&outcomes) {
        let place = format!("{page}:{}", block.line);
        if !outcome.failed.is_empty() {
            problems.push(format!("{place}: failed: {:?}\n{}", outcome.failed, outcome.errors));
        }
        let Kind::Commands { output: Some(shown) } = &block.kind else { continue };
        let (wanted, found) = (form(shown), form(&outcome.output));
        if wanted != found {
            problems.push(format!(
                "{place}: prints\n{}\nand not, as the page shows,\n{shown}form of the output {found:#?}\n\
                 form of the page {wanted:#?}\nerrors: {}",
                outcome.output, outcome.errors
            ));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    let left_out = all.iter().filter(|block| matches!(block.kind, Kind::NotRun(_))).count();
    let commands = chosen.iter().filter(|block| matches!(block.kind, Kind::Commands { .. }));
    println!("{page}: {} blocks run, {left_out} not run", commands.count());
}

#[test]
fn the_readme_runs() {
    needs!(
        "unshare",
        "bash",
        "ip",
        "setsid",
        "curl",
        "sha256sum",
        "openssl",
        "python3",
        "cc",
        "nginx",
        "haproxy"
    );
    needs_functions!();
    let _turn = turn();
    let room = Room::new(&root());
    room.with_cargo();
    run("README.md", "", &room);
}

/// The interface and the addresses of the guide are those of this host; a listener's certificate
/// and the objects are the operator's.
#[test]
fn the_connection_guide_runs() {
    needs!("unshare", "bash", "ip", "setsid", "curl", "sha256sum", "openssl", "sysctl");
    let _turn = turn();
    let setup = "ip link add eth0 type veth peer name far0
        ip link set eth0 up
        ip address add 10.0.0.21/24 dev eth0
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \
            -subj /CN=objects.example -keyout objects.key -out objects.crt 2>/dev/null";
    run("docs/connection/guide.md", setup, &Room::new(&root()));
}

#[test]
fn the_copy_guide_runs() {
    needs!("unshare", "bash", "ip", "curl", "cc");
    let _turn = turn();
    let room = Room::new(&root());
    room.with_cargo();
    run("docs/copy/guide.md", "", &room);
}

/// The interface `eth1` and the authority of the far end are those of this host.
#[test]
fn the_nic_guide_runs() {
    needs!("unshare", "bash", "ip", "curl", "openssl", "python3", "sysctl");
    let _turn = turn();
    let setup = "ip link add eth1 type veth peer name far1
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \
            -subj /CN=authority -keyout ca.key -out ca.crt 2>/dev/null";
    run("docs/nic/guide.md", setup, &Room::new(&root()));
}

/// The store's authority and credentials are the operator's.
#[test]
fn the_functions_guide_runs() {
    needs!("unshare", "bash", "ip", "curl", "openssl", "python3");
    needs_functions!();
    let _turn = turn();
    let setup = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \
            -subj /CN=minio -keyout minio.key -out /etc/unlade/minio-ca.pem 2>/dev/null
        printf '[default]\\naws_access_key_id = A\\naws_secret_access_key = B\\n' \
            >/etc/unlade/store-credentials";
    run("docs/functions/guide.md", setup, &Room::new(&root()));
}

/// Needs no root: nothing but `--help` is run.
#[test]
fn commands_of_the_pages_exist() {
    let mut helps = Helps::default();
    let (mut problems, mut not_run) = (Vec::new(), 0);
    for page in pages() {
        let text = read(&page);
        for block in blocks(&page, &text) {
            let place = format!("{page}:{}", block.line);
            match block.kind {
                Kind::Commands { .. } if !RUN.contains(&page.as_str()) && !is_build(&block) => {
                    problems.push(format!(
                        "{place}: is not run; add the page to the pages that are run, or a comment \
                         `<!-- not run: REASON -->` above the block"
                    ));
                }
                Kind::Commands { .. } | Kind::NotRun(_) => {
                    not_run += usize::from(matches!(block.kind, Kind::NotRun(_)));
                    for command in commands(&block.text) {
                        let found = helps.problems(&command);
                        problems.extend(found.iter().map(|problem| format!("{place}: {problem}")));
                    }
                }
                Kind::File(_) | Kind::Other => {}
            }
        }
        for span in inline(&text).iter().filter(|span| span.starts_with("unlade")) {
            for command in commands(span) {
                let found = helps.problems(&command);
                problems.extend(found.iter().map(|problem| format!("{page}: `{span}`: {problem}")));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    println!("{not_run} blocks are not run; their commands exist");
}
