//! The error of a refused operation.

use std::io;

use s3s::{S3Error, S3ErrorCode};

/// See the [module](self).
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// No such bucket.
    #[error("The specified bucket does not exist")]
    NoBucket,
    /// No such object.
    #[error("The specified key does not exist.")]
    NoKey,
    /// The bucket is there already.
    #[error("The requested bucket name is not available")]
    BucketExists,
    /// The bucket has objects.
    #[error("The bucket you tried to delete is not empty")]
    BucketNotEmpty,
    /// A condition of the request does not hold.
    #[error("At least one of the pre-conditions you specified did not hold")]
    Precondition,
    /// The caller already has this object.
    #[error("Not Modified")]
    NotModified,
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
    /// The operation is not supported.
    #[error("{0}")]
    Unsupported(String),
    /// The system call failed.
    #[error("the store's directory: {0}")]
    System(#[from] io::Error),
}

impl From<Fault> for S3Error {
    fn from(fault: Fault) -> S3Error {
        let code = match &fault {
            Fault::NoBucket => S3ErrorCode::NoSuchBucket,
            Fault::NoKey => S3ErrorCode::NoSuchKey,
            Fault::BucketExists => S3ErrorCode::BucketAlreadyExists,
            Fault::BucketNotEmpty => S3ErrorCode::BucketNotEmpty,
            Fault::Precondition => S3ErrorCode::PreconditionFailed,
            Fault::NotModified => S3ErrorCode::NotModified,
            Fault::KeyTooLong => S3ErrorCode::KeyTooLongError,
            Fault::KeyHasZero | Fault::Argument(_) => S3ErrorCode::InvalidArgument,
            Fault::NoUpload => S3ErrorCode::NoSuchUpload,
            Fault::Part(_) => S3ErrorCode::InvalidPart,
            Fault::PartOrder => S3ErrorCode::InvalidPartOrder,
            Fault::PartTooSmall(_) => S3ErrorCode::EntityTooSmall,
            Fault::Digest(_) => S3ErrorCode::BadDigest,
            Fault::Incomplete => S3ErrorCode::IncompleteBody,
            Fault::Unsupported(_) => S3ErrorCode::NotImplemented,
            Fault::System(error) => {
                tracing::error!(%error, "store: its directory");
                S3ErrorCode::InternalError
            }
        };
        let text = fault.to_string();
        S3Error::with_message(code, text)
    }
}
