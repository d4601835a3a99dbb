//! What a node has to give to sessions.

use crate::daemon::Daemon;
use os::offload;
use units::{BitsPerSecond, Name};

impl Daemon {
    /// The rate of a port that is there, as its driver says it.
    pub(crate) fn port_rate(&self, port: &Name) -> Option<BitsPerSecond> {
        let found = self.ports.iter().find(|live| live.port.spec.name == *port)?;
        offload::speed(&found.port.spec.device).ok().flatten()
    }
}
