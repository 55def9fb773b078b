//! The words of a request.

use crate::parse::Argument;
use crate::table::find;

/// Words of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments<'a> {
    pub parsed: &'a [Argument],
    /// The bytes that the words refer to.
    pub input: &'a [u8],
}

impl<'a> Arguments<'a> {
    pub fn len(self) -> usize {
        self.parsed.len()
    }

    /// Returns a word; empty if the word is still arriving.
    pub fn get(self, index: usize) -> &'a [u8] {
        match self.parsed.get(index) {
            Some(Argument::Here(range)) => self.input.get(range.clone()).unwrap_or_default(),
            Some(Argument::Quoted(word)) => word,
            Some(Argument::Apart) | None => &[],
        }
    }

    /// Returns the words from `first` on.
    pub fn from(self, first: usize) -> impl Iterator<Item = &'a [u8]> {
        (first..self.len()).map(move |index| self.get(index))
    }

    /// Returns true if a value that arrives as the word `index` will be stored as it is.
    pub fn keeps(self, index: usize) -> bool {
        find(self.get(0), self.get(1)).is_some_and(|command| command.stored == index && index > 0)
    }
}
