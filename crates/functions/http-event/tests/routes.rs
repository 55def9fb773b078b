//! The selection of routes against a slow oracle: random routes and paths; the oracle compares every pair of
//! routes that match, segment by segment.

use std::collections::BTreeMap;

use unlade_fn_http_event::route::{ROUTES_MAX, check};
use unlade_fn_http_event::{RouteError, Router};
use unlade_testkit::{Random, cases};

const METHODS: [&str; 4] = ["ANY", "GET", "POST", "OPTIONS"];
const WORDS: [&str; 4] = ["a", "b", "c d", "%"];
const SEGMENTS_MAX: usize = 4;

fn encoded(word: &str) -> String {
    word.replace('%', "%25").replace(' ', "%20")
}

fn random_key(random: &mut Random) -> String {
    let count = random.below(SEGMENTS_MAX) + 1;
    let mut path = String::new();
    for at in 0..count {
        path.push('/');
        let is_last = at + 1 == count;
        match random.below(if is_last { 4_u32 } else { 3 }) {
            0 | 1 => path.push_str(&encoded(WORDS[random.below(WORDS.len())])),
            2 => path.push_str(&format!("{{v{at}}}")),
            _ => path.push_str(&format!("{{rest{at}+}}")),
        }
    }
    format!("{} {path}", METHODS[random.below(METHODS.len())])
}

/// The values of variables if a key matches, by recursion over segments.
fn matched(pattern: &[&str], path: &[String]) -> Option<BTreeMap<String, String>> {
    match (pattern, path) {
        ([], []) => Some(BTreeMap::new()),
        ([own], rest) if own.ends_with("+}") => {
            let whole = rest.join("/");
            let name = own.trim_matches(['{', '}', '+']).to_owned();
            (!whole.is_empty()).then(|| BTreeMap::from([(name, whole)]))
        }
        ([own, pattern @ ..], [part, path @ ..]) => {
            let mut rest = matched(pattern, path)?;
            if own.starts_with('{') {
                let name = own.trim_matches(['{', '}']).to_owned();
                rest.insert(name, part.clone());
                return (!part.is_empty()).then_some(rest);
            }
            (own.replace("%20", " ").replace("%25", "%") == *part).then_some(rest)
        }
        _ => None,
    }
}

/// Returns true if a key is more specific than another one.
fn wins(one: &str, other: &str) -> bool {
    let class = |segment: &str| match segment {
        greedy if greedy.ends_with("+}") => 2,
        variable if variable.starts_with('{') => 1,
        _ => 0,
    };
    let (one_method, one_path) = one.split_once(' ').unwrap();
    let (other_method, other_path) = other.split_once(' ').unwrap();
    for (a, b) in one_path.split('/').zip(other_path.split('/')) {
        if class(a) != class(b) {
            return class(a) < class(b);
        }
    }
    one_method != "ANY" && other_method == "ANY"
}

#[test]
fn the_most_specific_route_is_found_as_pairs_say() {
    cases(2000, |random| {
        let mut router = Router::default();
        let mut keys: Vec<String> = Vec::new();
        for _ in 0..random.below(12_usize) {
            let key = random_key(random);
            match router.insert(&key, keys.len()) {
                Ok(()) => keys.push(key),
                Err(RouteError::Twice(_)) => {}
                Err(error) => panic!("{key}: {error}"),
            }
        }
        let has_default = random.percent(30);
        if has_default {
            router.insert("$default", usize::MAX).unwrap();
        }
        for _ in 0..8 {
            let method = METHODS[random.below(METHODS.len() - 1) + 1];
            let count = random.below(SEGMENTS_MAX + 1) + 1;
            let words = ["a", "b", "c d", "%", "", "other"];
            let path: Vec<String> =
                (0..count).map(|_| words[random.below(words.len())].to_owned()).collect();
            let text = path.iter().map(|part| format!("/{}", encoded(part))).collect::<String>();
            let all = keys.iter().enumerate().filter_map(|(number, key)| {
                let (own, pattern) = key.split_once(' ').unwrap();
                let pattern: Vec<&str> = pattern.split('/').skip(1).collect();
                let values = matched(&pattern, &path).filter(|_| own == "ANY" || own == method)?;
                Some((number, key, values))
            });
            let all: Vec<_> = all.collect();
            let best =
                all.iter().find(|(_, key, _)| !all.iter().any(|(_, other, _)| wins(other, key)));
            let due = best.map(|(number, _, values)| (*number, values.clone()));
            let due = due.or_else(|| has_default.then(|| (usize::MAX, BTreeMap::new())));
            let found = router.find(method, &text).map(|found| (*found.value, found.parameters));
            assert_eq!(found, due, "{method} {text} among {keys:?}");
        }
    });
}

#[test]
fn the_examples_of_the_documentation_are_followed() {
    let mut router = Router::default();
    let keys = [
        "GET /pets/dog/1",
        "GET /pets/dog/{id}",
        "GET /pets/{proxy+}",
        "ANY /{proxy+}",
        "$default",
    ];
    for key in keys {
        router.insert(key, key).unwrap();
    }
    for (method, path, due) in [
        ("GET", "/pets/dog/1", keys[0]),
        ("GET", "/pets/dog/2", keys[1]),
        ("GET", "/pets/cat/1", keys[2]),
        ("POST", "/test/5", keys[3]),
        ("POST", "/pets/dog/1", keys[3]),
        ("GET", "/", keys[4]),
    ] {
        assert_eq!(router.find(method, path).unwrap().key, due, "{method} {path}");
    }
    let found = router.find("GET", "/pets/cat/1%2F2").unwrap();
    assert_eq!((found.resource, found.parameters["proxy"].as_str()), ("/pets/{proxy+}", "cat/1/2"));
    assert!(router.names("GET", "/pets/dog/1") && !router.names("POST", "/pets/dog/1"));
}

#[test]
fn other_keys_and_too_many_are_refused() {
    for wrong in [
        "",
        "GET",
        "GET pets",
        "get /pets",
        "TRACE /",
        "GET  /a",
        "GET /{a+}/b",
        "GET /{a}/{a}",
        "GET /{}",
        "GET /{+}",
        "GET /a{b}",
        "GET //a",
        "GET /a b",
        "$DEFAULT",
    ] {
        assert!(check(wrong).is_err(), "{wrong:?}");
        assert!(
            matches!(Router::default().insert(wrong, ()), Err(RouteError::Key(_))),
            "{wrong:?}"
        );
    }
    let mut router = Router::default();
    router.insert("GET /a/{b}", ()).unwrap();
    assert!(matches!(router.insert("GET /a/{c}", ()), Err(RouteError::Twice(_))));
    for number in 1..ROUTES_MAX {
        router.insert(&format!("GET /{number}"), ()).unwrap();
    }
    assert_eq!(router.insert("$default", ()), Err(RouteError::TooMany));
}
