//! Several tenants in one worker: they share only the process.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc;

use serde_json::{Value, json};
use unlade_fn_worker::config::WorkerConfig;
use unlade_guest_protocol::control::{ControlHead, ObjectName, WriteMode};
use unlade_guest_protocol::descriptor::{PENDING, PREFETCHED};
use unlade_guest_protocol::{CallContext, Frame, Operation, Status};

use crate::bed::gateway::Gateway;
use crate::bed::guest::Guest;
use crate::bed::shared::{SharedWorker, connect};
use crate::bed::{Running, body_of, config, everything, store, store_at};

fn name(key: &str) -> Value {
    json!({"Bucket": "box", "Key": key})
}

fn object(key: &str) -> Value {
    json!({"Bucket": "box", "Key": key, "ContentType": "text/plain"})
}

/// Two tenants in one worker, each with its own store.
struct Pair {
    a: Gateway,
    b: Gateway,
    stores: [Option<Running>; 2],
    addresses: [SocketAddr; 2],
    worker: Option<SharedWorker>,
    configs: BTreeMap<String, WorkerConfig>,
    dir: tempfile::TempDir,
}

impl Pair {
    fn new() -> Pair {
        Pair::with(|_, _| {})
    }

    fn with(change: impl Fn(&str, &mut WorkerConfig)) -> Pair {
        let dir = tempfile::tempdir().unwrap();
        let (mut stores, mut addresses) = (Vec::new(), Vec::new());
        let mut configs = BTreeMap::new();
        for name in ["a", "b"] {
            let own = dir.path().join(name);
            std::fs::create_dir(&own).unwrap();
            let (running, address) = store(&own.join("objects"));
            let mut config = config(&own, address);
            config.tenant.journal = Some(own.join("journal"));
            change(name, &mut config);
            configs.insert(name.to_owned(), config);
            stores.push(Some(running));
            addresses.push(address);
        }
        let worker = Some(SharedWorker::start(&configs));
        let gateway = |name: &str| {
            let mut gateway = connect(&configs[name].control);
            gateway.role(1, everything());
            gateway
        };
        let (a, b) = (gateway("a"), gateway("b"));
        let stores: [_; 2] = stores.try_into().ok().unwrap();
        let addresses: [_; 2] = addresses.try_into().unwrap();
        Pair { a, b, stores, addresses, worker, configs, dir }
    }

    fn objects(&self, tenant: &str) -> std::path::PathBuf {
        self.dir.path().join(tenant).join("objects")
    }
}

/// A guest for whose bucket the worker has learnt the class.
fn learnt(gateway: &mut Gateway) -> Guest {
    let mut guest = gateway.attach(1);
    guest.call("CreateBucket", json!({"Bucket": "box"}), b"").done();
    guest.call("PutObject", object("first"), b"1").done();
    guest
}

#[test]
fn the_same_name_is_another_object_for_another_tenant() {
    let mut pair = Pair::new();
    let (mut a, mut b) = (learnt(&mut pair.a), learnt(&mut pair.b));
    assert!(a.epoch() != b.epoch());
    a.call("PutObject", object("k"), b"of a").done();
    b.call("PutObject", object("k"), b"of b").done();
    assert_eq!(a.call("GetObject", name("k"), b"").body, b"of a");
    assert_eq!(b.call("GetObject", name("k"), b"").body, b"of b");
    // Roles with the same number are separate, too.
    let mine = json!({"statements": [
        {"effect": "allow", "actions": ["s3:GetObject"], "resources": ["box/mine/*"]}]});
    pair.b.role(2, mine);
    pair.a.role(2, everything());
    let (mut a, mut b) = (pair.a.attach(2), pair.b.attach(2));
    assert_eq!(a.call("GetObject", name("k"), b"").body, b"of a");
    assert_eq!(b.call("GetObject", name("k"), b"").code(), "AccessDenied");
}

