//! Label values: closed sets, which bound the number of time series.

/// A closed set of values of one label.
pub(crate) trait Label: Copy {
    /// The label's name.
    const KEY: Option<&'static str>;
    /// The number of values.
    const COUNT: usize;
    /// The value's index, below `COUNT`.
    fn index(self) -> usize;
    /// The text of the value at an index.
    fn text(index: usize) -> &'static str;
    /// A sentence that describes the value at an index; empty if its text describes it.
    fn meaning(index: usize) -> &'static str;
    /// Every value, by index.
    fn values() -> impl Iterator<Item = Self>;
}

/// Declares a label: an enum, and for each variant its text. The documentation of a variant is also
/// the description of the value in the reference.
macro_rules! labels {
    ($(#[$meta:meta])* $name:ident: $key:literal {
        $($(#[doc = $doc:literal])+ $variant:ident => $text:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[doc = $doc])+ $variant,)* }

        impl $name {
            /// Every value, in the order they are rendered.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The value as the label's text.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
        }

        impl Label for $name {
            const KEY: Option<&'static str> = Some($key);
            const COUNT: usize = $name::ALL.len();
            fn index(self) -> usize { self as usize }
            fn text(index: usize) -> &'static str {
                $name::ALL.get(index).map_or("", |value| value.as_str())
            }
            fn meaning(index: usize) -> &'static str {
                const MEANINGS: &[&str] = &[$(concat!($($doc),+),)*];
                MEANINGS.get(index).map_or("", |meaning| meaning.trim_start())
            }
            fn values() -> impl Iterator<Item = Self> { $name::ALL.iter().copied() }
        }
    };
}

labels! {
    /// The result of a function's call.
    CallEnd: "end" {
        /// The call succeeded.
        Done => "done",
        /// The service answered with an error.
        Service => "service_error",
        /// The host failed.
        Host => "host_error",
        /// The call exceeded a limit of concurrent work.
        Refused => "refused",
        /// The role does not allow it.
        Denied => "denied",
    }
}

labels! {
    /// A service other than S3 to which a request was sent.
    CutService: "service" {
        /// Amazon DynamoDB.
        Dynamodb => "dynamodb",
        /// Amazon EventBridge.
        Events => "events",
        /// Amazon Kinesis Data Streams.
        Kinesis => "kinesis",
        /// AWS Lambda, or the gateway in its place.
        Lambda => "lambda",
        /// Amazon CloudWatch Logs.
        Logs => "logs",
        /// AWS Secrets Manager.
        Secretsmanager => "secretsmanager",
        /// Amazon SNS.
        Sns => "sns",
        /// Amazon SQS.
        Sqs => "sqs",
        /// AWS Systems Manager.
        Ssm => "ssm",
        /// AWS STS.
        Sts => "sts",
        /// Any other service.
        Other => "other",
    }
}

labels! {
    /// The program that runs the code of a function.
    FnRuntime: "runtime" {
        /// The host's Python.
        Python => "python",
        /// The function's own executable.
        Provided => "provided",
        /// The host's Node.js.
        Node => "nodejs",
    }
}

labels! {
    /// The reason why a request to a service other than S3 was refused.
    CutRefusal: "reason" {
        /// Its head is malformed, too long, or has what belongs to the host.
        Head => "head",
        /// The host does not carry the service.
        Service => "service",
        /// It is not the operation that it claims to be, or could be read as two.
        Operation => "operation",
        /// The region has not the form of one.
        Region => "region",
        /// No endpoint of the service is configured.
        Endpoint => "endpoint",
    }
}

labels! {
    /// The result of a request to a service on behalf of a function.
    PerformResult: "result" {
        /// The service did it.
        Done => "done",
        /// The service answered with an error.
        Service => "service_error",
        /// The role does not allow it.
        Denied => "denied",
        /// The worker had no room for another one.
        Busy => "busy",
        /// It was refused, or the service could not be reached.
        Failed => "failed",
    }
}

labels! {
    /// The end of an accepted event.
    EventEnd: "end" {
        /// Its function succeeded.
        Success => "success",
        /// Its function failed in the last attempt.
        RetriesExhausted => "retries_exhausted",
        /// It became too old.
        AgeExceeded => "age_exceeded",
        /// Its function is not there any more.
        Absent => "absent",
    }
}

labels! {
    /// The result for an event of a changed object in the built-in store.
    NotificationResult: "result" {
        /// It is an accepted asynchronous event of its function.
        Accepted => "accepted",
        /// It waits in the store: as many events as may be are accepted, or the state cannot be written.
        Held => "held",
        /// The function's policy does not let the bucket invoke it any more: it is given up.
        Denied => "denied",
        /// The function is not there any more: it is given up.
        Absent => "absent",
        /// It was not made: the store has as many events as may be, and refused the change.
        Refused => "refused",
    }
}

labels! {
    /// The result of an attempt to send an event's end to a destination.
    DeliveryResult: "result" {
        /// The destination has it.
        Delivered => "delivered",
        /// The destination refused it, or could not be reached: it is sent again.
        Failed => "failed",
        /// The function's role does not allow it: it is sent again.
        Denied => "denied",
        /// It is longer than a destination takes: it is given up.
        TooLong => "too_long",
        /// The function is not there any more, or the last attempt has failed: it is given up.
        Lost => "lost",
    }
}

labels! {
    /// The result of a request for messages of a queue.
    PollResult: "result" {
        /// There were messages.
        Messages => "messages",
        /// There was none.
        Empty => "empty",
        /// The function's role does not allow it.
        Denied => "denied",
        /// The queue could not be asked, or answered with an error.
        Failed => "failed",
    }
}

labels! {
    /// The end of a message that was received from a queue.
    MessageEnd: "end" {
        /// Its function has handled it, and it was deleted.
        Deleted => "deleted",
        /// Its function has failed: it becomes visible again after its time.
        Left => "left",
        /// It was not handled: it was made visible again.
        Released => "released",
        /// It was handled, and could not be deleted: it comes again.
        Undeleted => "undeleted",
    }
}

labels! {
    /// The reason why a request to a gateway of functions was denied.
    FnDenial: "reason" {
        /// It has no signature.
        Missing => "missing",
        /// The signature is incomplete, or is not one.
        Incomplete => "incomplete",
        /// No tenant has the access key.
        Unrecognised => "unrecognised",
        /// It was signed too long ago, or for later.
        Expired => "expired",
        /// It is not the request that was signed.
        Signature => "signature",
        /// The caller has no right to the operation.
        Access => "access",
        /// It names a function of another tenant.
        Tenant => "tenant",
    }
}

labels! {
    /// The end of a request to a function URL or an HTTP API.
    FnHttpEnd: "end" {
        /// The response of the function was sent.
        Answered => "answered",
        /// A preflight request was answered by the configuration of CORS.
        Preflight => "preflight",
        /// The function failed.
        FunctionError => "function_error",
        /// The result of the function is no response.
        Malformed => "malformed",
        /// The caller, or the API, has no right to the function.
        Denied => "denied",
        /// There is no such URL, API, stage or route.
        NotFound => "not_found",
        /// The request is no HTTP, its head is too long, or its body is incomplete.
        Invalid => "invalid",
        /// The body, or the event, is too long.
        TooLarge => "too_large",
        /// The body did not arrive in time.
        Slow => "slow",
        /// The function has no place for the invocation.
        Throttled => "throttled",
        /// The function did not answer within the time of the API.
        Late => "late",
        /// There are too many connections or bodies.
        Full => "full",
        /// The function does not exist or start, or the gateway failed.
        Unavailable => "unavailable",
    }
}

labels! {
    /// The outcome for an object that was fetched before the function requested it.
    PrefetchEnd: "end" {
        /// A GET used it.
        Used => "used",
        /// No GET requested it.
        Unused => "unused",
        /// The fetch failed, or there was no memory for it.
        Failed => "failed",
        /// The role does not allow it.
        Denied => "denied",
    }
}

labels! {
    /// The result of a datagram with a rule.
    RuleResult: "result" {
        /// It is the rule of its connection.
        Taken => "taken",
        /// It has a wrong tag, or the key of another balancer.
        Forged => "forged",
        /// There was no place for another connection.
        Full => "full",
        /// It is not newer than what the host had.
        Old => "old",
    }
}

labels! {
    /// The treatment of a segment of a connection with direct responses, by the balancer's programs.
    Treatment: "treatment" {
        /// An acknowledgement of a client went to the server.
        Acknowledged => "acknowledged",
        /// A segment of a server went to the client.
        Forwarded => "forwarded",
        /// No socket may see it, or it could not be sent.
        Dropped => "dropped",
        /// A segment that claims to be a client's does not belong to the connection.
        Refused => "refused",
        /// Its checksum is wrong.
        Corrupt => "corrupt",
    }
}

labels! {
    /// Reason why the server's agent did not seal a response.
    SealingRefusal: "reason" {
        /// It cannot be reached, or one side does not trust the other. The response was proxied.
        Agent => "agent",
        /// The pool has direct return without sizes, and responses of such a length take less time through the
        /// balancer, or are to show it. The response was proxied.
        Way => "way",
        /// The client has ended its direction, or the connection's key is used up. The response was proxied.
        Connection => "connection",
        /// It ended, or sent something else. The client's connection was reset.
        Broken => "broken",
    }
}

labels! {
    /// The component that made a copy between a function's memory and the worker's.
    CopyBy: "by" {
        /// The worker's thread, synchronously.
        Worker => "worker",
        /// The copy service.
        Service => "service",
    }
}

labels! {
    /// The reason why the worker's thread made a copy that the service may make.
    CopyFallback: "reason" {
        /// There is no spare core.
        Cores => "cores",
        /// The service does not start.
        Unavailable => "unavailable",
        /// The limit of copies in flight is reached.
        Full => "full",
        /// The service could not copy the bytes.
        Failed => "failed",
    }
}

labels! {
    /// The path of a request's answer.
    Mode: "mode" {
        /// Through the balancer.
        Proxy => "proxy",
        /// After handing the connection to a server.
        Offload => "offload",
        /// By the server that held the connection already.
        Stay => "stay",
        /// After passing the connection on from one server to another.
        Relay => "relay",
    }
}

labels! {
    /// Which way bytes go through a tunnel.
    Direction: "direction" {
        /// From the client to the server.
        ToServer => "to_server",
        /// From the server to the client.
        ToClient => "to_client",
    }
}

labels! {
    /// Class of a status code.
    StatusClass: "class" {
        /// Status 100 to 199.
        Informational => "1xx",
        /// Status 200 to 299.
        Success => "2xx",
        /// Status 300 to 399.
        Redirection => "3xx",
        /// Status 400 to 499.
        ClientError => "4xx",
        /// Status 500 and above.
        ServerError => "5xx",
    }
}

impl StatusClass {
    /// The class of a status code.
    pub fn of(status: u16) -> StatusClass {
        match status {
            0..=199 => StatusClass::Informational,
            200..=299 => StatusClass::Success,
            300..=399 => StatusClass::Redirection,
            400..=499 => StatusClass::ClientError,
            500.. => StatusClass::ServerError,
        }
    }
}

labels! {
    /// Class of the status code of a whole response.
    FinalClass: "class" {
        /// Status 200 to 299.
        Success => "2xx",
        /// Status 300 to 399.
        Redirection => "3xx",
        /// Status 400 to 499.
        ClientError => "4xx",
        /// Status 500 and above.
        ServerError => "5xx",
    }
}

impl FinalClass {
    /// The class of a status code of 200 or above.
    pub fn of(status: u16) -> FinalClass {
        match status {
            0..=299 => FinalClass::Success,
            300..=399 => FinalClass::Redirection,
            400..=499 => FinalClass::ClientError,
            500.. => FinalClass::ServerError,
        }
    }
}

labels! {
    /// Why a connection was not accepted.
    RefusedConnection: "reason" {
        /// The listener's limit of connections.
        Limit => "limit",
        /// The system is short of descriptors or memory.
        Resources => "resources",
    }
}

labels! {
    /// The reason why a server could not answer a proxied request.
    UpstreamFailure: "reason" {
        /// The connection could not be established.
        Connect => "connect",
        /// It could not be established in time.
        ConnectTimeout => "connect_timeout",
        /// The head of the answer did not come in time.
        ResponseTimeout => "response_timeout",
        /// The connection ended before the answer did.
        Closed => "closed",
        /// The answer was malformed.
        BadResponse => "bad_response",
        /// No server of the pool is healthy.
        NoServer => "no_server",
    }
}

labels! {
    /// The reason why a local server did not answer a request completely.
    SidecarFailure: "reason" {
        /// The connection could not be established.
        Connect => "connect",
        /// It could not be established in time.
        ConnectTimeout => "connect_timeout",
        /// The head of the answer did not come in time.
        ResponseTimeout => "response_timeout",
        /// The connection ended before the answer did.
        Closed => "closed",
        /// The answer was malformed.
        BadResponse => "bad_response",
        /// The local server neither read nor sent a byte of a body in time.
        Stalled => "stalled",
    }
}

labels! {
    /// The result of a health check.
    Health: "to" {
        /// The server answers.
        Healthy => "healthy",
        /// The server does not answer.
        Unhealthy => "unhealthy",
    }
}

labels! {
    /// The reason why a connection was proxied instead of handed over.
    Fallback: "reason" {
        /// The connection is not in state ESTABLISHED: half closed, or closing.
        NotEstablished => "not_established",
        /// More bytes are queued than a snapshot may contain.
        QueueTooLong => "queue_too_long",
        /// The flow table is full.
        TableFull => "table_full",
        /// The server refuses to adopt more, or its control channel has too many bytes to send.
        Overloaded => "overloaded",
        /// The server or the balancer is draining.
        Draining => "draining",
        /// The policy expects proxying to be cheaper.
        PolicyAuto => "policy_auto",
        /// The request is one that only a proxy can serve (Upgrade, Expect).
        Request => "request",
        /// The control channel to the server is down.
        ChannelDown => "channel_down",
        /// The server did not answer in time.
        Deadline => "deadline",
        /// The connection could not be frozen or serialised.
        Snapshot => "snapshot",
        /// The server could not rebuild the connection: its own metric of refused adoptions has
        /// the step that failed.
        RestoreFailed => "restore_failed",
        /// The virtual address is not configured on the server.
        AddressNotLocal => "address_not_local",
        /// The redirect could not be installed.
        SteerFailed => "steer_failed",
        /// The record layer cannot be moved: it owes output to the client, is closed, or has
        /// failed.
        TlsState => "tls_state",
        /// The machine lacks a capability: see `unlade doctor`.
        Unsupported => "unsupported",
        /// Responses of the connection went to the client directly, so its numbers are no longer
        /// those of the socket.
        DirectReturn => "direct_return",
    }
}

labels! {
    /// The time at which a response began to go to the client directly.
    Begin: "begin" {
        /// From its first byte on.
        Early => "early",
        /// After a part of it was relayed.
        Late => "late",
    }
}

labels! {
    /// The reason why a long response was relayed in a pool with direct return.
    Unfit: "reason" {
        /// The client's window is smaller than what the server was granted.
        Window => "window",
        /// The client takes shorter segments than the server sends.
        Segments => "segments",
        /// Only one of the two connections uses timestamps.
        Timestamps => "timestamps",
        /// The response was expected to go to the client from its first byte on, and its head has to
        /// be changed for the client.
        Head => "head",
        /// A table is full, a connection was closing, or the kernel refused.
        Failed => "failed",
    }
}

labels! {
    /// The reason why a connection left the server that owned it.
    Trigger: "trigger" {
        /// The next request belongs to another server.
        OtherServer => "other_server",
        /// The granted number of requests is used up.
        Granted => "granted",
        /// The client was idle.
        Idle => "idle",
        /// The server is draining.
        Drain => "drain",
        /// The balancer asked for it.
        Recalled => "recalled",
    }
}

labels! {
    /// The reason why a server did not adopt an offered connection.
    AdoptionRefusal: "reason" {
        /// It has reached its limit of connections.
        Overloaded => "overloaded",
        /// It is draining.
        Draining => "draining",
        /// The snapshot was malformed.
        BadSnapshot => "bad_snapshot",
        /// The socket could not be rebuilt.
        Tcp => "tcp",
        /// The record layer could not be rebuilt.
        Tls => "tls",
        /// The virtual address is not configured on the server.
        Address => "address",
        /// Another socket of the server has the addresses and ports of the connection.
        FlowInUse => "flow_in_use",
        /// The steering program could not be updated.
        Steer => "steer",
        /// The connection is live here, or the offer belongs to an epoch that is over.
        Epoch => "epoch",
        /// The balancer has not defined the scope of the terms.
        Scope => "scope",
    }
}

labels! {
    /// The reason why the records of a connection stay in software although a device exists.
    OffloadRefusal: "reason" {
        /// The device has not seen its start, or has too many connections.
        Unknown => "unknown",
        /// The device has it already.
        Duplicate => "twice",
        /// The device has ended.
        Gone => "gone",
        /// The device does not support its cipher suite or its state.
        Unsupported => "unsuited",
        /// Its socket could not be bound to the device's interface.
        Unbound => "unbound",
    }
}

/// Declares a label whose values are texts of `unlade_http::HeadError::reason`: this crate does not
/// depend on the decoder. The last value, `other`, stands for a text that the list lacks.
macro_rules! reasons {
    ($(#[$doc:meta])* $name:ident, $list:ident: $($reason:literal)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(pub &'static str);

        $(#[$doc])*
        pub const $list: &[&str] = &[$($reason,)* "other"];

        impl From<&'static str> for $name {
            fn from(reason: &'static str) -> $name {
                $name(reason)
            }
        }

        impl Label for $name {
            const KEY: Option<&'static str> = Some("reason");
            const COUNT: usize = $list.len();
            fn index(self) -> usize {
                $list.iter().position(|&reason| reason == self.0).unwrap_or($list.len() - 1)
            }
            fn text(index: usize) -> &'static str {
                $list.get(index).copied().unwrap_or("other")
            }
            fn meaning(index: usize) -> &'static str {
                match index + 1 == $list.len() {
                    true => "A reason that this list lacks.",
                    false => "",
                }
            }
            fn values() -> impl Iterator<Item = Self> {
                $list.iter().copied().map($name)
            }
        }
    };
}

