//! Links, addresses, routes, neighbours and other kernel state that netlink
//! reports, of one network namespace.
//!
//! ```text
//!  Netlink ──▶ link       devices: list, make, set, remove
//!          ──▶ settings   settings of a device that forwarding depends on
//!          ──▶ address    addresses, routes, neighbours
//!          ──▶ own        is an address one of this machine's
//!          ──▶ slow_path  rules, queueing disciplines, IPsec: what the fast path must not skip
//!          ──▶ rate       a device's bit rate (tbf)
//!          ──▶ redirect   frames of one device injected into another
//!  Taken       ingress    frames taken from the kernel
//!  Interception intercept marked TCP packets, to a listener here
//!                ├─▶ nftables: tables, chains, rules ─▶ attributes
//!                └─▶ marked: routes and rules of marked packets
//!  Monitor                notifications of changes
//!  netfilter_in_use       netfilter's part of slow_path
//!  offload                offloads of a driver (ethtool)
//!
//!  all of netlink ─▶ Socket: one request, its answers, its acknowledgement
//! ```
//!
//! Messages are built of the library's types (`rtnetlink`), or where it has none of its generic
//! attributes (`attributes`); nothing here writes raw bytes of messages but the fixed headers of
//! dumps, which are zeros. Answers are read attribute by attribute where a newer kernel's additions
//! must not be taken for errors.
//!
//! Every function blocks, but only for the kernel's answer, which it gives
//! from memory within the call: async code may call them directly.

mod address;
mod attributes;
mod ingress;
mod intercept;
mod link;
mod marked;
mod monitor;
mod netfilter;
mod netlink;
mod nftables;
pub mod offload;
mod own;
mod rate;
mod redirect;
mod settings;
mod slow_path;
mod socket;
#[cfg(test)]
mod tests;

use std::io;
use std::time::Duration;

pub use self::address::{AddressPrefix, DuplicateDetection, Neighbour, NeighbourState, Route};
pub use self::ingress::{
    KnownDevice, Taken, close_ingress, close_names, open_ingress, table_of_ingress, table_of_names,
};
pub use self::intercept::Interception;
pub use self::link::{Link, LinkStats, VethEnd};
pub use self::marked::{MARK, MARK_MASK};
pub use self::monitor::{Change, Monitor};
pub use self::netfilter::{netfilter_in_use, tables_of_nodes};
pub use self::netlink::Netlink;
pub use self::own::is_own_address;
pub use self::settings::DeviceSettings;
pub use self::slow_path::{Qdisc, RoutingRule};
use namespaces::netns::NetnsError;

/// Failure of a netlink request.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The socket could not be opened.
    #[error("cannot open a netlink socket: {source}")]
    Open {
        /// The kernel's answer.
        source: io::Error,
    },
    /// The namespace could not be entered.
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    /// The kernel understood the request and refused it.
    #[error("cannot {request}: {source}{}", said(explanation))]
    Refused {
        /// Request, as a verb with its object.
        request: String,
        /// The kernel's error.
        source: io::Error,
        /// The kernel's own explanation (extended acknowledgement), often empty.
        explanation: String,
    },
    /// The socket failed, not the request.
    #[error("cannot {request}: the netlink socket failed: {source}")]
    Socket {
        /// Request that was made.
        request: String,
        /// Error of the socket.
        source: io::Error,
    },
    /// The answer is malformed: the kernel is newer than, or different from, what this program
    /// knows.
    #[error("cannot {request}: the kernel's answer is not understood: {problem}")]
    Malformed {
        /// Request that was made.
        request: String,
        /// Fault of the answer.
        problem: String,
    },
    /// The kernel lacks a kind of device: a fault of the host.
    #[error(
        "this kernel cannot make the network device '{name}': it lacks the kind '{kind}'; load the kernel's module '{module}', or boot a kernel that has it"
    )]
    NoKind {
        /// Device that was to be made.
        name: String,
        /// Kind, as `ip link add type` names it.
        kind: &'static str,
        /// Kernel module that provides the kind.
        module: &'static str,
    },
    /// A device that is up has no carrier.
    #[error(
        "the network device '{device}' was set up and has no carrier after {patience:?}; is the other end of its link up?"
    )]
    NoCarrier {
        /// The device.
        device: String,
        /// Time that was waited.
        patience: Duration,
    },
    /// The device does not exist.
    #[error(
        "there is no network device '{name}' in this network namespace; `ip link` lists those that exist"
    )]
    NoDevice {
        /// Name of the device.
        name: String,
    },
}

fn said(explanation: &str) -> String {
    if explanation.is_empty() { String::new() } else { format!(" ({explanation})") }
}

impl NetlinkError {
    /// Returns the kernel's error number when it refused, as in `errno(3)`.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Open { source } | Self::Refused { source, .. } | Self::Socket { source, .. } => {
                source.raw_os_error()
            }
            Self::NoDevice { .. } => Some(libc::ENODEV),
            Self::NoKind { .. } => Some(libc::EOPNOTSUPP),
            Self::NoCarrier { .. } => Some(libc::ENETDOWN),
            Self::Namespace(_) | Self::Malformed { .. } => None,
        }
    }
}
