//! The page of the metrics, from the text that the processes serve at `/metrics`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use unlade_fn_gateway::function_meter::FunctionMeters;
use unlade_metrics::{Event, Meter, OpenMetrics, Role, Stage};
use unlade_nic_inline::device::DeviceCounters;
use unlade_nic_inline::tls_proxy::metrics::{Connections, add_device};
use unlade_testkit::openmetrics;

const HEAD: &str = "\
# Metrics

A test generates this page from the code: `UNLADE_BLESS=1 cargo test -p unlade --test reference`
writes it.

Each process serves its metrics as OpenMetrics text at `/metrics` of the address `admin` of its
configuration. The names below are those of the samples. A histogram has the samples `_bucket` (with
the label `le`), `_sum` and `_count`; it is served after its first measurement. A worker of several
tenants adds the label `tenant`. Functions beyond `metrics_functions_max` of `fn.toml` share the
samples with the value `other` of the labels `tenant` and `function`; those of a removed function
disappear.
";

/// A product: the heading, the processes that serve its metrics, and the beginnings of their names.
struct Product {
    title: &'static str,
    served_by: &'static str,
    prefixes: &'static [&'static str],
}

const PRODUCTS: &[Product] = &[
    Product { title: "Load balancer", served_by: "`unlade lb`.", prefixes: &["unlade_lb_"] },
    Product {
        title: "Backend",
        served_by: "`unlade backend`, with those of the software NIC if `tls = \"nic\"`.",
        prefixes: &["unlade_backend_"],
    },
    Product {
        title: "Agent of direct return",
        served_by: "`unlade agent`.",
        prefixes: &["unlade_agent_"],
    },
    Product {
        title: "Sidecar",
        served_by: "`unlade agent` with `[sidecar]`, with those of the backend.",
        prefixes: &["unlade_sidecar_"],
    },
    Product {
        title: "Durations of requests and migrations",
        served_by: "`unlade lb`, `unlade backend`, and `unlade agent` with `[sidecar]`.",
        prefixes: &["unlade_migration_", "unlade_service_"],
    },
    Product {
        title: "Control channels",
        served_by: "`unlade lb`, `unlade backend`, and `unlade agent` with `[sidecar]`.",
        prefixes: &["unlade_channel", "unlade_untrusted_", "unlade_frames_"],
    },
    Product {
        title: "Steering",
        served_by: "`unlade lb`, `unlade backend`, and `unlade agent` with `[sidecar]`.",
        prefixes: &[
            "unlade_held_",
            "unlade_replayed_",
            "unlade_lost_",
            "unlade_redirect",
            "unlade_corrupt_",
            "unlade_dropped_",
            "unlade_extension_",
            "unlade_refused_icmp_",
            "unlade_delayed_",
            "unlade_resets_",
            "unlade_flow_",
        ],
    },
    Product { title: "Copy daemon", served_by: "`unlade copyd`.", prefixes: &["unlade_copyd_"] },
    Product { title: "Software NIC", served_by: "`unlade nic run`.", prefixes: &["unlade_nic_"] },
    Product {
        title: "NVMe target",
        served_by: "`unlade nvme target`.",
        prefixes: &["unlade_nvme_"],
    },
    Product {
        title: "Function gateway",
        served_by: "`unlade fn serve`.",
        prefixes: &["unlade_fn_"],
    },
    Product {
        title: "I/O worker of functions",
        served_by: "`unlade fn worker`, and the workers that `unlade fn serve` starts.",
        prefixes: &["unlade_hostio_"],
    },
    Product { title: "Process", served_by: "all processes.", prefixes: &["unlade_build"] },
];

/// One family of an OpenMetrics text.
#[derive(Debug, Default)]
struct Family {
    name: String,
    kind: String,
    help: String,
    /// The label of the family with its values, in their order.
    label: Option<(String, Vec<String>)>,
}

impl Family {
    /// The name of the samples.
    fn sample(&self) -> String {
        let suffix = match self.kind.as_str() {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        format!("{}{suffix}", self.name)
    }

    fn unit(&self) -> &'static str {
        let units = ["nanoseconds", "seconds", "bytes"];
        units.into_iter().find(|unit| self.name.ends_with(&format!("_{unit}"))).unwrap_or("")
    }
}

/// The families of an OpenMetrics text.
fn parse(text: &str) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    for line in text.lines().filter(|line| *line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let (name, kind) = (name.to_owned(), kind.to_owned());
                families.push(Family { name, kind, ..Family::default() });
            }
            (Some("#"), Some("HELP"), Some(name), Some(help)) => {
                let family = families.last_mut().unwrap();
                assert_eq!(family.name, name);
                family.help = help.to_owned();
            }
            (Some("#"), Some("UNIT"), ..) => {}
            _ => sample(families.last_mut().unwrap(), line),
        }
    }
    families
}

/// Adds the label of one sample to its family.
fn sample(family: &mut Family, line: &str) {
    assert!(line.starts_with(&family.name), "{line} is not a sample of {}", family.name);
    let Some((_, rest)) = line.split_once('{') else { return };
    let labels = rest.split_once('}').unwrap().0;
    // The bounds of buckets are no label of the family.
    let labels = labels.split(',').map(|label| label.split_once('=').unwrap());
    let labels: Vec<(&str, &str)> = labels.filter(|(key, _)| *key != "le").collect();
    let keys = labels.iter().map(|(key, _)| *key).collect::<Vec<_>>().join("`, `");
    let (_, values) = family.label.get_or_insert_with(|| (keys, Vec::new()));
    if let [(key, value)] = labels.as_slice()
        && !OPEN.contains(key)
    {
        let value = value.trim_matches('"').to_owned();
        if !values.contains(&value) {
            values.push(value);
        }
    }
}

