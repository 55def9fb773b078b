//! Functions that call services other than S3 with stock boto3, beside the same functions whose requests
//! are the host's. Both sides ask the same [`Service`], and every answer is compared.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use serde_json::{Map, Value, json};

use super::super::record::Sink;
use super::catalogue::Mode;
use super::figures::{Figures, Ratio};
use super::http::Caller;
use super::lines::{head, row};
use super::measure::{Rounds, Window, bar, cpu, usage, without_instances};
use super::node::{HostTime, Invoked, Node, answered};
use super::place::{Packages, SHORT_KEEP_ALIVE};
use super::service::Service;
use unlade_command::output::line;

/// Modes, baselines first. The cut is the same in `sdk`, `prefetch` and `offload`.
const MODES: [Mode; 3] = [Mode::Stock, Mode::StockPreimported, Mode::Offload];
/// Calls of the service in an invocation.
const CALLS: [usize; 2] = [1, 10];
const TABLE: &str = "orders";
/// The item that `get-item` reads: what an order may have.
const ATTRIBUTES: usize = 12;
const TEXT_CHARS: usize = 48;

/// A function.
#[derive(Debug, PartialEq, Eq)]
struct Kind {
    /// In results and `--only`.
    name: &'static str,
    /// As boto3 calls it.
    service: &'static str,
    code: &'static str,
}

/// The functions that are compared.
const KINDS: [Kind; 3] = [
    Kind {
        name: "get-item",
        service: "dynamodb",
        code: "import boto3\n\nclient = boto3.client('dynamodb')\n\n\n\
               def handler(event, context):\n    \
               for _ in range(event['calls']):\n        \
               got = client.get_item(TableName='orders', Key={'id': {'S': 'due'}})\n    \
               return got['Item']\n",
    },
    Kind {
        name: "put-item",
        service: "dynamodb",
        code: "import boto3\n\nclient = boto3.client('dynamodb')\n\n\n\
               def handler(event, context):\n    \
               for number in range(event['calls']):\n        \
               item = dict(event['item'], id={'S': '%s/%d' % (event['key'], number)})\n        \
               got = client.put_item(TableName='orders', Item=item)\n    \
               return got['ResponseMetadata']['HTTPStatusCode']\n",
    },
    Kind {
        name: "send-message",
        service: "sqs",
        code: "import boto3\n\nclient = boto3.client('sqs')\n\n\n\
               def handler(event, context):\n    \
               for number in range(event['calls']):\n        \
               body = '%s/%d' % (event['key'], number)\n        \
               got = client.send_message(QueueUrl=event['queue'], MessageBody=body)\n    \
               return got['MessageId']\n",
    },
];

/// A function with a number of calls.
#[derive(Clone, Copy, Debug)]
struct Subject {
    kind: &'static Kind,
    calls: usize,
}

impl Subject {
    fn name(self) -> String {
        format!("{}-{}", self.kind.name, self.calls)
    }

    fn function(self, mode: Mode) -> String {
        format!("{}--{}", self.name(), mode.name())
    }

    /// The event of an invocation with a key of its own.
    fn event(self, service: &Service, key: &str) -> Vec<u8> {
        let queue = format!("http://{}/123456789012/orders", service.address);
        let mut event = json!({"calls": self.calls, "key": key});
        match self.kind.name {
            "put-item" => event["item"] = item(),
            "send-message" => event["queue"] = queue.into(),
            _ => {}
        }
        event.to_string().into_bytes()
    }
}

fn item() -> Value {
    let attribute = |number: usize| {
        let text = "0123456789".chars().cycle().skip(number).take(TEXT_CHARS);
        (format!("attribute-{number}"), json!({"S": text.collect::<String>()}))
    };
    let mut item: Map<String, Value> = (0..ATTRIBUTES).map(attribute).collect();
    item.insert("amount".to_owned(), json!({"N": "12.50"}));
    item.insert("lines".to_owned(), json!({"L": [{"S": "one"}, {"S": "two"}, {"BOOL": true}]}));
    Value::Object(item)
}

/// The item that is there before any invocation.
fn due() -> Value {
    let mut item = item();
    item["id"] = json!({"S": "due"});
    item
}

type Windows = BTreeMap<(String, Mode), Vec<Window>>;

