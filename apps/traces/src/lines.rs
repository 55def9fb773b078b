//! Rows of a file of comma-separated values: a header with the column names, then one row per
//! line. There are no quotes or escapes: the data sets have none, and a quote is part of a name.

use std::fmt;
use std::marker::PhantomData;

/// Maximum length of a line: 1440 counts of eleven digits fit.
pub const LINE_BYTES_MAX: usize = 64 * 1024;
/// Maximum length of an identifier; those of the data sets have 64 bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// Maximum number of rows in a file.
pub const ROWS_MAX: u64 = 1 << 24;

/// Error in a line of the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// The file is empty.
    #[error("the file is empty; its first line must name the columns")]
    Empty,
    /// The header has a different column.
    #[error("the column {found:?} should be {due:?}; is it a file of another kind?")]
    Header {
        /// Name in the file.
        found: String,
        /// Expected name.
        due: String,
    },
    /// The row has a wrong number of fields.
    #[error("{found} fields instead of {due}")]
    Fields {
        /// Number of fields.
        found: usize,
        /// Number of columns in the header.
        due: usize,
    },
    /// A field is not a count.
    #[error("{0:?} is no whole number from 0 on")]
    Count(String),
    /// A field is not an amount.
    #[error("{0:?} is no finite number from 0 on")]
    Amount(String),
    /// A field is not an identifier.
    #[error("an identifier has from 1 to {NAME_BYTES_MAX} bytes")]
    Name,
    /// A field is not one of the seven triggers.
    #[error("{0:?} is no trigger: http, timer, event, queue, storage, orchestration, others")]
    Trigger(String),
    /// The line is too long.
    #[error("a line has {LINE_BYTES_MAX} bytes at most")]
    Long,
    /// The line is not UTF-8.
    #[error("not UTF-8")]
    Text,
    /// The file has too many rows.
    #[error("a file has {ROWS_MAX} rows at most")]
    Rows,
}

/// Error in the file, with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// Line number, from 1; the header is line 1.
    pub line: u64,
    /// Field number, from 1; 0 for an error of the whole line.
    pub field: usize,
    /// The error.
    pub why: RowError,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field {
            0 => write!(f, "line {}: {}", self.line, self.why),
            field => write!(f, "line {}, field {field}: {}", self.line, self.why),
        }
    }
}

impl std::error::Error for TraceError {}

/// Maximum number of characters of a field that an error repeats.
const SHOWN_CHARS_MAX: usize = 40;

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).collect()
}

/// Iterator over the fields of a line.
#[derive(Debug)]
pub struct Fields<'a> {
    rest: Option<&'a str>,
    line: u64,
    taken: usize,
}

impl<'a> Fields<'a> {
    fn of(text: &'a str, line: u64) -> Fields<'a> {
        Fields { rest: Some(text), line, taken: 0 }
    }

    fn wrong(&self, why: RowError) -> TraceError {
        TraceError { line: self.line, field: self.taken, why }
    }

    /// Returns the next field.
    ///
    /// # Errors
    /// There is no further field.
    fn next(&mut self, due: usize) -> Result<&'a str, TraceError> {
        let Some(rest) = self.rest else {
            let why = RowError::Fields { found: self.taken, due };
            return Err(TraceError { line: self.line, field: 0, why });
        };
        let (field, rest) = match rest.split_once(',') {
            Some((field, rest)) => (field, Some(rest)),
            None => (rest, None),
        };
        self.rest = rest;
        self.taken += 1;
        Ok(field)
    }

    fn end(&self, due: usize) -> Result<(), TraceError> {
        let Some(rest) = self.rest else { return Ok(()) };
        let found = self.taken + 1 + rest.matches(',').count();
        Err(TraceError { line: self.line, field: 0, why: RowError::Fields { found, due } })
    }
}

/// Typed access to the fields of a row.
#[derive(Debug)]
pub struct Reader<'a, 'f> {
    fields: &'f mut Fields<'a>,
    columns: usize,
}

impl<'a> Reader<'a, '_> {
    /// Returns the number of columns in the header.
    pub fn columns(&self) -> usize {
        self.columns
    }

    fn text(&mut self) -> Result<&'a str, TraceError> {
        self.fields.next(self.columns)
    }

    /// Reads an identifier.
    ///
    /// # Errors
    /// [`RowError::Name`], [`RowError::Fields`].
    pub fn name(&mut self) -> Result<String, TraceError> {
        let text = self.text()?;
        match (1..=NAME_BYTES_MAX).contains(&text.len()) {
            true => Ok(text.to_owned()),
            false => Err(self.fields.wrong(RowError::Name)),
        }
    }

    /// Reads a count.
    ///
    /// # Errors
    /// [`RowError::Count`], [`RowError::Fields`].
    pub fn count<N: std::str::FromStr>(&mut self) -> Result<N, TraceError> {
        let text = self.text()?;
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let count = if digits { text.parse().ok() } else { None };
        count.ok_or_else(|| self.fields.wrong(RowError::Count(shown(text))))
    }

    /// Reads an amount: finite, not negative.
    ///
    /// # Errors
    /// [`RowError::Amount`], [`RowError::Fields`].
    pub fn amount(&mut self) -> Result<f64, TraceError> {
        let text = self.text()?;
        let amount = text.parse::<f64>().ok().filter(|amount| amount.is_finite());
        match amount.filter(|amount| *amount >= 0.0) {
            // Replaces a negative zero, which would be written back.
            Some(amount) => Ok(amount + 0.0),
            None => Err(self.fields.wrong(RowError::Amount(shown(text)))),
        }
    }

    /// Reads a field with `parse`.
    ///
    /// # Errors
    /// The error of `parse`, or [`RowError::Fields`].
    pub fn parsed<T>(
        &mut self,
        parse: impl FnOnce(&str) -> Option<T>,
        why: impl FnOnce(String) -> RowError,
    ) -> Result<T, TraceError> {
        let text = self.text()?;
        parse(text).ok_or_else(|| self.fields.wrong(why(shown(text))))
    }
}

