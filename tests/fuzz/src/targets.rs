//! One function for each decoder. It panics if the decoder violates its contract, not only if the
//! decoder itself panics.

use unlade_copy::channel::wire::ChannelMessage;
use unlade_copy::explain::{self, Board, CHANGES_MAX, Change, SITES_MAX};
use unlade_copy_adapters::{ParcelReader, ParcelWriter};
use unlade_copy_service::daemon::message::{Reply, Request};
use unlade_handoff_protocol::frame::{Deframer, Frame};
use unlade_handoff_protocol::snapshot::Snapshot;
use unlade_http::{
    BodyFraming, ChunkedScanner, HeadError, HeadLimits, Method, RequestHead, ResponseHead, head_end,
};
use unlade_kv::parse::{Argument, Limits, Parser, Progress};
use unlade_net::flow::FrameSegment;
use unlade_net::packet::{
    EthernetRepr, EthernetView, Ipv4Repr, Ipv4View, Ipv6Repr, Ipv6View, Segment, TcpRepr, TcpView,
    classify, classify_ip,
};

pub use super::archive::function_archive;
pub use super::chunks::aead_chunks;
pub use super::endpoint::endpoint;
pub use super::guest::guest;
pub use super::http_event::{function_result, http_event};
pub use super::initiator::{nvme_initiator, psk};
pub use super::inline_device::inline_device;
pub use super::lines::copyd_lines;
pub use super::notifications::notifications;
pub use super::nvme::nvme_pdu;
pub use super::pdus::{offload_pdus, offload_rx};
pub use super::policy::policy_document;
pub use super::presume::offload_presume;
pub use super::stacks::{stack_request, stack_template};
pub use super::storage::nic_storage;
pub use super::tcp::{tcp_connection, tcp_header};
pub use super::tls::record;
pub use super::traces::trace_rows;

/// A target.
pub type Target = fn(&[u8]);

/// Every target by its name.
pub const TARGETS: &[(&str, Target)] = &[
    ("snapshot", snapshot),
    ("frame", frame),
    ("http_request", http_request),
    ("http_response", http_response),
    ("chunked", chunked),
    ("packet", packet),
    ("policy_document", policy_document),
    ("record", record),
    ("sealing", crate::sealing::sealing),
    ("splice_datagram", crate::splice::splice_datagram),
    ("splice_head", crate::splice::splice_head),
    ("stack_request", stack_request),
    ("stack_template", stack_template),
    ("copyd_message", copyd_message),
    ("copyd_lines", copyd_lines),
    ("copyd_why", copyd_why),
    ("channel_word", channel_word),
    ("parcel", parcel),
    ("resp_request", resp_request),
    ("aead_chunks", aead_chunks),
    ("tcp_header", tcp_header),
    ("tcp_connection", tcp_connection),
    ("notifications", notifications),
    ("nvme_pdu", nvme_pdu),
    ("nvme_initiator", nvme_initiator),
    ("psk", psk),
    ("offload_pdus", offload_pdus),
    ("offload_presume", offload_presume),
    ("offload_rx", offload_rx),
    ("inline_device", inline_device),
    ("nic_storage", nic_storage),
    ("endpoint", endpoint),
    ("guest", guest),
    ("trace_rows", trace_rows),
    ("function_archive", function_archive),
    ("function_result", function_result),
    ("http_event", http_event),
];

/// A table of call sites is refused, or each of its entries can be shown: in few words, without a
/// character that a terminal obeys. Written again it means the same.
pub fn copyd_why(data: &[u8]) {
    let Ok(report) = explain::decode(data) else { return };
    assert!(report.sites.len() <= SITES_MAX && report.changes.len() <= CHANGES_MAX);
    let sites = report.sites.iter().flat_map(|site| [site.place(), site.reason(), site.window()]);
    let changes = report.changes.iter().map(Change::reason);
    for text in sites.chain(changes) {
        assert!(text.len() < 1024 && !text.chars().any(char::is_control), "{text:?}");
    }
    for site in &report.sites {
        assert!((0.0..=1.0).contains(&site.queued_part()));
        assert!(site.view.queued_ns().is_none_or(f32::is_finite), "{site:?}");
    }
    for change in &report.changes {
        assert!(change.number < report.changes_total);
        let _ = report.site_of(change);
    }
    // Written again, it means the same.
    let board = Board::of_report(&report, SITES_MAX.min(data.len() / 512 + 1), CHANGES_MAX);
    let again = explain::decode(&board.image()).expect("it was decoded before");
    assert_eq!((again.pid, again.off, &again.sites), (report.pid, report.off, &report.sites));
    let kept = |changes: &[Change]| changes.iter().all(|change| report.changes.contains(change));
    assert!(again.changes.len() == report.changes.len() && kept(&again.changes));
}

