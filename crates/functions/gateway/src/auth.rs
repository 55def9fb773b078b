//! Authentication of callers: Signature Version 4, as AWS's own clients sign (AWS IAM user guide,
//! *Signing AWS API requests*). A key belongs to a tenant. No clock, no I/O.
//!
//! A signature is verified by computing it again with AWS's library. Header fields that the
//! gateway interprets must be signed, and the body must be signed too.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_lc_rs::digest::{SHA256, digest};
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use hyper::header::HeaderMap;
use subtle::ConstantTimeEq as _;
use time::PrimitiveDateTime;
use time::format_description::FormatItem;
use time::macros::format_description;
use unlade_fn_model::lambda::{Denial, Refusal};

use crate::config::{KeyPair, REGION};

/// Largest difference between a request's time and the gateway's.
pub const SKEW_MAX: Duration = Duration::from_secs(15 * 60);
/// The service name in signatures of Lambda's API, and of the gateway's own.
const SERVICE: &str = "lambda";
/// The path of services whose operation is in a form.
const FORM_TARGET: &str = "/";
/// The service names in signatures of requests to it.
const FORM_SERVICES: [&str; 2] = ["cloudformation", "sts"];
const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const DATE: &str = "x-amz-date";
/// The header field with the hash of a body, in hexadecimal digits.
pub const CONTENT_SHA256: &str = "x-amz-content-sha256";
const DATE_FORMAT: &[FormatItem<'static>] =
    format_description!("[year][month][day]T[hour][minute][second]Z");

/// The authenticated caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Unknown: the operator has switched authentication off.
    Anyone,
    /// A tenant.
    Tenant(String),
    /// A service, which may only invoke functions whose resource policies allow that:
    /// `s3.amazonaws.com`.
    Service(String),
}

impl Caller {
    /// Returns true if the caller may use the resources of a tenant.
    pub fn is(&self, tenant: &str) -> bool {
        match self {
            Caller::Anyone => true,
            Caller::Tenant(own) => own == tenant,
            Caller::Service(_) => false,
        }
    }
}

impl std::fmt::Display for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Caller::Anyone => f.write_str("anyone"),
            Caller::Tenant(name) => write!(f, "tenant {name}"),
            Caller::Service(name) => write!(f, "service {name}"),
        }
    }
}

/// All accepted keys.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    by_id: BTreeMap<String, (Caller, KeyPair)>,
}

/// A request without its body.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// `POST`.
    pub method: &'a str,
    /// Path and query, as received.
    pub target: &'a str,
    /// Its header fields.
    pub headers: &'a HeaderMap,
}

/// The claimed identity of a caller, not yet verified.
#[derive(Clone, Debug)]
pub struct Claim {
    caller: Caller,
    keys: KeyPair,
    time: SystemTime,
    region: String,
    service: String,
    signed: Vec<(String, String)>,
    signature: String,
    announced: Option<String>,
}

fn denied(denial: Denial, why: impl Into<String>) -> Refusal {
    Refusal::Denied(denial, why.into())
}

fn incomplete(why: impl Into<String>) -> Refusal {
    denied(Denial::Incomplete, why)
}

