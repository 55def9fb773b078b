//! The configuration files of everything a lab runs, written from its plan.

use super::plan::{
    ADMIN_PORT, AGENT_ADMIN_PORT, DIRECT_HOSTS, FIXED_HOSTS, Front, Node, OffloadMode,
    PROXY_ADMIN_PORT, Plan,
};
use super::plan::{
    RequestsPerMigration, SEALED_HOST, SERVER_AGENT_PORT, SERVER_HTTP_PORT, ServerKind,
};
use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddrV4;
use std::path::Path;
use unlade_balancer::PolicyConfig;
use unlade_command::tools::find_program;

use super::pki::RULES_KEY;

/// Idle connections that a proxy keeps to the servers.
const UPSTREAM_IDLE_MAX: u32 = 256;

/// Writes every file below the lab's `config` directory.
///
/// # Errors
/// A file cannot be written.
pub fn create(plan: &Plan) -> Result<()> {
    for dir in ["config", "logs"] {
        let dir = plan.dir().join(dir);
        fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    }
    for front in [Front::Offload, Front::Proxy] {
        let file = plan.config_file(&format!("{}.toml", front.process()));
        write(&file, &balancer(plan, front))?;
    }
    for node in plan.servers() {
        match plan.spec.behind {
            ServerKind::Backend => {
                write(&plan.config_file(&format!("{node}.toml")), &backend(plan, node))?;
            }
            ServerKind::Nginx => {
                let address = SocketAddrV4::new(plan.address_v4(node), SERVER_HTTP_PORT);
                create_static(plan, &node.to_string(), address)?;
            }
        }
        write(&plan.config_file(&agent_file(node)), &agent(plan, node))?;
    }
    write(&plan.config_file("nginx.conf"), &nginx(plan))?;
    write(&plan.config_file("haproxy.cfg"), &haproxy(plan))
}

/// Name of the configuration of the agent at a server's host.
pub fn agent_file(node: Node) -> String {
    format!("{node}-agent.toml")
}

/// `agent.toml` of a server's host.
pub fn agent(plan: &Plan, node: Node) -> String {
    let mut text = format!("admin = \"127.0.0.1:{AGENT_ADMIN_PORT}\"\n");
    if plan.spec.direct_return || !plan.has_sidecars() {
        let key = quoted(&plan.pki(RULES_KEY));
        let _ = writeln!(text, "interface = \"eth0\"\nkey_file = {key}");
    }
    if plan.has_sidecars() {
        let address = plan.address_v4(node);
        let [ca, certificate, key] = identity(plan, node);
        let _ = writeln!(text, "\n[sidecar]\nupstream = \"http://{address}:{SERVER_HTTP_PORT}\"");
        let _ = writeln!(text, "address = \"{address}:{SERVER_AGENT_PORT}\"");
        let _ = writeln!(text, "ca = {ca}\ncertificate = {certificate}\nkey = {key}");
    }
    text
}

/// Writes the configuration of nginx as a server of the lab's objects, as fast as it can be told to be:
/// sendfile, files kept open. `name` is that of its process.
///
/// # Errors
/// A file cannot be written.
pub fn create_static(plan: &Plan, name: &str, address: SocketAddrV4) -> Result<()> {
    let temporary = plan.dir().join(format!("{name}.temporary"));
    fs::create_dir_all(&temporary).with_context(|| format!("creating {}", temporary.display()))?;
    let text = format!(
        "daemon off;\nuser root;\nworker_processes {workers};\npid {temporary}/pid;\n\
         error_log {log} warn;\nworker_rlimit_nofile 16384;\n\
         events {{ worker_connections 8192; multi_accept on; }}\n\
         http {{\n  access_log off;\n  sendfile on;\n  tcp_nopush on;\n  tcp_nodelay on;\n  \
         keepalive_requests 100000000;\n  keepalive_timeout 600s;\n  open_file_cache max=1024;\n  \
         open_file_cache_valid 60s;\n  client_body_temp_path {temporary}/b;\n  \
         proxy_temp_path {temporary}/p;\n  fastcgi_temp_path {temporary}/f;\n  \
         uwsgi_temp_path {temporary}/u;\n  scgi_temp_path {temporary}/s;\n  \
         server {{ listen {address} backlog=4096; root {objects}; }}\n}}\n",
        workers = plan.spec.server_workers,
        temporary = temporary.display(),
        log = plan.log_file(name).display(),
        objects = plan.objects_dir().display(),
    );
    write(&plan.config_file(&format!("{name}.conf")), &text)
}

