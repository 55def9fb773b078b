//! Properties that clients of S3 rely on, found by suites of tests that others wrote; tested over HTTP.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use unlade_s3_store::Store;

/// A served store in a directory of its own.
struct Bed {
    address: SocketAddr,
    serving: tokio::task::JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Bed {
    async fn new() -> Bed {
        let dir = tempfile::tempdir().unwrap();
        let any = (Ipv4Addr::LOCALHOST, 0).into();
        let store = Store::listen(any, dir.path(), None).await.unwrap();
        let address = store.address().unwrap();
        let serving = tokio::spawn(async move { store.serve().await.unwrap() });
        let bed = Bed { address, serving, _dir: dir };
        bed.ask("PUT", "/box", &[], b"", 200).await;
        bed
    }

    /// Sends a request; returns the response as text, which has this status.
    async fn ask(
        &self,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
        body: &[u8],
        status: u16,
    ) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let fields: String =
            fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let (address, length) = (self.address, body.len());
        let head = format!(
            "{method} {target} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{fields}\
             content-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{method} {target}: {answer}");
        answer
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// The text between two others, of which the first one is there.
fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    text.split_once(before)?.1.split_once(after).map(|(found, _)| found)
}

/// The CRC-32C of `hello`, in base64 (RFC 3720, appendix B.4, has the polynomial).
const HELLO_CRC32C: &str = "mnG7TA==";
const HELLO_MD5: &str = "5d41402abc4b2a76b9719d911017c592";

#[tokio::test]
async fn an_object_has_a_type_and_head_counts_its_tags() {
    let bed = Bed::new().await;
    bed.ask("PUT", "/box/k", &[("x-amz-tagging", "a=1&b=2")], b"hello", 200).await;
    for method in ["GET", "HEAD"] {
        let answer = bed.ask(method, "/box/k", &[], b"", 200).await;
        assert!(answer.contains("content-type: binary/octet-stream\r\n"), "{answer}");
        assert!(answer.contains("x-amz-tagging-count: 2\r\n"), "{answer}");
    }
    bed.ask("PUT", "/box/t", &[("content-type", "text/plain")], b"", 200).await;
    let answer = bed.ask("HEAD", "/box/t", &[], b"", 200).await;
    assert!(answer.contains("content-type: text/plain\r\n"), "{answer}");
    assert!(!answer.contains("tagging-count"), "{answer}");
}

#[tokio::test]
async fn an_answer_to_a_put_has_the_type_of_the_checksum() {
    let bed = Bed::new().await;
    let sum = [("x-amz-checksum-crc32c", HELLO_CRC32C)];
    let answer = bed.ask("PUT", "/box/k", &sum, b"hello", 200).await;
    assert!(answer.contains("x-amz-checksum-type: FULL_OBJECT\r\n"), "{answer}");
    assert!(!bed.ask("PUT", "/box/k", &[], b"hello", 200).await.contains("checksum-type"));
}

#[tokio::test]
async fn encryption_and_locks_are_refused_and_nothing_is_stored() {
    let bed = Bed::new().await;
    for field in [
        ("x-amz-server-side-encryption", "aws:kms"),
        ("x-amz-server-side-encryption-customer-algorithm", "AES256"),
        ("x-amz-object-lock-mode", "GOVERNANCE"),
        ("x-amz-object-lock-legal-hold", "ON"),
    ] {
        let answer = bed.ask("PUT", "/box/k", &[field], b"secret", 501).await;
        assert!(answer.contains("<Code>NotImplemented</Code>"), "{answer}");
        assert!(answer.contains(field.0), "{answer}");
        bed.ask("HEAD", "/box/k", &[], b"", 404).await;
    }
    let locked = [("x-amz-bucket-object-lock-enabled", "true")];
    bed.ask("PUT", "/locked", &locked, b"", 501).await;
    bed.ask("HEAD", "/locked", &[], b"", 404).await;
    bed.ask("PUT", "/free", &[("x-amz-bucket-object-lock-enabled", "false")], b"", 200).await;
}

/// Tools ask for it always: the answer does not say that the object is encrypted.
#[tokio::test]
async fn encryption_with_keys_of_the_store_is_accepted_and_not_claimed() {
    let bed = Bed::new().await;
    let asked = [("x-amz-server-side-encryption", "AES256")];
    let put = bed.ask("PUT", "/box/k", &asked, b"hello", 200).await;
    let begun = bed.ask("POST", "/box/parts?uploads", &asked, b"", 200).await;
    let copied = [asked[0], ("x-amz-copy-source", "/box/k")];
    let copy = bed.ask("PUT", "/box/copy", &copied, b"", 200).await;
    let head = bed.ask("HEAD", "/box/copy", &[], b"", 200).await;
    for answer in [put, begun, copy, head] {
        assert!(!answer.contains("server-side-encryption"), "{answer}");
    }
    assert!(bed.ask("GET", "/box/copy", &[], b"", 200).await.ends_with("hello"));
}

#[tokio::test]
async fn a_bucket_of_another_region_is_created_once() {
    let bed = Bed::new().await;
    let of = |region: &str| {
        format!(
            "<CreateBucketConfiguration><LocationConstraint>{region}</LocationConstraint>\
             </CreateBucketConfiguration>"
        )
    };
    let there = of("eu-west-1");
    let owned = "<Code>BucketAlreadyOwnedByYou</Code>";
    bed.ask("PUT", "/far", &[], there.as_bytes(), 200).await;
    let answer = bed.ask("GET", "/far?location", &[], b"", 200).await;
    assert!(answer.contains(">eu-west-1</LocationConstraint>"), "{answer}");
    for (target, body) in [("/far", there.as_str()), ("/far", ""), ("/box", there.as_str())] {
        let answer = bed.ask("PUT", target, &[], body.as_bytes(), 409).await;
        assert!(answer.contains(owned), "{answer}");
    }
    for body in ["", &of("us-east-1")] {
        bed.ask("PUT", "/box", &[], body.as_bytes(), 200).await;
    }
    assert!(!bed.ask("GET", "/box?location", &[], b"", 200).await.contains("eu-west-1"));
    // A later bucket of the same name has no region of an earlier one.
    bed.ask("DELETE", "/far", &[], b"", 204).await;
    bed.ask("PUT", "/far", &[], b"", 200).await;
    assert!(!bed.ask("GET", "/far?location", &[], b"", 200).await.contains("eu-west-1"));
}

#[tokio::test]
async fn a_removal_of_any_object_needs_one() {
    let bed = Bed::new().await;
    let any = [("if-match", "*")];
    let answer = bed.ask("DELETE", "/box/k", &any, b"", 412).await;
    assert!(answer.contains("<Code>PreconditionFailed</Code>"), "{answer}");
    bed.ask("PUT", "/box/k", &[], b"hello", 200).await;
    bed.ask("DELETE", "/box/k", &any, b"", 204).await;
    bed.ask("HEAD", "/box/k", &[], b"", 404).await;
    bed.ask("DELETE", "/box/k", &[], b"", 204).await;
}

#[tokio::test]
async fn a_page_begins_at_its_token_whatever_the_first_one_began_at() {
    let bed = Bed::new().await;
    for key in ["a", "b", "c"] {
        bed.ask("PUT", &format!("/box/{key}"), &[], b"", 200).await;
    }
    let page = bed.ask("GET", "/box?list-type=2&max-keys=1&start-after=a", &[], b"", 200).await;
    assert!(page.contains("<Key>b</Key>"), "{page}");
    let token = between(&page, "<NextContinuationToken>", "<").unwrap();
    for start in ["", "a", "z"] {
        let target = format!("/box?list-type=2&continuation-token={token}&start-after={start}");
        let page = bed.ask("GET", &target, &[], b"", 200).await;
        assert!(page.contains("<Key>c</Key>") && !page.contains("<Key>b</Key>"), "{page}");
    }
}

#[tokio::test]
async fn the_body_of_an_error_has_its_type() {
    let bed = Bed::new().await;
    let kind = "content-type: application/xml\r\n";
    for (method, target) in [("GET", "/box/none"), ("PUT", "/none/k"), ("GET", "/box?tagging")] {
        let answer = bed.ask(method, target, &[], b"", 404).await;
        assert!(answer.contains(kind) && answer.contains("x-amz-request-id: "), "{answer}");
    }
    bed.ask("PUT", "/box/k", &[], b"hello", 200).await;
    let known = format!("\"{HELLO_MD5}\"");
    let answer = bed.ask("GET", "/box/k", &[("if-none-match", &known)], b"", 304).await;
    assert!(!answer.contains(kind), "{answer}");
}

/// Uploads `hello` as one part with a CRC-32C; returns the answer to the completion.
async fn upload(bed: &Bed, target: &str, sum_of_sums: &str, status: u16) -> String {
    let begin = [("x-amz-checksum-algorithm", "CRC32C")];
    let answer = bed.ask("POST", &format!("{target}?uploads"), &begin, b"", 200).await;
    let id = between(&answer, "<UploadId>", "</UploadId>").unwrap().to_owned();
    let part = format!("{target}?partNumber=1&uploadId={id}");
    bed.ask("PUT", &part, &[("x-amz-checksum-crc32c", HELLO_CRC32C)], b"hello", 200).await;
    let parts = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{HELLO_MD5}</ETag>\
         <ChecksumCRC32C>{HELLO_CRC32C}</ChecksumCRC32C></Part></CompleteMultipartUpload>"
    );
    let due = [("x-amz-checksum-crc32c", sum_of_sums)];
    bed.ask("POST", &format!("{target}?uploadId={id}"), &due, parts.as_bytes(), status).await
}

