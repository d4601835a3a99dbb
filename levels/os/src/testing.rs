//! What this crate's tests share: a namespace that goes away, and the reason for a test not run.
//! Not compiled outside tests.

use crate::netns::{self, NetNs};

/// A namespace of this test process, removed when the test ends, however it ends.
pub(crate) struct Scratch {
    pub(crate) ns: NetNs,
}

impl Scratch {
    pub(crate) fn new(purpose: &str) -> Self {
        let name = format!("tt-os-{}-{purpose}", std::process::id());
        Self { ns: NetNs::create(&name).unwrap() }
    }

    pub(crate) fn name(&self) -> &str {
        self.ns.name()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A test may have removed it as its subject.
        let _ = netns::delete(self.ns.name());
    }
}

/// Whether the test can run; says so when it cannot.
pub(crate) fn root_or_reason() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        testbase::skip_this("making network namespaces needs root");
    }
    root
}
