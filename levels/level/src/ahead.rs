//! Loading ahead: what is looked at soon is on its way before anybody asks for it.
//!
//! A processor waits for memory as long as it takes to do some hundred instructions, and can wait
//! for a dozen lines at once. Whoever knows what comes next says so early.

/// Bytes of a cache line.
pub const LINE: usize = 64;

/// Starts loading the line that holds an address. Nothing is read, so it may be any address.
#[inline]
pub fn load_line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing and faults nowhere, whatever the address.
        // WHY: with 10,000 sessions a packet waited for some forty lines one after the other.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Starts loading all lines of a thing, but not of what it points at.
#[inline]
pub fn load<T>(what: &T) {
    load_first(what, size_of::<T>());
}

/// The same of its first bytes.
#[inline]
pub fn load_first<T>(what: &T, bytes: usize) {
    let first = std::ptr::from_ref(what).cast::<u8>();
    let begins_at = first.addr() % LINE;
    for line in 0..(begins_at + bytes).div_ceil(LINE) {
        load_line(first.wrapping_add(line * LINE));
    }
}
