//! Writes the template that the SAM transform makes of a file, as JSON: `expand FILE [NAME=VALUE]…`.

use std::error::Error;

use serde_json::{Map, Value};
use unlade_fn_stacks::parameters::{self, Given};
use unlade_fn_stacks::{document, sam, template};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: expand FILE [NAME=VALUE]…")?;
    let root = document::parse(&std::fs::read_to_string(path)?)?;
    let given = arguments.map(|argument| {
        let (key, value) = argument.split_once('=').unwrap_or((&argument, ""));
        Given { key: key.to_owned(), value: Some(value.to_owned()), is_previous: false }
    });
    let declared = template::parameters(&root)?;
    let values = parameters::values(&declared, &given.collect::<Vec<_>>(), None)?;
    let expanded: Map<String, Value> =
        sam::expand(root, &parameters::resolved(&declared, &values))?;
    println!("{}", Value::Object(expanded));
    Ok(())
}
