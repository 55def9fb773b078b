//! The tables of the operations: names, encoding of parameters, content of responses.
//!
//! The tables are data, one file for each group. Names are those of the AWS API; places are those
//! of the S3 REST API.

mod buckets;
#[cfg(test)]
mod described;
mod generated;
mod listing;
mod multipart;
mod objects;
mod select;

use unlade_http::Method;

/// The text format of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Text, unchanged.
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

/// The place of a parameter in a request.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// A header field.
    Header(&'static str),
    /// A field of the query.
    Query(&'static str),
    /// Header fields, one for each entry, whose names have this prefix.
    Headers(&'static str),
    /// The XML body, with this root.
    Xml(&'static str, &'static [Member]),
    /// The body, as text.
    Text,
    /// An element of the body that [`Operation::document`] describes.
    Element,
    /// Accepted and not sent.
    Nowhere,
}

/// A parameter.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name in the API.
    pub name: &'static str,
    /// The place in the request.
    pub place: Place,
    /// The text format.
    pub kind: Kind,
    /// True if the parameter is required.
    pub required: bool,
}

/// The content of an XML element.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// Text of a kind.
    Leaf(Kind),
    /// Elements by name.
    Structure(&'static [Member]),
    /// A list: elements of this name within the member's own.
    List(&'static str, &'static Shape),
    /// A list: the member's element, repeated for each entry.
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
    /// The content of the element.
    pub shape: Shape,
}

/// A header field of a response.
#[derive(Clone, Copy, Debug)]
pub struct ResponseHeader {
    /// Its name in the API.
    pub name: &'static str,
    /// The header field; with a `*` at the end, all fields with this prefix.
    pub header: &'static str,
    /// The text format.
    pub kind: Kind,
}

/// The body of a successful response.
#[derive(Clone, Copy, Debug)]
pub enum Output {
    /// Ignored.
    None,
    /// XML, with these members.
    Xml(&'static [Member]),
    /// The object.
    Object,
    /// XML whose root contains text, or is empty.
    Text(&'static str),
    /// Text, unchanged.
    Raw(&'static str),
}

/// The kind of resource of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The account.
    Service,
    /// A bucket.
    Bucket,
    /// An object.
    Object,
}

/// The effect of an operation on the visible state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Reads one object, or a part or attribute of it.
    ReadObject,
    /// Reads a result that may depend on every object of a bucket.
    ReadBucket,
    /// Changes one object, or an attribute of it.
    ChangeObject,
    /// Changes several objects, or a bucket.
    ChangeBucket,
}

/// The digest that the sender adds unless a parameter overrides it, as SDKs do.
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
    /// The action in a policy: `s3:GetObject`.
    pub action: &'static str,
    /// The method of the request.
    pub method: Method,
    /// The kind of resource.
    pub target: Target,
    /// The effect.
    pub effect: Effect,
    /// Constant fields of the query.
    pub query: &'static [(&'static str, &'static str)],
    /// Its parameters, besides `Bucket` and `Key`.
    pub input: &'static [&'static [Field]],
    /// The root of an XML body whose elements are parameters, and its members.
    pub document: Option<(&'static str, &'static [Member])>,
    /// True if the caller provides the body.
    pub has_body: bool,
    /// The digest that is added for a body.
    pub digest: Digest,
    /// Header fields of the response.
    pub response_headers: &'static [&'static [ResponseHeader]],
    /// The body of the response.
    pub output: Output,
    /// Fields of the response that are percent-encoded, because the request asks for that.
    pub encoded: &'static [&'static str],
    /// True if a body with status 200 may be an error.
    pub may_fail_late: bool,
}

/// Default values of the table's entries.
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
    response_headers: &[],
    output: Output::None,
    encoded: &[],
    may_fail_late: false,
};

/// Finds an operation by name.
pub fn find(name: &str) -> Option<&'static Operation> {
    all().find(|operation| operation.name == name)
}

/// Every operation.
pub fn all() -> impl Iterator<Item = &'static Operation> {
    let groups = [objects::TABLE, listing::TABLE, multipart::TABLE, buckets::TABLE, select::TABLE];
    groups.into_iter().chain(generated::TABLES).flatten()
}

