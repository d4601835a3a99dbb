//! Specification of a filter: module, protocol, and granted functions.

use crate::codecs::Codecs;
use crate::connection::Failure;
use proxy_wasm::{Program, VmSpec};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

/// Protocol that a service's module filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// TCP connections.
    Tcp,
    /// HTTP/1.1 requests and responses.
    Http,
}

/// Functions of the node that are granted to a service.
#[derive(Clone, Copy, Debug, Default)]
pub struct Capabilities {
    /// [`content_coding::FUNCTION`]: coding of responses after the module.
    pub codes_responses: bool,
    /// [`REFLECT`](crate::REFLECT): shared streams, with these settings.
    pub reflects: Option<fanout::Settings>,
    /// True if server connections are kept for the next client of the same address.
    pub keeps_servers: bool,
}

/// Specification of a filter.
pub struct FilterSpec {
    /// Module.
    pub program: Program,
    /// Specification of its VMs, except the upstreams that it may call.
    pub vm: VmSpec,
    /// Protocol that it filters.
    pub kind: Kind,
    /// Policy for streams while the module is down.
    pub failure: Failure,
    /// Servers that it may call, by name.
    pub upstreams: BTreeMap<String, SocketAddr>,
    /// Granted functions of the node.
    pub capabilities: Capabilities,
    /// Source of codecs for [`TRANSCODE`](crate::TRANSCODE), if the module may use them.
    pub codecs: Option<Rc<dyn Codecs>>,
    /// Load of the processor in thousandths, as far as the owner knows it; determines coding
    /// levels.
    pub busy_permille: Rc<Cell<Option<u16>>>,
    /// Nanoseconds since 1970 at time 0 of the clock [`Io::now`](tcp_intercept::Io::now).
    pub real_offset_ns: u64,
}
