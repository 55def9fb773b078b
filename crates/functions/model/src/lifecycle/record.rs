//! The durable state of one function: its editions, published as versions.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Alias, EventConfig, FunctionUrl, Qualifier, ResourcePolicy, Version};
use crate::Manifest;
use crate::destination::Target;
use crate::lambda::Refusal;
use crate::source::Mapping;

/// Most published versions of a function.
pub const VERSIONS_MAX: usize = 1000;

/// The time of a change, and the identifier of the state after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// `YYYY-MM-DDTHH:MM:SS.mmm+0000`.
    pub time: String,
    /// A UUID.
    pub revision: String,
}

/// Code and configuration of a function at one time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Edition {
    /// The number of the directory of its files.
    pub code: u64,
    /// SHA-256 of the deployed archive, in base64.
    pub code_sha256: String,
    /// Length of the archive.
    pub code_bytes: u64,
    /// The configuration.
    pub manifest: Manifest,
    /// The runtime that the deployment names.
    pub runtime: String,
    /// The ARN of its role.
    pub role: String,
    /// A text for humans.
    pub description: String,
    /// The time of the last change, as in [`Stamp`].
    pub modified: String,
    /// The identifier of this state.
    pub revision: String,
    /// The queue or topic that gets events which have failed.
    #[serde(default)]
    pub dead_letter: Option<Target>,
}

impl Edition {
    /// Returns true if both do the same.
    fn is_equal(&self, other: &Edition) -> bool {
        let Edition { code, code_sha256, manifest, runtime, role, dead_letter, .. } = self;
        let same_code = *code == other.code || *code_sha256 == other.code_sha256;
        let same_role = *runtime == other.runtime && *role == other.role;
        let same_end = *dead_letter == other.dead_letter;
        same_code && same_role && same_end && *manifest == other.manifest
    }
}

/// The parameters of a publication.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Publication {
    /// The version's description; that of `$LATEST` if absent.
    pub description: Option<String>,
    /// The expected hash of the code.
    pub code_sha256: Option<String>,
    /// The expected revision of `$LATEST`.
    pub revision: Option<String>,
}

/// Provisioned concurrency of a version or an alias.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provisioned {
    /// The number of instances.
    pub instances: u32,
    /// The time of the last change, as in [`Stamp`].
    pub modified: String,
}

/// See the [module](super).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The tenant that owns the function.
    pub tenant: String,
    /// `$LATEST`.
    pub latest: Edition,
    /// The published versions.
    #[serde(default)]
    pub versions: BTreeMap<u64, Edition>,
    /// The highest number that was ever published.
    #[serde(default)]
    pub last_version: u64,
    /// Aliases by name.
    #[serde(default)]
    pub aliases: BTreeMap<String, Alias>,
    /// Most invocations at a time; unlimited if absent.
    #[serde(default)]
    pub reserved: Option<u32>,
    /// Provisioned concurrency, by qualifier.
    #[serde(default)]
    pub provisioned: BTreeMap<String, Provisioned>,
    /// Tags.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// Resource policies, by qualifier; that of the function itself has an empty one.
    #[serde(default)]
    pub policies: BTreeMap<String, ResourcePolicy>,
    /// Configurations of asynchronous invocations, by qualifier.
    #[serde(default)]
    pub event_configs: BTreeMap<String, EventConfig>,
    /// Queues that feed the function, by UUID.
    #[serde(default)]
    pub sources: BTreeMap<String, Mapping>,
    /// URLs, by alias; that of the function itself has an empty one.
    #[serde(default)]
    pub urls: BTreeMap<String, FunctionUrl>,
}

/// Refuses a change of another revision than the current one.
///
/// # Errors
/// The revisions differ.
pub(super) fn check_revision(current: &str, expected: Option<&str>) -> Result<(), Refusal> {
    if expected.is_none_or(|expected| expected == current) {
        return Ok(());
    }
    let why = "The Revision Id provided does not match the latest Revision Id. Call the \
               GetFunction, GetAlias or GetPolicy API to retrieve the latest Revision Id";
    Err(Refusal::Precondition(why.to_owned()))
}

impl Record {
    /// Creates a record without versions.
    pub fn new(tenant: &str, latest: Edition) -> Record {
        Record {
            tenant: tenant.to_owned(),
            latest,
            versions: BTreeMap::new(),
            last_version: 0,
            aliases: BTreeMap::new(),
            reserved: None,
            provisioned: BTreeMap::new(),
            tags: BTreeMap::new(),
            policies: BTreeMap::new(),
            event_configs: BTreeMap::new(),
            sources: BTreeMap::new(),
            urls: BTreeMap::new(),
        }
    }

