//! Messages for errors in a configuration.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use unlade_config::{ByteSize, SettingsError};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct Lb {
    admin: SocketAddr,
    #[serde(default)]
    listener: Vec<Listener>,
    #[serde(default)]
    route: Vec<Route>,
    #[serde(default)]
    pool: BTreeMap<String, Pool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct Listener {
    address: SocketAddr,
    tls: Option<Tls>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct Tls {
    certificate: String,
    key: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[allow(dead_code)]
struct Route {
    prefix: String,
    offload: Mode,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    Off,
    Always,
    Auto,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct Pool {
    servers: Vec<String>,
    #[serde(default, with = "unlade_config::duration")]
    timeout: Duration,
    #[serde(default)]
    body_bytes_max: ByteSize,
}

const GOOD: &str = r#"
admin = "127.0.0.1:9900"
[[listener]]
address = "10.0.0.1:443"
tls = { certificate = "a.crt", key = "a.key" }
[[route]]
prefix = "/"
offload = "auto"
[pool.objects]
servers = ["10.0.0.21"]
timeout = "5s"
body_bytes_max = "64KiB"
"#;

fn message(text: &str) -> String {
    unlade_config::parse::<Lb>(text, "lb.toml").unwrap_err().to_string()
}

fn edited(from: &str, to: &str) -> String {
    let text = GOOD.replacen(from, to, 1);
    assert_ne!(text, GOOD, "{from} is not in the text");
    message(&text)
}

#[test]
fn a_valid_file_is_parsed() {
    let lb: Lb = unlade_config::parse(GOOD, "lb.toml").unwrap();
    assert_eq!(lb.pool["objects"].timeout, Duration::from_secs(5));
    assert_eq!(lb.pool["objects"].body_bytes_max, ByteSize(65_536));
    assert_eq!(lb.route[0].offload, Mode::Auto);
}

#[test]
fn an_unknown_key_names_the_nearest() {
    assert_eq!(
        edited("offload =", "offlaod ="),
        "lb.toml:8: unknown key `offlaod` in [[route]]; did you mean `offload`?"
    );
    assert_eq!(edited("admin", "Admin"), "lb.toml:2: unknown key `Admin`; did you mean `admin`?");
    assert_eq!(
        edited("timeout", "time_out"),
        "lb.toml:11: unknown key `time_out` in [pool.objects]; did you mean `timeout`?"
    );
    assert_eq!(
        edited("certificate =", "cert ="),
        "lb.toml:5: unknown key `cert` in [listener.tls]; did you mean `certificate`?"
    );
}

#[test]
fn an_unknown_key_without_a_similar_one_lists_all_keys() {
    assert_eq!(
        edited("offload =", "zzz ="),
        "lb.toml:8: unknown key `zzz` in [[route]]; known are `prefix`, `offload`"
    );
}

#[test]
fn an_unknown_table_is_named() {
    assert_eq!(
        edited("[[route]]", "[[rout]]"),
        "lb.toml:6: unknown key `rout`; did you mean `route`?"
    );
}

#[test]
fn an_unknown_value_names_the_nearest() {
    assert_eq!(
        edited("\"auto\"", "\"alwys\""),
        "lb.toml:8: `offload` in [[route]]: unknown value `alwys`; did you mean `always`?"
    );
}

#[test]
fn a_wrong_type_names_the_expected_type() {
    assert_eq!(
        edited("\"/\"", "5"),
        "lb.toml:7: `prefix` in [[route]]: invalid type: integer `5`, expected a string"
    );
    assert_eq!(
        edited("[\"10.0.0.21\"]", "[10]"),
        "lb.toml:10: `servers` in [pool.objects]: invalid type: integer `10`, expected a string"
    );
    assert_eq!(
        edited("\"5s\"", "5"),
        "lb.toml:11: `timeout` in [pool.objects]: invalid type: integer `5`, expected a duration"
    );
}

#[test]
fn a_malformed_value_is_reported() {
    let address = edited("127.0.0.1:9900", "127.0.0.1");
    assert!(address.starts_with("lb.toml:2: `admin`: invalid socket address"), "{address}");
    assert_eq!(
        edited("64KiB", "64 kilo"),
        "lb.toml:12: `body_bytes_max` in [pool.objects]: `64 kilo` is not an amount of bytes; \
         write a whole number and a unit, as in \"64KiB\""
    );
}

#[test]
fn a_missing_key_names_its_table() {
    assert_eq!(
        edited("prefix = \"/\"", ""),
        "lb.toml:6: the key `prefix` is missing in [[route]]; add it"
    );
    assert_eq!(
        edited("servers = [\"10.0.0.21\"]", ""),
        "lb.toml:9: the key `servers` is missing in [pool.objects]; add it"
    );
    let top = edited("admin = \"127.0.0.1:9900\"", "");
    assert!(top.ends_with("the key `admin` is missing; add it"), "{top}");
}

#[test]
fn broken_text_names_the_line() {
    let text = edited("prefix = \"/\"", "prefix = \"/");
    assert!(text.starts_with("lb.toml:7: not TOML: "), "{text}");
    let twice = edited("prefix = \"/\"", "prefix = \"/\"\nprefix = \"/\"");
    assert!(twice.starts_with("lb.toml:8: not TOML: duplicate key"), "{twice}");
}

#[test]
fn a_missing_file_has_a_remedy() {
    let error = unlade_config::load::<Lb>(Path::new("/nonexistent/lb.toml")).unwrap_err();
    assert!(matches!(error, SettingsError::Missing { .. }));
    assert!(error.to_string().contains("--config"), "{error}");
}

#[test]
fn a_file_is_read_and_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lb.toml");
    std::fs::write(&path, GOOD).unwrap();
    unlade_config::load::<Lb>(&path).unwrap();
    std::fs::write(&path, "admn = 1").unwrap();
    let error = unlade_config::load::<Lb>(&path).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{}:1: unknown key `admn`", path.display())), "{error}");
    std::fs::write(&path, vec![b'#'; 1024 * 1024 + 1]).unwrap();
    assert!(matches!(unlade_config::load::<Lb>(&path), Err(SettingsError::TooLarge { .. })));
}
