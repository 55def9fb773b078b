//! `unlade-lab floor`: the least that moving a connection can cost. The same system calls on the
//! socket and one message each way over an ordinary TCP connection, by blocking programs that do
//! nothing else: no TLS, no steering, no state machine, no event loop.
//!
//! `run` stands where the balancer stands. It accepts a client's connection, reads a request,
//! and takes the time from freezing the socket to `serve`'s answer that it has rebuilt it.
//! Packets are not steered, so the client's connection is lost afterwards; [`ask`] is a client
//! that expects as much.
//!
//! Where the scheduler puts the two programs on one processor, they wake each other several times
//! faster than two hosts could; `--processor` keeps each on its own.

use super::cpu;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use unlade_command::output::line;
use unlade_handoff_protocol::snapshot::{SNAPSHOT_BYTES_MAX, Snapshot};
use unlade_net::FlowKey;
use unlade_net::state::SocketOptions;
use unlade_sys::repair::{self, Accept, Known};

/// The client's message; about as long as the load's requests.
const REQUEST: &[u8] = b"GET /4KiB HTTP/1.1\r\nHost: objects.lab\r\nAccept: */*\r\n\r\n";
/// How long a peer may be silent.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The least that moving a connection can cost
#[derive(Debug, Args)]
pub struct FloorArgs {
    #[command(subcommand)]
    command: FloorCommand,
}

#[derive(Debug, Subcommand)]
enum FloorCommand {
    /// Rebuild connections that a peer describes, until it goes
    Serve {
        /// Where the peer connects to
        #[arg(long)]
        listen: SocketAddr,
        /// Stay on this processor
        #[arg(long)]
        processor: Option<usize>,
    },
    /// Accept connections and describe them to a peer; prints the times in nanoseconds
    Run {
        /// Where clients connect to
        #[arg(long)]
        listen: SocketAddr,
        /// Where `floor serve` listens
        #[arg(long)]
        peer: SocketAddr,
        /// Connections to move
        #[arg(long)]
        migrations: u32,
        /// Stay on this processor
        #[arg(long)]
        processor: Option<usize>,
    },
}

