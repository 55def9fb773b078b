//! The parts of the experiment, in the order in which they run.

use super::{
    deflate, device, fairness, files, ipc, kv, micro, protobuf, proxy, sockets, threads,
    throughput, tls,
};
use crate::bench::record::Sink;
use anyhow::Result;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// One part.
pub struct Part {
    /// What `--only` calls it.
    pub name: &'static str,
    /// One line for `--help` and above its table.
    pub about: &'static str,
    /// Runs it, in fewer rounds where the first argument is true.
    pub run: fn(bool, &mut Sink) -> Result<()>,
}

/// All of them. A part writes its figures to the sink, and a line of mode `ratio` for each
/// comparison.
pub static PARTS: &[Part] = &[
    Part { name: "micro", about: "single copies, as their client sees them", run: micro::run },
    Part { name: "throughput", about: "bytes a second, many copies queued", run: throughput::run },
    Part { name: "fairness", about: "two clients of one thread", run: fairness::run },
    Part { name: "threads", about: "threads of the service by load", run: threads::run },
    Part { name: "device", about: "a device beside the processor, modelled", run: device::run },
    Part { name: "files", about: "a real file, copied and summed", run: files::run },
    Part { name: "recv", about: "receives from a TCP connection", run: sockets::run_recv },
    Part { name: "send", about: "sends to a TCP connection", run: sockets::run_send },
    Part { name: "proxy", about: "bodies that the balancer proxies", run: proxy::run },
    Part { name: "kv", about: "a key-value server, beside Redis", run: kv::run },
    Part { name: "protobuf", about: "messages, received and decoded", run: protobuf::run },
    Part { name: "tls", about: "TLS records, received and opened", run: tls::run },
    Part { name: "deflate", about: "text, copied and compressed, and back", run: deflate::run },
    Part { name: "ipc", about: "parcels for another thread, through the daemon", run: ipc::run },
];

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Those asked for, in the order of the table; all where none is.
pub fn wanted(only: &[&'static Part]) -> Vec<&'static Part> {
    let is_wanted = |part: &&Part| only.is_empty() || only.iter().any(|it| it.name == part.name);
    PARTS.iter().filter(is_wanted).collect()
}

/// From a name to its part.
pub fn parser() -> impl TypedValueParser<Value = &'static Part> {
    let names = PARTS.iter().map(|part| PossibleValue::new(part.name).help(part.about));
    PossibleValuesParser::new(names).try_map(|name| {
        let part = PARTS.iter().find(|part| part.name == name);
        part.ok_or_else(|| format!("`{name}` is no part"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_run_in_the_order_of_the_table_and_have_names_of_their_own() {
        let names: Vec<&str> = wanted(&[]).iter().map(|part| part.name).collect();
        let mut unique = names.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), names.len());
        let last = PARTS.last().unwrap();
        let asked: Vec<&str> = wanted(&[last, last]).iter().map(|part| part.name).collect();
        assert_eq!(asked, [last.name]);
        assert!(PARTS.iter().all(|part| !part.about.is_empty() && !part.about.ends_with('.')));
    }
}
