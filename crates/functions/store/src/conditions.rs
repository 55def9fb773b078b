//! The conditions of requests.

use s3s::dto::{ETag, ETagCondition, Timestamp, TimestampFormat};

use crate::disk;
use crate::fault::Fault;

/// The time of a file, in S3's format.
pub fn timestamp(modified_ns: i64) -> Timestamp {
    Timestamp::from(disk::system_time(modified_ns))
}

/// An ETag without its quotes.
pub fn strong(e_tag: &str) -> ETag {
    ETag::Strong(e_tag.to_owned())
}

/// Conditions that a request may have.
#[derive(Clone, Default)]
pub struct Conditions {
    /// `If-Match`.
    pub if_match: Option<ETagCondition>,
    /// `If-None-Match`.
    pub if_none_match: Option<ETagCondition>,
    /// `If-Modified-Since`.
    pub if_modified_since: Option<Timestamp>,
    /// `If-Unmodified-Since`.
    pub if_unmodified_since: Option<Timestamp>,
}

impl Conditions {
    /// Checks a change against the current object, if there is one.
    ///
    /// # Errors
    /// A condition is not fulfilled; there is no object, and one is expected.
    pub fn check_change(&self, e_tag: Option<&str>) -> Result<(), Fault> {
        let is = |condition: &ETagCondition| match (condition, e_tag) {
            (_, None) => false,
            (ETagCondition::Any, Some(_)) => true,
            (ETagCondition::ETag(due), Some(e_tag)) => due.strong_cmp(&strong(e_tag)),
        };
        if self.if_match.is_some() && e_tag.is_none() {
            return Err(Fault::NoKey);
        }
        let holds =
            self.if_match.as_ref().is_none_or(is) && !self.if_none_match.as_ref().is_some_and(is);
        if holds { Ok(()) } else { Err(Fault::Precondition) }
    }

    /// Checks a read (RFC 9110 §13.2.2).
    ///
    /// # Errors
    /// A condition is not fulfilled; `otherwise` if the caller already has the object.
    pub fn check_read(&self, e_tag: &str, modified_ns: i64, otherwise: Fault) -> Result<(), Fault> {
        let e_tag = strong(e_tag);
        // Header fields have a resolution of one second.
        let modified = timestamp(modified_ns.div_euclid(1_000_000_000) * 1_000_000_000);
        let fails = match (&self.if_match, &self.if_unmodified_since) {
            (Some(ETagCondition::ETag(due)), _) => !due.strong_cmp(&e_tag),
            (Some(ETagCondition::Any), _) | (None, None) => false,
            (None, Some(since)) => modified > *since,
        };
        if fails {
            return Err(Fault::Precondition);
        }
        let is_known = match (&self.if_none_match, &self.if_modified_since) {
            (Some(ETagCondition::ETag(known)), _) => known.weak_cmp(&e_tag),
            (Some(ETagCondition::Any), _) => true,
            (None, Some(since)) => modified <= *since,
            (None, None) => false,
        };
        if is_known { Err(otherwise) } else { Ok(()) }
    }
}

/// Conditions of a removal.
#[derive(Clone, Default)]
pub struct Removal {
    /// `If-Match`.
    pub if_match: Option<ETagCondition>,
    /// `x-amz-if-match-last-modified-time`.
    pub modified: Option<Timestamp>,
    /// `x-amz-if-match-size`.
    pub bytes: Option<i64>,
}

impl Removal {
    /// Returns true if there is no condition.
    pub fn is_empty(&self) -> bool {
        self.if_match.is_none() && self.modified.is_none() && self.bytes.is_none()
    }

    /// Checks a removal against the version that it is of. A delete marker has no ETag and no size.
    ///
    /// # Errors
    /// A condition is not fulfilled.
    pub fn check(
        &self,
        e_tag: Option<&str>,
        modified_ns: i64,
        bytes: Option<u64>,
    ) -> Result<(), Fault> {
        let is = |condition: &ETagCondition| match (condition, e_tag) {
            (ETagCondition::Any, _) => true,
            (ETagCondition::ETag(due), e_tag) => e_tag.is_some_and(|e| due.value() == e),
        };
        // A date has a resolution of one second.
        let date = |time: &Timestamp| {
            let mut text = Vec::new();
            time.format(TimestampFormat::HttpDate, &mut text).ok().map(|()| text)
        };
        let is_time = |due: &Timestamp| date(due) == date(&timestamp(modified_ns));
        let is_size = |due: i64| bytes.is_some_and(|bytes| i64::try_from(bytes) == Ok(due));
        let holds = self.if_match.as_ref().is_none_or(is)
            && self.modified.as_ref().is_none_or(is_time)
            && self.bytes.is_none_or(is_size);
        if holds { Ok(()) } else { Err(Fault::Precondition) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: i64 = 1_000_000_000;

    #[test]
    fn a_change_is_of_what_is_there() {
        let etag = |text: &str| Some(ETagCondition::ETag(strong(text)));
        let holds = |if_match, if_none_match, now: Option<&str>| {
            let conditions = Conditions { if_match, if_none_match, ..Conditions::default() };
            conditions.check_change(now).is_ok()
        };
        assert!(holds(None, None, None) && holds(None, None, Some("a")));
        assert!(holds(None, Some(ETagCondition::Any), None));
        assert!(!holds(None, Some(ETagCondition::Any), Some("a")));
        assert!(holds(etag("a"), None, Some("a")) && !holds(etag("a"), None, Some("b")));
        assert!(!holds(etag("a"), None, None) && !holds(Some(ETagCondition::Any), None, None));
        assert!(holds(None, etag("a"), Some("b")) && !holds(None, etag("a"), Some("a")));
    }

    #[test]
    fn a_read_is_compared_to_the_second_and_an_etag_goes_before_a_time() {
        let time = |seconds: i64| Some(timestamp(seconds * SECOND_NS));
        let read = |conditions: Conditions| {
            let checked = conditions.check_read("a", 5 * SECOND_NS + 7, Fault::NoUpload);
            checked.map_err(|fault| matches!(fault, Fault::NoUpload))
        };
        let since = |seconds| Conditions { if_modified_since: time(seconds), ..Default::default() };
        assert_eq!((read(since(4)), read(since(5))), (Ok(()), Err(true)));
        let until =
            |seconds| Conditions { if_unmodified_since: time(seconds), ..Default::default() };
        assert_eq!((read(until(5)), read(until(4))), (Ok(()), Err(false)));
        let known = Some(ETagCondition::ETag(strong("b")));
        assert_eq!(read(Conditions { if_none_match: known, ..since(5) }), Ok(()));
        let same = Some(ETagCondition::ETag(strong("a")));
        assert_eq!(read(Conditions { if_match: same, ..until(4) }), Ok(()));
    }
}
