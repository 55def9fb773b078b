//! Active health checks: one task per server, on the first worker. Requests that cannot connect
//! count as failed checks as well (see `proxy`).

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use unlade_http::{HeadLimits, Method, ResponseHead};
use unlade_metrics::{Gauge, Meter, Stage};

use crate::config::HealthConfig;
use crate::server::{KnownServers, Server};
use crate::worker::Worker;

/// Period over which the first checks of a pool are spread.
const SPREAD: Duration = Duration::from_millis(200);
/// Most bytes of a response that are read.
const ANSWER_BYTES_MAX: usize = 16 * 1024;

/// The running checks. Dropping it ends them.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    tasks: Vec<JoinHandle<()>>,
}

impl Checks {
    /// Starts checks of the servers of the worker's plan and ends the previous ones.
    pub(crate) fn start(&mut self, worker: &Rc<Worker>) {
        self.stop();
        let plan = worker.plan();
        let known = KnownServers::of(plan.servers());
        let healthy = known.iter().filter(|server| server.is_healthy()).count();
        worker.meter.gauge_set(Gauge::ServersHealthy, healthy as i64);
        for pool in &plan.pools {
            for (index, server) in pool.servers.iter().enumerate() {
                let delay = SPREAD * index as u32 / pool.servers.len().max(1) as u32;
                let (server, health) = (server.clone(), pool.health.clone());
                let meter = worker.meter.clone();
                self.tasks.push(tokio::task::spawn_local(async move {
                    tokio::time::sleep(delay).await;
                    watch(&server, &health, &meter).await;
                }));
            }
        }
    }

    fn stop(&mut self) {
        self.tasks.drain(..).for_each(|task| task.abort());
    }
}

impl Drop for Checks {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn watch(server: &Arc<Server>, health: &HealthConfig, meter: &Meter) {
    let mut ticks = tokio::time::interval(health.interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let start = Instant::now();
        let good = timeout(health.timeout, check(server, health)).await.unwrap_or(false);
        meter.record(Stage::HealthCheck, start.elapsed());
        server.observe(good, health, meter);
        // A connection alone proves little: the kernel of a stopped server accepts it too.
        if good && health.path.is_some() {
            server.set_silent(false);
        }
    }
}

/// Performs one check.
async fn check(server: &Server, health: &HealthConfig) -> bool {
    let Ok(mut tcp) = TcpStream::connect(server.address).await else { return false };
    let Some(path) = &health.path else { return true };
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {}\r\nUser-Agent: unlade-health\r\nConnection: close\r\n\r\n",
        server.address
    );
    if tcp.write_all(request.as_bytes()).await.is_err() {
        return false;
    }
    let mut answer = Vec::with_capacity(4096);
    let limits = HeadLimits::default();
    loop {
        match ResponseHead::parse(&answer, &limits, Method::Get) {
            Ok(Some(head)) if !head.is_interim() => return (200..400).contains(&head.status()),
            Ok(Some(head)) => drop(answer.drain(..head.head_bytes())),
            Ok(None) => {
                if answer.len() > ANSWER_BYTES_MAX
                    || tcp.read_buf(&mut answer).await.unwrap_or(0) == 0
                {
                    return false;
                }
            }
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Returns true if a server that answers every connection with `answer` is healthy.
    async fn checked(path: Option<&str>, answer: &'static str) -> bool {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Server::new(listener.local_addr().unwrap(), None);
        let health = HealthConfig { path: path.map(str::to_owned), ..HealthConfig::default() };
        let answering = async {
            let (mut tcp, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            let _ = tcp.read(&mut request).await;
            let _ = tcp.write_all(answer.as_bytes()).await;
        };
        tokio::join!(check(&server, &health), answering).0
    }

    #[tokio::test]
    async fn the_status_tells() {
        let path = Some("/healthz");
        assert!(checked(path, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await);
        assert!(checked(path, "HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n").await);
        let interim = "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n";
        assert!(checked(path, interim).await);
        assert!(!checked(path, "HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n").await);
        assert!(!checked(path, "SSH-2.0-OpenSSH\r\n").await);
        assert!(!checked(path, "").await);
    }

    #[tokio::test]
    async fn without_a_path_a_connection_is_enough() {
        assert!(checked(None, "").await);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Server::new(listener.local_addr().unwrap(), None);
        drop(listener);
        assert!(!check(&server, &HealthConfig::default()).await);
    }
}
