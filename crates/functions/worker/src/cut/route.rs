//! The endpoint of a request: the operator's, or AWS's own in the region that the function asks
//! for. The guest has no part in the host's name but a region of the usual form.

use unlade_metrics::CutRefusal;

use super::refusal::Refusal;
use super::services::Service;

/// A partition of AWS: beginnings of its regions, and what their hosts end with in place of
/// `amazonaws.com` and `api.aws` (botocore's `partitions.json`).
struct Partition {
    begins: &'static [&'static str],
    amazonaws: &'static str,
    api: &'static str,
}

const fn partition_of(
    begins: &'static [&'static str],
    amazonaws: &'static str,
    api: &'static str,
) -> Partition {
    Partition { begins, amazonaws, api }
}

/// The first one has the endpoints of services that are global.
const PARTITIONS: &[Partition] = &[
    partition_of(
        &["af", "ap", "ca", "eu", "il", "me", "mx", "sa", "us"],
        "amazonaws.com",
        "api.aws",
    ),
    partition_of(&["cn"], "amazonaws.com.cn", "api.amazonwebservices.com.cn"),
    partition_of(&["us-gov"], "amazonaws.com", "api.aws"),
    partition_of(&["eusc-de"], "amazonaws.eu", "api.amazonwebservices.eu"),
    partition_of(&["us-iso"], "c2s.ic.gov", "api.aws.ic.gov"),
    partition_of(&["us-isob"], "sc2s.sgov.gov", "api.aws.scloud"),
    partition_of(&["eu-isoe"], "cloud.adc-e.uk", "api.cloud-aws.adc-e.uk"),
    partition_of(&["us-isof"], "csp.hci.ic.gov", "api.aws.hci.ic.gov"),
];
const REGION_BYTES_MAX: usize = 32;

/// A server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// True for TLS.
    pub tls: bool,
    /// The host name or address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Origin {
    /// Parses `http://HOST[:PORT]` or `https://HOST[:PORT]`, with nothing after it but a slash.
    pub fn parse(text: &str) -> Option<Origin> {
        let (scheme, rest) = text.split_once("://")?;
        let tls = match scheme {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let usual = if tls { 443 } else { 80 };
        let (host, port) = match rest.rsplit_once(':').filter(|(_, port)| !port.contains(']')) {
            Some((host, port)) => (host, port.parse().ok()?),
            None => (rest, usual),
        };
        let bare = host.strip_prefix('[').map_or(Some(host), |rest| rest.strip_suffix(']'))?;
        let is_host = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        let is_valid = match host.starts_with('[') {
            true => bare.parse::<std::net::Ipv6Addr>().is_ok(),
            false => !bare.is_empty() && bare.chars().all(is_host),
        };
        is_valid.then(|| Origin { tls, host: bare.to_owned(), port })
    }

    /// The value of the `Host` field.
    pub fn authority(&self) -> String {
        let host = match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        };
        let usual = if self.tls { 443 } else { 80 };
        if self.port == usual { host } else { format!("{host}:{}", self.port) }
    }

    /// The URL of a target at this server.
    pub fn url(&self, target: &str) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}{target}", self.authority())
    }
}

fn refusal(kind: CutRefusal, why: String) -> Refusal {
    Refusal::new(kind, why)
}

/// Returns the index of a region's partition, if the region has the form of AWS's regions: the beginning
/// of a partition, one more word, a digit.
fn partition(region: &str) -> Option<usize> {
    let words: Vec<_> = region.split('-').collect();
    let (number, names) = words.split_last()?;
    let is_number = number.len() == 1 && number.bytes().all(|byte| byte.is_ascii_digit());
    let is_word = |word: &&str| {
        (2..=12).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_lowercase())
    };
    if region.len() > REGION_BYTES_MAX || !is_number || !names.iter().all(is_word) {
        return None;
    }
    let (_, begin) = names.split_last()?;
    let begin = begin.join("-");
    PARTITIONS.iter().position(|partition| partition.begins.contains(&begin.as_str()))
}

/// Checks the form of a region.
///
/// # Errors
/// It is none of AWS's.
pub fn check_region(region: &str) -> Result<(), Refusal> {
    partition(region)
        .map(|_| ())
        .ok_or_else(|| refusal(CutRefusal::Region, format!("{region:?} is not a region of AWS")))
}

