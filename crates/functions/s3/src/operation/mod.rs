//! The operations: what each is called, how its parameters travel, what its answer has.
//!
//! The tables are data, one file a group. Names are those of the AWS API, which a function uses;
//! places are those of the S3 REST API.

mod buckets;
#[cfg(test)]
mod described;
mod listing;
mod made;
mod multipart;
mod objects;
mod select;

use unlade_http::Method;

/// How a value is written as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// As it is.
    Text,
    /// Decimal.
    Integer,
    /// `true` or `false`.
    Boolean,
    /// `Fri, 02 Jan 2026 03:04:05 GMT` (RFC 9110 §5.6.7).
    HttpDate,
    /// `2026-01-02T03:04:05.000Z` (RFC 3339).
    Timestamp,
    /// A list of names, with commas between them.
    Names,
}

/// Where a parameter goes.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// A header field.
    Header(&'static str),
    /// A field of the query.
    Query(&'static str),
    /// Header fields, one an entry, with this in front of its name.
    Headers(&'static str),
    /// The XML body, under this root.
    Xml(&'static str, &'static [Member]),
    /// The body, as it is.
    Text,
    /// An element of the body that [`Operation::document`] describes.
    Element,
    /// Known, but nothing that is sent.
    Nowhere,
}

/// A parameter.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name in the API.
    pub name: &'static str,
    /// Where it goes.
    pub place: Place,
    /// How it is written.
    pub kind: Kind,
    /// The operation cannot be without it.
    pub required: bool,
}

/// What is in an element of XML.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// Text of a kind.
    Leaf(Kind),
    /// Elements by name.
    Structure(&'static [Member]),
    /// Elements of this name within the member's own.
    List(&'static str, &'static Shape),
    /// The member's element, as often as there are entries.
    Flat(&'static Shape),
    /// The attribute `xsi:type`.
    XsiType,
}

/// A named part of a structure.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// Its name in the API.
    pub name: &'static str,
    /// Its element.
    pub element: &'static str,
    /// What is in the element.
    pub shape: Shape,
}

/// A header field of an answer.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Its name in the API.
    pub name: &'static str,
    /// The header field; with a `*` at the end, all that begin so.
    pub header: &'static str,
    /// How it is written.
    pub kind: Kind,
}

/// What the body of a good answer is.
#[derive(Clone, Copy, Debug)]
pub enum Output {
    /// Nothing that is looked at.
    None,
    /// XML, with these members.
    Xml(&'static [Member]),
    /// The object.
    Object,
    /// XML whose root has text, or none.
    Text(&'static str),
    /// Text as it is.
    Raw(&'static str),
}

/// What an operation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The account.
    Service,
    /// A bucket.
    Bucket,
    /// An object.
    Object,
}

/// What a write or read does to what others see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Reads one object, or something of it.
    ReadObject,
    /// Reads what may depend on every object of a bucket.
    ReadBucket,
    /// Changes one object, or something of it.
    ChangeObject,
    /// Changes several objects, or a bucket.
    ChangeBucket,
}

/// What the sender adds unless a parameter says otherwise, as SDKs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Digest {
    /// Nothing.
    None,
    /// `x-amz-checksum-crc32` of the body.
    Crc32,
}

/// One operation.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// `GetObject`.
    pub name: &'static str,
    /// What a policy allows or forbids: `s3:GetObject`.
    pub action: &'static str,
    /// The method of the request.
    pub method: Method,
    /// What it is about.
    pub target: Target,
    /// What it does.
    pub effect: Effect,
    /// Fields of the query that are always there.
    pub query: &'static [(&'static str, &'static str)],
    /// Its parameters, besides `Bucket` and `Key`.
    pub input: &'static [&'static [Field]],
    /// The root of an XML body whose elements are parameters, and these.
    pub document: Option<(&'static str, &'static [Member])>,
    /// Whether the body is the caller's.
    pub has_body: bool,
    /// What is added to a body.
    pub digest: Digest,
    /// Header fields of the answer.
    pub found: &'static [&'static [Found]],
    /// The body of the answer.
    pub output: Output,
    /// Fields of the answer that come percent-encoded, since the request asks for that.
    pub encoded: &'static [&'static str],
    /// A body with status 200 may be an error.
    pub may_fail_late: bool,
}

