//! Bodies: written to a file with their digests, and read from one.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use s3s::checksum::ChecksumHasher;
use s3s::crypto::{Checksum as _, Md5};
use s3s::dto::{self, ChecksumAlgorithm, StreamingBlob};
use s3s::{Body, S3Error, TrailingHeaders};
use tokio::task::JoinHandle;

use crate::checksums::Algorithm;
use crate::disk::{self, Disk, DiskFile};
use crate::fault::Fault;
use crate::vault::{Draft, Vault};

/// Bytes of one read or write.
pub const PIECE_BYTES: usize = 512 * 1024;

/// The properties of a body that its request announces.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// `Content-MD5`, in base64.
    pub md5: Option<String>,
    /// Its length.
    pub bytes: Option<i64>,
    /// The checksums, including those in the trailer.
    pub checksum: dto::Checksum,
    /// The algorithm of a checksum to compute even though none is given.
    pub algorithm: Option<ChecksumAlgorithm>,
}

/// A body that was written to a file.
pub struct Taken<D: Disk> {
    /// The file.
    pub draft: Draft<D>,
    /// The digests.
    pub sums: Sums,
    /// The length.
    pub bytes: u64,
}

/// Incremental digests of a body.
pub struct Sums {
    md5: Md5,
    others: ChecksumHasher,
}

impl Sums {
    /// Creates the digests that a request asks for, and MD5.
    ///
    /// # Errors
    /// The algorithm is not supported.
    pub fn asked(expected: &Expected) -> Result<Sums, Fault> {
        let algorithm = expected.algorithm.as_ref().map(ChecksumAlgorithm::as_str);
        let algorithm = algorithm.map(Algorithm::parse).transpose()?;
        let given = &expected.checksum;
        let mut others = ChecksumHasher::default();
        for one in Algorithm::ALL {
            if one.of(given).is_some() || algorithm == Some(one) {
                one.start(&mut others);
            }
        }
        Ok(Sums { md5: Md5::new(), others })
    }

    fn add(&mut self, bytes: &[u8]) {
        self.md5.update(bytes);
        self.others.update(bytes);
    }

    /// Returns the MD5 in hexadecimal digits, and the checksums; compares them with the expected
    /// ones.
    ///
    /// # Errors
    /// A digest differs.
    pub fn finish(self, expected: &Expected) -> Result<(String, dto::Checksum), Fault> {
        let md5 = self.md5.finalize();
        if let Some(due) = &expected.md5 {
            use base64::Engine as _;
            let due = base64::engine::general_purpose::STANDARD.decode(due);
            let wrong = |_| Fault::Argument("Content-MD5 is not base64".to_owned());
            if due.map_err(wrong)? != md5 {
                return Err(Fault::Digest("Content-MD5"));
            }
        }
        let (found, due) = (self.others.finalize(), &expected.checksum);
        for (name, due, found) in [
            ("x-amz-checksum-crc32", &due.checksum_crc32, &found.checksum_crc32),
            ("x-amz-checksum-crc32c", &due.checksum_crc32c, &found.checksum_crc32c),
            ("x-amz-checksum-crc64nvme", &due.checksum_crc64nvme, &found.checksum_crc64nvme),
            ("x-amz-checksum-sha1", &due.checksum_sha1, &found.checksum_sha1),
            ("x-amz-checksum-sha256", &due.checksum_sha256, &found.checksum_sha256),
        ] {
            if due.is_some() && due != found {
                return Err(Fault::Digest(name));
            }
        }
        Ok((hex(&md5), found))
    }
}

/// Hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Expected {
    /// Adds the values of the trailer.
    pub fn add_trailer(&mut self, trailer: Option<&TrailingHeaders>) {
        let Some(fields) = trailer.and_then(TrailingHeaders::take) else { return };
        let text = |name: &str| fields.get(name).and_then(|value| value.to_str().ok());
        let set = |place: &mut Option<String>, name: &str| {
            if let Some(text) = text(name) {
                *place = Some(text.to_owned());
            }
        };
        set(&mut self.checksum.checksum_crc32, "x-amz-checksum-crc32");
        set(&mut self.checksum.checksum_crc32c, "x-amz-checksum-crc32c");
        set(&mut self.checksum.checksum_crc64nvme, "x-amz-checksum-crc64nvme");
        set(&mut self.checksum.checksum_sha1, "x-amz-checksum-sha1");
        set(&mut self.checksum.checksum_sha256, "x-amz-checksum-sha256");
    }
}

/// Runs a closure that may wait for a disk.
///
/// # Errors
/// The error of the closure, or its panic.
pub async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, S3Error> {
    let done = tokio::task::spawn_blocking(act).await;
    done.map_err(S3Error::internal_error)?.map_err(S3Error::from)
}

