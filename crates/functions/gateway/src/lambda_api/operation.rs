//! The operation of a request: its method and path (AWS Lambda API reference).

use hyper::Method;
use unlade_fn_model::lambda::EVENT_BYTES_MAX;

/// Largest Zip archive in a request, as in Lambda.
pub const ZIP_BYTES_MAX: usize = 50 << 20;
/// Largest body with an archive in it: base64, and room for the other parameters.
const CODE_REQUEST_BYTES_MAX: usize = ZIP_BYTES_MAX / 3 * 4 + (1 << 20);

macro_rules! kinds {
    ($($kind:ident,)*) => {
        /// The operations of the life cycle.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind {
            $($kind,)*
        }

        impl Kind {
            /// All of them.
            #[cfg(test)]
            pub const ALL: &[Kind] = &[$(Kind::$kind,)*];
        }
    };
}

kinds! {
    CreateFunction,
    ListFunctions,
    GetFunction,
    GetFunctionConfiguration,
    DeleteFunction,
    UpdateFunctionCode,
    UpdateFunctionConfiguration,
    PublishVersion,
    ListVersionsByFunction,
    CreateAlias,
    GetAlias,
    UpdateAlias,
    DeleteAlias,
    ListAliases,
    PutFunctionConcurrency,
    GetFunctionConcurrency,
    DeleteFunctionConcurrency,
    PutProvisionedConcurrencyConfig,
    GetProvisionedConcurrencyConfig,
    DeleteProvisionedConcurrencyConfig,
    TagResource,
    UntagResource,
    ListTags,
    AddPermission,
    RemovePermission,
    GetPolicy,
    PutFunctionEventInvokeConfig,
    UpdateFunctionEventInvokeConfig,
    GetFunctionEventInvokeConfig,
    DeleteFunctionEventInvokeConfig,
    ListFunctionEventInvokeConfigs,
    CreateEventSourceMapping,
    GetEventSourceMapping,
    ListEventSourceMappings,
    UpdateEventSourceMapping,
    DeleteEventSourceMapping,
    CreateFunctionUrlConfig,
    GetFunctionUrlConfig,
    UpdateFunctionUrlConfig,
    DeleteFunctionUrlConfig,
    ListFunctionUrlConfigs,
    GetAccountSettings,
    GetFunctionCodeSigningConfig,
}

/// An operation, with the parameters in its path, still percent-encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The operation.
    pub(super) kind: Kind,
    /// The function, the ARN of a resource, or the UUID of a mapping.
    pub(super) target: String,
    /// The alias or the statement.
    pub(super) item: String,
}

impl Operation {
    /// The operation of a request; `None` if it is none of the life cycle.
    pub fn of(method: &Method, path: &[&str]) -> Option<Operation> {
        let (version, rest) = path.split_first()?;
        let method = method.as_str();
        let (kind, target, item) = match (method, *version, rest) {
            ("POST", "2015-03-31", ["functions"]) => (Kind::CreateFunction, "", ""),
            ("GET", "2015-03-31", ["functions"]) => (Kind::ListFunctions, "", ""),
            (_, "2015-03-31", ["functions", name, rest @ ..]) => {
                let (kind, item) = of_function(method, rest)?;
                (kind, *name, item)
            }
            ("GET", "2019-09-25", ["functions", name, "event-invoke-config", "list"]) => {
                (Kind::ListFunctionEventInvokeConfigs, *name, "")
            }
            ("POST", "2015-03-31", ["event-source-mappings"]) => {
                (Kind::CreateEventSourceMapping, "", "")
            }
            ("GET", "2015-03-31", ["event-source-mappings"]) => {
                (Kind::ListEventSourceMappings, "", "")
            }
            (_, "2015-03-31", ["event-source-mappings", uuid]) => {
                let kind = match method {
                    "GET" => Kind::GetEventSourceMapping,
                    "PUT" => Kind::UpdateEventSourceMapping,
                    "DELETE" => Kind::DeleteEventSourceMapping,
                    _ => return None,
                };
                (kind, *uuid, "")
            }
            (_, _, ["functions", name, last]) => {
                (of_later_versions(method, version, last)?, *name, "")
            }
            ("GET", "2016-08-19", ["account-settings"]) => (Kind::GetAccountSettings, "", ""),
            (_, "2017-03-31", ["tags", arn]) => {
                let kind = match method {
                    "GET" => Kind::ListTags,
                    "POST" => Kind::TagResource,
                    "DELETE" => Kind::UntagResource,
                    _ => return None,
                };
                (kind, *arn, "")
            }
            _ => return None,
        };
        Some(Operation { kind, target: target.to_owned(), item: item.to_owned() })
    }

