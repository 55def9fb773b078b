//! `unlade nic run` against TLS in the kernel. The device, its host's TCP and the peer all run in a
//! virtual machine, because only its kernel has TLS.

use std::path::Path;

use system_tests::vm::{self, Vm};
use system_tests::{example, said, text, turn, unlade};

const NAME: &str = "peer.example";
/// Modules of the kernel's TLS, its AES-GCM, and TAP devices.
const MODULES: [&str; 6] = ["tls", "tun", "aesni_intel", "gcm", "ctr", "ghash-generic"];
/// Size of a body in each direction, in bytes.
const BODY_BYTES: u64 = 1_000_000;
/// Impairment of the wire, in both directions.
const IMPAIRED: &str = "loss=2%,reorder=2%,duplicate=1%,seed=11";
/// TLS version and AES-GCM suite.
const SUITES: [[&str; 2]; 4] = [
    ["1.3", "TLS13_AES_128_GCM_SHA256"],
    ["1.3", "TLS13_AES_256_GCM_SHA384"],
    ["1.2", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"],
    ["1.2", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"],
];

/// Script of the machine: runs the device as a TLS terminator, then as an originator, each in a new
/// process, and prints the counters after each run.
const STEPS: &str = r#"set -eu
cd "$DIR"
ip netns add peer
ip -n peer link set lo up
: >/dev/shm/peer
trap 'cat /dev/shm/peer >&2' EXIT
on_peer() { ip netns exec peer "$@"; }
tls_stat() { on_peer sed "s/^/figure $1 /" /proc/net/tls_stat; }
counters() {
    curl -sf http://127.0.0.1:9902/metrics |
        sed -n "s/^unlade_nic_\([a-z_]*\)_total /figure $1 \1 /p"
}
# The device; the peer's address.
start() {
    ./unlade nic run --config slow.toml --address 10.9.0.1/24 --wire tap:unlw@peer --admin 127.0.0.1:9902 $IMPAIR "$@" &
    NIC=$!
    for _ in $(seq 300); do
        if ip -n peer address add 10.9.0.2/24 dev unlw 2>/dev/null; then break; fi
        sleep 0.1
    done
    until curl -sf http://127.0.0.1:9902/healthz >/dev/null; do kill -0 $NIC; sleep 0.1; done
}
finish() {
    counters "$1"
    kill $NIC
    wait $NIC
    kill $OTHER
    wait $OTHER 2>/dev/null || true
    tls_stat "$1"
}
# VERSION SUITE
terminator() {
    ./tls_peer echo 127.0.0.1:8080 2>/dev/shm/peer &
    OTHER=$!
    until ss -Hltn "sport = :8080" | grep -q .; do kill -0 $OTHER; sleep 0.1; done
    start --listen 10.9.0.1:443 --backend 127.0.0.1:8080 --certificate a.crt --key a.key
    on_peer ./tls_peer tls-exchange 10.9.0.1:443 "$1" "$2" a.crt peer.example $BYTES 1
    finish "terminator-$2"
}
originator() {
    # The address is configured with the device.
    ip netns exec peer ./tls_peer tls-echo 0.0.0.0:443 "$1" "$2" a.crt a.key 2>/dev/shm/peer &
    OTHER=$!
    until on_peer ss -Hltn "sport = :443" | grep -q .; do kill -0 $OTHER; sleep 0.1; done
    start --originate 127.0.0.1:8443 --connect 10.9.0.2:443 --name peer.example --ca a.crt
    ./tls_peer exchange 127.0.0.1:8443 $BYTES 2
    finish "originator-$2"
}
"#;

fn prepare(directory: &Path) {
    let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()]).unwrap();
    std::fs::write(directory.join("a.crt"), made.cert.pem()).unwrap();
    std::fs::write(directory.join("a.key"), made.signing_key.serialize_pem()).unwrap();
    // An emulated processor on a loaded host can need longer than the default for a handshake.
    std::fs::write(directory.join("slow.toml"), "handshake_timeout = \"120s\"\n").unwrap();
    // The machine does not see the host's /tmp, where the programs may have been built.
    std::fs::copy(unlade(), directory.join("unlade")).unwrap();
    std::fs::copy(example("system-tests", "tls_peer"), directory.join("tls_peer")).unwrap();
}

/// Returns a metric of a named run from the machine's output.
fn figure(printed: &str, run: &str, name: &str) -> u64 {
    let line = printed.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["figure", of, named, value] if of == run && named == name => value.parse().ok(),
            _ => None,
        }
    });
    line.unwrap_or_else(|| panic!("no {run} {name} in {printed}"))
}

/// Runs all suites in one role, in one machine.
fn exchanges(role: &str, impair: &str) {
    if let Some(reason) = vm::skip_reason().or_else(|| system_tests::unable(&["curl"])) {
        println!("skipped: {reason}");
        return;
    }
    let _turn = turn();
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    prepare(directory.path());
    let option = if impair.is_empty() { String::new() } else { format!("--impair {impair}") };
    let mut script = format!(
        "DIR='{}'; BYTES={BODY_BYTES}; IMPAIR='{option}'\n{STEPS}",
        directory.path().display()
    );
    for [version, suite] in SUITES {
        script += &format!("{role} {version} {suite}\n");
    }
    let output = Vm::new(&MODULES).timeout_s(400).run(&script);
    assert!(output.status.success(), "{}", said(&output));
    let printed = text(&output);
    println!("{printed}");
    for (number, [_, suite]) in (1..).zip(SUITES) {
        let run = format!("{role}-{suite}");
        let get = |name| figure(&printed, &run, name);
        // The kernel has encrypted and decrypted each connection so far without a bad record.
        assert_eq!((get("TlsTxSw"), get("TlsRxSw")), (number, number), "{run}");
        assert_eq!(get("TlsDecryptError"), 0, "{run}");
        // The device has offloaded the connection.
        assert_eq!(get("connections_offloaded"), 1, "{run}");
        assert_eq!(get("connections_failed") + get("handshakes_failed"), 0, "{run}");
        assert!(get("tx_tls_encrypted_bytes") >= BODY_BYTES, "{run}");
        assert!(get("rx_tls_decrypted_packets") > 0, "{run}");
        assert!(get("records_offloaded") > 0, "{run}");
        if !impair.is_empty() {
            assert!(get("impaired_lost_frames") > 0, "{run}");
            assert!(get("impaired_reordered_frames") > 0, "{run}");
        }
    }
}

#[test]
fn the_kernels_tls_as_a_client_of_the_terminator() {
    exchanges("terminator", "");
}

#[test]
fn the_kernels_tls_as_a_server_behind_the_originator() {
    exchanges("originator", "");
}

#[test]
fn the_kernels_tls_as_a_client_over_a_bad_wire() {
    exchanges("terminator", IMPAIRED);
}

#[test]
fn the_kernels_tls_as_a_server_over_a_bad_wire() {
    exchanges("originator", IMPAIRED);
}