/// SHA-256 in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    let digest = digest(&SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Keys {
    /// Adds a tenant's keys.
    ///
    /// # Errors
    /// Another caller already has this access key and keeps it.
    pub fn add(&mut self, tenant: &str, keys: KeyPair) -> Result<(), String> {
        self.add_of(Caller::Tenant(tenant.to_owned()), keys)
    }

    /// Adds a caller's keys.
    ///
    /// # Errors
    /// Another caller already has this access key and keeps it.
    pub fn add_of(&mut self, caller: Caller, keys: KeyPair) -> Result<(), String> {
        let id = keys.access_key_id.clone();
        if let Some((other, _)) = self.by_id.get(&id).filter(|(other, _)| *other != caller) {
            return Err(format!("the access key {id} is of {other} and of {caller}"));
        }
        self.by_id.insert(id, (caller, keys));
        Ok(())
    }

    /// A pair of keys of a tenant.
    pub fn of(&self, tenant: &str) -> Option<&KeyPair> {
        self.by_id.values().find(|(owner, _)| owner.is(tenant)).map(|(_, pair)| pair)
    }

    /// Takes over the keys of some tenants, unless another tenant has them now.
    pub fn keep(&mut self, before: &Keys, is_kept: impl Fn(&str) -> bool) {
        for (id, (caller, keys)) in &before.by_id {
            if matches!(caller, Caller::Tenant(tenant) if is_kept(tenant)) {
                let own = || (caller.clone(), keys.clone());
                self.by_id.entry(id.clone()).or_insert_with(own);
            }
        }
    }

    /// Parses the claimed identity of a request of the API, without verification.
    ///
    /// # Errors
    /// The request is unsigned, its key is unknown, its time is too far off, or a required field
    /// is not signed.
    pub fn claim(&self, head: Head<'_>, now: SystemTime) -> Result<Claim, Refusal> {
        let services: &[&str] = match head.target {
            FORM_TARGET => &FORM_SERVICES,
            _ => &[SERVICE],
        };
        self.claim_for(services, head, now)
    }

    /// Parses the claimed identity of a request at a function URL, without verification.
    ///
    /// # Errors
    /// As for [`Keys::claim`].
    pub fn claim_at_url(&self, head: Head<'_>, now: SystemTime) -> Result<Claim, Refusal> {
        self.claim_for(&[SERVICE], head, now)
    }

    fn claim_for(
        &self,
        services: &[&str],
        head: Head<'_>,
        now: SystemTime,
    ) -> Result<Claim, Refusal> {
        let text = |name: &str| one(head.headers, name);
        let authorization = text("authorization")?.ok_or_else(|| {
            let why = "Missing Authentication Token: sign requests with Signature Version 4 and a \
                       key of this gateway (`unlade fn env` has one)";
            denied(Denial::Missing, why)
        })?;
        let parts = Authorization::parse(authorization)?;
        let (caller, keys) = self.by_id.get(parts.access_key_id).ok_or_else(|| {
            let why = format!(
                "The security token included in the request is invalid: no tenant of this gateway \
                 has the access key {:?}",
                parts.access_key_id
            );
            denied(Denial::Unrecognised, why)
        })?;
        let date = text(DATE)?.ok_or_else(|| incomplete("X-Amz-Date is missing"))?;
        let time = instant(date).ok_or_else(|| incomplete("X-Amz-Date is not YYYYMMDDTHHMMSSZ"))?;
        check_time(time, now)?;
        if parts.day != date.get(..8).unwrap_or_default() {
            let why = "Date in Credential scope does not match YYYYMMDD from X-Amz-Date";
            return Err(denied(Denial::Signature, why));
        }
        if !services.contains(&parts.service) {
            let why = format!("Credential should be scoped to one of the services {services:?}");
            return Err(denied(Denial::Signature, why));
        }
        Ok(Claim {
            caller: caller.clone(),
            keys: keys.clone(),
            time,
            region: parts.region.to_owned(),
            service: parts.service.to_owned(),
            signed: signed_fields(head.headers, &parts.signed)?,
            signature: parts.signature.to_owned(),
            announced: text(CONTENT_SHA256)?.map(str::to_owned),
        })
    }
}

/// A header field that may occur only once.
fn one<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().ok().filter(|_| values.next().is_none());
    text.map(Some).ok_or_else(|| incomplete(format!("{name} is there twice, or is not ASCII")))
}

/// Parses the time of `X-Amz-Date`.
fn instant(text: &str) -> Option<SystemTime> {
    let time = PrimitiveDateTime::parse(text, DATE_FORMAT).ok()?.assume_utc();
    let since = u64::try_from(time.unix_timestamp()).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(since))
}

fn check_time(time: SystemTime, now: SystemTime) -> Result<(), Refusal> {
    let distance = now.duration_since(time).unwrap_or_else(|error| error.duration());
    if distance <= SKEW_MAX {
        return Ok(());
    }
    let why = format!(
        "Signature expired or not yet current: X-Amz-Date is {} s from the gateway's clock, and {} \
         s are allowed; set the clock, and sign again",
        distance.as_secs(),
        SKEW_MAX.as_secs()
    );
    Err(denied(Denial::Expired, why))
}