/// Labels whose values are no closed set. Families with two labels have only these.
const OPEN: [&str; 3] = ["version", "tenant", "function"];

/// The texts of processes with every family: those with a meter, the copy daemon, the software
/// NIC, the NVMe target, and those of each function.
fn texts() -> [String; 5] {
    let meter = Meter::new();
    for &stage in Stage::ALL {
        // A stage without a measurement is not served.
        meter.record(stage, Duration::from_micros(1));
    }
    let nic = unlade_nic_inline::tls_proxy::metrics::render(
        &Connections::default(),
        &DeviceCounters::default(),
    );
    let nvme = unlade_nvme::target::Counts::default().render();
    let copyd = unlade_copy_service::daemon::metric_families();
    let functions = FunctionMeters::new(1);
    functions.add("tenant", "function");
    let mut of_functions = OpenMetrics::new();
    functions.render(&mut of_functions);
    [meter.render(), copyd, nic, nvme, of_functions.finish()]
}

/// The families of all processes, those of several processes once.
fn families() -> Vec<Family> {
    let mut names = BTreeSet::new();
    let all = texts().into_iter().flat_map(|text| parse(&text));
    all.filter(|family| names.insert(family.name.clone())).collect()
}

/// The descriptions of the values of labels, by sample, label and value.
fn meanings() -> BTreeMap<(String, String), &'static str> {
    let events = Event::all().into_iter().filter_map(|event| {
        let (_, value) = event.label()?;
        Some(((event.name(), value.to_owned()), event.label_meaning()))
    });
    let stages = Stage::ALL
        .iter()
        .map(|stage| ((stage.family().to_owned(), stage.as_str().to_owned()), stage.meaning()));
    events.chain(stages).collect()
}

/// The page.
pub fn page() -> String {
    let families = families();
    let mut text = HEAD.to_owned();
    for product in PRODUCTS {
        // Writing to a string does not fail.
        let _ = write!(text, "\n## {}\n\nServed by: {}\n", product.title, product.served_by);
        text.push_str("\n| metric | type | unit | label | meaning |\n|---|---|---|---|---|\n");
        let own = families.iter().filter(|family| is_of(product, family));
        for family in own {
            let (sample, kind, unit) = (family.sample(), &family.kind, family.unit());
            let label = family.label.as_ref().map_or(String::new(), |(key, _)| format!("`{key}`"));
            assert!(!family.help.is_empty(), "{} has no help", family.name);
            let _ = writeln!(text, "| `{sample}` | {kind} | {unit} | {label} | {} |", family.help);
        }
    }
    text.push_str(&labels(&families));
    text
}

fn is_of(product: &Product, family: &Family) -> bool {
    product.prefixes.iter().any(|prefix| family.name.starts_with(prefix))
}

/// The values of each label. Samples with the same values are listed together.
fn labels(families: &[Family]) -> String {
    type Values = Vec<(String, &'static str)>;
    let meanings = meanings();
    let mut sets: Vec<(String, Values, Vec<String>)> = Vec::new();
    for family in families {
        let Some((key, values)) = &family.label else { continue };
        let described = |value: &String| {
            let meaning = meanings.get(&(family.sample(), value.clone()));
            (value.clone(), *meaning.expect("every label is declared by an event or a stage"))
        };
        let values: Values = values.iter().map(described).collect();
        match sets.iter_mut().find(|(other, known, _)| other == key && *known == values) {
            Some((_, _, samples)) => samples.push(family.sample()),
            None => sets.push((key.clone(), values, vec![family.sample()])),
        }
    }
    let mut text = "\n## Values of labels\n".to_owned();
    for (key, values, samples) in sets.iter().filter(|(_, values, _)| !values.is_empty()) {
        // Writing to a string does not fail.
        let _ = write!(text, "\n`{key}` of `{}`:\n\n", samples.join("`, `"));
        for (value, meaning) in values {
            let colon = if meaning.is_empty() { "" } else { ": " };
            let _ = writeln!(text, "- `{value}`{colon}{meaning}");
        }
    }
    text
}

/// Every family is in the table of one product.
pub fn assert_sorted() {
    for family in families() {
        let products = PRODUCTS.iter().filter(|product| is_of(product, &family));
        assert_eq!(products.count(), 1, "{}: name one product for its prefix", family.name);
    }
}

/// The text of each process is valid, and has the version that runs.
pub fn assert_valid() {
    for text in texts() {
        let samples = openmetrics::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let version = format!("unlade_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
        assert!(samples.contains_key(&version), "{text}");
    }
    let mut text = Meter::for_role(Role::Backend).text();
    add_device(&mut text, &DeviceCounters::default());
    let samples = openmetrics::parse(&text.finish()).unwrap();
    assert_eq!(samples["unlade_nic_flows_known"], 0.0);
    assert_eq!(samples["unlade_backend_open_connections"], 0.0);
}
