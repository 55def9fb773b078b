//! The mapping of keys and buckets to files, tested over HTTP.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use unlade_s3_store::Store;

/// A store, and its directory.
struct Bed {
    dir: tempfile::TempDir,
    address: SocketAddr,
    serving: tokio::task::JoinHandle<()>,
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn bed() -> Bed {
    let dir = tempfile::tempdir().unwrap();
    let any = (Ipv4Addr::LOCALHOST, 0).into();
    let store = Store::listen(any, &dir.path().join("objects"), None).await.unwrap();
    let address = store.address().unwrap();
    let serving = tokio::spawn(async move { store.serve().await.unwrap() });
    let bed = Bed { dir, address, serving };
    for bucket in ["box", "secretb"] {
        assert_eq!(bed.ask("PUT", &format!("/{bucket}"), b"").await.0, 200);
    }
    bed
}

fn encoded(key: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'/';
    let one = |byte: u8| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    key.bytes().map(one).collect()
}

impl Bed {
    async fn ask(&self, method: &str, target: &str, body: &[u8]) -> (u16, String) {
        self.ask_with(method, target, "", body).await
    }

    async fn ask_with(
        &self,
        method: &str,
        target: &str,
        fields: &str,
        body: &[u8],
    ) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let head = format!(
            "{method} {target} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{fields}\
             content-length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        let body = answer.split_once("\r\n\r\n").unwrap().1.to_owned();
        (status, body)
    }

    async fn put(&self, key: &str, body: &str) -> (u16, String) {
        self.ask("PUT", &format!("/box/{}", encoded(key)), body.as_bytes()).await
    }

    async fn get(&self, key: &str) -> (u16, String) {
        self.ask("GET", &format!("/box/{}", encoded(key)), b"").await
    }

    fn files(&self, below: &str) -> Vec<PathBuf> {
        let (mut found, mut left) = (Vec::new(), vec![self.dir.path().join(below)]);
        while let Some(dir) = left.pop() {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { left.push(path) } else { found.push(path) }
            }
        }
        found
    }
}

#[tokio::test]
async fn a_key_with_two_dots_does_not_reach_another_bucket() {
    let bed = bed().await;
    let keys = ["../secretb/evil", "../../out", "a/../../secretb/evil", "..", "/../secretb/evil"];
    for key in keys {
        assert_eq!(bed.put(key, key).await.0, 200, "{key}");
    }
    assert!(bed.files("objects/secretb").is_empty(), "{:?}", bed.files("objects/secretb"));
    assert!(!bed.dir.path().join("out").exists());
    for key in keys {
        assert_eq!(bed.get(key).await, (200, key.to_owned()));
    }
    let (_, listed) = bed.ask("GET", "/secretb?list-type=2", b"").await;
    assert!(!listed.contains("<Key>"), "{listed}");
}

#[tokio::test]
async fn odd_keys_are_kept_as_they_are_or_refused() {
    let bed = bed().await;
    let segment = "s".repeat(256);
    let (long, too_long) = (format!("{segment}/{}", "é".repeat(383)), "k".repeat(1025));
    let keys = [
        "a",
        "a/b",
        "a/b/c",
        "/lead",
        "x//y",
        "x/",
        "x/.",
        "x/./y",
        ".",
        ".hidden",
        "+",
        "%2e%2e",
        "a b+c",
        ".unlade/format",
        "\u{1}",
        "ü",
        &segment,
        &long,
    ];
    for key in keys {
        let (status, why) = bed.put(key, &format!("body of {key}")).await;
        assert_eq!(status, 200, "{key:?}: {why}");
    }
    for key in keys {
        assert_eq!(bed.get(key).await, (200, format!("body of {key}")), "{key:?}");
    }
    let (_, listed) = bed.ask("GET", "/box?list-type=2&encoding-type=url", b"").await;
    assert_eq!(listed.matches("<Key>").count(), keys.len(), "{listed}");
    assert!(listed.contains("<Key>x//y</Key>") && listed.contains("<Key>%C3%BC</Key>"), "{listed}");
    let (_, listed) = bed.ask("GET", "/box?list-type=2&prefix=x/&delimiter=/", b"").await;
    for part in ["<Key>x/</Key>", "<Key>x/.</Key>", "<Prefix>x//</Prefix>", "<Prefix>x/./</Prefix>"]
    {
        assert!(listed.contains(part), "{part}: {listed}");
    }
    for (key, code) in [("a\0b", "InvalidArgument"), (&*too_long, "KeyTooLongError")] {
        let (status, why) = bed.put(key, "").await;
        assert!(status == 400 && why.contains(code), "{key:?}: {status} {why}");
    }
    for key in keys {
        assert_eq!(bed.ask("DELETE", &format!("/box/{}", encoded(key)), b"").await.0, 204);
        assert_eq!(bed.get(key).await.0, 404, "{key:?}");
    }
    assert_eq!(bed.ask("DELETE", "/box", b"").await.0, 204);
    let mut own = bed.files("objects/.unlade");
    own.sort();
    let due = ["format", "lock"].map(|name| bed.dir.path().join("objects/.unlade").join(name));
    assert_eq!(own, due, "nothing is left behind");
}

