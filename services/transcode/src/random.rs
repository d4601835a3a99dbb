//! Unguessable ids: random bytes of the node, through WASI (docs/reference/proxy-wasm.md). The SDK has no
//! call for them, so that this is the module's only `unsafe` (ADR 0011).

use std::fmt::Write;

/// Length of an id in bytes: 128 bits cannot be found by trying.
const ID_LENGTH: usize = 16;

#[link(wasm_import_module = "wasi_snapshot_preview1")]
unsafe extern "C" {
    fn random_get(bytes: *mut u8, length: usize) -> i32;
}

/// Returns an id in hexadecimal; `None` if the node returns no random bytes.
pub fn id() -> Option<String> {
    let mut bytes = [0u8; ID_LENGTH];
    // SAFETY: the node writes `length` bytes from `bytes` on, which is a buffer of that length, or
    // returns an error.
    // WHY: WASI's function is the only source of random bytes that a stream module has.
    let errno = unsafe { random_get(bytes.as_mut_ptr(), bytes.len()) };
    if errno != 0 {
        return None;
    }
    let mut id = String::with_capacity(2 * ID_LENGTH);
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(id, "{byte:02x}");
    }
    Some(id)
}
