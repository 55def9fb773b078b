//! Identities of namespaces and of their subsystem: random at first, and kept beside the image.
//!
//! A host treats namespaces with one identifier in subsystems of one name as one disk, and
//! spreads reads and writes over all paths to it. Therefore two disks must never have the same
//! identity. An identity is random (RFC 9562, version 4) and kept in a small file beside the
//! image. The file also identifies the image by its inode and birth time: a copy of image and
//! file is another image, and gets a new identity. Memory gets a new identity in each process.
//! The name of the subsystem, if none is configured, is a digest of the identities of its
//! namespaces.

use std::fmt::Write as _;
use std::fs::{self, File, Metadata};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use aws_lc_rs::digest::{Context, SHA256};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde::Deserialize;
use unlade_config::SettingsError;
use unlade_nvme_wire::Nqn;
use uuid::Uuid;

use crate::target::config::{ConfigError, Identity, Source, TargetConfig, parse_name};
use crate::target::namespace::{OpenError, open_file};

/// Suffix that the identity's file adds to the name of the image.
pub const SUFFIX: &str = ".nvme-id";
/// Prefix of subsystem names by UUID (NVMe Base §4.5).
const NQN_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";
/// The format of the file.
const VERSION: u32 = 1;
/// Bytes of a serial number.
const SERIAL_BYTES: usize = 20;

/// The identities of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identities {
    /// The name of the subsystem.
    pub nqn: Nqn,
    /// The identities of the namespaces, in their order.
    pub namespaces: Vec<Uuid>,
}

/// The reason that identities cannot be determined, for the operator to correct.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The configured name of the subsystem is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The image cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The identity's file is invalid.
    #[error("{source}; correct the file, or remove it, and hosts see a new disk")]
    StoredIdentity {
        /// The error, with its place.
        source: Box<SettingsError>,
    },
    /// The version of the file is not supported.
    #[error("{}: version {version} is not supported; {VERSION} is", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        version: u32,
    },
    /// The identity cannot be stored.
    #[error(
        "namespace {}: its identity cannot be kept in a file beside it: {error}; make that \
         possible, or give it one: uuid = \"{proposal}\" in the configuration, or --uuid \
         {proposal}; with \"random\" hosts see a new disk after each start", image.display()
    )]
    NoPlace {
        /// The image.
        image: PathBuf,
        /// The error.
        error: io::Error,
        /// A new random identity.
        proposal: Uuid,
    },
    /// Two namespaces have the same identity.
    #[error(
        "namespaces {first} and {second} have one identity, {uuid}: they are one image, or were \
         given the same uuid; serve an image once, and give each namespace a uuid of its own"
    )]
    Twice {
        /// The number of one.
        first: usize,
        /// The number of the other one.
        second: usize,
        /// Their identity.
        uuid: Uuid,
    },
}

impl TargetConfig {
    /// Returns the identities, and the same configuration with them filled in, so that they do
    /// not change. For files that are served for the first time, identities are chosen and
    /// stored.
    ///
    /// # Errors
    /// [`IdentityError`].
    pub fn identified(mut self) -> Result<(TargetConfig, Identities), IdentityError> {
        let mut uuids = Vec::new();
        // Identities that outlive the process.
        let mut lasting = Vec::new();
        for namespace in &mut self.namespaces {
            let uuid = match (namespace.uuid, &namespace.source) {
                (Some(Identity::Fixed(uuid)), _) => uuid,
                (Some(Identity::Random), _) | (None, Source::Ram(_)) => {
                    uuids.push(Uuid::new_v4());
                    namespace.uuid = uuids.last().copied().map(Identity::Fixed);
                    continue;
                }
                (None, Source::File(path)) => of_image(path, namespace.read_only)?,
            };
            namespace.uuid = Some(Identity::Fixed(uuid));
            lasting.push((uuids.len(), uuid));
            uuids.push(uuid);
        }
        for (second, uuid) in uuids.iter().enumerate() {
            if let Some(first) = uuids[..second].iter().position(|other| other == uuid) {
                let (first, second) = (first + 1, second + 1);
                return Err(IdentityError::Twice { first, second, uuid: *uuid });
            }
        }
        let nqn = match self.name()? {
            Some(name) => name,
            None => parse_name(&format!("{NQN_PREFIX}{}", subsystem(&lasting)))?,
        };
        self.nqn = Some(nqn.as_str().to_owned());
        Ok((self, Identities { nqn, namespaces: uuids }))
    }
}

