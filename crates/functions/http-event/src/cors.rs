//! Cross-origin requests (Fetch standard, *CORS protocol*), answered by the configuration of a URL or API in
//! place of the function.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Most entries of a list.
pub const ENTRIES_MAX: usize = 100;
/// Longest entry of a list, in bytes.
pub const ENTRY_BYTES_MAX: usize = 1024;
/// Longest time for which a browser keeps the answer, in seconds.
pub const AGE_MAX_S: i64 = 86_400;
/// Header fields of responses that the configuration decides about.
const OWN: &str = "access-control-";

/// The configuration of cross-origin requests. Empty lists allow nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cors {
    /// True if requests may have credentials.
    #[serde(default)]
    pub allow_credentials: Option<bool>,
    /// Header fields that requests may have.
    #[serde(default)]
    pub allow_headers: Vec<String>,
    /// Methods of requests.
    #[serde(default)]
    pub allow_methods: Vec<String>,
    /// Origins of requests: `https://example.com`, `https://*`, `*`.
    #[serde(default)]
    pub allow_origins: Vec<String>,
    /// Header fields of responses that pages may read.
    #[serde(default)]
    pub expose_headers: Vec<String>,
    /// Time for which a browser keeps the answer, in seconds.
    #[serde(default)]
    pub max_age_s: Option<i64>,
}

/// A header field.
type Field = (String, String);

fn field(name: &str, value: impl Into<String>) -> Field {
    (format!("{OWN}{name}"), value.into())
}

impl Cors {
    /// Reads a configuration with members as `AllowOrigins` or `allowOrigins`.
    ///
    /// # Errors
    /// A member is unknown, or out of its range.
    pub fn from_value(value: &Value) -> Result<Cors, String> {
        let members = value.as_object().ok_or("the configuration of CORS must be an object")?;
        let mut cors = Cors::default();
        for (name, value) in members.iter().filter(|(_, value)| !value.is_null()) {
            match name.to_ascii_lowercase().as_str() {
                "allowcredentials" => cors.allow_credentials = Some(flag(name, value)?),
                "allowheaders" => cors.allow_headers = list(name, value)?,
                "allowmethods" => cors.allow_methods = list(name, value)?,
                "alloworigins" => cors.allow_origins = list(name, value)?,
                "exposeheaders" => cors.expose_headers = list(name, value)?,
                "maxage" => cors.max_age_s = Some(age_s(name, value)?),
                _ => return Err(format!("{name} of CORS is not served: leave it out")),
            }
        }
        Ok(cors)
    }

    /// The configuration as Lambda's API has it.
    pub fn to_value(&self) -> Value {
        let mut members = Map::new();
        let mut add = |name: &str, value: Value| {
            members.insert(name.to_owned(), value);
        };
        for (name, list) in [
            ("AllowHeaders", &self.allow_headers),
            ("AllowMethods", &self.allow_methods),
            ("AllowOrigins", &self.allow_origins),
            ("ExposeHeaders", &self.expose_headers),
        ] {
            if !list.is_empty() {
                add(name, json!(list));
            }
        }
        if let Some(flag) = self.allow_credentials {
            add("AllowCredentials", flag.into());
        }
        if let Some(age_s) = self.max_age_s {
            add("MaxAge", age_s.into());
        }
        Value::Object(members)
    }

    /// Returns true if pages of an origin may make requests.
    fn allows(&self, origin: &str) -> bool {
        self.allow_origins.iter().any(|own| match own.strip_suffix("://*") {
            Some(scheme) => origin.strip_prefix(scheme).is_some_and(|rest| rest.starts_with("://")),
            None => own == "*" || own == origin,
        })
    }

    fn has_credentials(&self) -> bool {
        self.allow_credentials == Some(true)
    }

    /// The fields that every response to an origin has.
    fn of_origin(&self, origin: &str) -> Vec<Field> {
        let is_public = self.allow_origins.iter().any(|own| own == "*") && !self.has_credentials();
        let mut fields = vec![field("allow-origin", if is_public { "*" } else { origin })];
        if self.has_credentials() {
            fields.push(field("allow-credentials", "true"));
        }
        fields
    }

