//! The handshake driver: splits, early requests, resumption, neighbours, refusals.

mod common;

use std::sync::Arc;

use common::*;
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use unlade_tls::{Fault, Handshake, HandshakeError, Progress};

#[test]
fn any_split_of_the_clients_bytes_works() {
    for suite in suites() {
        for step in [1, 2, 3, 5, 7, 100, usize::MAX] {
            let identity = identity_for(suite);
            let mut config = client_config(identity, &[suite]);
            config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
            let mut client = client_of(config);
            let server = server_config(identity, &[b"http/1.1"]);
            let early = b"GET /early HTTP/1.1\r\n\r\n";
            let mut done = handshake(server, &mut client, step, early).unwrap();
            assert_eq!(done.plaintext, early);
            assert_eq!(done.alpn.as_deref(), Some(&b"http/1.1"[..]));
            assert_eq!(done.sni.as_deref(), Some(NAME));
            assert!(!done.resumed);
            let sealed = seal(&mut done.record, b"response");
            assert_eq!(client_input(&mut client, &sealed), b"response");
        }
    }
}

#[test]
fn the_server_prefers_aes_128_gcm() {
    let identity = ecdsa();
    let mut offered = suites();
    offered.reverse();
    for (offered, expected) in [
        (offered.clone(), "TLS13_AES_128_GCM_SHA256"),
        (
            offered.into_iter().filter(|suite| suite.tls13().is_none()).collect(),
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        ),
    ] {
        let mut client = client_of(client_config(identity, &offered));
        let server = server_config(identity, &[]);
        let done = handshake(server, &mut client, usize::MAX, b"").unwrap();
        assert_eq!(done.record.suite_name(), expected);
    }
}

#[test]
fn a_long_early_request_passes() {
    let suite = suites()[0];
    let identity = identity_for(suite);
    let mut client = client_of(client_config(identity, &[suite]));
    // More than the limit on the handshake itself, which does not include it.
    let early = pattern(200_000, 1);
    let done = handshake(server_config(identity, &[]), &mut client, usize::MAX, &early).unwrap();
    assert_eq!(done.plaintext, early);
}

#[test]
fn a_session_is_resumed_and_carried_on() {
    for suite in suites() {
        let identity = identity_for(suite);
        let server = server_config(identity, &[]);
        let config = Arc::new(client_config(identity, &[suite]));
        for round in 0..3 {
            let name = ServerName::try_from(NAME).unwrap();
            let mut client = ClientConnection::new(config.clone(), name).unwrap();
            let mut done = handshake(server.clone(), &mut client, 50, b"request").unwrap();
            assert_eq!(done.resumed, round > 0, "{suite:?}");
            assert_eq!(done.sni.as_deref(), Some(NAME));
            assert_eq!(done.plaintext, b"request");
            let mut moved = moved(&done.record);
            let sealed = seal(&mut moved, b"response");
            assert_eq!(client_input(&mut client, &sealed), b"response");
            let mut out = Vec::new();
            done.record.close_notify(&mut out);
        }
    }
}

/// Handshakes that alternate on one thread: each must get its own secrets.
#[test]
fn interleaved_handshakes_do_not_mix() {
    let identity = ecdsa();
    let server = server_config(identity, &[]);
    let tls13: Vec<_> = suites().into_iter().filter(|suite| suite.tls13().is_some()).collect();
    let mut handshakes: Vec<_> = (0..12)
        .map(|at| {
            let client = client_of(client_config(identity, &[tls13[at % tls13.len()]]));
            (client, Handshake::new(server.clone()).unwrap(), None)
        })
        .collect();
    for turn in 0..4 {
        let count = handshakes.len();
        for at in 0..count {
            // Another order in each turn.
            let (client, handshake, done) = &mut handshakes[(at * 5 + turn) % count];
            if done.is_some() {
                continue;
            }
            let mut out = Vec::new();
            let input = client_output(client);
            match handshake.advance(&input, &mut out).unwrap() {
                Progress::NeedsInput => {}
                Progress::Complete(established) => *done = Some(established),
            }
            client_input(client, &out);
        }
    }
    for (at, (client, _, done)) in handshakes.iter_mut().enumerate() {
        let record = &mut done.as_mut().expect("complete").record;
        client.refresh_traffic_keys().unwrap();
        let sealed = client_seal(client, &[at as u8; 10]);
        assert_eq!(open(record, &sealed), [at as u8; 10]);
        let sealed = seal(record, &[at as u8; 20]);
        assert_eq!(client_input(client, &sealed), [at as u8; 20]);
    }
}

