//! Tags of a function.

use std::collections::BTreeMap;

use super::Record;
use crate::lambda::Refusal;

/// Most tags of a function, as in Lambda.
pub const TAGS_MAX: usize = 50;
/// Longest key, in characters.
const KEY_CHARS_MAX: usize = 128;
/// Longest value, in characters.
const VALUE_CHARS_MAX: usize = 256;

impl Record {
    /// Adds tags, or replaces their values.
    ///
    /// # Errors
    /// A tag is invalid, or there would be more than [`TAGS_MAX`].
    pub fn tag(&mut self, tags: BTreeMap<String, String>) -> Result<(), Refusal> {
        for (key, value) in &tags {
            let length = key.chars().count();
            let is_key = (1..=KEY_CHARS_MAX).contains(&length) && !key.starts_with("aws:");
            if !is_key || value.chars().count() > VALUE_CHARS_MAX {
                let why = format!(
                    "the tag {key:?}: keys have 1 to {KEY_CHARS_MAX} characters and do not begin \
                     with aws:, values have {VALUE_CHARS_MAX} at most"
                );
                return Err(Refusal::Parameter(why));
            }
        }
        let fresh = tags.keys().filter(|key| !self.tags.contains_key(*key)).count();
        if self.tags.len() + fresh > TAGS_MAX {
            return Err(Refusal::Parameter(format!("a function has {TAGS_MAX} tags at most")));
        }
        self.tags.extend(tags);
        Ok(())
    }

    /// Removes tags; absent ones are ignored.
    pub fn untag(&mut self, keys: &[String]) {
        self.tags.retain(|key, _| !keys.contains(key));
    }
}
