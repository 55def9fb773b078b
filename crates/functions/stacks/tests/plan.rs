//! The state machine of stacks against a slow oracle: random templates with random dependencies, failures at
//! random steps, and a process that is killed between steps.
//!
//! The world is a set of resources. It refuses to use or to remove what a user needs. At the end of each
//! operation it equals the last template that took effect, computed here without the engine, and has
//! nothing that no stack knows.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use unlade_fn_stacks::{Action, Given, Outcome, Place, Stack, Stacks, Status, Work, query};
use unlade_testkit::{Random, cases};

/// Most actions of an operation: each resource is made, restored and deleted once at most.
const ACTIONS_MAX: usize = 200;

/// A declared resource.
#[derive(Clone, Debug, PartialEq)]
struct Wanted {
    label: u32,
    is_fifo: bool,
    references: BTreeSet<usize>,
    depends_on: BTreeSet<usize>,
    is_retained: bool,
    /// It exists only with the parameter `Extra`.
    is_extra: bool,
}

/// A template and its parameter.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    resources: BTreeMap<usize, Wanted>,
    has_extra: bool,
}

impl Model {
    fn random(random: &mut Random) -> Model {
        let mut order: Vec<usize> = (0..8).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, random.below(at + 1));
        }
        order.truncate(random.below(8_usize) + 1);
        let mut model = Model { has_extra: random.percent(50), ..Model::default() };
        for at in 0..order.len() {
            let earlier: Vec<usize> = order[..at].to_vec();
            // A reference to one that may not exist is invalid.
            let plain: Vec<usize> =
                earlier.iter().copied().filter(|one| !model.resources[one].is_extra).collect();
            let mut some = |from: &[usize]| -> BTreeSet<usize> {
                from.iter().copied().filter(|_| random.percent(30)).collect()
            };
            let (references, depends_on) = (some(&plain), some(&earlier));
            let wanted = Wanted {
                label: random.below(3_u32),
                is_fifo: random.percent(30),
                references,
                depends_on,
                is_retained: random.percent(8),
                is_extra: random.percent(15),
            };
            model.resources.insert(order[at], wanted);
        }
        model
    }

    /// The next template: some resources as before.
    fn changed(&self, random: &mut Random) -> Model {
        let mut next = Model::random(random);
        for (id, wanted) in &mut next.resources {
            if let Some(before) = self.resources.get(id).filter(|_| random.percent(60)) {
                (wanted.label, wanted.is_fifo) = (before.label, before.is_fifo);
                wanted.is_retained = before.is_retained;
            }
        }
        next
    }

    fn active(&self) -> impl Iterator<Item = (&usize, &Wanted)> {
        self.resources.iter().filter(|(_, wanted)| self.has_extra || !wanted.is_extra)
    }

    fn text(&self) -> String {
        let mut resources = Map::new();
        for (id, wanted) in &self.resources {
            let name = |id: &usize| format!("R{id}");
            let mut uses = Vec::new();
            for (turn, one) in wanted.references.iter().enumerate() {
                let name = name(one);
                uses.push(match turn % 3 {
                    0 => json!({"Ref": name}),
                    1 => json!({"Fn::GetAtt": [name, "QueueName"]}),
                    _ => json!({"Fn::Sub": format!("${{{name}.QueueName}}")}),
                });
            }
            let mut resource = json!({
                "Type": "AWS::SQS::Queue",
                "Properties": {"Label": wanted.label, "FifoQueue": wanted.is_fifo, "Uses": uses},
                "DependsOn": wanted.depends_on.iter().map(name).collect::<Vec<_>>(),
            });
            if wanted.is_retained {
                resource["DeletionPolicy"] = "Retain".into();
                resource["UpdateReplacePolicy"] = "Retain".into();
            }
            if wanted.is_extra {
                resource["Condition"] = "HasExtra".into();
            }
            resources.insert(name(id), resource);
        }
        // One that is always there: a template without resources is invalid.
        resources.insert("Always".into(), json!({"Type": "AWS::SNS::Topic"}));
        let template = json!({
            "Parameters": {"Extra": {"Type": "String"}},
            "Conditions": {"HasExtra": {"Fn::Equals": [{"Ref": "Extra"}, "yes"]}},
            "Resources": resources,
            "Outputs": {"Topic": {"Value": {"Ref": "Always"}}},
        });
        template.to_string()
    }

    fn form(&self, action: &str) -> String {
        let body: String = self.text().bytes().map(|byte| format!("%{byte:02x}")).collect();
        let extra = if self.has_extra { "yes" } else { "no" };
        format!(
            "Action={action}&StackName=app&TemplateBody={body}&Parameters.member.1.ParameterKey=Extra\
             &Parameters.member.1.ParameterValue={extra}"
        )
    }
}

