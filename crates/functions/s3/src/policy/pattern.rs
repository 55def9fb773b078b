//! Patterns: `*` is any text, `?` any character; and policy variables, `${key}`, in documents.

use super::facts::{Facts, Found};

/// A part of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// Any text.
    Any,
    /// Any character.
    One,
    /// This character.
    Char(char),
}

/// The parts of a pattern without variables.
pub(super) fn tokens(pattern: &str) -> Vec<Token> {
    let token = |c| match c {
        '*' => Token::Any,
        '?' => Token::One,
        c => Token::Char(c),
    };
    pattern.chars().map(token).collect()
}

/// The text of a pattern, with its wildcards.
pub(super) fn text(pattern: &[Token]) -> String {
    let character = |token: &Token| match token {
        Token::Any => '*',
        Token::One => '?',
        Token::Char(c) => *c,
    };
    pattern.iter().map(character).collect()
}

/// Returns true if a pattern matches. The time is at most the product of the lengths.
pub(super) fn matches(pattern: &[Token], text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    let (mut at, mut seen) = (0, 0);
    // The position to resume at if the text after the last star does not match.
    let mut retry: Option<(usize, usize)> = None;
    while seen < text.len() {
        match pattern.get(at) {
            Some(Token::Any) => {
                retry = Some((at + 1, seen));
                at += 1;
            }
            Some(&token) if token == Token::One || token == Token::Char(text[seen]) => {
                at += 1;
                seen += 1;
            }
            _ => match retry {
                Some((behind, from)) => {
                    at = behind;
                    seen = from + 1;
                    retry = Some((behind, from + 1));
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|&rest| rest == Token::Any)
}

/// Returns true if a pattern matches every text that begins with `start`: it matches `start`, and
/// ends with a star.
pub(super) fn covers(pattern: &[Token], start: &str) -> bool {
    pattern.last() == Some(&Token::Any) && matches(pattern, start)
}

/// Returns true if a pattern matches a text that begins with `start`.
pub(super) fn may_match(pattern: &[Token], start: &str) -> bool {
    let mut places = vec![false; pattern.len() + 1];
    places[0] = true;
    for c in start.chars() {
        pass_stars(pattern, &mut places);
        let mut next = vec![false; places.len()];
        for (at, token) in pattern.iter().enumerate().filter(|(at, _)| places[*at]) {
            match token {
                Token::Any => next[at] = true,
                Token::One => next[at + 1] = true,
                Token::Char(due) => next[at + 1] |= *due == c,
            }
        }
        places = next;
    }
    places.contains(&true)
}

/// Returns true if a pattern matches a text of which some characters are unknown (`None`): for
/// every value of them, or, `possibly`, for one.
pub(super) fn matches_partly(pattern: &[Token], text: &[Option<char>], possibly: bool) -> bool {
    let mut places = vec![false; pattern.len() + 1];
    places[0] = true;
    for c in text {
        pass_stars(pattern, &mut places);
        let mut next = vec![false; places.len()];
        for (at, token) in pattern.iter().enumerate().filter(|(at, _)| places[*at]) {
            match (token, c) {
                (Token::Any, _) => next[at] = true,
                (Token::One, _) => next[at + 1] = true,
                (Token::Char(due), Some(c)) => next[at + 1] |= due == c,
                (Token::Char(_), None) => next[at + 1] |= possibly,
            }
        }
        places = next;
    }
    pass_stars(pattern, &mut places);
    places.last() == Some(&true)
}

fn pass_stars(pattern: &[Token], places: &mut [bool]) {
    for (at, token) in pattern.iter().enumerate() {
        if places[at] && *token == Token::Any {
            places[at + 1] = true;
        }
    }
}

/// A pattern with variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template {
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Token(Token),
    Variable { key: String, default: Option<String> },
}

/// A pattern after its variables have got their values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Resolved {
    /// It is this one.
    Pattern(Vec<Token>),
    /// A variable has no value: the pattern matches nothing, as in IAM.
    Absent,
    /// The host cannot tell the value of a variable.
    Unknown,
}

impl Template {
    /// Parses a text. `has_wildcards` is true if `*` and `?` stand for other text; `is_known` says
    /// which keys may be variables, and `None` in its place that the text has none.
    ///
    /// # Errors
    /// A variable is not closed, or is unknown.
    pub(super) fn parse(
        text: &str,
        has_wildcards: bool,
        is_known: Option<&dyn Fn(&str) -> bool>,
    ) -> Result<Template, String> {
        let plain = |text: &str| -> Vec<Piece> {
            let literal = |text: &str| text.chars().map(Token::Char).collect::<Vec<_>>();
            let all = if has_wildcards { tokens(text) } else { literal(text) };
            all.into_iter().map(Piece::Token).collect()
        };
        let Some(is_known) = is_known else { return Ok(Template { pieces: plain(text) }) };
        let (mut pieces, mut rest) = (Vec::new(), text);
        while let Some((before, after)) = rest.split_once("${") {
            pieces.extend(plain(before));
            let (inner, after) =
                after.split_once('}').ok_or_else(|| format!("{text:?}: a variable has no end"))?;
            pieces.push(variable(inner, is_known)?);
            rest = after;
        }
        pieces.extend(plain(rest));
        Ok(Template { pieces })
    }

    /// The pattern for a request.
    pub(super) fn resolve(&self, facts: &Facts) -> Resolved {
        let mut pattern = Vec::new();
        for piece in &self.pieces {
            let (key, default) = match piece {
                Piece::Token(token) => {
                    pattern.push(*token);
                    continue;
                }
                Piece::Variable { key, default } => (key, default),
            };
            match (facts.find(key), default) {
                (Found::Values([value]), _) => pattern.extend(value.chars().map(Token::Char)),
                (Found::Absent, Some(value)) => pattern.extend(value.chars().map(Token::Char)),
                (Found::Absent, None) => return Resolved::Absent,
                // Of several values none is the one.
                (Found::Values(_) | Found::Unknown, _) => return Resolved::Unknown,
            }
        }
        Resolved::Pattern(pattern)
    }

    /// Returns true if it matches a text; `unknown` is the answer if the host cannot tell.
    pub(super) fn matches(&self, text: &str, facts: &Facts, unknown: bool) -> bool {
        match self.resolve(facts) {
            Resolved::Pattern(pattern) => matches(&pattern, text),
            Resolved::Absent => false,
            Resolved::Unknown => unknown,
        }
    }

    /// Returns true if it is a literal text.
    pub(super) fn is_text(&self, text: &str) -> bool {
        let all = text.chars().map(|c| Piece::Token(Token::Char(c)));
        all.eq(self.pieces.iter().cloned())
    }

    /// Returns true if it matches every text.
    pub(super) fn is_all(&self) -> bool {
        let is_star = |piece: &Piece| *piece == Piece::Token(Token::Any);
        !self.pieces.is_empty() && self.pieces.iter().all(is_star)
    }
}

fn variable(inner: &str, is_known: &dyn Fn(&str) -> bool) -> Result<Piece, String> {
    // The characters that have a meaning of their own.
    if let "*" | "?" | "$" = inner {
        return Ok(Piece::Token(Token::Char(inner.chars().next().unwrap_or('$'))));
    }
    let (key, default) = match inner.split_once(',') {
        None => (inner.trim(), None),
        Some((key, default)) => {
            let text = default.trim();
            let text = text.strip_prefix('\'').and_then(|text| text.strip_suffix('\''));
            let wrong = || format!("${{{inner}}}: a default is in single quotation marks");
            (key.trim(), Some(text.ok_or_else(wrong)?.to_owned()))
        }
    };
    if !is_known(key) {
        return Err(format!("${{{inner}}}: the host does not know the variable {key:?}"));
    }
    Ok(Piece::Variable { key: key.to_ascii_lowercase(), default })
}

#[cfg(test)]
mod tests {
    use super::*;
    use unlade_testkit::{Random, cases};

    fn word(random: &mut Random, letters: &[char]) -> String {
        let count = random.below(7);
        (0..count).map(|_| letters[random.below(letters.len() as u64) as usize]).collect()
    }

    /// Compares with every text of at most four more letters.
    #[test]
    fn what_may_match_has_an_example() {
        let letters = ['a', 'b'];
        let mut ends = vec![String::new()];
        for length in 0..4 {
            let longer: Vec<_> = ends.iter().filter(|end| end.len() == length).cloned().collect();
            ends.extend(longer.iter().flat_map(|end| letters.map(|c| format!("{end}{c}"))));
        }
        cases(3000, |random| {
            let pattern = word(random, &['a', 'b', '*', '?']);
            let pattern = &pattern[..pattern.len().min(4)];
            let start = word(random, &letters);
            let found = |end: &String| matches(&tokens(pattern), &format!("{start}{end}"));
            let due = ends.iter().any(found);
            assert_eq!(may_match(&tokens(pattern), &start), due, "{pattern} {start}");
        });
    }

    /// Compares with every value of the unknown characters.
    #[test]
    fn what_is_partly_known_matches_for_all_or_one_of_its_values() {
        cases(3000, |random| {
            let pattern = word(random, &['a', 'b', '*', '?']);
            let text = word(random, &['a', 'b', '.']);
            let partly: Vec<_> = text.chars().map(|c| (c != '.').then_some(c)).collect();
            let mut all = vec![text];
            while let Some(at) = all.iter().position(|text| text.contains('.')) {
                let open = all.swap_remove(at);
                // Any other character than those of patterns stands for all of them.
                all.extend(["a", "b", "c"].map(|c| open.replacen('.', c, 1)));
            }
            let pattern = tokens(&pattern);
            let found = all.iter().filter(|text| matches(&pattern, text)).count();
            assert_eq!(
                matches_partly(&pattern, &partly, true),
                found > 0,
                "{pattern:?} {partly:?}"
            );
            if matches_partly(&pattern, &partly, false) {
                assert_eq!(found, all.len(), "{pattern:?} {partly:?}");
            }
            if partly.iter().all(Option::is_some) {
                assert_eq!(matches_partly(&pattern, &partly, false), found > 0);
            }
        });
    }

    #[test]
    fn variables_have_values_defaults_or_match_nothing() {
        let known = |key: &str| key == "aws:Name";
        let template = |text: &str| Template::parse(text, true, Some(&known)).unwrap();
        let facts = Facts::default().with("aws:name", "a*c");
        let is =
            |text: &str, facts: &Facts| template("x/${aws:Name}/*").matches(text, facts, false);
        assert!(is("x/a*c/d", &facts) && !is("x/abc/d", &facts), "a value is no pattern");
        assert!(!is("x//d", &Facts::default()));
        let defaulted = template("${aws:Name, 'no?e'}");
        assert!(defaulted.matches("no?e", &Facts::default(), false));
        assert!(!defaulted.matches("none", &Facts::default(), false));
        let several = Facts::default().with_all("aws:name", ["a", "b"]);
        assert!(is("x/a/d", &Facts::default().with("aws:name", "a")) && !is("x/a/d", &several));
        assert!(template("${*}${?}${$}{a}").matches("*?${a}", &facts, false));
        assert!(Template::parse("${aws:Name}", true, None).unwrap().is_text("${aws:Name}"));
        for wrong in ["${aws:Name", "${aws:Other}", "${aws:Name, x}", "${}"] {
            assert!(Template::parse(wrong, true, Some(&known)).is_err(), "{wrong}");
        }
    }

    /// A recursive definition of matching.
    fn oracle(pattern: &[char], text: &[char]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, None) => true,
            (Some(('*', rest)), _) => {
                oracle(rest, text) || (!text.is_empty() && oracle(pattern, &text[1..]))
            }
            (Some(('?', rest)), Some((_, left))) => oracle(rest, left),
            (Some((wanted, rest)), Some((found, left))) => wanted == found && oracle(rest, left),
            _ => false,
        }
    }

    #[test]
    fn patterns_match_as_recursion_says() {
        cases(5000, |random| {
            let pattern = word(random, &['a', 'b', '/', '*', '?']);
            let text = word(random, &['a', 'b', '/']);
            let due =
                oracle(&pattern.chars().collect::<Vec<_>>(), &text.chars().collect::<Vec<_>>());
            assert_eq!(matches(&tokens(&pattern), &text), due, "{pattern} {text}");
            if covers(&tokens(&pattern), &text) {
                let longer = text + &word(random, &['a', 'b', '/']);
                assert!(matches(&tokens(&pattern), &longer), "{pattern} covers {longer}");
            }
        });
    }
}
