//! Invocations through the worker: events, results, roles, restores.

use serde_json::json;
use unlade_fn_worker::control::ROLES_MAX;
use unlade_guest_protocol::Status;
use unlade_guest_protocol::control::{ControlHead, WriteMode};
use unlade_guest_protocol::descriptor::{MORE, PENDING};

use crate::bed::{Bed, body_of, everything};

/// Requests, URLs and forms that set more than the object: the denial names the action.
#[test]
fn what_a_request_sets_beside_its_object_needs_rights_of_its_own() {
    let mut bed = Bed::new();
    bed.guest().call("CreateBucket", json!({"Bucket": "box"}), b"").done();
    bed.gateway.role(
        2,
        json!({"statements": [
        {"effect": "allow", "actions": ["s3:PutObject", "s3:GetObject", "s3:DeleteObject*"],
         "resources": ["box/*"]}]}),
    );
    let mut guest = bed.gateway.attach(2);
    let mut said = |operation: &str, parameters: serde_json::Value| {
        let came = guest.call(operation, parameters, b"");
        if came.status == Status::Done {
            return String::new();
        }
        let text = came.meta["error"]["Message"].as_str().unwrap_or_default();
        let words: Vec<&str> = text.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "allow");
        at.map(|at| words[at + 1]).unwrap_or(text).to_owned()
    };
    let with = |name: &str, value: serde_json::Value| {
        let mut parameters = json!({"Bucket": "box", "Key": "k"});
        parameters[name] = value;
        parameters
    };
    let until = json!({"$instant": "2030-01-02T03:04:05.000Z"});
    for (operation, name, value, action) in [
        ("PutObject", "ACL", json!("public-read"), "s3:PutObjectAcl"),
        ("PutObject", "Tagging", json!("a=b"), "s3:PutObjectTagging"),
        ("CreateMultipartUpload", "GrantRead", json!("id=1"), "s3:PutObjectAcl"),
        ("CreateMultipartUpload", "Tagging", json!("a=b"), "s3:PutObjectTagging"),
        ("PutObject", "ObjectLockRetainUntilDate", until, "s3:PutObjectRetention"),
        ("PutObject", "ObjectLockLegalHoldStatus", json!("ON"), "s3:PutObjectLegalHold"),
        ("DeleteObject", "BypassGovernanceRetention", json!(true), "s3:BypassGovernanceRetention"),
        ("GetObject", "VersionId", json!("7"), "s3:GetObjectVersion"),
        ("GetObjectAttributes", "ObjectAttributes", json!(["ETag"]), "s3:GetObjectAttributes"),
        ("CopyObject", "CopySource", json!("other/k"), "s3:GetObject"),
    ] {
        let parameters = with(name, value);
        assert_eq!(said(operation, parameters.clone()), action, "{operation} {parameters}");
        let url = json!({"Operation": operation, "Parameters": parameters, "ExpiresIn": 60});
        assert_eq!(said("GeneratePresignedUrl", url), action, "{operation} {parameters}");
    }
    let form = |conditions: serde_json::Value| with("Conditions", conditions);
    assert_eq!(said("GeneratePresignedPost", form(json!([]))), "");
    let open = form(json!([["starts-with", "$acl", ""]]));
    assert_eq!(said("GeneratePresignedPost", open), "s3:PutObjectAcl");
    assert_eq!(said("PutObject", json!({"Bucket": "box", "Key": "k"})), "");
    let copy = json!({"Bucket": "box", "Key": "copy", "CopySource": "box/k"});
    assert_eq!(said("CopyObject", copy), "", "with the tags of its source");
}

