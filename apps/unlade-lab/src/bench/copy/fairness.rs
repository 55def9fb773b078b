//! Clients and groups of one service thread: who gets how much, and who waits for whom.

use super::pool::{self, Flow};
use crate::bench::figures::median;
use crate::bench::record::Sink;
use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};
use unlade_command::output::line;
use unlade_copy::{Config, Copier, Polling, Service};

/// Two groups that want more than there is.
struct Rivals {
    weights: [u32; 2],
    /// Clients of each.
    clients: [usize; 2],
    task_bytes: [usize; 2],
}

const RIVALS: [Rivals; 6] = [
    Rivals { weights: [1, 3], clients: [1, 1], task_bytes: [16 << 10, 256 << 10] },
    Rivals { weights: [1, 3], clients: [1, 1], task_bytes: [256 << 10, 16 << 10] },
    Rivals { weights: [1, 3], clients: [1, 1], task_bytes: [64 << 10, 64 << 10] },
    Rivals { weights: [1, 1], clients: [1, 1], task_bytes: [4 << 10, 1 << 20] },
    Rivals { weights: [1, 1], clients: [3, 1], task_bytes: [64 << 10, 64 << 10] },
    Rivals { weights: [1, 3], clients: [3, 1], task_bytes: [64 << 10, 64 << 10] },
];
/// Bytes that each has queued at a time: several slices.
const RIVAL_QUEUED_BYTES: usize = 8 << 20;
/// Tasks of it at most: a queue is refilled before it is empty.
const RIVAL_QUEUED_MAX: usize = 768;

/// Tasks of a client that floods the service, ...
const FLOOD_BYTES: usize = 1 << 20;
/// ... so many at a time.
const FLOOD_QUEUED: usize = 24;
/// Sizes of the other client's copies, ...
const REQUEST_BYTES: [usize; 3] = [4 << 10, 16 << 10, 64 << 10];
/// ... and what is between two of them.
const REQUEST_PAUSE: Duration = Duration::from_micros(60);

