//! The values that the caller gives to a call, and what it gets.

/// The values that the caller gives to a call.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// The time, in milliseconds since 1970.
    pub now_ms: u64,
    /// A text that no other call has (a UUID): part of ARNs, and the identifier of the request.
    pub unique: &'a str,
    /// The text of the template, if the request names a URL: see [`crate::Request::template_url`].
    pub template: Option<&'a str>,
}

/// The reply to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The answer.
    pub xml: String,
    /// The ARN of the stack that has changed. The caller makes it durable before it sends the answer, then
    /// carries out its actions.
    pub changed: Option<String>,
}