/// The identity of a subsystem, derived from the identities and numbers of its namespaces. It
/// changes only if these do; subsystems with different images never share it. It is random if no
/// namespace's identity outlives the process.
fn subsystem(lasting: &[(usize, Uuid)]) -> Uuid {
    if lasting.is_empty() {
        return Uuid::new_v4();
    }
    let mut digest = Context::new(&SHA256);
    digest.update(b"unlade nvme subsystem");
    for (place, uuid) in lasting {
        digest.update(&(*place as u64).to_le_bytes());
        digest.update(uuid.as_bytes());
    }
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(digest.finish().as_ref()) {
        *to = *from;
    }
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

/// A serial number: the random digits of an identity.
pub(crate) fn serial(uuid: Uuid) -> String {
    let digits = uuid.simple().to_string();
    // All digits but those of version and variant.
    let random = digits.chars().enumerate().filter(|(at, _)| ![12, 16].contains(at));
    random.map(|(_, digit)| digit).take(SERIAL_BYTES).collect()
}

/// The file beside an image.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredIdentity {
    version: u32,
    uuid: StoredUuid,
    image: String,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
struct StoredUuid(Uuid);

impl TryFrom<String> for StoredUuid {
    type Error = String;

    fn try_from(text: String) -> Result<StoredUuid, String> {
        match text.parse()? {
            Identity::Fixed(uuid) => Ok(StoredUuid(uuid)),
            Identity::Random => Err("no uuid is kept here".to_owned()),
        }
    }
}

/// A mark that identifies an image: its inode and, if the file system has it, the birth time.
fn mark(metadata: &Metadata) -> String {
    let mut mark = metadata.ino().to_string();
    let born = metadata.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    if let Some(born) = born {
        let _ = write!(mark, " {}.{:09}", born.as_secs(), born.subsec_nanos());
    }
    mark
}

/// Returns true if two marks are of one image; the birth time is compared if both have one.
fn is_same(kept: &str, found: &str) -> bool {
    let parts = |mark: &str| {
        let mut words = mark.split_ascii_whitespace().map(str::to_owned);
        (words.next(), words.next())
    };
    let (kept, found) = (parts(kept), parts(found));
    kept.0 == found.0 && (kept.1.is_none() || found.1.is_none() || kept.1 == found.1)
}

/// The identity of an image; a new one is stored if it has none.
fn of_image(path: &Path, read_only: bool) -> Result<Uuid, IdentityError> {
    let (file, _) = open_file(path, read_only)?;
    let proposal = Uuid::new_v4();
    let image = path.to_owned();
    let no_place = |error| IdentityError::NoPlace { image: image.clone(), error, proposal };
    let metadata = file.metadata().map_err(no_place)?;
    if !metadata.is_file() {
        return Err(no_place(io::Error::other("it is a device, not a regular file")));
    }
    let mark = mark(&metadata);
    // Beside the image itself, not beside a symbolic link to it.
    let real = path.canonicalize().map_err(no_place)?;
    let beside = with_suffix(&real, SUFFIX);
    if let Some(kept) = read(&beside)? {
        if is_same(&kept.image, &mark) {
            return Ok(kept.uuid.0);
        }
        tracing::warn!(
            image = %real.display(),
            former = %kept.uuid.0,
            new = %proposal,
            "the identity beside the image is that of another file: the image is a copy, or came \
             from another file system; hosts see a new disk (the former uuid can be configured \
             where nothing else serves it)"
        );
        keep(&beside, &text(&real, proposal, &mark), true).map_err(no_place)?;
        return Ok(proposal);
    }
    if keep(&beside, &text(&real, proposal, &mark), false).map_err(no_place)? {
        tracing::info!(image = %real.display(), uuid = %proposal, "a new identity was chosen");
        return Ok(proposal);
    }
    // Another process was faster.
    match read(&beside)? {
        Some(kept) => Ok(kept.uuid.0),
        None => Err(no_place(io::Error::from(io::ErrorKind::NotFound))),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn text(image: &Path, uuid: Uuid, mark: &str) -> String {
    let name = image.file_name().unwrap_or_default().to_string_lossy().escape_debug().to_string();
    format!(
        "# The identity of {name} as an NVMe namespace. Hosts take namespaces of one identity for\n\
         # one disk, so it must not be given to another image.\n\
         version = {VERSION}\nuuid = \"{uuid}\"\nimage = \"{mark}\"\n"
    )
}

fn read(path: &Path) -> Result<Option<StoredIdentity>, IdentityError> {
    let kept: StoredIdentity = match unlade_config::load(path) {
        Ok(kept) => kept,
        Err(SettingsError::Missing { .. }) => return Ok(None),
        Err(source) => return Err(IdentityError::StoredIdentity { source: Box::new(source) }),
    };
    match kept.version {
        VERSION => Ok(Some(kept)),
        version => Err(IdentityError::Version { path: path.to_owned(), version }),
    }
}

/// Stores a file, complete and durable, or not at all. Returns false if there is one already,
/// unless it is to be replaced.
fn keep(path: &Path, text: &str, replace: bool) -> io::Result<bool> {
    let draft = with_suffix(path, &format!(".{}", Uuid::new_v4().simple()));
    let written = write(&draft, text).and_then(|()| place(&draft, path, replace));
    if !matches!(written, Ok(true)) {
        // The draft may not exist, or may have been moved.
        let _ = fs::remove_file(&draft);
    }
    if matches!(written, Ok(true)) {
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
    }
    written
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn place(draft: &Path, path: &Path, replace: bool) -> io::Result<bool> {
    if replace {
        return fs::rename(draft, path).map(|()| true);
    }
    match renameat_with(CWD, draft, CWD, path, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        // On file systems without it, hard links are used.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => match fs::hard_link(draft, path) {
            Ok(()) => fs::remove_file(draft).map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        },
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::config::NamespaceConfig;

    const IMAGE_BYTES: u64 = 64 << 10;

    fn image(directory: &Path, name: &str) -> PathBuf {
        let path = directory.join(name);
        File::create(&path).unwrap().set_len(IMAGE_BYTES).unwrap();
        path
    }

    fn serving(sources: &[&str]) -> TargetConfig {
        let space = |source: &&str| NamespaceConfig {
            source: source.parse().unwrap(),
            block_bytes: 512,
            read_only: false,
            uuid: None,
        };
        TargetConfig { namespaces: sources.iter().map(space).collect(), ..TargetConfig::default() }
    }

    /// The name of the subsystem, and the identities of its namespaces.
    fn identities(sources: &[&str]) -> (String, Vec<Uuid>) {
        let (_, identities) = serving(sources).identified().unwrap();
        (identities.nqn.to_string(), identities.namespaces)
    }

    #[test]
    fn two_targets_with_defaults_have_different_identities_that_stay() {
        let directory = tempfile::tempdir().unwrap();
        let a = image(directory.path(), "a.img").display().to_string();
        let b = image(directory.path(), "b.img").display().to_string();
        let (name_a, uuids_a) = identities(&[&a]);
        let (name_b, uuids_b) = identities(&[&b]);
        assert_ne!(name_a, name_b);
        assert_ne!(uuids_a, uuids_b);
        assert!(name_a.starts_with(NQN_PREFIX), "{name_a}");
        assert_eq!(identities(&[&a]), (name_a.clone(), uuids_a.clone()));
        let (name_both, uuids_both) = identities(&[&a, &b]);
        assert_eq!(uuids_both, [uuids_a, uuids_b].concat());
        assert!(name_both != name_a && name_both != identities(&[&b, &a]).0);
        let elsewhere = TargetConfig { listen: ([127, 0, 0, 9], 1).into(), ..serving(&[&a]) };
        assert_eq!(elsewhere.identified().unwrap().1.nqn.as_str(), name_a);
    }

    #[test]
    fn memory_is_another_disk_in_each_process_and_leaves_the_name_of_files() {
        let directory = tempfile::tempdir().unwrap();
        let file = image(directory.path(), "a.img").display().to_string();
        let (first, second) = (identities(&["ram:64KiB"]), identities(&["ram:64KiB"]));
        assert!(first.0 != second.0 && first.1 != second.1);
        let (first, second) =
            (identities(&[&file, "ram:64KiB"]), identities(&[&file, "ram:64KiB"]));
        assert_eq!((&first.0, first.1[0]), (&second.0, second.1[0]));
        assert_ne!(first.1[1], second.1[1]);
        let (filled, chosen) = serving(&["ram:64KiB"]).identified().unwrap();
        assert_eq!(filled.identified().unwrap().1, chosen, "they are chosen once");
    }

    #[test]
    fn a_copy_of_an_image_with_its_identity_is_another_disk() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        fs::create_dir(&from).unwrap();
        let original = image(&from, "a.img").display().to_string();
        let (name, uuids) = identities(&[&original]);
        fs::create_dir(&to).unwrap();
        let side = format!("a.img{SUFFIX}");
        for file in ["a.img", &side] {
            fs::copy(from.join(file), to.join(file)).unwrap();
        }
        let copy = to.join("a.img").display().to_string();
        let (copy_name, copy_uuids) = identities(&[&copy]);
        assert!(copy_name != name && copy_uuids != uuids);
        assert_eq!(identities(&[&copy]), (copy_name, copy_uuids), "it stays as well");
        assert_eq!(identities(&[&original]), (name.clone(), uuids.clone()));
        // Moved within the file system it is the same image; a link to it is, too.
        let (moved, link) = (directory.path().join("moved"), directory.path().join("link.img"));
        fs::rename(&from, &moved).unwrap();
        std::os::unix::fs::symlink(moved.join("a.img"), &link).unwrap();
        assert_eq!(identities(&[&link.display().to_string()]), (name, uuids));
        assert_eq!(fs::read_dir(&moved).unwrap().count(), 2, "no draft is left");
    }

    #[test]
    fn an_identity_without_a_place_is_a_clear_error() {
        // A directory has the file's name, which not even root can replace.
        let directory = tempfile::tempdir().unwrap();
        let path = image(directory.path(), "a.img");
        fs::create_dir(with_suffix(&path, SUFFIX)).unwrap();
        let error = serving(&[path.to_str().unwrap()]).identified().unwrap_err();
        assert!(matches!(error, IdentityError::StoredIdentity { .. }), "{error}");
        let error = serving(&["/dev/zero"]).identified().unwrap_err().to_string();
        assert!(error.contains("/dev/zero") && error.contains("--uuid "), "{error}");
        let mut given = serving(&["/dev/zero"]);
        let uuid = "2f1d8a5e-53b8-4c55-9c7e-5d2c0a7f6e11";
        given.namespaces[0].uuid = Some(uuid.parse().unwrap());
        let (_, given) = given.identified().unwrap();
        assert_eq!(given.namespaces, [Uuid::parse_str(uuid).unwrap()]);
        let mut random = serving(&["/dev/zero", "/dev/zero"]);
        random.namespaces.iter_mut().for_each(|space| space.uuid = Some(Identity::Random));
        random.identified().unwrap();
    }

    #[test]
    fn one_image_is_not_served_as_two_disks() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(directory.path(), "a.img").display().to_string();
        let error = serving(&[&path, "ram:64KiB", &path]).identified().unwrap_err().to_string();
        assert!(error.contains("namespaces 1 and 3 have one identity"), "{error}");
    }

    #[test]
    fn a_damaged_identity_is_not_replaced_by_another_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(directory.path(), "a.img");
        let beside = with_suffix(&path, SUFFIX);
        for (text, words) in [
            ("version = 1\nuuid = \"x\"\nimage = \"1\"\n", "uuid"),
            ("version = 2\nuuid = \"2f1d8a5e-53b8-4c55-9c7e-5d2c0a7f6e11\"\nimage = \"1\"\n", "2"),
            ("", "version"),
        ] {
            fs::write(&beside, text).unwrap();
            let error = serving(&[path.to_str().unwrap()]).identified().unwrap_err().to_string();
            assert!(error.contains(SUFFIX) && error.contains(words), "{error}");
            assert_eq!(fs::read_to_string(&beside).unwrap(), text);
        }
        for wrong in ["", "x", "00000000-0000-0000-0000-000000000000"] {
            assert!(wrong.parse::<Identity>().is_err());
        }
    }

    #[test]
    fn processes_that_begin_at_once_agree_on_an_identity() {
        let directory = tempfile::tempdir().unwrap();
        let path = image(directory.path(), "a.img").display().to_string();
        let gate = std::sync::Barrier::new(8);
        let all = std::thread::scope(|scope| {
            let one = || {
                gate.wait();
                identities(&[&path])
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{all:?}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "no draft is left");
    }

    #[test]
    fn images_are_told_apart_by_inode_and_birth() {
        assert!(is_same("7 100.5", "7 100.5") && is_same("7", "7 100.5") && is_same("7 1", "7"));
        assert!(!is_same("7 100.5", "7 100.6") && !is_same("7", "8") && !is_same("", "8"));
    }
}
