//! A custom server: the example of docs/adoption.md in place of a lab's object server.

use std::time::Duration;
use system_tests::counters::{Metrics, wait_for};
use system_tests::{Lab, example, needs, said, text, turn};

#[test]
fn another_server_adopts_connections() {
    needs!("ip", "setsid", "curl", "kill");
    let adopt = example("unlade-backend", "adopt");
    let _turn = turn();
    let lab = Lab::up(&["--tls", "--servers", "1", "--objects", "small", "--fronts", "offload"]);
    lab.wait_channels();
    // This server answers health checks and proxied requests.
    let (_plain, address) = lab.without_agent();
    let pki = |file: &str| lab.dir().join("pki").join(file).display().to_string();
    let (ca, certificate, key) = (pki("pool-ca.crt"), pki("s1.crt"), pki("s1.key"));
    let _adopt = lab.start("s1", &adopt, &[&address, &ca, &certificate, &key]);
    let handed_over = || Metrics::read(&lab, "lb").get("unlade_lb_migrations_completed_total");
    let [v4, v6] = lab.virtual_ips();
    let public_ca = pki("ca.crt");
    // Waits for the channels, then for the health checks.
    let answers = |scheme: &str, address: &str| {
        let port = if scheme == "https" { 443 } else { 80 };
        let host = "one.objects.lab";
        let to = format!("{host}:{port}:{address}");
        let url = format!("{scheme}://{host}/[1-5]");
        let curl =
            ["curl", "-sS", "--max-time", "20", "--cacert", &public_ca, "--resolve", &to, &url];
        let output = lab.exec("client", &curl);
        assert!(output.status.success(), "{}", said(&output));
        text(&output)
    };
    let ready = wait_for(Duration::from_secs(20), || {
        answers("http", &v4.to_string()).contains("asked for /5")
    });
    assert!(ready, "{}", answers("http", &v4.to_string()));
    for scheme in ["http", "https"] {
        for address in [v4.to_string(), format!("[{v6}]")] {
            let before = handed_over();
            let said = answers(scheme, &address);
            let lines: Vec<&str> = said.lines().collect();
            assert_eq!(lines.len(), 5, "{said}");
            for (number, line) in lines.iter().enumerate() {
                assert!(line.ends_with(&format!(" asked for /{}", number + 1)), "{said}");
            }
            // All requests use one connection, and the server reports the client's address.
            let clients: std::collections::HashSet<_> =
                lines.iter().filter_map(|line| line.split(' ').next()).collect();
            assert_eq!(clients.len(), 1, "{said}");
            // Between requests the connection stays, which is not another migration. Only a pause
            // of a second would cause one.
            let moved = wait_for(Duration::from_secs(20), || handed_over() > before);
            assert!(moved, "{scheme} {address}: proxied");
        }
    }
}
