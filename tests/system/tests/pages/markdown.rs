//! Fenced blocks and inline commands of a Markdown page.

/// Beginning and end of a comment above a block that the test does not run.
const NOT_RUN: (&str, &str) = ("<!-- not run: ", " -->");

/// A fenced block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Line of the opening fence, from 1.
    pub line: usize,
    pub kind: Kind,
    /// The text without the indentation of the fence.
    pub text: String,
}

/// The kind of a fenced block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Shell commands, and the output that the page shows below them.
    Commands { output: Option<String> },
    /// Shell commands that the test does not run, with the reason.
    NotRun(String),
    /// A file, with the last name of a `.toml` file in the paragraph above.
    File(String),
    /// Anything else.
    Other,
}

/// Returns the blocks of a page in order.
///
/// # Panics
/// A fence is not closed, or marks shell commands with another word than `sh`.
pub fn blocks(page: &str, text: &str) -> Vec<Block> {
    let lines: Vec<&str> = text.lines().collect();
    let mut blocks: Vec<Block> = Vec::new();
    let mut number = 0;
    // Line after the last block of commands, if only empty lines have followed it.
    let mut below: Option<usize> = None;
    while number < lines.len() {
        let line = lines[number];
        let Some(info) = line.trim_start().strip_prefix("```") else {
            below = below.filter(|_| line.trim().is_empty());
            number += 1;
            continue;
        };
        let open = number;
        let indent = line.len() - line.trim_start().len();
        let close = (open + 1..lines.len()).find(|at| lines[*at].trim() == "```");
        let close = close.unwrap_or_else(|| panic!("{page}:{}: no closing fence", open + 1));
        let body = lines[open + 1..close].iter().map(|line| {
            let spaces = line.len() - line.trim_start().len();
            format!("{}\n", &line[spaces.min(indent)..])
        });
        let body: String = body.collect();
        let kind = match info.trim() {
            "sh" => match reason(&lines[..open]) {
                Some(reason) => Kind::NotRun(reason),
                None => Kind::Commands { output: None },
            },
            "bash" | "shell" | "console" => {
                panic!("{page}:{}: mark shell commands with sh", open + 1)
            }
            "toml" => file_name(&lines[..open]).map_or(Kind::Other, Kind::File),
            _ => Kind::Other,
        };
        let is_output = info.trim().is_empty() && below.is_some();
        below = None;
        match (&kind, blocks.last_mut()) {
            (_, Some(Block { kind: Kind::Commands { output }, .. })) if is_output => {
                *output = Some(body);
            }
            _ => {
                below = matches!(kind, Kind::Commands { .. }).then_some(close);
                blocks.push(Block { line: open + 1, kind, text: body });
            }
        }
        number = close + 1;
    }
    blocks
}

/// The reason in a comment directly above a block.
fn reason(above: &[&str]) -> Option<String> {
    let line = above.iter().rev().find(|line| !line.trim().is_empty())?.trim();
    Some(line.strip_prefix(NOT_RUN.0)?.strip_suffix(NOT_RUN.1)?.to_owned())
}

/// The last name of a `.toml` file in the paragraph above a block.
fn file_name(above: &[&str]) -> Option<String> {
    let lines = above.iter().rev().skip_while(|line| line.trim().is_empty());
    let mut paragraph: Vec<&str> =
        lines.take_while(|line| !line.trim().is_empty()).copied().collect();
    paragraph.reverse();
    let names = spans(&paragraph.join("\n"));
    let is_file = |name: &&String| name.ends_with(".toml") && !name.contains([' ', '/']);
    names.iter().rev().find(is_file).cloned()
}

/// The text of each pair of backticks outside of fenced blocks.
pub fn inline(text: &str) -> Vec<String> {
    let mut outside = String::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            outside.push_str(line);
            outside.push('\n');
        }
    }
    // A pair does not reach beyond its paragraph.
    outside.split("\n\n").flat_map(spans).collect()
}

fn spans(text: &str) -> Vec<String> {
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    joined.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn blocks_have_their_output_reason_and_name() {
    let text = "`a.toml` is a file:\n```toml\nx = 1\n```\n1. Run\n\n   ```sh\n   one\n     two\n   ```\n\n   \
                ```\n   said\n   ```\n<!-- not run: two hosts -->\n```sh\nthree\n```\ntext\n```\nfour\n```\n";
    let found = blocks("page", text);
    let kinds: Vec<&Kind> = found.iter().map(|block| &block.kind).collect();
    assert_eq!(*kinds[0], Kind::File("a.toml".to_owned()));
    assert_eq!(*kinds[1], Kind::Commands { output: Some("said\n".to_owned()) });
    assert_eq!(found[1].text, "one\n  two\n");
    assert_eq!(*kinds[2], Kind::NotRun("two hosts".to_owned()));
    assert_eq!(*kinds[3], Kind::Other);
    assert_eq!(inline("a `b\nc` d\n```\n`e`\n```\n`f`"), ["b c", "f"]);
}
