//! The trial import of a function, in an instance of its own, before the function is served.
//!
//! The instance is like any other, with its tenant's worker: a module that reads an object at
//! import time works as usual. It receives a request to import the handler without a call.

use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use unlade_fn_model::isolation::Template;
use unlade_guest_protocol::control::{ControlHead, WriteMode};
use unlade_guest_protocol::{CallContext, HandlerStatus};

use crate::attached_instance::{self, AttachedInstance, InstanceEvents, LAST_WORDS};
use crate::function::Function;
use crate::host::Host;
use crate::invoke::uuid;
use crate::link::{InstanceEvent, Reply};

/// The handler that replaces the function's: it imports the handler that the event names.
const CHECK: &str = "unlade_guest.check.handler";
/// First number of trial instances, outside the pool's range.
const INSTANCE_FIRST: u64 = 1 << 48;

/// Tries a function, with the given template.
///
/// # Errors
/// The reason why it does not start, or the exception of its import, for humans.
pub async fn check(
    host: &Rc<Host>,
    function: &Rc<Function>,
    template: Rc<dyn Template>,
) -> Result<(), String> {
    // A limited number of trials run at a time; the semaphore is never closed.
    let _place = host.trials.acquire().await;
    let id = INSTANCE_FIRST + host.next();
    host.entitle(function);
    let patience = host.config.start_timeout;
    let start = attached_instance::start(id, function, template, patience);
    let (attached_instance, heard) = match tokio::time::timeout(patience, start).await {
        Ok(started) => started?,
        Err(_) => {
            if let Some(link) = function.tenant.try_link() {
                link.say(ControlHead::Detach { instance: id });
                link.forget(id);
            }
            return Err(format!("it did not start within {} s", patience.as_secs_f64()));
        }
    };
    let limit = patience.max(function.manifest.timeout);
    let imported = tokio::time::timeout(limit, import(&attached_instance, heard, limit)).await;
    attached_instance.instance.kill();
    attached_instance.link.say(ControlHead::Detach { instance: id });
    attached_instance.link.forget(id);
    // Its memory is free only after its real end.
    let _ = tokio::time::timeout(patience, attached_instance.instance.ended()).await;
    let late = |_| Err(format!("its import took more than {} s", limit.as_secs_f64()));
    imported.unwrap_or_else(late)
}

async fn import(
    attached_instance: &AttachedInstance,
    mut heard: InstanceEvents,
    limit: Duration,
) -> Result<(), String> {
    let (function, invocation) = (&attached_instance.function, uuid());
    let deadline = (SystemTime::now() + limit).duration_since(UNIX_EPOCH).unwrap_or_default();
    let said = ControlHead::Invoke {
        instance: attached_instance.id,
        invocation: invocation.clone(),
        handler: CHECK.to_owned(),
        function: function.name.clone(),
        deadline_ms: u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX),
        memory_mib: u32::try_from(function.manifest.memory.0 >> 20).unwrap_or(u32::MAX),
        writes: WriteMode::Sync,
        context: CallContext::default(),
    };
    let event = json!({"handler": function.manifest.handler}).to_string();
    attached_instance.link.say_with(said, event.into_bytes(), Vec::new());
    let mut ended = attached_instance.instance.ended();
    let outcome = loop {
        let heard = tokio::select! {
            biased;
            heard = heard.recv() => heard,
            why = &mut ended => break Err(format!("while it was imported, {why}")),
        };
        match heard {
            Some(InstanceEvent::Ready) => {}
            Some(InstanceEvent::Replied(reply)) => break understood(&reply),
            Some(InstanceEvent::Refused(why)) => break Err(why),
            // The process's exit status is more informative than the end of the channel.
            Some(InstanceEvent::Gone(why)) => {
                let why = tokio::time::timeout(LAST_WORDS, &mut ended).await.unwrap_or(why);
                break Err(format!("while it was imported, {why}"));
            }
            None => break Err("the I/O worker is gone".to_owned()),
        }
    };
    attached_instance.link.say(ControlHead::Settle { invocation });
    outcome
}

/// Interprets the reply as an invocation's: an error is the import's failure.
fn understood(reply: &Reply) -> Result<(), String> {
    let said: Value = serde_json::from_slice(&reply.result).unwrap_or_default();
    if reply.status == HandlerStatus::Done && said.is_null() {
        return Ok(());
    }
    let text = |name: &str| said[name].as_str().unwrap_or_default().to_owned();
    let mut why = format!("{}: {}", text("errorType"), text("errorMessage"));
    let frames = said["stackTrace"].as_array().map(Vec::as_slice).unwrap_or_default();
    if !frames.is_empty() {
        why.push_str("\nTraceback (most recent call last):\n");
        why.extend(frames.iter().filter_map(Value::as_str));
    }
    Err(why.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: HandlerStatus, result: &str) -> Reply {
        Reply {
            invocation: "i".to_owned(),
            status,
            log_tail: String::new(),
            settled: None,
            prefetch_us: (0, 0),
            carried_bytes: (0, 0),
            result: result.as_bytes().to_vec(),
        }
    }

    #[test]
    fn what_an_import_raised_is_told_with_its_traceback() {
        assert_eq!(understood(&reply(HandlerStatus::Done, "null")), Ok(()));
        let failure = r#"{"errorType": "Runtime.ImportModuleError", "errorMessage": "No module",
            "stackTrace": ["  File \"app.py\", line 1\n    import x\n"]}"#;
        for status in [HandlerStatus::Done, HandlerStatus::Error] {
            let why = understood(&reply(status, failure)).unwrap_err();
            assert!(why.starts_with("Runtime.ImportModuleError: No module\nTraceback"), "{why}");
            assert!(why.ends_with("import x"), "{why}");
        }
        assert!(understood(&reply(HandlerStatus::Error, "null")).is_err());
    }
}