#[test]
fn events_and_results_of_any_size_pass() {
    let mut bed = Bed::new();
    let mut guest = bed.guest();
    for (at, bytes) in [0, 10, 50_000, 1_000_000].into_iter().enumerate() {
        let event = body_of(bytes);
        let id = format!("i{at}");
        bed.gateway.invoke(&guest, &id, WriteMode::Sync, &event);
        let (head, came) = guest.invoked();
        assert_eq!((head.id.as_str(), head.handler.as_str()), (id.as_str(), "app.handler"));
        assert!(came == event);
        let result = body_of(bytes + 1);
        guest.reply(&id, &result);
        let replied = bed.gateway.replied(&id);
        assert!(replied.bytes == result);
        let ControlHead::Replied { log_tail, pending_writes, .. } = replied.said else { panic!() };
        assert_eq!((log_tail.as_str(), pending_writes), ("printed", 0));
    }
}

#[test]
fn an_instance_runs_one_invocation_at_a_time() {
    let mut bed = Bed::new();
    let mut guest = bed.guest();
    bed.gateway.invoke(&guest, "first", WriteMode::Sync, b"{}");
    assert_eq!(guest.invoked().0.id, "first");
    bed.gateway.invoke(&guest, "second", WriteMode::Sync, b"{}");
    let second = |said: &ControlHead| matches!(said, ControlHead::Refused { invocation: Some(id), .. } if id == "second");
    bed.gateway.expect(second);
    guest.reply("first", b"1");
    assert_eq!(bed.gateway.replied("first").bytes, b"1");
}

#[test]
fn a_role_decides_what_its_instances_may_do() {
    let mut bed = Bed::new();
    let mut owner = bed.guest();
    for bucket in ["input", "output"] {
        owner.call("CreateBucket", json!({"Bucket": bucket}), b"").done();
    }
    owner.call("PutObject", json!({"Bucket": "input", "Key": "a/1"}), b"one").done();
    owner.call("PutObject", json!({"Bucket": "input", "Key": "b/1"}), b"two").done();
    let policy = json!({"statements": [
        {"effect": "allow", "actions": ["s3:GetObject"], "resources": ["input/a/*"]},
        {"effect": "allow", "actions": ["s3:PutObject"], "resources": ["output/*"]}]});
    bed.gateway.role(2, policy);
    let mut guest = bed.gateway.attach(2);
    let mut code = |operation: &str, parameters, body: &[u8]| {
        let came = guest.call(operation, parameters, body);
        match came.status {
            Status::Done => "done".to_owned(),
            _ => came.code().to_owned(),
        }
    };
    assert_eq!(code("GetObject", json!({"Bucket": "input", "Key": "a/1"}), b""), "done");
    assert_eq!(code("GetObject", json!({"Bucket": "input", "Key": "b/1"}), b""), "AccessDenied");
    let copy = |source: &str| json!({"Bucket": "output", "Key": "c", "CopySource": source});
    assert_eq!(code("CopyObject", copy("input/a/1"), b""), "done");
    assert_eq!(code("CopyObject", copy("input/b/1"), b""), "AccessDenied");
    assert_eq!(code("DeleteObject", json!({"Bucket": "output", "Key": "c"}), b""), "AccessDenied");
    let sneaky = json!({"Bucket": "input", "Key": "a/../b/1"});
    assert_eq!(code("GetObject", sneaky, b""), "Invalid");
    let signed = json!({"Operation": "GetObject",
        "Parameters": {"Bucket": "input", "Key": "b/1"}, "ExpiresIn": 60});
    assert_eq!(code("GeneratePresignedUrl", signed, b""), "AccessDenied");
    // A large body that the role does not allow is refused at once.
    let put = json!({"Bucket": "input", "Key": "a/2"});
    assert_eq!(code("PutObject", put, &body_of(300_000)), "AccessDenied");
}

