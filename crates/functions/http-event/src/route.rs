//! The route of a request (API Gateway developer guide, *Routing API requests*): the most specific one that
//! matches.
//!
//! A key is `METHOD /path`, or `$default`. A segment of the path is text, a variable (`{name}`), or, as the
//! last one, a greedy variable (`{name+}`) for the rest of the path. The method `ANY` is every method.
//! Of two routes that match, the one wins whose first differing segment is more specific: text before a
//! variable, a variable before a greedy one; of two with the same path, the one that names the method.
//! `$default` matches what no other route does.

use std::collections::BTreeMap;

use crate::event::decoded;

/// The key of the route for requests that no other route matches.
pub const DEFAULT: &str = "$default";
/// The method of a key that is every method.
pub const ANY: &str = "ANY";
/// Most routes, as in API Gateway.
pub const ROUTES_MAX: usize = 300;
/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 1024;
/// The methods that a key may name.
const METHODS: [&str; 8] = [ANY, "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"];

/// The reason why a route is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// The key has another form.
    #[error("the route key {0:?} is none of `METHOD /path/{{name}}/{{rest+}}` and `$default`")]
    Key(String),
    /// There is a route with the same method and path; names of variables are no difference.
    #[error("the route {0} is there twice")]
    Twice(String),
    /// There are too many.
    #[error("an API has {ROUTES_MAX} routes at most")]
    TooMany,
}

/// A segment of a route's path. The order is that of precedence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Segment {
    Text(String),
    Variable(String),
    Greedy(String),
}

impl Segment {
    /// Its precedence: less is more specific.
    fn rank(&self) -> u8 {
        match self {
            Segment::Text(_) => 0,
            Segment::Variable(_) => 1,
            Segment::Greedy(_) => 2,
        }
    }
}

/// A key that is no `$default`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    /// `None` is every method.
    method: Option<String>,
    segments: Vec<Segment>,
}

impl Key {
    fn parse(text: &str) -> Option<Key> {
        let (method, path) = text.split_once(' ')?;
        if !METHODS.contains(&method) || text.len() > KEY_BYTES_MAX {
            return None;
        }
        let parts: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
        let segments = parts.iter().map(|part| segment(part));
        let segments: Vec<Segment> = segments.collect::<Option<_>>()?;
        let (_, before) = segments.split_last()?;
        let is_last = !before.iter().any(|segment| matches!(segment, Segment::Greedy(_)));
        // Only the path `/` has an empty segment, or one behind the last slash.
        let is_full = !before.iter().any(|own| *own == Segment::Text(String::new()));
        let mut names: Vec<&String> = segments.iter().filter_map(name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        let has_own_names = names.len() == count;
        let method = (method != ANY).then(|| method.to_owned());
        (is_last && is_full && has_own_names).then_some(Key { method, segments })
    }

    /// The values of the variables, if the key matches.
    fn matches(&self, method: &str, parts: &[&str]) -> Option<BTreeMap<String, String>> {
        if self.method.as_deref().is_some_and(|own| own != method) {
            return None;
        }
        let mut parameters = BTreeMap::new();
        for (at, segment) in self.segments.iter().enumerate() {
            let part = parts.get(at)?;
            match segment {
                Segment::Text(text) if *text != decoded(part) => return None,
                Segment::Text(_) => {}
                Segment::Variable(_) if part.is_empty() => return None,
                Segment::Variable(name) => {
                    parameters.insert(name.clone(), decoded(part));
                }
                Segment::Greedy(name) => {
                    let rest = parts.get(at..)?.join("/");
                    parameters.insert(name.clone(), decoded(&rest));
                    return (!rest.is_empty()).then_some(parameters);
                }
            }
        }
        (parts.len() == self.segments.len()).then_some(parameters)
    }

    /// The order of precedence.
    fn order(&self) -> (Vec<u8>, bool) {
        (self.segments.iter().map(Segment::rank).collect(), self.method.is_none())
    }

    /// Returns true if both match the same requests.
    fn is_same(&self, other: &Key) -> bool {
        let is_same = |(a, b): (&Segment, &Segment)| match (a, b) {
            (Segment::Text(a), Segment::Text(b)) => a == b,
            _ => a.rank() == b.rank(),
        };
        self.method == other.method
            && self.segments.len() == other.segments.len()
            && self.segments.iter().zip(&other.segments).all(is_same)
    }
}

fn segment(part: &str) -> Option<Segment> {
    let Some(inner) = part.strip_prefix('{') else {
        let is_text =
            !part.contains(['{', '}']) && part.bytes().all(|byte| byte.is_ascii_graphic());
        return is_text.then(|| Segment::Text(decoded(part)));
    };
    let inner = inner.strip_suffix('}')?;
    let (name, is_greedy) = match inner.strip_suffix('+') {
        Some(name) => (name, true),
        None => (inner, false),
    };
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:$".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_word) {
        return None;
    }
    let name = name.to_owned();
    Some(if is_greedy { Segment::Greedy(name) } else { Segment::Variable(name) })
}

