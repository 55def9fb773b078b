//! A server that adopts connections and answers each request with the client's address and the
//! path.
//! `cargo run -p unlade-backend --example adopt -- ADDRESS:PORT CA CERTIFICATE KEY`, on a host that
//! is set up as in docs/adoption.md.

use std::error::Error;
use std::io;

use tokio::io::AsyncWriteExt;
use tokio::task::{LocalSet, spawn_local};
use unlade_backend::{HandoffConfig, HandoffListener, HandoffStream, TrustFiles};

async fn answer(mut stream: HandoffStream) -> io::Result<()> {
    while let Some(head) = stream.next_request().await? {
        let body = format!("{} asked for {}\n", stream.peer_addr(), head.path(stream.input()));
        stream.consume(head.head_bytes());
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all((head + &body).as_bytes()).await?;
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, ca, certificate, key] = arguments.as_slice() else {
        return Err("usage: adopt ADDRESS:PORT CA CERTIFICATE KEY".into());
    };
    let (ca, certificate, key) = (ca.into(), certificate.into(), key.into());
    let config = HandoffConfig::new(address.parse()?, TrustFiles { ca, certificate, key });
    let serve = async {
        let mut listener = HandoffListener::bind(&config)?;
        loop {
            spawn_local(answer(listener.accept().await));
        }
    };
    LocalSet::new().run_until(serve).await
}
