//! `unlade fn explain`: the statement that decides about an action, or about every action that an
//! operation of S3 needs, without a gateway.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Map, Value, json};
use unlade_command::output::line;
use unlade_fn_gateway::config::{DEFAULT_TENANT, GatewayConfig};
use unlade_fn_gateway::{deploy, permit};
use unlade_fn_model::Manifest;
use unlade_s3::policy::explain::{self, Explanation, Whose};
use unlade_s3::policy::facts::{Environment, Vocabulary};
use unlade_s3::policy::{BOUNDARY, Decision, Explained, document, is_action};
use unlade_s3::{Policy, operation};

pub(super) const LONG: &str = "\
Says whether a function may perform an action on a resource, which statement decides, and which lines \
would allow the action. In place of an action, an operation of S3 with its parameters: then it does so \
for every action that the request needs. The rights are those that `unlade fn serve` gives the function with the same \
files: a role of the configuration (--role) or that of the function's directory (--function), within \
`role` of its tenant. With --document they are those of one policy document. Nothing is asked of a \
gateway or of a store. The exit status is 0 if the action is allowed, or all of them, and 1 if not.";

pub(super) const HELP: &str = "\
ACTION is IAM's name, as s3:GetObject or dynamodb:Query; or an operation of S3, as PutObject, with \
--parameter for those of its parameters that need a right of their own. RESOURCE is, for S3, BUCKET or BUCKET/KEY; for \
other services the last part of an ARN, as table/orders; or an ARN; \"*\" is a resource that the host \
cannot tell. The page on identity and rights lists the condition keys that a document may name; those \
that are not said with --key are absent, except the time, the region and an encrypted transport.

Examples:
  unlade fn explain s3:GetObject photos/cat.jpg --config fn.toml --tenant shop --role reader
  unlade fn explain s3:ListBucket photos --document reader.json --key s3:prefix=public/
  unlade fn explain PutObject photos/cat.jpg --parameter ACL=public-read --document writer.json
  unlade fn explain dynamodb:Query table/orders --config fn.toml --function ./thumbnail";

