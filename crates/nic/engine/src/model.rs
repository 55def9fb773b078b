//! Model tests: the machines against a peer that seals with another library, a network with loss,
//! duplication and reordering, and a TCP that reassembles the stream.
//!
//! `UNLADE_CASES=10000` runs 10,000 cases of some hundred packets each; `UNLADE_SEED=…` repeats a
//! failed one.

pub(crate) mod emission;
pub(crate) mod exchange;
pub(crate) mod initiator;
pub(crate) mod pdus;
pub(crate) mod peer;
pub(crate) mod receive;
pub(crate) mod storage;
pub(crate) mod transmit;

/// Default number of cases.
const CASES: u64 = 150;

#[test]
fn what_is_released_is_what_the_peer_sent() {
    let total = std::cell::RefCell::new(crate::Stats::default());
    unlade_testkit::cases(CASES, |random| match receive::run(random) {
        Ok(stats) => total.borrow_mut().add(&stats),
        Err(why) => panic!("{why}"),
    });
    println!("{:#?}", total.borrow());
    // A single repeated case need not contain everything.
    if std::env::var_os("UNLADE_SEED").is_none() {
        let total = total.borrow();
        assert!(total.records_offloaded > 0 && total.records_partial > 0, "{total:?}");
        assert!(total.rx_tls_resync_res_ok > 0 && total.rx_resync_denied > 0, "{total:?}");
    }
}

#[test]
fn what_the_wire_gets_is_what_the_peer_would_have_sealed() {
    let total = std::cell::RefCell::new(crate::Stats::default());
    unlade_testkit::cases(CASES, |random| match transmit::run(random) {
        Ok(stats) => total.borrow_mut().add(&stats),
        Err(why) => panic!("{why}"),
    });
    println!("{:#?}", total.borrow());
}

fn exchanges(run: fn(&mut unlade_testkit::Random) -> Result<crate::composed::Stats, String>) {
    let total = std::cell::RefCell::new(crate::composed::Stats::default());
    unlade_testkit::cases(CASES, |random| match run(random) {
        Ok(stats) => total.borrow_mut().add(&stats),
        Err(why) => panic!("{why}"),
    });
    println!("{:#?}", total.borrow());
    if std::env::var_os("UNLADE_SEED").is_none() {
        let nvme = &total.borrow().nvme;
        assert!(nvme.pdus_offloaded > 0 && nvme.pdus_partial > 0, "{nvme:?}");
        assert!(nvme.rx_placed_bytes > 0 && nvme.copy_skipped_bytes > 0, "{nvme:?}");
        assert!(nvme.rx_tls_resync_res_ok > 0 && nvme.rx_tls_resync_req_skip > 0, "{nvme:?}");
    }
}

#[test]
fn buffers_hold_what_the_target_sent() {
    exchanges(exchange::plain);
}

#[test]
fn buffers_hold_what_the_target_sent_over_tls() {
    exchanges(exchange::secure);
}

fn emissions(run: fn(&mut unlade_testkit::Random) -> Result<crate::composed::Stats, String>) {
    let packets = std::cell::Cell::new(0);
    unlade_testkit::cases(CASES, |random| match run(random) {
        Ok(stats) => {
            let sent = stats.tls.tx_tls_encrypted_packets + stats.nvme.tx_tls_encrypted_packets;
            packets.set(packets.get() + sent);
        }
        Err(why) => panic!("{why}"),
    });
    println!("{} packets left rightly", packets.get());
}

#[test]
fn the_wire_gets_pdus_with_their_digests() {
    emissions(emission::plain);
}

#[test]
fn the_wire_gets_records_with_pdus_with_their_digests() {
    emissions(emission::secure);
}
