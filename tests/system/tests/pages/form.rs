//! The form of an output: its words and lines, without numbers, times, sizes, addresses, paths and
//! hashes.

/// Units that belong to the number before them.
const UNITS: [&str; 14] =
    ["B", "KiB", "MiB", "GiB", "TiB", "ns", "us", "µs", "ms", "s", "min", "h", "KB", "MB"];
/// Shortest run of hexadecimal digits that is a hash.
const HASH_CHARS: usize = 12;
const UUID_CHARS: usize = 36;

/// Returns the form of the lines of `text`.
pub fn form(text: &str) -> Vec<String> {
    text.trim_end().lines().map(line_form).collect()
}

fn line_form(line: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        let unit = word.trim_end_matches([',', '.', ';', ')', ':']);
        // `64.0 MiB` and `64MiB` are the same size.
        match words.last_mut() {
            Some(last) if last.ends_with('N') && UNITS.contains(&unit) => {
                last.push_str(&word[unit.len()..]);
            }
            _ => words.push(word_form(word)),
        }
    }
    words.join(" ")
}

fn word_form(word: &str) -> String {
    let open = word.len() - word.trim_start_matches(['(', '"', '\'', '`']).len();
    let (open, rest) = word.split_at(open);
    if rest.len() > 1 && rest.starts_with('/') {
        let end = rest.trim_end_matches([')', '"', '\'', '`', ',', '.', ';', ':']).len();
        return format!("{open}P{}", &rest[end..]);
    }
    let mut out = open.to_owned();
    let mut run = String::new();
    // A run is what belongs together: letters, digits, dots between digits, and a UUID.
    let mut uuid_left = 0;
    let mut characters = rest.char_indices().peekable();
    while let Some((at, c)) = characters.next() {
        if run.is_empty() && is_uuid(&rest[at..]) {
            uuid_left = UUID_CHARS;
        }
        if uuid_left > 0 {
            uuid_left -= 1;
            run.push(c);
            continue;
        }
        let next_is_digit = characters.peek().is_some_and(|(_, next)| next.is_ascii_digit());
        let after_digit = run.ends_with(|last: char| last.is_ascii_digit());
        if c.is_alphanumeric() || c == '_' || (c == '.' && after_digit && next_is_digit) {
            run.push(c);
        } else {
            out.push_str(&run_form(&run));
            run.clear();
            out.push(c);
        }
    }
    out + &run_form(&run)
}

/// Returns true if `text` begins with a UUID.
fn is_uuid(text: &str) -> bool {
    let fits = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() >= UUID_CHARS && text.bytes().take(UUID_CHARS).enumerate().all(fits)
}

fn run_form(run: &str) -> String {
    let is_hex = |c: char| c.is_ascii_hexdigit() && !c.is_ascii_uppercase();
    if run.len() >= HASH_CHARS && run.split('-').all(|group| group.chars().all(is_hex)) {
        return "H".to_owned();
    }
    let letters = run.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    match letters {
        _ if letters.len() == run.len() => run.to_owned(),
        "" => "N".to_owned(),
        unit if UNITS.contains(&unit) => "N".to_owned(),
        _ => format!("N{letters}"),
    }
}

#[test]
fn numbers_addresses_paths_and_hashes_have_no_value() {
    let same = |a: &str, b: &str| assert_eq!(form(a), form(b), "{a} and {b}");
    let differ = |a: &str, b: &str| assert_ne!(form(a), form(b), "{a} and {b}");
    same("a_total 1048805", "a_total 7");
    differ("a_total 1048805", "b_total 1048805");
    same("http://10.207.0.1:80  x", "http://10.3.0.1:8080 x");
    same("took 1.5 ms (3 GiB/s)", "took 12s (3.25 GiB/s)");
    same("files in /run/a/b", "files in /tmp/x");
    same("8b180bbdba67d57828da8d1f3d30  -", "deadbeef0123  -");
    same(
        "uuid:ae155ca4-99fe-892f-85eb-e33cac3c8a77, x",
        "uuid:0a155ca4-a9fe-b92f-c5eb-033cac3c8a77, x",
    );
    same("1: 1GiB, blocks of 4096", "1: 512 MiB, blocks of 512");
    same("{\"bytes\": 70000}", "{\"bytes\": 5}");
    differ("s1 up", "s2 up");
    differ("one\ntwo", "one two");
    differ("deployed", "failed");
}
