//! The client of services: routes, keys, and exchanges over kept connections.

use std::borrow::Cow;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use tokio_rustls::TlsConnector;
use unlade_guest_protocol::{RequestHead, RequestMethod};
use unlade_http::Method;
use unlade_metrics::CutRefusal;
use unlade_s3::policy::facts::Environment;

use super::config::ServicesConfig;
use super::refusal::Refusal;
use super::route::{self, Origin};
use super::services::Service;
use super::sign::{Scope, fields};
use crate::config_error::ConfigError;
use crate::store::credentials::Keys;
use crate::store::http::{self, Dial};
use crate::store::pool::Pool;
use crate::store::{Body, Incoming, TransportError};
use crate::tls::tls;

/// The services that a tenant's functions reach.
pub struct Services {
    aws: bool,
    keys: Option<Keys>,
    endpoints: HashMap<String, Endpoint>,
    dial: Dial,
    read_timeout: Duration,
    pool: Rc<Pool>,
}

/// An endpoint of the operator.
struct Endpoint {
    origin: Origin,
    /// Its own keys, if it has some; `Some(None)`: requests are not signed.
    keys: Option<Option<Keys>>,
}

/// The destination of a request.
#[derive(Debug)]
pub struct Route<'a> {
    /// The server.
    pub origin: Origin,
    /// The scope of the signature.
    pub scope: (String, &'static str),
    /// True if keys of the function's own sign it.
    pub has_own_keys: bool,
    keys: Option<Cow<'a, Keys>>,
}

impl std::fmt::Debug for Services {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Services").field("aws", &self.aws).finish_non_exhaustive()
    }
}

impl Services {
    /// Creates the client of a configuration.
    ///
    /// # Errors
    /// Keys or certificate authorities are missing.
    pub fn new(config: &ServicesConfig) -> Result<Services, ConfigError> {
        let keys = if config.needs_keys() { config.credentials.keys()? } else { None };
        let mut endpoints = HashMap::new();
        for (name, endpoint) in &config.endpoint {
            let own = endpoint.credentials.as_ref().map(|credentials| credentials.keys());
            let keys = own.transpose()?;
            // The configuration was checked.
            if let Some(origin) = Origin::parse(&endpoint.url) {
                endpoints.insert(name.clone(), Endpoint { origin, keys });
            }
        }
        let connector = match config.needs_tls() {
            true => Some(TlsConnector::from(tls(config.ca.as_deref(), "[services] ca")?)),
            false => None,
        };
        Ok(Services {
            aws: config.aws,
            keys,
            endpoints,
            dial: Dial { tls: connector, timeout: config.connect_timeout },
            read_timeout: config.read_timeout,
            pool: Rc::new(Pool::new(config.idle_connections_max, config.idle_timeout)),
        })
    }

    /// True if requests to the service go to AWS itself.
    pub fn is_aws(&self, service: &Service) -> bool {
        !self.endpoints.contains_key(service.name)
    }

    /// The circumstances of a request now.
    pub fn environment(&self, service: &Service, head: &RequestHead) -> Environment {
        let region = service.fixed_region.unwrap_or(&head.region).to_owned();
        let has_tls = self.endpoints.get(service.name).is_none_or(|own| own.origin.tls);
        Environment { now: SystemTime::now(), region, has_tls, is_deferred: false }
    }

