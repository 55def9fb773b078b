//! moto's server, which plays SQS, SNS, EventBridge and DynamoDB, and clients with boto3.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::functions::{Gateway, ask_plainly, keys_of, until};

/// A server of moto, and the interpreter that has its package and boto3.
#[derive(Debug)]
pub struct Moto {
    process: Child,
    /// The address.
    pub address: SocketAddr,
    python: PathBuf,
}

impl Moto {
    /// Starts a server; `None`, and a message, where its package cannot be had.
    ///
    /// # Panics
    /// The server does not start.
    pub fn start() -> Option<Moto> {
        let prepare = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest/python/test");
        let output = Command::new(prepare).arg("--venv").output().expect("a shell");
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if !output.status.success() || text.starts_with("skipped") {
            println!("{text}");
            return None;
        }
        let python = Path::new(&text).join("bin/python");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        drop(listener);
        let mut command = Command::new(&python);
        command.args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &address.port().to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().expect("python runs");
        let moto = Moto { process, address, python };
        until("moto answers", || ask_plainly(address, "GET", "/moto-api/data.json", &[], b"").ok());
        Some(moto)
    }

    /// Lines of `fn.toml`: the services that are at this server, and a role `sender` that may do what
    /// is needed for `actions`.
    pub fn config(&self, actions: &str) -> String {
        let mut text = format!(
            "[[tenant.default.roles.sender.statements]]\neffect = \"allow\"\nactions = \
             [{actions}]\nresources = [\"*\"]\n[services]\ncredentials = {{ from = \"keys\", \
             access_key_id = \"k\", secret_access_key = \"s\" }}\n"
        );
        for service in ["sqs", "sns", "events", "dynamodb"] {
            let url = format!("[services.endpoint.{service}]\nurl = \"http://{}\"\n", self.address);
            text.push_str(&url);
        }
        text
    }

    /// Runs a case of `clients/python/lambda_events.py`, with arguments; returns its output.
    ///
    /// # Panics
    /// The case fails.
    pub fn run(&self, gateway: &Gateway, case: &[&str]) -> String {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python/lambda_events.py");
        let keys = keys_of(gateway.address, "default").expect("keys");
        let mut command = Command::new(&self.python);
        command.arg(script).args(case);
        command.env("AWS_ENDPOINT_URL", format!("http://{}", self.address));
        command.env("AWS_ENDPOINT_URL_LAMBDA", format!("http://{}", gateway.address));
        command.env("AWS_ACCESS_KEY_ID", keys.access_key_id);
        command.env("AWS_SECRET_ACCESS_KEY", keys.secret_access_key);
        command.env("AWS_DEFAULT_REGION", "us-east-1").env("AWS_CONFIG_FILE", "/dev/null");
        let output = command.env("AWS_EC2_METADATA_DISABLED", "true").output().expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{case:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
