//! The error of a refused operation.

use std::io;

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use s3s::dto::{Timestamp, TimestampFormat};
use s3s::{S3Error, S3ErrorCode};

use crate::disk::system_time;

/// See the [module](self).
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// No such bucket.
    #[error("The specified bucket does not exist")]
    NoBucket,
    /// No such object.
    #[error("The specified key does not exist.")]
    NoKey,
    /// No such version.
    #[error("The specified version does not exist.")]
    NoVersion,
    /// The newest version is a delete marker, with this id.
    #[error("The specified key does not exist.")]
    Deleted(String),
    /// The version is a delete marker.
    #[error("The specified method is not allowed against this resource: it is a delete marker")]
    Marker {
        /// Its id.
        id: String,
        /// Its time, in nanoseconds since 1970.
        modified_ns: i64,
    },
    /// The bucket is there already.
    #[error("The requested bucket name is not available")]
    BucketExists,
    /// The bucket is there already, in a region where it is not created again.
    #[error("Your previous request to create the named bucket succeeded and you already own it.")]
    BucketOwned,
    /// The bucket has objects.
    #[error("The bucket you tried to delete is not empty")]
    BucketNotEmpty,
    /// A condition of the request does not hold.
    #[error("At least one of the pre-conditions you specified did not hold")]
    Precondition,
    /// The caller already has this object.
    #[error("Not Modified")]
    NotModified {
        /// Its ETag.
        e_tag: String,
        /// Its time, in nanoseconds since 1970.
        modified_ns: i64,
        /// Its version, in a bucket with versions.
        id: Option<String>,
    },
    /// The key is longer than S3's limit.
    #[error("Your key is too long: {} bytes at most", crate::names::KEY_BYTES_MAX)]
    KeyTooLong,
    /// The key has a zero byte, which XML cannot represent.
    #[error("The key has a zero byte; use another key")]
    KeyHasZero,
    /// No such upload.
    #[error("The specified upload does not exist. It may have been aborted or completed")]
    NoUpload,
    /// A part is missing, or has another ETag.
    #[error("Part {0} could not be found, or its ETag is another one")]
    Part(i32),
    /// The object has no such part.
    #[error("The requested partnumber {0} is not satisfiable")]
    NoPart(i32),
    /// A range is beyond the object.
    #[error("The requested range is not satisfiable")]
    Range,
    /// The name cannot be one of a bucket.
    #[error("The specified bucket is not valid: {0:?}")]
    BucketName(String),
    /// Parts are not in their order.
    #[error("The list of parts was not in ascending order")]
    PartOrder,
    /// A part is too small and not the last.
    #[error("Part {0} is smaller than the minimum allowed size, and not the last one")]
    PartTooSmall(i32),
    /// A digest of the body differs.
    #[error("The {0} you specified did not match what we received")]
    Digest(&'static str),
    /// The body is incomplete.
    #[error("You did not provide the number of bytes specified by the Content-Length HTTP header")]
    Incomplete,
    /// A parameter is invalid.
    #[error("{0}")]
    Argument(String),
    /// The request makes no sense.
    #[error("{0}")]
    Request(&'static str),
    /// A tag is invalid.
    #[error("{0}")]
    Tag(String),
    /// The bucket has no tags.
    #[error("There is no tag set associated with the bucket")]
    NoTags,
    /// The class is none that the store has.
    #[error("The storage class you specified is not valid: {0:?}")]
    StorageClass(String),
    /// The gateway, which is to check functions, does not answer.
    #[error("The gateway does not answer, and cannot check the functions; try again")]
    NoGateway,
    /// There are as many events as may be, so a change that makes one is refused.
    #[error(
        "Please reduce your request rate: {} events of changed objects wait for the gateway",
        crate::record::EVENTS_MAX
    )]
    OutboxFull,
    /// The operation is not supported.
    #[error("{0}")]
    Unsupported(String),
    /// The system call failed.
    #[error("the store's directory: {0}")]
    System(#[from] io::Error),
}

