//! What a reference leads to in `index.json`: entries of any kind, also indexes and images that only
//! other tools write.

use super::{Store, shown, signatures};
use crate::digest::{ALGORITHM, PREFIX_LENGTH_MIN};
use crate::error::StoreError;
use crate::layout::Descriptor;

impl Store {
    /// Returns the entries that a reference may mean, those of signatures left out: of this name
    /// (`monitor:0.1.0`, `v1`), else of a name that begins so (`monitor`), else whose own digest or
    /// whose module's begins with these digits, at least [`PREFIX_LENGTH_MIN`]. All for the empty
    /// reference.
    ///
    /// # Errors
    /// When there is none.
    pub fn entries(&self, wanted: &str) -> Result<Vec<Descriptor>, StoreError> {
        let index = self.index()?;
        let all = || index.manifests.iter().filter(|entry| !signatures::is_one(entry));
        let found = |is_it: &dyn Fn(&Descriptor) -> bool| -> Option<Vec<Descriptor>> {
            let found: Vec<Descriptor> = all().filter(|entry| is_it(entry)).cloned().collect();
            (!found.is_empty()).then_some(found)
        };
        if wanted.is_empty() {
            let store = self.directory.clone();
            return found(&|_| true).ok_or(StoreError::Empty { store });
        }
        let is_named = |entry: &Descriptor| entry.reference() == Some(wanted);
        let begins = |entry: &Descriptor| {
            let name = entry.reference().and_then(|reference| reference.split_once(':'));
            name.is_some_and(|(name, _)| name == wanted)
        };
        if let Some(found) = found(&is_named).or_else(|| found(&begins)) {
            return Ok(found);
        }
        let digits = wanted.strip_prefix(ALGORITHM).unwrap_or(wanted);
        let is_digits = digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if is_digits && digits.len() >= PREFIX_LENGTH_MIN {
            let is_digest = |entry: &Descriptor| {
                let module = self.known_module_of(entry);
                let digests = [Some(entry.digest), module].into_iter().flatten();
                digests.into_iter().any(|digest| digest.hex().starts_with(digits))
            };
            if let Some(found) = found(&is_digest) {
                return Ok(found);
            }
        } else if is_digits && wanted.starts_with(ALGORITHM) {
            return Err(StoreError::PrefixTooShort { wanted: shown(wanted) });
        }
        Err(self.not_found(wanted, &self.list()?.modules))
    }

    /// Makes the error that a reference leads to several modules by these entries.
    #[must_use]
    pub fn ambiguous(&self, wanted: &str, entries: &[Descriptor]) -> StoreError {
        let name = |entry: &Descriptor| entry.reference().map_or(entry.digest.short(), shown);
        let found = entries.iter().map(name).collect::<Vec<_>>().join(", ");
        match wanted {
            "" => StoreError::Several { store: self.directory.clone(), found },
            _ => StoreError::Ambiguous { wanted: shown(wanted), found },
        }
    }
}