/// Measures and tells.
///
/// # Errors
/// A name is none of [`KINDS`], a gateway does not start, a function fails, or an answer is wrong.
pub fn run(only: &[String], packages: &Packages, effort: Rounds, sink: &mut Sink) -> Result<()> {
    let subjects = chosen(only)?;
    let service = Service::start()?;
    let home = Home::new()?;
    let functions = functions(&home.0, &subjects, &service)?;
    let state = home.0.join("state");
    let text = settings(&state, &functions, packages, &service);
    let node = Node::spawn(&home.0, &state, &text)?;
    service.with(|kept| kept.items.insert((TABLE.to_owned(), "due".to_owned()), due()));
    let progress = bar(effort.rounds * subjects.len() * MODES.len());
    let measured = rounds(&node, &service, &subjects, effort, &progress);
    progress.finish_and_clear();
    let (windows, compared) =
        measured.with_context(|| format!("the gateway's log: {}", node.said()))?;
    node.end()?;
    tell(&subjects, &windows, sink)?;
    line(format_args!("{compared} answers were compared"))
}

fn chosen(only: &[String]) -> Result<Vec<Subject>> {
    if let Some(wrong) = only.iter().find(|name| !KINDS.iter().any(|kind| kind.name == **name)) {
        let names: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
        bail!("--only: `{wrong}` is no function of --services; there are {}", names.join(", "));
    }
    let is_wanted = |kind: &&Kind| only.is_empty() || only.iter().any(|name| name == kind.name);
    let of = |kind| CALLS.map(|calls| Subject { kind, calls });
    Ok(KINDS.iter().filter(is_wanted).flat_map(of).collect())
}

/// A directory that is removed afterwards.
struct Home(PathBuf);

