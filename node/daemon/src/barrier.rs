//! Keeps frames of a node's ports from the kernel while nothing of the node decides about them.
//!
//! ```text
//!  process starts ─▶ Barrier ─▶ what was there is taken down ─▶ ports attached ─▶ gone
//! ```
//!
//! Without it the kernel would forward, past a closed service, between the start of a node's
//! process and its first port, and between the front door of one version and that of the next.
//! It is there only if something that shall run is closed: meanwhile the ports carry nothing at
//! all. It is made of nftables tables that go with this process, however that ends.

use crate::config::NodeFile;
use crate::journal::Journal;
use netlink::{Diversion, Netlink};
use node::desired::DesiredState;
use sockets::frame_socket::TAKEN_MARK;

/// Ports that are kept from the kernel, until this is dropped.
pub(crate) struct Barrier(Vec<Diversion>);

impl Barrier {
    /// Raises the barrier at the ports of a node if a desired service is closed. Reads the journal
    /// for that, unless the caller has it open and passes the `state`.
    pub(crate) fn raise(file: &NodeFile, state: Option<&DesiredState>) -> Self {
        let is_closed = match state {
            Some(state) => state.has_closed_service(),
            // One that cannot read its state does not start, and says so.
            None => wants_closed(file).unwrap_or_default(),
        };
        if !is_closed {
            return Self(Vec::new());
        }
        let Ok(netlink) = Netlink::open() else { return Self(Vec::new()) };
        let take = |device: &str| -> Option<Diversion> {
            // One that is not there carries nothing.
            let index = netlink.link(device).ok()?.index;
            let taken = Diversion::hold(device, index, TAKEN_MARK);
            let open = |error: &_| tracing::warn!(device, %error, "the device is not closed while the node starts: packets may go past closed services");
            taken.inspect_err(open).ok()
        };
        Self(file.ports.iter().filter_map(|port| take(&port.device)).collect())
    }

    /// Lets the kernel have what the node leaves to it: the ports that have no front door in the
    /// kernel are closed by now as the node's services want it.
    pub(crate) fn lower(self) {
        drop(self.0);
    }
}

/// Returns true when a service of the node's state, or of its file, is closed.
fn wants_closed(file: &NodeFile) -> anyhow::Result<bool> {
    if file.wanted.services.iter().any(|service| service.get_ref().on_failure.is_closed()) {
        return Ok(true);
    }
    let newest = Journal::open(&file.state, &file.name)?.newest()?;
    Ok(newest.is_some_and(|record| record.state.has_closed_service()))
}