/// Keys of the request, of its parameters and of the role; and what holders of URLs could add.
#[test]
fn a_policy_document_decides_by_conditions() {
    let mut bed = Bed::new();
    let mut owner = bed.guest();
    owner.call("CreateBucket", json!({"Bucket": "box"}), b"").done();
    owner.call("PutObject", json!({"Bucket": "box", "Key": "acme/1"}), b"one").done();
    bed.gateway.role(2, json!({
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::box",
             "Condition": {"StringEquals": {"s3:prefix": "acme/", "aws:RequestedRegion": "us-east-1"}}},
            {"Effect": "Allow", "Action": "s3:GetObject",
             "Resource": "arn:aws:s3:::box/${aws:PrincipalAccount}/*",
             "Condition": {"DateGreaterThan": {"aws:CurrentTime": "2020-01-01T00:00:00Z"}}},
            {"Effect": "Allow", "Action": ["s3:PutObject", "s3:PutObjectAcl"], "Resource": "*"},
            {"Effect": "Deny", "Action": "s3:PutObject", "Resource": "arn:aws:s3:::box/locked*"},
            {"Effect": "Deny", "Action": "s3:PutObject", "Resource": "*",
             "Condition": {"StringEquals": {"s3:x-amz-acl": "public-read"}}}],
        "facts": {"aws:PrincipalAccount": "acme"}}));
    let mut guest = bed.gateway.attach(2);
    let mut code = |operation: &str, parameters| {
        let came = guest.call(operation, parameters, b"");
        match came.status {
            Status::Done => "done".to_owned(),
            _ => came.code().to_owned(),
        }
    };
    let list = |prefix: &str| json!({"Bucket": "box", "Prefix": prefix});
    assert_eq!(code("ListObjectsV2", list("acme/")), "done");
    assert_eq!(code("ListObjectsV2", list("other/")), "AccessDenied");
    assert_eq!(code("ListObjectsV2", json!({"Bucket": "box"})), "AccessDenied");
    let get = |key: &str| json!({"Bucket": "box", "Key": key});
    assert_eq!(code("GetObject", get("acme/1")), "done");
    assert_eq!(code("GetObject", get("other/1")), "AccessDenied");
    let put = |key: &str, acl: &str| json!({"Bucket": "box", "Key": key, "ACL": acl});
    assert_eq!(code("PutObject", put("k", "private")), "done");
    assert_eq!(code("PutObject", put("k", "public-read")), "AccessDenied");
    // The holder of a URL chooses its time, and could add a field.
    let url = |operation: &str, parameters| json!({"Operation": operation, "Parameters": parameters, "ExpiresIn": 60});
    assert_eq!(code("GeneratePresignedUrl", url("GetObject", get("acme/1"))), "AccessDenied");
    let open = url("PutObject", get("k"));
    assert_eq!(code("GeneratePresignedUrl", open), "AccessDenied");
    assert_eq!(code("GeneratePresignedUrl", url("PutObject", put("k", "private"))), "done");
    // The role of the form's maker must allow every key that its holder could choose.
    bed.gateway.role(
        3,
        json!({"statements": [
        {"effect": "allow", "actions": ["s3:PutObject"], "resources": ["box/*"]},
        {"effect": "deny", "actions": ["s3:PutObject"], "resources": ["box/locked"]}]}),
    );
    let mut guest = bed.gateway.attach(3);
    let mut form = |key: &str| {
        let came = guest.call("GeneratePresignedPost", json!({"Bucket": "box", "Key": key}), b"");
        came.status == Status::Done
    };
    assert!(form("k") && form("open/${filename}"));
    assert!(!form("lock${filename}") && !form("locked"));
}