/// A message on a channel's socket has one meaning.
pub fn channel_word(data: &[u8]) {
    if let Ok(said) = ChannelMessage::decode(data) {
        assert_eq!(said.encode().as_slice(), data);
    }
}

/// Read values equal the written ones; no more memory is reserved than there are bytes.
pub fn parcel(data: &[u8]) {
    let mut reader = ParcelReader::new(data);
    let mut again = ParcelWriter::new(Vec::new());
    while let Ok(Some(value)) = reader.value() {
        again.value(&value).expect("memory takes all");
    }
    let again = again.into_inner();
    assert_eq!(again, data[..again.len()]);
    // After an error every further read fails.
    if !reader.is_at_end() {
        assert!(reader.value().is_err());
        assert!(reader.bytes().is_err() && reader.string().is_err());
        assert!(reader.i32().is_err() && reader.i64().is_err());
    }
}

/// A message of the copy daemon's socket has one meaning, in one direction.
pub fn copyd_message(data: &[u8]) {
    let request = Request::decode(data);
    let reply = Reply::decode(data);
    assert!(request.is_err() || reply.is_err());
    if let Ok(request) = request {
        assert_eq!(request.encode().as_slice(), data);
    }
    if let Ok(reply) = reply {
        assert_eq!(reply.encode().as_slice(), data);
    }
}

/// The meaning of requests does not depend on how their bytes arrive.
pub fn resp_request(data: &[u8]) {
    let whole = requests(data, data.len());
    for step in [1, 7, 64] {
        assert_eq!(requests(data, step), whole);
    }
}

/// The requests of `data`, which arrives `step` bytes at a time, and true if the rest is invalid.
fn requests(data: &[u8], step: usize) -> (Vec<Vec<Vec<u8>>>, bool) {
    let mut parser = Parser::new(Limits { arguments_max: 64, bulk_bytes_max: 4096 });
    let (mut found, mut input) = (Vec::new(), Vec::new());
    for chunk in data.chunks(step.max(1)) {
        input.extend_from_slice(chunk);
        loop {
            match parser.advance(&input) {
                Err(_) => return (found, true),
                Ok(Progress::Complete) => {}
                Ok(Progress::Partial | Progress::Open(_)) => break,
            }
            let word = |argument: &Argument| match argument {
                Argument::Here(place) => input[place.clone()].to_vec(),
                Argument::Quoted(word) => word.clone(),
                Argument::Apart => unreachable!("nothing was taken"),
            };
            let words: Vec<Vec<u8>> = parser.arguments().iter().map(word).collect();
            assert!(!words.is_empty());
            found.push(words);
            input.drain(..parser.finish());
        }
        input.drain(..parser.skip());
    }
    (found, false)
}

/// A snapshot that decodes has one meaning. The checksum is corrected, because a fuzzer finds
/// none.
pub fn snapshot(data: &[u8]) {
    one_snapshot(data);
    if let Some((content, _)) = data.split_last_chunk::<4>() {
        let sum = crc32c::crc32c(content).to_be_bytes();
        one_snapshot(&[content, &sum].concat());
    }
}

fn one_snapshot(data: &[u8]) {
    let Ok(snapshot) = Snapshot::decode(data) else { return };
    let mut out = Vec::new();
    snapshot.encode(&mut out);
    assert_eq!(Snapshot::decode(&out).as_ref(), Ok(&snapshot));
}