#[tokio::test]
async fn a_change_in_a_bucket_that_is_not_there_is_refused() {
    let bed = bed().await;
    bed.put("k", "x").await;
    let copy = "x-amz-copy-source: /box/k\r\n";
    for (method, target, fields) in [
        ("PUT", "/absent/k", ""),
        ("PUT", "/absent/k", copy),
        ("POST", "/absent/k?uploads", ""),
        ("GET", "/absent/k", ""),
        ("DELETE", "/absent/k", ""),
        ("DELETE", "/absent", ""),
    ] {
        let (status, why) = bed.ask_with(method, target, fields, b"").await;
        assert!(status == 404 && why.contains("NoSuchBucket"), "{method} {target}: {status} {why}");
    }
    assert!(!bed.dir.path().join("objects/absent").exists());
    let (status, why) = bed.ask("DELETE", "/box", b"").await;
    assert!(status == 409 && why.contains("BucketNotEmpty"), "{status} {why}");
    assert_eq!(bed.get("k").await, (200, "x".to_owned()));
}

#[tokio::test]
async fn plain_keys_are_files_that_others_can_write_and_read() {
    let bed = bed().await;
    let file = bed.dir.path().join("objects/box/in/data.bin");
    assert_eq!(bed.put("in/data.bin", "ours").await.0, 200);
    assert_eq!(std::fs::read(&file).unwrap(), b"ours");
    std::fs::write(&file, "theirs, which is longer").unwrap();
    assert_eq!(bed.get("in/data.bin").await.1, "theirs, which is longer");
    let (_, head) = bed.ask("GET", "/box?list-type=2", b"").await;
    assert!(head.contains("<Size>23</Size>"), "{head}");
    std::fs::create_dir(bed.dir.path().join("objects/made")).unwrap();
    std::fs::write(bed.dir.path().join("objects/made/k"), "x").unwrap();
    assert_eq!(bed.ask("GET", "/made/k", b"").await, (200, "x".to_owned()));
    assert_eq!(bed.ask("PUT", "/made/k", b"y").await.0, 200);
    assert_eq!(std::fs::read(bed.dir.path().join("objects/made/k")).unwrap(), b"y");
}

#[tokio::test]
async fn a_condition_is_about_what_is_there_when_the_object_is_replaced() {
    let bed = bed().await;
    let create = "if-none-match: *\r\n";
    let ask = |n: usize| {
        let body = format!("number {n}");
        let bed = &bed;
        async move { bed.ask_with("PUT", "/box/once", create, body.as_bytes()).await.0 }
    };
    let (a, b, c, d) = tokio::join!(ask(0), ask(1), ask(2), ask(3));
    let made = [a, b, c, d].into_iter().filter(|status| *status == 200).count();
    assert_eq!(made, 1, "{a} {b} {c} {d}");
    let (status, _) = bed.ask_with("PUT", "/box/once", "if-match: \"0\"\r\n", b"x").await;
    assert_eq!(status, 412);
    assert!(bed.get("once").await.1.starts_with("number "));
}

#[tokio::test]
async fn a_body_that_is_not_what_its_request_says_replaces_nothing() {
    let bed = bed().await;
    bed.put("k", "old").await;
    for field in [
        "content-md5: XrY7u+Ae7tCTyyK7j1rNww==\r\n",
        "x-amz-checksum-crc32: AAAAAA==\r\n",
        "x-amz-checksum-sha256: AAAA\r\n",
    ] {
        let (status, why) = bed.ask_with("PUT", "/box/k", field, b"new").await;
        assert!(status == 400 && why.contains("BadDigest"), "{field}: {status} {why}");
        assert_eq!(bed.get("k").await.1, "old");
    }
    assert!(!Path::new(&bed.dir.path().join("objects/.unlade/tmp/0")).exists());
}

#[tokio::test]
async fn a_layout_of_another_program_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join(".unlade")).unwrap();
    std::fs::write(dir.path().join(".unlade/format"), "3\n").unwrap();
    let any = (Ipv4Addr::LOCALHOST, 0).into();
    let why = Store::listen(any, dir.path(), None).await.err().unwrap().to_string();
    assert!(why.contains("this program knows layout 2"), "{why}");
}

#[tokio::test]
async fn encoded_keys_of_the_layout_before_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let odd = dir.path().join(".unlade/odd/box");
    std::fs::create_dir_all(dir.path().join("box")).unwrap();
    std::fs::create_dir_all(&odd).unwrap();
    std::fs::write(dir.path().join(".unlade/format"), "1").unwrap();
    std::fs::write(odd.join("..%2Fk.object"), "old").unwrap();
    std::fs::write(dir.path().join("box/plain"), "plain").unwrap();
    let any = (Ipv4Addr::LOCALHOST, 0).into();
    let store = Store::listen(any, dir.path(), None).await.unwrap();
    let address = store.address().unwrap();
    let serving = tokio::spawn(async move { store.serve().await.unwrap() });
    let bed = Bed { dir, address, serving };
    assert_eq!(bed.get("../k").await, (200, "old".to_owned()));
    assert_eq!(bed.get("plain").await, (200, "plain".to_owned()));
    let (_, listed) = bed.ask("GET", "/box?list-type=2", b"").await;
    assert!(listed.contains("<Key>../k</Key>") && listed.contains("<Key>plain</Key>"), "{listed}");
    assert!(!bed.dir.path().join(".unlade/odd").exists());
    assert_eq!(std::fs::read(bed.dir.path().join(".unlade/format")).unwrap(), b"2");
}
