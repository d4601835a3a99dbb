//! State that a service keeps from one packet to the next.

#[cfg(target_arch = "wasm32")]
type Cell<T> = core::cell::RefCell<T>;
#[cfg(not(target_arch = "wasm32"))]
type Cell<T> = std::sync::Mutex<T>;

/// What a service remembers: a `static` that can be changed.
///
/// Each instance has its own, because each has its own memory.
///
/// ```
/// static SEEN: tam::State<[u32; 64]> = tam::State::new([0; 64]);
///
/// SEEN.with(|seen| seen[7] += 1);
/// assert_eq!(SEEN.with(|seen| seen[7]), 1);
/// ```
pub struct State<T>(Cell<T>);

// SAFETY: a module without threads has one CPU at a time in its memory
// (docs/module-abi.md, Lanes), so nothing is ever shared between threads.
#[cfg(target_arch = "wasm32")]
unsafe impl<T> Sync for State<T> {}

impl<T> State<T> {
    /// State that begins with `value`.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self(Cell::new(value))
    }

    /// Hands the state to `body`.
    ///
    /// # Panics
    /// When `body` asks for the same state again; in a module that is a trap.
    #[inline]
    pub fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        #[cfg(target_arch = "wasm32")]
        return body(&mut self.0.borrow_mut());
        #[cfg(not(target_arch = "wasm32"))]
        // A test that failed while it held the state spoils no other test.
        return body(&mut self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    }
}
