//! What has been read of a store and is still true, so that a store of thousands of modules is
//! not read again for each of them.
//!
//! An image manifest is what its digest says, for ever. `index.json` is what it was as long as its
//! file is the same one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::catalogue::{Catalogue, Stamp};
use crate::digest::Digest;
use crate::layout::{Image, Index};

/// Image manifests that are kept, of half a kilobyte each: as many as a full `index.json` names,
/// with a signature for each.
const IMAGES_MAX: usize = 40_000;

/// Of one store, for all that have it open in this process.
#[derive(Debug, Default)]
pub(super) struct Known {
    index: Mutex<Option<(Stamp, Arc<Index>)>>,
    catalogue: Mutex<Option<(Stamp, Arc<Catalogue>)>>,
    images: Mutex<BTreeMap<Digest, Arc<Image>>>,
}

impl Known {
    pub(super) fn index(&self, stamp: &Stamp) -> Option<Arc<Index>> {
        of(&self.index, stamp)
    }

    pub(super) fn put_index(&self, stamp: Stamp, index: &Arc<Index>) {
        *locked(&self.index) = Some((stamp, Arc::clone(index)));
    }

    pub(super) fn catalogue(&self, stamp: &Stamp) -> Option<Arc<Catalogue>> {
        of(&self.catalogue, stamp)
    }

    pub(super) fn put_catalogue(&self, stamp: Stamp, catalogue: &Arc<Catalogue>) {
        *locked(&self.catalogue) = Some((stamp, Arc::clone(catalogue)));
    }

    pub(super) fn image(&self, digest: &Digest) -> Option<Arc<Image>> {
        locked(&self.images).get(digest).cloned()
    }

    pub(super) fn put_image(&self, digest: Digest, image: &Arc<Image>) {
        let mut images = locked(&self.images);
        if images.len() >= IMAGES_MAX {
            images.clear();
        }
        images.insert(digest, Arc::clone(image));
    }
}

fn of<T>(kept: &Mutex<Option<(Stamp, Arc<T>)>>, stamp: &Stamp) -> Option<Arc<T>> {
    let kept = locked(kept);
    kept.as_ref().filter(|(of, _)| of == stamp).map(|(_, kept)| Arc::clone(kept))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