impl Fault {
    /// The header fields of the response, besides the error.
    fn fields(&self) -> Option<HeaderMap> {
        let (id, time, is_marker, e_tag) = match self {
            Fault::Deleted(id) => (Some(id), None, true, None),
            Fault::Marker { id, modified_ns } => (Some(id), Some(*modified_ns), true, None),
            Fault::NotModified { e_tag, modified_ns, id } => {
                (id.as_ref(), Some(*modified_ns), false, Some(e_tag))
            }
            _ => return None,
        };
        let date = time.and_then(|modified_ns| {
            let (time, mut text) = (Timestamp::from(system_time(modified_ns)), Vec::new());
            time.format(TimestampFormat::HttpDate, &mut text).ok()?;
            String::from_utf8(text).ok()
        });
        let fields = [
            ("x-amz-delete-marker", is_marker.then(|| "true".to_owned())),
            ("x-amz-version-id", id.cloned()),
            ("last-modified", date),
            ("etag", e_tag.map(|e_tag| format!("\"{e_tag}\""))),
        ];
        let field = |(name, value): (&'static str, Option<String>)| {
            Some((HeaderName::from_static(name), HeaderValue::try_from(value?).ok()?))
        };
        Some(fields.into_iter().filter_map(field).collect())
    }
}

impl From<Fault> for S3Error {
    fn from(fault: Fault) -> S3Error {
        let code = match &fault {
            Fault::NoBucket => S3ErrorCode::NoSuchBucket,
            Fault::NoKey | Fault::Deleted(_) => S3ErrorCode::NoSuchKey,
            Fault::NoVersion => S3ErrorCode::NoSuchVersion,
            Fault::Marker { .. } => S3ErrorCode::MethodNotAllowed,
            Fault::BucketExists => S3ErrorCode::BucketAlreadyExists,
            Fault::BucketOwned => S3ErrorCode::BucketAlreadyOwnedByYou,
            Fault::BucketNotEmpty => S3ErrorCode::BucketNotEmpty,
            Fault::Precondition => S3ErrorCode::PreconditionFailed,
            Fault::NotModified { .. } => S3ErrorCode::NotModified,
            Fault::KeyTooLong => S3ErrorCode::KeyTooLongError,
            Fault::KeyHasZero | Fault::Argument(_) => S3ErrorCode::InvalidArgument,
            Fault::Range => S3ErrorCode::InvalidRange,
            Fault::BucketName(_) => S3ErrorCode::InvalidBucketName,
            Fault::Request(_) => S3ErrorCode::InvalidRequest,
            Fault::NoUpload => S3ErrorCode::NoSuchUpload,
            Fault::Part(_) => S3ErrorCode::InvalidPart,
            Fault::NoPart(_) => S3ErrorCode::InvalidPart,
            Fault::PartOrder => S3ErrorCode::InvalidPartOrder,
            Fault::PartTooSmall(_) => S3ErrorCode::EntityTooSmall,
            Fault::Digest(_) => S3ErrorCode::BadDigest,
            Fault::Incomplete => S3ErrorCode::IncompleteBody,
            Fault::Tag(_) => S3ErrorCode::InvalidTag,
            Fault::NoTags => S3ErrorCode::NoSuchTagSet,
            Fault::StorageClass(_) => S3ErrorCode::InvalidStorageClass,
            Fault::NoGateway => S3ErrorCode::ServiceUnavailable,
            Fault::OutboxFull => S3ErrorCode::SlowDown,
            Fault::Unsupported(_) => S3ErrorCode::NotImplemented,
            Fault::System(error) => {
                tracing::error!(%error, "store: its directory");
                S3ErrorCode::InternalError
            }
        };
        let mut error = S3Error::with_message(code, fault.to_string());
        if let Some(fields) = fault.fields() {
            error.set_headers(fields);
        }
        error
    }
}
