//! `unlade-lab up`: build the network, write the files, start the processes, wait until their ports
//! answer, the balancers find every server healthy, and every control channel is up.

use super::namespace::name_files_dir;
use super::plan::{
    ADMIN_PORT, AGENT_ADMIN_PORT, PROXY_ADMIN_PORT, SERVER_AGENT_PORT, SERVER_HTTP_PORT, STATE_ROOT,
};
use super::plan::{
    DIRECT_HOSTS, FIXED_HOSTS, Front, HOST, HOST_V6, LabName, Node, Plan, SEALED_HOST, ServerKind,
    Spec,
};
use super::process::{Process, log_tail, start};
use super::state::{self, State};
use super::{config, down, interrupt, network, objects, pki};
use crate::scrape;
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};
use unlade_command::tools::find_program;
use unlade_command::{namespace, program};

/// How long the processes together may take until their ports answer.
const READY_WAIT: Duration = Duration::from_secs(20);
/// How long one attempt to connect may take.
const CONNECT_WAIT: Duration = Duration::from_millis(500);
/// How long the balancers together may take until they have their servers. Links may be slow.
const SERVERS_WAIT: Duration = Duration::from_secs(60);
/// Pause between two looks at the metrics of a balancer.
const SERVERS_PAUSE: Duration = Duration::from_millis(50);
/// Line in the log of a balancer on a machine that cannot steer packets.
const PROXIES_ALL: &str = "no connection is handed over; everything is proxied";

/// A process that the lab runs.
struct Service {
    name: String,
    node: Node,
    command: Vec<String>,
    /// Addresses that must answer before the lab is ready.
    ports: Vec<SocketAddr>,
}

/// Builds a lab and returns its state.
///
/// # Errors
/// The lab exists and is in use; a tool or permission is missing; a process does not come up.
/// A failed build is removed again.
pub fn up(name: LabName, spec: Spec, replace: bool) -> Result<State> {
    let lock = state::lock()?;
    match state::load(&name) {
        Ok(Some(old)) if old.is_live() && !replace => {
            bail!(
                "lab `{name}` is up already; `unlade-lab down --name {name}` removes it, \
                 `--replace` builds it anew"
            );
        }
        // Stale, damaged or absent: whatever is left of the name goes.
        _ => down::remove(&name).context("removing what is left of an earlier lab")?,
    }
    let plan = Plan { id: state::free_id(&name)?, name, spec };
    let mut state = State::new(&plan)?;
    state.save()?;
    drop(lock);
    let _interruptible = interrupt::remove_on_interrupt(&plan.name)?;

    let built = build(&plan, &mut state);
    if let Err(error) = built {
        let _lock = state::lock()?;
        if let Err(also) = down::remove(&plan.name) {
            eprintln!("unlade: lab `{}` is not removed entirely: {also:#}", plan.name);
        }
        return Err(error.context(format!("lab `{}` does not come up", plan.name)));
    }
    Ok(state)
}

fn build(plan: &Plan, state: &mut State) -> Result<()> {
    let services = services(plan)?;
    let steps = 6 + services.len() as u64;
    let progress = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template("lab [{bar:30}] {pos}/{len} {msg}") {
        progress.set_style(style);
    }
    let step = |what: &str| {
        progress.set_message(what.to_owned());
        progress.inc(1);
    };
    step("network");
    network::build(plan)?;
    name_files(plan)?;
    step("certificates");
    pki::create(plan)?;
    step("objects");
    objects::create(plan.spec.objects, &plan.objects_dir(), &plan.sums_file())?;
    step("configuration");
    config::create(plan)?;
    fs::create_dir_all(plan.dir().join("nginx"))?;
    for service in &services {
        step(&service.name);
        let (namespace, log) = (plan.namespace(service.node), plan.log_file(&service.name));
        let process = start(&namespace, &service.name, &service.command, &log)?;
        state.processes.push(process);
        state.save()?;
    }
    step("waiting for the ports");
    let deadline = Instant::now() + READY_WAIT;
    for service in &services {
        let process = state.process(&service.name).context("a process was not recorded")?;
        wait_ready(process, &service.ports, deadline)?;
    }
    step("waiting for the balancers' servers");
    let deadline = Instant::now() + SERVERS_WAIT;
    for front in [Front::Offload, Front::Proxy] {
        if let Some(process) = state.process(front.process()) {
            wait_servers(plan, front, process, deadline)?;
        }
    }
    state.ready = true;
    state.save()?;
    progress.finish_and_clear();
    Ok(())
}

