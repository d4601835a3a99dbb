//! Links, addresses, routes, neighbours and what else the kernel says over
//! netlink, of one network namespace.
//!
//! ```text
//!  Netlink ──▶ link       devices: list, make, set, remove
//!          ──▶ settings   what forwarding rests on of a device's
//!          ──▶ address    addresses, routes, neighbours
//!          ──▶ own        whether an address is this machine's
//!          ──▶ slow_path  rules, queueing disciplines, IPsec: what the fast path must not skip
//!          ──▶ rate       a device's bit rate (tbf)
//!          ──▶ redirect   what comes in by one device, to another
//!  Taken       ingress    frames taken from the kernel
//!  Interception intercept marked TCP packets, to a listener here
//!                ├─▶ nftables: tables, chains, rules ─▶ attributes
//!                └─▶ marked: routes and rules of marked packets
//!  Monitor                what changed, as it changes
//!  netfilter_in_use       the same question as slow_path's, of netfilter
//!  offload                what a driver does of the stack's work (ethtool)
//!
//!  all of netlink ─▶ Socket: one request, its answers, its acknowledgement
//! ```
//!
//! Messages are built of the library's types (`rtnetlink`), or where it has none of its generic
//! attributes (`attributes`); nothing here writes bytes of them by itself but the fixed headers of
//! dumps, which are zeros. Answers are read attribute by attribute where a newer kernel's additions
//! must not be taken for errors.
//!
//! Every function blocks, but only for the kernel's answer, which it gives
//! from memory within the call: async code may call them as they are.

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

/// Why the kernel did not do or say what was asked.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// No socket.
    #[error("cannot open a netlink socket: {source}")]
    Open {
        /// The kernel's answer.
        source: io::Error,
    },
    /// The namespace could not be entered.
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    /// The request was understood and refused.
    #[error("cannot {request}: {source}{}", said(explanation))]
    Refused {
        /// What was asked, as a verb with its object.
        request: String,
        /// The kernel's error.
        source: io::Error,
        /// The kernel's own sentence, often empty.
        explanation: String,
    },
    /// The socket failed, not the request.
    #[error("cannot {request}: the netlink socket failed: {source}")]
    Socket {
        /// What was asked.
        request: String,
        /// What failed.
        source: io::Error,
    },
    /// An answer that is none: the kernel is newer or stranger than this program.
    #[error("cannot {request}: the kernel's answer is not understood: {problem}")]
    Malformed {
        /// What was asked.
        request: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The kernel lacks a kind of device. The host's fault.
    #[error(
        "this kernel cannot make the network device '{name}': it lacks the kind '{kind}'; load the kernel's module '{module}', or boot a kernel that has it"
    )]
    NoKind {
        /// The device that was to be made.
        name: String,
        /// The kind, as `ip link add type` names it.
        kind: &'static str,
        /// The module that brings it.
        module: &'static str,
    },
    /// A device that is up cannot send.
    #[error(
        "the network device '{device}' was set up and has no carrier after {patience:?}; is the other end of its link up?"
    )]
    NoCarrier {
        /// The device.
        device: String,
        /// How long it had.
        patience: Duration,
    },
    /// There is no such device.
    #[error(
        "there is no network device '{name}' in this network namespace; `ip link` lists those that exist"
    )]
    NoDevice {
        /// Its name.
        name: String,
    },
}

fn said(explanation: &str) -> String {
    if explanation.is_empty() { String::new() } else { format!(" ({explanation})") }
}

impl NetlinkError {
    /// Returns the kernel's error number where it refused, as in `errno(3)`.
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
