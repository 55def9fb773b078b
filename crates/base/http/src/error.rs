//! Reasons for refusing a head or a chunked body.

use thiserror::Error;

/// The reason for refusing a message. The sender is at fault in every variant.
///
/// [`status`](HeadError::status) is the answer to a refused *request*. For a refused *response*
/// the client gets 502 in every variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum HeadError {
    /// The head exceeds the limit of bytes.
    #[error("the head exceeds the limit of bytes")]
    HeadTooLarge,
    /// The head has too many header lines.
    #[error("the head has too many header lines")]
    TooManyHeaders,
    /// The request target exceeds the limit of bytes.
    #[error("the request target exceeds the limit of bytes")]
    TargetTooLong,
    /// The protocol version is neither HTTP/1.1 nor HTTP/1.0.
    #[error("the protocol version is neither HTTP/1.1 nor HTTP/1.0")]
    UnsupportedVersion,
    /// The request line is not `method SP target SP version`.
    #[error("the request line is not `method SP target SP version`")]
    BadRequestLine,
    /// The status line is not `version SP status SP reason`.
    #[error("the status line is not `version SP status SP reason`")]
    BadStatusLine,
    /// The method is not a token.
    #[error("the method is not a token")]
    BadMethod,
    /// The method is longer than any known method.
    #[error("the method is longer than any that is known")]
    MethodTooLong,
    /// The request target contains a byte, or has a form, that is not allowed.
    #[error("the request target is malformed")]
    BadTarget,
    /// A line ends in LF without CR.
    #[error("a line of the head ends in LF without CR")]
    BareLf,
    /// A CR is not followed by LF.
    #[error("a CR in the head is not followed by LF")]
    BareCr,
    /// A header line is folded (obs-fold).
    #[error("a header line is folded")]
    ObsFold,
    /// There is whitespace between a header name and its colon.
    #[error("there is whitespace between a header name and its colon")]
    SpaceBeforeColon,
    /// A header name is not a token.
    #[error("a header name is not a token")]
    BadHeaderName,
    /// A header value contains a control byte.
    #[error("a header value holds a control byte")]
    BadHeaderValue,
    /// An HTTP/1.1 request without Host.
    #[error("the request lacks Host")]
    MissingHost,
    /// More than one Host.
    #[error("the request has more than one Host")]
    DuplicateHost,
    /// The Host, or the authority of the target, is not `host [":" port]`.
    #[error("the host is not `host [\":\" port]`")]
    BadHost,
    /// Host and the authority of the target differ.
    #[error("Host and the authority of the request target differ")]
    HostMismatch,
    /// Content-Length is not a plain decimal number of 64 bits.
    #[error("Content-Length is not a plain decimal number")]
    BadContentLength,
    /// Content-Length appears more than once.
    #[error("Content-Length appears more than once")]
    DuplicateContentLength,
    /// Both Content-Length and Transfer-Encoding.
    #[error("both Content-Length and Transfer-Encoding are present")]
    LengthAndTransferEncoding,
    /// Transfer-Encoding in an HTTP/1.0 message.
    #[error("an HTTP/1.0 message has a Transfer-Encoding")]
    TransferEncodingOnHttp10,
    /// Transfer-Encoding does not end in exactly one `chunked`.
    #[error("Transfer-Encoding does not end in exactly one `chunked`")]
    BadTransferEncoding,
    /// A transfer coding other than `chunked`.
    #[error("a transfer coding other than `chunked` is not supported")]
    UnsupportedTransferEncoding,
    /// Connection is not a list of tokens.
    #[error("Connection is not a list of tokens")]
    BadConnection,
    /// An expectation other than `100-continue`.
    #[error("an expectation other than `100-continue` is not supported")]
    UnknownExpectation,
    /// A chunk size is not a hexadecimal number of 64 bits.
    #[error("a chunk size is not a hexadecimal number")]
    BadChunkSize,
    /// A chunk extension contains a control byte.
    #[error("a chunk extension holds a control byte")]
    BadChunkExtension,
    /// A chunk's size line, or all extensions together, exceed the limit of bytes.
    #[error("a chunk's size line exceeds the limit of bytes")]
    ChunkLineTooLong,
    /// A chunk is not delimited by CRLF.
    #[error("a chunk is not delimited by CRLF")]
    BadChunkDelimiter,
    /// A trailer line is malformed, or names a field that frames or routes the message.
    #[error("a trailer line is malformed or not permitted")]
    BadTrailer,
    /// The trailer section exceeds the limit of bytes.
    #[error("the trailer section exceeds the limit of bytes")]
    TrailerTooLarge,
}

