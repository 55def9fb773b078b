//! Explanations of C programs: call sites are named by file and line, and each has its reason.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use support::{ROOT, has, libraries, run};
use unlade_copy::explain::{self, Cause, ExplainError, Off, Report, Serving, Site, State};

// It has more than this test needs.
#[allow(dead_code)]
mod support;

/// A running program that waits for the end of its input. It is ended with this value.
struct Program {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start(source: &Path, options: &str, directory: &Path) -> Program {
        let program = directory.join("program");
        // The program looks for the library by its version.
        let library = libraries().join("libunlade_copier.so");
        std::os::unix::fs::symlink(library, directory.join("libunlade_copier.so.0")).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-g", "-O1", "-Wall", "-Wextra", "-Werror", "-I"]).arg(format!("{ROOT}/include"));
        cc.arg("-o").arg(&program).arg(source).arg("-L").arg(libraries());
        cc.arg("-lunlade_copier").arg(format!("-Wl,-rpath,{}", directory.display()));
        run(&mut cc);
        let mut command = Command::new(&program);
        command.env("COPIER_OPTIONS", options).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Program { child, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn report(&self) -> Report {
        explain::of_process(self.child.id()).unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The site in the line of a source that contains `text`.
fn site_at<'a>(report: &'a Report, source: &Path, text: &str) -> &'a Site {
    let lines = fs::read_to_string(source).unwrap();
    let line = lines.lines().position(|line| line.contains(text)).unwrap() + 1;
    let place = format!("{}:{line}", source.display());
    // Long paths are cut at their start.
    let found = report.sites.iter().find(|site| place.ends_with(&site.place()));
    found.unwrap_or_else(|| panic!("no {place} in {:#?}", report.sites))
}

#[test]
fn each_site_of_a_program_has_its_reason() {
    if !has("cc") {
        println!("skipped: no cc");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let source = Path::new(ROOT).join("examples/sites.c");
    let mut program = Program::start(&source, "", directory.path());
    assert_eq!(program.line(), "ready");
    let report = program.report();
    assert_eq!((report.pid, report.off, report.clients), (program.child.id(), None, 1));
    assert_eq!((report.unsettled, report.unshown), (0, 0));

    let long = site_at(&report, &source, "amemcpy(to, from, LONG)");
    assert_eq!((long.view.state, long.serving), (State::Queued, Serving::Threads));
    assert!(matches!(long.view.cause, Cause::Pays | Cause::Asleep), "{:?}", long.view);
    assert!(long.reason().contains("queue"), "{}", long.reason());
    assert!(long.counts.queued > 0 && long.view.queued_ns() < long.view.inline.median());
    // The program slept for 5 ms.
    assert!(long.view.window_ns().unwrap() >= 5e6, "{:?}", long.view);

    let used = site_at(&report, &source, "amemcpy(to, from, MEDIUM)");
    assert_eq!((used.view.state, used.view.cause), (State::AtOnce, Cause::Forecast));
    assert!(used.reason().contains(" is shorter than the "), "{}", used.reason());
    assert_eq!((used.counts.queued, used.queued_part()), (0, 0.0));
    assert!(used.view.window_ns().unwrap() < used.view.forecast_ns, "{:?}", used.view);

    let short = site_at(&report, &source, "amemcpy(to, from, SHORT)");
    assert_eq!((short.view.state, short.view.cause), (State::AtOnce, Cause::Short));
    assert!(short.reason().contains("fewer than 4096 bytes"), "{}", short.reason());
    assert!(short.counts.at_once > 0);

    let changes = report.changes.iter().filter(|it| report.site_of(it) == Some(long));
    let states: Vec<(State, State)> = changes.map(|change| (change.from, change.to)).collect();
    assert_eq!(states.first().map(|(from, _)| *from), Some(State::NotLearnt));
    assert_eq!(states.last().map(|(_, to)| *to), Some(State::Queued));
    assert!(states.windows(2).all(|pair| pair[0].1 == pair[1].0), "{states:?}");
}

#[test]
fn a_program_without_a_service_says_so() {
    if !has("cc") {
        println!("skipped: no cc");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let source = Path::new(ROOT).join("examples/sites.c");
    let mut program = Program::start(&source, "enabled=0", directory.path());
    assert_eq!(program.line(), "ready");
    let report = program.report();
    assert_eq!((report.off, report.sites.len()), (Some(Off::Disabled), 0));
}

/// A child that copies nothing, and one that does: it has a service of its own.
const FORKING: &str = r#"
#include <stdio.h>
#include <unistd.h>
#include <sys/wait.h>
#include <unlade/copier.h>
static char from[8192], to[8192];
static int copy(void) { amemcpy(to, from, sizeof(to)); return csync(to, sizeof(to)); }
int main(void)
{
    int input[2];
    pid_t children[2];
    if (copy() || pipe(input))
        return 1;
    for (int i = 0; i < 2; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            char end;
            if (i == 1 && copy())
                return 1;
            close(input[1]);
            printf("%d\n", (int)getpid());
            fflush(stdout);
            return read(input[0], &end, 1) == 0 ? 0 : 1;
        }
    }
    getchar();
    return 0;
}
"#;

#[test]
fn a_child_is_not_explained_by_the_table_of_its_parent() {
    if !has("cc") {
        println!("skipped: no cc");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("forking.c");
    fs::write(&source, FORKING).unwrap();
    let mut program = Program::start(&source, "", directory.path());
    let children: [u32; 2] = [(); 2].map(|()| program.line().parse().unwrap());
    let of = children.map(explain::of_process);
    let of_parent = program.report();
    assert_eq!(of_parent.sites.len(), 1, "the copy of a child is not in it");
    let heir = of.iter().find_map(|it| it.as_ref().err()).expect("one child has no table");
    let parent = program.child.id();
    assert!(matches!(heir, ExplainError::Child { parent: it, .. } if *it == parent), "{heir}");
    let own = of.iter().find_map(|it| it.as_ref().ok()).expect("one child has a table");
    assert!(children.contains(&own.pid));
    let place = |report: &Report| report.sites.first().map(Site::place);
    assert_eq!(place(own), place(&of_parent));
}
