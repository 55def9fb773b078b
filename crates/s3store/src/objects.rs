//! The operations of `s3s-fs`, some of them mended: objects are read in large pieces (it hands every
//! 4 KiB from thread to thread), parts are listed in their order, and a change that has begun goes to
//! its end though its caller goes away: an object is more than one file, which belong together.

use std::io::SeekFrom;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use s3s::dto::*;
use s3s::{S3, S3Error, S3Request, S3Response, S3Result};
use s3s_fs::FileSystem;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;

/// Octets of an object that are read at once.
const PIECE_BYTES: u64 = 512 * 1024;

/// Longest name of a file (NAME_MAX).
const FILE_NAME_BYTES_MAX: usize = 255;

/// See the module.
pub struct Objects {
    files: Arc<FileSystem>,
    root: PathBuf,
}

impl Objects {
    /// Objects that are files below `root`.
    pub fn new(files: FileSystem, root: &Path) -> Objects {
        Objects { files: Arc::new(files), root: root.to_owned() }
    }

    /// The file of an object, where its name can be no other's.
    fn path(&self, bucket: &str, key: &str) -> Option<PathBuf> {
        let plain = |part: &str| !matches!(part, "" | "." | "..");
        (plain(bucket) && !bucket.contains('/') && key.split('/').all(plain))
            .then(|| self.root.join(bucket).join(key))
    }

    async fn get(&self, req: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let path = self.path(&req.input.bucket, &req.input.key);
        let mut file = None;
        if let Some(path) = &path {
            file = File::open(path).await.ok();
        }
        let mut response = self.files.get_object(req).await?;
        if let (Some(path), Some(file)) = (path, file)
            && let Some(body) = body(&path, file, &response.output).await
        {
            response.output.body = Some(body);
        }
        Ok(response)
    }

    async fn parts(&self, req: S3Request<ListPartsInput>) -> S3Result<S3Response<ListPartsOutput>> {
        let mut response = self.files.list_parts(req).await?;
        if let Some(parts) = &mut response.output.parts {
            parts.sort_by_key(|part| part.part_number);
        }
        Ok(response)
    }
}

/// Refuses an object, before anything of it is kept, whose files' names would be too long. The
/// longest is that of what is said of it: `.bucket-B.object-K.metadata.json`, of an upload with
/// `.upload-UUID` in it, B and K in base64.
fn check_name(bucket: &str, key: &str, is_upload: bool) -> S3Result<()> {
    let encoded = |part: &str| (part.len() * 4).div_ceil(3);
    let affixes = if is_upload { 74 } else { 30 };
    if affixes + encoded(bucket) + encoded(key) <= FILE_NAME_BYTES_MAX {
        return Ok(());
    }
    Err(s3s::s3_error!(KeyTooLongError, "Your key is too long for a store whose objects are files"))
}

/// A change, to its end. A body that breaks off is an error in it, before anything is changed.
async fn whole<T: Send + 'static>(
    change: impl Future<Output = S3Result<S3Response<T>>> + Send + 'static,
) -> S3Result<S3Response<T>> {
    tokio::spawn(change).await.map_err(S3Error::internal_error)?
}

/// What of `content-encoding` is the object's own.
fn own_encodings(all: String) -> Option<String> {
    let own = all.split(',').map(str::trim).filter(|one| !one.is_empty() && *one != "aws-chunked");
    let own = own.collect::<Vec<_>>().join(",");
    (!own.is_empty()).then_some(own)
}

