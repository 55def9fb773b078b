//! The tables of services and of operations by path: `services.txt` and `operations.txt`, which
//! `guest/python/tests/aws_tables.py` makes from botocore's descriptions.

use std::collections::HashMap;
use std::sync::OnceLock;

use unlade_guest_protocol::RequestHead;
use unlade_metrics::CutRefusal;

use super::refusal::Refusal;

const SERVICES: &str = include_str!("services.txt");
const OPERATIONS: &str = include_str!("operations.txt");

/// A service of AWS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its name, as boto3 has it.
    pub name: &'static str,
    /// Its host name, with `{region}`.
    pub host: &'static str,
    /// Its name in signatures.
    pub signing: &'static str,
    /// Its name in the actions of policies.
    pub action: &'static str,
    /// The region of signatures, if its host has no region.
    pub fixed_region: Option<&'static str>,
    /// True if it needs Signature Version 4a.
    pub needs_v4a: bool,
    /// Its protocols: `json`, `query`, `rest`, `cbor`, separated by commas.
    protocols: &'static str,
    /// The first part of `x-amz-target`.
    pub target: Option<&'static str>,
}

impl Service {
    /// True if it speaks a protocol.
    pub fn speaks(&self, protocol: &str) -> bool {
        self.protocols.split(',').any(|spoken| spoken == protocol)
    }
}

/// An operation that is known by its method and path.
#[derive(Clone, Copy, Debug)]
struct ByPath {
    method: &'static str,
    path: &'static str,
    query: &'static str,
    operation: &'static str,
}

fn table() -> &'static HashMap<&'static str, Service> {
    static TABLE: OnceLock<HashMap<&'static str, Service>> = OnceLock::new();
    TABLE.get_or_init(|| SERVICES.lines().filter_map(service).map(|s| (s.name, s)).collect())
}

fn service(line: &'static str) -> Option<Service> {
    let mut words = line.split(' ');
    let mut next = || words.next();
    let (name, host, signing, action) = (next()?, next()?, next()?, next()?);
    let (fixed, signature, protocols, target) = (next()?, next()?, next()?, next()?);
    let said = |word: &'static str| (word != "-").then_some(word);
    Some(Service {
        name,
        host,
        signing,
        action,
        fixed_region: said(fixed),
        needs_v4a: signature == "v4a",
        protocols,
        target: said(target),
    })
}

fn paths() -> &'static HashMap<&'static str, Vec<ByPath>> {
    static TABLE: OnceLock<HashMap<&'static str, Vec<ByPath>>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table: HashMap<&'static str, Vec<ByPath>> = HashMap::new();
        for line in OPERATIONS.lines() {
            let words: Vec<&'static str> = line.split(' ').collect();
            let [service, method, path, query, operation] = words[..] else { continue };
            let query = if query == "-" { "" } else { query };
            let by_path = ByPath { method, path, query, operation };
            table.entry(service).or_default().push(by_path);
        }
        table
    })
}

/// The service with this name.
///
/// # Errors
/// No service that the host carries has this name.
pub fn find(name: &str) -> Result<&'static Service, Refusal> {
    table().get(name).ok_or_else(|| {
        let why = match name {
            "s3" => "S3 is carried by its operations, not as a request".to_owned(),
            name => format!("the host does not carry the service {name}"),
        };
        Refusal::new(CutRefusal::Service, why)
    })
}

/// The service of a request. Where the guest has only the name in signatures, services that share
/// it are told apart by `x-amz-target`, by an operation's path, or by the name of boto3.
///
/// # Errors
/// No service, or more than one, fits.
pub fn of_request(head: &RequestHead) -> Result<&'static Service, Refusal> {
    if !head.signing_name {
        return find(&head.service);
    }
    let mut fitting: Vec<_> = table().values().filter(|s| s.signing == head.service).collect();
    if let Some((target, _)) = head.header("x-amz-target").and_then(|t| t.rsplit_once('.')) {
        fitting.retain(|service| service.target == Some(target));
    } else if fitting.len() > 1 {
        let by_path = |service: &&&Service| by_path(service, head).is_some();
        let named = |service: &&&Service| service.name == head.service;
        let of_path: Vec<_> = fitting.iter().filter(by_path).copied().collect();
        fitting = match of_path.is_empty() {
            true => fitting.iter().filter(named).copied().collect(),
            false => of_path,
        };
    }
    match fitting.as_slice() {
        [service] => Ok(service),
        [] => find(&head.service),
        _ => {
            let why = format!(
                "several services sign as {}, and the request fits more than one",
                head.service
            );
            Err(Refusal::new(CutRefusal::Service, why))
        }
    }
}

/// An operation that was found by method and path, and the variable segments of its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The operation.
    pub operation: &'static str,
    /// Names and encoded values of variable segments.
    pub segments: Vec<(&'static str, String)>,
}

/// The operation of a request by its method and path; `None` if the service's operations are not in
/// the table, if none is found, if several are, or if the query has encoded names: the service decodes
/// them.
pub fn by_path(service: &Service, head: &RequestHead) -> Option<Found> {
    let is_encoded =
        |field: &str| field.split('=').next().is_some_and(|name| name.contains(['%', '+']));
    if head.query.split('&').any(is_encoded) {
        return None;
    }
    let mut found = Vec::new();
    for candidate in paths().get(service.name)? {
        let is_method = candidate.method == head.method.as_str();
        if let (true, Some(segments)) = (is_method, candidate.segments(&head.path, &head.query)) {
            found.push(Found { operation: candidate.operation, segments });
        }
    }
    // A literal segment goes before a variable one.
    let fewest = found.iter().map(|found| found.segments.len()).min()?;
    found.retain(|found| found.segments.len() == fewest);
    if found.len() == 1 { found.pop() } else { None }
}

