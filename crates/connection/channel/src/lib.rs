//! The authenticated channel between a balancer and its servers: frames of
//! [`unlade_handoff_protocol`] over mutual TLS.
//!
//! Use it at either end of a pool: the connections' TCP and TLS state passes through it, so every
//! member has a certificate of one authority, and only some members may act as a balancer.
//!
//! 1. [`trust`]: mutual TLS: the files and the members of a pool;
//! 2. [`role`]: the members that may act as a balancer;
//! 3. [`channel`]: frames over the connection, both ways; an [`channel::Outbox`] for other tasks of
//!    the thread;
//! 4. [`sealing`]: frames in one direction, records for clients in the other.
//!
//! ```
//! use rcgen::{CertificateParams, KeyPair, SanType};
//! use unlade_channel::role::{BALANCER_ROLE, Balancers};
//!
//! let mut params = CertificateParams::new(vec!["lb.example".into()])?;
//! params.subject_alt_names.push(SanType::URI(BALANCER_ROLE.try_into()?));
//! let certificate = params.self_signed(&KeyPair::generate()?)?;
//!
//! // A member with the role may act as a balancer, unless names are configured.
//! assert!(Balancers::default().check(certificate.der()).is_ok());
//! assert!(Balancers::named(&["lb.example"])?.check(certificate.der()).is_ok());
//! let error = Balancers::named(&["other.example"])?.check(certificate.der()).unwrap_err();
//! assert!(error.to_string().contains("is not one of the configured balancers"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The balancer's end, connected to a server's agent:
//!
//! ```no_run
//! # async fn talk() -> Result<(), Box<dyn std::error::Error>> {
//! use unlade_channel::channel::Channel;
//! use unlade_channel::trust::{TrustFiles, client_config, server_name};
//!
//! let files = TrustFiles {
//!     ca: "pool-ca.crt".into(),
//!     certificate: "lb.crt".into(),
//!     key: "lb.key".into(),
//! };
//! let address: std::net::SocketAddr = "10.0.0.21:7900".parse()?;
//! let name = server_name(address.ip());
//! let mut channel = Channel::connect(address, name, client_config(&files)?).await?;
//! let hello = channel.receive().await?;
//! # let _ = hello;
//! # Ok(())
//! # }
//! ```
//!
//! # Limits
//! A peer that is silent for [`channel::QUIET_MAX`] is probed and then given up; an outbox has at
//! most [`channel::OUTBOX_BYTES_MAX`]. Runs on one thread of a tokio runtime. It does not
//! reconnect: its caller does. No `unsafe`.
#![forbid(unsafe_code)]

pub mod channel;
pub mod role;
pub mod sealing;
pub mod trust;
