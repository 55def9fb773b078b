//! `AWS::Logs::LogGroup`: its name. The gateway keeps the last lines of each function, by size.

use serde_json::Value;
use unlade_fn_model::lifecycle::reference::ACCOUNT;

use super::outcome::{Done, Failed};
use super::properties::only;
use super::task::Task;
use crate::config::REGION;

pub const PROPERTIES: &[&str] = &["LogGroupName", "RetentionInDays", "Tags"];
/// The advice about other properties.
pub const ADVICE: &str = "Logs are those of functions: `unlade fn logs`";

/// Accepts a group, with a note about settings without an effect.
///
/// # Errors
/// It has a setting that changes more than the length of a log.
pub fn put(task: &Task<'_>, name: &str, properties: &Value) -> Result<Done, Failed> {
    only("AWS::Logs::LogGroup", properties, PROPERTIES, ADVICE)?;
    if properties.get("RetentionInDays").is_some() {
        task.note(
            "RetentionInDays has no effect: the gateway keeps the last lines of each function, by size \
             (`[function_log]` in fn.toml)",
        );
    }
    Ok(Done::new(name).with("Arn", format!("arn:aws:logs:{REGION}:{ACCOUNT}:log-group:{name}:*")))
}
