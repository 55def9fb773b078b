//! `unlade fn explain`: the statement that decides about an action, without a gateway.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};
use unlade_command::output::line;
use unlade_fn_gateway::config::{DEFAULT_TENANT, GatewayConfig};
use unlade_fn_gateway::{deploy, permit};
use unlade_fn_model::Manifest;
use unlade_s3::policy::explain::{Explanation, Whose};
use unlade_s3::policy::facts::{Environment, Vocabulary};
use unlade_s3::policy::{BOUNDARY, Decision, document};
use unlade_s3::{Policy, operation};

pub(super) const LONG: &str = "\
Says whether a function may perform an action on a resource, which statement decides, and which lines \
would allow the action. The rights are those that `unlade fn serve` gives the function with the same \
files: a role of the configuration (--role) or that of the function's directory (--function), within \
`role` of its tenant. With --document they are those of one policy document. Nothing is asked of a \
gateway or of a store. The exit status is 0 if the action is allowed, and 1 if not.";

pub(super) const HELP: &str = "\
ACTION is IAM's name, as s3:GetObject or dynamodb:Query. RESOURCE is, for S3, BUCKET or BUCKET/KEY; for \
other services the last part of an ARN, as table/orders; or an ARN; \"*\" is a resource that the host \
cannot tell. The page on identity and rights lists the condition keys that a document may name; those \
that are not said with --key are absent, except the time, the region and an encrypted transport.

Examples:
  unlade fn explain s3:GetObject photos/cat.jpg --config fn.toml --tenant shop --role reader
  unlade fn explain s3:ListBucket photos --document reader.json --key s3:prefix=public/
  unlade fn explain dynamodb:Query table/orders --config fn.toml --function ./thumbnail";

/// Arguments of `unlade fn explain`.
#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// The action
    action: String,
    /// The resource
    resource: String,
    /// The gateway's configuration; without it, and without --document, one with the defaults
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The tenant; that of the function's manifest, or `default`, where it is not said
    #[arg(long)]
    tenant: Option<String>,
    /// A role of the tenant
    #[arg(long, conflicts_with = "function")]
    role: Option<String>,
    /// The directory of a function
    #[arg(long, value_name = "DIR")]
    function: Option<PathBuf>,
    /// A policy document, in place of a configuration
    #[arg(long, value_name = "FILE", conflicts_with_all = ["config", "tenant", "role", "function"])]
    document: Option<PathBuf>,
    /// A condition key of the request; may be there several times
    #[arg(long = "key", value_name = "KEY=VALUE")]
    keys: Vec<String>,
    /// The region that the request is for
    #[arg(long, default_value = "us-east-1")]
    region: String,
}

/// The rights that decide, and where they come from.
struct Rights {
    policy: Value,
    tenant: String,
    role: Option<String>,
}

/// Runs it.
///
/// # Errors
/// The policy or an argument is invalid.
pub(super) fn run(args: &ExplainArgs) -> Result<ExitCode> {
    let keys = args.keys.iter().map(|pair| key(pair)).collect::<Result<Vec<_>>>()?;
    check_action(&args.action)?;
    let rights = rights(args)?;
    let policy = Policy::from_value(&rights.policy)?;
    let (now, region) = (SystemTime::now(), args.region.clone());
    let environment = Environment { now, region, has_tls: true, is_deferred: false };
    let found = policy.explain(&args.action, &args.resource, &environment, &keys);
    line(format_args!("{}", text(args, &rights, &found)))?;
    Ok(match found.decision {
        Decision::Allowed => ExitCode::SUCCESS,
        Decision::Denied | Decision::NotAllowed => ExitCode::FAILURE,
    })
}

fn key(pair: &str) -> Result<(String, String)> {
    let (key, value) = pair.split_once('=').context("--key is KEY=VALUE")?;
    if !Vocabulary::Function.knows(key) {
        let known: Vec<_> = Vocabulary::Function.keys().collect();
        bail!("--key: the host does not know {key:?}; it knows {}", known.join(", "));
    }
    Ok((key.to_owned(), value.to_owned()))
}

fn check_action(action: &str) -> Result<()> {
    let Some((service, name)) = action.split_once(':').filter(|(_, name)| !name.is_empty()) else {
        bail!("{action:?} is no action: SERVICE:NAME, as s3:GetObject");
    };
    let is_known = |own: &&operation::Operation| own.action.eq_ignore_ascii_case(action);
    // Actions on versions have names of their own.
    let is_version = name.contains("Version");
    if service.eq_ignore_ascii_case("s3")
        && !is_version
        && operation::all().find(is_known).is_none()
    {
        bail!("{action:?} is the action of no operation of S3");
    }
    Ok(())
}

