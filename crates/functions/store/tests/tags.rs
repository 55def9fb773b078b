//! Tags and storage classes, tested over HTTP.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use unlade_s3_store::Store;

/// Sends a request; returns the response as text.
async fn ask(address: SocketAddr, method: &str, target: &str, fields: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let request = format!(
        "{method} {target} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{fields}\
         content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

fn document(tags: &[(&str, &str)]) -> String {
    let tag = |(name, value): &(&str, &str)| {
        format!("<Tag><Key>{name}</Key><Value>{value}</Value></Tag>")
    };
    let tags: String = tags.iter().map(tag).collect();
    format!("<Tagging><TagSet>{tags}</TagSet></Tagging>")
}

#[tokio::test]
async fn tags_are_those_of_one_object_or_bucket() {
    let dir = tempfile::tempdir().unwrap();
    let any = (Ipv4Addr::LOCALHOST, 0).into();
    let store = Store::listen(any, dir.path(), None).await.unwrap();
    let address = store.address().unwrap();
    let serving = tokio::spawn(async move { store.serve().await.unwrap() });
    let has = |answer: &str, status: &str, parts: &[&str]| {
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        for part in parts {
            assert!(answer.contains(part), "{part}: {answer}");
        }
    };
    has(&ask(address, "PUT", "/box", "", "").await, "200", &[]);
    // A file of the operator has no metadata yet.
    std::fs::write(dir.path().join("box/file"), "body").unwrap();

    let tagged = "x-amz-tagging: team=a%20b&stage=\r\nx-amz-storage-class: STANDARD_IA\r\n";
    has(&ask(address, "PUT", "/box/k", tagged, "v").await, "200", &[]);
    let class = "x-amz-storage-class: STANDARD_IA";
    has(
        &ask(address, "GET", "/box/k", "", "").await,
        "200",
        &["x-amz-tagging-count: 2", class, "\r\n\r\nv"],
    );
    has(&ask(address, "HEAD", "/box/k", "", "").await, "200", &[class]);
    has(
        &ask(address, "GET", "/box?list-type=2", "", "").await,
        "200",
        &["STANDARD_IA<", "STANDARD<"],
    );
    let both = ["<Key>team</Key><Value>a b</Value>", "<Key>stage</Key><Value></Value>"];
    has(&ask(address, "GET", "/box/k?tagging", "", "").await, "200", &both);

    let copied = "x-amz-copy-source: /box/k\r\n";
    has(&ask(address, "PUT", "/box/copy", copied, "").await, "200", &[]);
    has(&ask(address, "GET", "/box/copy?tagging", "", "").await, "200", &both);
    assert!(!ask(address, "HEAD", "/box/copy", "", "").await.contains("storage-class"));
    let other = "x-amz-copy-source: /box/k\r\nx-amz-tagging-directive: REPLACE\r\n\
                 x-amz-tagging: new=1\r\n";
    has(&ask(address, "PUT", "/box/copy", other, "").await, "200", &[]);
    let answer = ask(address, "GET", "/box/copy?tagging", "", "").await;
    has(&answer, "200", &["<Key>new</Key>"]);
    assert!(!answer.contains("team"), "{answer}");

    for key in ["k", "file"] {
        let target = format!("/box/{key}?tagging");
        has(&ask(address, "PUT", &target, "", &document(&[("x", "y")])).await, "200", &[]);
        let answer = ask(address, "GET", &target, "", "").await;
        has(&answer, "200", &["<Key>x</Key><Value>y</Value>"]);
        assert!(!answer.contains("team"), "{answer}");
        has(&ask(address, "DELETE", &target, "", "").await, "204", &[]);
        assert!(!ask(address, "GET", &target, "", "").await.contains("<Key>"));
    }
    let file = ["\r\n\r\nbody", "etag: \"841a2d689ad86bd1611447453c22c6fc\""];
    has(&ask(address, "GET", "/box/file", "", "").await, "200", &file);

    let many: Vec<String> = (0..11).map(|at| format!("t{at}")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|name| (name.as_str(), "")).collect();
    for wrong in [&many[..], &[("x", "1"), ("x", "2")], &[("aws:x", "1")]] {
        has(
            &ask(address, "PUT", "/box/k?tagging", "", &document(wrong)).await,
            "400",
            &["InvalidTag"],
        );
    }
    has(
        &ask(address, "PUT", "/box/k", "x-amz-tagging: a=%\r\n", "new").await,
        "400",
        &["InvalidArgument"],
    );
    let frozen = "x-amz-storage-class: DEEP_ARCHIVE\r\n";
    has(&ask(address, "PUT", "/box/k", frozen, "new").await, "400", &["InvalidStorageClass"]);
    has(&ask(address, "GET", "/box/k", "", "").await, "200", &["\r\n\r\nv"]);
    has(&ask(address, "GET", "/box/none?tagging", "", "").await, "404", &["NoSuchKey"]);

    has(&ask(address, "GET", "/box?tagging", "", "").await, "404", &["NoSuchTagSet"]);
    has(&ask(address, "PUT", "/box?tagging", "", &document(&many)).await, "200", &[]);
    has(&ask(address, "GET", "/box?tagging", "", "").await, "200", &["<Key>t10</Key>"]);
    has(&ask(address, "DELETE", "/box?tagging", "", "").await, "204", &[]);
    has(&ask(address, "GET", "/box?tagging", "", "").await, "404", &["NoSuchTagSet"]);
    has(
        &ask(address, "PUT", "/none?tagging", "", &document(&[("a", "b")])).await,
        "404",
        &["NoSuchBucket"],
    );

    // A later bucket of the same name has no tags.
    has(&ask(address, "PUT", "/box?tagging", "", &document(&[("a", "b")])).await, "200", &[]);
    for key in ["k", "copy", "file"] {
        has(&ask(address, "DELETE", &format!("/box/{key}"), "", "").await, "204", &[]);
    }
    has(&ask(address, "DELETE", "/box", "", "").await, "204", &[]);
    has(&ask(address, "PUT", "/box", "", "").await, "200", &[]);
    has(&ask(address, "GET", "/box?tagging", "", "").await, "404", &["NoSuchTagSet"]);
    serving.abort();
}
