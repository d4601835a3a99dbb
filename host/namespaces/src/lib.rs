//! Network and user namespaces, and the settings (`/proc/sys`) in them.
//!
//! ```text
//!  NetNs ─ in_namespace ─▶ code that runs there   sysctl   a setting of the calling thread's namespace
//!  userns                  root in namespaces of its own, for a process of an ordinary user
//! ```
//!
//! Everything goes by names and descriptors of the kernel; nothing here keeps state.

pub mod netns;
#[doc(hidden)]
pub mod scratch;
pub mod sysctl;
pub mod userns;