    /// Its kind.
    #[cfg(test)]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Most bytes of its body.
    pub fn body_bytes_max(&self) -> usize {
        match self.kind {
            Kind::CreateFunction | Kind::UpdateFunctionCode => CODE_REQUEST_BYTES_MAX,
            _ => EVENT_BYTES_MAX,
        }
    }
}

fn of_function<'a>(method: &str, rest: &[&'a str]) -> Option<(Kind, &'a str)> {
    Some(match (method, rest) {
        ("GET", []) => (Kind::GetFunction, ""),
        ("DELETE", []) => (Kind::DeleteFunction, ""),
        ("GET", ["configuration"]) => (Kind::GetFunctionConfiguration, ""),
        ("PUT", ["configuration"]) => (Kind::UpdateFunctionConfiguration, ""),
        ("PUT", ["code"]) => (Kind::UpdateFunctionCode, ""),
        ("POST", ["versions"]) => (Kind::PublishVersion, ""),
        ("GET", ["versions"]) => (Kind::ListVersionsByFunction, ""),
        ("POST", ["aliases"]) => (Kind::CreateAlias, ""),
        ("GET", ["aliases"]) => (Kind::ListAliases, ""),
        ("GET", ["aliases", alias]) => (Kind::GetAlias, alias),
        ("PUT", ["aliases", alias]) => (Kind::UpdateAlias, alias),
        ("DELETE", ["aliases", alias]) => (Kind::DeleteAlias, alias),
        ("POST", ["policy"]) => (Kind::AddPermission, ""),
        ("GET", ["policy"]) => (Kind::GetPolicy, ""),
        ("DELETE", ["policy", statement]) => (Kind::RemovePermission, statement),
        _ => return None,
    })
}

fn of_later_versions(method: &str, version: &str, last: &str) -> Option<Kind> {
    Some(match (method, version, last) {
        ("PUT", "2017-10-31", "concurrency") => Kind::PutFunctionConcurrency,
        ("DELETE", "2017-10-31", "concurrency") => Kind::DeleteFunctionConcurrency,
        ("GET", "2019-09-30", "concurrency") => Kind::GetFunctionConcurrency,
        ("PUT", "2019-09-30", "provisioned-concurrency") => Kind::PutProvisionedConcurrencyConfig,
        ("GET", "2019-09-30", "provisioned-concurrency") => Kind::GetProvisionedConcurrencyConfig,
        ("DELETE", "2019-09-30", "provisioned-concurrency") => {
            Kind::DeleteProvisionedConcurrencyConfig
        }
        ("PUT", "2019-09-25", "event-invoke-config") => Kind::PutFunctionEventInvokeConfig,
        ("POST", "2019-09-25", "event-invoke-config") => Kind::UpdateFunctionEventInvokeConfig,
        ("GET", "2019-09-25", "event-invoke-config") => Kind::GetFunctionEventInvokeConfig,
        ("DELETE", "2019-09-25", "event-invoke-config") => Kind::DeleteFunctionEventInvokeConfig,
        ("POST", "2021-10-31", "url") => Kind::CreateFunctionUrlConfig,
        ("GET", "2021-10-31", "url") => Kind::GetFunctionUrlConfig,
        ("PUT", "2021-10-31", "url") => Kind::UpdateFunctionUrlConfig,
        ("DELETE", "2021-10-31", "url") => Kind::DeleteFunctionUrlConfig,
        ("GET", "2021-10-31", "urls") => Kind::ListFunctionUrlConfigs,
        ("GET", "2020-06-30", "code-signing-config") => Kind::GetFunctionCodeSigningConfig,
        _ => return None,
    })
}