/// Runs `unlade-lab floor …`. Both commands print an empty line when they listen.
///
/// # Errors
/// A peer goes away, or the kernel refuses to freeze or rebuild.
pub fn run(args: &FloorArgs) -> Result<ExitCode> {
    match args.command {
        FloorCommand::Serve { listen, processor } => {
            stay_on(processor)?;
            serve(&bind(listen)?)?;
        }
        FloorCommand::Run { listen, peer, migrations, processor } => {
            stay_on(processor)?;
            let peer = TcpStream::connect(peer).with_context(|| format!("connecting to {peer}"))?;
            let times_ns = measure(&bind(listen)?, peer, migrations)?;
            line(serde_json::to_string(&times_ns)?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn stay_on(processor: Option<usize>) -> Result<()> {
    processor.map_or(Ok(()), cpu::stay_on)
}

fn bind(address: SocketAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind(address).with_context(|| format!("listening on {address}"))?;
    line("")?;
    Ok(listener)
}

fn serve(listener: &TcpListener) -> Result<()> {
    let (mut peer, _) = listener.accept().context("accepting the peer")?;
    peer.set_nodelay(true)?;
    let mut encoded = Vec::new();
    let mut length = [0; 4];
    while peer.read_exact(&mut length).is_ok() {
        let bytes = u32::from_be_bytes(length) as usize;
        if bytes > SNAPSHOT_BYTES_MAX {
            bail!("the peer describes a connection in {bytes} bytes");
        }
        encoded.resize(bytes, 0);
        peer.read_exact(&mut encoded).context("reading a snapshot")?;
        let snapshot = Snapshot::decode(&encoded).context("decoding a snapshot")?;
        let socket = repair::restore(&snapshot.tcp, || ())?.activate()?;
        peer.write_all(&[1]).context("answering")?;
        // Closed without a message: no packet reaches the client.
        repair::freeze(&socket)?;
    }
    Ok(())
}

fn measure(listener: &TcpListener, mut peer: TcpStream, migrations: u32) -> Result<Vec<u64>> {
    peer.set_nodelay(true)?;
    peer.set_read_timeout(Some(TIMEOUT))?;
    let (mut told, _) = listener.accept().context("accepting the client")?;
    told.set_nodelay(true)?;
    let mut times_ns = Vec::with_capacity(migrations as usize);
    let mut request = [0; 1024];
    for _ in 0..migrations {
        let (mut client, _) = listener.accept().context("accepting a connection")?;
        client.set_nodelay(true)?;
        client.set_read_timeout(Some(TIMEOUT))?;
        let bytes = client.read(&mut request).context("reading a request")?;
        let flow = FlowKey::new(client.peer_addr()?, client.local_addr()?);
        let time = hand_over(client, flow, request.get(..bytes).unwrap_or_default(), &mut peer)?;
        times_ns.push(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        told.write_all(&[1]).context("telling the client")?;
    }
    Ok(times_ns)
}

fn hand_over(
    client: TcpStream,
    flow: FlowKey,
    request: &[u8],
    peer: &mut TcpStream,
) -> Result<Duration> {
    let known = Known {
        flow,
        socket: SocketOptions { nodelay: true, ..SocketOptions::default() },
        mss_bytes: None,
        algorithm: String::new(),
    };
    let begin = Instant::now();
    repair::freeze(&client)?;
    let tcp = repair::snapshot(&client, &known, Accept::Established)?;
    let mut message = vec![0; 4];
    Snapshot { tcp, tls: None, plaintext: request.to_vec() }.encode(&mut message);
    let length = u32::try_from(message.len() - 4)?.to_be_bytes();
    message.get_mut(..4).context("a message has a length")?.copy_from_slice(&length);
    peer.write_all(&message).context("sending a snapshot")?;
    let mut answer = [0];
    peer.read_exact(&mut answer).context("waiting for the answer")?;
    Ok(begin.elapsed())
}

/// The client of `unlade-lab floor run` at `address`: one connection after the other, `migrations`
/// times, each let go when the program says that it has moved.
///
/// # Errors
/// The program does not accept, or goes away.
pub fn ask(address: SocketAddr, migrations: u32) -> Result<()> {
    let connect = || TcpStream::connect_timeout(&address, TIMEOUT).context("asking the floor");
    let mut told = connect()?;
    told.set_read_timeout(Some(TIMEOUT))?;
    let mut moved = [0];
    for _ in 0..migrations {
        let mut stream = connect()?;
        stream.set_nodelay(true)?;
        stream.write_all(REQUEST)?;
        told.read_exact(&mut moved).context("the floor program ended early")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn a_processor_that_is_not_there_is_refused() {
        assert!(stay_on(None).is_ok());
        assert!(stay_on(Some(1 << 20)).is_err());
    }

    /// Over the loopback: the frozen socket still holds the flow's four numbers there, so that
    /// rebuilding it is refused; everything up to it is the real thing.
    #[test]
    fn a_connection_is_described_to_the_peer() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (agent, front) = (TcpListener::bind(any).unwrap(), TcpListener::bind(any).unwrap());
        let (agent_at, front_at) = (agent.local_addr().unwrap(), front.local_addr().unwrap());
        std::thread::scope(|scope| {
            let server = scope.spawn(move || {
                let (mut peer, _) = agent.accept().unwrap();
                let mut length = [0; 4];
                if peer.read_exact(&mut length).is_err() {
                    return None;
                }
                let mut encoded = vec![0; u32::from_be_bytes(length) as usize];
                peer.read_exact(&mut encoded).unwrap();
                peer.write_all(&[1]).unwrap();
                Some(Snapshot::decode(&encoded).unwrap())
            });
            let balancer = scope.spawn(move || {
                let peer = TcpStream::connect(agent_at).unwrap();
                measure(&front, peer, 1)
            });
            let asked = ask(front_at, 1);
            match balancer.join().unwrap() {
                Ok(times_ns) => {
                    asked.unwrap();
                    assert!(times_ns[0] > 0);
                    let snapshot = server.join().unwrap().unwrap();
                    assert_eq!(snapshot.plaintext, REQUEST);
                    assert_eq!(snapshot.tcp.flow.service, front_at);
                }
                // Without CAP_NET_ADMIN.
                Err(error) => println!("skipped: {error:#}"),
            }
        });
    }
}
