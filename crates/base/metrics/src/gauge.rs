//! Gauges: current numbers and amounts.

macro_rules! gauges {
    ($($(#[$doc:meta])* $variant:ident => $name:literal, $help:literal;)*) => {
        /// A current number of things, or of bytes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Gauge { $($(#[$doc])* #[doc = concat!(": `", $name, "`")] $variant,)* }

        impl Gauge {
            /// Every gauge, in the order they are rendered.
            pub const ALL: &'static [Gauge] = &[$(Gauge::$variant,)*];

            /// The name as rendered.
            pub fn name(self) -> &'static str {
                match self { $(Gauge::$variant => $name,)* }
            }

            /// A sentence that describes the gauge.
            pub fn help(self) -> &'static str {
                match self { $(Gauge::$variant => $help,)* }
            }
        }
    };
}

gauges! {
    /// Connections of clients owned by the balancer itself
    OpenConnections => "unlade_lb_open_connections",
        "Connections of clients that the balancer owns itself.";
    /// Connections that have changed their protocol
    OpenTunnels => "unlade_lb_open_tunnels",
        "Connections of clients that have changed their protocol and are tunnels.";
    /// Connections that servers own
    FlowsOwned => "unlade_lb_owned_flows",
        "Connections of clients that servers own at the moment.";
    /// Connections whose owner is changing
    MigrationsInFlight => "unlade_lb_migrations_in_flight",
        "Connections whose owner is changing.";
    /// Pooled connections to servers
    UpstreamIdle => "unlade_lb_upstream_idle_connections",
        "Pooled connections to servers.";
    /// Requests that servers are answering in proxy mode
    UpstreamBusy => "unlade_lb_upstream_busy_connections",
        "Connections to servers that carry a request.";
    /// Servers that are healthy
    ServersHealthy => "unlade_lb_healthy_servers",
        "Servers, over all pools, that are healthy.";
    /// Control channels that are up
    ChannelsUp => "unlade_channels_up",
        "Control channels that are established.";
    /// Bytes of held packets
    HeldBytes => "unlade_held_bytes",
        "Bytes in packets that are held for connections whose owner is changing.";
    /// Entries of the flow table
    FlowEntries => "unlade_flow_entries",
        "Entries in the flow table of the steering program.";
    /// Adopted connections that the server owns
    AdoptedConnections => "unlade_backend_adopted_connections",
        "Adopted connections that the server owns.";
    /// Connections of balancers for whose clients responses are sealed
    SealingConnections => "unlade_backend_sealing_connections",
        "Connections of balancers on which responses are sealed for their clients.";
    /// Connections that the server accepted itself
    BackendConnections => "unlade_backend_open_connections",
        "Connections accepted directly that are open.";
    /// Kept connections to the local server
    SidecarIdle => "unlade_sidecar_idle_connections",
        "Pooled connections to the local server.";
    /// Connections to the local server in use
    SidecarBusy => "unlade_sidecar_busy_connections",
        "Connections to the local server that carry a request, or belong to one client.";
    /// Connections with an entry at the agent
    AgentConnections => "unlade_agent_connections",
        "Connections of balancers to which rules have come, and that are not idle.";
}