impl ByPath {
    fn segments(&self, path: &str, query: &str) -> Option<Vec<(&'static str, String)>> {
        let has = |wanted: &str| query.split('&').any(|field| field == wanted);
        if !self.query.is_empty() && !self.query.split('&').all(has) {
            return None;
        }
        let (mut due, mut is) = (self.path.split('/'), path.split('/'));
        let mut out = Vec::new();
        loop {
            match (due.next(), is.next()) {
                (None, None) => return Some(out),
                (Some(due), Some(first)) => {
                    let name = due.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
                    match name.map(|name| (name, name.strip_suffix('+'))) {
                        Some((_, Some(name))) => {
                            // The rest of the path; nothing follows it in the table.
                            let rest = std::iter::once(first).chain(is);
                            out.push((name, rest.collect::<Vec<_>>().join("/")));
                            return Some(out);
                        }
                        Some((_, None)) if first.is_empty() => return None,
                        Some((name, None)) => out.push((name, first.to_owned())),
                        None if due == first => {}
                        None => return None,
                    }
                }
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unlade_guest_protocol::RequestMethod;

    fn head(method: RequestMethod, path: &str, query: &str) -> RequestHead {
        RequestHead {
            service: "lambda".into(),
            signing_name: false,
            operation: String::new(),
            region: "us-east-1".into(),
            method,
            path: path.into(),
            query: query.into(),
            headers: Vec::new(),
            body_bytes: 0,
            inline: false,
            unsigned: false,
            read_timeout_ms: None,
        }
    }

    #[test]
    fn the_tables_are_whole() {
        assert_eq!(table().len(), SERVICES.lines().count());
        assert!(table().len() > 400);
        for service in table().values() {
            assert!(["amazonaws.com", ".api.aws"].iter().any(|end| service.host.ends_with(end)));
            let is_regional = service.host.contains("{region}");
            assert_eq!(is_regional, service.fixed_region.is_none(), "{}", service.name);
        }
        let count: usize = paths().values().map(Vec::len).sum();
        assert_eq!(count, OPERATIONS.lines().count());
        assert!(paths().keys().all(|name| find(name).is_ok()));
        let dynamodb = find("dynamodb").unwrap();
        assert_eq!(dynamodb.host, "dynamodb.{region}.amazonaws.com");
        assert!(dynamodb.speaks("json") && !dynamodb.speaks("query"));
        assert_eq!(find("iam").unwrap().fixed_region, Some("us-east-1"));
        for name in ["s3", "s3control", "", "dynamodb.evil", "-"] {
            assert_eq!(find(name).unwrap_err().kind, CutRefusal::Service, "{name}");
        }
    }

    #[test]
    fn a_service_is_found_by_its_name_in_signatures() {
        let signed = |service: &str, target: Option<&str>, path: &str| {
            let headers = target.map(|target| ("x-amz-target".to_owned(), target.to_owned()));
            let request = RequestHead {
                service: service.into(),
                signing_name: true,
                headers: headers.into_iter().collect(),
                ..head(RequestMethod::Post, path, "")
            };
            of_request(&request).map(|service| service.name).ok()
        };
        assert_eq!(signed("monitoring", None, "/"), Some("cloudwatch"));
        assert_eq!(table()["resourcegroupstaggingapi"].action, "tag", "as IAM's actions");
        assert_eq!(signed("sqs", Some("AmazonSQS.SendMessage"), "/"), Some("sqs"));
        let streams = Some("DynamoDBStreams_20120810.GetRecords");
        assert_eq!(signed("dynamodb", streams, "/"), Some("dynamodbstreams"));
        let table = Some("DynamoDB_20120810.GetItem");
        assert_eq!(signed("dynamodb", table, "/"), Some("dynamodb"));
        let invoke = "/2015-03-31/functions/f/invocations";
        assert_eq!(signed("lambda", None, invoke), Some("lambda"));
        // An operation's path comes before the name: several services are signed as `bedrock`.
        let converse = "/model/m/converse";
        assert_eq!(signed("bedrock", None, converse), Some("bedrock-runtime"));
        assert_eq!(signed("bedrock", None, "/foundation-models"), Some("bedrock"));
        // Of a service that is carried, without its target: its name decides, and its protocol then
        // refuses the request.
        assert_eq!(signed("dynamodb", Some("Other.GetItem"), "/"), Some("dynamodb"));
        for nobody in ["s3", "evil", ""] {
            assert_eq!(signed(nobody, None, "/"), None, "{nobody}");
        }
    }

    #[test]
    fn an_operation_is_found_by_method_and_path() {
        let lambda = find("lambda").unwrap();
        let operation = |method, path: &str| {
            by_path(lambda, &head(method, path, "")).map(|found| found.operation)
        };
        let invoke = "/2015-03-31/functions/f%3A1/invocations";
        assert_eq!(operation(RequestMethod::Post, invoke), Some("Invoke"));
        assert_eq!(operation(RequestMethod::Get, invoke), None);
        assert_eq!(operation(RequestMethod::Get, "/2015-03-31/functions/f"), Some("GetFunction"));
        assert_eq!(operation(RequestMethod::Get, "/2015-03-31/functions"), Some("ListFunctions"));
        assert_eq!(operation(RequestMethod::Delete, "/2015-03-31/functions/"), None);
        assert_eq!(operation(RequestMethod::Get, "/2015-03-31/%66unctions/f"), None);
        let found = by_path(lambda, &head(RequestMethod::Post, invoke, "Qualifier=1")).unwrap();
        assert_eq!(found.segments, [("FunctionName", "f%3A1".to_owned())]);
    }
}