/// AWS's own endpoint of a service, and the region of signatures.
///
/// # Errors
/// The region is none, or the service has no endpoint there that the host knows.
pub fn aws(service: &Service, region: &str) -> Result<(Origin, String), Refusal> {
    let unknown = || refusal(CutRefusal::Region, format!("{region:?} is not a region of AWS"));
    let at = partition(region).ok_or_else(unknown)?;
    let Partition { amazonaws, api, .. } = &PARTITIONS[at];
    let host = match service.fixed_region {
        None => service.host.replace("{region}", region),
        Some(_) if at == 0 => service.host.to_owned(),
        Some(_) => {
            let why = format!(
                "the endpoint of {} in {region} is not known; the operator names it with \
                 [services.endpoint.{}] in fn.toml",
                service.name, service.name
            );
            return Err(refusal(CutRefusal::Endpoint, why));
        }
    };
    let host = match host.strip_suffix("amazonaws.com") {
        Some(start) => format!("{start}{amazonaws}"),
        None => host.strip_suffix("api.aws").map_or(host.clone(), |start| format!("{start}{api}")),
    };
    let signed = service.fixed_region.unwrap_or(region).to_owned();
    Ok((Origin { tls: true, host, port: 443 }, signed))
}

#[cfg(test)]
mod tests {
    use super::super::services::find;
    use super::*;

    #[test]
    fn endpoints_are_awss() {
        for (service, region, host, signed) in [
            ("dynamodb", "eu-west-1", "dynamodb.eu-west-1.amazonaws.com", "eu-west-1"),
            ("dynamodb", "cn-north-1", "dynamodb.cn-north-1.amazonaws.com.cn", "cn-north-1"),
            ("sqs", "us-gov-west-1", "sqs.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
            (
                "stepfunctions",
                "us-isob-east-1",
                "states.us-isob-east-1.sc2s.sgov.gov",
                "us-isob-east-1",
            ),
            ("sqs", "eusc-de-east-1", "sqs.eusc-de-east-1.amazonaws.eu", "eusc-de-east-1"),
            ("events", "ap-southeast-2", "events.ap-southeast-2.amazonaws.com", "ap-southeast-2"),
            ("iam", "eu-west-1", "iam.amazonaws.com", "us-east-1"),
            ("sesv2", "eu-west-1", "email.eu-west-1.amazonaws.com", "eu-west-1"),
            ("dsql", "eu-west-1", "dsql.eu-west-1.api.aws", "eu-west-1"),
        ] {
            let (origin, region) = aws(find(service).unwrap(), region).unwrap();
            assert_eq!((origin.authority().as_str(), region.as_str()), (host, signed));
            assert!(origin.tls && origin.port == 443);
        }
        let why = aws(find("iam").unwrap(), "cn-north-1").unwrap_err();
        assert!(why.kind == CutRefusal::Endpoint && why.why.contains("[services.endpoint.iam]"));
    }

    /// A region is a part of the host's name.
    #[test]
    fn what_is_not_a_region_leads_nowhere() {
        for region in [
            "",
            "s3",
            "s3-1",
            "evil",
            "us-east-1.evil.example",
            "us-east-1/",
            "us-east-1#",
            "us-east-1@evil",
            "us-east",
            "us-east-11",
            "us-1",
            "xx-east-1",
            "US-EAST-1",
            "us-east-1\r\n",
            "us-gov-1-1",
            "us-isox-east-1",
            "eusc-fr-east-1",
            "us--1",
            "us-east-south-west-1",
            "us-eeeeeeeeeeeeeeeeeeeeeeeeeeeeee-1",
            "aws-global",
        ] {
            let kind = aws(find("dynamodb").unwrap(), region).unwrap_err().kind;
            assert_eq!(kind, CutRefusal::Region, "{region:?}");
            assert!(check_region(region).is_err());
        }
        assert!(check_region("eu-central-2").is_ok());
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let parsed = |text: &str| Origin::parse(text).map(|origin| origin.url("/x?y"));
        for (text, due) in [
            ("http://127.0.0.1:8000", "http://127.0.0.1:8000/x?y"),
            ("http://localhost/", "http://localhost/x?y"),
            ("https://a.example:443", "https://a.example/x?y"),
            ("http://[::1]:5000", "http://[::1]:5000/x?y"),
        ] {
            assert_eq!(parsed(text).as_deref(), Some(due));
        }
        for wrong in
            ["a", "ftp://a", "http://", "http://a/b", "http://a:x", "http://a@b", "http://[a]"]
        {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }
}