    /// The destination of a request that the role allows.
    ///
    /// # Errors
    /// The operator has configured none, or the host cannot sign for it.
    pub fn route(&self, service: &Service, head: &RequestHead) -> Result<Route<'_>, Refusal> {
        route::check_region(&head.region)?;
        let (origin, region, keys) = match self.endpoints.get(service.name) {
            Some(Endpoint { origin, keys }) => {
                let region = service.fixed_region.unwrap_or(&head.region).to_owned();
                let keys = keys.as_ref().map_or(self.keys.as_ref(), Option::as_ref);
                (origin.clone(), region, keys)
            }
            None if self.aws => {
                let (origin, region) = route::aws(service, &head.region)?;
                (origin, region, self.keys.as_ref())
            }
            None => {
                let why = format!(
                    "no endpoint of the service {} is configured; the operator sets `aws = true` in \
                     [services] of fn.toml, or `url` in [services.endpoint.{}]",
                    service.name, service.name
                );
                return Err(Refusal::new(CutRefusal::Endpoint, why));
            }
        };
        let own = head.credentials.as_ref().map(|keys| Cow::Owned(Keys::from(keys)));
        let has_own_keys = own.is_some() && !head.unsigned;
        let keys = own.or(keys.map(Cow::Borrowed)).filter(|_| !head.unsigned);
        if service.needs_v4a && keys.is_some() {
            let why = format!("{} needs Signature Version 4a, which the host lacks", service.name);
            return Err(Refusal::new(CutRefusal::Endpoint, why));
        }
        Ok(Route { origin, scope: (region, service.signing), has_own_keys, keys })
    }

    /// Sends a request once. A silence of the service longer than that of the function's client, or
    /// than `limit`, is a timeout.
    ///
    /// # Errors
    /// The service cannot be reached, or the connection broke.
    pub async fn send(
        &self,
        route: &Route<'_>,
        head: &RequestHead,
        body: &Body,
        limit: Duration,
    ) -> Result<Incoming, TransportError> {
        let written = written(route, head, body)?;
        let asked = head.read_timeout_ms.map(Duration::from_millis);
        let silence = asked.unwrap_or(self.read_timeout).min(limit);
        let Origin { tls, host, port } = &route.origin;
        // A connection is kept for the same server only.
        let name = route.origin.url("");
        let connection = match self.pool.take(&name) {
            Some(kept) => kept,
            None => self.dial.connect(&name, (host, *port), *tls).await?,
        };
        let connection = connection.patient(silence);
        http::exchange(connection, &written, body.bytes(), method(head.method), &self.pool).await
    }
}

/// The head of a request, signed, as bytes.
fn written(route: &Route<'_>, head: &RequestHead, body: &Body) -> Result<Vec<u8>, TransportError> {
    let mark = if head.query.is_empty() { "" } else { "?" };
    let target = format!("{}{mark}{}", head.path, head.query);
    let method = head.method.as_str();
    let mut headers = head.headers.clone();
    // Otherwise a server may choose an encoding, which no parser of an SDK expects.
    if !head.has_header("accept-encoding") {
        headers.push(("accept-encoding".to_owned(), "identity".to_owned()));
    }
    let has_body = !body.bytes().is_empty();
    if has_body || !matches!(head.method, RequestMethod::Get | RequestMethod::Head) {
        headers.push(("content-length".to_owned(), body.bytes().len().to_string()));
    }
    if let Some(keys) = &route.keys {
        let url = route.origin.url(&target);
        let scope = Scope { region: &route.scope.0, service: route.scope.1 };
        let request = (method, url.as_str(), &headers[..]);
        let signed = fields(keys, scope, request, body.sha256(), SystemTime::now())?;
        headers.extend(signed);
    }
    let host = route.origin.authority();
    let mut out = format!("{method} {target} HTTP/1.1\r\nhost: {host}\r\n");
    for (name, value) in &headers {
        out.push_str(name);
        out.push_str(": ");
        out.push_str(value);
        out.push_str("\r\n");
    }
    out.push_str("\r\n");
    Ok(out.into_bytes())
}

fn method(method: RequestMethod) -> Method {
    match method {
        RequestMethod::Get => Method::Get,
        RequestMethod::Head => Method::Head,
        RequestMethod::Put => Method::Put,
        RequestMethod::Post => Method::Post,
        RequestMethod::Patch => Method::Patch,
        RequestMethod::Delete => Method::Delete,
    }
}

#[cfg(test)]
mod tests {
    use super::super::services::find;
    use super::super::told::tests::head;
    use super::*;
    use unlade_guest_protocol::request_keys::RequestKeys;
    use unlade_testkit::cases;

    fn services(text: &str) -> Services {
        let config: ServicesConfig = unlade_config::parse(text, "test").unwrap();
        config.check().unwrap();
        Services::new(&config).unwrap()
    }

    const KEYS: &str = "credentials = { from = \"keys\", access_key_id = \"a\", \
                        secret_access_key = \"b\" }\n";

    fn refusal(services: &Services, service: &str, region: &str) -> Refusal {
        let mut head = head(service, "", &[]);
        head.region = region.into();
        services.route(find(service).unwrap(), &head).unwrap_err()
    }