/// The beginning of every entry of the tables.
const BASE: Operation = Operation {
    name: "",
    action: "",
    method: Method::Get,
    target: Target::Bucket,
    effect: Effect::ReadBucket,
    query: &[],
    input: &[],
    document: None,
    has_body: false,
    digest: Digest::None,
    found: &[],
    output: Output::None,
    encoded: &[],
    may_fail_late: false,
};

/// The operation of this name.
pub fn find(name: &str) -> Option<&'static Operation> {
    all().find(|operation| operation.name == name)
}

/// Every operation.
pub fn all() -> impl Iterator<Item = &'static Operation> {
    let groups = [objects::TABLE, listing::TABLE, multipart::TABLE, buckets::TABLE, select::TABLE];
    groups.into_iter().chain(made::TABLES).flatten()
}

impl Operation {
    /// The parameter of this name.
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.input.iter().copied().flatten().find(|field| field.name == name)
    }

    /// Whether it changes nothing.
    pub fn is_read(&self) -> bool {
        matches!(self.effect, Effect::ReadObject | Effect::ReadBucket)
    }
}

const fn field(name: &'static str, place: Place, kind: Kind) -> Field {
    Field { name, place, kind, required: false }
}

/// A parameter that goes to a header field.
const fn header(name: &'static str, header: &'static str) -> Field {
    field(name, Place::Header(header), Kind::Text)
}

/// A parameter that goes to the query.
const fn query(name: &'static str, key: &'static str) -> Field {
    field(name, Place::Query(key), Kind::Text)
}

/// A parameter that is an element of the body.
const fn element(name: &'static str) -> Field {
    field(name, Place::Element, Kind::Text)
}

const fn required(field: Field) -> Field {
    Field { required: true, ..field }
}

const fn of(kind: Kind, field: Field) -> Field {
    Field { kind, ..field }
}

const fn found(name: &'static str, header: &'static str) -> Found {
    Found { name, header, kind: Kind::Text }
}

const fn found_as(kind: Kind, name: &'static str, header: &'static str) -> Found {
    Found { name, header, kind }
}

/// A member whose element has its name.
const fn leaf(name: &'static str, kind: Kind) -> Member {
    Member { name, element: name, shape: Shape::Leaf(kind) }
}

const fn text(name: &'static str) -> Member {
    leaf(name, Kind::Text)
}

const fn within(name: &'static str, shape: Shape) -> Member {
    Member { name, element: name, shape }
}

const fn named(name: &'static str, element: &'static str, shape: Shape) -> Member {
    Member { name, element, shape }
}

