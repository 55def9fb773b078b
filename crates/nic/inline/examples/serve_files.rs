//! Serves the files of a directory over HTTPS. The kernel's TCP takes their bytes from the page
//! cache, and the engine seals them on output: no file byte passes through this process.
//!
//! ```sh
//! ip netns add peer
//! serve_files DIRECTORY CERTIFICATE.pem KEY.pem &          # 10.9.0.1:443, through TAP unl0
//! ip -n peer addr add 10.9.0.2/24 dev unlw
//! ip netns exec peer curl --cacert CERTIFICATE.pem --resolve NAME:443:10.9.0.1 https://NAME/FILE
//! ```

use std::error::Error;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use unlade_nic_inline::device::{Device, thread};
use unlade_nic_inline::tls_proxy::config::Config;
use unlade_nic_inline::tls_proxy::stream::{Opened, TlsWriter, open};
use unlade_nic_inline::tls_proxy::{devices, handshake};

/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// How long the last bytes may take to arrive.
const ACK_TIMEOUT: Duration = Duration::from_secs(30);

/// Options of the server.
pub struct Options {
    /// Devices, addresses, the wire.
    pub config: Config,
    /// The address of the TAP device.
    pub listen: SocketAddr,
    /// The directory of the files to serve.
    pub directory: PathBuf,
    /// Certificate chain and key, PEM.
    pub identity: (PathBuf, PathBuf),
}

/// Serves until `over` is notified. Each connection serves one file.
pub fn serve(options: &Options, device: &Device, over: &Notify) -> Result<(), Box<dyn Error>> {
    let (certificate, key) = &options.identity;
    let (certificate, key) = (std::fs::read(certificate)?, std::fs::read(key)?);
    let (chain, key) = unlade_tls::config::identity_from_pem(&certificate, &key)?;
    let tls = unlade_tls::server_config(chain, key, &[b"http/1.1"])?;
    let wire = options.config.wire()?.ok_or("a wire is needed")?;
    let setup = devices::make(&options.config, &wire)?;
    devices::address(&options.config)?;
    let engine = thread::start(device.clone(), setup)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let listener = TcpListener::from_std(listen(options)?.into())?;
        loop {
            let (tcp, _) = tokio::select! {
                accepted = listener.accept() => accepted?,
                () = over.notified() => return Ok::<(), io::Error>(()),
            };
            let (tls, device, directory) = (tls.clone(), device.clone(), options.directory.clone());
            tokio::task::spawn_local(async move {
                if let Err(error) = answer(tcp, tls, &device, &directory).await {
                    eprintln!("a connection has failed: {error}");
                }
            });
        }
    })?;
    drop(local);
    drop(engine);
    Ok(())
}

/// A socket that is bound to the TAP device, so that its connections use no other route.
fn listen(options: &Options) -> io::Result<Socket> {
    let domain = Domain::for_address(options.listen);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.bind_device(Some(options.config.tap.as_bytes()))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&options.listen.into())?;
    socket.listen(128)?;
    Ok(socket)
}

async fn answer(
    tcp: TcpStream,
    tls: Arc<ServerConfig>,
    device: &Device,
    directory: &Path,
) -> Result<(), Box<dyn Error>> {
    tcp.set_nodelay(true)?;
    let established = handshake::accept(tcp, tls).await?;
    let Opened { mut reader, mut writer, plaintext: mut head, .. } =
        open(established, Some(device)).await?;
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        if head.len() > HEAD_BYTES_MAX || reader.read(&mut head).await? == 0 {
            return Err("no request".into());
        }
    }
    match open_file(directory, &head) {
        Some((file, bytes)) => send(&mut writer, &file, bytes).await?,
        None => writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").await?,
    }
    writer.close().await?;
    tokio::time::timeout(ACK_TIMEOUT, writer.wait_acknowledged()).await??;
    Ok(())
}

/// The file that a request names; it must be directly in the directory.
fn open_file(directory: &Path, head: &[u8]) -> Option<(Arc<File>, u64)> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let name = std::str::from_utf8(line).ok()?.strip_prefix("GET /")?.split(' ').next()?;
    if name.is_empty() || name.starts_with('.') || name.contains('/') {
        return None;
    }
    let file = File::open(directory.join(name)).ok()?;
    let bytes = file.metadata().ok().filter(std::fs::Metadata::is_file)?.len();
    Some((Arc::new(file), bytes))
}

async fn send(writer: &mut TlsWriter, file: &Arc<File>, bytes: u64) -> Result<(), Box<dyn Error>> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n");
    writer.write(head.as_bytes()).await?;
    if writer.send_file(file, 0, bytes).await? < bytes {
        return Err("the file became shorter".into());
    }
    Ok(())
}

#[allow(dead_code)] // A test runs the server in its own process.
fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, certificate, key] = &arguments[..] else {
        return Err("usage: serve_files DIRECTORY CERTIFICATE.pem KEY.pem".into());
    };
    let config = Config {
        addresses: vec!["10.9.0.1/24".to_owned()],
        wire: "tap:unlw@peer".to_owned(),
        ..Config::default()
    };
    let options = Options {
        config,
        listen: ([10, 9, 0, 1], 443).into(),
        directory: directory.into(),
        identity: (certificate.into(), key.into()),
    };
    serve(&options, &Device::new()?, &Notify::new())
}