    /// The fields of the response to a preflight request: none for an origin that is not allowed.
    pub fn preflight(&self, asked: &Preflight<'_>) -> Vec<Field> {
        if !self.allows(asked.origin) {
            return Vec::new();
        }
        let mut fields = self.of_origin(asked.origin);
        for (name, list, wanted) in [
            ("allow-methods", &self.allow_methods, asked.method),
            ("allow-headers", &self.allow_headers, asked.headers),
        ] {
            // With credentials, `*` is no wildcard for browsers.
            let is_wild = self.has_credentials() && list.iter().any(|own| own == "*");
            let text = if is_wild { wanted.to_owned() } else { list.join(",") };
            if !text.is_empty() {
                fields.push(field(name, text));
            }
        }
        if let Some(age_s) = self.max_age_s {
            fields.push(field("max-age", age_s.to_string()));
        }
        fields.push(("vary".to_owned(), "origin".to_owned()));
        fields
    }

    /// The fields of the response to another request than a preflight, which replace those of the function
    /// that are [own](is_own).
    pub fn response(&self, origin: Option<&str>) -> Vec<Field> {
        let mut headers = Vec::new();
        if let Some(origin) = origin.filter(|origin| self.allows(origin)) {
            headers.extend(self.of_origin(origin));
            if !self.expose_headers.is_empty() {
                headers.push(field("expose-headers", self.expose_headers.join(",")));
            }
        }
        headers.push(("vary".to_owned(), "origin".to_owned()));
        headers
    }
}

/// Returns true for header fields of responses that a configuration decides about. Names are in small letters.
pub fn is_own(name: &str) -> bool {
    name.starts_with(OWN)
}

/// The question of a browser if it may make a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preflight<'a> {
    origin: &'a str,
    method: &'a str,
    headers: &'a str,
}

impl<'a> Preflight<'a> {
    /// The question in a request; `None` if it is another request. Names of fields are in small letters.
    pub fn of(method: &str, headers: &'a [Field]) -> Option<Preflight<'a>> {
        let find = |wanted: &str| {
            headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str())
        };
        let asked = Preflight {
            origin: find("origin")?,
            method: find("access-control-request-method")?,
            headers: find("access-control-request-headers").unwrap_or_default(),
        };
        (method == "OPTIONS").then_some(asked)
    }
}

fn flag(name: &str, value: &Value) -> Result<bool, String> {
    match value {
        Value::Bool(flag) => Ok(*flag),
        Value::String(text) if text.eq_ignore_ascii_case("true") => Ok(true),
        Value::String(text) if text.eq_ignore_ascii_case("false") => Ok(false),
        _ => Err(format!("{name} must be true or false")),
    }
}