/// Tenants of the same store, with different rights.
#[test]
fn a_store_of_two_tenants_is_seen_by_each_as_its_role_says() {
    let mut pair = Pair::with(|_, _| {});
    let mut configs = pair.configs.clone();
    let common = configs["a"].store.clone();
    configs.get_mut("b").unwrap().store = common;
    pair.worker.as_ref().unwrap().apply(&configs);
    // Its gateway is disconnected, because the tenant restarts.
    pair.b.rest();
    pair.b = connect(&configs["b"].control);
    pair.b.role(
        1,
        json!({"statements": [
        {"effect": "allow", "actions": ["s3:GetObject"], "resources": ["box/open"]}]}),
    );
    let mut a = learnt(&mut pair.a);
    for key in ["open", "secret"] {
        a.call("PutObject", object(key), key.as_bytes()).done();
    }
    let mut b = pair.b.attach(1);
    assert_eq!(b.call("GetObject", name("open"), b"").body, b"open");
    assert_eq!(b.call("GetObject", name("secret"), b"").code(), "AccessDenied");
    let hinted =
        ObjectName { bucket: "box".into(), key: "secret".into(), version: None, range: None };
    // Neither hints nor prefetched objects of the other tenant give access.
    pair.a.hint("i", 1, vec![hinted.clone()], b"");
    pair.b.hint("i", 1, vec![hinted], b"");
    pair.b.invoke(&b, "i", WriteMode::Sync, b"{}");
    b.invoked();
    assert_eq!(b.call("GetObject", name("secret"), b"").code(), "AccessDenied");
}

#[test]
fn what_a_gateway_names_is_its_own_tenants() {
    let mut pair = Pair::new();
    let mut a = learnt(&mut pair.a);
    let others: Vec<Guest> = (0..3).map(|_| pair.a.attach(1)).collect();
    let last = others.last().unwrap();
    let mut b = learnt(&mut pair.b);
    // An instance of the other tenant: its number does not exist here.
    for said in [
        ControlHead::Detach { instance: last.instance },
        ControlHead::Invoke {
            instance: last.instance,
            invocation: "forged".into(),
            handler: "app.handler".into(),
            function: "f".into(),
            deadline_ms: 0,
            memory_mib: 128,
            writes: WriteMode::Sync,
            context: CallContext::default(),
        },
    ] {
        pair.b.say(said);
        let refused = pair.b.expect(|said| matches!(said, ControlHead::Refused { .. }));
        let ControlHead::Refused { reason, .. } = refused.said else { panic!() };
        assert!(reason.contains("no such instance"), "{reason}");
    }
    // A role that only the other tenant has defined.
    pair.a.role(7, everything());
    let (_channel, instance) = pair.b.say_attach(7, 0, None);
    let refused = pair.b.expect(
        |said| matches!(said, ControlHead::Refused { instance: Some(i), .. } if *i == instance),
    );
    let ControlHead::Refused { reason, .. } = refused.said else { panic!() };
    assert!(reason.contains("role 7 was not said"), "{reason}");
    // An invocation of the other tenant: its failures are neither reported nor forgotten.
    pair.a.invoke(&a, "i", WriteMode::DurableReply, b"{}");
    a.invoked();
    pair.stores[0] = None;
    assert_eq!(a.call("PutObject", object("lost"), b"x").flags, PENDING);
    a.reply("i", b"");
    pair.a.replied("i");
    assert!(pair.b.give_up("i").is_empty());
    assert_eq!(pair.a.settle("i").len(), 1);
    b.call("PutObject", object("k"), b"fine").done();
    drop(others);
}

#[test]
fn a_guest_that_breaks_the_protocol_is_sent_away_alone() {
    let mut pair = Pair::new();
    let (mut a, mut b) = (learnt(&mut pair.a), learnt(&mut pair.b));
    let mut bad = pair.a.attach(1);
    let mut bytes = bad.submission(1, Operation::Call).encode();
    bytes[8] = 77;
    bad.submit_bytes(&bytes);
    let reason = pair.a.gone(&bad);
    assert_eq!(bad.frame(), Frame::Bye(reason));
    // An epoch of another tenant is invalid.
    let mut bad = pair.a.attach(1);
    let mut forged = bad.submission(1, Operation::Call);
    forged.epoch = b.epoch() as u32;
    bad.submit(&forged);
    let reason = pair.a.gone(&bad);
    assert!(reason.contains("of epoch"), "{reason}");
    // Invalid messages of a gateway: the other tenant's gateway stays connected.
    pair.a.say_bytes(&[0xff; 64]);
    pair.a.rest();
    b.call("PutObject", object("k"), b"fine").done();
    assert_eq!(b.call("GetObject", name("k"), b"").body, b"fine");
    pair.a = connect(&pair.configs["a"].control);
    pair.a.role(1, everything());
    drop(a);
    a = pair.a.attach(1);
    a.call("GetObject", name("first"), b"").done();
}