/// A resource of the world.
#[derive(Clone, Debug)]
struct Thing {
    token: String,
    logical_id: String,
    properties: Value,
    is_retained: bool,
}

impl Thing {
    fn uses(&self) -> Vec<String> {
        uses(&self.properties)
    }
}

fn uses(properties: &Value) -> Vec<String> {
    let list = properties["Uses"].as_array().cloned().unwrap_or_default();
    list.into_iter().map(|one| one.as_str().unwrap().to_owned()).collect()
}

#[derive(Debug, Default)]
struct World {
    things: BTreeMap<String, Thing>,
    failures_percent: u64,
    /// The way back of an update has failed.
    is_unsure: bool,
}

impl World {
    fn done(&self, id: &str) -> Outcome {
        let attributes = Map::from_iter([("QueueName".to_owned(), id.into())]);
        Outcome::Done { physical_id: id.to_owned(), attributes }
    }

    fn failed(physical_id: Option<String>) -> Outcome {
        Outcome::Failed { reason: "chance".to_owned(), physical_id }
    }

    fn check_uses(&self, properties: &Value) {
        for used in uses(properties) {
            let thing = self.things.get(&used);
            assert!(thing.is_some_and(|thing| !thing.is_retained), "{used} does not exist");
        }
    }

    /// Returns true if `from` uses `to`, or one that does.
    fn reaches(&self, from: &str, to: &str) -> bool {
        let (mut open, mut seen) = (vec![from.to_owned()], BTreeSet::new());
        while let Some(id) = open.pop() {
            if id == to {
                return true;
            }
            if seen.insert(id.clone()) {
                open.extend(self.things.get(&id).iter().flat_map(|thing| thing.uses()));
            }
        }
        false
    }

    fn perform(&mut self, action: &Action, target: &Model, random: &mut Random) -> Outcome {
        let fails = random.percent(self.failures_percent);
        let is_late = random.percent(50);
        match &action.work {
            Work::Create { name, properties, .. } => {
                self.check_uses(properties);
                let number = action.logical_id.strip_prefix('R').and_then(|text| text.parse().ok());
                let active: BTreeSet<usize> = target.active().map(|(id, _)| *id).collect();
                let on = number.and_then(|id: usize| Some(&target.resources.get(&id)?.depends_on));
                for one in on.into_iter().flatten().filter(|id| active.contains(id)) {
                    let name = format!("R{one}");
                    assert!(self.things.values().any(|thing| thing.logical_id == name), "{name}");
                }
                // A creation that was made before a crash is found by its token.
                let made = self.things.iter().find(|(_, thing)| thing.token == action.token);
                if let Some((id, _)) = made {
                    assert!(action.is_repeated && id == name, "{action:?} was made");
                    return self.done(name);
                }
                if fails && !is_late {
                    return World::failed(None);
                }
                let thing = Thing {
                    token: action.token.clone(),
                    logical_id: action.logical_id.clone(),
                    properties: properties.clone(),
                    is_retained: false,
                };
                assert!(self.things.insert(name.clone(), thing).is_none(), "{name} exists");
                if fails { World::failed(Some(name.clone())) } else { self.done(name) }
            }
            Work::Update { physical_id, properties, .. } => {
                self.check_uses(properties);
                let thing = self.things.get_mut(physical_id).expect("it exists");
                assert!(!thing.is_retained);
                if !fails || is_late {
                    thing.properties = properties.clone();
                }
                if fails { World::failed(None) } else { self.done(physical_id) }
            }
            Work::Delete { physical_id, .. } => {
                for (id, thing) in self.things.iter().filter(|(_, thing)| !thing.is_retained) {
                    if !thing.uses().contains(physical_id) {
                        continue;
                    }
                    // A way back that fails leaves resources whose uses nobody knows: circles of
                    // them are told to go, and refuse while they are in use.
                    assert!(self.is_unsure, "{id} uses {physical_id}");
                    if !self.reaches(physical_id, id) {
                        return World::failed(None);
                    }
                }
                if fails && !is_late && self.things.contains_key(physical_id) {
                    return World::failed(None);
                }
                let gone = self.things.remove(physical_id);
                assert!(gone.is_some() || action.is_repeated, "{physical_id} was deleted before");
                // A late failure is one whose answer is lost: the deletion is repeated by the next one.
                self.done(physical_id)
            }
        }
    }
}

