//! `unlade-lab bench report`: figures from result files, one for each setting and question.

use super::record;
use super::svg::{Axis, Chart, Series};
use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use unlade_command::output::line;

/// Draw figures (SVG) from result files
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Files written with --json
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Directory for the figures
    #[arg(long, default_value = "figures")]
    out: PathBuf,
}

/// A question that a figure answers.
struct Question {
    file: &'static str,
    title: &'static str,
    metric: &'static str,
    scale: f64,
    y_label: &'static str,
    y_is_log: bool,
}

const QUESTIONS: [Question; 11] = [
    Question {
        file: "throughput",
        title: "Throughput",
        metric: "throughput_bytes_per_s",
        scale: 1.0 / 1_048_576.0,
        y_label: "MiB/s",
        y_is_log: false,
    },
    Question {
        file: "lb_cpu",
        title: "Balancer CPU",
        metric: "lb_cpu_ns_per_gib",
        scale: 1e-6,
        y_label: "ms per GiB",
        y_is_log: true,
    },
    Question {
        file: "latency_p50",
        title: "Median latency",
        metric: "latency_p50_us",
        scale: 1e-3,
        y_label: "ms",
        y_is_log: true,
    },
    Question {
        file: "ratio",
        title: "Throughput against the best proxy",
        metric: "throughput_ratio_vs_best_proxy",
        scale: 1.0,
        y_label: "times",
        y_is_log: false,
    },
    Question {
        file: "latency",
        title: "What the client waits",
        metric: "latency_ns",
        scale: 1e-3,
        y_label: "microseconds",
        y_is_log: true,
    },
    Question {
        file: "cpu",
        title: "Processor time, client and service",
        metric: "cpu_s_per_gib",
        scale: 1e3,
        y_label: "ms per GiB",
        y_is_log: true,
    },
    Question {
        file: "host_cpu",
        title: "Host's core",
        metric: "host_cpu_ns_per_gib",
        scale: 1e-6,
        y_label: "ms per GiB",
        y_is_log: false,
    },
    Question {
        file: "engine_cpu",
        title: "Engine's core",
        metric: "engine_cpu_ns_per_gib",
        scale: 1e-6,
        y_label: "ms per GiB",
        y_is_log: false,
    },
    Question {
        file: "offloaded",
        title: "Records that were offloaded",
        metric: "records_offloaded_percent",
        scale: 1.0,
        y_label: "% of all",
        y_is_log: false,
    },
    Question {
        file: "partial",
        title: "Records that were offloaded in part",
        metric: "records_partial_percent",
        scale: 1.0,
        y_label: "% of all",
        y_is_log: false,
    },
    Question {
        file: "replayed",
        title: "Bytes that the engine worked on again",
        metric: "replayed_percent",
        scale: 1.0,
        y_label: "% of what was sent",
        y_is_log: false,
    },
];

/// Parameters that cases of `bench nic` vary; the first one present is the x axis.
const NIC_AXES: [(&str, Axis, &str); 6] = [
    ("loss_percent", Axis::Percent, "packets lost"),
    ("reorder_percent", Axis::Percent, "packets reordered"),
    ("flows", Axis::Count, "connections"),
    ("depth", Axis::Count, "requests in flight"),
    ("record_bytes", Axis::Bytes, "record size"),
    ("bytes", Axis::Bytes, "request size"),
];

/// Where a record belongs: what is to the right, and its setting as part of a file's name and of a
/// title.
struct Place {
    x: f64,
    axis: Axis,
    x_label: &'static str,
    file: String,
    title: String,
}

impl Place {
    fn of(record: &Value) -> Option<Place> {
        let case = record["case"].as_object()?;
        if record["bench"] == "copy" {
            return Place::of_copy(case);
        }
        if record["bench"] == "nic" {
            let (key, axis, label) =
                NIC_AXES.into_iter().find(|(key, ..)| case.contains_key(*key))?;
            return Place::along(case, &[key], axis, label);
        }
        let bytes = case.get("object_bytes")?.as_f64()?;
        let is = |key: &str| case.get(key).and_then(Value::as_bool) == Some(true);
        let tls = if is("tls") { "tls" } else { "plain" };
        let links = match (is("shaped"), case.contains_key("lb_cpu_limit")) {
            (true, _) => "shaped",
            (false, true) => "limited",
            (false, false) => "unshaped",
        };
        let (file, title) = (format!("{links}_{tls}"), format!("{links}, {tls}"));
        Some(Place { x: bytes, axis: Axis::Bytes, x_label: "object size", file, title })
    }

    fn of_copy(case: &Map<String, Value>) -> Option<Place> {
        Place::along(case, &["bytes", "response_bytes"], Axis::Bytes, "object size")
    }

    /// A parameter in `keys` is the x axis; all others are the setting.
    fn along(
        case: &Map<String, Value>,
        keys: &[&str],
        axis: Axis,
        x_label: &'static str,
    ) -> Option<Place> {
        let is_x = |key: &str| keys.contains(&key);
        let (_, x) = case.iter().find(|(key, _)| is_x(key))?;
        let words = case.iter().filter(|(key, _)| !is_x(key)).map(|(key, value)| match value {
            Value::Bool(true) => key.clone(),
            Value::Bool(false) => format!("no {key}"),
            Value::String(word) => format!("{key} {word}"),
            other => format!("{key} {other}"),
        });
        let title = words.collect::<Vec<String>>().join(", ");
        let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '_' };
        let file = title.replace(", ", "_").chars().map(plain).collect();
        Some(Place { x: x.as_f64()?, axis, x_label, file, title })
    }
}