fn rights(args: &ExplainArgs) -> Result<Rights> {
    if let Some(path) = &args.document {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let policy = document::from_text(&text).with_context(|| path.display().to_string())?;
        return Ok(Rights { policy, tenant: DEFAULT_TENANT.to_owned(), role: None });
    }
    let config = match &args.config {
        Some(path) => GatewayConfig::load(path)?,
        None => GatewayConfig::default(),
    };
    let (manifest, tenant, name) = match &args.function {
        Some(directory) => {
            let own = deploy::read(directory, args.tenant.as_deref())?;
            let name = std::path::absolute(directory)?;
            let name = name.file_name().map(|name| name.to_string_lossy().into_owned());
            (own.manifest, own.tenant, name.unwrap_or_default())
        }
        None => {
            let tenant = args.tenant.clone().unwrap_or_else(|| DEFAULT_TENANT.to_owned());
            (Manifest::of_handler("app.handler"), tenant, "FUNCTION".to_owned())
        }
    };
    if tenant != DEFAULT_TENANT && !config.tenant.contains_key(&tenant) {
        bail!("the configuration has no [tenant.{tenant}]");
    }
    let rules = config.tenant.get(&tenant).cloned().unwrap_or_default();
    permit::check(&tenant, &rules, &manifest, args.role.as_deref())?;
    let policy = permit::policy(&name, &rules, &manifest, args.role.as_deref());
    Ok(Rights { policy, tenant, role: args.role.clone() })
}

fn text(args: &ExplainArgs, rights: &Rights, found: &Explanation) -> String {
    let what = format!("{} on {}", args.action, args.resource);
    let whose = match (found.whose, &args.document) {
        (Whose::Role, Some(path)) => path.display().to_string(),
        (Whose::Role, None) => "the function's role".to_owned(),
        (Whose::Boundary, _) => format!("the operator's role of tenant {}", rights.tenant),
    };
    let by = found.statement.as_ref().map(|(number, sid)| {
        let name = sid.as_ref().map(|sid| format!(" ({sid})")).unwrap_or_default();
        format!("statement {number}{name} of {whose}")
    });
    match (found.decision, by) {
        (Decision::Allowed, Some(by)) => format!("allowed: {what}, by {by}"),
        (Decision::Denied, Some(by)) => {
            format!("denied: {what}, by {by}; no other statement can allow it")
        }
        _ => format!(
            "not allowed: no statement of {whose} is about {what}; what would allow it:\n{}",
            lines(args, rights, found.whose)
        ),
    }
}

/// The statement to add, in the form of the policy that decides.
fn lines(args: &ExplainArgs, rights: &Rights, whose: Whose) -> String {
    let (place, decides) = match whose {
        Whose::Role => (None, Some(&rights.policy)),
        Whose::Boundary => (Some("role"), rights.policy.get(BOUNDARY)),
    };
    if decides.is_some_and(|policy| policy.get("Statement").is_some()) {
        let resource = arn(&args.action, &args.resource, &args.region);
        let statement = json!({"Effect": "Allow", "Action": args.action, "Resource": resource});
        return format!("{statement:#}");
    }
    let table = match (place, &rights.role) {
        (Some(place), _) => format!("tenant.{}.{place}.statements", rights.tenant),
        (None, Some(role)) => format!("tenant.{}.roles.{role}.statements", rights.tenant),
        (None, None) => "role.statements".to_owned(),
    };
    let (action, resource) = (&args.action, &args.resource);
    format!("[[{table}]]\neffect = \"allow\"\nactions = [{action:?}]\nresources = [{resource:?}]")
}

