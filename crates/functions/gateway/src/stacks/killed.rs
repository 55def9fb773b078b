//! A test: a gateway that is killed at every point of an operation. The next one ends it, and what the disk has
//! is what the stack says.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use tokio::task::LocalSet;
use unlade_fn_stacks::{Outcome, Work, query};
use unlade_metrics::{Meter, Role};

use super::resource;
use super::task::Task;
use super::tenant_stacks::TenantStacks;
use crate::config::GatewayConfig;
use crate::host::Host;
use crate::tenants::{Own, Tenants};

const TENANT: &str = "owner";
const TEMPLATE: &str = r#"{"Resources": {
    "Reader": {"Type": "AWS::IAM::Role", "Properties": {
        "AssumeRolePolicyDocument": {"Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole",
            "Principal": {"Service": ["lambda.amazonaws.com", "edgelambda.amazonaws.com"]}}]},
        "Policies": [{"PolicyName": "p", "PolicyDocument": {"Version": "2012-10-17", "Statement": [
            {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::in/*"}]}}]}},
    "Shared": {"Type": "AWS::IAM::ManagedPolicy", "Properties": {
        "Roles": [{"Ref": "Reader"}],
        "PolicyDocument": {"Version": "2012-10-17", "Statement": [
            {"Effect": "Allow", "Action": "s3:PutObject", "Resource": "arn:aws:s3:::out/*"}]}}},
    "Logs": {"Type": "AWS::Logs::LogGroup", "DependsOn": "Shared", "Properties": {
        "LogGroupName": "g", "RetentionInDays": 1}}}}"#;
/// A resource that fails after all others.
const FAILS: &str = r#""Last": {"Type": "AWS::IAM::ManagedPolicy", "DependsOn": "Logs", "Properties": {
    "Roles": ["absent"], "PolicyDocument": {"Version": "2012-10-17", "Statement": [
        {"Effect": "Allow", "Action": "s3:PutObject", "Resource": "*"}]}}}"#;

fn host(state: &Path) -> Rc<Host> {
    let text = format!("state = \"{}\"\n[tenant.{TENANT}]\n", state.display());
    let config: GatewayConfig = unlade_config::parse(&text, "fn.toml").unwrap();
    let tenants = Tenants::start(&config, Path::new("/nothing"), None, Own::default()).unwrap();
    let meter = Arc::new(Meter::for_role(Role::Gateway));
    Host::new(config, HashMap::new(), tenants, None, PathBuf::new(), meter)
}

/// One gateway: its points are counted, and it ends at the one that is given.
struct Life {
    host: Rc<Host>,
    stacks: TenantStacks,
    points: usize,
    end: usize,
}

impl Life {
    fn new(state: &Path, end: usize) -> Life {
        let host = host(state);
        let stacks = TenantStacks::load(&host, TENANT).unwrap();
        Life { host, stacks, points: 0, end }
    }

    /// Returns true if the gateway is killed now.
    fn is_killed(&mut self) -> bool {
        self.points += 1;
        self.points > self.end
    }

    async fn call(&self, form: &str) -> Result<String, String> {
        let request = query::decode(form.as_bytes()).unwrap();
        let unique = crate::invoke::uuid();
        let called = self.stacks.call(&request, (&unique, None)).await.unwrap();
        called.map_err(|failure| failure.message)
    }

    /// Carries out what is to be done; returns false if the gateway is killed within it.
    async fn run(&mut self) -> bool {
        for id in self.stacks.running() {
            let mut carried_out = None;
            loop {
                let action = self.stacks.advance(&id, carried_out.take()).await.unwrap();
                if self.is_killed() {
                    return false;
                }
                let Some(action) = action else { break };
                let (outcome, notes) = {
                    let directory = self.stacks.directory(&id);
                    let place = (&self.host, TENANT);
                    let task = Task::new(place, &action, &self.stacks.identities, directory);
                    (resource::act(&task).await.unwrap(), task.notes())
                };
                if let (Work::Create { .. }, Outcome::Failed { reason, .. }) =
                    (&action.work, &outcome)
                {
                    assert!(reason.contains("the role absent"), "{}: {reason}", action.logical_id);
                }
                if self.is_killed() {
                    return false;
                }
                carried_out = Some((action, outcome, notes));
            }
        }
        true
    }

    /// The rights of all roles.
    fn actions(&self) -> Vec<String> {
        let rights = self.stacks.identities.see(|content| content.rights().unwrap());
        let statements = rights.values().filter_map(|rights| rights["Statement"].as_array());
        statements.flatten().map(|statement| statement["Action"].to_string()).collect()
    }
}

async fn within(template: &str, status: &str, actions: &[&str]) {
    let form = format!(
        "Action=CreateStack&StackName=app&Capabilities.member.1=CAPABILITY_IAM&TemplateBody={}",
        unlade_s3::encode::percent(template, b"")
    );
    let mut points = 0;
    for end in 0.. {
        let state = tempfile::tempdir().unwrap();
        let mut first = Life::new(state.path(), end);
        first.call(&form).await.unwrap();
        let is_over = first.run().await;
        points = points.max(first.points);
        drop(first);
        let mut second = Life::new(state.path(), usize::MAX);
        assert!(second.run().await);
        let about = second.call("Action=DescribeStacks&StackName=app").await.unwrap();
        let due = format!("<StackStatus>{status}</StackStatus>");
        assert!(about.contains(&due), "killed at {end}: {about}");
        assert_eq!(second.actions(), actions, "killed at {end}");
        let events = second.call("Action=DescribeStackEvents&StackName=app").await.unwrap();
        assert!(events.contains("edgelambda") && events.contains("RetentionInDays"), "{events}");

        second.call("Action=DeleteStack&StackName=app").await.unwrap();
        assert!(second.run().await);
        let gone = second.call("Action=DescribeStacks&StackName=app").await.unwrap_err();
        assert!(gone.contains("does not exist"), "{gone}");
        let own = super::file::of_tenant(state.path(), TENANT);
        for directory in super::file::directories(&own).unwrap() {
            assert!(!own.join(directory).join(super::file::INTENT).exists(), "killed at {end}");
        }
        drop(second);
        let third = Life::new(state.path(), usize::MAX);
        assert_eq!(third.actions(), Vec::<String>::new());
        assert_eq!(third.stacks.identities.see(|content| content.policies.len()), 0);
        if is_over {
            break;
        }
    }
    assert!(points > 6, "there are points within the operation");
}

/// The state of a tenant's stacks is bounded; a deletion makes room.
#[test]
fn the_stacks_of_a_tenant_have_room_again_after_a_deletion() {
    run(async {
        let state = tempfile::tempdir().unwrap();
        let form = |name: &str| {
            format!(
                "Action=CreateStack&StackName={name}&Capabilities.member.1=CAPABILITY_IAM&TemplateBody={}",
                unlade_s3::encode::percent(TEMPLATE, b"")
            )
        };
        let mut first = Life::new(state.path(), usize::MAX);
        first.stacks.limit_bytes(1000);
        first.call(&form("a")).await.unwrap();
        assert!(first.run().await);
        drop(first);
        // The next gateway counts what it finds.
        let mut second = Life::new(state.path(), usize::MAX);
        second.stacks.limit_bytes(1000);
        let full = second.call(&form("b")).await.unwrap_err();
        assert!(full.contains("more than 1000 bytes"), "{full}");
        second.call("Action=DeleteStack&StackName=a").await.unwrap();
        assert!(second.run().await);
        second.call(&form("b")).await.unwrap();
    });
}

/// A creation may have been carried out before a kill. As long as the state that tells cannot be read, it is
/// neither a failure nor a success: what it has made would be lost from sight.
#[test]
fn a_repeated_creation_waits_for_its_state() {
    run(async {
        let state = tempfile::tempdir().unwrap();
        let life = Life::new(state.path(), usize::MAX);
        let form = format!(
            "Action=CreateStack&StackName=app&Capabilities.member.1=CAPABILITY_IAM&TemplateBody={}",
            unlade_s3::encode::percent(TEMPLATE, b"")
        );
        life.call(&form).await.unwrap();
        let id = life.stacks.running().remove(0);
        let directory = life.stacks.directory(&id);
        let first = life.stacks.advance(&id, None).await.unwrap().unwrap();
        let again = life.stacks.advance(&id, None).await.unwrap().unwrap();
        assert_eq!((first.is_repeated, again.is_repeated), (false, true));
        let act = async |action| {
            let identities = &life.stacks.identities;
            let task = Task::new((&life.host, TENANT), action, identities, directory.clone());
            resource::act(&task).await
        };
        // A directory is in the place of the file.
        let intent = directory.join(super::file::INTENT);
        std::fs::create_dir(&intent).unwrap();
        assert!(matches!(act(&first).await, Some(Outcome::Failed { physical_id: None, .. })));
        assert_eq!(act(&again).await, None);
        std::fs::remove_dir(&intent).unwrap();
        assert!(matches!(act(&again).await, Some(Outcome::Done { .. })));
    });
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

#[test]
fn a_creation_ends_in_its_target() {
    let due = ["\"s3:GetObject\"", "\"s3:PutObject\""];
    run(within(TEMPLATE, "CREATE_COMPLETE", &due));
}

#[test]
fn a_failed_creation_leaves_nothing() {
    let (rest, _) = TEMPLATE.rsplit_once("}}").unwrap();
    let template = format!("{rest}, {FAILS}}}}}");
    run(within(&template, "ROLLBACK_COMPLETE", &[]));
}
