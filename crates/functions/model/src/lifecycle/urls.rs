//! The URLs of a function: one of its own, and one of each alias.

use super::{FunctionUrl, Qualifier, Record, UrlChange};
use crate::lambda::Refusal;

/// The key of a qualifier: the function itself has an empty one.
fn key(qualifier: Option<&Qualifier>) -> Result<String, Refusal> {
    match qualifier {
        None => Ok(String::new()),
        Some(Qualifier::Alias(name)) => Ok(name.clone()),
        Some(Qualifier::Version(version)) => Err(Refusal::Parameter(format!(
            "a URL is one of a function or an alias, not of the version {version}: make an alias"
        ))),
    }
}

impl Record {
    /// The URL of an alias, or of the function itself.
    ///
    /// # Errors
    /// There is none, or there is no such alias.
    pub fn url(&self, qualifier: Option<&Qualifier>) -> Result<&FunctionUrl, Refusal> {
        let key = key(qualifier)?;
        self.resolve(qualifier)?;
        let absent = || Refusal::Absent("The function has no URL of this qualifier".to_owned());
        self.urls.get(&key).ok_or_else(absent)
    }

    /// Creates a URL; `id` must be unique.
    ///
    /// # Errors
    /// There is one already, `change` has no authentication, or there is no such alias.
    pub fn create_url(
        &mut self,
        qualifier: Option<&Qualifier>,
        id: &str,
        change: UrlChange,
        time: String,
    ) -> Result<(), Refusal> {
        let key = key(qualifier)?;
        self.resolve(qualifier)?;
        if self.urls.contains_key(&key) {
            let why = "Failed to create function url config. The function has one already";
            return Err(Refusal::Conflict(why.to_owned()));
        }
        let missing = || Refusal::Parameter("AuthType is missing".to_owned());
        let auth = change.auth.ok_or_else(missing)?;
        let (id, modified) = (id.to_owned(), time.clone());
        let cors = change.cors.flatten();
        self.urls.insert(key, FunctionUrl { id, auth, cors, created: time, modified });
        Ok(())
    }

    /// Changes a URL; its identifier stays.
    ///
    /// # Errors
    /// There is none, or there is no such alias.
    pub fn change_url(
        &mut self,
        qualifier: Option<&Qualifier>,
        change: UrlChange,
        time: String,
    ) -> Result<(), Refusal> {
        let mut url = self.url(qualifier)?.clone();
        url.auth = change.auth.unwrap_or(url.auth);
        url.cors = change.cors.unwrap_or(url.cors);
        url.modified = time;
        self.urls.insert(key(qualifier)?, url);
        Ok(())
    }

    /// Deletes a URL.
    ///
    /// # Errors
    /// There is none, or there is no such alias.
    pub fn delete_url(&mut self, qualifier: Option<&Qualifier>) -> Result<(), Refusal> {
        self.url(qualifier)?;
        self.urls.remove(&key(qualifier)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use unlade_fn_http_event::Cors;

    use super::*;
    use crate::lifecycle::tests::{edition, number, record};
    use crate::lifecycle::{AliasChange, Stamp, UrlAuth, Version};

    fn of(auth: UrlAuth) -> UrlChange {
        UrlChange { auth: Some(auth), cors: None }
    }

    #[test]
    fn a_url_is_made_changed_and_deleted_and_keeps_its_identifier() {
        let mut record = record();
        let time = |number: u64| format!("t{number}");
        assert_eq!(record.url(None).unwrap_err().status(), 404);
        let without = record.create_url(None, "a", UrlChange::default(), time(1)).unwrap_err();
        assert_eq!(without.status(), 400);
        record.create_url(None, "a", of(UrlAuth::None), time(1)).unwrap();
        let twice = record.create_url(None, "b", of(UrlAuth::None), time(2)).unwrap_err();
        assert_eq!(twice.status(), 409);
        let cors = Cors { allow_origins: vec!["*".to_owned()], ..Cors::default() };
        let change = UrlChange { auth: Some(UrlAuth::Iam), cors: Some(Some(cors.clone())) };
        record.change_url(None, change, time(3)).unwrap();
        record.change_url(None, UrlChange::default(), time(4)).unwrap();
        let due = FunctionUrl {
            id: "a".to_owned(),
            auth: UrlAuth::Iam,
            cors: Some(cors),
            created: time(1),
            modified: time(4),
        };
        assert_eq!(record.url(None), Ok(&due));
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
        let none = UrlChange { auth: None, cors: Some(None) };
        record.change_url(None, none, time(5)).unwrap();
        assert_eq!(record.url(None).unwrap().cors, None);
        record.delete_url(None).unwrap();
        assert_eq!(record.delete_url(None).unwrap_err().status(), 404);
        // A record of an earlier release has none.
        let mut text = serde_json::to_value(Record::new("t", edition(1))).unwrap();
        text.as_object_mut().unwrap().remove("urls");
        assert_eq!(serde_json::from_value::<Record>(text).unwrap(), Record::new("t", edition(1)));
    }

    #[test]
    fn a_url_is_of_the_function_or_an_alias_and_goes_with_it() {
        let mut record = record();
        let refused = record.create_url(Some(&number(1)), "a", of(UrlAuth::None), String::new());
        assert_eq!(refused.unwrap_err().status(), 400);
        let alias = Qualifier::Alias("live".to_owned());
        let absent = record.create_url(Some(&alias), "a", of(UrlAuth::None), String::new());
        assert_eq!(absent.unwrap_err().status(), 404);
        let to = AliasChange { version: Some(Version::Number(1)), ..AliasChange::default() };
        let stamp = Stamp { time: String::new(), revision: "r".to_owned() };
        record.create_alias("live", to, stamp).unwrap();
        record.create_url(Some(&alias), "a", of(UrlAuth::None), String::new()).unwrap();
        assert_eq!(record.url(None).unwrap_err().status(), 404);
        record.delete_alias("live").unwrap();
        assert!(record.urls.is_empty());
        assert_eq!(UrlAuth::parse("NONE"), Ok(UrlAuth::None));
        assert_eq!(UrlAuth::parse("none").unwrap_err().status(), 400);
    }
}