    /// The edition of a version.
    pub fn edition(&self, version: Version) -> Option<&Edition> {
        match version {
            Version::Latest => Some(&self.latest),
            Version::Number(number) => self.versions.get(&number),
        }
    }

    /// All versions with their editions, `$LATEST` first.
    pub fn editions(&self) -> impl Iterator<Item = (Version, &Edition)> {
        let numbered = self.versions.iter();
        let numbered = numbered.map(|(number, edition)| (Version::Number(*number), edition));
        std::iter::once((Version::Latest, &self.latest)).chain(numbered)
    }

    /// The version that a qualifier names; for an alias, the one without a weight.
    ///
    /// # Errors
    /// There is no such version or alias.
    pub fn resolve(&self, qualifier: Option<&Qualifier>) -> Result<Version, Refusal> {
        match qualifier {
            None => Ok(Version::Latest),
            Some(Qualifier::Alias(name)) => Ok(self.alias(name)?.version),
            Some(Qualifier::Version(version)) if self.edition(*version).is_some() => Ok(*version),
            Some(Qualifier::Version(version)) => {
                Err(Refusal::Absent(format!("Function not found: version {version}")))
            }
        }
    }

    /// Replaces `$LATEST`.
    ///
    /// # Errors
    /// `$LATEST` is not the expected revision.
    pub fn update(&mut self, edition: Edition, expected: Option<&str>) -> Result<(), Refusal> {
        check_revision(&self.latest.revision, expected)?;
        self.latest = edition;
        Ok(())
    }

    /// Publishes `$LATEST` as a version; returns its number, which is that of the last version if
    /// nothing has changed since.
    ///
    /// # Errors
    /// `$LATEST` is not the expected one, or there are [`VERSIONS_MAX`] versions.
    pub fn publish(&mut self, what: Publication, stamp: Stamp) -> Result<u64, Refusal> {
        check_revision(&self.latest.revision, what.revision.as_deref())?;
        let current = &self.latest.code_sha256;
        if let Some(expected) = what.code_sha256.filter(|expected| expected != current) {
            let why = format!(
                "CodeSHA256 ({expected}) is different from current CodeSHA256 in $LATEST \
                 ({current}); try again with the CodeSHA256 in $LATEST"
            );
            return Err(Refusal::Parameter(why));
        }
        let last = self.versions.get(&self.last_version);
        if last.is_some_and(|last| last.is_equal(&self.latest)) {
            return Ok(self.last_version);
        }
        if self.versions.len() >= VERSIONS_MAX {
            let why = format!("a function has {VERSIONS_MAX} versions at most: delete old ones");
            return Err(Refusal::Parameter(why));
        }
        let mut edition = self.latest.clone();
        if let Some(description) = what.description {
            edition.description = description;
        }
        (edition.modified, edition.revision) = (stamp.time, stamp.revision);
        self.last_version += 1;
        self.versions.insert(self.last_version, edition);
        Ok(self.last_version)
    }

    /// Deletes a version, with its policy and its provisioned concurrency.
    ///
    /// # Errors
    /// There is no such version, or an alias refers to it.
    pub fn delete_version(&mut self, qualifier: &Qualifier) -> Result<(), Refusal> {
        let number = match qualifier {
            Qualifier::Version(Version::Number(number)) => *number,
            Qualifier::Version(Version::Latest) => {
                let why = "$LATEST cannot be deleted without its function";
                return Err(Refusal::Parameter(why.to_owned()));
            }
            Qualifier::Alias(name) => {
                let why = format!("{name} is an alias: DeleteAlias deletes it");
                return Err(Refusal::Parameter(why));
            }
        };
        self.resolve(Some(qualifier))?;
        let refers = |alias: &Alias| alias.versions().any(|own| own == Version::Number(number));
        let names = self.aliases.iter().filter(|(_, alias)| refers(alias));
        let names: Vec<&str> = names.map(|(name, _)| name.as_str()).collect();
        if !names.is_empty() {
            let why = format!(
                "Version {number} cannot be deleted, because aliases refer to it: {}",
                names.join(", ")
            );
            return Err(Refusal::Conflict(why));
        }
        self.versions.remove(&number);
        self.forget(&number.to_string());
        Ok(())
    }

    /// Removes the policy, the provisioned concurrency, the event configuration and the URL of a qualifier.
    pub(super) fn forget(&mut self, qualifier: &str) {
        self.policies.remove(qualifier);
        self.provisioned.remove(qualifier);
        self.event_configs.remove(qualifier);
        self.urls.remove(qualifier);
    }

    /// The numbers of the directories that its editions use.
    pub fn codes(&self) -> BTreeSet<u64> {
        self.editions().map(|(_, edition)| edition.code).collect()
    }
}
