//! Namespace for a test of this or another crate. Not for production code.

use crate::netns::{self, NetNs};

/// Namespace of this test process, removed when the test ends, however it ends.
pub struct Scratch {
    /// Descriptor of the namespace.
    pub ns: NetNs,
}

impl Scratch {
    /// Creates a namespace for the test of this name.
    ///
    /// # Panics
    /// When the kernel refuses.
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
        // A test may have removed it as its subject.
        let _ = netns::delete(self.ns.name());
    }
}
