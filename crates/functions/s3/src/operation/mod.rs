//! The tables of the operations: names, encoding of parameters, content of responses.
//!
//! The tables are data, one file for each group; their types are in `schema`. Names are those of the AWS API; places are those
//! of the S3 REST API.

mod buckets;
#[cfg(test)]
mod described;
mod generated;
mod listing;
mod multipart;
mod objects;
mod schema;
mod select;

pub use self::schema::{
    Digest, Effect, Field, Kind, Member, Operation, Output, Place, ResponseHeader, Shape, Target,
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

#[cfg(test)]
mod tests {
    use unlade_http::Method;

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
