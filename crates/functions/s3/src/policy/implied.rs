//! The further actions that a request of S3 needs beside that of its operation: one table.
//!
//! Sources: S3 user guide, *Required permissions for Amazon S3 API operations*; S3 API reference,
//! *Permissions* of each operation; service authorization reference, *Actions, resources, and
//! condition keys for Amazon S3*. Where they do not name an action for a parameter (event holds),
//! the request needs those of its kind.

use serde_json::{Map, Value};

use crate::operation::{Operation, Place};

/// The resource that an action is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum On {
    /// The object or bucket of the request; each object of a batch.
    Target,
    /// The source of a copy.
    Source,
    /// All keys that begin with the prefix of a restore's output.
    Output,
}

/// The parameters for which a row applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// All.
    Always,
    /// One of these is there, and not `false`. A dot leads into a structure.
    Given(&'static [&'static str]),
    /// This one is there with another value.
    GivenBut(&'static str, &'static str),
    /// This one has this value.
    Is(&'static str, &'static str),
    /// This one is absent, or has another value.
    Unless(&'static str, &'static str),
}

/// The necessity of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// It must be allowed.
    Certain,
    /// The same, but statements in TOML allow it with this action on the resource.
    Covered(&'static str),
    /// The host cannot tell whether the request needs it: it must not be denied.
    Possible,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) operations: &'static [&'static str],
    pub(super) when: When,
    pub(super) action: &'static str,
    pub(super) on: On,
    pub(super) need: Need,
}

/// The operations that create an object.
const CREATE: &[&str] = &["PutObject", "CopyObject", "CreateMultipartUpload"];
/// The parameters that set an access control list.
const GRANTS: &[&str] =
    &["GrantFullControl", "GrantRead", "GrantReadACP", "GrantWrite", "GrantWriteACP"];
const EVENT_HOLD: &[&str] =
    &["ObjectLockEventHold", "ObjectLockEventHoldDurationDays", "ObjectLockEventHoldDurationYears"];

const fn row(operations: &'static [&'static str], when: When, action: &'static str) -> Row {
    Row { operations, when, action, on: On::Target, need: Need::Certain }
}

const fn on(on: On, row: Row) -> Row {
    Row { on, ..row }
}

const fn need(need: Need, row: Row) -> Row {
    Row { need, ..row }
}

/// See the [module](self).
pub(super) const TABLE: &[Row] = &[
    // Access control lists, tags and locks of an object that is created.
    row(CREATE, When::Given(&["ACL"]), "s3:PutObjectAcl"),
    row(CREATE, When::Given(GRANTS), "s3:PutObjectAcl"),
    row(CREATE, When::Given(&["Tagging"]), "s3:PutObjectTagging"),
    row(
        CREATE,
        When::Given(&["ObjectLockMode", "ObjectLockRetainUntilDate"]),
        "s3:PutObjectRetention",
    ),
    row(CREATE, When::Given(&["ObjectLockLegalHoldStatus"]), "s3:PutObjectLegalHold"),
    row(CREATE, When::Given(EVENT_HOLD), "s3:PutObjectRetention"),
    row(CREATE, When::Given(EVENT_HOLD), "s3:PutObjectLegalHold"),
    // A retention that is not obeyed.
    row(
        &["DeleteObject", "DeleteObjects", "PutObjectRetention"],
        When::Given(&["BypassGovernanceRetention"]),
        "s3:BypassGovernanceRetention",
    ),
    // Attributes.
    row(&["GetObjectAttributes"], When::Always, "s3:GetObject"),
    // The source of a copy, its tags and its annotations.
    on(On::Source, row(&["CopyObject", "UploadPartCopy"], When::Always, "s3:GetObject")),
    on(
        On::Source,
        need(
            Need::Covered("s3:GetObject"),
            row(
                &["CopyObject"],
                When::Unless("TaggingDirective", "REPLACE"),
                "s3:GetObjectTagging",
            ),
        ),
    ),
    need(
        Need::Covered("s3:PutObject"),
        row(&["CopyObject"], When::Unless("TaggingDirective", "REPLACE"), "s3:PutObjectTagging"),
    ),
    on(
        On::Source,
        row(&["CopyObject"], When::Is("AnnotationDirective", "COPY"), "s3:GetObjectAnnotation"),
    ),
    row(&["CopyObject"], When::Is("AnnotationDirective", "COPY"), "s3:PutObjectAnnotation"),
    on(
        On::Source,
        need(
            Need::Possible,
            row(
                &["CopyObject"],
                When::Unless("AnnotationDirective", "EXCLUDE"),
                "s3:GetObjectAnnotation",
            ),
        ),
    ),
    need(
        Need::Possible,
        row(
            &["CopyObject"],
            When::Unless("AnnotationDirective", "EXCLUDE"),
            "s3:PutObjectAnnotation",
        ),
    ),
    // The result of a restore by query is written to a separate object.
    on(
        On::Output,
        row(&["RestoreObject"], When::Given(&["RestoreRequest.OutputLocation.S3"]), "s3:PutObject"),
    ),
    on(
        On::Output,
        row(
            &["RestoreObject"],
            When::Given(&[
                "RestoreRequest.OutputLocation.S3.AccessControlList",
                "RestoreRequest.OutputLocation.S3.CannedACL",
            ]),
            "s3:PutObjectAcl",
        ),
    ),
    on(
        On::Output,
        row(
            &["RestoreObject"],
            When::Given(&["RestoreRequest.OutputLocation.S3.Tagging"]),
            "s3:PutObjectTagging",
        ),
    ),
    // A bucket that is created. The list `private` is that of every bucket.
    row(&["CreateBucket"], When::GivenBut("ACL", "private"), "s3:PutBucketAcl"),
    row(&["CreateBucket"], When::Given(GRANTS), "s3:PutBucketAcl"),
    row(
        &["CreateBucket"],
        When::Given(&["ObjectLockEnabledForBucket"]),
        "s3:PutBucketObjectLockConfiguration",
    ),
    row(&["CreateBucket"], When::Given(&["ObjectLockEnabledForBucket"]), "s3:PutBucketVersioning"),
    row(&["CreateBucket"], When::Given(&["ObjectOwnership"]), "s3:PutBucketOwnershipControls"),
    row(&["CreateBucket"], When::Given(&["CreateBucketConfiguration.Tags"]), "s3:TagResource"),
];