/// Arguments of `unlade fn explain`.
#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// The action, or an operation of S3
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
    /// A parameter of the operation, as text or JSON; may be there several times
    #[arg(long = "parameter", value_name = "NAME=VALUE")]
    parameters: Vec<String>,
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
    let rights = rights(args)?;
    let (now, region) = (SystemTime::now(), args.region.clone());
    let environment = Environment { now, region, has_tls: true, is_deferred: false };
    let (is_allowed, text) = explained(args, &rights, &environment)?;
    line(format_args!("{text}"))?;
    Ok(if is_allowed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// An action on a resource, with the decision about it.
struct Found {
    action: String,
    resource: String,
    explanation: Explanation,
}

/// True if all is allowed, and the text.
fn explained(
    args: &ExplainArgs,
    rights: &Rights,
    environment: &Environment,
) -> Result<(bool, String)> {
    let keys = args.keys.iter().map(|pair| key(pair)).collect::<Result<Vec<_>>>()?;
    let policy = Policy::from_value(&rights.policy)?;
    let all = if args.action.contains(':') {
        check_action(&args.action)?;
        if !args.parameters.is_empty() {
            bail!(
                "--parameter is of an operation of S3, as PutObject; {} is an action",
                args.action
            );
        }
        let explanation = policy.explain(&args.action, &args.resource, environment, &keys);
        let (action, resource) = (args.action.clone(), args.resource.clone());
        vec![Found { action, resource, explanation }]
    } else {
        let Some(operation) = operation::find(&args.action) else {
            bail!(
                "{:?} is neither an action (SERVICE:NAME, as s3:GetObject) nor an operation of S3",
                args.action
            );
        };
        let parameters = parameters(operation, args)?;
        let all = policy.explain_operation(operation, &parameters, environment, &keys);
        if all.is_empty() {
            bail!("a bucket, a key, a version or a source is no text that the host decides about");
        }
        let is_shown =
            |own: &Explained| !own.is_possible || own.explanation.decision != Decision::Allowed;
        let found = all.into_iter().filter(is_shown).map(|own| {
            let Explained { action, resource, explanation, .. } = own;
            Found { action, resource, explanation }
        });
        found.collect()
    };
    let is_allowed = all.iter().all(|own| own.explanation.decision == Decision::Allowed);
    let mut texts: Vec<String> = Vec::new();
    for found in &all {
        let text = text(args, rights, found);
        // Two parameters may need the same action.
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    Ok((is_allowed, texts.join("\n")))
}

/// The parameters of an operation: bucket and key, and those of the command line.
fn parameters(operation: &operation::Operation, args: &ExplainArgs) -> Result<Map<String, Value>> {
    let name = args.resource.strip_prefix("arn:aws:s3:::").unwrap_or(&args.resource);
    let mut found = Map::new();
    match (operation.target, name.split_once('/')) {
        (operation::Target::Object, Some((bucket, key))) => {
            found.insert("Bucket".to_owned(), bucket.into());
            found.insert("Key".to_owned(), key.into());
        }
        (operation::Target::Object, None) => {
            bail!("{} is on an object: BUCKET/KEY", operation.name);
        }
        (operation::Target::Bucket, None) => {
            found.insert("Bucket".to_owned(), name.into());
        }
        (operation::Target::Bucket, Some(_)) => bail!("{} is on a BUCKET", operation.name),
        (operation::Target::Service, _) => {}
    }
    for pair in &args.parameters {
        let (name, value) = pair.split_once('=').context("--parameter is NAME=VALUE")?;
        let Some(field) = operation.field(name) else {
            bail!("--parameter: {} has no parameter {name:?}", operation.name);
        };
        let is_json = field.kind == operation::Kind::Boolean || value.starts_with(['{', '[']);
        let value = match is_json {
            true => serde_json::from_str(value).with_context(|| format!("--parameter {name}"))?,
            false => Value::from(value),
        };
        found.insert(name.to_owned(), value);
    }
    Ok(found)
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
    let Some((service, _)) = action.split_once(':').filter(|(_, name)| !name.is_empty()) else {
        bail!("{action:?} is no action: SERVICE:NAME, as s3:GetObject");
    };
    if service.eq_ignore_ascii_case("s3") && !is_action(action) {
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

fn text(args: &ExplainArgs, rights: &Rights, found: &Found) -> String {
    let what = format!("{} on {}", found.action, found.resource);
    let whose = match (found.explanation.whose, &args.document) {
        (Whose::Role, Some(path)) => path.display().to_string(),
        (Whose::Role, None) => "the function's role".to_owned(),
        (Whose::Boundary, _) => format!("the operator's role of tenant {}", rights.tenant),
    };
    let by = found.explanation.statement.as_ref().map(|(number, sid)| {
        let name = sid.as_ref().map(|sid| format!(" ({sid})")).unwrap_or_default();
        format!("statement {number}{name} of {whose}")
    });
    match (found.explanation.decision, by) {
        (Decision::Allowed, Some(by)) => format!("allowed: {what}, by {by}"),
        (Decision::Denied, Some(by)) => {
            format!("denied: {what}, by {by}; no other statement can allow it")
        }
        _ => format!(
            "not allowed: no statement of {whose} is about {what}; what would allow it:\n{}",
            lines(args, rights, found)
        ),
    }
}

/// The statement to add, in the form of the policy that decides.
fn lines(args: &ExplainArgs, rights: &Rights, found: &Found) -> String {
    let (place, decides) = match found.explanation.whose {
        Whose::Role => (None, Some(&rights.policy)),
        Whose::Boundary => (Some("role"), rights.policy.get(BOUNDARY)),
    };
    let (action, resource) = (&found.action, &found.resource);
    if decides.is_some_and(|policy| policy.get("Statement").is_some()) {
        let resource = arn(action, resource, &args.region);
        let statement = json!({"Effect": "Allow", "Action": action, "Resource": resource});
        return format!("{statement:#}");
    }
    let table = match (place, &rights.role) {
        (Some(place), _) => format!("tenant.{}.{place}.statements", rights.tenant),
        (None, Some(role)) => format!("tenant.{}.roles.{role}.statements", rights.tenant),
        (None, None) => "role.statements".to_owned(),
    };
    format!("[[{table}]]\neffect = \"allow\"\nactions = [{action:?}]\nresources = [{resource:?}]")
}

/// The resource as a document has it.
fn arn(action: &str, resource: &str, region: &str) -> String {
    let service = action.split(':').next().unwrap_or_default().to_ascii_lowercase();
    match (resource, service.as_str()) {
        (arn, "s3") if arn == "*" || arn.starts_with("arn:") => arn.to_owned(),
        (name, "s3") => format!("arn:aws:s3:::{name}"),
        (name, service) => explain::resource(service, name, region).arn(),
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

    fn run(words: &[&str]) -> Result<(bool, String)> {
        let args = Command::try_parse_from(std::iter::once(&"explain").chain(words))?.args;
        explained(&args, &rights(&args)?, &Environment::of_tests())
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
        let of = |words: &[&str]| run(&[words, &["--document", &file]].concat()).unwrap();
        let (is_allowed, text) = of(&["s3:ListBucket", "photos", "--key", "s3:prefix=a/b"]);
        assert!(is_allowed);
        assert!(text.ends_with(&format!("by statement 1 (List) of {file}")), "{text}");
        let (is_allowed, text) = of(&["s3:GetObject", "photos/k"]);
        assert!(!is_allowed);
        let (_, lines) = text.split_once('\n').unwrap();
        let statement: Value = serde_json::from_str(lines).unwrap();
        let mut wider: Value = serde_json::from_str(DOCUMENT).unwrap();
        wider["Statement"].as_array_mut().unwrap().push(statement);
        std::fs::write(&path, wider.to_string()).unwrap();
        assert!(of(&["s3:GetObject", "photos/k"]).0);
        assert_eq!(arn("sqs:SendMessage", "q", "eu-west-1"), "arn:aws:sqs:eu-west-1:*:q");
        assert_eq!(arn("sqs:ListQueues", "*", "eu-west-1"), "*");
        assert_eq!(
            arn("secretsmanager:GetSecretValue", "secret:db", "eu-west-1"),
            "arn:aws:secretsmanager:eu-west-1:*:secret:db-??????"
        );
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
        let of = |words: &[&str]| run(&[words, &["--config", &config]].concat());
        let listed = ["s3:ListBucket", "photos", "--tenant", "shop", "--role", "lister", "--key"];
        let (is_allowed, text) = of(&[&listed[..], &["s3:prefix=a/b"]].concat()).unwrap();
        assert!(is_allowed && text.contains("(List)"), "{text}");
        let (is_allowed, _) = of(&[&listed[..], &["s3:prefix=b"]].concat()).unwrap();
        assert!(!is_allowed);
        let (is_allowed, text) =
            of(&["s3:GetObject", "photos/k", "--function", &function]).unwrap();
        assert!(!is_allowed);
        assert!(text.contains("operator's role of tenant shop"), "{text}");
        assert!(text.contains("[[tenant.shop.role.statements]]"), "{text}");
        let table: toml::Table = text.split_once('\n').unwrap().1.parse().unwrap();
        assert!(table.contains_key("tenant"));
        let (_, text) = of(&["sqs:SendMessage", "q"]).unwrap();
        assert!(text.contains("[[role.statements]]"), "{text}");
    }

    /// Each action that a request needs has a line, and those that are missing what would allow
    /// them.
    #[test]
    fn an_operation_is_explained_by_each_of_its_actions() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.json");
        let mut document = json!({"Version": "2012-10-17", "Statement": [
            {"Effect": "Allow", "Action": "s3:PutObject", "Resource": "arn:aws:s3:::photos/*"}]});
        std::fs::write(&path, document.to_string()).unwrap();
        let file = path.display().to_string();
        let of = |words: &[&str]| run(&[words, &["--document", &file]].concat()).unwrap();
        assert!(of(&["PutObject", "photos/k"]).0);
        let open = [
            "PutObject",
            "photos/k",
            "--parameter",
            "ACL=public-read",
            "--parameter",
            "GrantRead=id=1",
        ];
        let (is_allowed, text) = of(&open);
        assert!(!is_allowed);
        assert!(text.starts_with("allowed: s3:PutObject on photos/k, by statement 1"), "{text}");
        assert_eq!(text.matches("about s3:PutObjectAcl on photos/k").count(), 1, "{text}");
        let (_, lines) = text.split_once("allow it:\n").unwrap();
        let statement = serde_json::from_str(lines).unwrap();
        document["Statement"].as_array_mut().unwrap().push(statement);
        std::fs::write(&path, document.to_string()).unwrap();
        assert!(of(&open).0);
        let delete = [
            "DeleteObject",
            "photos/k",
            "--parameter",
            "VersionId=7",
            "--parameter",
            "BypassGovernanceRetention=true",
        ];
        let (_, text) = of(&delete);
        for action in ["s3:DeleteObjectVersion", "s3:BypassGovernanceRetention"] {
            assert!(text.contains(&format!("about {action} on photos/k")), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_explained_is_said() {
        for (words, part) in [
            (&["FetchObject", "b/k"][..], "SERVICE:NAME"),
            (&["GetObject", "b"], "BUCKET/KEY"),
            (&["ListObjectsV2", "b/k"], "BUCKET"),
            (&["PutObject", "b/k", "--parameter", "ACL"], "NAME=VALUE"),
            (&["PutObject", "b/k", "--parameter", "Acl=x"], "no parameter \"Acl\""),
            (&["s3:PutObject", "b/k", "--parameter", "ACL=x"], "is an action"),
            (&["CopyObject", "b/k", "--parameter", "CopySource=arn:aws:s3:::b/k"], "no text"),
            (&["s3:FetchObject", "b/k"], "no operation of S3"),
            (&["s3:GetObject", "b/k", "--key", "s3:prefix"], "KEY=VALUE"),
            (&["s3:GetObject", "b/k", "--key", "aws:SourceIp=1"], "does not know"),
            (&["s3:GetObject", "b/k", "--tenant", "none"], "[tenant.none]"),
            (&["s3:GetObject", "b/k", "--role", "none"], "roles.none"),
            (&["s3:GetObject", "b/k", "--document", "/none/r.json"], "/none/r.json"),
        ] {
            let error = run(words).unwrap_err();
            assert!(format!("{error:#}").contains(part), "{words:?}: {error:#}");
        }
    }
}
