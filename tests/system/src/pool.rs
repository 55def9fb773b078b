//! A member of a lab's pool that speaks the control protocol by hand.

use std::net::SocketAddr;

use unlade_channel::channel::{Channel, ChannelError};
use unlade_channel::trust::{TrustFiles, client_config, server_name};
use unlade_handoff_protocol::frame::{Frame, PROTOCOL_VERSION};

use crate::Lab;

/// Returns the files of a member's identity: `s1`, `lb`, or a name that the test has issued.
pub fn trust(lab: &Lab, member: &str) -> TrustFiles {
    let pki = lab.dir().join("pki");
    let file = |end: &str| pki.join(format!("{member}.{end}"));
    TrustFiles { ca: pki.join("pool-ca.crt"), certificate: file("crt"), key: file("key") }
}

/// Returns the address of a server's agent.
///
/// # Panics
/// The server's configuration names none.
pub fn agent(lab: &Lab, server: &str) -> SocketAddr {
    let file = lab.dir().join(format!("config/{server}.toml"));
    let config = std::fs::read_to_string(file).expect("the server has a configuration");
    let mut lines = config.lines().skip_while(|line| *line != "[agent]");
    let address = lines.nth(1).and_then(|line| line.split('"').nth(1));
    address.and_then(|address| address.parse().ok()).expect("an agent has an address")
}

/// Runs `talk` in a node's network, on a thread of its own.
///
/// # Panics
/// As `talk`.
pub fn run_at<T: Send>(lab: &Lab, node: &str, talk: impl AsyncFnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            lab.enter(node);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            tokio::task::LocalSet::new().block_on(&runtime.expect("a runtime starts"), talk())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Connects to an agent as `member`, and exchanges HELLO for `instance`.
///
/// # Errors
/// The agent refuses the member, or ends the channel.
///
/// # Panics
/// The member has no certificate, or the agent does not answer with HELLO.
pub async fn hello(
    lab: &Lab,
    to: SocketAddr,
    member: &str,
    instance: u64,
) -> Result<Channel, ChannelError> {
    let config = client_config(&trust(lab, member)).expect("the member has a certificate");
    let mut channel = Channel::connect(to, server_name(to.ip()), config).await?;
    let (version, name) = (PROTOCOL_VERSION, "by hand".to_owned());
    let hello = Frame::Hello { version, instance, name, mac: [2; 6], lease_ms: 10_000 };
    channel.send(&hello).await?;
    let answer = channel.receive().await?;
    assert!(matches!(answer, Frame::Hello { .. }), "{answer:?}");
    Ok(channel)
}
