//! SQL over one object. The response is a stream of events, which the guest parses.

use super::schema::*;

const CSV_INPUT: &[Member] = &[
    text("FileHeaderInfo"),
    text("Comments"),
    text("QuoteEscapeCharacter"),
    text("RecordDelimiter"),
    text("FieldDelimiter"),
    text("QuoteCharacter"),
    leaf("AllowQuotedRecordDelimiter", Kind::Boolean),
];
const CSV_OUTPUT: &[Member] = &[
    text("QuoteFields"),
    text("QuoteEscapeCharacter"),
    text("RecordDelimiter"),
    text("FieldDelimiter"),
    text("QuoteCharacter"),
];
const INPUT: &[Member] = &[
    within("CSV", Shape::Structure(CSV_INPUT)),
    text("CompressionType"),
    within("JSON", Shape::Structure(&[text("Type")])),
    within("Parquet", Shape::Structure(&[])),
];
const OUTPUT: &[Member] = &[
    within("CSV", Shape::Structure(CSV_OUTPUT)),
    within("JSON", Shape::Structure(&[text("RecordDelimiter")])),
];
const RANGE: &[Member] = &[leaf("Start", Kind::Integer), leaf("End", Kind::Integer)];
/// Ordered as in the API.
const REQUEST: &[Member] = &[
    text("Expression"),
    text("ExpressionType"),
    within("RequestProgress", Shape::Structure(&[leaf("Enabled", Kind::Boolean)])),
    within("InputSerialization", Shape::Structure(INPUT)),
    within("OutputSerialization", Shape::Structure(OUTPUT)),
    within("ScanRange", Shape::Structure(RANGE)),
];

pub(super) const TABLE: &[Operation] = &[Operation {
    name: "SelectObjectContent",
    action: "s3:GetObject",
    method: Method::Post,
    target: Target::Object,
    effect: Effect::ReadObject,
    query: &[("select", ""), ("select-type", "2")],
    input: &[
        // A query has no requester-pays parameter.
        &[header("ExpectedBucketOwner", "x-amz-expected-bucket-owner")],
        CUSTOMER_KEY,
        &[
            required(element("Expression")),
            required(element("ExpressionType")),
            element("RequestProgress"),
            required(element("InputSerialization")),
            required(element("OutputSerialization")),
            element("ScanRange"),
        ],
    ],
    document: Some(("SelectObjectContentRequest", REQUEST)),
    output: Output::Object,
    ..BASE
}];
