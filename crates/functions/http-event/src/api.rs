//! The definition of an HTTP API, durable: stages, routes, and the functions behind them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cors::Cors;
use crate::route::{RouteError, Router};

/// The stage whose name is no part of a path.
pub const DEFAULT_STAGE: &str = "$default";
/// Shortest and longest time of an integration, in milliseconds, as in API Gateway.
pub const TIMEOUTS_MS: std::ops::RangeInclusive<u32> = 50..=30_000;
/// Most stages of an API, as in API Gateway.
pub const STAGES_MAX: usize = 10;
/// The beginning of an integration's URI, behind the region, and its end.
const PATH: (&str, &str) = (":lambda:path/2015-03-31/functions/", "/invocations");

/// The payload format of an integration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    /// 1.0.
    #[serde(rename = "1.0")]
    V1,
    /// 2.0.
    #[default]
    #[serde(rename = "2.0")]
    V2,
}

impl Format {
    /// Parses the number of a format.
    pub fn parse(text: &str) -> Option<Format> {
        match text {
            "1.0" => Some(Format::V1),
            "2.0" => Some(Format::V2),
            _ => None,
        }
    }
}

/// A function behind routes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Integration {
    /// The ARN of the function, version or alias.
    pub function: String,
    /// The format of events and results.
    pub format: Format,
    /// Time in which the function has to answer, in milliseconds.
    pub timeout_ms: u32,
}

impl Integration {
    /// The function that a URI names: the ARN of a function, or the path of its invocation in
    /// `arn:aws:apigateway:REGION:lambda:path/…`.
    ///
    /// # Errors
    /// It names none.
    pub fn function_of(uri: &str) -> Result<String, String> {
        let found = match uri.split_once(PATH.0) {
            Some((region, rest)) if region.starts_with("arn:aws:apigateway:") => {
                rest.strip_suffix(PATH.1)
            }
            _ => Some(uri),
        };
        let is_arn =
            |arn: &&str| arn.starts_with("arn:aws:lambda:") && !arn.contains(['$', '/', ' ']);
        found.filter(is_arn).map(str::to_owned).ok_or_else(|| {
            format!("{uri:?} is not the ARN of a function, nor the path of its invocation")
        })
    }
}

/// A declared route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Its key: `GET /pets/{id}`, `$default`.
    pub key: String,
    /// The identifier of its integration.
    pub integration: String,
}

/// A stage: the place at which callers find the API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// Variables that events name.
    #[serde(default)]
    pub variables: BTreeMap<String, String>,
}

/// An HTTP API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Api {
    /// The tenant that owns it.
    pub tenant: String,
    /// The resource of a stack that it is.
    pub token: String,
    /// Its name.
    pub name: String,
    /// Cross-origin requests; those of a document in `body` otherwise.
    #[serde(default)]
    pub cors: Option<Cors>,
    /// Routes of its document, with their functions.
    #[serde(default)]
    pub body: Vec<(String, Integration)>,
    /// Declared routes, by identifier.
    #[serde(default)]
    pub routes: BTreeMap<String, Route>,
    /// Declared integrations, by identifier.
    #[serde(default)]
    pub integrations: BTreeMap<String, Integration>,
    /// Stages, by name.
    #[serde(default)]
    pub stages: BTreeMap<String, Stage>,
}

impl Api {
    /// All routes. A route whose integration does not exist any more is `None`.
    ///
    /// # Errors
    /// A route is invalid or there twice, or there are too many.
    pub fn router(&self) -> Result<Router<Option<Integration>>, RouteError> {
        let mut router = Router::default();
        for (key, integration) in &self.body {
            router.insert(key, Some(integration.clone()))?;
        }
        for route in self.routes.values() {
            router.insert(&route.key, self.integrations.get(&route.integration).cloned())?;
        }
        Ok(router)
    }

