//! `unlade fn serve` with MinIO as its store, over TLS with a private CA.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::json;
use system_tests::functions::{Answer, Gateway, ask, invoke, signal, skip_reason, until};
use system_tests::servers::minio;

const KEY: &str = "testing";
const SECRET: &str = "testing-secret";
/// Reads an object and writes it in upper case a given number of times.
const UPPER: &str = r#"
import boto3
s3 = boto3.client("s3")

def handler(event, context):
    body = b""
    if "key" in event:
        body = s3.get_object(Bucket="box", Key=event["key"])["Body"].read()
    for name in event.get("out", []):
        s3.put_object(Bucket="box", Key=name, Body=body.upper())
        seen = s3.get_object(Bucket="box", Key=name)["Body"].read()
        assert seen == body.upper(), "it reads its own writes"
    listed = s3.list_objects_v2(Bucket="box", Prefix="out/").get("Contents", [])
    return {"bytes": len(body), "listed": [found["Key"] for found in listed]}
"#;

struct Minio {
    process: Child,
    address: SocketAddr,
    directory: tempfile::TempDir,
}

impl Minio {
    fn start(program: &Path) -> Minio {
        let directory = tempfile::tempdir().unwrap();
        let certificates = directory.path().join("certs");
        certify(&certificates);
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut command = Command::new(program);
        command.args(["server", "--quiet", "--address", &address.to_string(), "--certs-dir"]);
        command.arg(certificates).arg(directory.path().join("objects"));
        command.env("MINIO_ROOT_USER", KEY).env("MINIO_ROOT_PASSWORD", SECRET);
        command.env("MINIO_BROWSER", "off").stdout(Stdio::null()).stderr(Stdio::null());
        let minio = Minio { process: command.spawn().unwrap(), address, directory };
        until("minio answers", || minio.curl(&["-X", "PUT"], "box"));
        minio
    }

    fn authority(&self) -> PathBuf {
        self.directory.path().join("certs/authority.pem")
    }

    /// Requests a path with curl, an independent client; None if that fails.
    fn curl(&self, arguments: &[&str], path: &str) -> Option<Vec<u8>> {
        let mut command = Command::new("curl");
        command.args(["-s", "-f", "--max-time", "20", "--aws-sigv4", "aws:amz:us-east-1:s3"]);
        command.args(["--user", &format!("{KEY}:{SECRET}"), "--cacert"]).arg(self.authority());
        command.args(arguments).arg(format!("https://{}/{path}", self.address));
        let output = command.output().unwrap();
        output.status.success().then_some(output.stdout)
    }

    /// Returns additional lines of fn.toml.
    fn config(&self) -> String {
        format!(
            "[store]\nendpoint = \"https://{}\"\nca = \"{}\"\n\
             credentials = {{ from = \"keys\", access_key_id = \"{KEY}\", \
             secret_access_key = \"{SECRET}\" }}\n",
            self.address,
            self.authority().display()
        )
    }
}

impl Drop for Minio {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Creates a CA and a certificate for 127.0.0.1, with the file names that MinIO expects.
fn certify(directory: &Path) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, "unlade test authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap();
    std::fs::create_dir_all(directory).unwrap();
    std::fs::write(directory.join("authority.pem"), authority.pem()).unwrap();
    std::fs::write(directory.join("public.crt"), certificate.pem()).unwrap();
    std::fs::write(directory.join("private.key"), key.serialize_pem()).unwrap();
}

macro_rules! minio_or_skip {
    () => {
        match skip_reason().map_or_else(minio, Err) {
            Ok(program) => Minio::start(&program),
            Err(reason) => {
                println!("skipped: {}: {reason}", module_path!());
                return;
            }
        }
    };
}

/// Returns a metric of a worker.
fn figure(admin: SocketAddr, name: &str) -> u64 {
    let answer = ask(admin, "GET", "/metrics", &[], b"").unwrap();
    let text = String::from_utf8(answer.body).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    line.unwrap_or_default()
}

