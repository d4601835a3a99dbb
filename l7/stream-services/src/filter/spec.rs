//! Specification of a filter: its module, what that looks at, and what it may use.

use crate::codecs::Codecs;
use crate::connection::Failure;
use proxy_wasm::{Program, VmSpec};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

/// Protocol that a service's module looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// TCP connections.
    Tcp,
    /// Requests and responses of HTTP/1.1 on them.
    Http,
}

/// Functions of the node that are granted to a service.
#[derive(Clone, Copy, Debug, Default)]
pub struct Capabilities {
    /// [`content_coding::FUNCTION`]: responses are coded behind the module.
    pub codes_responses: bool,
    /// [`REFLECT`](crate::REFLECT): streams are shared, with these settings.
    pub reflects: Option<fanout::Settings>,
    /// Connections to servers are kept for the next client of the same address.
    pub keeps_servers: bool,
}

/// Parts of a filter.
pub struct FilterSpec {
    /// The module.
    pub program: Program,
    /// Start parameters of its VMs; the upstreams that it may call are those below.
    pub vm: VmSpec,
    /// Protocol that it looks at.
    pub kind: Kind,
    /// Policy for streams while it is down.
    pub failure: Failure,
    /// Servers that it may call, by name.
    pub upstreams: BTreeMap<String, SocketAddr>,
    /// Functions of the node beyond its ABI that it may use.
    pub capabilities: Capabilities,
    /// Source of codecs for [`TRANSCODE`](crate::TRANSCODE), if the module may have them.
    pub codecs: Option<Rc<dyn Codecs>>,
    /// Thousandths of the processor that everybody together has in use, as far as its owner
    /// knows: levels of coding are chosen by it.
    pub busy_permille: Rc<Cell<Option<u16>>>,
    /// Nanoseconds since 1970 when the clock of [`Io::now`](tcp_intercept::Io::now) was 0.
    pub real_offset_ns: u64,
}
