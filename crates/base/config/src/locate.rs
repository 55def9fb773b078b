//! Maps an offset in a document to the key that it belongs to.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A key of a document.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyLocation {
    /// The table, as `[pool.objects]` or `[[route]]`; empty at the top level.
    pub(crate) table: String,
    /// The key in the table; empty if the offset belongs to the table itself.
    pub(crate) key: String,
}

/// One step from the top of a document to a table.
struct Step<'t> {
    name: &'t str,
    /// The table is an element of an array.
    element: bool,
}

/// Finds the key that the byte at `offset` belongs to; without an offset, the top level. Returns
/// `None` if the text is not TOML.
pub(crate) fn locate(text: &str, offset: Option<usize>) -> Option<KeyLocation> {
    let document = DeTable::parse(text).ok()?;
    let Some(offset) = offset else { return Some(KeyLocation::default()) };
    Some(in_table(document.get_ref(), &mut Vec::new(), offset).unwrap_or_default())
}

fn in_table<'t>(
    table: &'t DeTable<'_>,
    path: &mut Vec<Step<'t>>,
    offset: usize,
) -> Option<KeyLocation> {
    for (key, value) in table {
        if key.span().contains(&offset) {
            return Some(KeyLocation { table: render(path), key: key.get_ref().to_string() });
        }
        if let Some(place) = in_value(key.get_ref(), value, path, offset) {
            return Some(place);
        }
    }
    None
}

fn in_value<'t>(
    key: &'t str,
    value: &'t Spanned<DeValue<'_>>,
    path: &mut Vec<Step<'t>>,
    offset: usize,
) -> Option<KeyLocation> {
    match value.get_ref() {
        DeValue::Table(table) => {
            inside(table, value, Step { name: key, element: false }, path, offset)
        }
        DeValue::Array(array) => {
            let found = array.iter().find_map(|item| match item.get_ref() {
                DeValue::Table(table) => {
                    inside(table, item, Step { name: key, element: true }, path, offset)
                }
                _ => None,
            });
            found.or_else(|| here(key, value, path, offset))
        }
        _ => here(key, value, path, offset),
    }
}

fn inside<'t>(
    table: &'t DeTable<'_>,
    value: &Spanned<DeValue<'_>>,
    step: Step<'t>,
    path: &mut Vec<Step<'t>>,
    offset: usize,
) -> Option<KeyLocation> {
    path.push(step);
    let found = in_table(table, path, offset).or_else(|| {
        let whole = value.span().contains(&offset);
        whole.then(|| KeyLocation { table: render(path), key: String::new() })
    });
    path.pop();
    found
}

fn here(
    key: &str,
    value: &Spanned<DeValue<'_>>,
    path: &[Step<'_>],
    offset: usize,
) -> Option<KeyLocation> {
    let within = value.span().contains(&offset);
    within.then(|| KeyLocation { table: render(path), key: key.to_owned() })
}

/// Formats a path as its table header.
fn render(path: &[Step<'_>]) -> String {
    let Some(last) = path.last() else { return String::new() };
    let names: Vec<&str> = path.iter().map(|step| step.name).collect();
    match last.element {
        true => format!("[[{}]]", names.join(".")),
        false => format!("[{}]", names.join(".")),
    }
}
