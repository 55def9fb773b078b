//! What is written by hand has all that the API's description has.

use std::collections::HashSet;

use super::*;

/// Made by guest/python/tests/rust_tables.py: operation, direction, member, place and kind.
const DESCRIBED: &str = include_str!("made/described.txt");

fn of_elements(start: &str, members: &[Member], lines: &mut HashSet<String>) {
    for member in members {
        of_element(&format!("{start}.{}", member.name), &member.shape, lines);
    }
}

fn of_element(start: &str, shape: &Shape, lines: &mut HashSet<String>) {
    match shape {
        Shape::Leaf(kind) => drop(lines.insert(format!("{start} body {kind:?}"))),
        Shape::XsiType => drop(lines.insert(format!("{start} body Text"))),
        Shape::Structure(members) => of_elements(start, members, lines),
        Shape::List(_, inner) | Shape::Flat(inner) => of_element(start, inner, lines),
    }
}

fn of_field(start: &str, field: &Field, lines: &mut HashSet<String>) {
    let (start, kind) = (format!("{start} {}", field.name), field.kind);
    match field.place {
        Place::Header(name) => {
            lines.insert(format!("{start} header {} {kind:?}", name.to_lowercase()));
        }
        Place::Query(name) => {
            lines.insert(format!("{start} querystring {} {kind:?}", name.to_lowercase()));
        }
        Place::Headers(_) => drop(lines.insert(format!("{start} headers"))),
        Place::Xml(_, members) => of_elements(&start, members, lines),
        Place::Text => drop(lines.insert(format!("{start} body Text"))),
        Place::Element | Place::Nowhere => {}
    }
}

fn of_operation(operation: &Operation) -> HashSet<String> {
    let mut lines = HashSet::new();
    let start = format!("{} input", operation.name);
    for field in operation.input.iter().copied().flatten() {
        of_field(&start, field, &mut lines);
    }
    for member in operation.document.map_or(&[][..], |(_, members)| members) {
        of_element(&format!("{start} {}", member.name), &member.shape, &mut lines);
    }
    let start = format!("{} output", operation.name);
    for found in operation.found.iter().copied().flatten() {
        let Found { name, header, kind } = found;
        lines.insert(match header.strip_suffix('*') {
            Some(_) => format!("{start} {name} headers"),
            None => format!("{start} {name} header {} {kind:?}", header.to_lowercase()),
        });
    }
    match operation.output {
        Output::Xml(members) => {
            for member in members {
                of_element(&format!("{start} {}", member.name), &member.shape, &mut lines);
            }
        }
        Output::Text(name) | Output::Raw(name) => {
            lines.insert(format!("{start} {name} body Text"));
        }
        Output::None | Output::Object => {}
    }
    lines
}

#[test]
fn what_is_written_by_hand_has_all_that_is_described() {
    let ours: HashSet<String> = all().flat_map(of_operation).collect();
    let missing: Vec<_> = DESCRIBED.lines().filter(|line| !ours.contains(*line)).collect();
    assert!(missing.is_empty(), "{} lines, {missing:#?}", missing.len());
    assert!(DESCRIBED.lines().count() > 400);
}
