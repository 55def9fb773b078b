//! Pages of lists: `MaxItems` and `Marker`.

use std::fmt::Display;
use std::str::FromStr;

use crate::lambda::Refusal;

/// Most items of a page, as in Lambda.
pub const ITEMS_MAX: usize = 50;
/// Largest `MaxItems` that a request may have.
const ASKED_MAX: usize = 10_000;

/// One page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// Its items.
    pub items: Vec<T>,
    /// The marker of the next page, if there is one.
    pub next: Option<String>,
}

/// Takes a page out of items that are ordered by their keys. The marker is the key of the last
/// item of the page before, so items that are added or removed meanwhile move no other.
///
/// # Errors
/// `MaxItems` or the marker is invalid.
pub fn page<K: Ord + Display + FromStr, T>(
    items: impl Iterator<Item = (K, T)>,
    marker: Option<&str>,
    items_max: Option<&str>,
) -> Result<Page<T>, Refusal> {
    let wrong = |key: &str, text: &str| Refusal::Parameter(format!("{key}: {text:?} is invalid"));
    let after = marker.map(|text| text.parse::<K>().map_err(|_| wrong("Marker", text)));
    let after = after.transpose()?;
    let asked = |text: &str| {
        let number = text.parse().ok().filter(|number| (1..=ASKED_MAX).contains(number));
        number.ok_or_else(|| wrong("MaxItems", text))
    };
    let limit = items_max.map_or(Ok(ITEMS_MAX), asked)?.min(ITEMS_MAX);
    let mut rest = items.skip_while(|(key, _)| after.as_ref().is_some_and(|after| key <= after));
    let (mut page, mut last) = (Vec::new(), None);
    for (key, item) in rest.by_ref().take(limit) {
        page.push(item);
        last = Some(key.to_string());
    }
    let next = rest.next().and(last);
    Ok(Page { items: page, next })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_each_other() {
        let items = || (0..120_u64).map(|number| (number, number));
        let (mut all, mut marker) = (Vec::new(), None);
        loop {
            let page = page(items(), marker.as_deref(), Some("7")).unwrap();
            assert!(page.items.len() <= 7);
            all.extend(page.items);
            marker = page.next;
            if marker.is_none() {
                break;
            }
        }
        assert_eq!(all, (0..120).collect::<Vec<_>>());
        assert_eq!(page(items(), None, Some("10000")).unwrap().items.len(), ITEMS_MAX);
        for wrong in ["0", "10001", "x", "-1"] {
            assert_eq!(page(items(), None, Some(wrong)).unwrap_err().status(), 400, "{wrong}");
        }
        assert_eq!(page(items(), Some("x"), None).unwrap_err().status(), 400);
        let none: Page<u64> = page(items(), Some("119"), None).unwrap();
        assert_eq!(none, Page { items: Vec::new(), next: None });
    }
}