/// A row of one kind of file.
pub trait Row: Sized {
    /// Columns that every file of this kind has.
    const COLUMNS: &'static [&'static str];
    /// Maximum number of additional columns that are named `1`, `2`, `3`, …
    const NUMBERED_MAX: usize = 0;

    /// Reads a row.
    ///
    /// # Errors
    /// The first invalid field.
    fn read(reader: &mut Reader<'_, '_>) -> Result<Self, TraceError>;

    /// Appends the row, without its line end.
    fn write(&self, out: &mut String);

    /// Returns the number of numbered columns in this row.
    fn numbered(&self) -> usize {
        0
    }
}

/// Iterator over the rows of a file. An invalid row is an error, and the iteration continues; it
/// ends after an error that makes the rest unreadable.
#[derive(Debug)]
pub struct Rows<'a, R> {
    rest: &'a [u8],
    line: u64,
    columns: usize,
    ended: bool,
    kind: PhantomData<R>,
}

impl<'a, R: Row> Rows<'a, R> {
    /// Reads the header.
    ///
    /// # Errors
    /// The header is that of another kind of file.
    pub fn of(bytes: &'a [u8]) -> Result<Rows<'a, R>, TraceError> {
        let mut rows: Rows<'a, R> =
            Rows { rest: bytes, line: 0, columns: 0, ended: false, kind: PhantomData };
        let Some(text) = rows.next_line() else {
            return Err(TraceError { line: 1, field: 0, why: RowError::Empty });
        };
        let mut fields = Fields::of(text?, 1);
        for due in R::COLUMNS {
            let found = fields.next(R::COLUMNS.len())?;
            if found != *due {
                let (found, due) = (shown(found), (*due).to_owned());
                return Err(fields.wrong(RowError::Header { found, due }));
            }
        }
        let mut numbered = 0;
        while fields.rest.is_some() {
            let due = numbered + 1;
            let found = fields.next(0)?;
            if due > R::NUMBERED_MAX || found != due.to_string() {
                let due = if due > R::NUMBERED_MAX { "the last".into() } else { due.to_string() };
                return Err(fields.wrong(RowError::Header { found: shown(found), due }));
            }
            numbered = due;
        }
        rows.columns = R::COLUMNS.len() + numbered;
        Ok(rows)
    }

    /// Returns the text of the next line, without its end.
    fn next_line(&mut self) -> Option<Result<&'a str, TraceError>> {
        if self.rest.is_empty() {
            return None;
        }
        self.line += 1;
        let wrong = |line, why| Some(Err(TraceError { line, field: 0, why }));
        let window = &self.rest[..self.rest.len().min(LINE_BYTES_MAX + 1)];
        let (line, rest) = match window.iter().position(|byte| *byte == b'\n') {
            Some(at) => (&self.rest[..at], &self.rest[at + 1..]),
            None if window.len() > LINE_BYTES_MAX => {
                // Do not search for the next line: there is no bound for that search.
                self.ended = true;
                return wrong(self.line, RowError::Long);
            }
            None => (self.rest, &self.rest[self.rest.len()..]),
        };
        self.rest = rest;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match std::str::from_utf8(line) {
            Ok(text) => Some(Ok(text)),
            Err(_) => wrong(self.line, RowError::Text),
        }
    }

    fn row(&self, text: &str) -> Result<R, TraceError> {
        let mut fields = Fields::of(text, self.line);
        let row = R::read(&mut Reader { fields: &mut fields, columns: self.columns })?;
        fields.end(self.columns)?;
        Ok(row)
    }
}

impl<R: Row> Iterator for Rows<'_, R> {
    type Item = Result<R, TraceError>;

    fn next(&mut self) -> Option<Result<R, TraceError>> {
        if self.ended {
            return None;
        }
        let text = self.next_line()?;
        if self.line > ROWS_MAX + 1 {
            self.ended = true;
            return Some(Err(TraceError { line: self.line, field: 0, why: RowError::Rows }));
        }
        Some(text.and_then(|text| self.row(text)))
    }
}

/// Writes a file of these rows.
pub fn write<R: Row>(rows: &[R]) -> String {
    let mut text = R::COLUMNS.join(",");
    for number in 1..=rows.first().map_or(0, Row::numbered) {
        text.push_str(&format!(",{number}"));
    }
    text.push('\n');
    for row in rows {
        row.write(&mut text);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests;