fn age_s(name: &str, value: &Value) -> Result<i64, String> {
    let number = match value {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    let number = number.filter(|age_s| (-1..=AGE_MAX_S).contains(age_s));
    number.ok_or_else(|| format!("{name} must be a number of seconds up to {AGE_MAX_S}"))
}

/// A list of texts that are values of header fields.
fn list(name: &str, value: &Value) -> Result<Vec<String>, String> {
    let wrong = || {
        format!(
            "{name} must be a list of at most {ENTRIES_MAX} texts, without commas, spaces and line ends"
        )
    };
    let entries = value.as_array().filter(|all| all.len() <= ENTRIES_MAX).ok_or_else(wrong)?;
    let is_right = |text: &&str| {
        (1..=ENTRY_BYTES_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',')
    };
    let entry = |entry: &Value| entry.as_str().filter(is_right).map(str::to_owned);
    entries.iter().map(entry).collect::<Option<_>>().ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&str, &str)]) -> Vec<Field> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn asked(origin: &str) -> Vec<Field> {
        fields(&[
            ("origin", origin),
            ("access-control-request-method", "PUT"),
            ("access-control-request-headers", "x-a"),
        ])
    }

    #[test]
    fn a_preflight_is_a_question_of_a_browser() {
        let headers = asked("https://a.example");
        assert!(Preflight::of("OPTIONS", &headers).is_some());
        assert_eq!(Preflight::of("GET", &headers), None);
        assert_eq!(Preflight::of("OPTIONS", &headers[..1]), None);
        assert_eq!(Preflight::of("OPTIONS", &headers[1..]), None);
    }

    #[test]
    fn an_origin_is_named_by_itself_its_scheme_or_all() {
        for (own, origin, is_allowed) in [
            ("*", "https://a.example", true),
            ("https://a.example", "https://a.example", true),
            ("https://a.example", "https://a.example.evil", false),
            ("https://a.example", "http://a.example", false),
            ("https://*", "https://b.example:8443", true),
            ("https://*", "http://b.example", false),
            ("http://*", "https://b.example", false),
        ] {
            let cors = Cors { allow_origins: vec![own.to_owned()], ..Cors::default() };
            assert_eq!(cors.allows(origin), is_allowed, "{own} {origin}");
        }
        assert!(!Cors::default().allows("https://a.example"));
    }

    #[test]
    fn answers_have_the_configured_fields() {
        let cors = Cors::from_value(&json!({
            "AllowOrigins": ["https://a.example"], "AllowMethods": ["GET", "PUT"],
            "AllowHeaders": ["x-a"], "ExposeHeaders": ["x-b"], "MaxAge": "60",
        }))
        .unwrap();
        let headers = asked("https://a.example");
        let answer = cors.preflight(&Preflight::of("OPTIONS", &headers).unwrap());
        let due = fields(&[
            ("access-control-allow-origin", "https://a.example"),
            ("access-control-allow-methods", "GET,PUT"),
            ("access-control-allow-headers", "x-a"),
            ("access-control-max-age", "60"),
            ("vary", "origin"),
        ]);
        assert_eq!(answer, due);
        let headers = asked("https://evil.example");
        assert_eq!(cors.preflight(&Preflight::of("OPTIONS", &headers).unwrap()), []);
        let due = fields(&[
            ("access-control-allow-origin", "https://a.example"),
            ("access-control-expose-headers", "x-b"),
            ("vary", "origin"),
        ]);
        assert_eq!(cors.response(Some("https://a.example")), due);
        let others = fields(&[("vary", "origin")]);
        assert_eq!(cors.response(Some("https://evil.example")), others);
        assert_eq!(cors.response(None), others);
        assert!(is_own("access-control-allow-origin") && !is_own("x-b"));
    }

    #[test]
    fn with_credentials_nothing_is_a_wildcard() {
        let cors = Cors::from_value(&json!({
            "allowOrigins": ["*"], "allowMethods": ["*"], "allowHeaders": ["*"],
            "allowCredentials": true,
        }))
        .unwrap();
        let headers = asked("https://a.example");
        let answer = cors.preflight(&Preflight::of("OPTIONS", &headers).unwrap());
        let due = fields(&[
            ("access-control-allow-origin", "https://a.example"),
            ("access-control-allow-credentials", "true"),
            ("access-control-allow-methods", "PUT"),
            ("access-control-allow-headers", "x-a"),
            ("vary", "origin"),
        ]);
        assert_eq!(answer, due);
        let public = Cors { allow_credentials: None, ..cors };
        let answer = public.preflight(&Preflight::of("OPTIONS", &headers).unwrap());
        assert!(answer.contains(&field("allow-origin", "*")), "{answer:?}");
    }

    #[test]
    fn a_configuration_is_read_as_it_was_written_and_wrong_ones_are_refused() {
        let cors = Cors::from_value(&json!({"AllowOrigins": ["*"], "MaxAge": 1})).unwrap();
        assert_eq!(Cors::from_value(&cors.to_value()), Ok(cors));
        for wrong in [
            json!([]),
            json!({"AllowOrigins": "*"}),
            json!({"AllowOrigins": ["a\r\nb"]}),
            json!({"AllowOrigins": vec!["a"; ENTRIES_MAX + 1]}),
            json!({"MaxAge": 86_401}),
            json!({"AllowCredentials": 1}),
            json!({"Unheard": 1}),
        ] {
            assert!(Cors::from_value(&wrong).is_err(), "{wrong}");
        }
    }
}
