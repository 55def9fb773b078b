//! A link whose clients lack TCP options, for tests.

use aya::programs::{SchedClassifier, TcAttachType, tc};
use aya::{Ebpf, EbpfLoader};

use crate::error::SteerError;
use crate::load::program;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/strip.bpf.o"));
const PROGRAM: &str = "strip_ingress";

/// Strips options from the incoming SYNs of a virtual link until dropped.
#[derive(Debug)]
pub struct Strip {
    /// Keeps program and link alive.
    _ebpf: Ebpf,
}

impl Strip {
    /// Attaches to `interface`; `kinds` are option kinds below 32, of at most 10 bytes.
    ///
    /// # Errors
    /// [`SteerError`]; nothing stays attached.
    pub fn open(interface: &str, kinds: &[u8]) -> Result<Strip, SteerError> {
        let mask = kinds.iter().fold(0u32, |mask, kind| mask | 1 << (kind & 31));
        let mut ebpf = EbpfLoader::new().override_global("kinds", &mask, true).load(OBJECT)?;
        let failed = |source| SteerError::Program { name: PROGRAM, source };
        let classifier: &mut SchedClassifier = program(&mut ebpf, PROGRAM)?;
        classifier.load().map_err(failed)?;
        // Kernels before Linux 6.6 have no tcx links and need a clsact qdisc.
        let _ = tc::qdisc_add_clsact(interface);
        classifier.attach(interface, TcAttachType::Ingress).map_err(failed)?;
        Ok(Strip { _ebpf: ebpf })
    }
}