    /// The stage of a path, and the rest of the path within it. A stage other than `$default` is the first
    /// segment of the path.
    pub fn stage<'a>(&'a self, path: &'a str) -> Option<(&'a str, &'a Stage, &'a str)> {
        let inner = path.strip_prefix('/').unwrap_or(path);
        let (first, rest) = match inner.find('/') {
            Some(at) => inner.split_at(at),
            None => (inner, "/"),
        };
        let named = self.stages.get_key_value(first).filter(|(name, _)| *name != DEFAULT_STAGE);
        match named {
            Some((name, stage)) => Some((name, stage, rest)),
            None => self.stages.get(DEFAULT_STAGE).map(|stage| (DEFAULT_STAGE, stage, path)),
        }
    }
}

/// Returns true for a name of a stage.
pub fn is_stage(name: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    name == DEFAULT_STAGE || (1..=128).contains(&name.len()) && name.bytes().all(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARN: &str = "arn:aws:lambda:us-east-1:000000000000:function:f:live";

    fn integration() -> Integration {
        Integration { function: ARN.to_owned(), format: Format::V2, timeout_ms: 30_000 }
    }

    #[test]
    fn a_uri_names_a_function() {
        let path = format!("arn:aws:apigateway:us-east-1{}{ARN}{}", PATH.0, PATH.1);
        assert_eq!(Integration::function_of(ARN).as_deref(), Ok(ARN));
        assert_eq!(Integration::function_of(&path).as_deref(), Ok(ARN));
        for wrong in ["https://example.com", "arn:aws:sqs:us-east-1:0:q", &path[..path.len() - 1]] {
            assert!(Integration::function_of(wrong).is_err(), "{wrong}");
        }
        assert!(Integration::function_of(&format!("{ARN}${{stageVariables.x}}")).is_err());
    }

    #[test]
    fn a_stage_is_the_first_segment_or_the_default() {
        let stages = |names: &[&str]| Api {
            stages: names.iter().map(|name| ((*name).to_owned(), Stage::default())).collect(),
            ..Api::default()
        };
        let of = |api: &Api, path: &str| {
            api.stage(path).map(|(name, _, rest)| (name.to_owned(), rest.to_owned()))
        };
        let found = |name: &str, rest: &str| Some((name.to_owned(), rest.to_owned()));
        let both = stages(&[DEFAULT_STAGE, "dev"]);
        assert_eq!(of(&both, "/dev/a/b"), found("dev", "/a/b"));
        assert_eq!(of(&both, "/dev"), found("dev", "/"));
        assert_eq!(of(&both, "/a/b"), found(DEFAULT_STAGE, "/a/b"));
        assert_eq!(of(&both, "/$default/a"), found(DEFAULT_STAGE, "/$default/a"));
        assert_eq!(of(&stages(&["dev"]), "/a"), None);
        assert!(is_stage("$default") && is_stage("v1-a_b") && !is_stage("") && !is_stage("a/b"));
    }

    #[test]
    fn a_route_has_its_integration_or_none() {
        let route = |key: &str| Route { key: key.to_owned(), integration: "i".to_owned() };
        let mut api = Api { body: vec![("GET /a".to_owned(), integration())], ..Api::default() };
        api.routes.insert("r".to_owned(), route("GET /b"));
        api.integrations.insert("i".to_owned(), integration());
        let router = api.router().unwrap();
        assert_eq!(router.find("GET", "/a").unwrap().value, &Some(integration()));
        assert_eq!(router.find("GET", "/b").unwrap().value, &Some(integration()));
        api.integrations.clear();
        assert_eq!(api.router().unwrap().find("GET", "/b").unwrap().value, &None);
        api.routes.insert("s".to_owned(), route("GET /a"));
        assert_eq!(api.router().unwrap_err(), RouteError::Twice("GET /a".to_owned()));
        let text = serde_json::to_string(&api).unwrap();
        assert_eq!(serde_json::from_str::<Api>(&text).unwrap(), api);
    }
}