/// The CRC-32C of the four bytes of [`HELLO_CRC32C`].
const SUM_OF_SUMS: &str = "VwS2rA==";

#[tokio::test]
async fn a_checksum_of_parts_is_compared_without_their_number() {
    let bed = Bed::new().await;
    for due in [SUM_OF_SUMS.to_owned(), format!("{SUM_OF_SUMS}-1")] {
        upload(&bed, "/box/k", &due, 200).await;
        let sums = [("x-amz-checksum-mode", "ENABLED")];
        let answer = bed.ask("HEAD", "/box/k", &sums, b"", 200).await;
        assert!(
            answer.contains(&format!("x-amz-checksum-crc32c: {SUM_OF_SUMS}-1\r\n")),
            "{answer}"
        );
        assert!(answer.contains("x-amz-checksum-type: COMPOSITE\r\n"), "{answer}");
    }
    for wrong in [HELLO_CRC32C.to_owned(), format!("{SUM_OF_SUMS}-2")] {
        let answer = upload(&bed, "/box/wrong", &wrong, 400).await;
        assert!(answer.contains("<Code>BadDigest</Code>"), "{answer}");
    }
}

#[tokio::test]
async fn a_copy_of_parts_is_whole() {
    let bed = Bed::new().await;
    upload(&bed, "/box/parts", SUM_OF_SUMS, 200).await;
    let enabled = [("x-amz-checksum-mode", "ENABLED")];
    let from = ("x-amz-copy-source", "/box/parts");
    for (fields, sum) in [
        (vec![from], format!("x-amz-checksum-crc32c: {HELLO_CRC32C}\r\n")),
        // The SHA-1 of `hello` (by `sha1sum`).
        (
            vec![from, ("x-amz-checksum-algorithm", "SHA1")],
            "x-amz-checksum-sha1: qvTGHdzF6KLavt4PO0gs2a6pQ00=\r\n".to_owned(),
        ),
    ] {
        let answer = bed.ask("PUT", "/box/copy", &fields, b"", 200).await;
        assert!(answer.contains("<ChecksumType>FULL_OBJECT</ChecksumType>"), "{answer}");
        let answer = bed.ask("HEAD", "/box/copy", &enabled, b"", 200).await;
        assert!(answer.contains(&format!("etag: \"{HELLO_MD5}\"\r\n")), "{answer}");
        assert!(answer.contains(&sum), "{answer}");
        assert!(answer.contains("x-amz-checksum-type: FULL_OBJECT\r\n"), "{answer}");
        assert_eq!(answer.matches("x-amz-checksum-").count(), 2, "{answer}");
    }
}

