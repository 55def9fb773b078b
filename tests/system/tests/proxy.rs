//! Every front end of a lab serves the same bytes to curl and to the load generator.

use system_tests::{Lab, needs, said};

fn sum_of(lab: &Lab, object: &str) -> String {
    let sums = std::fs::read_to_string(lab.dir().join("SHA256SUMS")).unwrap();
    let line = sums.lines().find(|line| line.ends_with(&format!("  {object}"))).unwrap();
    line.split(' ').next().unwrap().to_owned()
}

/// Returns the ports of the lab's front ends: plain and TLS.
fn ports(lab: &Lab) -> Vec<(u16, u16)> {
    let all = [("lb", 80, 443), ("lb-proxy", 8080, 8443), ("nginx", 81, 444), ("haproxy", 82, 445)];
    let status = lab.status();
    let runs = |name: &str| {
        status["processes"].as_array().unwrap().iter().any(|process| process["process"] == name)
    };
    all.iter().filter(|(name, ..)| runs(name)).map(|(_, plain, tls)| (*plain, *tls)).collect()
}

#[test]
fn curl_gets_the_right_bytes_everywhere() {
    needs!("ip", "setsid", "curl", "sha256sum");
    let lab = Lab::up(&["--servers", "2", "--objects", "small", "--tls"]);
    let ports = ports(&lab);
    assert!(ports.len() >= 2, "both our balancers run");
    for (plain, tls) in ports {
        for object in ["4KiB", "1MiB", "set/00", "set/21"] {
            for url in [
                format!("http://objects.lab:{plain}/{object}"),
                format!("https://objects.lab:{tls}/{object}"),
                format!("http://objects6.lab:{plain}/{object}"),
                format!("https://objects6.lab:{tls}/{object}"),
            ] {
                let command = format!("curl -sf --max-time 10 {url} | sha256sum");
                let sum = lab.exec_text("client", &["sh", "-c", &command]);
                assert!(sum.starts_with(&sum_of(&lab, object)), "{url}: {sum}");
            }
        }
    }
}

#[test]
fn load_verifies_every_byte_through_the_proxy() {
    needs!("ip", "setsid");
    let lab = Lab::up(&["--servers", "2", "--objects", "small", "--tls", "--fronts", "proxy"]);
    let unlade_lab = system_tests::unlade_lab().display().to_string();
    let sums = lab.dir().join("SHA256SUMS").display().to_string();
    for url in ["http://objects.lab:8080", "https://objects.lab:8443", "https://objects6.lab:8443"]
    {
        let mut command =
            vec![unlade_lab.as_str(), "load", "--url", url, "--json", "--requests", "400"];
        command.extend(["--connections", "6", "--pipeline", "2", "--new-connection-every", "40"]);
        command.extend(["--verify", "all", "--sha256sums", &sums, "--path", "/1MiB"]);
        let paths: Vec<String> = (0..20).map(|number| format!("/set/{number:02}")).collect();
        command.extend(paths.iter().flat_map(|path| ["--path", path]));
        let output = lab.exec("client", &command);
        assert!(output.status.success(), "{url}: {}", said(&output));
        let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(result["verified"], 400, "{result}");
    }
}
