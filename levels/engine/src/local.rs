//! Data that stays on the thread of its instance.

use std::ops::{Deref, DerefMut};

/// Part of a store's data that must not move to another thread, such as a packet whose memory is
/// counted without atomics.
pub(crate) struct Local<T>(pub(crate) T);

// SAFETY: a `Local` is in the data of a store, which is in an `Instance`, which is not `Send`
// (it has the other half of its batch in an `Rc`), or in the future of a `Suspended`, which is
// not `Send` either. So nothing here ever gets to another thread.
// WHY: wasmtime takes only such data where calls can be suspended, since futures may move
// between threads; counting packet memory atomically costs 10 ns a packet.
unsafe impl<T> Send for Local<T> {}

impl<T> Deref for Local<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Local<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