#[test]
fn what_one_has_used_up_another_still_has() {
    let mut pair = Pair::with(|tenant, config| {
        if tenant == "a" {
            config.tenant.calls_max = 2;
            config.tenant.held_bytes_max = unlade_config::ByteSize(150_000);
            config.tenant.body_bytes_max = unlade_config::ByteSize(400_000);
        }
    });
    let (mut a, mut b) = (learnt(&mut pair.a), learnt(&mut pair.b));
    let body = body_of(200_000);
    assert_eq!(a.call("PutObject", object("k"), &body).status, Status::Refused);
    assert_eq!(b.call("PutObject", object("k"), &body).status, Status::Done);
    // A store that is down: calls stay in flight, between attempts.
    pair.stores[0] = None;
    let (listener, mut held) = (TcpListener::bind(pair.addresses[0]).unwrap(), Vec::new());
    let mut hanging: Vec<Guest> = (0..2).map(|_| pair.a.attach(1)).collect();
    for guest in &mut hanging {
        guest.begin("GetObject", name("first"), b"");
        held.push(listener.accept().unwrap());
    }
    assert_eq!(a.call("GetObject", name("first"), b"").status, Status::Refused);
    for _ in 0..4 {
        assert!(b.call("GetObject", name("k"), b"").body == body);
    }
}

#[test]
fn what_was_fetched_ahead_for_one_is_not_another_ones() {
    let mut pair = Pair::new();
    let (mut a, mut b) = (learnt(&mut pair.a), learnt(&mut pair.b));
    a.call("PutObject", object("k"), b"of a").done();
    b.call("PutObject", object("k"), b"of b").done();
    let hinted = ObjectName { bucket: "box".into(), key: "k".into(), version: None, range: None };
    // The same name, in the same invocation.
    pair.a.hint("i", 1, vec![hinted], b"");
    for (gateway, guest) in [(&mut pair.a, &a), (&mut pair.b, &b)] {
        gateway.invoke(guest, "i", WriteMode::Sync, b"{}");
    }
    b.invoked();
    let other = b.call("GetObject", name("k"), b"");
    assert_eq!((other.flags, other.body.as_slice()), (0, &b"of b"[..]));
    a.invoked();
    let own = a.call("GetObject", name("k"), b"");
    assert_eq!((own.flags, own.body.as_slice()), (PREFETCHED, &b"of a"[..]));
}

#[test]
fn a_pending_write_is_seen_by_its_tenant_only() {
    let mut pair = Pair::new();
    let (mut a, mut b) = (learnt(&mut pair.a), learnt(&mut pair.b));
    pair.a.invoke(&a, "i", WriteMode::DurableReply, b"{}");
    a.invoked();
    pair.stores[0] = None;
    assert_eq!(a.call("PutObject", object("k"), b"of a").flags, PENDING);
    assert_eq!(a.call("GetObject", name("k"), b"").body, b"of a");
    let other = b.call("GetObject", name("k"), b"");
    assert_eq!((other.flags, other.code()), (0, "NoSuchKey"));
    // The other tenant does not wait for writes that are pending there.
    assert_eq!(b.call("ListObjectsV2", json!({"Bucket": "box"}), b"").done()["KeyCount"], 1);
}

#[test]
fn journals_of_all_tenants_are_made_again_after_a_crash() {
    let mut pair = Pair::new();
    let (mut a, mut b) = (learnt(&mut pair.a), learnt(&mut pair.b));
    pair.stores = [None, None];
    for (gateway, guest, text) in [(&mut pair.a, &mut a, "of a"), (&mut pair.b, &mut b, "of b")] {
        gateway.invoke(guest, "i", WriteMode::EarlyReply, b"{}");
        guest.invoked();
        let put = guest.call("PutObject", object("k"), text.repeat(9000).as_bytes());
        assert_eq!(put.flags, PENDING);
        guest.reply("i", b"");
        assert!(gateway.settle("i").is_empty());
    }
    pair.worker = None;
    for (at, tenant) in ["a", "b"].into_iter().enumerate() {
        pair.stores[at] = Some(store_at(&pair.objects(tenant), pair.addresses[at]).0);
    }
    pair.worker = Some(SharedWorker::start(&pair.configs));
    for (tenant, text) in [("a", "of a"), ("b", "of b")] {
        let mut gateway = connect(&pair.configs[tenant].control);
        gateway.role(1, everything());
        // A read waits for pending writes.
        let body = gateway.attach(1).call("GetObject", name("k"), b"").body;
        assert!(body == text.repeat(9000).as_bytes(), "{tenant}");
    }
}

