//! Netlink of one network namespace: links, addresses, routes, neighbours, traffic control,
//! nftables, and notifications of changes.
//!
//! ```text
//!  Netlink ──▶ link       devices: listing, creation, settings, removal
//!          ──▶ settings   settings of a device for forwarding
//!          ──▶ address    addresses, routes, neighbours
//!          ──▶ own        addresses of the machine itself
//!          ──▶ slow_path  rules, queueing disciplines, IPsec: features that need the kernel's path
//!          ──▶ rate       rate limit of a device (tbf)
//!          ──▶ redirect   redirection of a device's frames to another
//!  Diversion    ingress    frames diverted from the kernel
//!  Interception intercept marked TCP packets, to a listener here
//!                ├─▶ nftables: tables, chains, rules ─▶ attributes
//!                └─▶ marked: routes and rules of marked packets
//!  Monitor                notifications of changes
//!  netfilter_in_use       detection of netfilter, as slow_path's of other features
//!  offload                work that a driver does for the stack (ethtool)
//!
//!  all of netlink ─▶ Socket: one request, its answers, its acknowledgement
//! ```
//!
//! Messages are built from the types of `rtnetlink`, or where it has none from its generic
//! attributes (`attributes`); only the fixed headers of dumps, which are zeros, are written as
//! bytes here. Answers are parsed attribute by attribute where additions of newer kernels must not
//! be errors.
//!
//! Every function blocks, but only for the kernel's answer, which comes from memory within the
//! call: async code may call them as they are.

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
    Diversion, KnownDevice, close_ingress, close_names, open_ingress, table_of_ingress,
    table_of_names,
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

/// Error of a request to the kernel.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The kernel gave no socket.
    #[error("cannot open a netlink socket: {source}")]
    Open {
        /// Error of the kernel.
        source: io::Error,
    },
    /// The namespace could not be entered.
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    /// The kernel refused the request.
    #[error("cannot {request}: {source}{}", with_explanation(explanation))]
    Refused {
        /// Request, as a verb with its object.
        request: String,
        /// Error of the kernel.
        source: io::Error,
        /// Explanation by the kernel, often empty.
        explanation: String,
    },
    /// The socket failed, not the request.
    #[error("cannot {request}: the netlink socket failed: {source}")]
    Socket {
        /// Request, as a verb with its object.
        request: String,
        /// Error of the socket.
        source: io::Error,
    },
    /// The answer could not be parsed: the kernel is newer than this program, or faulty.
    #[error("cannot {request}: the kernel's answer is not understood: {problem}")]
    Malformed {
        /// Request, as a verb with its object.
        request: String,
        /// Fault of the answer.
        problem: String,
    },
    /// The kernel lacks a kind of device. The host's fault.
    #[error(
        "this kernel cannot make the network device '{name}': it lacks the kind '{kind}'; load the kernel's module '{module}', or boot a kernel that has it"
    )]
    NoKind {
        /// Name of the device that was to be created.
        name: String,
        /// Kind, as `ip link add type` names it.
        kind: &'static str,
        /// Kernel module that provides it.
        module: &'static str,
    },
    /// The device is up and has no carrier.
    #[error(
        "the network device '{device}' was set up and has no carrier after {patience:?}; is the other end of its link up?"
    )]
    NoCarrier {
        /// Name of the device.
        device: String,
        /// Time that it was given.
        patience: Duration,
    },
    /// The device does not exist.
    #[error(
        "there is no network device '{name}' in this network namespace; `ip link` lists those that exist"
    )]
    NoDevice {
        /// Name as given.
        name: String,
    },
}

fn with_explanation(explanation: &str) -> String {
    if explanation.is_empty() { String::new() } else { format!(" ({explanation})") }
}

impl NetlinkError {
    /// Returns the error number of a refusal, as in `errno(3)`.
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
