//! Every route with every kind of request that must be denied: no signature, invalid ones, callers
//! of other tenants, services. Each denial is counted once, by its reason.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::LocalSet;
use unlade_fn_model::Manifest;
use unlade_fn_model::destination::Target;
use unlade_fn_model::isolation::{Image, Isolation, IsolationError, Local, Template};
use unlade_fn_model::lifecycle::{EventConfigChange, Record, Statement};
use unlade_fn_model::manifest::Backend;
use unlade_fn_model::source::{Mapping, MappingChange};
use unlade_metrics::{Event, FnDenial, Meter, Role};

use super::*;
use crate::auth::{CONTENT_SHA256, Keys, SKEW_MAX, sign_request};
use crate::config::{DEFAULT_ROLE, GatewayConfig, KeyPair};
use crate::deploy;
use crate::lambda_api::{OperationKind, example};
use crate::permission::{SOURCE_ACCOUNT, SOURCE_ARN, tenant_arn};
use crate::permit::role_arn;
use crate::tenants::{Own, Tenants};

const INVOKE: &str = "/2015-03-31/functions/victim/invocations";
const SERVICE: &str = "s3.amazonaws.com";
const QUEUE: &str = "arn:aws:sqs:us-east-1:000000000000:q";
const BUCKET: &str = "arn:aws:s3:::photos";

type Fields = Vec<(String, String)>;

/// Starts nothing: the requests of these tests reach no instance.
struct Nothing;

impl Isolation for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }

    fn probe(&self) -> Result<(), IsolationError> {
        Ok(())
    }

    fn prepare<'a>(&'a self, _: &'a Image) -> Local<'a, Result<Rc<dyn Template>, IsolationError>> {
        let why = "nothing starts".to_owned();
        Box::pin(async { Err(IsolationError::Unusable { backend: "nothing", why }) })
    }
}

fn pair(id: &str) -> KeyPair {
    KeyPair { access_key_id: id.to_owned(), secret_access_key: format!("secret of {id}") }
}

/// A gateway with the function `victim` of the tenant `owner`; the tenant `guest` has none.
struct Bed {
    host: Rc<Host>,
    address: SocketAddr,
    _state: tempfile::TempDir,
    _ending: watch::Sender<bool>,
}

impl Bed {
    async fn start() -> Bed {
        let state = tempfile::tempdir().unwrap();
        let text =
            format!("state = \"{}\"\n[tenant.owner]\n[tenant.guest]\n", state.path().display());
        let config: GatewayConfig = unlade_config::parse(&text, "fn.toml").unwrap();
        let tenants = Tenants::start(&config, Path::new("/nothing"), None, Own::default()).unwrap();
        let backend: Rc<dyn Isolation> = Rc::new(Nothing);
        let backends = HashMap::from([(Backend::default(), backend)]);
        let meter = Arc::new(Meter::for_role(Role::Gateway));
        let host = Host::new(config, backends, tenants, None, PathBuf::new(), meter);
        let mut keys = Keys::default();
        keys.add("owner", pair("OWNER")).unwrap();
        keys.add("guest", pair("GUEST")).unwrap();
        keys.add_of(Caller::Service(SERVICE.to_owned()), pair("SERVICE")).unwrap();
        *host.keys.borrow_mut() = Some(keys);
        let manifest = Manifest::of_handler("app.handler");
        let mut record = Record::new("owner", deploy::edition(manifest, 1, &[], &deploy::stamp()));
        let queue = Target::parse(QUEUE).unwrap();
        let mapping = Mapping::new(queue).unwrap();
        record.add_source("mapping-of-victim", &mapping, MappingChange::default(), 1).unwrap();
        let retries = EventConfigChange { retries: Some(1), ..EventConfigChange::default() };
        record.configure_events(None, retries, true, 1).unwrap();
        std::fs::create_dir_all(deploy::code(state.path(), "victim", 1)).unwrap();
        let made = host.make_edition("victim", "owner", Version::Latest, &record.latest).unwrap();
        host.registry.change("victim", |_| Ok((Some(record), ()))).await.unwrap();
        host.publish(&made);
        let events = Events::open(state.path()).unwrap();
        let (tell, ending) = watch::channel(false);
        let (about, denials) = (Box::new(|| json!({})), Denials::default());
        let stacks = StackService::open(&host);
        let api = Rc::new(Api { host: host.clone(), events, about, ending, denials, stacks });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::task::spawn_local(serve(api, listener));
        Bed { host, address, _state: state, _ending: tell }
    }

    fn counts(&self) -> Vec<u64> {
        let value = |reason: &FnDenial| self.host.meter.value(Event::FnDenied(*reason));
        FnDenial::ALL.iter().map(value).collect()
    }