impl HeadError {
    /// Every variant.
    pub const ALL: [HeadError; 33] = [
        HeadError::HeadTooLarge,
        HeadError::TooManyHeaders,
        HeadError::TargetTooLong,
        HeadError::UnsupportedVersion,
        HeadError::BadRequestLine,
        HeadError::BadStatusLine,
        HeadError::BadMethod,
        HeadError::MethodTooLong,
        HeadError::BadTarget,
        HeadError::BareLf,
        HeadError::BareCr,
        HeadError::ObsFold,
        HeadError::SpaceBeforeColon,
        HeadError::BadHeaderName,
        HeadError::BadHeaderValue,
        HeadError::MissingHost,
        HeadError::DuplicateHost,
        HeadError::BadHost,
        HeadError::HostMismatch,
        HeadError::BadContentLength,
        HeadError::DuplicateContentLength,
        HeadError::LengthAndTransferEncoding,
        HeadError::TransferEncodingOnHttp10,
        HeadError::BadTransferEncoding,
        HeadError::UnsupportedTransferEncoding,
        HeadError::BadConnection,
        HeadError::UnknownExpectation,
        HeadError::BadChunkSize,
        HeadError::BadChunkExtension,
        HeadError::ChunkLineTooLong,
        HeadError::BadChunkDelimiter,
        HeadError::BadTrailer,
        HeadError::TrailerTooLarge,
    ];

    /// The status with which to answer a request that is refused for this reason.
    pub fn status(&self) -> u16 {
        match self {
            HeadError::TargetTooLong => 414,
            HeadError::UnknownExpectation => 417,
            HeadError::HeadTooLarge | HeadError::TooManyHeaders | HeadError::TrailerTooLarge => 431,
            HeadError::MethodTooLong | HeadError::UnsupportedTransferEncoding => 501,
            HeadError::UnsupportedVersion => 505,
            _ => 400,
        }
    }

    /// The reason as a metric label: stable, lower case, words joined by `_`.
    pub fn reason(&self) -> &'static str {
        match self {
            HeadError::HeadTooLarge => "head_too_large",
            HeadError::TooManyHeaders => "too_many_headers",
            HeadError::TargetTooLong => "target_too_long",
            HeadError::UnsupportedVersion => "unsupported_version",
            HeadError::BadRequestLine => "bad_request_line",
            HeadError::BadStatusLine => "bad_status_line",
            HeadError::BadMethod => "bad_method",
            HeadError::MethodTooLong => "method_too_long",
            HeadError::BadTarget => "bad_target",
            HeadError::BareLf => "bare_lf",
            HeadError::BareCr => "bare_cr",
            HeadError::ObsFold => "obs_fold",
            HeadError::SpaceBeforeColon => "space_before_colon",
            HeadError::BadHeaderName => "bad_header_name",
            HeadError::BadHeaderValue => "bad_header_value",
            HeadError::MissingHost => "missing_host",
            HeadError::DuplicateHost => "duplicate_host",
            HeadError::BadHost => "bad_host",
            HeadError::HostMismatch => "host_mismatch",
            HeadError::BadContentLength => "bad_content_length",
            HeadError::DuplicateContentLength => "duplicate_content_length",
            HeadError::LengthAndTransferEncoding => "length_and_transfer_encoding",
            HeadError::TransferEncodingOnHttp10 => "transfer_encoding_on_http10",
            HeadError::BadTransferEncoding => "bad_transfer_encoding",
            HeadError::UnsupportedTransferEncoding => "unsupported_transfer_encoding",
            HeadError::BadConnection => "bad_connection",
            HeadError::UnknownExpectation => "unknown_expectation",
            HeadError::BadChunkSize => "bad_chunk_size",
            HeadError::BadChunkExtension => "bad_chunk_extension",
            HeadError::ChunkLineTooLong => "chunk_line_too_long",
            HeadError::BadChunkDelimiter => "bad_chunk_delimiter",
            HeadError::BadTrailer => "bad_trailer",
            HeadError::TrailerTooLarge => "trailer_too_large",
        }
    }
}
