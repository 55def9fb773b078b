//! Counted events. To add an event, add a line to the section it belongs to.

use crate::Family;
use crate::label::{
    AdoptionRefusal, Begin, CallEnd, CopyBy, CopyFallback, CutRefusal, CutService, DeliveryResult,
    Direction, EventEnd, Fallback, FinalClass, FnDenial, FnHttpEnd, FnRuntime, Health, Label,
    MessageEnd, Mode, NotificationResult, OffloadRefusal, PerformResult, PollResult, PrefetchEnd,
    RefusedConnection, RequestHeadReason, RequestReason, ResponseReason, RuleResult,
    SealingRefusal, SidecarFailure, StatusClass, Treatment, Trigger, Unfit, UpstreamFailure,
};

/// The label type of a variant: `()` where it has none.
macro_rules! label {
    () => {
        ()
    };
    ($label:ty) => {
        $label
    };
}

macro_rules! events {
    (@all $all:ident, $variant:ident) => { $all.push(Event::$variant) };
    (@all $all:ident, $variant:ident, $label:ty) => {
        $all.extend(<$label as Label>::values().map(Event::$variant))
    };
    ($(
        $(#[$doc:meta])*
        $variant:ident $(($bind:ident: $label:ty))? => $name:literal, $help:literal;
    )*) => {
        /// A counted event. A variant's value distinguishes the samples of its family.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Event { $($(#[$doc])* #[doc = concat!(": `", $name, "_total`")] $variant $(($label))?,)* }

        #[derive(Clone, Copy)]
        enum FamilyIndex { $($variant,)* }

        /// Every family, in the order they are rendered.
        pub(crate) const FAMILIES: &[Family] = &[$(Family {
            name: $name,
            help: $help,
            label: <label!($($label)?) as Label>::KEY,
            count: <label!($($label)?) as Label>::COUNT,
            text: <label!($($label)?) as Label>::text,
            meaning: <label!($($label)?) as Label>::meaning,
        },)*];

        impl Event {
            /// The index of the event's counter, below [`COUNTERS`].
            pub(crate) fn index(self) -> usize {
                match self {
                    $(Event::$variant $(($bind))? => {
                        let first = FIRST[FamilyIndex::$variant as usize];
                        $(let first = first + Label::index($bind);)?
                        first
                    })*
                }
            }

            fn family_index(self) -> usize {
                match self {
                    $(Event::$variant { .. } => FamilyIndex::$variant as usize,)*
                }
            }

            /// Every event, in the order they are rendered.
            pub fn all() -> Vec<Event> {
                let mut all = Vec::with_capacity(COUNTERS);
                $(events!(@all all, $variant $(, $label)?);)*
                all
            }
        }
    };
}

events! {
    // Connections of clients.
    /// A client's connection was accepted
    ConnectionAccepted => "unlade_lb_connections_accepted",
        "Connections accepted from clients.";
    /// A client's connection was closed at once
    ConnectionRefused(reason: RefusedConnection) => "unlade_lb_connections_refused",
        "Connections of clients closed at once.";
    /// A client's connection ended, at the balancer or at a server
    ConnectionClosed => "unlade_lb_connections_closed",
        "Connections of clients that ended.";
    /// A client did not send a request's head in time
    HeadTimeout => "unlade_lb_head_timeouts",
        "Connections closed because a request's head did not arrive in time.";
    /// A client took the response too slowly, or sent the body too slowly
    ClientStalled => "unlade_lb_clients_stalled",
        "Connections closed because the client transferred no byte for too long.";
    /// A keep-alive connection was silent for too long
    IdleTimeout => "unlade_lb_idle_timeouts",
        "Connections closed because no further request came.";
    /// A TLS handshake was completed
    TlsHandshake => "unlade_lb_tls_handshakes",
        "TLS handshakes completed with clients.";
    /// A TLS handshake failed
    TlsHandshakeFailed => "unlade_lb_tls_handshakes_failed",
        "TLS handshakes with clients that failed.";
    /// An established TLS connection violated the protocol
    TlsBroken => "unlade_lb_tls_broken",
        "TLS connections closed because the client violated the protocol.";

    // Requests.
    /// A request was answered
    Request(mode: Mode) => "unlade_lb_requests",
        "Requests answered, by the path of the answer.";
    /// A request was refused because a server may have executed it
    RequestAmbiguous => "unlade_lb_requests_in_doubt",
        "Requests refused with 502: a server that stopped answering may have executed them already.";
    /// A request matched no route
    RequestUnrouted => "unlade_lb_requests_unrouted",
        "Requests that match no route.";
    /// A request's head or chunked body was refused
    HeadRefused(reason: RequestReason) => "unlade_lb_heads_refused",
        "Request heads and chunked bodies refused, by reason.";
    /// A response's head or chunked body was refused
    ResponseRefused(reason: ResponseReason) => "unlade_lb_responses_refused",
        "Response heads and chunked bodies of servers refused, by reason.";
    /// A response was sent by the balancer
    Response(class: StatusClass) => "unlade_lb_responses",
        "Responses sent through or by the balancer, by class.";
    /// Bytes received from clients by the balancer
    BytesIn => "unlade_lb_received_bytes",
        "Bytes received from clients by the balancer.";
    /// Bytes sent to clients by the balancer
    BytesOut => "unlade_lb_sent_bytes",
        "Bytes sent to clients by the balancer.";
    /// Bytes sent to clients by splice, a part of those sent
    BytesSpliced => "unlade_lb_spliced_bytes",
        "Bytes moved between client and server without passing user space.";
    /// Bytes that servers report to have sent to clients themselves
    BytesDirect => "unlade_lb_direct_bytes",
        "Bytes that servers sent to clients themselves.";
    /// A response, or the rest of it, was sent to the client by its server's host
    DirectReturned(begin: Begin) => "unlade_lb_direct_returns",
        "Responses that went from the server's host to the client directly, from their first byte on or from a later one.";
    /// Bytes of these responses that the server's host sent to the client
    DirectReturnBytes => "unlade_lb_direct_return_bytes",
        "Bytes of these responses that did not pass the balancer's host.";
    /// Bytes of these responses that the balancer's kernel sent on, as packets
    DirectReturnForwardedBytes => "unlade_lb_direct_return_forwarded_bytes",
        "Bytes of these responses that passed the balancer's host as packets, because the server's host did not take a rule.";
    /// A program of the balancer treated a segment of a connection with direct responses
    DirectReturnSegments(treatment: Treatment) => "unlade_lb_direct_return_segments",
        "Segments of connections with direct responses that no socket got as they came, by what became of them.";
    /// Responses of similar lengths take another way from now on
    DirectReturnWayChanged => "unlade_lb_direct_return_way_changes",
        "Changes of the way that responses of a pool take if its configuration has no sizes, by the times that they take.";
    /// A response that could have been returned directly was relayed
    DirectReturnUnfit(reason: Unfit) => "unlade_lb_direct_returns_unfit",
        "Responses relayed in a pool with direct return although they were long enough.";

    // Responses that servers' agents seal.
    /// A response to a client with TLS was sealed at the server's host
    Sealed => "unlade_lb_sealed_responses",
        "Responses to clients with TLS that the server's agent sealed with their keys.";
    /// A response could not be sealed at the server's host
    SealingDeclined(reason: SealingRefusal) => "unlade_lb_sealed_responses_declined",
        "Responses that the server's agent was to seal and did not, by reason.";

    // Connections that have changed their protocol.
    /// A connection changed its protocol
    TunnelOpened => "unlade_lb_tunnels",
        "Connections that changed their protocol (WebSocket) and became a tunnel.";
    /// Bytes moved through tunnels
    TunnelBytes(direction: Direction) => "unlade_lb_tunnel_bytes",
        "Bytes moved through tunnels, a part of those received and sent.";
    /// A tunnel was silent for too long
    TunnelIdle => "unlade_lb_tunnel_timeouts",
        "Tunnels closed because neither side sent anything for too long.";

    // Servers, in proxy mode.
    /// A connection to a server was established
    UpstreamConnected => "unlade_lb_upstream_connects",
        "Connections established to servers.";
    /// A pooled connection to a server was used again
    UpstreamReused => "unlade_lb_upstream_reuses",
        "Requests sent on a pooled connection to a server.";
    /// A server could not answer a request
    UpstreamFailed(reason: UpstreamFailure) => "unlade_lb_upstream_failures",
        "Requests that a server could not answer, by reason.";
    /// A request was sent again because a pooled connection was closed
    UpstreamRetried => "unlade_lb_upstream_retries",
        "Requests sent again because a pooled connection was closed.";
    /// A health check changed the state of a server
    HealthChanged(to: Health) => "unlade_lb_health_transitions",
        "Changes of a server's health.";

    // Migrations, as the balancer sees them.
    /// A migration began: the connection was frozen
    MigrationStarted => "unlade_lb_migrations_started",
        "Connections frozen to be handed to a server.";
    /// A migration ended with the server as the owner
    MigrationCompleted => "unlade_lb_migrations_completed",
        "Connections handed to a server.";
    /// A migration was refused by the server
    MigrationRefused => "unlade_lb_migrations_refused",
        "Handoffs refused by the server.";
    /// A connection was rebuilt at the balancer after a failed migration
    MigrationRestored => "unlade_lb_migrations_restored",
        "Connections rebuilt at the balancer after a failed handoff.";
    /// A connection was lost in a migration and reset
    MigrationLost => "unlade_lb_migrations_lost",
        "Connections reset because neither side could rebuild them.";
    /// A request was proxied although its route offloads
    Fallback(reason: Fallback) => "unlade_lb_fallbacks",
        "Requests proxied instead of handed over, by reason.";
    /// A server gave a connection back
    Returned(trigger: Trigger) => "unlade_lb_returns",
        "Connections given back by a server, by cause.";
    /// A returned connection was passed on to another server
    Relayed => "unlade_lb_relays",
        "Returned connections passed on to another server without being rebuilt.";
    /// A returned connection was rebuilt at the balancer
    Reclaimed => "unlade_lb_reclaims",
        "Returned connections rebuilt at the balancer.";
    /// A server reported that the client of a connection left
    ClientLeft => "unlade_lb_clients_left",
        "Connections that a server reported closed by the client.";
    /// A lease ran out, and the connection was reset
    LeaseExpired => "unlade_lb_leases_expired",
        "Connections reset because their server's lease ran out.";
    /// A connection of a previous run of the balancer was reset
    StaleFlowReset => "unlade_lb_stale_flows_reset",
        "Connections of a previous run that were reset.";

    // Steering.
    /// Packets held while the ownership of a connection changed
    PacketsHeld => "unlade_held_packets",
        "Packets held while the owner of their connection changed.";
    /// Held packets delivered to the new owner
    PacketsReplayed => "unlade_replayed_packets",
        "Held packets delivered to the new owner.";
    /// Held packets that could not be delivered
    PacketsLost => "unlade_lost_packets",
        "Held packets that could not be delivered.";
    /// Packets redirected to the server that owns the connection
    PacketsRedirected => "unlade_redirected_packets",
        "Packets redirected to the server that owns the connection.";
    /// Bytes in redirected packets
    BytesRedirected => "unlade_redirected_bytes",
        "Bytes in redirected packets.";
    /// A segment with a wrong checksum would have changed the recorded state of a moved connection
    SegmentCorrupt => "unlade_corrupt_segments",
        "Segments of moved connections with a wrong checksum, ignored for the flow's state.";
    /// A packet was redirected too often
    HopsExceeded => "unlade_redirections_exceeded",
        "Packets dropped because they had been redirected too often.";
    /// A fragment arrived while the ownership of its connection changed
    FragmentDropped => "unlade_dropped_fragments",
        "Fragments dropped because the owner of their connection was changing.";
    /// A packet had too many IPv6 extension headers
    ExtensionsExceeded => "unlade_extension_headers_exceeded",
        "Packets dropped because of too many IPv6 extension headers.";
    /// An ICMP error was sent to the server that owns the connection
    IcmpRedirected => "unlade_redirected_icmp_errors",
        "ICMP errors sent to the server that owns the connection that they are about.";
    /// An ICMP error was about a segment that is not in flight
    IcmpRefused => "unlade_refused_icmp_errors",
        "ICMP errors dropped because the segment that they are about is not in flight.";
    /// The first SYN of a new connection was dropped: the last one of the client's port has an owner
    SynDelayed => "unlade_delayed_syns",
        "SYNs dropped once because the last connection of the client's port was still at a server.";
    /// A reset was sent to a client
    ResetSent => "unlade_resets_sent",
        "Resets sent to clients.";

    // Control channels.
    /// A control channel was established
    ChannelConnected => "unlade_channel_connects",
        "Control channels established.";
    /// A control channel broke
    ChannelBroken => "unlade_channel_breaks",
        "Control channels that broke.";
    /// A peer that the pool does not trust was refused
    PeerUntrusted => "unlade_untrusted_peers",
        "Peers refused because the pool does not trust them.";
    /// A frame from a peer was malformed
    FrameRefused => "unlade_frames_refused",
        "Control frames refused as malformed.";
    /// A frame from a peer belonged to an earlier epoch
    FrameStale => "unlade_frames_stale",
        "Control frames ignored because their epoch is over.";

    // The server.
    /// An offered connection was adopted
    Adopted => "unlade_backend_adoptions",
        "Connections adopted.";
    /// An offered connection was not adopted
    AdoptionRefused(reason: AdoptionRefusal) => "unlade_backend_adoptions_refused",
        "Offered connections that were not adopted, by reason.";
    /// An adopted connection was given back
    Released(trigger: Trigger) => "unlade_backend_releases",
        "Adopted connections given back, by cause.";
    /// A segment that a frozen socket received late was sent to the new owner
    LateForwarded => "unlade_backend_late_segments",
        "Segments forwarded because they reached a connection that had been given back.";
    /// An adopted connection was closed by its client
    AdoptedClosed => "unlade_backend_adopted_closed",
        "Adopted connections closed by the client.";
    /// An adopted connection was reset because its lease ran out
    AdoptedExpired => "unlade_backend_leases_expired",
        "Adopted connections reset because their lease from the balancer ran out.";
    /// A device has taken over the records of a connection
    RecordsOffloaded => "unlade_backend_records_offloaded",
        "Connections whose records a device has taken over.";
    /// The records of a connection stayed in software although a device exists
    RecordsRefused(reason: OffloadRefusal) => "unlade_backend_records_refused",
        "Connections whose records stayed in software although a device exists, by reason.";
    /// The records of a connection were taken back, so that it could move
    RecordsTakenBack => "unlade_backend_records_taken_back",
        "Connections whose records were taken back from the device, to give the connection back.";
    /// A connection could not be given back, because the device had opened part of a record
    RecordsUnmovable => "unlade_backend_records_unmovable",
        "Times that a connection was not given back because the device had opened part of a record.";
    /// A connection stayed because its unread input exceeds the limit of a snapshot
    UnreadKept => "unlade_backend_unread_kept",
        "Times that a connection stayed for a request because its unread input exceeds a snapshot.";
    /// A connection with more unread input than a snapshot carries moved in several parts
    UnreadMoved => "unlade_backend_unread_moved",
        "Connections given back with more unread input than a snapshot carries, the rest in parts.";
    /// An adopted connection was dropped because the drain took too long
    DrainDropped => "unlade_backend_drain_dropped",
        "Connections dropped because the drain's deadline had passed.";
    /// An unauthenticated connection to the agent was closed in favour of another one
    GreetingEvicted => "unlade_backend_handshakes_evicted",
        "Connections to the agent closed before they had authenticated, to make room for others.";
    /// A scope of a balancer was not kept, because its channel has too many
    ScopeRefused => "unlade_backend_scopes_refused",
        "Scopes of balancers not kept because the limits of a channel were reached.";
    /// A TLS handshake of a connection that was accepted directly
    BackendHandshake => "unlade_backend_tls_handshakes",
        "TLS handshakes completed on connections accepted directly.";
    /// A TLS handshake of a connection that was accepted directly failed
    BackendHandshakeFailed => "unlade_backend_tls_handshakes_failed",
        "TLS handshakes that failed on connections accepted directly.";
    /// A connection was accepted directly
    BackendAccepted => "unlade_backend_connections_accepted",
        "Connections accepted directly, not by adoption.";
    /// A connection was refused because the limit of connections is reached
    BackendRefused => "unlade_backend_connections_refused",
        "Connections answered with 503 at once because the limit of connections was reached.";
    /// A connection failed within a request or a response
    BackendBroken => "unlade_backend_connections_broken",
        "Connections that failed within a request or a response.";
    /// A client transferred no byte of a request's body or of a response for too long
    BackendStalled => "unlade_backend_clients_stalled",
        "Connections closed because the client transferred no byte for too long.";
    /// A request's head did not arrive in time
    BackendHeadTimeout => "unlade_backend_head_timeouts",
        "Connections closed because a request's head did not arrive in time.";
    /// A keep-alive connection was silent for too long
    BackendIdleTimeout => "unlade_backend_idle_timeouts",
        "Connections closed because no further request came.";
    /// The server answered a request
    ObjectRequest(class: FinalClass) => "unlade_backend_requests",
        "Requests answered by the object server, or through the sidecar, by class.";
    /// A request's head or chunked body was refused by the server
    ObjectHeadRefused(reason: RequestHeadReason) => "unlade_backend_heads_refused",
        "Request heads refused, and chunked bodies refused by the object server, by reason.";
    /// Bytes sent on adopted connections
    ObjectBytesDirect => "unlade_backend_direct_bytes",
        "Bytes sent directly to clients on adopted connections.";
    /// Bytes sent by the object server on its own connections
    ObjectBytesOrdinary => "unlade_backend_ordinary_bytes",
        "Bytes sent on connections that were accepted directly.";
    /// A response was sealed with the keys of a balancer's client
    BackendSealed => "unlade_backend_sealed_responses",
        "Responses sealed for clients whose connections stay at their balancer.";
    /// Bytes of objects received
    ObjectBytesStored => "unlade_backend_stored_bytes",
        "Bytes of objects received and stored.";

    // The sidecar of a local server.
    /// A connection to the local server was established
    SidecarConnected => "unlade_sidecar_connects",
        "Connections established to the local server.";
    /// A connection to the local server was used again
    SidecarReused => "unlade_sidecar_reuses",
        "Requests sent on a pooled connection to the local server.";
    /// A request was sent again because a connection that was used again was closed
    SidecarRetried => "unlade_sidecar_retries",
        "Requests sent again because the local server had closed a kept connection.";
    /// The local server could not answer a request
    SidecarFailed(reason: SidecarFailure) => "unlade_sidecar_failures",
        "Requests that the local server did not answer completely, by reason.";
    /// A client left before its response was complete
    SidecarAbandoned => "unlade_sidecar_abandoned",
        "Requests given up at the local server because the client had left.";
    /// The chunked body of a request was malformed
    SidecarBodyRefused => "unlade_sidecar_bodies_refused",
        "Requests whose chunked body was malformed: refused, or ended.";

    // The agent at a server's host.
    /// A datagram with a rule arrived
    AgentRule(result: RuleResult) => "unlade_agent_rules",
        "Datagrams with a rule, by result.";
    /// A segment of a response went to its client directly
    AgentSegments => "unlade_agent_direct_segments",
        "Segments of responses sent to clients directly.";
    /// Bytes of responses that went to clients directly
    AgentBytes => "unlade_agent_direct_bytes",
        "Bytes of responses sent to clients directly.";

    // The I/O worker of a tenant's functions.
    /// A request to a service other than S3 was sent
    HostioServiceRequest(service: CutService) => "unlade_hostio_service_requests",
        "Requests sent to services other than S3, by service.";
    /// A request to a service other than S3 was signed with keys of the function's own
    HostioServiceOwnKeys => "unlade_hostio_service_requests_own_keys",
        "Requests to services other than S3 signed with keys of the function's own.";
    /// A request to a service other than S3 was refused before its role was asked
    HostioServiceRefused(reason: CutRefusal) => "unlade_hostio_service_requests_refused",
        "Requests to services other than S3 refused before they were signed, by reason.";
    /// A request on behalf of a function ended
    HostioPerformed(result: PerformResult) => "unlade_hostio_performed",
        "Requests to services that the gateway made on behalf of functions, by result.";
    /// A call of a function was completed
    HostioCall(end: CallEnd) => "unlade_hostio_calls",
        "Calls of functions, by result.";
    /// A request was sent to the store
    HostioRequest => "unlade_hostio_requests",
        "Requests sent to the store, repeated ones included.";
    /// A request was made again
    HostioRetry => "unlade_hostio_retries",
        "Requests repeated after a failure.";
    /// Bytes received from the store for functions
    HostioBytesIn => "unlade_hostio_received_bytes",
        "Bytes of bodies received from the store and given to functions.";
    /// Bytes sent to the store for functions
    HostioBytesOut => "unlade_hostio_sent_bytes",
        "Bytes of bodies sent to the store.";
    /// A fetch ahead of a function's request ended
    HostioPrefetch(end: PrefetchEnd) => "unlade_hostio_prefetches",
        "Objects fetched before a function requested them, by outcome.";
    /// Duration of the fetches that were used, from their start to their last byte
    HostioPrefetchTime => "unlade_hostio_prefetch_nanoseconds",
        "Nanoseconds of prefetches that were used, from their start to their last byte.";
    /// The part of that time after the function had asked for the object
    HostioPrefetchWait => "unlade_hostio_prefetch_waited_nanoseconds",
        "Nanoseconds from a function's request to the last byte of the prefetch that it used.";
    /// Bytes were copied between a function's memory and the worker's
    HostioCopy(by: CopyBy) => "unlade_hostio_copies",
        "Copies of bodies between functions' memory and the worker's, by the component that made them.";
    /// Bytes copied between a function's memory and the worker's
    HostioCopied(by: CopyBy) => "unlade_hostio_copied_bytes",
        "Bytes of these copies.";
    /// A copy that the copy service may make was made by the worker's thread
    HostioCopyFallback(reason: CopyFallback) => "unlade_hostio_copy_fallbacks",
        "Copies that the copy service may make, and did not, by reason.";
    /// A connection of an instance that has its own SDK was relayed to the store
    HostioRelayed => "unlade_hostio_relayed_connections",
        "Connections of instances relayed to the store unchanged.";
    /// A connection of an instance was not relayed to the store
    HostioRelayRefused => "unlade_hostio_relays_refused",
        "Connections of instances closed because there were too many, or no store.";
    /// A write was acknowledged before it was durable
    HostioWritePending => "unlade_hostio_writes_pending",
        "Writes acknowledged before the store had them.";
    /// A pending write became durable
    HostioWriteDurable => "unlade_hostio_writes_durable",
        "Pending writes that became durable.";
    /// A pending write failed permanently
    HostioWriteLost => "unlade_hostio_writes_lost",
        "Pending writes that failed; their invocations failed with them.";
    /// A body went to the store while the function was still sending it
    HostioStreamed => "unlade_hostio_bodies_streamed",
        "Bodies sent to the store while the function was sending them, repeated ones included.";
    /// A function was asked to send a body once more
    HostioBodyRepeated => "unlade_hostio_bodies_again",
        "Bodies that functions were asked to send once more after a failure.";
    /// A read was answered from a pending write
    HostioOverlay => "unlade_hostio_overlay_reads",
        "Reads answered from a write that was not durable yet.";
    /// A session ended because its guest violated the protocol
    HostioProtocolViolation => "unlade_hostio_sessions_refused",
        "Sessions ended because the guest violated the protocol.";
    /// A guest sent its greeting
    HostioGreeting => "unlade_hostio_greetings",
        "Greetings of guests: new and restored instances.";

    // Functions, at their gateway.
    /// An invocation was answered with its function's result
    FnInvoked => "unlade_fn_invocations",
        "Invocations answered with their function's result.";
    /// An invocation was answered, with a result or an error of its function
    FnAnswered(runtime: FnRuntime) => "unlade_fn_invocations_answered",
        "Invocations answered with a result or an error, by the runtime of their function.";
    /// An invocation was answered with an error
    FnFailed => "unlade_fn_invocations_failed",
        "Invocations answered with an error: of the function, its time, its instance, its writes.";
    /// An invocation was not made, or did not finish
    FnUnanswered => "unlade_fn_invocations_unanswered",
        "Invocations that were refused, or whose result is not known.";
    /// An invocation found no instance
    FnRefused => "unlade_fn_invocations_refused",
        "Invocations refused because no instance was available.";
    /// A request was not authenticated, or its key does not permit the operation
    FnDenied(reason: FnDenial) => "unlade_fn_requests_denied",
        "Requests without a valid signature or without the right, by reason.";
    /// A denied request has no line in the log, because many of its reason were logged just before
    FnDenialUnlogged(reason: FnDenial) => "unlade_fn_denials_unlogged",
        "Denied requests without a line in the log, by reason.";
    /// A request to a function URL or an HTTP API ended
    FnHttpRequest(end: FnHttpEnd) => "unlade_fn_http_requests",
        "Requests to function URLs and HTTP APIs, by end.";
    /// A deployment, or a function of the directory, was not served
    FnDeployRefused => "unlade_fn_deployments_refused",
        "Functions that could not be imported, or whose settings are not permitted.";
    /// An accepted event failed permanently, and no destination is told
    FnEventLost => "unlade_fn_events_lost",
        "Accepted events that failed, without a destination that is told.";
    /// An accepted event ended
    FnEventEnded(end: EventEnd) => "unlade_fn_events_ended",
        "Accepted events that ended, by end.";
    /// An object of the built-in store has changed, and a function is to be invoked for it
    FnNotification(result: NotificationResult) => "unlade_fn_notifications",
        "Events of changed objects in the built-in store, by result.";
    /// An attempt was made to send the end of an event to a destination
    FnDelivery(result: DeliveryResult) => "unlade_fn_deliveries",
        "Attempts to send the ends of events to destinations, by result.";
    /// A queue was asked for messages
    FnPoll(result: PollResult) => "unlade_fn_source_polls",
        "Requests for messages of queues that feed functions, by result.";
    /// A message of a queue ended
    FnMessage(end: MessageEnd) => "unlade_fn_source_messages",
        "Messages of queues that feed functions, by end.";
    /// An instance was started from scratch
    FnStartCold => "unlade_fn_starts_cold",
        "Instances started from scratch.";
    /// An instance was restored
    FnStartRestored => "unlade_fn_starts_restored",
        "Instances restored from a zygote or a snapshot.";
    /// A template has not imported the modules of its function's manifest: each instance imports
    /// them itself
    FnUnpreloaded => "unlade_fn_templates_unpreloaded",
        "Templates whose function is imported by each instance, because instances cannot share the import.";
    /// An instance did not start
    FnStartFailed => "unlade_fn_starts_failed",
        "Instances that did not start.";
    /// The processes of an idle instance were stopped
    FnFrozen => "unlade_fn_instances_frozen",
        "Idle instances whose processes were stopped until their next invocation.";
    /// The processes of an idle instance could not be stopped: they go on between invocations
    FnUnfrozen => "unlade_fn_instances_unfrozen",
        "Instances that go on between invocations, because the host cannot stop them.";
}

/// The index of the first counter of each family.
const FIRST: [usize; FAMILIES.len()] = {
    let mut first = [0; FAMILIES.len()];
    let mut family = 1;
    while family < FAMILIES.len() {
        first[family] = first[family - 1] + FAMILIES[family - 1].count;
        family += 1;
    }
    first
};

/// The number of counters.
pub(crate) const COUNTERS: usize = FIRST[FAMILIES.len() - 1] + FAMILIES[FAMILIES.len() - 1].count;

/// The index of a family's first counter.
pub(crate) fn first_counter(family: usize) -> usize {
    FIRST.get(family).copied().unwrap_or(COUNTERS)
}

impl Event {
    fn family(self) -> &'static Family {
        &FAMILIES[self.family_index()]
    }

    /// The name of the event's samples, as rendered: `unlade_lb_requests_total`.
    pub fn name(self) -> String {
        format!("{}_total", self.family().name)
    }

    /// A sentence that describes the event.
    pub fn help(self) -> &'static str {
        self.family().help
    }

    /// The label that distinguishes the event from others of its family: `("mode", "proxy")`.
    pub fn label(self) -> Option<(&'static str, &'static str)> {
        let within = self.index() - FIRST[self.family_index()];
        self.family().label.map(|key| (key, (self.family().text)(within)))
    }

    /// A sentence that describes the label's value; empty if there is no label, or if the value's
    /// text describes it.
    pub fn label_meaning(self) -> &'static str {
        (self.family().meaning)(self.index() - FIRST[self.family_index()])
    }
}

#[cfg(test)]
mod tests {
    use super::{COUNTERS, Event, FAMILIES};

    #[test]
    fn every_event_has_a_counter_of_its_own() {
        let all = Event::all();
        let indices: Vec<usize> = all.iter().map(|event| event.index()).collect();
        assert_eq!(indices, (0..COUNTERS).collect::<Vec<_>>());
    }

    #[test]
    fn names_are_well_formed_and_unique() {
        let mut names: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
        for name in &names {
            assert!(name.starts_with("unlade_") && !name.ends_with("_total"), "{name}");
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
        }
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn labels_are_as_documented() {
        let event = Event::Request(crate::Mode::Relay);
        assert_eq!(event.name(), "unlade_lb_requests_total");
        assert_eq!(event.label(), Some(("mode", "relay")));
        assert_eq!(Event::HeadRefused("bare_lf".into()).label(), Some(("reason", "bare_lf")));
        assert_eq!(Event::HeadRefused("new".into()).label(), Some(("reason", "other")));
        assert_eq!(Event::Relayed.label(), None);
        let meaning = "After passing the connection on from one server to another.";
        assert_eq!(event.label_meaning(), meaning);
        assert_eq!(Event::Relayed.label_meaning(), "");
    }
}
