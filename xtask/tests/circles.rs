//! The check finds circles of imports between files, and nothing else.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use xtask::circles;

/// A crate with these files below `src/`.
fn tree(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = root.path().join("src").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

fn check(root: &Path) -> Vec<String> {
    circles::check(root, &[root.join("src/lib.rs")]).unwrap()
}

/// The files of the circles of a crate.
fn found(files: &[(&str, &str)]) -> Vec<String> {
    let root = tree(files);
    let between = |line: String| {
        let (_, after) = line.split_once(": ").unwrap();
        after.split_once(" import from each other").unwrap().0.to_owned()
    };
    check(root.path()).into_iter().map(between).collect()
}

const NONE: [&str; 0] = [];

#[test]
fn a_circle_is_found_with_its_names() {
    let root = tree(&[
        ("lib.rs", "mod a;\nmod b;\nmod c;\n"),
        ("a.rs", "use crate::b::{B, other};\npub struct A(B);\npub fn f() { other() }\n"),
        ("b.rs", "pub struct B;\npub fn other() { crate::c::g() }\n"),
        ("c.rs", "pub fn g() { let _ = crate::a::f; }\n"),
    ]);
    let problems = check(root.path());
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0].starts_with(
            "src: a.rs b.rs c.rs import from each other: `a.rs` takes B, other from `b.rs`; \
             `b.rs` takes g from `c.rs`; `c.rs` takes f from `a.rs`; move"
        ),
        "{problems:?}"
    );
}

#[test]
fn imports_in_one_direction_are_no_circle() {
    let files = [
        ("lib.rs", "mod a;\nmod b;\npub use a::A;\npub fn of_all() -> (A, b::B) { todo!() }\n"),
        ("a.rs", "use crate::b::B;\npub struct A(B);\n"),
        ("b.rs", "use std::rc::Rc;\npub struct B(Rc<u8>);\n"),
    ];
    assert_eq!(found(&files), NONE);
}

#[test]
fn declarations_and_re_exports_are_no_imports() {
    let files = [
        ("lib.rs", "mod a;\npub use a::A;\npub(crate) use a::*;\n"),
        ("a/mod.rs", "mod b;\npub use b::B;\npub struct A;\n"),
        ("a/b.rs", "pub struct B(super::A);\n"),
    ];
    assert_eq!(found(&files), NONE);
}

#[test]
fn re_exports_globs_and_renames_lead_to_the_file_of_the_item() {
    let through = |lib: &str, name: &str| {
        found(&[
            ("lib.rs", lib),
            ("a.rs", &format!("use crate::{name};\npub struct A;\n")),
            ("b.rs", "use crate::A;\npub struct B(A);\n"),
        ])
    };
    assert_eq!(through("mod a;\nmod b;\npub use a::A;\npub use b::B;\n", "B"), ["a.rs b.rs"]);
    assert_eq!(through("mod a;\nmod b;\npub use a::*;\npub use b::*;\n", "B"), ["a.rs b.rs"]);
    let renamed = "mod a;\nmod b;\npub(crate) use a::A;\npub(crate) use b::B as Other;\n";
    assert_eq!(through(renamed, "Other"), ["a.rs b.rs"]);
    assert_eq!(through("mod a;\nmod b;\npub use a::A;\npub use std::u8 as B;\n", "B"), NONE);
}

#[test]
fn a_parent_and_its_child_are_a_circle() {
    let parent = "mod b;\nuse b::B;\npub struct A(B);\npub const MAX: u8 = 1;\n";
    for child in [
        "use super::MAX;\npub struct B([u8; MAX as usize]);\n",
        "use super::*;\npub struct B([u8; MAX as usize]);\n",
        "pub struct B;\nimpl B { fn f(&self) -> u8 { super::MAX } }\n",
        "pub struct B;\nmod inner { pub fn f() -> u8 { super::super::MAX } }\n",
        "pub struct B;\nfn f() { println!(\"{}\", crate::a::MAX) }\n",
        "pub struct B;\nfn f() { use super::MAX as LIMIT; let _ = LIMIT; }\n",
        "pub struct B;\n#[serde(default = \"super::MAX\")]\nstruct C;\n",
    ] {
        let files = [("lib.rs", "mod a;\n"), ("a.rs", parent), ("a/b.rs", child)];
        assert_eq!(found(&files), ["a/b.rs a.rs"], "{child}");
    }
    let files = [("lib.rs", "mod a;\n"), ("a.rs", parent), ("a/b.rs", "pub struct B;\n")];
    assert_eq!(found(&files), NONE);
}

#[test]
fn items_of_macros_belong_to_the_file_of_the_call() {
    let files = [
        ("lib.rs", "mod a;\nmod b;\n"),
        ("a.rs", "make! { pub enum A {} }\nuse crate::b::B;\n"),
        ("b.rs", "pub struct B(crate::a::A);\n"),
    ];
    assert_eq!(found(&files), ["a.rs b.rs"]);
}

#[test]
fn tests_are_left_out() {
    let files = [
        ("lib.rs", "mod a;\nmod b;\n#[cfg(test)]\nmod tests;\n"),
        ("a.rs", "use crate::b::B;\npub struct A(B);\n"),
        (
            "b.rs",
            "#[cfg(test)]\nuse crate::a::A;\npub struct B;\n\
             #[cfg(all(test, unix))]\nmod tests { use crate::a::A; }\n\
             impl B { #[cfg(test)] fn f(a: crate::a::A) {} }\n",
        ),
    ];
    assert_eq!(found(&files), NONE);
}

#[test]
fn a_circle_with_a_reason_is_allowed_and_a_stale_line_is_a_problem() {
    let root = tree(&[
        ("lib.rs", "mod a;\nmod b;\n"),
        ("a.rs", "use crate::b::B;\npub struct A(B);\n"),
        ("b.rs", "pub struct B;\nfn f(_: crate::a::A) {}\n"),
    ]);
    let allow = |list: &str| {
        fs::create_dir_all(root.path().join("xtask")).unwrap();
        fs::write(root.path().join("xtask/circles.txt"), list).unwrap();
        circles::check(root.path(), &[root.path().join("src/lib.rs")])
    };
    assert_eq!(allow("").unwrap().len(), 1);
    assert_eq!(allow("# Reasons\nsrc: a.rs b.rs: a tree of kinds\n").unwrap(), NONE);
    let stale = allow("src: a.rs b.rs: a tree\n\nsrc: a.rs lib.rs: was there\n").unwrap();
    assert_eq!(stale.len(), 1, "{stale:?}");
    assert!(stale[0].starts_with("xtask/circles.txt:3: "), "{stale:?}");
    let larger = allow("src: a.rs b.rs lib.rs: not that one\n").unwrap();
    assert_eq!(larger.len(), 2, "{larger:?}");
    assert!(allow("src: a.rs b.rs\n").is_err(), "no reason");
    assert!(allow("src: a.rs: alone\n").is_err(), "one file");
}

#[test]
fn a_file_without_syntax_is_an_error() {
    let root = tree(&[("lib.rs", "mod a;\n"), ("a.rs", "pub struct {\n")]);
    let roots = [PathBuf::from(root.path()).join("src/lib.rs")];
    let error = circles::check(root.path(), &roots).unwrap_err();
    assert!(format!("{error:#}").contains("src/a.rs"), "{error:#}");
    let root = tree(&[("lib.rs", "mod absent;\n")]);
    assert!(circles::check(root.path(), &[root.path().join("src/lib.rs")]).is_err());
}