    fn sign(&self, keys: &KeyPair, asked: &Asked, more: &[(&str, &str)], at: SystemTime) -> Fields {
        let host = self.address.to_string();
        let what = (asked.method, asked.target.as_str(), host.as_str());
        let mut fields = sign_request(keys, what, more, asked.body.as_bytes(), at).unwrap();
        fields.extend(more.iter().map(|(name, value)| ((*name).into(), (*value).into())));
        fields
    }

    /// Sends a request; returns the status, the error's code and the body.
    async fn send(&self, asked: &Asked, fields: &Fields) -> (u16, String, String) {
        let Asked { method, target, body } = asked;
        let mut text = format!("{method} {target} HTTP/1.1\r\nhost: {}\r\n", self.address);
        for (name, value) in fields {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        let length = body.len();
        text.push_str(&format!("content-length: {length}\r\nconnection: close\r\n\r\n{body}"));
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let code = head.lines().find_map(|line| line.strip_prefix("x-amzn-errortype: "));
        (status, code.unwrap_or_default().to_owned(), body.to_owned())
    }

    /// Sends a request that must be denied for one reason.
    async fn denied(&self, name: &str, asked: &Asked, fields: &Fields, due: (u16, FnDenial)) {
        let before = self.counts();
        let (status, code, body) = self.send(asked, fields).await;
        let what = format!("{name}: {} {}: {status} {code} {body}", asked.method, asked.target);
        assert_eq!(status, due.0, "{what}");
        assert!(!code.is_empty(), "{what}");
        let counted = self.counts().into_iter().zip(before).map(|(after, before)| after - before);
        let is_due = FnDenial::ALL.iter().map(|reason| u64::from(*reason == due.1));
        assert!(counted.eq(is_due), "{what}: counted {:?}", self.counts());
    }
}

/// A request, not signed.
#[derive(Clone, Debug)]
struct Asked {
    method: &'static str,
    target: String,
    body: String,
}

/// The requests of all operations of the life cycle, and of the other routes.
fn all() -> Vec<(Option<OperationKind>, Asked)> {
    let of = |(method, target): (&'static str, &str), kind: Option<OperationKind>| {
        let body = match (kind, target) {
            (Some(kind), _) => body(kind).to_string(),
            (None, "/") => "Action=ListStacks&Version=2010-05-15".to_owned(),
            (None, _) => "{}".to_owned(),
        };
        (kind, Asked { method, target: target.to_owned(), body })
    };
    let life = OperationKind::ALL.iter().map(|kind| of(example(*kind), Some(*kind)));
    life.chain(others().map(|place| of(place, None))).collect()
}

fn others() -> [(&'static str, &'static str); 5] {
    [
        ("POST", INVOKE),
        ("PUT", "/unlade/v1/functions/victim"),
        ("GET", "/unlade/v1/state"),
        ("GET", "/unlade/v1/functions/victim/logs"),
        ("POST", "/"),
    ]
}

/// The parameters that an operation needs before it looks at its function.
fn body(kind: OperationKind) -> Value {
    match kind {
        OperationKind::CreateFunction => json!({
            "FunctionName": "victim", "Runtime": "python3.11", "Handler": "app.handler",
            "Role": role_arn(DEFAULT_ROLE), "Code": {"ZipFile": "eA=="}}),
        OperationKind::UpdateFunctionCode => json!({"ZipFile": "eA=="}),
        OperationKind::CreateAlias => json!({"Name": "live", "FunctionVersion": "1"}),
        OperationKind::PutFunctionConcurrency => json!({"ReservedConcurrentExecutions": 1}),
        OperationKind::PutProvisionedConcurrencyConfig => {
            json!({"ProvisionedConcurrentExecutions": 1})
        }
        OperationKind::PutFunctionEventInvokeConfig
        | OperationKind::UpdateFunctionEventInvokeConfig => json!({"MaximumRetryAttempts": 0}),
        OperationKind::CreateEventSourceMapping => {
            json!({"FunctionName": "victim", "EventSourceArn": QUEUE})
        }
        OperationKind::UpdateEventSourceMapping => json!({"BatchSize": 1}),
        OperationKind::TagResource => json!({"Tags": {"a": "b"}}),
        OperationKind::AddPermission => json!({
            "StatementId": "sid", "Action": "lambda:InvokeFunction", "Principal": "*"}),
        _ => json!({}),
    }
}

/// A new route is compiled only after it has been added to [`others`].
fn number(route: &Route) -> usize {
    match route {
        Route::Life(_) => usize::MAX,
        Route::Invocation(_) => 0,
        Route::Deployment(_) => 1,
        Route::State => 2,
        Route::Logs(_) => 3,
        Route::Form => 4,
    }
}

fn within<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

#[test]
fn every_route_has_a_request_here() {
    for (kind, asked) in all() {
        let path = asked.target.split('?').next().unwrap();
        let method = asked.method.parse().unwrap();
        match (Route::of(&method, path).unwrap(), kind) {
            (Route::Life(operation), Some(kind)) => assert_eq!(operation.kind(), kind),
            (route, None) => {
                let place = (asked.method, asked.target.as_str());
                assert_eq!(others()[number(&route)], place);
            }
            (_, kind) => panic!("{kind:?} {asked:?}"),
        }
    }
    assert_eq!(all().len(), OperationKind::ALL.len() + others().len());
}

/// The service in the signature of a request to a target.
fn service_of(target: &str) -> &'static str {
    if target == "/" { "/cloudformation/" } else { "/lambda/" }
}