/// Runs `unlade-lab bench report`.
///
/// # Errors
/// A file is no result file, holds nothing to draw, or a figure cannot be written.
pub fn run(args: &ReportArgs) -> Result<()> {
    let records = record::read(&args.files)?;
    fs::create_dir_all(&args.out).with_context(|| format!("creating {}", args.out.display()))?;
    let mut drawn = 0;
    for (name, chart) in charts(&records) {
        let Some(svg) = chart.draw() else { continue };
        let path = args.out.join(format!("{name}.svg"));
        fs::write(&path, svg).with_context(|| format!("writing {}", path.display()))?;
        line(path.display())?;
        drawn += 1;
    }
    if drawn == 0 {
        bail!(
            "nothing to draw: the files hold no results by size, loss, depth or number of connections"
        );
    }
    Ok(())
}

/// Charts by file name: each question for each setting.
fn charts(records: &[Value]) -> BTreeMap<String, Chart> {
    let mut charts: BTreeMap<String, Chart> = BTreeMap::new();
    for record in records {
        let (Some(place), Some(bench)) = (Place::of(record), record["bench"].as_str()) else {
            continue;
        };
        for question in &QUESTIONS {
            let Some(value) = record["metrics"][question.metric].as_f64() else { continue };
            let chart = charts
                .entry(format!("{bench}_{}_{}", question.file, place.file))
                .or_insert_with(|| Chart {
                    title: format!("{}, {}", question.title, place.title),
                    x_label: place.x_label.to_owned(),
                    axis: place.axis,
                    y_label: question.y_label.to_owned(),
                    y_is_log: question.y_is_log,
                    series: Vec::new(),
                });
            let name = series_name(record);
            let point = (place.x, value * question.scale);
            match chart.series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push(point),
                None => chart.series.push(Series { name, points: vec![point] }),
            }
        }
    }
    for chart in charts.values_mut() {
        for series in &mut chart.series {
            series.points.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
    }
    charts
}

fn series_name(record: &Value) -> String {
    let mode = match record["mode"].as_str() {
        Some("ratio") | None => "offload",
        Some(mode) => mode,
    };
    match &record["case"]["requests_per_migration"] {
        Value::Null => mode.to_owned(),
        Value::String(word) => format!("{mode}, {word}"),
        requests => format!("{mode}, {requests} a migration"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_figures_of_their_own() {
        let record = |mode: &str, bytes: u64, shaped: bool| {
            serde_json::json!({
                "bench": "handoff", "mode": mode,
                "case": {"object_bytes": bytes, "tls": true, "shaped": shaped},
                "metrics": {"throughput_bytes_per_s": 1e6 * bytes as f64, "lb_cpu_ns_per_gib": 5e6},
            })
        };
        let records = [
            record("nginx", 65_536, true),
            record("nginx", 4096, true),
            record("offload", 4096, true),
            record("nginx", 4096, false),
            serde_json::json!({"bench": "handoff", "mode": "ratio", "case": {}, "metrics": {}}),
        ];
        let charts = charts(&records);
        let names: Vec<&str> = charts.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "handoff_lb_cpu_shaped_tls",
                "handoff_lb_cpu_unshaped_tls",
                "handoff_throughput_shaped_tls",
                "handoff_throughput_unshaped_tls",
            ]
        );
        let chart = &charts["handoff_throughput_shaped_tls"];
        assert_eq!(chart.series.len(), 2);
        assert!(chart.series[0].points[0].0 < chart.series[0].points[1].0);
    }

    #[test]
    fn copies_are_drawn_by_size_for_each_setting() {
        let record = |mode: &str, bytes: u64, window: bool| {
            serde_json::json!({
                "bench": "copy", "mode": mode,
                "case": { "bytes": bytes, "cache": "warm", "window": window },
                "metrics": { "latency_ns": 100.0 },
            })
        };
        let records = [
            record("offload", 4096, true),
            record("avx2", 4096, true),
            record("offload", 512, true),
            record("offload", 512, false),
        ];
        let charts = charts(&records);
        let names: Vec<&str> = charts.keys().map(String::as_str).collect();
        assert_eq!(names, ["copy_latency_cache_warm_no_window", "copy_latency_cache_warm_window"]);
        assert_eq!(charts["copy_latency_cache_warm_window"].series.len(), 2);
    }

    #[test]
    fn what_a_nic_does_is_drawn_along_what_was_varied() {
        let record = |mode: &str, loss: u64| {
            serde_json::json!({
                "bench": "nic", "mode": mode,
                "case": { "part": "loss", "what": "receive", "record_bytes": 16384, "loss_percent": loss },
                "metrics": { "host_cpu_ns_per_gib": 1e8, "records_offloaded_percent": 70.0 },
            })
        };
        let charts = charts(&[record("offload", 0), record("offload", 5), record("aws-lc", 5)]);
        let chart = &charts["nic_host_cpu_part_loss_record_bytes_16384_what_receive"];
        assert_eq!((chart.axis, chart.series.len()), (Axis::Percent, 2));
        assert_eq!(chart.series[0].points, [(0.0, 100.0), (5.0, 100.0)]);
        assert!(chart.draw().unwrap().contains("packets lost"));
    }

    #[test]
    fn figures_are_written() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("r.jsonl");
        let text = r#"{"bench":"handoff","mode":"nginx","case":{"object_bytes":4096},"metrics":{"latency_p50_us":3}}"#;
        fs::write(&file, text).unwrap();
        let out = dir.path().join("figures");
        run(&ReportArgs { files: vec![file.clone()], out: out.clone() }).unwrap();
        assert!(out.join("handoff_latency_p50_unshaped_plain.svg").exists());
        fs::write(&file, "").unwrap();
        assert!(run(&ReportArgs { files: vec![file], out }).is_err());
    }
}