    #[test]
    fn a_service_without_an_endpoint_is_reached_nowhere() {
        let own = services(&format!("{KEYS}[endpoint.sqs]\nurl = \"http://127.0.0.1:1\"\n"));
        let refused = refusal(&own, "dynamodb", "us-east-1");
        assert_eq!(refused.kind, CutRefusal::Endpoint);
        assert!(refused.why.contains("[services.endpoint.dynamodb]"), "{}", refused.why);
        let found = own.route(find("sqs").unwrap(), &head("sqs", "", &[])).unwrap();
        assert_eq!(found.origin.url("/"), "http://127.0.0.1:1/");
        assert_eq!(refusal(&own, "sqs", "evil/").kind, CutRefusal::Region);
        let aws = services(&format!("aws = true\nca = {:?}\n{KEYS}", authority()));
        let found = aws.route(find("dynamodb").unwrap(), &head("dynamodb", "", &[])).unwrap();
        assert_eq!(found.origin.url("/"), "https://dynamodb.us-east-1.amazonaws.com/");
        assert_eq!(refusal(&aws, "partnercentral-channel", "us-east-1").kind, CutRefusal::Endpoint);
    }

    /// A file with a certificate.
    fn authority() -> String {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), made.cert.pem()).unwrap();
        let (_, path) = file.keep().unwrap();
        path.display().to_string()
    }

    #[test]
    fn a_head_has_the_hosts_signature_unless_the_client_wants_none() {
        let own = services(&format!("{KEYS}[endpoint.iam]\nurl = \"http://127.0.0.1:1\"\n"));
        let mut head = head("iam", "", &[("x-a", "b")]);
        head.region = "eu-west-1".into();
        let body = Body::from(b"x".to_vec());
        let service = find("iam").unwrap();
        let text = |head: &RequestHead| {
            let route = own.route(service, head).unwrap();
            String::from_utf8(written(&route, head, &body).unwrap()).unwrap()
        };
        let signed = text(&head);
        assert!(
            signed.starts_with("POST / HTTP/1.1\r\nhost: 127.0.0.1:1\r\nx-a: b\r\n"),
            "{signed}"
        );
        assert!(signed.contains("content-length: 1\r\n"));
        assert!(signed.contains("Credential=a/") && signed.contains("/us-east-1/iam/aws4_request"));
        head.unsigned = true;
        let plain = text(&head);
        assert!(!plain.contains("authorization") && plain.contains("x-a: b"), "{plain}");
    }

    #[test]
    fn keys_of_the_functions_own_sign_in_place_of_the_hosts() {
        let of = |keys: &str| format!("{keys}[endpoint.sqs]\nurl = \"http://127.0.0.1:1\"\n");
        let anonymous = "credentials = { from = \"anonymous\" }\n";
        let own = Some(RequestKeys {
            access_key_id: "OWN".into(),
            secret_access_key: "c".into(),
            session_token: Some("t".into()),
        });
        for keys in [KEYS, anonymous] {
            let services = services(&of(keys));
            let mut head = head("sqs", "", &[]);
            let text = |head: &RequestHead| {
                let route = services.route(find("sqs").unwrap(), head).unwrap();
                String::from_utf8(written(&route, head, &Body::default()).unwrap()).unwrap()
            };
            assert_eq!(text(&head).contains("Credential=a/"), keys == KEYS);
            head.credentials = own.clone();
            let signed = text(&head);
            assert!(signed.contains("Credential=OWN/"), "{signed}");
            assert!(signed.contains("\r\nx-amz-security-token: t\r\n"), "{signed}");
            head.unsigned = true;
            assert!(!text(&head).contains("Credential="));
        }
    }

    /// Whatever a decoded head has: the written head is one request to the route's host.
    #[test]
    fn a_written_head_is_one_request() {
        let own = services(
            "[endpoint.lambda]\nurl = \"http://h:1\"\n\
                            credentials = { from = \"anonymous\" }\n",
        );
        let letters: Vec<char> = "/aA.%20:\r\n ?#\\".chars().collect();
        cases(2000, |random| {
            let mut word = |most: u64| -> String {
                let count = random.below(most);
                (0..count).map(|_| letters[random.below(letters.len() as u64) as usize]).collect()
            };
            let (path, name, value) = (format!("/{}", word(8)), word(4), word(4));
            let mut head = head("lambda", "", &[(&name, &value)]);
            (head.path, head.query) = (path, word(4));
            let Ok((head, _)) = RequestHead::decode(&head.to_json()) else { return };
            let route = own.route(find("lambda").unwrap(), &head).unwrap();
            let text =
                String::from_utf8(written(&route, &head, &Body::default()).unwrap()).unwrap();
            let lines: Vec<_> = text.split("\r\n").collect();
            assert_eq!(lines.len(), 7, "{text}");
            assert_eq!(lines[0].split(' ').count(), 3, "{text}");
            assert_eq!(lines[1], "host: h:1");
            let fields = lines.iter().filter(|line| line.starts_with("host:"));
            assert_eq!(fields.count(), 1);
        });
    }
}