/// Actions on an object, and those on one of its versions where they differ.
pub(super) const VERSIONS: &[(&str, &str)] = &[
    ("s3:DeleteObject", "s3:DeleteObjectVersion"),
    ("s3:DeleteObjectTagging", "s3:DeleteObjectVersionTagging"),
    ("s3:GetObject", "s3:GetObjectVersion"),
    ("s3:GetObjectAcl", "s3:GetObjectVersionAcl"),
    ("s3:GetObjectAttributes", "s3:GetObjectVersionAttributes"),
    ("s3:GetObjectTagging", "s3:GetObjectVersionTagging"),
    ("s3:PutObjectAcl", "s3:PutObjectVersionAcl"),
    ("s3:PutObjectTagging", "s3:PutObjectVersionTagging"),
];

/// The action on a version of an object.
pub(super) fn of_version(action: &str) -> &str {
    let found = VERSIONS.iter().find(|(own, _)| *own == action);
    found.map_or(action, |(_, of_version)| of_version)
}

/// Returns true if a request of S3 may need an action.
pub fn is_action(action: &str) -> bool {
    let own = crate::operation::all().map(|operation| operation.action);
    let more = TABLE.iter().map(|row| row.action);
    let of_versions = VERSIONS.iter().map(|(_, of_version)| *of_version);
    own.chain(more).chain(of_versions).any(|known| known.eq_ignore_ascii_case(action))
}

/// The rows of an operation.
pub(super) fn of(operation: &Operation) -> impl Iterator<Item = &'static Row> {
    let name = operation.name;
    TABLE.iter().filter(move |row| row.operations.contains(&name))
}

impl Row {
    /// The necessity of the action for a request with these parameters; `None` if it is not needed.
    /// `is_deferred`: others will make the request, and could add header fields.
    pub(super) fn need(
        &self,
        operation: &Operation,
        parameters: &Map<String, Value>,
        is_deferred: bool,
    ) -> Option<Need> {
        let is = |name: &str, value: &str| {
            found(parameters, name).and_then(Value::as_str) == Some(value)
        };
        let is_given = |name: &str| {
            let value = found(parameters, name);
            value.is_some_and(|value| *value != Value::Bool(false))
        };
        let (names, is_needed): (&[&str], bool) = match &self.when {
            When::Always => (&[], true),
            When::Given(names) => (names, names.iter().any(|name| is_given(name))),
            When::GivenBut(name, value) => {
                (std::slice::from_ref(name), is_given(name) && !is(name, value))
            }
            When::Is(name, value) => (std::slice::from_ref(name), is(name, value)),
            When::Unless(name, value) => (&[], !is(name, value)),
        };
        let is_open = |name: &&str| {
            let place = operation.field(name).map(|field| field.place);
            matches!(place, Some(Place::Header(header)) if header.starts_with("x-amz-"))
                && found(parameters, name).is_none()
        };
        match (is_needed, is_deferred && names.iter().any(is_open)) {
            (true, _) => Some(self.need),
            (false, true) => Some(Need::Possible),
            (false, false) => None,
        }
    }
}

/// A parameter, or a part of one; `None` if it is absent or null.
pub(super) fn found<'a>(parameters: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    let names = rest.split('.').filter(|name| !name.is_empty());
    let value = names.fold(parameters.get(first), |value, name| value?.get(name));
    value.filter(|value| !value.is_null())
}

#[cfg(test)]
mod tests;