/// A request of each operation on the function `victim`, for tests of all of them.
#[cfg(test)]
pub fn example(kind: Kind) -> (&'static str, &'static str) {
    const PLAIN: &str = "/2015-03-31/functions/victim";
    const ARN: &str = "/2017-03-31/tags/arn:aws:lambda:us-east-1:000000000000:function:victim";
    const EVENTS: &str = "/2019-09-25/functions/victim/event-invoke-config";
    const MAPPING: &str = "/2015-03-31/event-source-mappings/mapping-of-victim";
    const URL: &str = "/2021-10-31/functions/victim/url";
    const LATER: &str = "/2019-09-30/functions/victim/provisioned-concurrency?Qualifier=1";
    match kind {
        Kind::CreateFunction => ("POST", "/2015-03-31/functions"),
        Kind::ListFunctions => ("GET", "/2015-03-31/functions"),
        Kind::GetFunction => ("GET", PLAIN),
        Kind::GetFunctionConfiguration => ("GET", "/2015-03-31/functions/victim/configuration"),
        Kind::DeleteFunction => ("DELETE", PLAIN),
        Kind::UpdateFunctionCode => ("PUT", "/2015-03-31/functions/victim/code"),
        Kind::UpdateFunctionConfiguration => ("PUT", "/2015-03-31/functions/victim/configuration"),
        Kind::PublishVersion => ("POST", "/2015-03-31/functions/victim/versions"),
        Kind::ListVersionsByFunction => ("GET", "/2015-03-31/functions/victim/versions"),
        Kind::CreateAlias => ("POST", "/2015-03-31/functions/victim/aliases"),
        Kind::GetAlias => ("GET", "/2015-03-31/functions/victim/aliases/live"),
        Kind::UpdateAlias => ("PUT", "/2015-03-31/functions/victim/aliases/live"),
        Kind::DeleteAlias => ("DELETE", "/2015-03-31/functions/victim/aliases/live"),
        Kind::ListAliases => ("GET", "/2015-03-31/functions/victim/aliases"),
        Kind::PutFunctionConcurrency => ("PUT", "/2017-10-31/functions/victim/concurrency"),
        Kind::GetFunctionConcurrency => ("GET", "/2019-09-30/functions/victim/concurrency"),
        Kind::DeleteFunctionConcurrency => ("DELETE", "/2017-10-31/functions/victim/concurrency"),
        Kind::PutProvisionedConcurrencyConfig => ("PUT", LATER),
        Kind::GetProvisionedConcurrencyConfig => ("GET", LATER),
        Kind::DeleteProvisionedConcurrencyConfig => ("DELETE", LATER),
        Kind::TagResource => ("POST", ARN),
        Kind::UntagResource => ("DELETE", ARN),
        Kind::ListTags => ("GET", ARN),
        Kind::AddPermission => ("POST", "/2015-03-31/functions/victim/policy"),
        Kind::RemovePermission => ("DELETE", "/2015-03-31/functions/victim/policy/sid"),
        Kind::GetPolicy => ("GET", "/2015-03-31/functions/victim/policy"),
        Kind::PutFunctionEventInvokeConfig => ("PUT", EVENTS),
        Kind::UpdateFunctionEventInvokeConfig => ("POST", EVENTS),
        Kind::GetFunctionEventInvokeConfig => ("GET", EVENTS),
        Kind::DeleteFunctionEventInvokeConfig => ("DELETE", EVENTS),
        Kind::ListFunctionEventInvokeConfigs => {
            ("GET", "/2019-09-25/functions/victim/event-invoke-config/list")
        }
        Kind::CreateEventSourceMapping => ("POST", "/2015-03-31/event-source-mappings/"),
        Kind::ListEventSourceMappings => {
            ("GET", "/2015-03-31/event-source-mappings/?FunctionName=victim")
        }
        Kind::GetEventSourceMapping => ("GET", MAPPING),
        Kind::UpdateEventSourceMapping => ("PUT", MAPPING),
        Kind::DeleteEventSourceMapping => ("DELETE", MAPPING),
        Kind::CreateFunctionUrlConfig => ("POST", URL),
        Kind::GetFunctionUrlConfig => ("GET", URL),
        Kind::UpdateFunctionUrlConfig => ("PUT", URL),
        Kind::DeleteFunctionUrlConfig => ("DELETE", URL),
        Kind::ListFunctionUrlConfigs => ("GET", "/2021-10-31/functions/victim/urls"),
        Kind::GetAccountSettings => ("GET", "/2016-08-19/account-settings"),
        Kind::GetFunctionCodeSigningConfig => {
            ("GET", "/2020-06-30/functions/victim/code-signing-config")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(method: &str, path: &str) -> Option<(Kind, String, String)> {
        let parts: Vec<&str> = path.split('/').collect();
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        Operation::of(&method, &parts).map(|own| (own.kind, own.target, own.item))
    }

    #[test]
    fn operations_have_their_parameters() {
        let own = |kind, target: &str, item: &str| Some((kind, target.to_owned(), item.to_owned()));
        assert_eq!(of("POST", "2015-03-31/functions"), own(Kind::CreateFunction, "", ""));
        let alias = of("PUT", "2015-03-31/functions/f/aliases/prod");
        assert_eq!(alias, own(Kind::UpdateAlias, "f", "prod"));
        let provisioned = of("GET", "2019-09-30/functions/f/provisioned-concurrency");
        assert_eq!(provisioned, own(Kind::GetProvisionedConcurrencyConfig, "f", ""));
        assert_eq!(of("DELETE", "2017-03-31/tags/arn%3A"), own(Kind::UntagResource, "arn%3A", ""));
        for (method, path) in [
            ("PATCH", "2015-03-31/functions/f"),
            ("POST", "2015-03-31/functions/f/invocations"),
            ("GET", "2015-03-31/layers"),
            ("PUT", "2019-09-30/functions/f/concurrency"),
            ("GET", ""),
        ] {
            assert_eq!(of(method, path), None, "{method} {path}");
        }
    }
}
