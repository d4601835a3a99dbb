//! Names of programs and maps in the kernel's form.

use std::ffi::CString;

use libbpf_sys as sys;

/// Returns a name in the kernel's form: 15 letters, digits, `_` and `.`.
pub(crate) fn short_name(name: &str) -> CString {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '_' };
    let short: String =
        name.chars().map(allowed).take(sys::BPF_OBJ_NAME_LEN as usize - 1).collect();
    // The name has no NUL character any more.
    CString::new(short).unwrap_or_default()
}
