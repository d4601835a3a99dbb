//! State that a service keeps between packets.

#[cfg(target_arch = "wasm32")]
type Cell<T> = core::cell::RefCell<T>;
#[cfg(not(target_arch = "wasm32"))]
type Cell<T> = std::sync::Mutex<T>;

/// Mutable state of a service, for a `static`.
///
/// Each instance has its own state, because each has its own memory.
///
/// ```
/// static SEEN: tam::State<[u32; 64]> = tam::State::new([0; 64]);
///
/// SEEN.with(|seen| seen[7] += 1);
/// assert_eq!(SEEN.with(|seen| seen[7]), 1);
/// ```
pub struct State<T>(Cell<T>);

// SAFETY: a module without threads has one CPU at a time in its memory
// (docs/reference/module-abi.md, Lanes), so nothing is ever shared between threads.
#[cfg(target_arch = "wasm32")]
unsafe impl<T> Sync for State<T> {}

impl<T> State<T> {
    /// Creates state with an initial value.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self(Cell::new(value))
    }

    /// Calls `body` with the state.
    ///
    /// # Panics
    /// `body` accesses the same state again; in a module that is a trap.
    #[inline]
    pub fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        #[cfg(target_arch = "wasm32")]
        return body(&mut self.0.borrow_mut());
        #[cfg(not(target_arch = "wasm32"))]
        // A failed test that held the state must not affect other tests.
        return body(&mut self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    }
}

/// Largest number of bytes per call of the node.
#[cfg(target_arch = "wasm32")]
const CHUNK: usize = 65_536;

/// Hands a state over to the next version of the module; returns 0 on success.
#[doc(hidden)]
pub fn hand_over<T: crate::Plain>(state: &State<T>) -> i32 {
    state.with(|value| pass(crate::plain::bytes_of(value), Way::Out))
}

/// Takes over a state from the previous version; returns 0 if it was complete.
#[doc(hidden)]
pub fn take_over<T: crate::Plain>(state: &State<T>) -> i32 {
    state.with(|value| pass(crate::plain::bytes_of(value), Way::In))
}

impl<T: crate::Plain> State<T> {
    /// Returns the length in bytes.
    #[doc(hidden)]
    #[must_use]
    pub const fn length(&self) -> usize {
        size_of::<T>()
    }
}

#[derive(Clone, Copy)]
enum Way {
    Out,
    In,
}

#[cfg(target_arch = "wasm32")]
fn pass(bytes: &mut [u8], way: Way) -> i32 {
    use crate::host::import;
    for chunk in bytes.chunks_mut(CHUNK) {
        let (at, length) = (chunk.as_mut_ptr(), chunk.len());
        let is_passed = match way {
            // SAFETY: the node reads `length` bytes at `at` and writes none.
            Way::Out => unsafe { import::state_write(at, length) == 0 },
            // SAFETY: the node writes at most `length` bytes at `at`.
            Way::In => unsafe { import::state_read(at, length) == length as i32 },
        };
        if !is_passed {
            return 2;
        }
    }
    0
}

/// Native builds have no other version.
#[cfg(not(target_arch = "wasm32"))]
fn pass(_: &mut [u8], way: Way) -> i32 {
    match way {
        Way::Out => 0,
        Way::In => 2,
    }
}
