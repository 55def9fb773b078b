//! The schema of the tables: operations, parameters, elements and header fields, and the parts that
//! many operations share.

pub(super) use unlade_http::Method;

/// The text format of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Text, unchanged.
    Text,
    /// A key, as text or as bytes; base64 of the bytes is sent.
    Bytes,
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
pub(in crate::operation) const BASE: Operation = Operation {
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

pub(in crate::operation) const fn field(name: &'static str, place: Place, kind: Kind) -> Field {
    Field { name, place, kind, required: false }
}

/// A parameter in a header field.
pub(in crate::operation) const fn header(name: &'static str, header: &'static str) -> Field {
    field(name, Place::Header(header), Kind::Text)
}

/// A parameter in the query.
pub(in crate::operation) const fn query(name: &'static str, key: &'static str) -> Field {
    field(name, Place::Query(key), Kind::Text)
}

/// A parameter in an element of the body.
pub(in crate::operation) const fn element(name: &'static str) -> Field {
    field(name, Place::Element, Kind::Text)
}

pub(in crate::operation) const fn required(field: Field) -> Field {
    Field { required: true, ..field }
}

pub(in crate::operation) const fn of(kind: Kind, field: Field) -> Field {
    Field { kind, ..field }
}

pub(in crate::operation) const fn response_header(
    name: &'static str,
    header: &'static str,
) -> ResponseHeader {
    ResponseHeader { name, header, kind: Kind::Text }
}

pub(in crate::operation) const fn response_header_as(
    kind: Kind,
    name: &'static str,
    header: &'static str,
) -> ResponseHeader {
    ResponseHeader { name, header, kind }
}

/// A member whose element has the same name.
pub(in crate::operation) const fn leaf(name: &'static str, kind: Kind) -> Member {
    Member { name, element: name, shape: Shape::Leaf(kind) }
}

pub(in crate::operation) const fn text(name: &'static str) -> Member {
    leaf(name, Kind::Text)
}

pub(in crate::operation) const fn within(name: &'static str, shape: Shape) -> Member {
    Member { name, element: name, shape }
}

pub(in crate::operation) const fn named(
    name: &'static str,
    element: &'static str,
    shape: Shape,
) -> Member {
    Member { name, element, shape }
}

pub(in crate::operation) const TEXT: Shape = Shape::Leaf(Kind::Text);
/// The owner of an object or bucket.
pub(in crate::operation) const OWNER: Shape = Shape::Structure(&[text("DisplayName"), text("ID")]);
/// Parameters of every request.
pub(in crate::operation) const COMMON: &[Field] = &[
    header("ExpectedBucketOwner", "x-amz-expected-bucket-owner"),
    header("RequestPayer", "x-amz-request-payer"),
];
/// A customer-provided key.
pub(in crate::operation) const CUSTOMER_KEY: &[Field] = &[
    header("SSECustomerAlgorithm", "x-amz-server-side-encryption-customer-algorithm"),
    of(Kind::Bytes, header("SSECustomerKey", "x-amz-server-side-encryption-customer-key")),
    header("SSECustomerKeyMD5", "x-amz-server-side-encryption-customer-key-MD5"),
];
/// Fields of every response.
pub(in crate::operation) const CHARGED: &[ResponseHeader] =
    &[response_header("RequestCharged", "x-amz-request-charged")];
/// The encryption of an object.
pub(in crate::operation) const ENCRYPTED: &[ResponseHeader] = &[
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
pub(in crate::operation) const CHECKSUMS: &[ResponseHeader] = &[
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
pub(in crate::operation) const SUMS: &[Field] = &[
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
pub(in crate::operation) const DIGESTS: &[Field] = &[
    header("ContentMD5", "Content-MD5"),
    header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
];
