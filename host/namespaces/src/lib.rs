//! Network and user namespaces, and the settings (`/proc/sys`) in them.
//!
//! ```text
//!  NetNs ─ in_namespace ─▶ closure inside     sysctl   a setting of the calling thread's namespace
//!  userns                  root in namespaces of one's own
//! ```
//!
//! All objects are the kernel's, by name or descriptor; nothing here keeps state.

pub mod netns;
#[doc(hidden)]
pub mod scratch;
pub mod sysctl;
pub mod userns;
