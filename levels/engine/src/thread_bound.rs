//! Values bound to one thread, in data that wasmtime requires to be `Send`: a runtime check instead
//! of a promise.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::thread::{self, ThreadId};

/// Value bound to the thread that made it: using it on another one panics, and dropping it there
/// leaks it.
#[derive(Debug)]
pub struct ThreadBound<T> {
    value: ManuallyDrop<T>,
    home: ThreadId,
}

// SAFETY: the value is reached by `deref`, `deref_mut` and `drop` only, each of which compares the
// thread with the one on which the value was made; nothing else is in here that is not `Send`.
// WHY: wasmtime takes only such data where calls can be suspended. For packets `Local` promises
// the same without a check; here a call is microseconds long, and the check is nanoseconds.
unsafe impl<T> Send for ThreadBound<T> {}

impl<T> ThreadBound<T> {
    /// Binds a value to this thread.
    pub fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), home: thread::current().id() }
    }

    fn is_home(&self) -> bool {
        thread::current().id() == self.home
    }
}

impl<T> Deref for ThreadBound<T> {
    type Target = T;
    fn deref(&self) -> &T {
        assert!(self.is_home(), "used on another thread than it was made on");
        &self.value
    }
}

impl<T> DerefMut for ThreadBound<T> {
    fn deref_mut(&mut self) -> &mut T {
        assert!(self.is_home(), "used on another thread than it was made on");
        &mut self.value
    }
}

impl<T> Drop for ThreadBound<T> {
    fn drop(&mut self) {
        if self.is_home() {
            // SAFETY: dropped once, here, and not used afterwards.
            // WHY: a value of another thread must not be dropped, which a plain field always is.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ThreadBound;
    use std::rc::Rc;

    #[test]
    fn a_thread_bound_value_is_neither_used_nor_freed_on_another_thread() {
        let shared = Rc::new(7);
        let bound = ThreadBound::new(Rc::clone(&shared));
        assert_eq!(**bound, 7);
        let used = std::thread::spawn(move || {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| **bound)).is_err()
        });
        assert!(used.join().unwrap());
        assert_eq!(Rc::strong_count(&shared), 2, "nobody touched the count from another thread");
        let bound = ThreadBound::new(Rc::clone(&shared));
        drop(bound);
        assert_eq!(Rc::strong_count(&shared), 2);
    }
}
