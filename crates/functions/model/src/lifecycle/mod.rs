//! The life cycle of functions, as Lambda's API has it: versions, aliases, concurrency, tags, resource
//! policies, URLs, configurations of asynchronous invocations, and event sources. A [`Record`] is the durable
//! state of one function; its methods are the operations that change it.
//!
//! Sans-IO: the time, random revision identifiers and random draws are inputs ([`Stamp`],
//! [`Record::choose`]).

pub mod alias;
pub mod aliases;
pub mod concurrency;
pub mod event_config;
pub mod event_configs;
pub mod page;
pub mod permissions;
pub mod policy;
pub mod record;
pub mod reference;
pub mod sources;
pub mod tags;
pub mod url;
pub mod urls;
pub mod version;

pub use alias::{Alias, AliasChange};
pub use event_config::{EventConfig, EventConfigChange};
pub use page::{Page, page};
pub use policy::{ResourcePolicy, Statement};
pub use record::{Edition, Provisioned, Publication, Record, Stamp};
pub use reference::{Qualifier, Reference, arn};
pub use url::{FunctionUrl, UrlAuth, UrlChange};
pub use version::Version;

#[cfg(test)]
mod tests;
