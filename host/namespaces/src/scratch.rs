//! Network namespaces for tests of this and other crates; not for other uses.

use crate::netns::{self, NetNs};

/// Namespace of a test process, removed when the value is dropped, also by a panic.
pub struct Scratch {
    /// Descriptor of the namespace.
    pub ns: NetNs,
}

impl Scratch {
    /// Creates a namespace for the test of this name.
    ///
    /// # Panics
    /// The kernel refuses.
    #[must_use]
    pub fn new(purpose: &str) -> Self {
        let name = format!("tt-os-{}-{purpose}", std::process::id());
        Self { ns: NetNs::create(&name).expect("a test runs as root") }
    }

    /// Returns the name of the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        self.ns.name()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A test may have removed the namespace itself.
        let _ = netns::delete(self.ns.name());
    }
}