/// Frames have one meaning, however their bytes arrive.
pub fn frame(data: &[u8]) {
    if let Ok(Some((frame, taken))) = Frame::decode(data) {
        assert!(taken <= data.len());
        let mut out = Vec::new();
        frame.encode(&mut out);
        assert_eq!(Frame::decode(&out), Ok(Some((frame, out.len()))));
    }
    let (mut whole, mut pieces) = (Deframer::default(), Deframer::default());
    whole.push(data);
    let mut due = Vec::new();
    let mut due_error = None;
    loop {
        match whole.next_frame() {
            Ok(Some(frame)) => due.push(frame),
            Ok(None) => break,
            Err(error) => {
                due_error = Some(error);
                break;
            }
        }
    }
    let mut found = Vec::new();
    for piece in data.chunks(7) {
        pieces.push(piece);
        loop {
            match pieces.next_frame() {
                Ok(Some(frame)) => found.push(frame),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!((found, Some(error)), (due, due_error));
                    return;
                }
            }
        }
    }
    assert_eq!((found, None), (due, due_error));
}

/// A head is decided once, and its parts lie within it.
pub fn http_request(data: &[u8]) {
    let limits = HeadLimits { head_bytes_max: 4096, headers_max: 40, target_bytes_max: 512 };
    let whole = RequestHead::parse(data, &limits);
    for cut in cuts(data.len()) {
        match (RequestHead::parse(&data[..cut], &limits), &whole) {
            (Ok(None), _) | (Err(_), Err(_)) => {}
            (Ok(Some(early)), Ok(Some(late))) => {
                assert_eq!(early.head_bytes(), late.head_bytes());
                assert!(early.headers(data).eq(late.headers(data)));
            }
            (early, late) => panic!("cut at {cut}: {early:?}, then {late:?}"),
        }
    }
    let Ok(Some(head)) = whole else { return };
    assert!(head.head_bytes() <= data.len() && head.head_bytes() <= limits.head_bytes_max);
    // One empty line may precede the request line.
    let line = if data.starts_with(b"\r\n") { 2 } else { 0 };
    assert_eq!(head_end(data, line), Some(head.head_bytes()));
    assert!(!head.method_text(data).is_empty());
    let (path, target) = (head.path(data), head.target(data));
    assert!(path.is_empty() || path == "*" || path.starts_with('/'), "{path:?}");
    assert!(target.bytes().all(|byte| byte.is_ascii_graphic()));
    assert!(head.is_http10() || head.host(data).is_some_and(|host| !host.is_empty()));
    assert_ne!(head.framing(), BodyFraming::UntilClose);
    framed_once(head.headers(data), head.framing());
    assert!(head.end_to_end_headers(data).count() <= head.headers(data).count());
}

/// As [`http_request`], for a response to each kind of request.
pub fn http_response(data: &[u8]) {
    let limits = HeadLimits { head_bytes_max: 4096, headers_max: 40, target_bytes_max: 512 };
    for method in [Method::Get, Method::Head, Method::Connect] {
        let whole = ResponseHead::parse(data, &limits, method);
        for cut in cuts(data.len()) {
            match (ResponseHead::parse(&data[..cut], &limits, method), &whole) {
                (Ok(None), _) | (Err(_), Err(_)) => {}
                (Ok(Some(early)), Ok(Some(late))) => assert_eq!(early.status(), late.status()),
                (early, late) => panic!("cut at {cut}: {early:?}, then {late:?}"),
            }
        }
        let Ok(Some(head)) = whole else { continue };
        assert_eq!(head_end(data, 0), Some(head.head_bytes()));
        assert!(matches!(head.status(), 100..=599));
        assert!(method != Method::Head || head.framing() == BodyFraming::None);
        assert!(head.framing() != BodyFraming::UntilClose || !head.keep_alive());
        if method == Method::Get && head.framing() != BodyFraming::None {
            framed_once(head.headers(data), head.framing());
        }
    }
}

/// An independent parser of the header lines agrees on the framing.
fn framed_once<'b>(headers: impl Iterator<Item = (&'b str, &'b [u8])>, framing: BodyFraming) {
    let (mut lengths, mut encodings) = (Vec::new(), Vec::new());
    for (name, value) in headers {
        match name.to_ascii_lowercase().as_str() {
            "content-length" => lengths.push(value),
            "transfer-encoding" => encodings.push(value),
            _ => {}
        }
        assert!(!value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
    }
    match framing {
        BodyFraming::Length(bytes) => {
            let text = core::str::from_utf8(lengths[0]).expect("digits");
            assert_eq!(text.parse(), Ok(bytes));
            assert_eq!((lengths.len(), encodings.len()), (1, 0));
        }
        BodyFraming::Chunked => {
            assert!(encodings[0].eq_ignore_ascii_case(b"chunked"));
            assert_eq!((lengths.len(), encodings.len()), (0, 1));
        }
        BodyFraming::None | BodyFraming::UntilClose => {
            assert_eq!((lengths.len(), encodings.len()), (0, 0));
        }
    }
}