/// The hosts file of every node; nothing else names a host in a lab.
fn name_files(plan: &Plan) -> Result<()> {
    let mut hosts = format!(
        "127.0.0.1 localhost\n::1 localhost\n{} {HOST}\n{} {HOST_V6}\n",
        plan.virtual_v4(),
        plan.virtual_v6()
    );
    for (host, ..) in FIXED_HOSTS {
        hosts.push_str(&format!("{} {host}\n", plan.virtual_v4()));
    }
    for (host, ..) in DIRECT_HOSTS {
        hosts.push_str(&format!("{} {host}\n", plan.virtual_v4()));
    }
    hosts.push_str(&format!("{} {SEALED_HOST}\n", plan.virtual_v4()));
    for node in plan.nodes() {
        hosts.push_str(&format!("{} {node}.lab\n", plan.address_v4(node)));
    }
    for node in plan.nodes() {
        let dir = name_files_dir(&plan.namespace(node));
        fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
        fs::write(dir.join("hosts"), &hosts)?;
        if Path::new("/etc/nsswitch.conf").exists() {
            fs::write(dir.join("nsswitch.conf"), "passwd: files\ngroup: files\nhosts: files\n")?;
        }
    }
    Ok(())
}

/// Servers first: a balancer that starts finds them healthy.
fn services(plan: &Plan) -> Result<Vec<Service>> {
    if plan.spec.bare {
        return Ok(Vec::new());
    }
    let unlade = match &plan.spec.unlade {
        // The processes run in another directory.
        Some(file) => file.canonicalize().with_context(|| format!("no {}", file.display()))?,
        None => program::find(program::UNLADE)?,
    };
    let unlade = unlade.display().to_string();
    let ours = |command: &str, config: &str| {
        let file = plan.config_file(config).display().to_string();
        vec![unlade.clone(), command.to_owned(), "--config".to_owned(), file]
    };
    let mut services = Vec::new();
    services.extend(server_services(plan, &ours)?);
    for front in Front::ALL.into_iter().filter(|front| plan.spec.fronts.contains(front)) {
        let name = front.process();
        let command = match front {
            Front::Offload | Front::Proxy => ours("lb", &format!("{name}.toml")),
            Front::Nginx | Front::Haproxy => match peer_command(plan, front) {
                Some(command) => command,
                None => continue,
            },
        };
        let ports = plan.front_addresses(front);
        services.push(Service { name: name.to_owned(), node: Node::Lb, command, ports });
    }
    Ok(services)
}

/// The servers, and the agents at their hosts. `ours` is a command of the product with a file.
fn server_services(plan: &Plan, ours: &dyn Fn(&str, &str) -> Vec<String>) -> Result<Vec<Service>> {
    let mut services = Vec::new();
    // Without a balancer that hands over, nothing has to adopt connections.
    let is_adopting = plan.spec.fronts.contains(&Front::Offload);
    for node in plan.servers() {
        let ip = IpAddr::V4(plan.address_v4(node));
        let (http, adoption) =
            (SocketAddr::new(ip, SERVER_HTTP_PORT), SocketAddr::new(ip, SERVER_AGENT_PORT));
        let name = node.to_string();
        let (command, ports) = match plan.spec.behind {
            ServerKind::Backend => {
                let ports = [http].into_iter().chain(is_adopting.then_some(adoption));
                (ours("backend", &format!("{node}.toml")), ports.collect())
            }
            ServerKind::Nginx => (config::static_command(plan, &name)?, vec![http]),
        };
        services.push(Service { name, node, command, ports });
        if plan.spec.direct_return || plan.has_sidecars() {
            let admin = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), AGENT_ADMIN_PORT);
            let ports = [admin].into_iter().chain(plan.has_sidecars().then_some(adoption));
            services.push(Service {
                name: format!("{node}-agent"),
                node,
                command: ours("agent", &config::agent_file(node)),
                ports: ports.collect(),
            });
        }
    }
    Ok(services)
}

/// How to start nginx or HAProxy, if it is installed.
fn peer_command(plan: &Plan, front: Front) -> Option<Vec<String>> {
    let program = find_program(front.process())?.display().to_string();
    let words: Vec<String> = match front {
        Front::Nginx => {
            let file = plan.config_file("nginx.conf").display().to_string();
            let log = plan.log_file("nginx").display().to_string();
            vec![program, "-e".into(), log, "-c".into(), file]
        }
        _ => {
            let file = plan.config_file("haproxy.cfg").display().to_string();
            vec![program, "-db".into(), "-f".into(), file]
        }
    };
    Some(words)
}

