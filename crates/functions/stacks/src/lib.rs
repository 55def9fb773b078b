//! The stacks of CloudFormation, as far as tools need them that deploy functions by templates.
//!
//! [`query::decode`] gives the typed request of a form, [`Stacks::call`] its answer in XML. A stack with an
//! operation in progress gives one [`Action`] after the other by [`Stacks::next`], and takes their outcomes
//! by [`Stacks::outcome`]. A [`Stack`] is serialisable at any time between these calls: a process that was
//! killed continues with the action that it was told last.
//!
//! ```
//! use unlade_fn_stacks::{Given, Outcome, Place, Stacks, Work, query};
//!
//! let place = Place { region: "us-east-1".into(), account: "000000000000".into() };
//! let mut stacks = Stacks::new(place, []);
//! let form = b"Action=CreateStack&StackName=app&TemplateBody=Resources: {Q: {Type: AWS::SQS::Queue}}";
//! let given = Given { now_ms: 0, unique: "5f0c6a1e-0000-4000-8000-000000000001", template: None };
//! let reply = stacks.call(&query::decode(form)?, given)?;
//! let id = reply.changed.expect("a new stack");
//!
//! let action = stacks.next(&id, 1).expect("the queue is made");
//! let Work::Create { name, .. } = &action.work else { panic!("it does not exist yet") };
//! assert!(name.starts_with("app-Q-"));
//! let done = Outcome::Done { physical_id: name.clone(), attributes: Default::default() };
//! stacks.outcome(&id, action.step, done, 2)?;
//! assert_eq!(stacks.next(&id, 3), None);
//! assert_eq!(stacks.get(&id).unwrap().status.as_str(), "CREATE_COMPLETE");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limits
//! No clock, thread or I/O, no `unsafe`. One action of a stack at a time.
#![forbid(unsafe_code)]

mod answer;
mod back;
pub mod calls;
pub mod change;
pub mod changeset;
pub mod check;
pub mod document;
pub mod error;
pub mod functions;
pub mod given;
pub mod graph;
pub mod instance;
pub mod kinds;
pub mod operation;
pub mod parameters;
pub mod plan;
pub mod prepare;
pub mod query;
pub mod request;
pub mod sam;
pub mod stack;
pub mod stacks;
pub mod status;
pub mod template;
pub mod xml;
pub mod yaml;

pub use error::Failure;
pub use given::{Given, Reply};
pub use operation::{Action, Object, Outcome, Stale, Work};
pub use request::Request;
pub use stack::{Place, Stack};
pub use stacks::Stacks;
pub use status::Status;