const TEXT: Shape = Shape::Leaf(Kind::Text);
/// Who has an object or bucket.
const OWNER: Shape = Shape::Structure(&[text("DisplayName"), text("ID")]);
/// Of every request.
const COMMON: &[Field] = &[
    header("ExpectedBucketOwner", "x-amz-expected-bucket-owner"),
    header("RequestPayer", "x-amz-request-payer"),
];
/// A key of the customer's.
const CUSTOMER_KEY: &[Field] = &[
    header("SSECustomerAlgorithm", "x-amz-server-side-encryption-customer-algorithm"),
    header("SSECustomerKey", "x-amz-server-side-encryption-customer-key"),
    header("SSECustomerKeyMD5", "x-amz-server-side-encryption-customer-key-MD5"),
];
/// Of every answer.
const CHARGED: &[Found] = &[found("RequestCharged", "x-amz-request-charged")];
/// How an object is encrypted.
const ENCRYPTED: &[Found] = &[
    found("ServerSideEncryption", "x-amz-server-side-encryption"),
    found("SSECustomerAlgorithm", "x-amz-server-side-encryption-customer-algorithm"),
    found("SSECustomerKeyMD5", "x-amz-server-side-encryption-customer-key-MD5"),
    found("SSEKMSKeyId", "x-amz-server-side-encryption-aws-kms-key-id"),
    found("SSEKMSEncryptionContext", "x-amz-server-side-encryption-context"),
    found_as(Kind::Boolean, "BucketKeyEnabled", "x-amz-server-side-encryption-bucket-key-enabled"),
];
/// Checksums that an answer states.
const CHECKSUMS: &[Found] = &[
    found("ChecksumCRC32", "x-amz-checksum-crc32"),
    found("ChecksumCRC32C", "x-amz-checksum-crc32c"),
    found("ChecksumCRC64NVME", "x-amz-checksum-crc64nvme"),
    found("ChecksumSHA1", "x-amz-checksum-sha1"),
    found("ChecksumSHA256", "x-amz-checksum-sha256"),
    found("ChecksumSHA512", "x-amz-checksum-sha512"),
    found("ChecksumMD5", "x-amz-checksum-md5"),
    found("ChecksumXXHASH64", "x-amz-checksum-xxhash64"),
    found("ChecksumXXHASH3", "x-amz-checksum-xxhash3"),
    found("ChecksumXXHASH128", "x-amz-checksum-xxhash128"),
    found("ChecksumType", "x-amz-checksum-type"),
];
/// Checksums that a request states.
const SUMS: &[Field] = &[
    header("ChecksumCRC32", "x-amz-checksum-crc32"),
    header("ChecksumCRC32C", "x-amz-checksum-crc32c"),
    header("ChecksumCRC64NVME", "x-amz-checksum-crc64nvme"),
    header("ChecksumSHA1", "x-amz-checksum-sha1"),
    header("ChecksumSHA256", "x-amz-checksum-sha256"),
    header("ChecksumSHA512", "x-amz-checksum-sha512"),
    header("ChecksumMD5", "x-amz-checksum-md5"),
    header("ChecksumXXHASH64", "x-amz-checksum-xxhash64"),
    header("ChecksumXXHASH3", "x-amz-checksum-xxhash3"),
    header("ChecksumXXHASH128", "x-amz-checksum-xxhash128"),
];
/// The digest of a body's transport, and the algorithm that the sender is to use.
const DIGESTS: &[Field] = &[
    header("ContentMD5", "Content-MD5"),
    header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_had_once_and_writes_have_no_get() {
        let mut names: Vec<_> = all().map(|operation| operation.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        for operation in all() {
            // A query in SQL is longer than an address may be.
            let asks = operation.name == "SelectObjectContent";
            let reads = matches!(operation.method, Method::Get | Method::Head) || asks;
            assert_eq!(operation.is_read(), reads, "{}", operation.name);
            assert!(operation.action.starts_with("s3:"), "{}", operation.name);
            assert!(!operation.has_body || operation.method == Method::Put);
        }
    }

    #[test]
    fn elements_of_a_body_are_parameters() {
        for operation in all() {
            let fields = operation.input.iter().copied().flatten();
            let fields = fields.filter(|field| matches!(field.place, Place::Element));
            let names: Vec<_> = fields.map(|field| field.name).collect();
            let members = operation.document.map_or(&[][..], |(_, members)| members);
            let due: Vec<_> = members.iter().map(|member| member.name).collect();
            assert_eq!(names, due, "{}", operation.name);
        }
    }

    #[test]
    fn a_parameter_is_known_once() {
        for operation in all() {
            let fields = operation.input.iter().copied().flatten();
            let mut names: Vec<_> = fields.map(|field| field.name).collect();
            let count = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), count, "{}", operation.name);
        }
    }
}
