//! Functions whose import cannot be shared: the zygote restarts without it, and instances import
//! the function themselves.

use std::path::Path;
use std::rc::Rc;

use serde_json::json;
use unlade_fn_model::isolation::{Origin, Template};

use crate::bed::{Bed, bed, code, descendants, guest};

/// A template of a function with this import, which returns the value of its `result`.
async fn template(bed: &mut Bed, import: &str) -> Rc<dyn Template> {
    let app = format!("{import}\ndef handler(event, context):\n    return result\n");
    bed.image.code = code(bed.directory.path(), "imports", &app);
    bed.template().await
}

/// The capabilities and filters of a child process of this thread, from `/proc`.
fn rights(number: usize) -> Vec<String> {
    let path = format!("/proc/{}/status", descendants()[number]);
    let status = std::fs::read_to_string(Path::new(&path)).unwrap();
    let named = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp:"];
    let wanted = |line: &&str| named.iter().any(|name| line.starts_with(name));
    status.lines().filter(wanted).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_file_written_at_import_is_in_the_tmp_of_every_instance() {
    let Some(mut bed) = bed() else { return };
    let app = "with open('/tmp/words', 'w') as file:\n    file.write('here')\n\
               def handler(event, context):\n    return open('/tmp/words').read()\n";
    bed.image.code = code(bed.directory.path(), "files", app);
    let template = bed.template().await;
    let why = &template.unpreloaded().unwrap().why;
    assert!(why.contains("/tmp/words"), "{why}");
    for name in ["one", "two"] {
        let mut one = guest(&template, name).await;
        assert_eq!(one.origin, Origin::Cold, "it imports by itself");
        assert_eq!(one.run(""), "here");
    }
    drop(template);
    bed.nothing_is_left().await;
}

#[tokio::test]
async fn a_call_of_the_host_at_import_is_not_answered_by_an_error_for_all_instances() {
    let Some(mut bed) = bed() else { return };
    // A typical function catches every error and continues with a default.
    let import = "import boto3, os\n\
                  result = os.environ.get('IMPORTED_AHEAD', 'by itself')\n\
                  if os.getpid() == 1:\n    \
                      try: boto3.client('s3').get_object(Bucket='b', Key='k')\n    \
                      except Exception: result = 'DEFAULT'";
    bed.image.preload.modules.push("json".to_owned());
    let template = template(&mut bed, import).await;
    let unpreloaded = template.unpreloaded().unwrap();
    assert!(unpreloaded.why.contains("calls the host"), "{unpreloaded:?}");
    assert!(unpreloaded.why.contains("/var/task/app.py:4"), "{unpreloaded:?}");
    assert!(!unpreloaded.modules, "json is imported ahead all the same");
    let mut one = guest(&template, "one").await;
    assert_eq!(one.origin, Origin::Restored);
    assert_eq!(one.run(""), "by itself");
    drop((one, template));
    bed.nothing_is_left().await;
}

/// The supervisor is creating roots and groups in advance at that time, and their messages have no
/// receiver.
#[tokio::test]
async fn a_template_that_is_dropped_at_once_leaves_no_control_groups() {
    let Some(bed) = bed() else { return };
    for _ in 0..5 {
        drop(bed.template().await);
    }
    bed.nothing_is_left().await;
}

#[tokio::test]
async fn a_zygote_that_starts_again_has_no_more_rights_and_ends_as_ever() {
    let Some(mut bed) = bed() else { return };
    let ordinary = template(&mut bed, "result = 1").await;
    assert!(ordinary.unpreloaded().is_none());
    let before = rights(1);
    drop(ordinary);
    bed.nothing_is_left().await;
    let import = "import subprocess, threading, time\n\
                  child = subprocess.Popen(['/usr/bin/sleep', '600'])\n\
                  threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n\
                  result = child.poll()";
    let again = template(&mut bed, import).await;
    assert!(again.unpreloaded().is_some());
    assert_eq!(
        descendants().len(),
        2,
        "a supervisor and its zygote: what was started has been ended"
    );
    assert_eq!(rights(1), before);
    let mut one = guest(&again, "one").await;
    assert_eq!(one.run(""), json!(null));
    let supervisor = rustix::process::Pid::from_raw(descendants()[0]).unwrap();
    rustix::process::kill_process(supervisor, rustix::process::Signal::KILL).unwrap();
    assert!(one.instance.ended().await.contains("its template ended"));
    drop((one, again));
    for _ in 0..500 {
        if descendants().is_empty() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(descendants().is_empty(), "the zygote ends with its supervisor");
    for controller in crate::bed::CONTROLLERS {
        for group in bed.groups(controller) {
            crate::removed(&group).await;
        }
    }
    bed.nothing_is_left().await;
}
