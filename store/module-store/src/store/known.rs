//! What has been read of a store and is still true, so that a store of thousands of modules is
//! not read again for each of them.
//!
//! An image manifest is what its digest says, for ever. `index.json` is what it was as long as its
//! file is the same one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use crate::digest::Digest;
use crate::layout::Image;

/// Image manifests that are kept, of half a kilobyte each: as many as a full `index.json` names,
/// with a signature for each.
const IMAGES_MAX: usize = 40_000;

/// A state of `index.json`: each writing is a new file.
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
    /// Returns the value, if it was made of this state.
    pub(super) fn of(&self, stamp: &Stamp) -> Option<Arc<T>> {
        let kept = locked(&self.0);
        kept.as_ref().filter(|(of, _)| of == stamp).map(|(_, kept)| Arc::clone(kept))
    }

    /// Keeps a value in place of that of another state.
    pub(super) fn put(&self, stamp: Stamp, made: &Arc<T>) {
        *locked(&self.0) = Some((stamp, Arc::clone(made)));
    }
}

/// Image manifests that have been read.
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
