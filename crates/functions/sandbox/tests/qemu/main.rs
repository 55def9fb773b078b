//! Virtual machines with their worker: one snapshot, several instances.

mod bed;

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;
use unlade_fn_model::isolation::{Isolation, IsolationError, Mode, Origin};

use bed::{Bed, image, machines, machines_of, nonce, run, user};

/// Returns the values that restored machines must not share; copies an object.
const SOURCE: &str = "
import os, random, time
import boto3
s3 = boto3.client('s3')
IMPORTED = time.monotonic()
calls = 0

def opens(path):
    try:
        os.close(os.open(path, os.O_RDWR))
        return True
    except OSError:
        return False

def handler(event, context):
    global calls
    calls += 1
    if 'exit' in event:
        os._exit(3)
    body = s3.get_object(Bucket='box', Key=event['from'])['Body'].read()
    s3.put_object(Bucket='box', Key=event['to'], Body=body[::-1])
    with open('/tmp/%d' % calls, 'w') as file:
        file.write('x')
    return {'bytes': len(body), 'random': random.random(), 'octets': os.urandom(16).hex(),
        'time': time.time(), 'user': os.getuid(), 'calls': calls,
        'files': sorted(os.listdir('/tmp')), 'greeting': os.environ['GREETING'],
        'opens': [path for path in ('/dev/mem', '/dev/vda', '/dev/vport0p1') if opens(path)],
        'variables': sorted(name for name in os.environ if 'UNLADE' in name)}
";

/// A byte pattern without repetition.
fn bytes(bytes: usize) -> Vec<u8> {
    let mut random = unlade_testkit::Random::new(7);
    let mut content = vec![0; bytes];
    content.fill_with(|| random.below(256) as u8);
    content
}

/// The time of day, in seconds.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

#[test]
fn instances_of_one_snapshot_differ_in_what_they_must_and_move_objects() {
    let Some(qemu) = machines() else { return };
    run(async move {
        let dir = tempfile::tempdir().unwrap();
        let mut bed = Bed::new(dir.path()).await;
        let input = bytes(1 << 20);
        fs::write(bed.object("in"), &input).unwrap();
        let mut reversed = input;
        reversed.reverse();
        let template = qemu.prepare(&image(dir.path(), "several", SOURCE)).await.unwrap();
        assert_eq!(
            machines_of("several"),
            Vec::<String>::new(),
            "the machine that was saved has ended"
        );
        let held = template.usage().unwrap();
        assert!(held.pss_bytes > 0 && !held.cpu.is_zero());

        let mut instances = Vec::new();
        let (mut nonces, mut drawn, mut read) = (Vec::new(), Vec::new(), Vec::new());
        for number in 1..=2 {
            let started = template.start(&format!("m-{number}")).await.unwrap();
            assert_eq!(started.origin, Origin::Restored);
            nonces.push(nonce(&started.channel).await);
            assert_eq!(machines_of("several").len(), number as usize);
            if rustix::process::geteuid().is_root() {
                let users: std::collections::HashSet<String> =
                    machines_of("several").iter().map(|number| user(number)).collect();
                assert_eq!(users.len(), number as usize, "each is another user's: {users:?}");
                assert!(!users.contains("0"), "{users:?}");
            }
            bed.attach(number, started.channel, started.region).await;
            instances.push(started.instance);
            for call in 1..=2 {
                let to = format!("out-{number}-{call}");
                let before = now();
                let said = bed.invoke(number, json!({"from": "in", "to": to})).await;
                assert_eq!(said["bytes"], 1 << 20, "{said}");
                assert!(fs::read(bed.object(&to)).unwrap() == reversed, "{to}");
                let then = before - 1.0..=now() + 1.0;
                assert!(then.contains(&said["time"].as_f64().unwrap()), "{said} in {then:?}");
                assert_eq!(said["calls"], call, "its globals are its own");
                assert_eq!(said["files"].as_array().unwrap().len(), call, "so is its /tmp");
                assert_eq!(said["greeting"], "hello");
                assert_eq!(said["user"], 1000);
                assert_eq!(said["opens"], json!([]), "it reaches no device but its channel");
                drawn.push(said["random"].as_f64().unwrap().to_bits());
                read.push(said["octets"].to_string());
            }
        }
        for list in [&nonces, &drawn] {
            let distinct: std::collections::HashSet<&u64> = list.iter().collect();
            assert_eq!(distinct.len(), list.len(), "{list:?}");
        }
        assert_eq!(read.iter().collect::<std::collections::HashSet<_>>().len(), 4, "{read:?}");

        let usage = instances[0].usage().unwrap();
        assert!(usage.pss_bytes >= usage.private_bytes && !usage.cpu.is_zero(), "{usage:?}");
        assert!(template.usage().unwrap().pss_bytes < held.pss_bytes, "they map parts of it");

        // One is killed, one ends by itself; both are removed completely.
        instances[0].kill();
        let why = instances[0].ended().await;
        assert!(why.contains("signal: 9"), "{why}");
        bed.gone(1).await;
        assert!(instances[0].usage().is_err());
        bed.begin(2, json!({"exit": true})).await;
        let why = instances[1].ended().await;
        assert!(why.contains("the instance has ended: 3"), "{why}");
        bed.gone(2).await;
        drop(instances);
        assert_eq!(machines_of("several"), Vec::<String>::new());
        // Pages that were read from holes of the snapshot are now part of it.
        assert!(template.usage().unwrap().pss_bytes >= held.pss_bytes);
    });
}

#[test]
fn what_does_not_import_is_said_by_the_invocation() {
    let Some(qemu) = machines() else { return };
    run(async move {
        let dir = tempfile::tempdir().unwrap();
        let mut bed = Bed::new(dir.path()).await;
        let source = "import nothing_of_that_name\n";
        let template = qemu.prepare(&image(dir.path(), "wrong", source)).await.unwrap();
        let started = template.start("m").await.unwrap();
        bed.attach(1, started.channel, started.region).await;
        let said = bed.invoke(1, json!({})).await;
        assert_eq!(said["errorType"], "Runtime.ImportModuleError", "{said}");
        assert!(said["errorMessage"].as_str().unwrap().contains("nothing_of_that_name"), "{said}");
        // Dropping kills it.
        drop(started.instance);
        bed.gone(1).await;
    });
}

#[test]
fn what_machines_do_not_have_is_refused_with_a_way_out() {
    let Some(qemu) = machines() else { return };
    run(async move {
        let dir = tempfile::tempdir().unwrap();
        let mut stock = image(dir.path(), "refused", SOURCE);
        stock.mode = Mode::Tcp;
        let error = qemu.prepare(&stock).await.err().expect("no relay");
        assert!(matches!(error, IsolationError::Unusable { .. }), "{error}");
        assert!(error.to_string().contains("isolation = \"process\""), "{error}");
        let mut missing = image(dir.path(), "refused", SOURCE);
        missing.python = "/nowhere/python".into();
        assert!(qemu.prepare(&missing).await.is_err());
    });
}
