//! Begin and end of connections of `unlade nic run`, and changes of its configuration meanwhile.

use std::net::Shutdown;

use rustls::ClientConnection;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::*;

/// Number of successive connections.
const CONNECTIONS: u64 = 400;

/// Returns a TLS 1.3 client that trusts this certificate.
fn client(pem: &[u8]) -> ClientConnection {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    ClientConnection::new(Arc::new(config), NAME.try_into().unwrap()).unwrap()
}

fn connect(at: &str) -> TcpStream {
    let tcp = TcpStream::connect(at).unwrap();
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    tcp.set_nodelay(true).unwrap();
    tcp
}

/// Performs the handshake without sending Finished.
fn shake(connection: &mut ClientConnection, tcp: &mut TcpStream) -> std::io::Result<()> {
    connection.write_tls(tcp)?;
    while connection.is_handshaking() {
        if connection.read_tls(tcp)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        connection.process_new_packets().map_err(std::io::Error::other)?;
    }
    Ok(())
}

/// Returns all pending output of the client.
fn output(connection: &mut ClientConnection) -> Vec<u8> {
    let mut out = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut out).unwrap();
    }
    out
}

/// Sends Finished, data and close_notify in one write without FIN, and returns the echo.
fn ends_at_once(pem: &[u8], at: &str, data: &[u8]) -> std::io::Result<Vec<u8>> {
    let (mut connection, mut tcp) = (client(pem), connect(at));
    shake(&mut connection, &mut tcp)?;
    connection.writer().write_all(data)?;
    connection.send_close_notify();
    tcp.write_all(&output(&mut connection))?;
    let mut stream = rustls::StreamOwned::new(connection, tcp);
    let mut back = Vec::new();
    stream.read_to_end(&mut back)?;
    stream.sock.shutdown(Shutdown::Write)?;
    Ok(back)
}

fn an_end_with_the_finished(more: &[&str]) {
    let mut net = Net::new();
    let _server = net.echo();
    net.terminate(more);
    let (pem, at) = (std::fs::read(net.path("a.crt")).unwrap(), net.at(Side::Host, 443));
    let client = net.inside(Side::Peer, move || {
        (0..5).map(|_| ends_at_once(&pem, &at, b"all there is")).collect::<Vec<_>>()
    });
    for back in client.join().unwrap() {
        assert_eq!(back.expect("the answer comes"), b"all there is");
    }
    net.until("the orderly ends", || net.metric("connections_finished") == 5);
    assert_eq!(net.metric("connections_failed"), 0);
}

#[test]
fn an_end_that_comes_with_the_finished_is_seen_with_a_device() {
    needs!("ip");
    an_end_with_the_finished(&[]);
}

#[test]
fn an_end_that_comes_with_the_finished_is_seen_in_software() {
    needs!("ip");
    an_end_with_the_finished(&["--software"]);
}

#[test]
fn connections_that_have_ended_give_their_places_back() {
    needs!("ip");
    let mut net = Net::new();
    let _server = net.echo();
    net.terminate(&[]);
    let (pem, at) = (std::fs::read(net.path("a.crt")).unwrap(), net.at(Side::Host, 443));
    let (idle_pem, idle_at) = (pem.clone(), at.clone());
    let idle = net.inside(Side::Peer, move || {
        let mut stream = rustls::StreamOwned::new(client(&idle_pem), connect(&idle_at));
        let mut back = [0; 5];
        stream.write_all(b"first").unwrap();
        stream.read_exact(&mut back).unwrap();
        stream
    });
    let mut idle = idle.join().unwrap();
    let churn = net.inside(Side::Peer, move || {
        for number in 0..CONNECTIONS {
            let mut stream = rustls::StreamOwned::new(client(&pem), connect(&at));
            let mut back = [0; 8];
            stream.write_all(&number.to_be_bytes()).unwrap();
            stream.read_exact(&mut back).unwrap();
            assert_eq!(back, number.to_be_bytes());
            match number % 3 {
                // Both ends finish.
                0 => {
                    stream.conn.send_close_notify();
                    stream.flush().unwrap();
                    assert_eq!(stream.read(&mut back).unwrap(), 0);
                }
                // The client sends a FIN without close_notify.
                1 => (),
                // The client resets the connection.
                _ => {
                    let socket = socket2::SockRef::from(&stream.sock);
                    socket.set_linger(Some(Duration::ZERO)).unwrap();
                }
            }
        }
    });
    churn.join().unwrap();
    net.until("the last end", || {
        net.metric("connections_finished") + net.metric("connections_failed") == CONNECTIONS
    });
    assert_eq!(net.metric("connections_offloaded"), CONNECTIONS + 1);
    net.until("the places", || net.gauge("flows_offloaded") == 1 && net.gauge("flows_known") == 1);
    // No connection has data to send, so their identifiers are soon forgotten.
    net.until("the names", || net.gauge("flows_ended") == 0);
    // The idle connection still works.
    idle.write_all(b"again").unwrap();
    let mut back = [0; 5];
    idle.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"again");
    assert_eq!(net.metric("unknown_connections"), 0);
}

/// Replaces certificate and key by new ones.
fn renew(net: &Net) -> Vec<u8> {
    let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()]).unwrap();
    std::fs::write(net.path("a.crt"), made.cert.pem()).unwrap();
    std::fs::write(net.path("a.key"), made.signing_key.serialize_pem()).unwrap();
    made.cert.pem().into_bytes()
}

