//! Cache of parsed documents, so that a store of thousands of modules is not parsed again for each
//! of them.
//!
//! An image manifest is immutable, since its digest names it. `index.json` is valid as long as the
//! file has the same stamp.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use crate::digest::Digest;
use crate::layout::Image;

/// Largest number of cached image manifests, of half a kilobyte each: as many as a full
/// `index.json` names, with a signature for each.
const IMAGES_MAX: usize = 40_000;

/// Stamp of `index.json`: modification time, length and inode. Each write makes a new file.
pub(super) type Stamp = (Option<SystemTime>, u64, u64);

/// Value derived from the latest state of `index.json`.
#[derive(Debug)]
pub(super) struct Latest<T>(Mutex<Option<(Stamp, Arc<T>)>>);

impl<T> Default for Latest<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> Latest<T> {
    /// Returns the value if it was derived from this state.
    pub(super) fn of(&self, stamp: &Stamp) -> Option<Arc<T>> {
        let kept = locked(&self.0);
        kept.as_ref().filter(|(of, _)| of == stamp).map(|(_, kept)| Arc::clone(kept))
    }

    /// Replaces the value by that of a new state.
    pub(super) fn put(&self, stamp: Stamp, made: &Arc<T>) {
        *locked(&self.0) = Some((stamp, Arc::clone(made)));
    }
}

/// Cache of image manifests.
#[derive(Debug, Default)]
pub(super) struct Images(Mutex<BTreeMap<Digest, Arc<Image>>>);

impl Images {
    pub(super) fn get(&self, digest: &Digest) -> Option<Arc<Image>> {
        locked(&self.0).get(digest).cloned()
    }

    pub(super) fn put(&self, digest: Digest, image: &Arc<Image>) {
        let mut images = locked(&self.0);
        if images.len() >= IMAGES_MAX {
            images.clear();
        }
        images.insert(digest, Arc::clone(image));
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