impl Home {
    fn new() -> Result<Home> {
        let path = std::env::temp_dir().join(format!("unlade-services-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(Home(path))
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn functions(home: &Path, subjects: &[Subject], service: &Service) -> Result<PathBuf> {
    let directory = home.join("functions");
    for subject in subjects {
        for mode in MODES {
            let own = directory.join(subject.function(mode));
            fs::create_dir_all(&own)?;
            fs::write(own.join("app.py"), subject.kind.code)?;
            fs::write(own.join("function.toml"), manifest(*subject, mode, service))?;
        }
    }
    Ok(directory)
}

fn manifest(subject: Subject, mode: Mode, service: &Service) -> String {
    let mut text = format!(
        "handler = \"app.handler\"\nmode = {:?}\ntenant = {:?}\nkeep_alive = {SHORT_KEEP_ALIVE:?}\n\
         concurrency = 1000\n[preload]\nmodules = [\"json\"]\nhandler = {}\n",
        mode.manifest(),
        mode.name(),
        mode != Mode::Stock,
    );
    text.push_str("[environment]\nAWS_REGION = \"us-east-1\"\n");
    if mode.is_stock() {
        let upper = subject.kind.service.to_uppercase();
        text.push_str(&format!(
            "AWS_ENDPOINT_URL_{upper} = \"http://{}\"\nAWS_ACCESS_KEY_ID = \"bench\"\n\
             AWS_SECRET_ACCESS_KEY = \"bench-secret\"\n",
            service.address
        ));
    }
    let name = subject.kind.service;
    text.push_str(&format!(
        "[[role.statements]]\neffect = \"allow\"\nactions = [\"{name}:*\"]\nresources = [\"*\"]\n"
    ));
    text
}

fn settings(state: &Path, functions: &Path, packages: &Packages, service: &Service) -> String {
    let quoted = |path: &Path| toml::Value::from(path.display().to_string()).to_string();
    let mut text = format!(
        "listen = \"127.0.0.1:0\"\nstore_listen = \"127.0.0.1:0\"\nstate = {}\nfunctions = {}\n\
         python = {}\npackages = [{}]\nauthentication = \"off\"\ncheck_imports = false\n\
         memory_max = \"1TiB\"\ninstances_max = 1000\n[log]\nlevel = \"warn\"\n",
        quoted(state),
        quoted(functions),
        quoted(&packages.interpreter),
        quoted(&packages.directory),
    );
    let services: BTreeSet<&str> = KINDS.iter().map(|kind| kind.service).collect();
    for name in services {
        text.push_str(&format!(
            "[services.endpoint.{name}]\nurl = \"http://{}\"\ncredentials = {{ from = \"keys\", \
             access_key_id = \"bench\", secret_access_key = \"bench-secret\" }}\n",
            service.address
        ));
    }
    for mode in MODES {
        text.push_str(&format!("[tenant.{}]\nmodes = [{:?}]\n", mode.name(), mode.manifest()));
    }
    text
}

/// Rounds of windows, the modes of a subject one after the other in an order that rotates.
fn rounds(
    node: &Node,
    service: &Service,
    subjects: &[Subject],
    effort: Rounds,
    progress: &ProgressBar,
) -> Result<(Windows, usize)> {
    let (mut windows, mut compared) = (Windows::new(), 0);
    let mut caller = node.caller();
    // Templates are made, and pages of all files are read.
    for subject in subjects {
        for mode in MODES {
            compared += Calls::new(service, *subject, mode).once(&mut caller, "first")?.1;
        }
    }
    for round in 0..effort.rounds {
        for subject in subjects {
            for step in 0..MODES.len() {
                let mode = MODES[(step + round) % MODES.len()];
                progress.set_message(subject.function(mode));
                let calls = Calls::new(service, *subject, mode);
                let (window, number) = window(node, &mut caller, &calls, effort.warm, round)
                    .with_context(|| subject.function(mode))?;
                compared += number;
                windows.entry((subject.name(), mode)).or_default().push(window);
                progress.inc(1);
            }
        }
    }
    Ok((windows, compared))
}

/// Invocations of one function.
struct Calls<'a> {
    service: &'a Service,
    subject: Subject,
    mode: Mode,
    function: String,
}

impl<'a> Calls<'a> {
    fn new(service: &'a Service, subject: Subject, mode: Mode) -> Calls<'a> {
        Calls { service, subject, mode, function: subject.function(mode) }
    }

    /// One invocation, whose answer and effects are compared; with how many answers there were.
    fn once(&self, caller: &mut Caller, name: &str) -> Result<(Invoked, usize)> {
        let key = format!("{}/{name}", self.function);
        let event = self.subject.event(self.service, &key);
        let (invoked, answer) = answered(caller, &self.function, &event)?;
        let answer: Value = serde_json::from_slice(&answer).context("the function's answer")?;
        self.check(&key, &answer)?;
        Ok((invoked, self.subject.calls))
    }

    /// Compares an answer, and what the service has got, with those due.
    fn check(&self, key: &str, answer: &Value) -> Result<()> {
        let ids: Vec<String> = (0..self.subject.calls).map(|n| format!("{key}/{n}")).collect();
        let (due, written) = match self.subject.kind.name {
            "get-item" => (due(), true),
            "put-item" => (json!(200), self.takes_items(&ids)),
            _ => {
                let messages = self.service.with(|kept| std::mem::take(&mut kept.messages));
                (json!("11111111-2222-4333-8444-555555555555"), messages == ids)
            }
        };
        if *answer != due {
            bail!("the answer is {answer}, and not {due}");
        }
        if !written {
            bail!("the service has not got what {key} has written");
        }
        Ok(())
    }

    /// Removes items; true if they were there as they have to be.
    fn takes_items(&self, ids: &[String]) -> bool {
        ids.iter().all(|id| {
            let mut due = item();
            due["id"] = json!({"S": id});
            let place = (TABLE.to_owned(), id.clone());
            self.service.with(|kept| kept.items.remove(&place)) == Some(due)
        })
    }
}

/// A start from the template and warm invocations of that instance; with how many answers there were.
fn window(
    node: &Node,
    caller: &mut Caller,
    calls: &Calls<'_>,
    warm: usize,
    round: usize,
) -> Result<(Window, usize)> {
    without_instances(node, caller, &calls.function)?;
    let mut number = 0;
    let mut call = |caller: &mut Caller| -> Result<Invoked> {
        let (invoked, answers) = calls.once(caller, &format!("{round}/{number}"))?;
        number += answers;
        Ok(invoked)
    };
    let cold = call(caller)?;
    let mut window =
        Window { cold: (cold.origin == "restored").then_some(cold), ..Window::default() };
    // The first after a start still grows what the others reuse.
    call(caller)?;
    let before = node.state(caller)?;
    let host = HostTime::now(&before, calls.mode);
    for _ in 0..warm {
        window.warm.push(call(caller)?);
    }
    let host = HostTime::now(&before, calls.mode).since(host);
    let after = node.state(caller)?;
    window.usage = usage(&after, &calls.function).map(|(_, usage)| usage);
    window.cpu = cpu(&before, &after, &calls.function, host, warm);
    window.warm.retain(|invoked| invoked.origin == "warm");
    Ok((window, number))
}

fn case(subject: Subject, more: Value) -> Map<String, Value> {
    let mut map = more.as_object().cloned().unwrap_or_default();
    map.insert("case".to_owned(), "services".into());
    map.insert("function".to_owned(), subject.kind.name.into());
    map.insert("calls".to_owned(), subject.calls.into());
    map.insert("scope".to_owned(), "instance".into());
    map
}

fn tell(subjects: &[Subject], windows: &Windows, sink: &mut Sink) -> Result<()> {
    line(head(&["instance ms", "node ms", "warm p50", "cold p50", "private", "PSS MiB"]))?;
    for subject in subjects {
        for mode in MODES {
            let Some(seen) = windows.get(&(subject.name(), mode)) else { continue };
            let figures = Figures::of(seen);
            sink.write(case(*subject, json!({})), mode.name(), figures.metrics())?;
            let name = if mode == MODES[0] { subject.name() } else { String::new() };
            let ms = |us: Option<f64>| us.map(|us| us / 1e3);
            let mib = |bytes: Option<f64>| bytes.map(|bytes| bytes / 1_048_576.0);
            let cells = [
                ms(figures.instance_cpu_us),
                ms(figures.node_cpu_us),
                ms(figures.warm_p50_us),
                ms(figures.cold_p50_us),
                mib(figures.private_bytes),
                mib(figures.pss_bytes),
            ];
            line(row(&format!("{name:<16.16}{:.10}", mode.name()), cells))?;
        }
    }
    for baseline in Mode::BASELINES {
        line(head(&["instance", "node CPU", "warm", "cold", "memory", "PSS"]))?;
        let mut all = Vec::new();
        for subject in subjects {
            let of = |mode| windows.get(&(subject.name(), mode));
            let (Some(own), Some(base)) = (of(Mode::Offload), of(baseline)) else { continue };
            let ratio = Ratio::of(own, base);
            let fields = json!({"baseline": baseline.name(), "compared": "offload"});
            sink.write(case(*subject, fields), "ratio", ratio.metrics())?;
            line(row(&format!("{} / {:.9}", subject.name(), baseline.name()), cells(&ratio)))?;
            all.push(ratio);
        }
        let mean = Ratio::mean(&all);
        let fields = json!({"case": "services", "scope": "instance", "baseline": baseline.name(),
            "compared": "offload"});
        let mut metrics = mean.metrics();
        metrics.insert("functions".to_owned(), all.len().into());
        sink.write(fields.as_object().cloned().unwrap_or_default(), "ratio", metrics)?;
        line(row(&format!("offload / {}", baseline.name()), cells(&mean)))?;
    }
    Ok(())
}

fn cells(ratio: &Ratio) -> [Option<f64>; 6] {
    [ratio.instance_cpu, ratio.cpu, ratio.warm, ratio.cold, ratio.memory, ratio.pss]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(name: &str, calls: usize) -> Subject {
        Subject { kind: KINDS.iter().find(|kind| kind.name == name).unwrap(), calls }
    }

    #[test]
    fn settings_and_manifests_are_what_they_should_be() {
        let service = Service::start().unwrap();
        let packages =
            Packages { python: "/v".into(), interpreter: "/y".into(), directory: "/p".into() };
        let text = settings(Path::new("/s"), Path::new("/f"), &packages, &service);
        let config: unlade_fn_gateway::GatewayConfig =
            unlade_config::parse(&text, "fn.toml").unwrap();
        config.check().unwrap();
        assert_eq!(config.tenant.len(), MODES.len());
        for subject in chosen(&[]).unwrap() {
            for mode in MODES {
                let made: unlade_fn_model::Manifest =
                    unlade_config::parse(&manifest(subject, mode, &service), "function.toml")
                        .unwrap();
                made.check().unwrap();
                assert_eq!(made.environment.contains_key("AWS_ACCESS_KEY_ID"), mode.is_stock());
            }
        }
    }

    #[test]
    fn only_named_functions_are_chosen() {
        assert_eq!(chosen(&[]).unwrap().len(), KINDS.len() * CALLS.len());
        let one = chosen(&["put-item".to_owned()]).unwrap();
        assert_eq!(
            one.iter().map(|it| it.name()).collect::<Vec<_>>(),
            ["put-item-1", "put-item-10"]
        );
        let told = chosen(&["aes".to_owned()]).unwrap_err().to_string();
        assert!(told.contains("get-item, put-item, send-message"), "{told}");
    }

    #[test]
    fn answers_and_effects_are_compared() {
        let service = Service::start().unwrap();
        let of = |name| Calls::new(&service, subject(name, 2), Mode::Stock);
        of("get-item").check("k", &due()).unwrap();
        assert!(of("get-item").check("k", &item()).is_err(), "another item");
        let put = |id: &str| {
            let mut put = item();
            put["id"] = json!({"S": id});
            service.with(|kept| kept.items.insert((TABLE.to_owned(), id.to_owned()), put));
        };
        put("k/0");
        assert!(of("put-item").check("k", &json!(200)).is_err(), "one is missing");
        put("k/0");
        put("k/1");
        of("put-item").check("k", &json!(200)).unwrap();
        assert!(of("put-item").check("k", &json!(200)).is_err(), "they were removed");
        let id = json!("11111111-2222-4333-8444-555555555555");
        service.with(|kept| kept.messages = vec!["k/0".to_owned(), "k/1".to_owned()]);
        of("send-message").check("k", &id).unwrap();
        assert!(of("send-message").check("k", &id).is_err());
    }
}
