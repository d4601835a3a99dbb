//! Rollback protection. Signatures do not expire, so a node keeps the highest version of each
//! module that it has run, and refuses older ones unless an administrator allows one.
//!
//! Each pair of signer and module name has a mark, not each set of signers. A module
//! with several signatures is compared with the marks of all its signers, so that neither omitting
//! nor adding a signature evades a mark. Equal names of two signers are unrelated.
//!
//! ```text
//! seen 1.2.0 ── 1.3.0 ─▶ mark 1.3.0      1.3.0 again ─▶ accepted
//!            ── 1.1.0 ─▶ refused         1.1.0, allowed by an administrator ─▶ mark 1.1.0
//! ```

use crate::signer::Signer;
use semver::Version;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::str::FromStr;

/// Largest number of marks: pairs of signer and module name that one node has ever run. A mark
/// takes some 200 bytes and does not expire.
pub const MARKS_MAX: usize = 16_384;
/// Longest text form of all marks, in bytes.
pub const TEXT_LENGTH_MAX: usize = MARKS_MAX * 512;
/// Longest name and version in bytes: limit of a manifest.
const WORD_LENGTH_MAX: usize = 128;

/// Treatment of a version older than its mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Older {
    /// The version is refused.
    Refused,
    /// The version was allowed by an administrator; it becomes the new mark.
    Allowed,
}

/// Reason why a version is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    /// The text is not a semantic version. The module author's fault.
    #[error("'{0}' is no version; write MAJOR.MINOR.PATCH, as in 1.4.2 or 2.0.0-rc.1 (semver.org)")]
    Malformed(String),
    /// The version is older than a mark.
    #[error(
        "{name} {asked} is older than {seen}, which {signer} has signed and this node has run; an administrator may allow it"
    )]
    Older {
        /// Name of the module.
        name: String,
        /// Version that was refused.
        asked: Version,
        /// Version of the mark.
        seen: Version,
        /// Signer of the mark.
        signer: Box<Signer>,
    },
    /// The number of marks would exceed [`MARKS_MAX`].
    #[error(
        "this node has run modules of {MARKS_MAX} pairs of signer and name, which is the limit"
    )]
    Full,
    /// The text is not a list of marks. The host's fault.
    #[error("the list of version marks is invalid: {0}")]
    NotMarks(String),
}

/// Highest version by signer and module name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    marks: BTreeMap<(Signer, String), Version>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mark {
    signer: String,
    name: String,
    version: String,
}

impl Versions {
    /// Checks whether this version may run. Sets no mark.
    ///
    /// # Errors
    /// The text is no version, or the version is older than a mark of one of its signers.
    pub fn check<'a>(
        &self,
        name: &str,
        version: &str,
        signers: impl IntoIterator<Item = &'a Signer>,
    ) -> Result<(), VersionError> {
        let asked = parse(version)?;
        for signer in signers {
            let Some(seen) = self.marks.get(&(*signer, name.to_owned())) else { continue };
            if asked.cmp_precedence(seen).is_lt() {
                let (name, seen) = (name.to_owned(), seen.clone());
                return Err(VersionError::Older { name, asked, seen, signer: Box::new(*signer) });
            }
        }
        Ok(())
    }

    /// Sets the marks of a module that runs from now on, all or none. Returns true if they have to
    /// be persisted.
    ///
    /// # Errors
    /// Errors of [`Versions::check`] if the version was not allowed; the number of marks exceeds
    /// its limit.
    pub fn accept<'a>(
        &mut self,
        name: &str,
        version: &str,
        signers: impl IntoIterator<Item = &'a Signer>,
        older: Older,
    ) -> Result<bool, VersionError> {
        let asked = parse(version)?;
        let signers: Vec<&Signer> = signers.into_iter().collect();
        if older == Older::Refused {
            self.check(name, version, signers.iter().copied())?;
        }
        let key = |signer: &Signer| (*signer, name.to_owned());
        let new = signers.iter().filter(|signer| !self.marks.contains_key(&key(signer))).count();
        if self.marks.len() + new > MARKS_MAX {
            return Err(VersionError::Full);
        }
        let mut has_changed = false;
        for signer in signers {
            match self.marks.entry(key(signer)) {
                Entry::Occupied(mark) if mark.get().cmp_precedence(&asked).is_eq() => continue,
                Entry::Occupied(mut mark) => {
                    mark.insert(asked.clone());
                }
                Entry::Vacant(mark) => {
                    mark.insert(asked.clone());
                }
            }
            has_changed = true;
        }
        Ok(has_changed)
    }

    /// Returns the mark of a signer for a module name.
    #[must_use]
    pub fn highest(&self, name: &str, signer: &Signer) -> Option<&Version> {
        self.marks.get(&(*signer, name.to_owned()))
    }

    /// Returns the number of marks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.marks.len()
    }

    /// Returns true if there are no marks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }
}

/// Serializes the marks as one line of JSON, for persistence.
impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = |((signer, name), version): (&(Signer, String), &Version)| Mark {
            signer: signer.to_string(),
            name: name.clone(),
            version: version.to_string(),
        };
        let marks: Vec<Mark> = self.marks.iter().map(mark).collect();
        f.write_str(&serde_json::to_string(&marks).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for Versions {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, VersionError> {
        let wrong = |why: String| VersionError::NotMarks(why);
        if text.len() > TEXT_LENGTH_MAX {
            return Err(wrong(format!("{} bytes, at most {TEXT_LENGTH_MAX}", text.len())));
        }
        let read: Vec<Mark> =
            serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if read.len() > MARKS_MAX {
            return Err(VersionError::Full);
        }
        let mut marks = BTreeMap::new();
        for mark in read {
            let signer = mark.signer.parse().map_err(|error| wrong(format!("{error}")))?;
            let version = parse(&mark.version)?;
            if marks.insert((signer, mark.name), version).is_some() {
                return Err(wrong("one signer and name stand there twice".into()));
            }
        }
        Ok(Self { marks })
    }
}

fn parse(version: &str) -> Result<Version, VersionError> {
    let wrong = || VersionError::Malformed(version.chars().take(WORD_LENGTH_MAX).collect());
    if version.len() > WORD_LENGTH_MAX {
        return Err(wrong());
    }
    version.parse().map_err(|_| wrong())
}

#[cfg(test)]
mod tests;
