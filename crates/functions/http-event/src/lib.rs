//! HTTP in front of functions: an HTTP request becomes the event of a function, and the result of the
//! function becomes the response. For function URLs and HTTP APIs.
//!
//! Written from AWS's documentation: Lambda developer guide, *Invoking Lambda function URLs*; API Gateway
//! developer guide, *Create AWS Lambda proxy integrations for HTTP APIs*, *Create routes for HTTP APIs*,
//! *Configure CORS for HTTP APIs*, *Lambda proxy integrations* (REST).
//!
//! ```
//! use unlade_fn_http_event::{Router, result};
//!
//! let mut router = Router::default();
//! router.insert("GET /pets/{id}", 1)?;
//! router.insert("ANY /{proxy+}", 2)?;
//! let found = router.find("GET", "/pets/7").ok_or("no route")?;
//! assert_eq!((*found.value, found.parameters["id"].as_str()), (1, "7"));
//!
//! let response = result::of_v2(br#"{"statusCode": 201, "body": "made"}"#)?;
//! assert_eq!((response.status, response.body.as_slice()), (201, &b"made"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Modules, in the order in which a request passes them:
//! - [`api`]: the definition of an HTTP API: its stages, routes and integrations; [`openapi`] reads one from
//!   an OpenAPI document;
//! - [`route`]: the route of a request;
//! - [`cors`]: cross-origin requests;
//! - [`request`]: a request; [`event`]: its event, with its [`body`] as text;
//! - [`result`]: the response that a result stands for.
//!
//! # Limits
//! No clock, thread or I/O; no `unsafe`. Responses are whole: no streams.
#![forbid(unsafe_code)]

pub mod api;
pub mod body;
pub mod cors;
pub mod event;
pub mod openapi;
pub mod request;
pub mod result;
pub mod route;

pub use api::{Api, Format, Integration, Route, Stage};
pub use cors::Cors;
pub use request::{Context, HttpRequest, Identity};
pub use result::{Malformed, Response};
pub use route::{Found, RouteError, Router};