fn map(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

fn service() -> Result<Service> {
    Ok(Service::start(Config { polling: Polling::Always, ..Config::default() })?)
}

/// Runs both experiments.
pub fn run(quick: bool, sink: &mut Sink) -> Result<()> {
    let rounds = if quick { 3 } else { 9 };
    let heads = ["bytes wanted", "bytes copied", "off by"].map(|head| format!("{head:>14}"));
    line(format_args!("{:<32}{}", "weights, clients, tasks", heads.concat()))?;
    for rivals in &RIVALS {
        share(rivals, rounds, Duration::from_millis(if quick { 150 } else { 400 }), sink)?;
    }
    let heads = ["alone p50", "p99", "flooded p50", "p99", "p99 ratio"];
    let heads = heads.map(|head| format!("{head:>12}"));
    line(format_args!("{:<32}{} (microseconds)", "requests beside a flood", heads.concat()))?;
    let requests = if quick { 800 } else { 4000 };
    for bytes in REQUEST_BYTES {
        for helps in [true, false] {
            wait(bytes, helps, rounds, requests, sink)?;
        }
    }
    Ok(())
}

/// Bytes that the service copied for each of two groups whose clients never wait: the second's for
/// each byte of the first's.
fn compete(rivals: &Rivals, length: Duration) -> Result<f64> {
    let service = service()?;
    let mut clients = Vec::new();
    for side in [0, 1] {
        let group = service.group(rivals.weights[side]);
        for _ in 0..rivals.clients[side] {
            clients.push((side, Copier::new(service.attach_in(&group)?)));
        }
    }
    let mut flows: Vec<Flow<'_>> = Vec::new();
    for (side, client) in &clients {
        let bytes = rivals.task_bytes[*side];
        let queued = (RIVAL_QUEUED_BYTES / bytes).min(RIVAL_QUEUED_MAX);
        flows.push(Flow::new(client, pool::pairs(queued, bytes), queued));
    }
    let mut copied = [0.0; 2];
    let begin = Instant::now();
    let mut before = vec![0; flows.len()];
    // Neither is ahead of the other with filling its queue once the first tenth is over.
    for (until, measured) in [(length / 10, false), (length, true)] {
        before.iter_mut().zip(&flows).for_each(|(before, flow)| *before = flow.made);
        while begin.elapsed() < until {
            for flow in &mut flows {
                flow.reap()?;
                flow.fill();
            }
        }
        if measured {
            for (((side, _), flow), before) in clients.iter().zip(&flows).zip(&before) {
                copied[*side] += (flow.made - before) as f64 * rivals.task_bytes[*side] as f64;
            }
        }
    }
    let stats = clients.iter().map(|(_, client)| client.stats().read());
    let own = stats.map(|stats| stats.at_once_bytes + stats.helped_bytes).sum::<u64>();
    ensure!(own == 0, "{own} bytes did not go through the service");
    for flow in flows {
        flow.finish()?;
    }
    Ok(copied[1] / copied[0])
}

fn share(rivals: &Rivals, rounds: usize, length: Duration, sink: &mut Sink) -> Result<()> {
    let [one, three] = rivals.weights;
    let wanted = f64::from(three) / f64::from(one);
    let mut found = Vec::new();
    for _ in 0..rounds {
        found.push(compete(rivals, length)?);
    }
    let bytes = median(&found);
    let worst = found.iter().map(|found| (found / wanted - 1.0).abs()).fold(0.0, f64::max);
    let case = json!({
        "weights": format!("{one}:{three}"),
        "first_clients": rivals.clients[0],
        "second_clients": rivals.clients[1],
        "first_task_bytes": rivals.task_bytes[0],
        "second_task_bytes": rivals.task_bytes[1],
    });
    let metrics = json!({
        "second_bytes_of_first": bytes, "wanted": wanted, "error_max_of_wanted": worst
    });
    sink.write(map(&case), "offload", map(&metrics))?;
    let [first, second] = rivals.task_bytes.map(|bytes| unlade_config::ByteSize(bytes as u64));
    let [some, others] = rivals.clients;
    let label = format!("{one}:{three}, {some} and {others}, {first} and {second}");
    line(format_args!("{label:<32}{wanted:>14.2}{bytes:>14.3}{:>13.1}%", 100.0 * worst))
}

/// Waits for one small copy after the other, with or without a flood beside it; what each took.
fn request(
    service: &Service,
    bytes: usize,
    helps: bool,
    count: usize,
    flooded: bool,
) -> Result<Histogram<u64>> {
    let (client, flood) = (Copier::new(service.attach()?), Copier::new(service.attach()?));
    let queued = if flooded { FLOOD_QUEUED } else { 0 };
    let mut flood = Flow::new(&flood, pool::pairs(queued, FLOOD_BYTES), queued);
    let mut took = Histogram::new(3).context("a histogram")?;
    let mut pair = Some((vec![1; bytes], vec![0; bytes]));
    for _ in 0..count {
        let pause = Instant::now();
        while pause.elapsed() < REQUEST_PAUSE {
            flood.reap()?;
            flood.fill();
            std::hint::spin_loop();
        }
        let Some((source, destination)) = pair.take() else { break };
        let begin = Instant::now();
        let copy = client.queue_owned(source, destination);
        while !helps && !copy.is_ready() {
            std::hint::spin_loop();
        }
        pair = Some(copy.wait()?);
        took.record(begin.elapsed().as_nanos() as u64)?;
    }
    flood.finish()?;
    Ok(took)
}

fn wait(bytes: usize, helps: bool, rounds: usize, count: usize, sink: &mut Sink) -> Result<()> {
    let service = service()?;
    let mut times = [const { Vec::new() }; 4];
    let mut ratios = Vec::new();
    for _ in 0..rounds {
        let alone = request(&service, bytes, helps, count, false)?;
        let flooded = request(&service, bytes, helps, count, true)?;
        let quantiles = [&alone, &flooded]
            .map(|took| [0.5, 0.99].map(|quantile| took.value_at_quantile(quantile) as f64));
        times.iter_mut().zip(quantiles.as_flattened()).for_each(|(all, one)| all.push(*one));
        ratios.push(quantiles[1][1] / quantiles[0][1]);
    }
    let [alone_p50, alone_p99, flooded_p50, flooded_p99] = times.map(median);
    let ratio = median(&ratios);
    let who = if helps { "client helps" } else { "service alone" };
    let case = json!({ "bytes": bytes, "flood_task_bytes": FLOOD_BYTES, "helps": helps });
    for (mode, p50, p99) in [("alone", alone_p50, alone_p99), ("offload", flooded_p50, flooded_p99)]
    {
        let metrics = json!({ "latency_p50_ns": p50, "latency_p99_ns": p99 });
        sink.write(map(&case), mode, map(&metrics))?;
    }
    let metrics = json!({ "latency_p99_ratio_vs_alone": ratio });
    sink.write(map(&case), "ratio", map(&metrics))?;
    let cells = [alone_p50, alone_p99, flooded_p50, flooded_p99];
    let cells = cells.map(|ns| format!("{:>12.1}", ns / 1e3)).concat();
    let label = format!("{}, {who}", unlade_config::ByteSize(bytes as u64));
    line(format_args!("{label:<32}{cells}{ratio:>12.2}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_experiments_run_and_the_service_copies_for_both() {
        for rivals in [&RIVALS[0], &RIVALS[5]] {
            let ratio = compete(rivals, Duration::from_secs(2)).unwrap();
            assert!(ratio.is_finite() && ratio > 0.0, "{ratio}");
        }
        let service = service().unwrap();
        for helps in [true, false] {
            let took = request(&service, 4 << 10, helps, 5, true).unwrap();
            assert_eq!(took.len(), 5);
        }
    }
}
