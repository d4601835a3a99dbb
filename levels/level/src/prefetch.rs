//! Prefetching: memory that is read soon is requested before it is needed.
//!
//! A cache miss costs as much as some hundred instructions, and a processor can have a dozen of
//! them outstanding. Code that knows its next addresses requests them early.

/// Cache line size in bytes.
pub const LINE: usize = 64;

/// Prefetches the cache line that holds an address. Reads nothing, so any address is allowed.
#[inline]
pub fn load_line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing and faults nowhere, whatever the address. WHY: with
        // 10,000 sessions a packet took some forty cache misses one after the other.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Prefetches all cache lines of a value, but not what it points at.
#[inline]
pub fn load<T>(what: &T) {
    load_first(what, size_of::<T>());
}

/// Prefetches the first `bytes` bytes of a value.
#[inline]
pub fn load_first<T>(what: &T, bytes: usize) {
    let first = std::ptr::from_ref(what).cast::<u8>();
    let begins_at = first.addr() % LINE;
    for line in 0..(begins_at + bytes).div_ceil(LINE) {
        load_line(first.wrapping_add(line * LINE));
    }
}