/// The resource as a document has it.
fn arn(action: &str, resource: &str, region: &str) -> String {
    let service = action.split(':').next().unwrap_or_default().to_ascii_lowercase();
    match (resource, service.as_str()) {
        ("*", _) => "*".to_owned(),
        (arn, _) if arn.starts_with("arn:") => arn.to_owned(),
        (name, "s3") => format!("arn:aws:s3:::{name}"),
        (name, service) => format!("arn:aws:{service}:{region}:*:{name}"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: ExplainArgs,
    }

    fn explained(words: &[&str]) -> Result<(Decision, String)> {
        let args = Command::try_parse_from(std::iter::once(&"explain").chain(words))?.args;
        let keys = args.keys.iter().map(|pair| key(pair)).collect::<Result<Vec<_>>>()?;
        check_action(&args.action)?;
        let rights = rights(&args)?;
        let policy = Policy::from_value(&rights.policy)?;
        let found = policy.explain(&args.action, &args.resource, &Environment::of_tests(), &keys);
        Ok((found.decision, text(&args, &rights, &found)))
    }

    const DOCUMENT: &str = r#"{"Version": "2012-10-17", "Statement": [
        {"Sid": "List", "Effect": "Allow", "Action": "s3:ListBucket",
         "Resource": "arn:aws:s3:::photos", "Condition": {"StringLike": {"s3:prefix": "a/*"}}}]}"#;

    #[test]
    fn a_document_is_explained_and_its_lines_allow_the_action() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.json");
        std::fs::write(&path, DOCUMENT).unwrap();
        let file = path.display().to_string();
        let of = |words: &[&str]| explained(&[words, &["--document", &file]].concat()).unwrap();
        let (decision, text) = of(&["s3:ListBucket", "photos", "--key", "s3:prefix=a/b"]);
        assert_eq!(decision, Decision::Allowed);
        assert!(text.ends_with(&format!("by statement 1 (List) of {file}")), "{text}");
        let (decision, text) = of(&["s3:GetObject", "photos/k"]);
        assert_eq!(decision, Decision::NotAllowed);
        let (_, lines) = text.split_once('\n').unwrap();
        let statement: Value = serde_json::from_str(lines).unwrap();
        let mut wider: Value = serde_json::from_str(DOCUMENT).unwrap();
        wider["Statement"].as_array_mut().unwrap().push(statement);
        std::fs::write(&path, wider.to_string()).unwrap();
        assert_eq!(of(&["s3:GetObject", "photos/k"]).0, Decision::Allowed);
        assert_eq!(arn("sqs:SendMessage", "q", "eu-west-1"), "arn:aws:sqs:eu-west-1:*:q");
        assert_eq!(arn("sqs:ListQueues", "*", "eu-west-1"), "*");
    }

    #[test]
    fn a_configuration_is_explained_as_the_gateway_evaluates_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("r.json"), DOCUMENT).unwrap();
        let config = dir.path().join("fn.toml");
        let role = "[tenant.shop.roles.lister]\ndocument = \"r.json\"\n[[tenant.shop.role.statements]]\n\
                    effect = \"allow\"\nactions = [\"s3:*\"]\nresources = [\"photos\"]\n";
        std::fs::write(&config, role).unwrap();
        let function = dir.path().join("f");
        std::fs::create_dir(&function).unwrap();
        let manifest = "handler = \"app.handler\"\ntenant = \"shop\"\n";
        std::fs::write(function.join("function.toml"), manifest).unwrap();
        let (config, function) = (config.display().to_string(), function.display().to_string());
        let of = |words: &[&str]| explained(&[words, &["--config", &config]].concat());
        let listed = ["s3:ListBucket", "photos", "--tenant", "shop", "--role", "lister", "--key"];
        let (decision, text) = of(&[&listed[..], &["s3:prefix=a/b"]].concat()).unwrap();
        assert!(decision == Decision::Allowed && text.contains("(List)"), "{text}");
        let (decision, _) = of(&[&listed[..], &["s3:prefix=b"]].concat()).unwrap();
        assert_eq!(decision, Decision::NotAllowed);
        let (decision, text) = of(&["s3:GetObject", "photos/k", "--function", &function]).unwrap();
        assert_eq!(decision, Decision::NotAllowed);
        assert!(text.contains("operator's role of tenant shop"), "{text}");
        assert!(text.contains("[[tenant.shop.role.statements]]"), "{text}");
        let table: toml::Table = text.split_once('\n').unwrap().1.parse().unwrap();
        assert!(table.contains_key("tenant"));
        let (_, text) = of(&["sqs:SendMessage", "q"]).unwrap();
        assert!(text.contains("[[role.statements]]"), "{text}");
    }

    #[test]
    fn what_cannot_be_explained_is_said() {
        for (words, part) in [
            (&["GetObject", "b/k"][..], "SERVICE:NAME"),
            (&["s3:FetchObject", "b/k"], "no operation of S3"),
            (&["s3:GetObject", "b/k", "--key", "s3:prefix"], "KEY=VALUE"),
            (&["s3:GetObject", "b/k", "--key", "aws:SourceIp=1"], "does not know"),
            (&["s3:GetObject", "b/k", "--tenant", "none"], "[tenant.none]"),
            (&["s3:GetObject", "b/k", "--role", "none"], "roles.none"),
            (&["s3:GetObject", "b/k", "--document", "/none/r.json"], "/none/r.json"),
        ] {
            let error = explained(words).unwrap_err();
            assert!(format!("{error:#}").contains(part), "{words:?}: {error:#}");
        }
    }
}
