//! Test harness that runs the programs on single frames without an interface (BPF_PROG_TEST_RUN).

use aya::maps::Array;
use aya::programs::{SchedClassifier, TestRun, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader};
use std::sync::Arc;
use unlade_metrics::Meter;
use unlade_net::FlowKey;

use crate::counts::{Counters, Counts};
use crate::flow_entry::{FlowEntry, FlowState, Mac};
use crate::load::{OBJECT, flow_maps, load_programs, map_slots, program, take};
use crate::table::{FlowMaps, Table};

/// Size of the flow table.
const FLOWS_MAX: u32 = 16;
/// Return value of a classifier after `bpf_redirect`.
const TC_REDIRECT: i32 = 7;
const TC_SHOT: i32 = 2;
const XDP_PASS: i32 = 2;
const XDP_TX: i32 = 3;

/// Program to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Link,
    Hold,
    Xdp,
}

/// Verdict of a program on a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Passed to the local stack, or from XDP to the classifier.
    Passed,
    /// Sent out of the link.
    Redirected,
    Held,
    Dropped,
}

/// Programs and tables of one simulated host.
pub(crate) struct Bench {
    ebpf: Ebpf,
    table: Arc<Table>,
    counters: Counters,
    /// What the host has reported.
    pub(crate) meter: Meter,
}

impl Bench {
    /// Loads the programs. Returns None if the kernel refuses them.
    pub(crate) fn open(mac: Mac) -> Option<Bench> {
        let mut ebpf = match EbpfLoader::new()
            .override_global("hold_ifindex", &1u32, true)
            .map_max_entries(FlowMaps::IPV4, FLOWS_MAX)
            .map_max_entries(FlowMaps::IPV6, FLOWS_MAX)
            .map_max_entries("slots", FLOWS_MAX)
            .load(OBJECT)
        {
            Ok(ebpf) => ebpf,
            Err(error) => {
                println!("skipped: {error}");
                return None;
            }
        };
        load_programs(&mut ebpf).expect("the programs load");
        let slots = map_slots(&mut ebpf, FLOWS_MAX).unwrap();
        let flows = flow_maps(&mut ebpf).unwrap();
        let counts = Array::try_from(take(&mut ebpf, "counts").unwrap()).unwrap();
        let table = Table::new(flows, slots, FLOWS_MAX, 1, mac);
        let (table, counters) = (Arc::new(table), Counters::new(counts));
        Some(Bench { ebpf, table, counters, meter: Meter::new() })
    }

    pub(crate) fn acquire(&self, flow: &FlowKey) -> FlowEntry {
        FlowEntry::new(Arc::clone(&self.table), self.table.acquire(flow).unwrap(), *flow)
    }

    /// Returns the counts since the last call, and reports them.
    pub(crate) fn counts(&self) -> Counts {
        let counts = self.counters.take().unwrap();
        counts.add_to(&self.meter);
        counts
    }

    /// Runs a program on `frame` and replaces it with the program's output.
    pub(crate) fn run(&mut self, hook: Entry, frame: &mut Vec<u8>) -> Fate {
        let mut out = vec![0; frame.len() + 256];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ..TestRunOptions::default()
        };
        let ran = match hook {
            Entry::Link => program::<SchedClassifier>(&mut self.ebpf, "link_ingress")
                .unwrap()
                .test_run(options),
            Entry::Hold => program::<SchedClassifier>(&mut self.ebpf, "hold_ingress")
                .unwrap()
                .test_run(options),
            Entry::Xdp => program::<Xdp>(&mut self.ebpf, "link_xdp").unwrap().test_run(options),
        }
        .expect("the program runs");
        out.truncate(ran.data_size_out as usize);
        let moved = out[..12] != frame[..12];
        *frame = out;
        match (hook, ran.return_value as i32) {
            (Entry::Xdp, XDP_PASS) | (_, -1) => Fate::Passed,
            (Entry::Xdp, XDP_TX) => Fate::Redirected,
            (_, TC_REDIRECT) if moved => Fate::Redirected,
            (_, TC_REDIRECT) => Fate::Held,
            (_, TC_SHOT) => Fate::Dropped,
            other => panic!("{other:?} is no verdict"),
        }
    }
}

/// Sets the state and the owner of a flow entry.
pub(crate) fn set_state(entry: &FlowEntry, state: FlowState, owner: Mac) {
    entry.redirect(owner);
    match state {
        FlowState::Local => entry.local(),
        FlowState::Hold => entry.hold(),
        FlowState::Redirect => {}
        FlowState::Linger => entry.linger(),
        FlowState::Offered => {
            let known = entry.counters().tracked.expect("something is known");
            entry.offer(owner, known.last_ack);
        }
    }
}