/// Calls that were allowed go on: a body of which the guest has a part, and a write that is not durable.
#[test]
fn a_changed_role_decides_about_the_next_call_of_a_running_instance() {
    let mut bed = Bed::new();
    let role = |resources: serde_json::Value| {
        json!({"statements": [
            {"effect": "allow", "actions": ["s3:*"], "resources": resources}]})
    };
    let (wide, narrow) = (role(json!(["box", "box/*"])), role(json!(["box/open/*"])));
    let named = |key: &str| json!({"Bucket": "box", "Key": key});
    bed.gateway.role(2, wide.clone());
    let mut guest = bed.gateway.attach(2);
    guest.call("CreateBucket", json!({"Bucket": "box"}), b"").done();
    let body = body_of(3_000_000);
    guest.call("PutObject", named("big"), &body).done();
    guest.call("PutObject", named("open/small"), b"small").done();
    bed.gateway.invoke(&guest, "i", WriteMode::DurableReply, b"{}");
    guest.invoked();
    guest.begin("GetObject", named("big"), b"");
    let first = guest.completion();
    assert_ne!(first.flags & MORE, 0);
    let late = guest.call("PutObject", named("late"), b"late");
    assert_eq!(late.flags, PENDING);
    // Once it has answered this, the worker knows the role.
    let mut change = |policy: serde_json::Value| {
        bed.gateway.role(2, policy);
        bed.gateway.give_up("another");
    };
    change(narrow);
    let denied = guest.call("GetObject", named("big"), b"");
    assert_eq!(denied.code(), "AccessDenied");
    let said = denied.meta["error"]["Message"].as_str().unwrap().to_owned();
    assert!(said.contains("does not allow s3:GetObject on box/big"), "{said}");
    let (mut rest, mut last) = (guest.piece(&first), first);
    while last.flags & MORE != 0 {
        last = guest.read(first.token, 0);
        rest.extend(guest.piece(&last));
    }
    assert!(rest == body);
    guest.release(first.token);
    assert_eq!(guest.call("GetObject", named("open/small"), b"").body, b"small");
    change(wide.clone());
    guest.call("GetObject", named("big"), b"").done();
    // A policy that is none gives no rights.
    change(json!({"statements": 7}));
    assert_eq!(guest.call("GetObject", named("open/small"), b"").code(), "AccessDenied");
    change(wide);
    bed.gateway.say(ControlHead::Forget { role: 2 });
    let (_own, instance) = bed.gateway.say_attach(2, 0, None);
    bed.gateway.expect(
        |said| matches!(said, ControlHead::Refused { instance: Some(i), .. } if *i == instance),
    );
    assert_eq!(guest.call("GetObject", named("late"), b"").body, b"late", "it keeps its role");
    guest.reply("i", b"");
    assert!(bed.gateway.settle("i").is_empty());
}

#[test]
fn a_restored_instance_has_another_epoch_and_a_fresh_region() {
    let mut bed = Bed::new();
    let mut guest = bed.guest();
    guest.call("CreateBucket", json!({"Bucket": "box"}), b"").done();
    let before = guest.epoch();
    guest.greet_again();
    assert_ne!(guest.epoch(), before);
    let put = json!({"Bucket": "box", "Key": "k"});
    guest.call("PutObject", put.clone(), b"after").done();
    assert_eq!(guest.call("GetObject", put, b"").body, b"after");
}

#[test]
fn an_instance_that_is_detached_is_told_and_gone() {
    let mut bed = Bed::new();
    let guest = bed.guest();
    bed.gateway.say(ControlHead::Detach { instance: guest.instance });
    assert_eq!(bed.gateway.gone(&guest), "detached");
    bed.gateway.say(ControlHead::Detach { instance: 77 });
    bed.gateway.expect(|said| matches!(said, ControlHead::Refused { instance: Some(77), .. }));
}

#[test]
fn bytes_that_are_no_message_end_a_gateway_and_no_other() {
    let mut bed = Bed::new();
    let mut other = crate::bed::gateway::Gateway::connect(&bed.config.control);
    other.role(1, crate::bed::everything());
    let guest = other.attach(1);
    other.say_bytes(&[0xff; 16]);
    assert_eq!(other.rest(), []);
    drop(guest);
    let mut guest = bed.guest();
    guest.call("ListBuckets", json!({}), b"").done();
}

#[test]
fn a_role_that_is_known_is_replaced_though_there_are_no_more() {
    let mut bed = Bed::new();
    for role in 2..=ROLES_MAX as u64 {
        bed.gateway.role(role, json!({"statements": []}));
    }
    // The first role, which had all rights.
    bed.gateway.role(1, json!({"statements": []}));
    let denied = bed.guest().call("ListBuckets", json!({}), b"");
    assert_eq!(denied.code(), "AccessDenied");
    bed.gateway.role(0, everything());
    bed.gateway.expect(
        |said| matches!(said, ControlHead::Refused { reason, .. } if reason.contains("roles")),
    );
}
