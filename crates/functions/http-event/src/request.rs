//! An HTTP request, and the circumstances that its event names beside it.

use std::collections::BTreeMap;

/// An HTTP request.
#[derive(Clone, Copy, Debug)]
pub struct HttpRequest<'a> {
    /// `GET`.
    pub method: &'a str,
    /// The path as received, percent-encoded; begins with `/`.
    pub path: &'a str,
    /// The query as received, without `?`.
    pub query: &'a str,
    /// `HTTP/1.1`.
    pub protocol: &'a str,
    /// Header fields in their order; names are in small letters.
    pub headers: &'a [(String, String)],
    /// The body.
    pub body: &'a [u8],
    /// The address of the client.
    pub source_ip: &'a str,
}

impl<'a> HttpRequest<'a> {
    /// The first value of a header field; `name` is in small letters.
    pub fn header(&self, name: &str) -> Option<&'a str> {
        let mut found = self.headers.iter().filter(|(own, _)| own == name);
        found.next().map(|(_, value)| value.as_str())
    }
}

/// The authenticated caller of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The access key that signed.
    pub access_key: String,
    /// The account.
    pub account: String,
    /// The ARN of the caller.
    pub arn: String,
    /// The name of the caller.
    pub name: String,
}

/// The circumstances of a request.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The account of the API; `anonymous` for URLs without authentication.
    pub account: &'a str,
    /// The identifier of the URL or API.
    pub api_id: &'a str,
    /// The host name of the request.
    pub domain_name: &'a str,
    /// The identifier of the request.
    pub request_id: &'a str,
    /// The time of the request, in milliseconds since the UNIX epoch.
    pub time_ms: u64,
    /// The name of the stage.
    pub stage: &'a str,
    /// The variables of the stage.
    pub stage_variables: &'a BTreeMap<String, String>,
    /// The key of the route: `GET /pets/{id}`.
    pub route_key: &'a str,
    /// The path of the route: `/pets/{id}`.
    pub resource: &'a str,
    /// The values of the variables in the route's path.
    pub path_parameters: &'a BTreeMap<String, String>,
    /// The caller; `None` without authentication.
    pub identity: Option<&'a Identity>,
}
