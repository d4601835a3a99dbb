//! Resolution of references to entries of `index.json`, of any kind: also indexes and images that
//! only other tools write.

use super::directory::Directory;
use super::{shown, signatures};
use crate::digest::{ALGORITHM, PREFIX_LENGTH_MIN};
use crate::error::StoreError;
use crate::layout::Descriptor;

/// Finds the entries that a reference matches, as defined by
/// [`Store::entries`](super::Store::entries); `None` if there are none.
pub(super) fn find(
    directory: &Directory,
    wanted: &str,
) -> Result<Option<Vec<Descriptor>>, StoreError> {
    let index = directory.index()?;
    let all = || index.manifests.iter().filter(|entry| !signatures::is_signature_image(entry));
    let found = |is_it: &dyn Fn(&Descriptor) -> bool| -> Option<Vec<Descriptor>> {
        let found: Vec<Descriptor> = all().filter(|entry| is_it(entry)).cloned().collect();
        (!found.is_empty()).then_some(found)
    };
    if wanted.is_empty() {
        let store = directory.path().to_owned();
        return found(&|_| true).ok_or(StoreError::Empty { store }).map(Some);
    }
    let is_named = |entry: &Descriptor| entry.reference() == Some(wanted);
    let begins = |entry: &Descriptor| {
        let name = entry.reference().and_then(|reference| reference.split_once(':'));
        name.is_some_and(|(name, _)| name == wanted)
    };
    if let Some(found) = found(&is_named).or_else(|| found(&begins)) {
        return Ok(Some(found));
    }
    let digits = wanted.strip_prefix(ALGORITHM).unwrap_or(wanted);
    let is_digits = digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if is_digits && digits.len() >= PREFIX_LENGTH_MIN {
        let is_digest = |entry: &Descriptor| {
            let module = directory.known_module_of(entry);
            let digests = [Some(entry.digest), module].into_iter().flatten();
            digests.into_iter().any(|digest| digest.hex().starts_with(digits))
        };
        if let Some(found) = found(&is_digest) {
            return Ok(Some(found));
        }
    } else if is_digits && wanted.starts_with(ALGORITHM) {
        return Err(StoreError::PrefixTooShort { wanted: shown(wanted) });
    }
    Ok(None)
}
