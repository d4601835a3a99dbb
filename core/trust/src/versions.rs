//! Versions do not roll back: what was signed yesterday stays signed, so the highest version of a
//! module that a node has run is kept, and an older one is refused unless an administrator says
//! otherwise.
//!
//! Kept is one mark for each signer and module name, not for each set of signers: a module that
//! several have signed is held against the marks of all, so that leaving a signature out, or
//! bringing an older module with one more, leads nowhere. Two signers who use the same name
//! have nothing to do with each other.
//!
//! ```text
//! seen 1.2.0 ── 1.3.0 ─▶ mark 1.3.0      1.3.0 again ─▶ as it is
//!            ── 1.1.0 ─▶ refused         1.1.0, allowed by an administrator ─▶ mark 1.1.0
//! ```

use crate::signer::Signer;
use semver::Version;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::str::FromStr;

/// Most marks: names of modules times signers that one node has ever run. A mark takes some
/// 200 bytes, and is never forgotten by itself.
pub const MARKS_MAX: usize = 16_384;
/// Longest text of all marks, in bytes.
pub const TEXT_LENGTH_MAX: usize = MARKS_MAX * 512;
/// Longest name and version: what a manifest may have.
const WORD_LENGTH_MAX: usize = 128;

/// What an older version meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Older {
    /// No.
    Refused,
    /// An administrator wants it; it is the mark from now on.
    Allowed,
}

/// Why a version does not come in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    /// It is no version. Its author's fault.
    #[error("'{0}' is no version; write MAJOR.MINOR.PATCH, as in 1.4.2 or 2.0.0-rc.1 (semver.org)")]
    Malformed(String),
    /// It is older than what was here.
    #[error(
        "{name} {asked} is older than {seen}, which {signer} has signed and this node has had; an administrator may allow it"
    )]
    Older {
        /// The module's name.
        name: String,
        /// The version that was refused.
        asked: Version,
        /// The highest so far.
        seen: Version,
        /// Whose mark it is.
        signer: Box<Signer>,
    },
    /// More than [`MARKS_MAX`].
    #[error("{MARKS_MAX} pairs of signer and module name have been here, which is the limit")]
    Full,
    /// A text that holds no marks. The host's fault.
    #[error("these are no marks of versions: {0}")]
    NotMarks(String),
}

/// The highest version of each module name, by signer.
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
    /// Whether this version may run. Changes nothing: what is only asked about sets no mark.
    ///
    /// # Errors
    /// When it is no version, or older than one of its signers' marks.
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

    /// Sets the marks of a module that runs from now on; true when there is something to persist.
    /// All or nothing.
    ///
    /// # Errors
    /// When [`Versions::check`] says so and nobody allowed it, or there are too many marks.
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

    /// The mark of a signer for a name.
    #[must_use]
    pub fn highest(&self, name: &str, signer: &Signer) -> Option<&Version> {
        self.marks.get(&(*signer, name.to_owned()))
    }

    /// How many marks there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.marks.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }
}

/// To keep it: a line of JSON.
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