fn hang_up(net: &Net) {
    let pid = net.program.as_ref().unwrap().0.id().to_string();
    run("kill", &["-HUP", &pid]);
}

#[test]
fn a_hangup_takes_up_new_certificates_and_an_invalid_configuration_changes_nothing() {
    needs!("ip");
    let mut net = Net::new();
    let _server = net.echo();
    net.terminate(&[]);
    let (old, at) = (std::fs::read(net.path("a.crt")).unwrap(), net.at(Side::Host, 443));
    let is_trusted = |net: &Net, pem: &[u8]| {
        let (pem, at) = (pem.to_vec(), at.clone());
        let shaken = net.inside(Side::Peer, move || shake(&mut client(&pem), &mut connect(&at)));
        shaken.join().unwrap().is_ok()
    };
    let (pem, there) = (old.clone(), at.clone());
    let living = net.inside(Side::Peer, move || {
        let mut stream = rustls::StreamOwned::new(client(&pem), connect(&there));
        stream.write_all(b"before").unwrap();
        let mut back = [0; 6];
        stream.read_exact(&mut back).unwrap();
        stream
    });
    let mut living = living.join().unwrap();
    let new = renew(&net);
    assert!(is_trusted(&net, &old) && !is_trusted(&net, &new), "no signal was sent yet");
    hang_up(&net);
    net.until("the reload", || net.log().contains("configuration reloaded"));
    assert!(is_trusted(&net, &new) && !is_trusted(&net, &old));
    assert!(net.log().contains("[[terminate]] 10.9.0.1:443: the certificates in the file"));
    // An earlier connection continues.
    living.write_all(b"behind").unwrap();
    let mut back = [0; 6];
    living.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"behind");
    // A key that does not match the certificate.
    let key = std::fs::read(net.path("a.key")).unwrap();
    renew(&net);
    std::fs::write(net.path("a.key"), key).unwrap();
    hang_up(&net);
    net.until("the refusal", || net.log().contains("the old configuration stays"));
    assert!(is_trusted(&net, &new));
}

#[test]
fn why_there_is_no_connection_is_logged_and_counted() {
    needs!("ip");
    let mut net = Net::new();
    net.terminate(&[]);
    let (pem, at) = (std::fs::read(net.path("a.crt")).unwrap(), net.at(Side::Host, 443));
    let (plain_at, there) = (at.clone(), at);
    let plain = net.inside(Side::Peer, move || {
        let mut tcp = connect(&plain_at);
        tcp.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let address = tcp.local_addr().unwrap();
        // Any end is valid.
        let _ = tcp.read_to_end(&mut Vec::new());
        address
    });
    let address = plain.join().unwrap();
    net.until("a failed handshake", || net.metric("handshakes_failed") == 1);
    let log = net.log();
    let line = log.lines().find(|line| line.contains("no TLS")).expect("a line");
    assert!(line.contains("WARN") && line.contains(&address.to_string()), "{line}");
    assert!(line.contains("plain_http"), "{line}");
    // There is no server.
    let client = net.inside(Side::Peer, move || {
        let (mut connection, mut tcp) = (client(&pem), connect(&there));
        shake(&mut connection, &mut tcp).unwrap();
        tcp.write_all(&output(&mut connection)).unwrap();
        let _ = tcp.read_to_end(&mut Vec::new());
    });
    client.join().unwrap();
    net.until("a refusal", || net.metric("connects_failed") == 1);
    assert_eq!(net.metric("handshakes_failed"), 1);
    let log = net.log();
    let expected = "the backend 127.0.0.1:8080 cannot be reached: Connection refused";
    let line = log.lines().find(|line| line.contains(expected)).expect("a line");
    assert!(line.contains("WARN"), "{line}");
}

#[test]
fn a_fresh_interface_as_the_wire_works_after_the_command_that_is_said() {
    needs!("ip", "sysctl", "sh");
    let mut net = Net::new();
    net.wire = WireKind::Interface;
    net.make_fresh_pair();
    let mut refused = net.command(Side::Host, &unlade().display().to_string());
    refused.args(["nic", "run", "--address", "10.9.0.1/24", "--wire", "packet:wire"]);
    refused.args(["--listen", "10.9.0.1:443", "--backend", "127.0.0.1:8080"]);
    refused.args(["--certificate", &net.text("a.crt"), "--key", &net.text("a.key")]);
    let mut refused = Program(refused.stderr(Stdio::piped()).spawn().unwrap());
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        match refused.0.try_wait().unwrap() {
            Some(status) => break status,
            None => assert!(Instant::now() < deadline, "it runs, but cannot be reached"),
        }
        thread::sleep(Duration::from_millis(20));
    };
    let mut said = String::new();
    refused.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    let command = said.split('`').nth(1).expect("a command");
    assert_eq!(command, "sysctl -w net.ipv4.conf.wire.arp_ignore=1");
    let done = net.command(Side::Host, "sh").args(["-c", command]).output().unwrap();
    assert!(done.status.success());
    // Offloads are on: the link carries large frames with partial checksums.
    let _server = net.echo();
    net.terminate(&[]);
    assert!(rustls_echoes(&net, 2) == body(2));
    assert_offloaded(&net);
}