fn fail(server: Arc<rustls::ServerConfig>, input: &[u8]) -> (HandshakeError, Vec<u8>) {
    let mut handshake = Handshake::new(server).unwrap();
    let mut out = Vec::new();
    let error = handshake.advance(input, &mut out).expect_err("must fail");
    // Further calls fail too.
    assert!(matches!(handshake.advance(input, &mut Vec::new()), Err(HandshakeError::Over)));
    (error, out)
}

#[test]
fn other_protocols_are_recognised() {
    let server = server_config(ecdsa(), &[]);
    for (input, is_http) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], true),
        (b"P", true),
        (b"OPTIONS * HTTP/1.1\r\n", true),
        (b"SSH-2.0-client\r\n", true),
        (b"\x80\x2e\x01\x00\x02", false),
        (b"\0", false),
        (b"get /", false),
    ] {
        let (error, out) = fail(server.clone(), input);
        let HandshakeError::NotTls { first_byte, http } = error else { panic!("{error}") };
        assert_eq!((first_byte, http), (input[0], is_http));
        assert!(out.is_empty());
    }
}

#[test]
fn an_endless_handshake_is_refused() {
    let server = server_config(ecdsa(), &[]);
    let mut handshake = Handshake::new(server).unwrap();
    // A ClientHello that announces 16 MiB, and its first bytes.
    let mut fed = 0;
    let mut message = vec![1, 0xff, 0xff, 0xff];
    message.resize(1000, 0);
    loop {
        let mut record = vec![22, 3, 1];
        record.extend_from_slice(&(message.len() as u16).to_be_bytes());
        record.extend_from_slice(&message);
        fed += record.len();
        message = vec![0; 1000];
        match handshake.advance(&record, &mut Vec::new()) {
            Ok(_) => {
                assert!(fed <= 2 * unlade_tls::handshake::HANDSHAKE_BYTES_MAX, "never refused")
            }
            Err(error) => {
                assert_eq!(error.fault(), Fault::Peer);
                break;
            }
        }
    }
}

#[test]
fn an_endless_row_of_small_messages_is_refused() {
    let server = server_config(ecdsa(), &[]);
    let mut handshake = Handshake::new(server).unwrap();
    // One byte of a ClientHello in each record: every prefix is valid.
    let mut message = vec![1, 0, 0xff, 0xfb];
    message.resize(0xffff, 0);
    let refused = message
        .iter()
        .find_map(|&byte| handshake.advance(&[22, 3, 1, 0, 1, byte], &mut Vec::new()).err());
    let refused = refused.expect("refused at the limit");
    assert!(matches!(refused, HandshakeError::TooMuchInput { .. }), "{refused}");
}

#[test]
fn nothing_in_common_is_answered_with_an_alert() {
    let identity = ecdsa();
    let mut config = client_config(identity, &[suites()[0]]);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let mut client = client_of(config);
    let hello = client_output(&mut client);
    let (error, out) = fail(server_config(identity, &[b"http/1.1"]), &hello);
    assert_eq!((error.fault(), error.reason()), (Fault::Peer, "no_application_protocol"));
    // The alert is encrypted, so the client decrypts it.
    client.read_tls(&mut &out[..]).unwrap();
    let alert = rustls::AlertDescription::NoApplicationProtocol;
    assert_eq!(client.process_new_packets().err(), Some(rustls::Error::AlertReceived(alert)));
    // A client that can do RSA only, at a server with an ECDSA key.
    let rsa_suite = suites().into_iter().find(|s| format!("{s:?}").contains("_RSA_")).unwrap();
    let hello = client_output(&mut client_of(client_config(identity, &[rsa_suite])));
    let (error, out) = fail(server_config(identity, &[]), &hello);
    assert_eq!((error.fault(), error.reason()), (Fault::Peer, "incompatible"), "{error}");
    assert_eq!(out[..6], [21, 3, 3, 0, 2, 2]);
}

#[test]
fn a_client_that_aborts_is_recognised() {
    let server = server_config(ecdsa(), &[]);
    let (error, _) = fail(server.clone(), &[21, 3, 1, 0, 2, 2, 40]);
    assert_eq!((error.fault(), error.reason()), (Fault::Peer, "alert_received"));
    // A client that does not trust the certificate.
    let mut client = client_of(client_config(rsa(), &[suites()[0]]));
    let mut handshake = Handshake::new(server).unwrap();
    let mut out = Vec::new();
    handshake.advance(&client_output(&mut client), &mut out).unwrap();
    client.read_tls(&mut &out[..]).unwrap();
    assert!(client.process_new_packets().is_err());
    let error = handshake.advance(&client_output(&mut client), &mut out).unwrap_err();
    assert_eq!((error.fault(), error.reason()), (Fault::Peer, "alert_received"), "{error}");
}