fn replaced(fields: &Fields, name: &str, from: &str, to: &str) -> Fields {
    let replace = |(found, value): &(String, String)| {
        let value = if found == name { value.replace(from, to) } else { value.clone() };
        (found.clone(), value)
    };
    let out: Fields = fields.iter().map(replace).collect();
    assert_ne!(out, *fields, "{name}: {from}");
    out
}

fn with(fields: &Fields, name: &str, value: &str) -> Fields {
    fields.iter().cloned().chain([(name.to_owned(), value.to_owned())]).collect()
}

#[test]
fn a_wrong_signature_is_denied_by_every_route() {
    within(async {
        let bed = Bed::start().await;
        let before = bed.host.registry.get("victim");
        let (owner, now) = (pair("OWNER"), SystemTime::now());
        for (_, asked) in all() {
            let good = bed.sign(&owner, &asked, &[], now);
            let guessed = KeyPair { secret_access_key: "guess".to_owned(), ..owner.clone() };
            let margin = SKEW_MAX + Duration::from_secs(60);
            let sign = |keys: &KeyPair, at| bed.sign(keys, &asked, &[], at);
            let sum = good.iter().find(|(name, _)| name == CONTENT_SHA256).unwrap().1.clone();
            let date = good.iter().find(|(name, _)| name == "x-amz-date").unwrap().1.clone();
            let sums = (sum.as_str(), "UNSIGNED-PAYLOAD");
            for (name, fields, reason) in [
                ("unsigned", Fields::new(), FnDenial::Missing),
                (
                    "another scheme",
                    with(&Fields::new(), "authorization", "Basic dTpw"),
                    FnDenial::Incomplete,
                ),
                ("another secret", sign(&guessed, now), FnDenial::Signature),
                ("an unknown key", sign(&pair("NOBODY"), now), FnDenial::Unrecognised),
                ("an old date", sign(&owner, now - margin), FnDenial::Expired),
                ("a later date", sign(&owner, now + margin), FnDenial::Expired),
                (
                    "another service",
                    replaced(&good, "authorization", service_of(&asked.target), "/s3/"),
                    FnDenial::Signature,
                ),
                (
                    "another region",
                    replaced(&good, "authorization", "us-east-1", "eu-west-1"),
                    FnDenial::Signature,
                ),
                (
                    "no signed body",
                    replaced(&good, CONTENT_SHA256, sums.0, sums.1),
                    FnDenial::Signature,
                ),
                ("a date twice", with(&good, "x-amz-date", &date), FnDenial::Incomplete),
                ("a field more", with(&good, "x-amz-log-type", "Tail"), FnDenial::Incomplete),
                ("signed twice", with(&good, "authorization", "x"), FnDenial::Incomplete),
            ] {
                bed.denied(name, &asked, &fields, (403, reason)).await;
            }
            let end = if asked.target.contains('?') { '&' } else { '?' };
            let other = Asked { target: format!("{}{end}a=b", asked.target), ..asked.clone() };
            bed.denied("another query", &other, &good, (403, FnDenial::Signature)).await;
            // A presigned URL: Lambda has none, whether or not it has expired.
            let query = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Expires=60&X-Amz-Signature=00";
            let url = Asked { target: format!("{}{end}{query}", asked.target), ..asked.clone() };
            bed.denied("a presigned URL", &url, &Fields::new(), (403, FnDenial::Missing)).await;
            let altered = Asked { body: format!("{} ", asked.body), ..asked.clone() };
            // Without the hash in a field, the body itself is what was signed.
            let fields = good.iter().filter(|(name, _)| name != CONTENT_SHA256);
            let fields = replaced(
                &fields.cloned().collect(),
                "authorization",
                &format!("{CONTENT_SHA256};"),
                "",
            );
            bed.denied("another body", &altered, &fields, (403, FnDenial::Signature)).await;
        }
        assert_eq!(bed.host.registry.get("victim"), before);
    });
}

