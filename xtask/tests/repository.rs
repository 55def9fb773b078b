//! The repository passes all checks: the same as `cargo run -p xtask -- all`.

#[test]
fn layers() {
    let problems = xtask::layers::check(&xtask::root()).unwrap();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn tidy() {
    let problems = xtask::tidy::check(&xtask::root()).unwrap();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
