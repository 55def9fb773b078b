//! Serves a directory over HTTP: `objects DIRECTORY [ADDRESS [WORKERS]]`.
//!
//! ```sh
//! cargo run --release -p unlade-backend --example objects -- /srv/objects 127.0.0.1:8080
//! curl -T photo.jpg http://127.0.0.1:8080/albums/1/photo.jpg
//! curl -r 0-1023 http://127.0.0.1:8080/albums/1/photo.jpg -o first-KiB
//! ```

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use unlade_backend::BackendConfig;

fn main() -> ExitCode {
    match serve(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("objects: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(mut arguments: impl Iterator<Item = String>) -> Result<(), Box<dyn std::error::Error>> {
    let root = arguments.next().ok_or("usage: objects DIRECTORY [ADDRESS [WORKERS]]")?;
    let address: SocketAddr = arguments.next().as_deref().unwrap_or("127.0.0.1:8080").parse()?;
    let mut config = BackendConfig::new(address, PathBuf::from(root));
    if let Some(workers) = arguments.next() {
        config.workers = workers.parse()?;
    }
    unlade_runtime::logs::init(&config.log)?;
    Ok(unlade_backend::run(config)?)
}
