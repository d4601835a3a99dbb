//! Network and user namespaces, and the settings (`/proc/sys`) in them.
//!
//! ```text
//!  NetNs ─ in_namespace ─▶ what runs there     sysctl   a setting of the calling thread's namespace
//!  userns                  a user who is root in namespaces of his own
//! ```
//!
//! Everything is by names and descriptors of the kernel; nothing here keeps state.

pub mod netns;
#[doc(hidden)]
pub mod scratch;
pub mod sysctl;
pub mod userns;
