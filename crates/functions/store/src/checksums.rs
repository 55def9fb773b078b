//! Checksums of S3 besides MD5, and those of objects that consist of parts.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use s3s::checksum::ChecksumHasher;
use s3s::dto::{Checksum, ChecksumAlgorithm};
use serde::{Deserialize, Serialize};

use crate::fault::Fault;

/// An algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Algorithm {
    Crc32,
    Crc32c,
    Crc64Nvme,
    Sha1,
    Sha256,
}

use Algorithm::{Crc32, Crc32c, Crc64Nvme, Sha1, Sha256};

impl Algorithm {
    /// All of them.
    pub const ALL: [Algorithm; 5] = [Crc32, Crc32c, Crc64Nvme, Sha1, Sha256];

    /// The name in S3.
    pub fn name(self) -> &'static str {
        match self {
            Crc32 => ChecksumAlgorithm::CRC32,
            Crc32c => ChecksumAlgorithm::CRC32C,
            Crc64Nvme => ChecksumAlgorithm::CRC64NVME,
            Sha1 => ChecksumAlgorithm::SHA1,
            Sha256 => ChecksumAlgorithm::SHA256,
        }
    }

    /// The algorithm of a name.
    ///
    /// # Errors
    /// It is unknown.
    pub fn parse(name: &str) -> Result<Algorithm, Fault> {
        let found = Algorithm::ALL.into_iter().find(|one| one.name() == name);
        let known = Algorithm::ALL.map(Algorithm::name).join(", ");
        found.ok_or_else(|| {
            Fault::Argument(format!("the checksum algorithm {name} is none of {known}"))
        })
    }

    /// Computes this checksum, too.
    pub fn start(self, hasher: &mut ChecksumHasher) {
        match self {
            Crc32 => hasher.crc32 = Some(Default::default()),
            Crc32c => hasher.crc32c = Some(Default::default()),
            Crc64Nvme => hasher.crc64nvme = Some(Default::default()),
            Sha1 => hasher.sha1 = Some(Default::default()),
            Sha256 => hasher.sha256 = Some(Default::default()),
        }
    }

    /// This one of several checksums.
    pub fn of(self, all: &Checksum) -> Option<&String> {
        match self {
            Crc32 => all.checksum_crc32.as_ref(),
            Crc32c => all.checksum_crc32c.as_ref(),
            Crc64Nvme => all.checksum_crc64nvme.as_ref(),
            Sha1 => all.checksum_sha1.as_ref(),
            Sha256 => all.checksum_sha256.as_ref(),
        }
    }

    /// A checksum of this algorithm alone.
    pub fn only(self, text: String) -> Checksum {
        let mut all = Checksum::default();
        let place = match self {
            Crc32 => &mut all.checksum_crc32,
            Crc32c => &mut all.checksum_crc32c,
            Crc64Nvme => &mut all.checksum_crc64nvme,
            Sha1 => &mut all.checksum_sha1,
            Sha256 => &mut all.checksum_sha256,
        };
        *place = Some(text);
        all
    }
}

/// The checksum of an object that consists of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parted {
    /// Its algorithm.
    pub algorithm: Algorithm,
    /// True if it is of the whole object, false if it is of the checksums of the parts.
    pub is_whole: bool,
}

impl Parted {
    /// The checksum that a new upload asks for.
    ///
    /// # Errors
    /// S3 has no such combination.
    pub fn asked(algorithm: Option<&str>, kind: Option<&str>) -> Result<Option<Parted>, Fault> {
        let Some(name) = algorithm else {
            return match kind {
                None => Ok(None),
                Some(_) => Err(Fault::Argument("a checksum type needs an algorithm".to_owned())),
            };
        };
        let algorithm = Algorithm::parse(name)?;
        let is_whole = match (kind, algorithm) {
            (None, algorithm) => algorithm == Crc64Nvme,
            (Some("FULL_OBJECT"), Crc32 | Crc32c | Crc64Nvme) => true,
            (Some("COMPOSITE"), Crc32 | Crc32c | Sha1 | Sha256) => false,
            (Some(kind), _) => {
                let why = format!("the checksum type {kind} cannot be used with {name}");
                return Err(Fault::Argument(why));
            }
        };
        Ok(Some(Parted { algorithm, is_whole }))
    }

    /// The type's name in S3.
    pub fn kind(self) -> &'static str {
        if self.is_whole { "FULL_OBJECT" } else { "COMPOSITE" }
    }

    /// The checksum of the checksums of the parts.
    ///
    /// # Errors
    /// One of them is not base64.
    pub fn composite(self, parts: &[String]) -> Result<Checksum, Fault> {
        let mut hasher = ChecksumHasher::default();
        self.algorithm.start(&mut hasher);
        for part in parts {
            let bytes = STANDARD.decode(part);
            hasher.update(&bytes.map_err(|_| Fault::Digest("checksum of a part"))?);
        }
        let whole = hasher.finalize();
        let text = self.algorithm.of(&whole).cloned().unwrap_or_default();
        Ok(self.algorithm.only(format!("{text}-{}", parts.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_parts_is_of_their_checksums() {
        let sha = Parted { algorithm: Sha256, is_whole: false };
        // The SHA-256 of `a`, and of its SHA-256 twice (by `sha256sum`).
        let part = "ypeBEsobvcr6wjGzmiPcTaeG7/gUfE5yuYB3ha/uSLs=".to_owned();
        let found = sha.composite(&[part.clone(), part]).unwrap().checksum_sha256.unwrap();
        assert_eq!(found, "JRomIpG4fLPJOm7XGGXaHywJDD0BlmYaj0pwW2WDb3E=-2");
        assert!(sha.composite(&["?".to_owned()]).is_err());
    }

    #[test]
    fn an_upload_asks_for_what_s3_has() {
        let asked = |algorithm, kind| Parted::asked(algorithm, kind).ok();
        assert_eq!(asked(None, None), Some(None));
        let whole = Some(Some(Parted { algorithm: Crc64Nvme, is_whole: true }));
        assert_eq!(asked(Some("CRC64NVME"), None), whole);
        let parts = Some(Some(Parted { algorithm: Crc32, is_whole: false }));
        assert_eq!(asked(Some("CRC32"), None), parts);
        for wrong in [
            (Some("CRC64NVME"), Some("COMPOSITE")),
            (Some("SHA256"), Some("FULL_OBJECT")),
            (Some("MD5"), None),
            (None, Some("COMPOSITE")),
        ] {
            assert_eq!(asked(wrong.0, wrong.1), None, "{wrong:?}");
        }
    }
}