/// Returns the command of the server that [`create_static`] configures.
///
/// # Errors
/// nginx is not installed.
pub fn static_command(plan: &Plan, name: &str) -> Result<Vec<String>> {
    let program =
        find_program("nginx").context("nginx is not installed; scripts/setup does that")?;
    let log = plan.log_file(name).display().to_string();
    let file = plan.config_file(&format!("{name}.conf")).display().to_string();
    Ok(vec![program.display().to_string(), "-e".to_owned(), log, "-c".to_owned(), file])
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// A path as a TOML string.
fn quoted(path: &Path) -> String {
    toml::Value::String(path.display().to_string()).to_string()
}

/// `lb.toml` of one of our two balancers. Both are the same but for their ports and for
/// handing over, so that a comparison shows nothing else.
pub fn balancer(plan: &Plan, front: Front) -> String {
    let offload = match front {
        Front::Offload => plan.spec.offload,
        _ => OffloadMode::Off,
    };
    let admin = if front == Front::Offload { ADMIN_PORT } else { PROXY_ADMIN_PORT };
    let mut text = String::new();
    let _ = writeln!(text, "admin = \"127.0.0.1:{admin}\"");
    let _ = writeln!(text, "workers = {}", plan.spec.lb_workers);
    for address in plan.front_addresses(front) {
        let _ = writeln!(text, "\n[[listener]]\naddress = \"{address}\"");
        if address.port() == front.port(true) {
            let (certificate, key) = (plan.pki("objects.crt"), plan.pki("objects.key"));
            let _ = writeln!(
                text,
                "tls = {{ certificate = {}, key = {} }}",
                quoted(&certificate),
                quoted(&key)
            );
        }
    }
    if front == Front::Offload {
        let journal = plan.dir().join("lb.journal");
        let _ = writeln!(text, "\n[offload]\njournal = {}", quoted(&journal));
    }
    let own = (offload, plan.spec.requests_per_migration);
    text.push_str(&route(None, "objects", own.0, own.1));
    if front == Front::Offload {
        for (host, mode, requests) in FIXED_HOSTS {
            text.push_str(&route(Some(host), "objects", mode, Some(requests)));
        }
    }
    text.push_str(&pool(plan, "objects"));
    // An earlier version refuses a key that it does not know.
    if front == Front::Offload && plan.spec.unlade.is_none() {
        text.push_str(&route(Some(SEALED_HOST), "sealed", OffloadMode::Off, None));
        text.push_str(&pool(plan, "sealed"));
        text.push_str("sealing = true\n");
    }
    if front == Front::Offload && plan.spec.direct_return {
        let key = quoted(&plan.pki(RULES_KEY));
        for (host, name, settings) in DIRECT_HOSTS {
            text.push_str(&route(Some(host), name, OffloadMode::Off, None));
            text.push_str(&pool(plan, name));
            let settings = settings.replace("KEY", &key);
            let _ = writeln!(text, "sealing = true\ndirect_return = {{ {settings} }}");
        }
    }
    text
}

/// `[pool.NAME]` with all servers.
fn pool(plan: &Plan, name: &str) -> String {
    let policy = plan.spec.policy;
    let servers: Vec<String> =
        plan.servers().map(|node| format!("\"{}\"", plan.address_v4(node))).collect();
    let mut text = format!("\n[pool.{name}]\npolicy = \"{policy}\"\n");
    let _ = writeln!(text, "servers = [{}]", servers.join(", "));
    let _ = writeln!(text, "http_port = {SERVER_HTTP_PORT}\nagent_port = {SERVER_AGENT_PORT}");
    let [ca, certificate, key] = identity(plan, Node::Lb);
    let _ = writeln!(text, "trust = {{ ca = {ca}, certificate = {certificate}, key = {key} }}");
    text
}

fn route(
    host: Option<&str>,
    pool: &str,
    offload: OffloadMode,
    requests: Option<RequestsPerMigration>,
) -> String {
    let mut text = "\n[[route]]\n".to_owned();
    if let Some(host) = host {
        let _ = writeln!(text, "host = \"{host}\"");
    }
    let mode = match offload {
        OffloadMode::Always => "always",
        OffloadMode::Auto => "auto",
        OffloadMode::Off => "off",
    };
    let _ = writeln!(text, "prefix = \"/\"\npool = \"{pool}\"\noffload = \"{mode}\"");
    if let Some(requests) = requests {
        // A number or a quoted word is the same in TOML as in JSON.
        let _ = writeln!(text, "requests_per_migration = {}", requests.to_json());
    }
    text
}

/// The pool's authority, and a node's certificate and key, as TOML strings.
fn identity(plan: &Plan, node: Node) -> [String; 3] {
    ["pool-ca.crt".to_owned(), format!("{node}.crt"), format!("{node}.key")]
        .map(|file| quoted(&plan.pki(&file)))
}

/// `backend.toml` of a server.
pub fn backend(plan: &Plan, node: Node) -> String {
    let address = plan.address_v4(node);
    let [ca, certificate, key] = identity(plan, node);
    let mut text = String::new();
    let _ = writeln!(text, "admin = \"127.0.0.1:{ADMIN_PORT}\"");
    let _ = writeln!(text, "http = \"{address}:{SERVER_HTTP_PORT}\"");
    let _ = writeln!(text, "root = {}", quoted(&plan.objects_dir()));
    let _ = writeln!(text, "workers = {}", plan.spec.server_workers);
    let _ = writeln!(text, "\n[agent]\naddress = \"{address}:{SERVER_AGENT_PORT}\"");
    let _ = writeln!(text, "ca = {ca}\ncertificate = {certificate}\nkey = {key}");
    text
}

/// nginx as a proxy, as fast as it can be told to be: kept-alive upstream connections, a
/// listening socket for each worker, no access log, one large buffer that is passed on at once.
/// Of 64 KiB to 1 MiB of buffers, filled ahead or not, this was the fastest from 64 KiB on by up
/// to three times, and no slower below.
pub fn nginx(plan: &Plan) -> String {
    let mut text = format!(
        "daemon off;\nuser root;\nworker_processes {workers};\npid {pid};\n\
         error_log {log} warn;\nworker_rlimit_nofile 16384;\n\
         events {{ worker_connections 8192; multi_accept on; }}\n\
         http {{\n  access_log off;\n  sendfile on;\n  tcp_nopush on;\n  tcp_nodelay on;\n  \
         keepalive_requests 100000000;\n  keepalive_timeout 600s;\n  \
         client_body_temp_path {dir}/body;\n  proxy_temp_path {dir}/proxy;\n  \
         fastcgi_temp_path {dir}/f;\n  uwsgi_temp_path {dir}/u;\n  scgi_temp_path {dir}/s;\n  \
         ssl_protocols TLSv1.2 TLSv1.3;\n  ssl_session_tickets off;\n  ssl_buffer_size 16k;\n  \
         ssl_certificate {certificate};\n  ssl_certificate_key {key};\n  upstream objects {{\n",
        workers = plan.spec.lb_workers,
        pid = plan.dir().join("nginx.pid").display(),
        log = plan.log_file("nginx").display(),
        dir = plan.dir().join("nginx").display(),
        certificate = plan.pki("objects.crt").display(),
        key = plan.pki("objects.key").display(),
    );
    text.push_str(match plan.spec.policy {
        PolicyConfig::RoundRobin => "",
        PolicyConfig::Sharded => "    hash $uri consistent;\n",
        // The nearest one for any policy that looks at the servers.
        _ => "    least_conn;\n",
    });
    for node in plan.servers() {
        let _ = writeln!(text, "    server {}:{SERVER_HTTP_PORT};", plan.address_v4(node));
    }
    let _ = writeln!(text, "    keepalive {UPSTREAM_IDLE_MAX};");
    text.push_str("    keepalive_requests 100000000;\n    keepalive_timeout 600s;\n  }\n");
    text.push_str("  server {\n");
    for address in plan.front_addresses(Front::Nginx) {
        let ssl = if address.port() == Front::Nginx.port(true) { " ssl" } else { "" };
        let _ = writeln!(text, "    listen {address}{ssl} reuseport backlog=4096;");
    }
    text.push_str(
        "    location / {\n      proxy_pass http://objects;\n      proxy_http_version 1.1;\n      \
         proxy_set_header Connection \"\";\n      proxy_set_header Host $host;\n      \
         proxy_set_header X-Forwarded-For $remote_addr;\n      proxy_buffering off;\n      \
         proxy_buffer_size 256k;\n      proxy_buffers 8 256k;\n      \
         proxy_busy_buffers_size 256k;\n    }\n  }\n}\n",
    );
    text
}

/// HAProxy as fast as it can be told to be: spliced bodies, reused upstream connections.
pub fn haproxy(plan: &Plan) -> String {
    let balance = match plan.spec.policy {
        PolicyConfig::RoundRobin => "roundrobin",
        PolicyConfig::Sharded => "uri\n  hash-type consistent",
        _ => "leastconn",
    };
    let mut text = format!(
        "global\n  nbthread {workers}\n  maxconn 4096\n  tune.bufsize 32768\n  \
         tune.pipesize 1048576\n  ssl-default-bind-options ssl-min-ver TLSv1.2 no-tls-tickets\n\n\
         defaults\n  mode http\n  balance {balance}\n  option splice-auto\n  \
         option http-keep-alive\n  http-reuse always\n  timeout connect 5s\n  \
         timeout client 600s\n  timeout server 600s\n  timeout http-keep-alive 600s\n\n\
         frontend objects\n",
        workers = plan.spec.lb_workers,
    );
    for address in plan.front_addresses(Front::Haproxy) {
        let _ = write!(text, "  bind {address}");
        if address.port() == Front::Haproxy.port(true) {
            let pem = plan.pki("objects.pem");
            let _ = write!(text, " ssl crt {} alpn http/1.1", pem.display());
        }
        text.push('\n');
    }
    text.push_str("  option forwardfor\n  default_backend objects\n\nbackend objects\n");
    for node in plan.servers() {
        let address = plan.address_v4(node);
        let _ = writeln!(
            text,
            "  server {node} {address}:{SERVER_HTTP_PORT} pool-max-conn {UPSTREAM_IDLE_MAX}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        spec: crate::lab::plan::Spec,
    }

    fn plan(words: &[&str]) -> Plan {
        let spec = Line::parse_from(["lab"].iter().chain(words)).spec;
        Plan { name: "t".parse().unwrap(), id: 7, spec }
    }

    /// The programs accept the configurations that the lab writes.
    #[test]
    fn our_own_files_are_understood() {
        let variants = [
            &["--tls", "--offload", "always", "--requests-per-migration", "8"][..],
            &["--servers", "1", "--requests-per-migration", "unlimited"],
            &["--offload", "off", "--lb-workers", "1"],
        ];
        let policies = PolicyConfig::ALL.map(PolicyConfig::as_str);
        for (words, policy) in variants.iter().flat_map(|w| policies.map(|policy| (w, policy))) {
            let plan = plan(&[words, &["--policy", policy][..]].concat());
            for front in [Front::Offload, Front::Proxy] {
                let text = balancer(&plan, front);
                let config = unlade_balancer::BalancerConfig::parse(&text, "lb.toml").unwrap();
                config.validate().unwrap();
                assert_eq!(config.listeners.len(), plan.front_addresses(front).len());
            }
            for node in plan.servers() {
                let config: unlade_backend::BackendConfig =
                    toml::from_str(&backend(&plan, node)).unwrap();
                config.check().unwrap();
                assert!(config.agent.is_some());
            }
        }
    }

    /// A policy of ours is compared with the same policy of the others, or the nearest one.
    #[test]
    fn peers_balance_by_the_policy_of_the_plan() {
        for policy in PolicyConfig::ALL {
            let plan = plan(&["--policy", policy.as_str()]);
            let (method, balance) = match policy {
                PolicyConfig::RoundRobin => ("", "balance roundrobin"),
                PolicyConfig::Sharded => ("hash $uri consistent;", "balance uri"),
                _ => ("least_conn;", "balance leastconn"),
            };
            assert!(nginx(&plan).contains(method), "{policy}");
            assert!(haproxy(&plan).contains(balance), "{policy}");
        }
    }

    #[test]
    fn peers_listen_where_the_plan_says() {
        let plan = plan(&["--tls", "--servers", "3"]);
        let (nginx, haproxy) = (nginx(&plan), haproxy(&plan));
        for address in plan.front_addresses(Front::Nginx) {
            assert!(nginx.contains(&format!("listen {address}")), "{nginx}");
        }
        for address in plan.front_addresses(Front::Haproxy) {
            assert!(haproxy.contains(&format!("bind {address}")), "{haproxy}");
        }
        for text in [&nginx, &haproxy] {
            assert_eq!(text.matches(":8080").count(), 3, "{text}");
        }
    }
}