/// A process that has stacks, and may be killed.
struct Host {
    stacks: Stacks,
    world: World,
    now_ms: u64,
    id: String,
}

impl Host {
    fn kill(&mut self) {
        let stacks = self.stacks.all().map(|stack| {
            let text = serde_json::to_string(stack).unwrap();
            let read: Stack = serde_json::from_str(&text).unwrap();
            assert_eq!(&read, stack);
            read
        });
        self.stacks = Stacks::new(self.stacks.place().clone(), stacks.collect::<Vec<_>>());
    }

    fn call(&mut self, form: &str) -> Result<(), String> {
        self.now_ms += 1;
        let unique = format!("{:08}", self.now_ms);
        let request = query::decode(form.as_bytes()).unwrap();
        let given = Given { now_ms: self.now_ms, unique: &unique, template: None };
        let reply = self.stacks.call(&request, given).map_err(|failure| failure.message)?;
        if let Some(changed) = reply.changed {
            self.id = changed;
        }
        Ok(())
    }

    fn run(&mut self, target: &Model, random: &mut Random) -> Status {
        let mut count = 0;
        self.now_ms += 1;
        while let Some(action) = self.stacks.next(&self.id, self.now_ms) {
            count += 1;
            assert!(count <= ACTIONS_MAX, "the operation has no end");
            assert!(!action.is_repeated);
            self.note_retained();
            let mut told = action;
            if random.percent(20) {
                self.kill();
                let again = self.stacks.next(&self.id, self.now_ms).unwrap();
                assert_eq!(again, Action { is_repeated: true, ..told });
                told = again;
            }
            let mut outcome = self.world.perform(&told, target, random);
            if random.percent(20) {
                // It was carried out, but its outcome is lost.
                self.kill();
                let again = self.stacks.next(&self.id, self.now_ms).unwrap();
                // A resource that was made in part is left to the engine only if it is told about it.
                let is_part = matches!(&outcome, Outcome::Failed { physical_id: Some(_), .. });
                if !is_part {
                    outcome = self.world.perform(&again, target, random);
                }
            }
            self.now_ms += 1;
            assert!(self.stacks.outcome(&self.id, told.step + 1, outcome.clone(), 0).is_err());
            self.stacks.outcome(&self.id, told.step, outcome, self.now_ms).unwrap();
        }
        let stack = self.stacks.get(&self.id).unwrap();
        assert!(stack.operation.is_none());
        let status = stack.status;
        self.note_retained();
        status
    }

    /// Resources that the stack left: it knows them no more.
    fn note_retained(&mut self) {
        let stack = self.stacks.get(&self.id).unwrap();
        for event in stack.events.iter().filter(|event| event.status == Status::DeleteSkipped) {
            if let Some(thing) = self.world.things.get_mut(&event.physical_id) {
                thing.is_retained = true;
            }
        }
    }

    /// Nothing leaked: the stack knows every resource that is there, and every one that it knows is there.
    fn check_known(&self) {
        let stack = self.stacks.get(&self.id).unwrap();
        let known: BTreeSet<_> = stack.instances().map(|one| one.physical_id.clone()).collect();
        let there = self.world.things.iter().filter(|(_, thing)| !thing.is_retained);
        let there: BTreeSet<_> = there.map(|(id, _)| id.clone()).collect();
        assert_eq!(known, there, "{:?}", stack.status);
    }