/// The header fields that are signed, in the order of `SignedHeaders`.
fn signed_fields(headers: &HeaderMap, names: &[&str]) -> Result<Vec<(String, String)>, Refusal> {
    let is_signed = |name: &str| names.contains(&name);
    let must = |name: &str| name.starts_with("x-amz-") || name.starts_with("x-unlade-");
    let missing = ["host", DATE].into_iter().find(|name| !is_signed(name));
    let present = headers.keys().map(hyper::header::HeaderName::as_str);
    let left_out = present.into_iter().find(|name| must(name) && !is_signed(name));
    if let Some(name) = missing.or(left_out) {
        return Err(incomplete(format!("the header field {name} has to be signed")));
    }
    let mut signed = Vec::new();
    for name in names {
        let before = signed.len();
        for value in headers.get_all(*name) {
            let text = value.to_str().map_err(|_| incomplete(format!("{name} is not ASCII")))?;
            signed.push(((*name).to_owned(), text.to_owned()));
        }
        if signed.len() == before {
            return Err(incomplete(format!("the header field {name} is signed, and missing")));
        }
    }
    Ok(signed)
}

/// `AWS4-HMAC-SHA256 Credential=ID/DAY/REGION/SERVICE/aws4_request, SignedHeaders=A;B,
/// Signature=HEX`.
struct Authorization<'a> {
    access_key_id: &'a str,
    day: &'a str,
    region: &'a str,
    service: &'a str,
    signed: Vec<&'a str>,
    signature: &'a str,
}

impl Authorization<'_> {
    fn parse(text: &str) -> Result<Authorization<'_>, Refusal> {
        let wrong = || incomplete(format!("Authorization is not {ALGORITHM} with its parts"));
        let rest = text.strip_prefix(ALGORITHM).ok_or_else(wrong)?;
        let mut parts = BTreeMap::new();
        for part in rest.split(',') {
            let (name, value) = part.trim().split_once('=').ok_or_else(wrong)?;
            if parts.insert(name, value).is_some() {
                return Err(wrong());
            }
        }
        let part = |name: &str| parts.get(name).copied().ok_or_else(wrong);
        let scope: Vec<&str> = part("Credential")?.split('/').collect();
        let [access_key_id, day, region, service, "aws4_request"] = scope[..] else {
            return Err(wrong());
        };
        let signed = part("SignedHeaders")?.split(';').collect();
        let signature = part("Signature")?;
        Ok(Authorization { access_key_id, day, region, service, signed, signature })
    }
}

impl Claim {
    /// The access key that signed.
    pub fn access_key(&self) -> &str {
        &self.keys.access_key_id
    }

    /// The SHA-256 of the body in the request's header, if present.
    ///
    /// # Errors
    /// The value is not a SHA-256: a body has to be signed.
    pub fn announced(&self) -> Result<Option<&str>, Refusal> {
        let Some(hash) = self.announced.as_deref() else { return Ok(None) };
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        match hash.len() == 64 && hash.bytes().all(is_digit) {
            true => Ok(Some(hash)),
            false => Err(denied(Denial::Signature, format!("{CONTENT_SHA256} is no SHA-256"))),
        }
    }

    /// Verifies the signature for a body with this SHA-256; returns the caller.
    ///
    /// # Errors
    /// The signature is different.
    pub fn verify(self, head: Head<'_>, body_sha256: &str) -> Result<Caller, Refusal> {
        let fields = self.signed.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let body = SignableBody::Precomputed(body_sha256.to_owned());
        let request = SignableRequest::new(head.method, head.target, fields, body);
        let request = request.map_err(|error| incomplete(error.to_string()))?;
        let mut settings = SigningSettings::default();
        // Every signed header field is part of the signature.
        settings.excluded_headers = None;
        let due =
            signature(request, settings, &self.keys, (&self.region, &self.service), self.time)?.1;
        if due.as_bytes().ct_eq(self.signature.as_bytes()).into() {
            return Ok(self.caller);
        }
        let why = "The request signature we calculated does not match the signature you provided. \
                   Check your AWS Secret Access Key and signing method";
        Err(denied(Denial::Signature, why))
    }
}

type Signed = (Vec<(String, String)>, String);

fn signature(
    request: SignableRequest<'_>,
    settings: SigningSettings,
    keys: &KeyPair,
    (region, service): (&str, &str),
    time: SystemTime,
) -> Result<Signed, Refusal> {
    let KeyPair { access_key_id, secret_access_key } = keys;
    let credentials = Credentials::new(access_key_id, secret_access_key, None, None, "gateway");
    let identity = credentials.into();
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name(service)
        .time(time)
        .settings(settings)
        .build();
    let failed = |why: String| Refusal::Service(format!("signing: {why}"));
    let params = params.map_err(|error| failed(error.to_string()))?.into();
    let signed = sign(request, &params).map_err(|error| failed(error.to_string()))?;
    let (instructions, signature) = signed.into_parts();
    let field = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    Ok((instructions.headers().map(field).collect(), signature))
}