#[test]
fn a_configuration_without_extraction_is_refused() {
    let identity = ecdsa();
    let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(
        rustls::crypto::aws_lc_rs::default_provider(),
    ))
    .with_safe_default_protocol_versions()
    .unwrap()
    .with_no_client_auth()
    .with_single_cert(identity.chain(), identity.private_key())
    .unwrap();
    let error = Handshake::new(Arc::new(config.clone())).unwrap_err();
    assert_eq!(error.fault(), Fault::Config);
    // Extraction alone is not enough for TLS 1.3: its traffic secrets are not captured.
    config.enable_secret_extraction = true;
    let mut client = client_of(client_config(identity, &[suites()[0]]));
    let error = handshake(Arc::new(config), &mut client, usize::MAX, b"").unwrap_err();
    assert_eq!(error.fault(), Fault::Config, "{error}");
}

#[test]
fn identities_are_checked() {
    use unlade_tls::ConfigError;
    let pem = rcgen::generate_simple_self_signed(vec![NAME.into()]).unwrap();
    let (certificate, key) = (pem.cert.pem(), pem.signing_key.serialize_pem());
    let (chain, private) =
        unlade_tls::config::identity_from_pem(certificate.as_bytes(), key.as_bytes()).unwrap();
    assert!(unlade_tls::server_config(chain.clone(), private, &[]).is_ok());
    let parse = unlade_tls::config::identity_from_pem;
    assert!(matches!(parse(b"", key.as_bytes()), Err(ConfigError::Chain(0))));
    assert!(matches!(
        parse(certificate.as_bytes(), certificate.as_bytes()),
        Err(ConfigError::Pem { .. })
    ));
    let many = certificate.repeat(17);
    assert!(matches!(parse(many.as_bytes(), key.as_bytes()), Err(ConfigError::Chain(17))));
    let foreign = unlade_tls::server_config(chain, ecdsa().private_key(), &[]);
    assert!(matches!(foreign, Err(ConfigError::Identity(_))));
}

#[test]
fn hostile_first_flights_never_panic() {
    use proptest::prelude::*;
    let server = server_config(ecdsa(), &[]);
    let hello = client_output(&mut client_of(client_config(ecdsa(), &suites())));
    let cases =
        ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(cases, |(at in 0..hello.len(), by in 1u8.., step in 1usize..600)| {
        let mut changed = hello.clone();
        changed[at] ^= by;
        let mut handshake = Handshake::new(server.clone()).unwrap();
        let mut out = Vec::new();
        for part in changed.chunks(step) {
            if handshake.advance(part, &mut out).is_err() {
                break;
            }
        }
    });
    proptest!(|(mut bytes in proptest::collection::vec(any::<u8>(), 1..600), header in any::<bool>())| {
        if header {
            let length = (bytes.len() as u16).to_be_bytes();
            bytes.splice(0..0, [22, 3, 1, length[0], length[1]]);
        }
        let mut handshake = Handshake::new(server.clone()).unwrap();
        let _ = handshake.advance(&bytes, &mut Vec::new());
    });
}

/// Changes that an attacker on the path can make to the client's last flight.
#[test]
fn a_changed_last_flight_is_refused() {
    for suite in suites() {
        let identity = identity_for(suite);
        let server = server_config(identity, &[]);
        let start = || {
            let mut client = client_of(client_config(identity, &[suite]));
            let mut handshake = Handshake::new(server.clone()).unwrap();
            let mut out = Vec::new();
            handshake.advance(&client_output(&mut client), &mut out).unwrap();
            client_input(&mut client, &out);
            (client_output(&mut client), handshake)
        };
        let length = start().0.len();
        for at in (0..length).step_by(3) {
            let (mut flight, mut handshake) = start();
            if at >= flight.len() {
                continue;
            }
            // ChangeCipherSpec of TLS 1.3 is for middleboxes and has no effect.
            let meaningless = suite.tls13().is_some() && at < 6;
            flight[at] ^= 0x15;
            let ended = handshake.advance(&flight, &mut Vec::new());
            let complete = matches!(ended, Ok(Progress::Complete(_)));
            assert!(!complete || meaningless, "{suite:?} byte {at}");
        }
    }
}