fn listed(answer: &Answer) -> usize {
    assert!(answer.is_success(), "{answer:?}");
    answer.json()["listed"].as_array().unwrap().len()
}

#[test]
fn a_function_reads_and_writes_a_minio_over_tls() {
    let minio = minio_or_skip!();
    let admin = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = format!("{}[tenant.default]\nadmin = \"{admin}\"\n", minio.config());
    let gateway = Gateway::start(&config);
    let large = minio.directory.path().join("large");
    std::fs::write(&large, "abc\n".repeat(500_000)).unwrap();
    minio.curl(&["-T", &large.display().to_string()], "box/large").unwrap();
    gateway.deploy("upper", "", UPPER);
    let hint = [("x-unlade-hint", "box/large")];
    let event = json!({"key": "large", "out": ["out/1", "out/2"]});
    let answer = gateway.try_invoke("upper", &event, &hint).unwrap();
    assert_eq!(listed(&answer), 2, "{answer:?}");
    assert_eq!(answer.json()["bytes"], 2_000_000);
    let due = "ABC\n".repeat(500_000).into_bytes();
    assert!(minio.curl(&[], "box/out/1").unwrap() == due);
    assert!(minio.curl(&[], "box/out/2").unwrap() == due);
    assert_eq!(figure(admin, "unlade_hostio_prefetches_total{end=\"used\"}"), 1);
    let missing = gateway.invoke("upper", &json!({"key": "nothing"}));
    assert_eq!(missing.error(), "NoSuchKey");
}

#[test]
fn a_reply_waits_for_minio_unless_it_may_be_early() {
    let minio = minio_or_skip!();
    let gateway = Gateway::start(&minio.config());
    gateway.deploy("durable", "", UPPER);
    gateway.deploy("early", "writes = \"early-reply\"\n", UPPER);
    // The worker measures the bucket's latency.
    for name in ["durable", "early"] {
        assert!(gateway.invoke(name, &json!({"out": [name]})).is_success());
    }
    // This function does not list, because lists must come from the store.
    let code = "import boto3\ns3 = boto3.client('s3')\ndef handler(event, context):\n    \
                s3.put_object(Bucket='box', Key=event['out'], Body=b'late')\n    return 1\n";
    gateway.deploy("durable", "", code);
    gateway.deploy("early", "writes = \"early-reply\"\n", code);
    signal(minio.process.id(), "STOP");
    let early = gateway.invoke("early", &json!({"out": "early-2"}));
    assert!(early.is_success(), "{early:?}");
    let address = gateway.address;
    let event = json!({"out": "durable-2"});
    let waiting = std::thread::spawn(move || invoke(address, "durable", &event, &[]).unwrap());
    let idle = || {
        let state = gateway.state();
        let instances = state["instances"].as_array()?;
        let of = |name: &str| instances.iter().find(|found| found["function"] == name).cloned();
        (of("durable")?["state"] == "idle").then_some(())
    };
    until("the instance is free before its write is durable", idle);
    assert!(!waiting.is_finished(), "the reply waits for the store");
    signal(minio.process.id(), "CONT");
    let durable = waiting.join().unwrap();
    assert!(durable.is_success(), "{durable:?}");
    assert_eq!(minio.curl(&[], "box/durable-2").as_deref(), Some(b"late".as_slice()));
    until("the early one is there, too", || minio.curl(&[], "box/early-2"));
}

#[test]
fn an_authority_that_is_not_known_is_refused() {
    let minio = minio_or_skip!();
    let other = tempfile::tempdir().unwrap();
    certify(other.path());
    let known = minio.authority().display().to_string();
    let wrong = other.path().join("authority.pem").display().to_string();
    let gateway = Gateway::start(&minio.config().replace(&known, &wrong));
    gateway.deploy("upper", "", UPPER);
    let answer = gateway.invoke("upper", &json!({"key": "nothing"}));
    assert_eq!(answer.error(), "EndpointConnectionError", "{answer:?}");
    let said = answer.json()["errorMessage"].to_string();
    assert!(said.contains("certificate"), "{said}");
}