/// Waits until each of `ports` takes a connection from inside the process's namespace.
///
/// # Errors
/// The process ended or the deadline passed; the message carries the end of its log.
fn wait_ready(process: &Process, ports: &[SocketAddr], deadline: Instant) -> Result<()> {
    namespace::inside(&process.namespace, || {
        for port in ports {
            while TcpStream::connect_timeout(port, CONNECT_WAIT).is_err() {
                if !process.identity.is_alive() {
                    bail!(failure(process, "ended"));
                }
                if Instant::now() >= deadline {
                    bail!(failure(process, &format!("does not answer on {port}")));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    })
}

/// Waits until a balancer finds every server healthy, and the one that hands over has a control
/// channel of each worker to each server. On a machine that cannot steer packets there are no
/// channels: a warning says so, and the lab proxies.
///
/// # Errors
/// The process ended or the deadline passed; the message carries the end of its log.
fn wait_servers(plan: &Plan, front: Front, process: &Process, deadline: Instant) -> Result<()> {
    let servers = u64::from(plan.spec.servers);
    let (port, mut channels) = match front {
        Front::Offload => (ADMIN_PORT, servers * u64::from(plan.spec.lb_workers)),
        _ => (PROXY_ADMIN_PORT, 0),
    };
    loop {
        // A listener's address answers before the log has the line.
        if channels > 0 && proxies_all(&process.log) {
            let log = process.log.display();
            eprintln!("unlade-lab: {}: {PROXIES_ALL}; {log} says why", process.name);
            channels = 0;
        }
        // The address of the admin endpoint may not be bound yet.
        let metrics = scrape::get_from(plan, Node::Lb, port, "/metrics").unwrap_or_default();
        let Some(found) = missing(&metrics, servers, channels) else { return Ok(()) };
        if !process.identity.is_alive() {
            bail!(failure(process, "ended"));
        }
        if Instant::now() >= deadline {
            bail!(failure(process, &format!("{found} after {} s", SERVERS_WAIT.as_secs())));
        }
        std::thread::sleep(SERVERS_PAUSE);
    }
}

/// The healthy servers and control channels in the metrics of a balancer, in words; `None` if there
/// are as many as there should be.
fn missing(metrics: &str, servers: u64, channels: u64) -> Option<String> {
    let healthy = scrape::sum(metrics, "unlade_lb_healthy_servers");
    let up = scrape::sum(metrics, "unlade_channels_up");
    let is_complete = healthy >= servers && up >= channels;
    (!is_complete).then(|| {
        format!(
            "has {healthy} of {servers} healthy servers and {up} of {channels} control channels"
        )
    })
}

fn proxies_all(log: &Path) -> bool {
    fs::read_to_string(log).is_ok_and(|text| text.contains(PROXIES_ALL))
}

/// The message about a process that failed. Its log is kept beside the lab's directory, which is
/// removed with the lab.
fn failure(process: &Process, what: &str) -> String {
    let (name, tail) = (&process.name, log_tail(&process.log));
    let kept = Path::new(STATE_ROOT).with_file_name(format!("lab-failed-{name}.log"));
    match fs::copy(&process.log, &kept) {
        Ok(_) => format!("{name} {what}; its log, kept in {}, ends in:\n{tail}", kept.display()),
        Err(_) => format!("{name} {what}; its log ends in:\n{tail}"),
    }
}

/// Starts a process of a lab again with the command it had.
///
/// # Errors
/// It does not come up; the message carries the end of its log.
pub fn restart(state: &mut State, name: &str) -> Result<()> {
    let plan = state.plan();
    let service = services(&plan)?.into_iter().find(|service| service.name == name);
    let service = service.with_context(|| format!("this lab runs no `{name}`"))?;
    let namespace = plan.namespace(service.node);
    let process = start(&namespace, name, &service.command, &plan.log_file(name))?;
    let ready = wait_ready(&process, &service.ports, Instant::now() + READY_WAIT);
    state.processes.retain(|process| process.name != name);
    state.processes.push(process);
    state.save()?;
    ready
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_balancer_is_complete_with_all_servers_and_channels() {
        let metrics = "unlade_lb_healthy_servers 4\nunlade_channels_up 7\n";
        let found = missing(metrics, 4, 8).unwrap();
        assert_eq!(found, "has 4 of 4 healthy servers and 7 of 8 control channels");
        assert_eq!(missing(metrics, 4, 7), None);
        assert!(missing(metrics, 5, 7).is_some());
        // No answer yet.
        assert!(missing("", 1, 0).is_some());
    }
}