fn name(segment: &Segment) -> Option<&String> {
    match segment {
        Segment::Text(_) => None,
        Segment::Variable(name) | Segment::Greedy(name) => Some(name),
    }
}

/// Checks the form of a key.
///
/// # Errors
/// It has another form.
pub fn check(key: &str) -> Result<(), RouteError> {
    match key == DEFAULT || Key::parse(key).is_some() {
        true => Ok(()),
        false => Err(RouteError::Key(key.to_owned())),
    }
}

/// A route that a request has.
#[derive(Debug, PartialEq, Eq)]
pub struct Found<'a, T> {
    /// The key of the route.
    pub key: &'a str,
    /// The path of the key; that of `$default` is its name.
    pub resource: &'a str,
    /// The value of the route.
    pub value: &'a T,
    /// The values of the variables in the path, decoded.
    pub parameters: BTreeMap<String, String>,
}

/// The routes of an API.
#[derive(Clone, Debug)]
pub struct Router<T> {
    /// In the order of precedence.
    routes: Vec<(Key, String, T)>,
    default: Option<T>,
}

impl<T> Default for Router<T> {
    fn default() -> Router<T> {
        Router { routes: Vec::new(), default: None }
    }
}

impl<T> Router<T> {
    /// Adds a route.
    ///
    /// # Errors
    /// The key is invalid or there already, or there are too many routes.
    pub fn insert(&mut self, text: &str, value: T) -> Result<(), RouteError> {
        let twice = || RouteError::Twice(text.to_owned());
        if self.routes.len() + usize::from(self.default.is_some()) >= ROUTES_MAX {
            return Err(RouteError::TooMany);
        }
        if text == DEFAULT {
            return match self.default.replace(value) {
                None => Ok(()),
                Some(_) => Err(twice()),
            };
        }
        let key = Key::parse(text).ok_or_else(|| RouteError::Key(text.to_owned()))?;
        if self.routes.iter().any(|(other, ..)| other.is_same(&key)) {
            return Err(twice());
        }
        let order = key.order();
        let at = self.routes.partition_point(|(other, ..)| other.order() <= order);
        self.routes.insert(at, (key, text.to_owned(), value));
        Ok(())
    }

    /// The route of a request with this method and this path, as received.
    pub fn find(&self, method: &str, path: &str) -> Option<Found<'_, T>> {
        let parts: Vec<&str> = path.strip_prefix('/').unwrap_or(path).split('/').collect();
        for (key, text, value) in &self.routes {
            if let Some(parameters) = key.matches(method, &parts) {
                let resource = text.split_once(' ').map_or(text.as_str(), |(_, path)| path);
                return Some(Found { key: text, resource, value, parameters });
            }
        }
        let value = self.default.as_ref()?;
        Some(Found { key: DEFAULT, resource: DEFAULT, value, parameters: BTreeMap::new() })
    }

    /// Returns true if a route names this method and matches the path.
    pub fn names(&self, method: &str, path: &str) -> bool {
        self.find(method, path)
            .is_some_and(|found| found.key.split_once(' ').is_some_and(|(own, _)| own == method))
    }
}