#[test]
fn tenants_come_change_and_go_and_others_notice_nothing() {
    let mut pair = Pair::new();
    let (mut a, mut b) = (learnt(&mut pair.a), learnt(&mut pair.b));
    let worker = pair.worker.as_ref().unwrap();
    let mut configs = pair.configs.clone();
    let own = pair.dir.path().join("c");
    std::fs::create_dir(&own).unwrap();
    configs.insert("c".to_owned(), config(&own, pair.addresses[1]));
    // A tenant that cannot be served, because its socket cannot be created.
    configs.insert("d".to_owned(), config(Path::new("/nowhere"), pair.addresses[1]));
    worker.apply(&configs);
    let mut third = connect(&configs["c"].control);
    third.role(1, everything());
    let mut c = third.attach(1);
    assert_eq!(c.call("GetObject", name("first"), b"").body, b"1");
    // The tenant gets another store: its sessions end, after pending writes have finished.
    pair.b.invoke(&b, "i", WriteMode::DurableReply, b"{}");
    b.invoked();
    b.call("PutObject", object("late"), b"late").done();
    let store = configs["a"].store.clone();
    configs.get_mut("b").unwrap().store = store;
    worker.apply(&configs);
    pair.b.rest();
    let mut again = connect(&configs["b"].control);
    again.role(1, everything());
    let mut b = again.attach(1);
    assert_eq!(b.call("GetObject", name("late"), b"").code(), "NoSuchKey");
    assert_eq!(c.call("GetObject", name("late"), b"").body, b"late");
    // A tenant is removed, with all of its resources.
    configs.remove("b");
    worker.apply(&configs);
    again.rest();
    crate::bed::until("its socket is gone", || !pair.configs["b"].control.exists());
    for _ in 0..3 {
        a.call("PutObject", object("k"), b"fine").done();
        c.call("GetObject", name("first"), b"").done();
    }
}

/// A store that reports the connection and the signing key of each request.
fn keyed() -> (SocketAddr, mpsc::Receiver<(usize, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (said, asked) = mpsc::channel();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let (Ok(stream), said) = (stream, said.clone()) else { return };
            std::thread::spawn(move || answer(stream, number, &said));
        }
    });
    (address, asked)
}

fn answer(stream: TcpStream, number: usize, said: &mpsc::Sender<(usize, String)>) {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut key, mut length, mut line) = (String::new(), 0, String::new());
        while line != "\r\n" {
            line.clear();
            if stream.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if let Some((_, rest)) = line.split_once("Credential=") {
                key = rest.split('/').next().unwrap().to_owned();
            }
            if let Some(text) = line.strip_prefix("content-length: ") {
                length = text.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbody";
        if stream.read_exact(&mut body).is_err() || stream.get_mut().write_all(answer).is_err() {
            return;
        }
        let _ = said.send((number, key));
    }
}

#[test]
fn connections_are_kept_for_their_tenants_keys_only() {
    let (address, asked) = keyed();
    let mut pair = Pair::with(|tenant, config| {
        config.store.endpoint = Some(format!("http://{address}"));
        config.store.credentials = unlade_fn_worker::store::credentials::CredentialsConfig::Keys {
            access_key_id: format!("KEYOF{tenant}"),
            secret_access_key: unlade_fn_worker::store::credentials::Secret("secret".to_owned()),
            session_token: None,
        };
    });
    let (mut a, mut b) = (pair.a.attach(1), pair.b.attach(1));
    let mut connections = BTreeMap::new();
    for round in 0..4 {
        for (guest, tenant) in [(&mut a, "a"), (&mut b, "b")] {
            assert_eq!(guest.call("GetObject", name("k"), b"").body, b"body");
            let (connection, key) = asked.recv().unwrap();
            assert_eq!(key, format!("KEYOF{tenant}"));
            // The connection is kept, and reused only by its own tenant.
            let kept = *connections.entry(tenant).or_insert(connection);
            assert_eq!(kept, connection, "round {round}");
        }
    }
    assert_ne!(connections["a"], connections["b"]);
}
