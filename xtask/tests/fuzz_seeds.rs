//! Every fuzz target over its committed seeds, without a fuzzer.
//!
//! After a change of a format, `UPDATE_SEEDS=1 cargo test -p xtask --test fuzz_seeds` rewrites the
//! seeds. An input that crashed a target is added to `tests/fuzz/seeds/TARGET/` by hand.

use std::fs;
use std::path::PathBuf;

#[path = "../../tests/fuzz/src/archive.rs"]
mod archive;
#[path = "../../tests/fuzz/src/chunks.rs"]
mod chunks;
#[path = "../../tests/fuzz/src/endpoint.rs"]
mod endpoint;
#[path = "../../tests/fuzz/src/guest.rs"]
mod guest;
#[path = "../../tests/fuzz/src/http_event.rs"]
mod http_event;
#[path = "../../tests/fuzz/src/initiator.rs"]
mod initiator;
#[path = "../../tests/fuzz/src/inline_device.rs"]
mod inline_device;
#[path = "../../tests/fuzz/src/lines.rs"]
mod lines;
#[path = "../../tests/fuzz/src/notifications.rs"]
mod notifications;
#[path = "../../tests/fuzz/src/nvme.rs"]
mod nvme;
#[path = "../../tests/fuzz/src/pdus.rs"]
mod pdus;
#[path = "../../tests/fuzz/src/policy.rs"]
mod policy;
#[path = "../../tests/fuzz/src/presume.rs"]
mod presume;
#[path = "../../tests/fuzz/src/sealing.rs"]
mod sealing;
#[path = "../../tests/fuzz/src/seeds.rs"]
mod seeds;
#[path = "../../tests/fuzz/src/splice.rs"]
mod splice;
#[path = "../../tests/fuzz/src/stacks.rs"]
mod stacks;
#[path = "../../tests/fuzz/src/storage.rs"]
mod storage;
#[path = "../../tests/fuzz/src/targets.rs"]
mod targets;
#[path = "../../tests/fuzz/src/tcp.rs"]
mod tcp;
#[path = "../../tests/fuzz/src/tls.rs"]
mod tls;
#[path = "../../tests/fuzz/src/traces.rs"]
mod traces;

fn directory(target: &str) -> PathBuf {
    xtask::root().join("tests/fuzz/seeds").join(target)
}

#[test]
fn every_seed_is_survived() {
    update();
    for (target, run) in targets::TARGETS {
        let mut count = 0;
        for entry in fs::read_dir(directory(target)).expect(target) {
            let path = entry.unwrap().path();
            println!("{}", path.display());
            run(&fs::read(&path).unwrap());
            count += 1;
        }
        assert!(count >= 2, "{target} has {count} seeds");
    }
}

#[test]
fn seeds_are_up_to_date() {
    update();
    for (target, name, content) in seeds::all() {
        let path = directory(target).join(&name);
        let committed = fs::read(&path).unwrap_or_default();
        assert!(
            committed == content,
            "{} differs from what is made today; run UPDATE_SEEDS=1 cargo test -p xtask --test \
             fuzz_seeds",
            path.display()
        );
    }
}

/// A seed that no decoder accepts does not help a fuzzer: most seeds must be accepted.
#[test]
fn seeds_pass_the_first_check() {
    let accepted = |target: &str, content: &[u8]| match target {
        "snapshot" => unlade_handoff_protocol::snapshot::Snapshot::decode(content).is_ok(),
        "frame" => matches!(unlade_handoff_protocol::frame::Frame::decode(content), Ok(Some(_))),
        "http_request" => {
            let head = unlade_http::RequestHead::parse(content, &Default::default());
            matches!(head, Ok(Some(_)))
        }
        "http_response" => {
            let get = unlade_http::Method::Get;
            let head = unlade_http::ResponseHead::parse(content, &Default::default(), get);
            matches!(head, Ok(Some(_)))
        }
        "packet" => {
            unlade_net::packet::classify(content).is_some()
                || unlade_net::packet::classify_ip(content).is_some()
        }
        "tcp_header" => unlade_research_tcp::Header::decode(content).is_some(),
        "sealing" => sealing::is_accepted(content),
        "splice_datagram" => unlade_splice::datagram::decode(content, &splice::KEY).is_ok(),
        "splice_head" => unlade_splice::head::fit(content).is_some(),
        "copyd_message" => {
            use unlade_copy_service::daemon::message::{Reply, Request};
            Request::decode(content).is_ok() || Reply::decode(content).is_ok()
        }
        "channel_word" => unlade_copy::channel::wire::ChannelMessage::decode(content).is_ok(),
        "parcel" => {
            let mut reader = unlade_copy_adapters::ParcelReader::new(content);
            while let Ok(Some(_)) = reader.value() {}
            reader.is_at_end()
        }
        "nvme_pdu" => unlade_nvme_wire::CommonHeader::parse(content)
            .and_then(|common| unlade_nvme_wire::Pdu::parse(&common, content))
            .is_ok(),
        "function_archive" => {
            let root = tempfile::tempdir().unwrap();
            unlade_fn_gateway::archive::unpack_zip(root.path(), content).is_ok()
        }
        "notifications" => notifications::is_accepted(content),
        "policy_document" => {
            let text = std::str::from_utf8(content).unwrap();
            let value = unlade_s3::policy::document::from_text(text);
            value.is_ok_and(|value| {
                unlade_s3::Policy::from_value(&value).is_ok()
                    || unlade_s3::policy::invocation::ResourcePolicy::from_value(&value).is_ok()
            })
        }
        "function_result" => unlade_fn_http_event::result::of_v2(content).is_ok(),
        "stack_request" => unlade_fn_stacks::query::decode(content).is_ok(),
        "stack_template" => {
            let text = std::str::from_utf8(content).unwrap();
            unlade_fn_stacks::prepare::summary(text).is_ok()
        }
        "trace_rows" => is_trace(content),
        _ => true,
    };
    for (target, name, content) in seeds::all() {
        let meant_to_fail =
            ["te-cl", "fold", "twice", "circle", "member-twice", "field-with-a-line-end"]
                .contains(&name.as_str());
        assert_eq!(accepted(target, &content), !meant_to_fail, "{target}/{name}");
    }
}

/// Returns true for a file of one of the four kinds.
fn is_trace(content: &[u8]) -> bool {
    use unlade_traces::azure2019::{Durations, Invocations, Memory};
    fn all<R: unlade_traces::Row>(content: &[u8]) -> bool {
        unlade_traces::Rows::<R>::of(content).is_ok_and(|mut rows| rows.all(|row| row.is_ok()))
    }
    all::<Invocations>(content)
        || all::<Durations>(content)
        || all::<Memory>(content)
        || all::<unlade_traces::azure2021::Call>(content)
}

/// Targets handle inputs near the seeds: a fuzzer's first seconds, reproducible.
#[test]
fn seeds_with_one_byte_changed_are_survived() {
    for (target, name, content) in seeds::all() {
        let (_, run) = targets::TARGETS.iter().find(|(name, _)| *name == target).unwrap();
        for at in 0..content.len().min(400) {
            for change in [0x01, 0x80, 0xff] {
                let mut edited = content.clone();
                edited[at] ^= change;
                println!("{target}/{name}: byte {at} changed by {change:#x}");
                run(&edited);
            }
        }
    }
}

fn update() {
    if std::env::var_os("UPDATE_SEEDS").is_none() {
        return;
    }
    for (target, name, content) in seeds::all() {
        fs::create_dir_all(directory(target)).unwrap();
        fs::write(directory(target).join(name), content).unwrap();
    }
}