/// Writes a body to a file.
///
/// # Errors
/// The body is incomplete or has another length, or the system call failed.
pub async fn take<D: Disk>(
    vault: &Arc<Vault<D>>,
    body: Option<StreamingBlob>,
    expected: &Expected,
) -> Result<Taken<D>, S3Error> {
    let mut state = (None::<Taken<D>>, Some(Sums::asked(expected)?));
    let mut body = body.map_or_else(Body::empty, Body::from);
    let mut piece = Vec::new();
    loop {
        let frame = body.frame().await.transpose();
        let frame = frame.map_err(|error| {
            tracing::debug!(%error, "store: a body breaks off");
            S3Error::from(Fault::Incomplete)
        })?;
        let is_last = frame.is_none();
        if let Some(data) = frame.and_then(|frame| frame.into_data().ok()) {
            piece.extend_from_slice(&data);
        }
        if piece.len() >= PIECE_BYTES || is_last {
            let (full, vault) = (std::mem::take(&mut piece), vault.clone());
            state = blocking(move || append(&vault, state, &full)).await?;
        }
        if is_last {
            break;
        }
    }
    let taken = state.0.ok_or_else(|| S3Error::from(Fault::Incomplete))?;
    match expected.bytes {
        Some(due) if u64::try_from(due) != Ok(taken.bytes) => Err(Fault::Incomplete.into()),
        _ => Ok(taken),
    }
}

type Taking<D> = (Option<Taken<D>>, Option<Sums>);

fn append<D: Disk>(
    vault: &Vault<D>,
    (taken, sums): Taking<D>,
    bytes: &[u8],
) -> Result<Taking<D>, Fault> {
    let mut taken = match (taken, sums) {
        (Some(taken), _) => taken,
        (None, Some(sums)) => Taken { draft: vault.draft()?, sums, bytes: 0 },
        (None, None) => return Err(Fault::Incomplete),
    };
    taken.draft.file.append(bytes)?;
    taken.sums.add(bytes);
    taken.bytes += bytes.len() as u64;
    Ok((Some(taken), None))
}

/// Copies a range of a file to another one; returns the MD5, and adds the bytes to other checksums.
///
/// # Errors
/// The system call failed.
pub fn copy<F: DiskFile>(
    from: &impl DiskFile,
    range: std::ops::Range<u64>,
    to: &mut F,
    others: &mut ChecksumHasher,
) -> io::Result<String> {
    let (mut at, mut md5) = (range.start, Md5::new());
    while at < range.end {
        let count = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(PIECE_BYTES);
        let piece = disk::read_exact(from, at, count)?;
        to.append(&piece)?;
        md5.update(&piece);
        others.update(&piece);
        at += count as u64;
    }
    Ok(hex(&md5.finalize()))
}

/// Computes the MD5 of a file without metadata.
///
/// # Errors
/// The system call failed.
pub fn md5_of(file: &impl DiskFile, bytes: u64) -> io::Result<String> {
    struct Nowhere;
    impl DiskFile for Nowhere {
        fn append(&mut self, _: &[u8]) -> io::Result<()> {
            Ok(())
        }
        fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
            Ok(0)
        }
        fn stat(&self) -> io::Result<disk::Stat> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn set_modified(&self, _: i64) -> io::Result<()> {
            Ok(())
        }
        fn sync(&self) -> io::Result<()> {
            Ok(())
        }
    }
    copy(file, 0..bytes, &mut Nowhere, &mut ChecksumHasher::default())
}

/// A body that is read from a file, one chunk ahead of its reader.
struct FileBody<F> {
    file: Arc<F>,
    at: u64,
    end: u64,
    reading: Option<JoinHandle<io::Result<Vec<u8>>>>,
}

impl<F: DiskFile> FileBody<F> {
    fn read_on(&mut self) {
        let count = usize::try_from(self.end - self.at).unwrap_or(usize::MAX).min(PIECE_BYTES);
        if count == 0 {
            return;
        }
        let (file, at) = (self.file.clone(), self.at);
        self.at += count as u64;
        let read = move || disk::read_exact(&*file, at, count);
        self.reading = Some(tokio::task::spawn_blocking(read));
    }
}

impl<F: DiskFile> HttpBody for FileBody<F> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let body = self.get_mut();
        let Some(reading) = &mut body.reading else { return Poll::Ready(None) };
        let read = ready!(Pin::new(reading).poll(context)).map_err(io::Error::other);
        body.reading = None;
        let read = read.and_then(|read| read);
        if read.is_ok() {
            body.read_on();
        }
        Poll::Ready(Some(read.map(|piece| Frame::data(Bytes::from(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.reading.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// A body with a range of a file: the first bytes are given, the others are read on demand.
pub fn give<F: DiskFile>(file: F, first: Vec<u8>, rest: std::ops::Range<u64>) -> StreamingBlob {
    if rest.is_empty() {
        return Body::from(first).into();
    }
    let reading = tokio::spawn(async move { Ok(first) });
    let (at, end) = (rest.start, rest.end);
    let body = FileBody { file: Arc::new(file), at, end, reading: Some(reading) };
    StreamingBlob::from(Body::http_body(body))
}