/// The hash of a body is compared when the body is read: a route that refuses a request for another
/// reason before need not read it.
#[test]
fn another_body_than_the_signed_one_has_no_effect() {
    within(async {
        let bed = Bed::start().await;
        let before = bed.host.registry.get("victim");
        let (owner, now) = (pair("OWNER"), SystemTime::now());
        for (_, asked) in all() {
            let good = bed.sign(&owner, &asked, &[], now);
            let altered = Asked { body: format!("{} ", asked.body), ..asked.clone() };
            bed.denied("another body", &altered, &good, (403, FnDenial::Signature)).await;
        }
        assert_eq!(bed.host.registry.get("victim"), before);
    });
}

#[test]
fn a_caller_of_another_tenant_is_denied_by_every_route() {
    within(async {
        let bed = Bed::start().await;
        let before = bed.host.registry.get("victim");
        let (guest, now) = (pair("GUEST"), SystemTime::now());
        for (kind, asked) in all() {
            let fields = bed.sign(&guest, &asked, &[], now);
            let is_deployment = asked.method == "PUT";
            match kind {
                // These are about the caller's own tenant.
                Some(OperationKind::ListFunctions | OperationKind::GetAccountSettings) => {
                    let (status, _, text) = bed.send(&asked, &fields).await;
                    assert!(status == 200 && !text.contains("victim"), "{asked:?}: {text}");
                }
                None if asked.target.ends_with("/state") || asked.target == "/" => {
                    let (status, _, text) = bed.send(&asked, &fields).await;
                    let has_owner = text.contains("victim") || text.contains("owner");
                    assert!(status == 200 && !has_owner, "{text}");
                }
                Some(OperationKind::CreateFunction) => {
                    bed.denied("taken", &asked, &fields, (409, FnDenial::Tenant)).await;
                }
                None if is_deployment => {
                    bed.denied("taken", &asked, &fields, (409, FnDenial::Tenant)).await;
                }
                _ => bed.denied("foreign", &asked, &fields, (404, FnDenial::Tenant)).await,
            }
        }
        assert_eq!(bed.host.registry.get("victim"), before);
    });
}

#[test]
fn a_service_may_invoke_and_nothing_else() {
    within(async {
        let bed = Bed::start().await;
        let (service, now) = (pair("SERVICE"), SystemTime::now());
        let source = [(SOURCE_ARN, BUCKET)];
        for (_, asked) in all() {
            let fields = bed.sign(&service, &asked, &source, now);
            let due = match asked.target == INVOKE {
                true => (404, FnDenial::Tenant),
                false => (403, FnDenial::Access),
            };
            bed.denied("a service", &asked, &fields, due).await;
        }
    });
}

#[test]
fn a_resource_policy_lets_others_invoke_and_do_nothing_else() {
    within(async {
        let bed = Bed::start().await;
        let add = |principal: &str, conditions: &[(&str, &str, &str)]| {
            let text = |(a, b, c): &(&str, &str, &str)| {
                ((*a).to_owned(), (*b).to_owned(), (*c).to_owned())
            };
            let statement = Statement {
                sid: principal.replace(|c: char| !c.is_ascii_alphanumeric(), "-"),
                action: "lambda:InvokeFunction".to_owned(),
                principal: principal.to_owned(),
                conditions: conditions.iter().map(text).collect(),
            };
            let act = move |record: &mut Record| {
                record.add_permission(None, statement, None, deploy::stamp())
            };
            let registry = &bed.host.registry;
            async move { registry.edit("victim", act).await.unwrap() }
        };
        let (target, body) = (INVOKE.to_owned(), "{}".to_owned());
        let asked = Asked { method: "POST", target, body };
        let dry = ("x-amz-invocation-type", "DryRun");
        let now = SystemTime::now();
        let guest = bed.sign(&pair("GUEST"), &asked, &[dry], now);
        bed.denied("before", &asked, &guest, (404, FnDenial::Tenant)).await;
        add(&tenant_arn("guest"), &[]).await;
        assert_eq!(bed.send(&asked, &guest).await.0, 204);

        add(SERVICE, &[("ArnLike", "AWS:SourceArn", BUCKET)]).await;
        let as_service = |source: &str| {
            let fields = [dry, (SOURCE_ARN, source), (SOURCE_ACCOUNT, "000000000000")];
            bed.sign(&pair("SERVICE"), &asked, &fields, now)
        };
        assert_eq!(bed.send(&asked, &as_service(BUCKET)).await.0, 204);
        let other = as_service("arn:aws:s3:::other");
        bed.denied("another source", &asked, &other, (404, FnDenial::Tenant)).await;
        let (target, body) = ("/2015-03-31/functions/victim".to_owned(), String::new());
        let get = Asked { method: "GET", target, body };
        let fields = bed.sign(&pair("GUEST"), &get, &[], now);
        bed.denied("only invoked", &get, &fields, (404, FnDenial::Tenant)).await;
    });
}
