//! The parts of the experiment, in the order in which they run.

use super::{
    chains, deflate, device, fairness, files, ipc, kv, loops, micro, pages, protobuf, proxy,
    sockets, threads, throughput, tls,
};
use crate::bench::parts::Part;

/// All of them. A part writes its figures to the sink, and a line of mode `ratio` for each
/// comparison.
pub static PARTS: &[Part] = &[
    Part { name: "micro", about: "single copies, as their client sees them", run: micro::run },
    Part { name: "chains", about: "copies of copies, read past", run: chains::run },
    Part { name: "pages", about: "sources that are given up, and snapshots", run: pages::run },
    Part { name: "loops", about: "every copy loop by size", run: loops::run },
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