/// The octets that an answer announces; nothing where the file is no longer the object's. An object
/// is replaced by another file: while this one is open no other has its number, so that the answer
/// is about this one if the path still leads to it.
async fn body(path: &Path, mut file: File, answer: &GetObjectOutput) -> Option<StreamingBlob> {
    let own = file.metadata().await.ok()?;
    let now = tokio::fs::metadata(path).await.ok()?;
    if (own.dev(), own.ino()) != (now.dev(), now.ino()) {
        return None;
    }
    let bytes = u64::try_from(answer.content_length?).ok()?;
    // `bytes 5-9/100`
    let range = answer.content_range.as_deref();
    let start = match range {
        None => 0,
        Some(range) => range.strip_prefix("bytes ")?.split('-').next()?.parse().ok()?,
    };
    if start > 0 {
        file.seek(SeekFrom::Start(start)).await.ok()?;
    }
    let piece = usize::try_from(bytes.clamp(1, PIECE_BYTES)).ok()?;
    Some(StreamingBlob::wrap(ReaderStream::with_capacity(file.take(bytes), piece)))
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = S3Result<S3Response<T>>> + Send + 'a>>;

/// Operations that are answered by the files' own.
macro_rules! pass {
    ($($name:ident: $input:ident => $output:ident,)*) => {
        $(fn $name<'a, 'b>(&'a self, req: S3Request<$input>) -> Answer<'b, $output>
        where
            'a: 'b,
            Self: 'b,
        {
            self.files.$name(req)
        })*
    };
}

/// Likewise, of changes.
macro_rules! change {
    ($($name:ident: $input:ident => $output:ident,)*) => {
        $(fn $name<'a, 'b>(&'a self, req: S3Request<$input>) -> Answer<'b, $output>
        where
            'a: 'b,
            Self: 'b,
        {
            let files = self.files.clone();
            Box::pin(whole(async move { files.$name(req).await }))
        })*
    };
}

/// Likewise, of changes that name a new object; and whether that is an upload.
macro_rules! create {
    ($($name:ident: $input:ident => $output:ident, $is_upload:literal;)*) => {
        $(fn $name<'a, 'b>(&'a self, req: S3Request<$input>) -> Answer<'b, $output>
        where
            'a: 'b,
            Self: 'b,
        {
            let named = check_name(&req.input.bucket, &req.input.key, $is_upload);
            let files = self.files.clone();
            Box::pin(whole(async move {
                named?;
                files.$name(req).await
            }))
        })*
    };
}

impl S3 for Objects {
    fn get_object<'a, 'b>(&'a self, req: S3Request<GetObjectInput>) -> Answer<'b, GetObjectOutput>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(self.get(req))
    }

    /// The encoding of the transfer is not the object's: S3 does not keep it.
    fn put_object<'a, 'b>(
        &'a self,
        mut req: S3Request<PutObjectInput>,
    ) -> Answer<'b, PutObjectOutput>
    where
        'a: 'b,
        Self: 'b,
    {
        let named = check_name(&req.input.bucket, &req.input.key, false);
        req.input.content_encoding = req.input.content_encoding.take().and_then(own_encodings);
        let files = self.files.clone();
        Box::pin(whole(async move {
            named?;
            files.put_object(req).await
        }))
    }

    fn list_parts<'a, 'b>(&'a self, req: S3Request<ListPartsInput>) -> Answer<'b, ListPartsOutput>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(self.parts(req))
    }

    pass! {
        get_bucket_location: GetBucketLocationInput => GetBucketLocationOutput,
        head_bucket: HeadBucketInput => HeadBucketOutput,
        head_object: HeadObjectInput => HeadObjectOutput,
        list_buckets: ListBucketsInput => ListBucketsOutput,
        list_objects: ListObjectsInput => ListObjectsOutput,
        list_objects_v2: ListObjectsV2Input => ListObjectsV2Output,
    }

    create! {
        copy_object: CopyObjectInput => CopyObjectOutput, false;
        create_multipart_upload: CreateMultipartUploadInput => CreateMultipartUploadOutput, true;
    }

    change! {
        create_bucket: CreateBucketInput => CreateBucketOutput,
        delete_bucket: DeleteBucketInput => DeleteBucketOutput,
        delete_object: DeleteObjectInput => DeleteObjectOutput,
        delete_objects: DeleteObjectsInput => DeleteObjectsOutput,
        upload_part: UploadPartInput => UploadPartOutput,
        upload_part_copy: UploadPartCopyInput => UploadPartCopyOutput,
        complete_multipart_upload: CompleteMultipartUploadInput => CompleteMultipartUploadOutput,
        abort_multipart_upload: AbortMultipartUploadInput => AbortMultipartUploadOutput,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use s3s::Body;
    use std::task::{Context, Poll};

    async fn octets(path: &Path, file: File, answer: &GetObjectOutput) -> Option<Vec<u8>> {
        let blob = body(path, file, answer).await?;
        Some(Body::from(blob).store_all_limited(1 << 20).await.unwrap().to_vec())
    }

    #[test]
    fn the_encoding_of_a_transfer_is_not_kept() {
        let own = |all: &str| own_encodings(all.to_owned());
        assert_eq!(own("aws-chunked"), None);
        assert_eq!(own("gzip,aws-chunked").as_deref(), Some("gzip"));
        assert_eq!(own("aws-chunked, gzip").as_deref(), Some("gzip"));
        assert_eq!(own("").as_deref(), None);
    }

    #[tokio::test]
    async fn a_change_goes_to_its_end_without_its_caller() {
        let (tell, told) = tokio::sync::oneshot::channel();
        let mut change = Box::pin(whole(async {
            tokio::task::yield_now().await;
            let _ = tell.send(());
            Ok(S3Response::new(()))
        }));
        let poll = |context: &mut Context<'_>| Poll::Ready(change.as_mut().poll(context));
        assert!(std::future::poll_fn(poll).await.is_pending());
        drop(change);
        told.await.expect("it was made");
    }

    #[tokio::test]
    async fn a_body_is_of_the_file_that_the_answer_is_about() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k");
        let whole: Vec<u8> = (0..PIECE_BYTES + 10).map(|at| at as u8).collect();
        std::fs::write(&path, &whole).unwrap();
        let open = async || File::open(&path).await.unwrap();
        let answer = |start: usize, end: usize| GetObjectOutput {
            content_length: Some((end - start) as i64),
            content_range: (start > 0)
                .then(|| format!("bytes {start}-{}/{}", end - 1, whole.len())),
            ..GetObjectOutput::default()
        };
        for (start, end) in [(0, whole.len()), (0, 0), (5, 9), (9, whole.len())] {
            let found = octets(&path, open().await, &answer(start, end)).await;
            assert!(found.is_some_and(|found| found == whole[start..end]), "{start} {end}");
        }
        let old = open().await;
        std::fs::write(dir.path().join("new"), b"another").unwrap();
        std::fs::rename(dir.path().join("new"), &path).unwrap();
        assert!(octets(&path, old, &answer(0, 7)).await.is_none());
    }

    #[test]
    fn a_name_that_no_file_can_have_is_refused() {
        let key = |bytes| "k".repeat(bytes);
        assert!(check_name("box", &key(165), false).is_ok());
        let refused = check_name("box", &key(166), false).unwrap_err();
        assert_eq!(*refused.code(), s3s::S3ErrorCode::KeyTooLongError);
        assert!(check_name("box", &key(132), true).is_ok());
        assert!(check_name("box", &key(133), true).is_err());
    }

    #[test]
    fn only_plain_names_are_paths() {
        let dir = tempfile::tempdir().unwrap();
        let objects = Objects::new(FileSystem::new(dir.path()).unwrap(), dir.path());
        assert_eq!(objects.path("b", "a/c d"), Some(dir.path().join("b/a/c d")));
        for (bucket, key) in
            [("b", "../k"), ("b", "a/../k"), ("b", "/k"), ("..", "k"), ("a/b", "k")]
        {
            assert_eq!(objects.path(bucket, key), None, "{bucket} {key}");
        }
    }
}