/// Positions at which to split an input: everywhere in a short one.
fn cuts(bytes: usize) -> impl Iterator<Item = usize> {
    (0..bytes).step_by(bytes / 256 + 1)
}

/// A body ends at one position with one content, however it arrives.
pub fn chunked(data: &[u8]) {
    let whole = scan(data, data.len().max(1));
    for piece in [1, 3, 16] {
        assert_eq!(scan(data, piece), whole);
    }
    if let (content, Ok((taken, _))) = &whole {
        assert!(*taken <= data.len() && content.len() <= *taken);
    }
}

fn scan(data: &[u8], piece: usize) -> (Vec<u8>, Result<(usize, bool), HeadError>) {
    let mut scanner = ChunkedScanner::new();
    let (mut content, mut taken) = (Vec::new(), 0);
    for piece in data.chunks(piece) {
        match scanner.advance_with(piece, |run| content.extend_from_slice(run)) {
            Ok(progress) => taken += progress.consumed,
            Err(error) => return (content, Err(error)),
        }
        if scanner.is_done() {
            return (content, Ok((taken, true)));
        }
    }
    (content, Ok((taken, false)))
}

/// Classified parts lie within the frame; a header encodes to the same meaning.
pub fn packet(data: &[u8]) {
    let segment = FrameSegment::find(data);
    if let Some(segment) = segment {
        assert!(segment.tcp_at >= 34 && data.len() >= segment.tcp_at + 4);
    }
    if let Some(found) = classify(data) {
        let is_untagged = matches!(data[12..14], [0x08, 0x00] | [0x86, 0xdd]);
        if let Some(segment) = segment.filter(|_| is_untagged) {
            assert_eq!(segment.flow, found.flow);
            let tcp_bytes = usize::from(data[segment.tcp_at + 12] >> 4) * 4;
            assert_eq!(segment.tcp_at + tcp_bytes, found.payload_at);
            assert_eq!(segment.segment_bytes, tcp_bytes + found.payload_bytes);
        } else {
            assert!(!is_untagged, "a segment without a flow: {found:?}");
        }
        assert!(found.payload_at + found.payload_bytes <= data.len());
        if let Some(reset) = Segment::reset_answering(&found) {
            let frame = reset.ethernet_frame([2; 6], [4; 6]).expect("both ends of one family");
            let answer = classify(&frame).expect("a segment");
            assert_eq!(
                (answer.flow.client, answer.flow.service),
                (found.flow.service, found.flow.client)
            );
        }
    }
    classify_ip(data);
    if let Ok(view) = EthernetView::new(data) {
        let repr = EthernetRepr::parse(&view);
        let mut out = Vec::new();
        repr.emit(&mut out);
        assert!(out.len() <= data.len());
    }
    if let Ok(view) = Ipv4View::new(data) {
        assert!(view.header_bytes() + view.payload().len() == view.total_bytes());
        let mut out = Vec::new();
        if let Ok(repr) = Ipv4Repr::parse(&view) {
            repr.emit(&mut out).expect("fits, for it did");
            out.extend_from_slice(view.payload());
            let again = Ipv4View::new(&out).expect("a packet");
            assert!(again.checksum_ok());
            assert_eq!(Ipv4Repr::parse(&again), Ok(repr));
        }
    }
    if let Ok(view) = Ipv6View::new(data) {
        let repr = Ipv6Repr::parse(&view);
        let mut out = Vec::new();
        repr.emit(&mut out).expect("fits, for it did");
        out.extend_from_slice(view.payload());
        assert_eq!(Ipv6View::new(&out).map(|again| Ipv6Repr::parse(&again)), Ok(repr));
    }
    if let Ok(view) = TcpView::new(data) {
        let repr = TcpRepr::parse(&view);
        let (source, destination) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let mut out = Vec::new();
        repr.emit(source, destination, view.payload(), &mut out);
        let again = TcpView::new(&out).expect("a segment");
        assert!(again.checksum_ok(source, destination));
        assert_eq!(TcpRepr::parse(&again), repr);
    }
}
