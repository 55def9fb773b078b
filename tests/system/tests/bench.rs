//! Runs tiny experiments and checks the documented fields of their results.

use serde_json::Value;
use system_tests::{needs, run, said, turn};

fn records(path: &std::path::Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_tiny_handoff_bench_has_every_field() {
    needs!("ip", "setsid");
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("handoff.jsonl");
    let file_text = file.display().to_string();
    let tiny = ["--window", "500ms", "--rounds", "1", "--sizes", "64KiB,1MiB", "--servers", "2"];
    let args = ["bench", "handoff", "--quick", "--only", "unshaped", "--json", &file_text];
    let output = run(args.iter().chain(&tiny));
    assert!(output.status.success(), "{}", said(&output));
    let records = records(&file);
    let modes = ["offload", "proxy"];
    for tls in [false, true] {
        for mode in modes {
            let record = records
                .iter()
                .find(|r| r["mode"] == mode && r["case"]["tls"] == tls)
                .unwrap_or_else(|| panic!("no record of {mode}, tls {tls}"));
            assert_eq!(record["bench"], "handoff");
            assert_eq!(record["case"]["shaped"], false);
            assert_eq!(record["case"]["servers"], 2);
            assert!(record["metrics"]["throughput_bytes_per_s"].as_f64().unwrap() > 0.0);
            assert!(record["metrics"]["lb_cpu_ns_per_gib"].as_f64().unwrap() > 0.0);
            assert_eq!(record["metrics"]["mismatches"], 0);
            assert!(record["host"]["kernel"].is_string());
        }
        for requests in [Value::from(1), Value::from(8), Value::from("unlimited")] {
            let of_case = |r: &&Value| {
                r["mode"] == "ratio"
                    && r["case"]["tls"] == tls
                    && r["case"]["requests_per_migration"] == requests
            };
            let ratios: Vec<&Value> = records.iter().filter(of_case).collect();
            let sizes: Vec<&Value> = ratios.iter().map(|r| &r["case"]["object_bytes"]).collect();
            assert!(sizes.contains(&&Value::from(65_536)), "{sizes:?}");
            assert!(ratios.iter().any(|r| r["metrics"].get("break_even_bytes").is_some()));
            let one = ratios.iter().find(|r| r["case"]["object_bytes"] == 65_536).unwrap();
            assert!(one["metrics"]["throughput_ratio_vs_best_proxy"].as_f64().unwrap() > 0.0);
        }
    }
    let figures = dir.path().join("figures");
    let out = figures.display().to_string();
    let report = run(["bench", "report", &file_text, "--out", &out]);
    assert!(report.status.success(), "{}", said(&report));
    assert!(figures.join("handoff_throughput_unshaped_tls.svg").exists());
}

#[test]
fn a_tiny_handoff_bench_has_nginx_behind() {
    needs!("ip", "setsid", "nginx");
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("handoff.jsonl");
    let file_text = file.display().to_string();
    let tiny = ["--window", "500ms", "--rounds", "1", "--sizes", "1MiB", "--servers", "2"];
    let args = ["bench", "handoff", "--quick", "--only", "unshaped", "--behind", "nginx"];
    let output = run(args.iter().chain(&["--json", &file_text]).chain(&tiny));
    assert!(output.status.success(), "{}", said(&output));
    let records = records(&file);
    assert!(records.iter().all(|record| record["case"]["behind"] == "nginx"));
    for tls in [false, true] {
        let of_way = |r: &&Value| {
            r["mode"] == "offload" && r["case"]["tls"] == tls && r["case"]["way"] == "migration"
        };
        let of_way = records.iter().find(of_way).expect("a record");
        assert!(of_way["metrics"]["throughput_bytes_per_s"].as_f64().unwrap() > 0.0);
        assert_eq!(of_way["metrics"]["mismatches"], 0);
    }
}

#[test]
fn a_tiny_handoff_bench_limits_the_balancers() {
    needs!("ip", "setsid");
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("handoff.jsonl");
    let file_text = file.display().to_string();
    let tiny = ["--window", "500ms", "--rounds", "1", "--sizes", "1MiB", "--servers", "1"];
    let args = ["bench", "handoff", "--quick", "--plain", "--only", "limited"];
    let output = run(args.iter().chain(&["--json", &file_text, "--lb-cpu", "0.5"]).chain(&tiny));
    if said(&output).contains("does /sys/fs/cgroup have the controller") {
        println!("skipped: no control groups for processors");
        return;
    }
    assert!(output.status.success(), "{}", said(&output));
    let records = records(&file);
    assert!(records.iter().all(|record| record["case"]["lb_cpu_limit"] == 0.5));
    for way in ["migration", "splice-early", "splice-late"] {
        let of_way = |r: &&Value| r["mode"] == "ratio" && r["case"]["way"] == way;
        let ratio = records.iter().find(of_way).expect(way);
        assert!(ratio["metrics"]["throughput_ratio_vs_best_proxy"].as_f64().unwrap() > 0.0);
    }
    for proxy in ["nginx", "haproxy"] {
        let Some(record) = records.iter().find(|r| r["mode"] == proxy) else { continue };
        let figure = |name: &str| record["metrics"][name].as_f64().unwrap();
        let ns_per_byte = figure("lb_cpu_ns_per_gib") / f64::from(1 << 30);
        let share = figure("throughput_bytes_per_s") * ns_per_byte / 1e9;
        assert!(share < 0.75, "{proxy}: {share}");
    }
}

#[test]
fn a_tiny_server_bench_has_nginx_beside() {
    needs!("ip", "setsid", "nginx");
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("server.jsonl");
    let file_text = file.display().to_string();
    let tiny = ["--window", "500ms", "--rounds", "1", "--objects", "64KiB"];
    let output = run(["bench", "server", "--json", &file_text].iter().chain(&tiny));
    assert!(output.status.success(), "{}", said(&output));
    let records = records(&file);
    let modes: Vec<&str> = records.iter().filter_map(|record| record["mode"].as_str()).collect();
    assert_eq!(modes, ["backend", "nginx", "ratio"]);
    for record in &records {
        assert_eq!(record["case"]["object"], "64KiB");
    }
    let ratio = records.last().unwrap()["metrics"]["throughput_ratio_vs_nginx"].as_f64();
    assert!(ratio.is_some_and(|ratio| ratio > 0.0), "{ratio:?}");
}

#[test]
fn a_tiny_fn_bench_has_every_field_and_right_outputs() {
    if let Some(reason) = system_tests::functions::skip_reason() {
        println!("skipped: {}: {reason}", module_path!());
        return;
    }
    let prepare = concat!(env!("CARGO_MANIFEST_DIR"), "/../workloads/prepare");
    let prepared = std::process::Command::new(prepare).output().unwrap();
    if !prepared.status.success() {
        let reason = String::from_utf8_lossy(&prepared.stderr);
        println!("skipped: {}: {}", module_path!(), reason.trim());
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("fn.jsonl");
    let file_text = file.display().to_string();
    let tiny = ["--quick", "--only", "log-filter", "--rounds", "1", "--warm", "2", "--no-density"];
    let output = run(["bench", "fn", "--json", &file_text].iter().chain(&tiny));
    assert!(output.status.success(), "{}", said(&output));
    // Six initial ones; for each start mode a first, an unmeasured and two measured ones; with
    // WebAssembly the first, two measured ones, four native ones, and seventeen that are kept.
    assert!(said(&output).contains(&format!("{} outputs were compared", 6 + 6 * 4 + 3 + 4 + 17)));
    let records = records(&file);
    for mode in ["stock", "stock-preimported", "tcp", "sdk", "prefetch", "offload"] {
        let record = records.iter().find(|record| record["mode"] == mode);
        let record = record.unwrap_or_else(|| panic!("no record of {mode}: {}", said(&output)));
        assert_eq!((&record["bench"], &record["case"]["half"]), (&"fn".into(), &"io".into()));
        assert_eq!(record["case"]["scope"], "instance");
        assert_eq!(record["case"]["isolation"], "process");
        for metric in ["warm_latency_p50_us", "cold_latency_p50_us", "private_bytes", "pss_bytes"] {
            assert!(record["metrics"][metric].as_f64().unwrap() > 0.0, "{mode} {metric}");
        }
    }
    for baseline in ["stock", "stock-preimported"] {
        let of = |scope: &'static str| {
            records.iter().find(move |record| {
                let case = &record["case"];
                record["mode"] == "ratio"
                    && case["scope"] == scope
                    && case["baseline"] == baseline
                    && case["compared"] == "offload"
            })
        };
        let instance = of("instance").unwrap();
        for ratio in ["memory_ratio", "cpu_ratio", "warm_latency_ratio", "cold_latency_ratio"] {
            assert!(instance["metrics"][ratio].as_f64().unwrap() > 0.0, "{baseline} {ratio}");
        }
        assert!(of("node").unwrap()["metrics"]["cpu_ratio"].as_f64().unwrap() > 0.0);
    }
}