impl Operation {
    /// Finds a parameter by name.
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.input.iter().copied().flatten().find(|field| field.name == name)
    }

    /// Returns true if the operation changes nothing.
    pub fn is_read(&self) -> bool {
        matches!(self.effect, Effect::ReadObject | Effect::ReadBucket)
    }
}

const fn field(name: &'static str, place: Place, kind: Kind) -> Field {
    Field { name, place, kind, required: false }
}

/// A parameter in a header field.
const fn header(name: &'static str, header: &'static str) -> Field {
    field(name, Place::Header(header), Kind::Text)
}

/// A parameter in the query.
const fn query(name: &'static str, key: &'static str) -> Field {
    field(name, Place::Query(key), Kind::Text)
}

/// A parameter in an element of the body.
const fn element(name: &'static str) -> Field {
    field(name, Place::Element, Kind::Text)
}

const fn required(field: Field) -> Field {
    Field { required: true, ..field }
}

const fn of(kind: Kind, field: Field) -> Field {
    Field { kind, ..field }
}

const fn response_header(name: &'static str, header: &'static str) -> ResponseHeader {
    ResponseHeader { name, header, kind: Kind::Text }
}

const fn response_header_as(
    kind: Kind,
    name: &'static str,
    header: &'static str,
) -> ResponseHeader {
    ResponseHeader { name, header, kind }
}

/// A member whose element has the same name.
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
/// The owner of an object or bucket.
const OWNER: Shape = Shape::Structure(&[text("DisplayName"), text("ID")]);
/// Parameters of every request.
const COMMON: &[Field] = &[
    header("ExpectedBucketOwner", "x-amz-expected-bucket-owner"),
    header("RequestPayer", "x-amz-request-payer"),
];
/// A customer-provided key.
const CUSTOMER_KEY: &[Field] = &[
    header("SSECustomerAlgorithm", "x-amz-server-side-encryption-customer-algorithm"),
    header("SSECustomerKey", "x-amz-server-side-encryption-customer-key"),
    header("SSECustomerKeyMD5", "x-amz-server-side-encryption-customer-key-MD5"),
];
/// Fields of every response.
const CHARGED: &[ResponseHeader] = &[response_header("RequestCharged", "x-amz-request-charged")];
/// The encryption of an object.
const ENCRYPTED: &[ResponseHeader] = &[
    response_header("ServerSideEncryption", "x-amz-server-side-encryption"),
    response_header("SSECustomerAlgorithm", "x-amz-server-side-encryption-customer-algorithm"),
    response_header("SSECustomerKeyMD5", "x-amz-server-side-encryption-customer-key-MD5"),
    response_header("SSEKMSKeyId", "x-amz-server-side-encryption-aws-kms-key-id"),
    response_header("SSEKMSEncryptionContext", "x-amz-server-side-encryption-context"),
    response_header_as(
        Kind::Boolean,
        "BucketKeyEnabled",
        "x-amz-server-side-encryption-bucket-key-enabled",
    ),
];
/// Checksums in a response.
const CHECKSUMS: &[ResponseHeader] = &[
    response_header("ChecksumCRC32", "x-amz-checksum-crc32"),
    response_header("ChecksumCRC32C", "x-amz-checksum-crc32c"),
    response_header("ChecksumCRC64NVME", "x-amz-checksum-crc64nvme"),
    response_header("ChecksumSHA1", "x-amz-checksum-sha1"),
    response_header("ChecksumSHA256", "x-amz-checksum-sha256"),
    response_header("ChecksumSHA512", "x-amz-checksum-sha512"),
    response_header("ChecksumMD5", "x-amz-checksum-md5"),
    response_header("ChecksumXXHASH64", "x-amz-checksum-xxhash64"),
    response_header("ChecksumXXHASH3", "x-amz-checksum-xxhash3"),
    response_header("ChecksumXXHASH128", "x-amz-checksum-xxhash128"),
    response_header("ChecksumType", "x-amz-checksum-type"),
];
/// Checksums in a request.
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
/// The digest of a body in transfer, and the algorithm that the sender must use.
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
            // A query in SQL can be longer than a URL may be.
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