#[tokio::test]
async fn the_answer_to_a_form_has_the_address_of_the_object() {
    let bed = Bed::new().await;
    let form = |name: &str, value: &str| {
        format!("--x\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    let file = "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\nhello\r\n--x--\r\n";
    let kind = [("content-type", "multipart/form-data; boundary=x")];
    let sum = form("x-amz-checksum-crc32c", HELLO_CRC32C);
    let body = format!("{}{sum}{file}", form("key", "a/b c"));
    let answer = bed.ask("POST", "/box", &kind, body.as_bytes(), 204).await;
    let place = format!("location: http://{}/box/a/b%20c\r\n", bed.address);
    assert!(answer.contains(&place), "{answer}");
    assert!(answer.contains(&format!("etag: \"{HELLO_MD5}\"\r\n")), "{answer}");
    assert!(answer.contains(&format!("x-amz-checksum-crc32c: {HELLO_CRC32C}\r\n")), "{answer}");
    assert!(bed.ask("GET", "/box/a/b%20c", &[], b"", 200).await.ends_with("hello"));

    for (algorithm, status, found) in [("aws:kms", 501, 404), ("AES256", 204, 200)] {
        let sealed = form("x-amz-server-side-encryption", algorithm);
        let body = format!("{}{sealed}{file}", form("key", "sealed"));
        bed.ask("POST", "/box", &kind, body.as_bytes(), status).await;
        bed.ask("HEAD", "/box/sealed", &[], b"", found).await;
    }

    let redirect = form("success_action_redirect", "http://there.example/done");
    let body = format!("{}{redirect}{file}", form("key", "k"));
    let answer = bed.ask("POST", "/box", &kind, body.as_bytes(), 303).await;
    assert!(answer.contains("location: http://there.example/done?bucket=box&key=k"), "{answer}");
}
