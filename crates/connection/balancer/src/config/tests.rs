use super::*;

const GOOD: &str = r#"
        admin = "127.0.0.1:9900"
        [[listener]]
        address = "10.0.0.1:443"
        tls = { certificate = "objects.crt", key = "objects.key" }
        [[route]]
        host = "objects.example"
        prefix = "/"
        pool = "objects"
        offload = "auto"
        [pool.objects]
        policy = "sharded"
        servers = ["10.0.0.21", "10.0.0.22:8081", "[fd00::23]:8080"]
        http_port = 8080
        agent_port = 7900
        trust = { ca = "pool-ca.crt", certificate = "lb.crt", key = "/etc/lb.key" }
    "#;

fn parse(text: &str) -> BalancerConfig {
    BalancerConfig::parse(text, "lb.toml").unwrap()
}

/// Returns the message of the first problem in `text`.
fn refused(text: &str) -> String {
    match BalancerConfig::parse(text, "lb.toml") {
        Err(error) => error.to_string(),
        Ok(config) => config.validate().unwrap_err().to_string(),
    }
}

#[test]
fn the_documented_file_is_valid_and_has_safe_defaults() {
    let config = parse(GOOD);
    config.validate().unwrap();
    let pool = &config.pools["objects"];
    assert_eq!(pool.policy, crate::policy::PolicyConfig::Sharded);
    let addresses: Vec<String> =
        pool.servers.iter().map(|server| pool.http_address(server).unwrap().to_string()).collect();
    assert_eq!(addresses, ["10.0.0.21:8080", "10.0.0.22:8081", "[fd00::23]:8080"]);
    assert_eq!(pool.agent_address(&pool.servers[1]).unwrap().to_string(), "10.0.0.22:7900");
    let route = &config.routes[0];
    assert_eq!(route.requests_per_migration.limit(), Some(REQUESTS_PER_MIGRATION_DEFAULT));
    assert_eq!(config.timeouts_of(&config.listeners[0]), Timeouts::default());
}

#[test]
fn paths_are_relative_to_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lb.toml");
    std::fs::write(&file, GOOD).unwrap();
    let config = BalancerConfig::load(&file).unwrap();
    let tls = config.listeners[0].tls.as_ref().unwrap();
    assert_eq!(tls.certificate, dir.path().join("objects.crt"));
    let trust = config.pools["objects"].trust.as_ref().unwrap();
    assert_eq!(trust.key, Path::new("/etc/lb.key"));
}

#[test]
fn requests_per_migration_is_a_positive_integer_or_unlimited() {
    let with = |value: &str| {
        GOOD.replace("offload = \"auto\"", &format!("requests_per_migration = {value}"))
    };
    let of = |value| parse(&with(value)).routes[0].requests_per_migration;
    assert_eq!(of("1").limit().unwrap().get(), 1);
    assert_eq!(of("\"unlimited\""), RequestsPerMigration::Unlimited);
    for bad in ["0", "-3", "\"many\"", "5000000000"] {
        let message = refused(&with(bad));
        assert!(message.contains("a positive integer or \"unlimited\""), "{message}");
    }
}

#[test]
fn a_listener_overrides_single_timeouts() {
    let text = GOOD.replace(
        "[[route]]",
        "timeouts = { head = \"1s\" }\n[timeouts]\nhead = \"2s\"\nidle = \"3s\"\n[[route]]",
    );
    let config = parse(&text);
    let timeouts = config.timeouts_of(&config.listeners[0]);
    assert_eq!(timeouts.head, Duration::from_secs(1));
    assert_eq!(timeouts.idle, Duration::from_secs(3));
    assert_eq!(timeouts.body_stall, Timeouts::default().body_stall);
}