reasons! {
    /// Reasons for refusing the head of a request.
    RequestHeadReason, REQUEST_HEAD_REASONS:
    "head_too_large" "too_many_headers" "target_too_long" "unsupported_version" "bad_request_line"
    "bad_method" "method_too_long" "bad_target" "bare_lf" "bare_cr" "obs_fold" "space_before_colon"
    "bad_header_name" "bad_header_value" "missing_host" "duplicate_host" "bad_host" "host_mismatch"
    "bad_content_length" "duplicate_content_length" "length_and_transfer_encoding"
    "transfer_encoding_on_http10" "bad_transfer_encoding" "unsupported_transfer_encoding"
    "bad_connection" "unknown_expectation"
}

reasons! {
    /// Reasons for refusing a request: its head or its chunked body.
    RequestReason, REQUEST_REASONS:
    "head_too_large" "too_many_headers" "target_too_long" "unsupported_version" "bad_request_line"
    "bad_method" "method_too_long" "bad_target" "bare_lf" "bare_cr" "obs_fold" "space_before_colon"
    "bad_header_name" "bad_header_value" "missing_host" "duplicate_host" "bad_host" "host_mismatch"
    "bad_content_length" "duplicate_content_length" "length_and_transfer_encoding"
    "transfer_encoding_on_http10" "bad_transfer_encoding" "unsupported_transfer_encoding"
    "bad_connection" "unknown_expectation" "bad_chunk_size" "bad_chunk_extension"
    "chunk_line_too_long" "bad_chunk_delimiter" "bad_trailer" "trailer_too_large"
}

reasons! {
    /// Reasons for refusing a response: its head or its chunked body.
    ResponseReason, RESPONSE_REASONS:
    "head_too_large" "too_many_headers" "unsupported_version" "bad_status_line" "bare_lf" "bare_cr"
    "obs_fold" "space_before_colon" "bad_header_name" "bad_header_value" "bad_content_length"
    "duplicate_content_length" "length_and_transfer_encoding" "transfer_encoding_on_http10"
    "bad_transfer_encoding" "unsupported_transfer_encoding" "bad_connection" "bad_chunk_size"
    "bad_chunk_extension" "chunk_line_too_long" "bad_chunk_delimiter" "bad_trailer"
    "trailer_too_large"
}

/// A family of one sample has no label.
impl Label for () {
    const KEY: Option<&'static str> = None;
    const COUNT: usize = 1;
    fn index(self) -> usize {
        0
    }
    fn text(_index: usize) -> &'static str {
        ""
    }
    fn meaning(_index: usize) -> &'static str {
        ""
    }
    fn values() -> impl Iterator<Item = Self> {
        core::iter::once(())
    }
}