    /// The world is as the model says, besides resources that could not be deleted.
    fn check_equal(&self, model: &Model) {
        let stack = self.stacks.get(&self.id).unwrap();
        let left: BTreeSet<_> = stack.leftovers.iter().map(|one| &one.physical_id).collect();
        let current = self.world.things.iter();
        let current = current.filter(|(id, thing)| !thing.is_retained && !left.contains(id));
        let mut by_name = BTreeMap::new();
        for (id, thing) in current {
            let before = by_name.insert(thing.logical_id.clone(), (id.clone(), thing.clone()));
            assert!(before.is_none(), "{} is there twice", thing.logical_id);
        }
        by_name.remove("Always").expect("the topic");
        let names: Vec<_> = model.active().map(|(id, _)| format!("R{id}")).collect();
        assert_eq!(by_name.keys().cloned().collect::<BTreeSet<_>>(), names.into_iter().collect());
        for (id, wanted) in model.active() {
            let properties = &by_name[&format!("R{id}")].1.properties;
            assert_eq!(properties["Label"], json!(wanted.label), "R{id}");
            assert_eq!(properties["FifoQueue"], json!(wanted.is_fifo), "R{id}");
            let used = wanted.references.iter().map(|one| by_name[&format!("R{one}")].0.clone());
            assert_eq!(uses(properties), used.collect::<Vec<_>>(), "R{id}");
        }
    }
}

fn life(random: &mut Random) -> BTreeSet<Status> {
    let place = Place { region: "us-east-1".into(), account: "000000000000".into() };
    let (world, id) = (World::default(), String::new());
    let mut host = Host { stacks: Stacks::new(place, []), world, now_ms: 0, id };
    let mut seen = BTreeSet::new();
    let mut stable = Model::random(random);
    host.world.failures_percent = random.pick(&[0, 0, 3, 10, 30]);
    host.call(&stable.form("CreateStack")).unwrap();
    let mut status = host.run(&stable, random);
    seen.insert(status);
    host.check_known();
    for _ in 0..random.below(6_u32) {
        if status == Status::CreateComplete || status.as_str().starts_with("UPDATE_") {
            host.check_equal(&stable);
        }
        let next = stable.changed(random);
        host.world.failures_percent = random.pick(&[0, 3, 10, 30]);
        match host.call(&next.form("UpdateStack")) {
            Ok(()) => {}
            Err(message) if message == "No updates are to be performed." => {
                assert_eq!(stable.active().count(), next.active().count());
                continue;
            }
            Err(message) => {
                assert!(message.contains("can not be updated"), "{message}");
                assert!(!status.can_update(), "{message}");
                break;
            }
        }
        status = host.run(&next, random);
        seen.insert(status);
        host.check_known();
        host.world.is_unsure |= status == Status::UpdateRollbackFailed;
        match status {
            Status::UpdateComplete => stable = next,
            Status::UpdateRollbackComplete => {}
            Status::UpdateRollbackFailed => break,
            other => panic!("an update ends as {other:?}"),
        }
        host.check_equal(&stable);
    }
    // The end: a deletion that fails is repeated.
    host.world.failures_percent = random.pick(&[0, 30]);
    let model = Model::default();
    for _ in 0..9 {
        host.call("Action=DeleteStack&StackName=app").unwrap();
        status = host.run(&model, random);
        seen.insert(status);
        host.check_known();
        host.world.failures_percent = 0;
        if status == Status::DeleteComplete {
            break;
        }
        assert_eq!(status, Status::DeleteFailed);
    }
    assert_eq!(status, Status::DeleteComplete);
    assert!(host.world.things.values().all(|thing| thing.is_retained), "{:?}", host.world.things);
    seen
}

#[test]
fn the_world_equals_the_last_template_that_took_effect() {
    let mut seen = BTreeSet::new();
    cases(400, |random| seen.extend(life(random)));
    if unlade_testkit::setting("UNLADE_SEED").is_none() {
        for status in [
            Status::CreateComplete,
            Status::RollbackComplete,
            Status::RollbackFailed,
            Status::UpdateComplete,
            Status::UpdateRollbackComplete,
            Status::UpdateRollbackFailed,
            Status::DeleteFailed,
            Status::DeleteComplete,
        ] {
            assert!(seen.contains(&status), "no case ends as {status:?}");
        }
    }
}
