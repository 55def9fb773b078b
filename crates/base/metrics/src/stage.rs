//! What is timed.

/// Stages of a migration share this family; its label is `stage`.
pub(crate) const MIGRATION: &str = "unlade_migration_stage_seconds";
/// Times of requests and connections share this family; its label is `stage` as well.
pub(crate) const SERVICE: &str = "unlade_service_seconds";

macro_rules! stages {
    ($($(#[$doc:meta])* $variant:ident => $family:ident, $text:literal;)*) => {
        /// Something that is timed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Stage { $($(#[$doc])* $variant,)* }

        impl Stage {
            /// Every stage, in the order they are rendered: those of one family together.
            pub const ALL: &'static [Stage] = &[$(Stage::$variant,)*];

            /// The value of the label `stage`.
            pub fn as_str(self) -> &'static str {
                match self { $(Stage::$variant => $text,)* }
            }

            /// The name of the family.
            pub fn family(self) -> &'static str {
                match self { $(Stage::$variant => $family,)* }
            }
        }
    };
}

stages! {
    /// Telling the steering program to hold the connection's packets.
    Hold => MIGRATION, "hold";
    /// Describing the TLS record layer.
    SerializeTls => MIGRATION, "serialize_tls";
    /// Describing the socket, and closing it silently.
    SerializeTcp => MIGRATION, "serialize_tcp";
    /// From the offer to the answer: the channel both ways and the server's work.
    Ship => MIGRATION, "ship";
    /// Rebuilding the socket.
    RestoreTcp => MIGRATION, "restore_tcp";
    /// Rebuilding the TLS record layer.
    RestoreTls => MIGRATION, "restore_tls";
    /// Telling the steering program to redirect, and replaying what was held.
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

/// What a family of stages times, in one sentence.
pub(crate) fn help(family: &str) -> &'static str {
    match family {
        MIGRATION => "Time that the stages of moving a connection take.",
        _ => "Time that requests and what they need take.",
    }
}
