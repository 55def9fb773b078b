//! Timed stages.

/// Family of the stages of a migration; its label is `stage`.
pub(crate) const MIGRATION: &str = "unlade_migration_stage_seconds";
/// Family of the stages of requests and connections; its label is `stage` too.
pub(crate) const SERVICE: &str = "unlade_service_seconds";

macro_rules! stages {
    ($($(#[doc = $doc:literal])+ $variant:ident => $family:ident, $text:literal;)*) => {
        /// A timed stage.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Stage { $($(#[doc = $doc])+ $variant,)* }

        impl Stage {
            /// Every stage, in the order they are rendered, family by family.
            pub const ALL: &'static [Stage] = &[$(Stage::$variant,)*];

            /// The value of the label `stage`.
            pub fn as_str(self) -> &'static str {
                match self { $(Stage::$variant => $text,)* }
            }

            /// A sentence that describes the stage.
            pub fn meaning(self) -> &'static str {
                match self { $(Stage::$variant => concat!($($doc),+).trim_start(),)* }
            }

            /// The name of the family.
            pub fn family(self) -> &'static str {
                match self { $(Stage::$variant => $family,)* }
            }
        }
    };
}

stages! {
    /// Setting the steering program to hold the connection's packets.
    Hold => MIGRATION, "hold";
    /// Serialising the TLS record layer.
    SerializeTls => MIGRATION, "serialize_tls";
    /// Serialising the socket, and closing it silently.
    SerializeTcp => MIGRATION, "serialize_tcp";
    /// From the offer to the answer: both directions of the channel and the server's work.
    Ship => MIGRATION, "ship";
    /// Rebuilding the socket.
    RestoreTcp => MIGRATION, "restore_tcp";
    /// Rebuilding the TLS record layer.
    RestoreTls => MIGRATION, "restore_tls";
    /// Setting the steering program to redirect, and replaying the held packets.
    Redirect => MIGRATION, "redirect";
    /// The server's work from the offer to READY.
    Adopt => MIGRATION, "adopt";
    /// From a returned connection's arrival to its socket being live at the balancer.
    Reclaim => MIGRATION, "reclaim";
    /// From the freeze to the redirect, at the balancer.
    Total => MIGRATION, "total";

    /// From a request's head to the last byte of its response, proxied.
    RequestProxy => SERVICE, "request_proxy";
    /// From a request's head to the connection being handed over.
    RequestOffload => SERVICE, "request_offload";
    /// From a request's head to the last byte of its response, at the server.
    RequestServed => SERVICE, "request_served";
    /// Establishing a connection to a server.
    UpstreamConnect => SERVICE, "upstream_connect";
    /// From a request's last byte to the response's head, of a server.
    UpstreamResponse => SERVICE, "upstream_response";
    /// A TLS handshake with a client.
    TlsHandshake => SERVICE, "tls_handshake";
    /// A health check.
    HealthCheck => SERVICE, "health_check";
}

/// A sentence that describes a family of stages.
pub(crate) fn help(family: &str) -> &'static str {
    match family {
        MIGRATION => "Duration of the stages of moving a connection.",
        _ => "Duration of requests and of their parts.",
    }
}
