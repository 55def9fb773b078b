//! Notifications of the built-in store: the configuration of a bucket, and the messages between store and
//! gateway.

use unlade_guest_protocol::notification::{
    GatewayMessage, LineError, LineReader, StoreMessage, line,
};
use unlade_s3_store::notifications::{Rule, parse};

const EVENTS: [&str; 6] = [
    "ObjectCreated:Put",
    "ObjectCreated:Post",
    "ObjectCreated:Copy",
    "ObjectCreated:CompleteMultipartUpload",
    "ObjectRemoved:Delete",
    "ObjectRemoved:DeleteMarkerCreated",
];

type Next<T> = fn(&mut LineReader) -> Result<Option<T>, LineError>;
const OF_STORE: Next<StoreMessage> = LineReader::next_message;
const OF_GATEWAY: Next<GatewayMessage> = LineReader::next_message;

/// The messages of bytes that arrive in pieces of a length, and the error at the end.
fn messages<T>(data: &[u8], piece: usize, next: Next<T>) -> (Vec<T>, Option<LineError>) {
    let (mut reader, mut found) = (LineReader::default(), Vec::new());
    for piece in data.chunks(piece) {
        reader.push(piece);
        loop {
            match next(&mut reader) {
                Ok(Some(message)) => found.push(message),
                Ok(None) => break,
                Err(error) => return (found, Some(error)),
            }
        }
    }
    (found, None)
}

/// At most one rule of an accepted document matches a change. Messages do not depend on how the bytes
/// arrive, and a decoded message encodes to the same value.
pub fn notifications(data: &[u8]) {
    if let Ok(rules) = parse(data) {
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        for own in &rules {
            let key = part(&own.prefix) + &part(&own.suffix);
            for event in EVENTS {
                let count = rules.iter().filter(|rule: &&Rule| rule.matches(event, &key)).count();
                assert!(count <= 1, "{event} of {key:?} matches {count} rules");
            }
        }
    }
    let whole = messages(data, data.len().max(1), OF_STORE);
    assert_eq!(messages(data, 1, OF_STORE), whole);
    for message in &whole.0 {
        // The text of a value may be longer than it was: a line end is escaped.
        let Ok(text) = line(message) else { continue };
        let (again, error) = messages(&text, text.len(), OF_STORE);
        assert_eq!((again.as_slice(), error), (std::slice::from_ref(message), None));
    }
    let whole = messages(data, data.len().max(1), OF_GATEWAY);
    assert_eq!(messages(data, 3, OF_GATEWAY), whole);
}

/// Returns true if a seed has what its name says.
pub fn is_accepted(data: &[u8]) -> bool {
    let of_store = messages(data, data.len(), OF_STORE);
    let of_gateway = messages(data, data.len(), OF_GATEWAY);
    parse(data).is_ok()
        || of_store.0.len() == 3 && of_store.1.is_none()
        || of_gateway.0.len() == 2 && of_gateway.1.is_none()
}

const CONFIGURATION: &str = "<NotificationConfiguration><CloudFunctionConfiguration><Id>a</Id><Filter><S3Key>\
<FilterRule><Name>prefix</Name><Value>in/</Value></FilterRule><FilterRule><Name>suffix</Name><Value>.jpg\
</Value></FilterRule></S3Key></Filter><CloudFunction>arn:aws:lambda:us-east-1:000000000000:function:f:live\
</CloudFunction><Event>s3:ObjectCreated:*</Event><Event>s3:ObjectRemoved:Delete</Event>\
</CloudFunctionConfiguration><CloudFunctionConfiguration><CloudFunction>\
arn:aws:lambda:us-east-1:000000000000:function:g</CloudFunction><Event>s3:ObjectCreated:Put</Event><Filter>\
<S3Key><FilterRule><Name>prefix</Name><Value>out/</Value></FilterRule></S3Key></Filter>\
</CloudFunctionConfiguration></NotificationConfiguration>";

const STORE: &str = r#"{"kind":"event","number":7,"bucket":"b","function":"arn:aws:lambda:us-east-1:0:function:f","event":{"Records":[{"s3":{"object":{"key":"k","size":5}}}]}}
{"kind":"check","question":1,"bucket":"b","functions":["arn:aws:lambda:us-east-1:0:function:f"]}
{"kind":"refused","count":2}
"#;
const GATEWAY: &str = r#"{"kind":"taken","number":7}
{"kind":"checked","question":1,"refused":[["arn:aws:lambda:us-east-1:0:function:f","there is no function f"]]}
"#;

/// The seeds: the target, the name, the content.
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let all = [("configuration", CONFIGURATION), ("store", STORE), ("gateway", GATEWAY)];
    let seed = |(name, text): (&'static str, &str)| ("notifications", name, text.into());
    all.map(seed).into()
}