/// The additional header fields of a signed request.
///
/// # Errors
/// The target or a field is invalid.
pub fn sign_request(
    keys: &KeyPair,
    (method, target, host): (&str, &str, &str),
    fields: &[(&str, &str)],
    body: &[u8],
    now: SystemTime,
) -> Result<Vec<(String, String)>, Refusal> {
    let hash = sha256(body);
    let own = [("host", host), (CONTENT_SHA256, hash.as_str())];
    let all = own.into_iter().chain(fields.iter().copied());
    let body = SignableBody::Precomputed(hash.clone());
    let request = SignableRequest::new(method, target, all, body);
    let request = request.map_err(|error| Refusal::Parameter(error.to_string()))?;
    let settings = SigningSettings::default();
    let service = if target == FORM_TARGET { FORM_SERVICES[0] } else { SERVICE };
    let (mut needed, _) = signature(request, settings, keys, (REGION, service), now)?;
    needed.push((CONTENT_SHA256.to_owned(), hash));
    Ok(needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: &[u8] = b"{\"a\": 1}";
    const TARGET: &str =
        "/2015-03-31/functions/f%3A%24LATEST/invocations?Qualifier=%24LATEST&b=a+c";

    fn pair(id: &str) -> KeyPair {
        KeyPair { access_key_id: id.to_owned(), secret_access_key: format!("secret of {id}") }
    }

    fn keys() -> Keys {
        let mut keys = Keys::default();
        keys.add("a", pair("KEYA")).unwrap();
        keys.add("b", pair("KEYB")).unwrap();
        keys
    }

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)
    }

    fn signed(keys: &KeyPair, at: SystemTime) -> HeaderMap {
        let own = [("x-amz-invocation-type", "Event"), ("x-unlade-hint", "box/k")];
        let needed = sign_request(keys, ("POST", TARGET, "gw:1"), &own, EVENT, at).unwrap();
        let mut headers = HeaderMap::new();
        let own = own.into_iter().chain([("host", "gw:1"), ("user-agent", "x")]);
        for (name, value) in own {
            headers.append(name, value.parse().unwrap());
        }
        for (name, value) in needed {
            let name: hyper::header::HeaderName = name.parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    fn answer(headers: &HeaderMap, method: &str, target: &str, body: &[u8]) -> Result<Caller, u16> {
        let head = Head { method, target, headers };
        let claim = keys().claim(head, now()).map_err(|refusal| refusal.status())?;
        claim.announced().map_err(|refusal| refusal.status())?;
        claim.verify(head, &sha256(body)).map_err(|refusal| refusal.status())
    }

    #[test]
    fn who_signs_is_known_and_nobody_else_is() {
        for (tenant, id) in [("a", "KEYA"), ("b", "KEYB")] {
            let headers = signed(&pair(id), now());
            let caller = answer(&headers, "POST", TARGET, EVENT);
            assert_eq!(caller, Ok(Caller::Tenant(tenant.to_owned())));
        }
        assert_eq!(answer(&HeaderMap::new(), "POST", TARGET, EVENT), Err(403));
        let stranger = signed(&pair("KEYC"), now());
        assert_eq!(answer(&stranger, "POST", TARGET, EVENT), Err(403));
        let guessed = KeyPair { secret_access_key: "guess".to_owned(), ..pair("KEYA") };
        assert_eq!(answer(&signed(&guessed, now()), "POST", TARGET, EVENT), Err(403));
    }

    #[test]
    fn what_was_signed_cannot_be_changed() {
        let headers = signed(&pair("KEYA"), now());
        let ask = |method: &str, target: &str, body: &[u8]| answer(&headers, method, target, body);
        assert_eq!(ask("PUT", TARGET, EVENT), Err(403));
        assert_eq!(ask("POST", &TARGET.replace("functions/f", "functions/g"), EVENT), Err(403));
        assert_eq!(ask("POST", &TARGET.replace("b=a", "b=c"), EVENT), Err(403));
        assert_eq!(ask("POST", TARGET, b"{\"a\": 2}"), Err(403));
        for (name, value) in [
            ("x-amz-invocation-type", "DryRun"),
            ("x-unlade-hint", "secret/k"),
            ("host", "other:1"),
            ("x-amz-date", "20231114T221321Z"),
            ("x-amz-log-type", "Tail"),
        ] {
            let mut other = headers.clone();
            other.insert(name, value.parse().unwrap());
            assert_eq!(answer(&other, "POST", TARGET, EVENT), Err(403), "{name}");
            let mut twice = headers.clone();
            twice.append(name, value.parse().unwrap());
            assert_eq!(answer(&twice, "POST", TARGET, EVENT), Err(403), "{name} twice");
        }
    }

    #[test]
    fn a_signature_is_good_for_a_quarter_of_an_hour() {
        let second = Duration::from_secs(1);
        for (at, is_good) in [
            (now() - SKEW_MAX, true),
            (now() - SKEW_MAX - second, false),
            (now() + SKEW_MAX, true),
            (now() + SKEW_MAX + second, false),
        ] {
            let found = answer(&signed(&pair("KEYA"), at), "POST", TARGET, EVENT);
            assert_eq!(found.is_ok(), is_good, "{at:?}");
        }
    }

    #[test]
    fn what_is_no_signature_is_refused() {
        let good = signed(&pair("KEYA"), now());
        let authorization = good["authorization"].to_str().unwrap().to_owned();
        for wrong in [
            "",
            "Basic dTpw",
            "AWS4-HMAC-SHA256",
            "AWS4-HMAC-SHA256 Credential=KEYA",
            &authorization.replace("lambda", "s3"),
            &authorization.replace("20231114", "20231113"),
            &authorization.replace("aws4_request", "aws4"),
            &authorization.replace("host;", ""),
            &authorization.replace("host;", "host;absent;"),
            &authorization.replace("x-unlade-hint", "x-amz-date"),
            &format!("{authorization}0"),
            &format!("{authorization}, Signature=0"),
        ] {
            let mut headers = good.clone();
            headers.insert("authorization", wrong.parse().unwrap());
            assert_eq!(answer(&headers, "POST", TARGET, EVENT), Err(403), "{wrong}");
        }
        let mut unsigned = good;
        unsigned.insert(CONTENT_SHA256, "UNSIGNED-PAYLOAD".parse().unwrap());
        assert_eq!(answer(&unsigned, "POST", TARGET, EVENT), Err(403));
    }

    #[test]
    fn a_service_is_signed_for_its_path() {
        let form = b"Action=GetCallerIdentity&Version=2011-06-15";
        let of = |target: &str, service: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("host", "gw:1".parse().unwrap());
            let hash = sha256(form);
            let fields = [("host", "gw:1"), (CONTENT_SHA256, hash.as_str())];
            let body = SignableBody::Precomputed(hash.clone());
            let request = SignableRequest::new("POST", target, fields.into_iter(), body).unwrap();
            let settings = SigningSettings::default();
            let scope = ("eu-west-1", service);
            let signed = signature(request, settings, &pair("KEYA"), scope, now()).unwrap();
            let own = (CONTENT_SHA256.to_owned(), hash.clone());
            for (name, value) in signed.0.into_iter().chain([own]) {
                let name: hyper::header::HeaderName = name.parse().unwrap();
                headers.insert(name, value.parse().unwrap());
            }
            answer(&headers, "POST", target, form)
        };
        let a = Ok(Caller::Tenant("a".to_owned()));
        assert_eq!((of("/", "sts"), of("/", "cloudformation")), (a.clone(), a.clone()));
        assert_eq!(of("/2015-03-31/functions", "lambda"), a);
        for (target, service) in
            [("/", "lambda"), ("/", "s3"), ("/?x", "sts"), ("/2015-03-31/functions", "sts")]
        {
            assert_eq!(of(target, service), Err(403), "{target} {service}");
        }
    }

    #[test]
    fn a_key_is_of_one_tenant() {
        let mut keys = keys();
        assert!(keys.add("a", pair("KEYA")).is_ok());
        assert!(keys.add("b", pair("KEYA")).unwrap_err().contains("KEYA"));
        let mut fewer = Keys::default();
        fewer.keep(&keys, |tenant| tenant == "b");
        assert_eq!(fewer.by_id.keys().collect::<Vec<_>>(), ["KEYB"]);
    }
}
