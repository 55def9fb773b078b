//! Parsing of text into structures.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::SettingsError;
use crate::locate::{KeyLocation, locate};

/// Most bytes of a configuration file.
pub const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Minimum similarity of two words for one to be proposed instead of the other; 1 means equal.
const SIMILARITY_MIN: f64 = 0.7;

/// Reads the configuration in the file at `path`.
///
/// # Errors
/// Any [`SettingsError`], with the name of the file and the line.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<T, SettingsError> {
    let unreadable = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => SettingsError::Missing { path: path.to_owned() },
        _ => SettingsError::Unreadable { path: path.to_owned(), source },
    };
    let file = File::open(path).map_err(unreadable)?;
    let mut text = String::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
    if read as u64 > FILE_BYTES_MAX {
        return Err(SettingsError::TooLarge { path: path.to_owned(), limit: FILE_BYTES_MAX });
    }
    parse(&text, &path.display().to_string())
}

/// Parses configuration text; `origin` names the text in errors.
///
/// # Errors
/// Any [`SettingsError`], with `origin` and the line.
pub fn parse<T: DeserializeOwned>(text: &str, origin: &str) -> Result<T, SettingsError> {
    toml::from_str(text).map_err(|error| explain(text, origin, &error))
}

/// Converts an error of the TOML reader into one that has the position in the document.
fn explain(text: &str, origin: &str, error: &toml::de::Error) -> SettingsError {
    let offset = error.span().map(|span| span.start);
    let place = match offset {
        Some(offset) => format!("{origin}:{}", line(text, offset)),
        None => origin.to_owned(),
    };
    let message = error.message().to_owned();
    let Some(KeyLocation { table, key }) = locate(text, offset) else {
        return SettingsError::Syntax { place, message };
    };
    let mut words = message.split('`').skip(1).step_by(2).map(str::to_owned);
    let mut first = || words.next().unwrap_or_default();
    if message.starts_with("unknown field") {
        let (key, known) = (first(), words.collect::<Vec<_>>());
        SettingsError::UnknownKey { place, table, advice: advice(&key, &known), key }
    } else if message.starts_with("unknown variant") {
        let (value, known) = (first(), words.collect::<Vec<_>>());
        SettingsError::UnknownValue { place, key, table, advice: advice(&value, &known), value }
    } else if message.starts_with("missing field") {
        // The reader points at the table that lacks the key.
        SettingsError::MissingKey { place, key: first(), table }
    } else {
        SettingsError::BadValue { place, key, table, message }
    }
}

/// The number, from 1, of the line that contains the byte at `offset`.
fn line(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().get(..offset).unwrap_or(text.as_bytes());
    1 + before.iter().filter(|&&byte| byte == b'\n').count()
}

/// The known word that is most similar to `word`, if any is similar enough.
fn nearest<'k>(word: &str, known: &'k [String]) -> Option<&'k String> {
    let likeness = |candidate: &&String| {
        let plain = word.to_lowercase().replace('-', "_");
        strsim::jaro_winkler(&plain, &candidate.to_lowercase().replace('-', "_"))
            .max(strsim::normalized_damerau_levenshtein(&plain, candidate))
    };
    known
        .iter()
        .map(|candidate| (likeness(&candidate), candidate))
        .filter(|(likeness, _)| *likeness >= SIMILARITY_MIN)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// Advice for a word that is not known.
fn advice(word: &str, known: &[String]) -> String {
    match (nearest(word, known), known) {
        (Some(nearest), _) => format!("did you mean `{nearest}`?"),
        (None, []) => "remove it".to_owned(),
        (None, known) => format!("known are `{}`", known.join("`, `")),
    }
}