#[test]
fn what_does_not_go_together_is_refused_with_its_place() {
    let cases: [(&str, &str, &str); 16] = [
        (
            "pool = \"objects\"",
            "pool = \"object\"",
            "pool `object` does not exist; existing pools: `objects`",
        ),
        ("agent_port = 7900", "", "offload needs pool.objects.agent_port"),
        ("trust = {", "# ", "offload needs pool.objects.trust"),
        ("http_port = 8080", "", "server 10.0.0.21 has no port; set http_port"),
        ("\"10.0.0.22:8081\"", "\"10.0.0.21:8080\"", "server 10.0.0.21:8080 is defined twice"),
        ("prefix = \"/\"", "prefix = \"img\"", "begin it with `/`"),
        ("\"objects.example\"", "\"objects.example:443\"", "the host has a port"),
        ("\"objects.example\"", "\"objects example\"", "the host is not a name"),
        ("\"127.0.0.1:9900\"", "\"10.0.0.1:443\"", "is a listener's address"),
        ("admin =", "workers = 0\nadmin =", "workers: is 0; use 1 to 256"),
        ("servers = [", "servers = [] #", "number of servers: is 0"),
        ("admin =", "timeouts = { idle = \"0s\" }\nadmin =", "timeouts.idle: is zero"),
        ("\"10.0.0.22:8081\"", "\"storage-2\"", "`storage-2` is not a server address"),
        ("admin =", "offload = { deadline = \"1m\" }\nadmin =", "offload.deadline: is longer"),
        ("admin =", "offload = { idle_return = \"0s\" }\nadmin =", "offload.idle_return: is zero"),
        ("prefix = \"/\"", "upgrade = [\"h2c\"]", "`h2c` is no protocol that can pass"),
    ];
    for (from, to, expected) in cases {
        assert!(GOOD.contains(from));
        let message = refused(&GOOD.replacen(from, to, 1));
        assert!(message.contains(expected), "{expected}: {message}");
        assert!(message.contains("lb.toml"), "{message}");
    }
}

#[test]
fn duplicates_are_refused() {
    let listener = "[[listener]]\naddress = \"10.0.0.1:443\"\n";
    let message = refused(&GOOD.replace("[[route]]", &format!("{listener}[[route]]")));
    assert!(message.contains("listener 10.0.0.1:443: is defined twice"), "{message}");
    let route = "[[route]]\nhost = \"OBJECTS.example\"\npool = \"objects\"\n";
    let message = refused(&GOOD.replace("[pool.objects]", &format!("{route}[pool.objects]")));
    assert!(message.contains("is defined twice"), "{message}");
}

#[test]
fn an_unknown_key_is_refused_in_every_table() {
    for (from, to) in [
        ("admin =", "admni = 1\nadmin ="),
        ("[[route]]", "nodelay = true\n[[route]]"),
        ("offload = \"auto\"", "offlaod = \"auto\""),
        ("policy =", "polcy = 1\npolicy ="),
        ("key = \"objects.key\"", "key = \"objects.key\", ciphers = 1"),
        ("ca = \"pool-ca.crt\",", "ca = \"pool-ca.crt\", crl = 1,"),
        ("http_port = 8080", "http_port = 8080\nhealth = { pth = 1 }"),
        ("http_port = 8080", "http_port = 8080\nupstream = { idle = 1 }"),
    ] {
        assert!(GOOD.contains(from));
        let result = BalancerConfig::parse(&GOOD.replacen(from, to, 1), "lb.toml");
        assert!(matches!(result, Err(ConfigError::Settings(_))), "{to}");
    }
}

#[test]
fn bodies_go_the_way_that_is_said() {
    for (text, way) in [
        ("", BodyPath::Auto),
        ("body = \"splice\"\n", BodyPath::Splice),
        ("body = \"copy\"\n", BodyPath::Copy),
    ] {
        assert_eq!(parse(&format!("{text}{GOOD}")).body, way);
    }
    assert!(refused(&format!("body = \"fast\"\n{GOOD}")).contains("fast"));
}
