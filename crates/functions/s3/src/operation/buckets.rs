//! Operations on buckets.

use super::objects::{ACL, ACL_FIELDS, TAG, TAGS};
use super::schema::*;

const BUCKET: Shape = Shape::Structure(&[
    text("Name"),
    leaf("CreationDate", Kind::Timestamp),
    text("BucketRegion"),
    text("BucketArn"),
]);
const CONFIGURATION: &[Member] = &[
    text("LocationConstraint"),
    within("Location", Shape::Structure(&[text("Type"), text("Name")])),
    within("Bucket", Shape::Structure(&[text("DataRedundancy"), text("Type")])),
    within("Tags", Shape::List("Tag", &TAG)),
];
const VERSIONING: &[Member] = &[text("Status"), named("MFADelete", "MfaDelete", TEXT)];

pub(super) const TABLE: &[Operation] = &[
    Operation {
        name: "ListBuckets",
        action: "s3:ListAllMyBuckets",
        target: Target::Service,
        input: &[&[
            of(Kind::Integer, query("MaxBuckets", "max-buckets")),
            query("ContinuationToken", "continuation-token"),
            query("Prefix", "prefix"),
            query("BucketRegion", "bucket-region"),
        ]],
        output: Output::Xml(&[
            within("Buckets", Shape::List("Bucket", &BUCKET)),
            within("Owner", OWNER),
            text("ContinuationToken"),
            text("Prefix"),
        ]),
        ..BASE
    },
    Operation {
        name: "HeadBucket",
        action: "s3:ListBucket",
        method: Method::Head,
        input: &[COMMON],
        response_headers: &[&[
            response_header("BucketArn", "x-amz-bucket-arn"),
            response_header("BucketLocationType", "x-amz-bucket-location-type"),
            response_header("BucketLocationName", "x-amz-bucket-location-name"),
            response_header("BucketRegion", "x-amz-bucket-region"),
            response_header_as(Kind::Boolean, "AccessPointAlias", "x-amz-access-point-alias"),
        ]],
        ..BASE
    },
    Operation {
        name: "CreateBucket",
        action: "s3:CreateBucket",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        input: &[&[
            header("ACL", "x-amz-acl"),
            header("GrantFullControl", "x-amz-grant-full-control"),
            header("GrantRead", "x-amz-grant-read"),
            header("GrantReadACP", "x-amz-grant-read-acp"),
            header("GrantWrite", "x-amz-grant-write"),
            header("GrantWriteACP", "x-amz-grant-write-acp"),
            of(
                Kind::Boolean,
                header("ObjectLockEnabledForBucket", "x-amz-bucket-object-lock-enabled"),
            ),
            header("ObjectOwnership", "x-amz-object-ownership"),
            header("BucketNamespace", "x-amz-bucket-namespace"),
            field(
                "CreateBucketConfiguration",
                Place::Xml("CreateBucketConfiguration", CONFIGURATION),
                Kind::Text,
            ),
        ]],
        response_headers: &[&[
            response_header("Location", "location"),
            response_header("BucketArn", "x-amz-bucket-arn"),
        ]],
        ..BASE
    },
    Operation {
        name: "DeleteBucket",
        action: "s3:DeleteBucket",
        method: Method::Delete,
        effect: Effect::ChangeBucket,
        input: &[COMMON],
        ..BASE
    },
    Operation {
        name: "GetBucketLocation",
        action: "s3:GetBucketLocation",
        query: &[("location", "")],
        input: &[COMMON],
        output: Output::Text("LocationConstraint"),
        ..BASE
    },
    Operation {
        name: "GetBucketVersioning",
        action: "s3:GetBucketVersioning",
        query: &[("versioning", "")],
        input: &[COMMON],
        output: Output::Xml(VERSIONING),
        ..BASE
    },
    Operation {
        name: "PutBucketVersioning",
        action: "s3:PutBucketVersioning",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        query: &[("versioning", "")],
        input: &[
            COMMON,
            DIGESTS,
            &[
                header("MFA", "x-amz-mfa"),
                required(field(
                    "VersioningConfiguration",
                    Place::Xml("VersioningConfiguration", VERSIONING),
                    Kind::Text,
                )),
            ],
        ],
        digest: Digest::Crc32,
        ..BASE
    },
    Operation {
        name: "GetBucketTagging",
        action: "s3:GetBucketTagging",
        query: &[("tagging", "")],
        input: &[COMMON],
        output: Output::Xml(TAGS),
        ..BASE
    },
    Operation {
        name: "PutBucketTagging",
        action: "s3:PutBucketTagging",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        query: &[("tagging", "")],
        input: &[
            COMMON,
            DIGESTS,
            &[required(field("Tagging", Place::Xml("Tagging", TAGS), Kind::Text))],
        ],
        digest: Digest::Crc32,
        ..BASE
    },
    Operation {
        name: "DeleteBucketTagging",
        action: "s3:PutBucketTagging",
        method: Method::Delete,
        effect: Effect::ChangeBucket,
        query: &[("tagging", "")],
        input: &[COMMON],
        ..BASE
    },
    Operation {
        name: "GetBucketAcl",
        action: "s3:GetBucketAcl",
        query: &[("acl", "")],
        input: &[COMMON],
        output: Output::Xml(ACL),
        ..BASE
    },
    Operation {
        name: "PutBucketAcl",
        action: "s3:PutBucketAcl",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        query: &[("acl", "")],
        input: &[COMMON, ACL_FIELDS],
        digest: Digest::Crc32,
        ..BASE
    },
];
