//! Refusals of admission control. Each names the resource, the amount requested, the amount left,
//! and what to change.

use core::fmt;

use units::{Bytes, Name, SessionId};

use crate::processor::VirtualProcessor;
use crate::reservation::ReservationError;
use crate::share::{Parts, Share, Time};
use crate::text::Size;

use super::ONE_CORE_PERIOD_MIN;

/// Resource that a refused period belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeriodOf {
    /// Virtual processor.
    Processor,
    /// Time of packet cores for in-kernel services.
    Below,
    /// Share of the named port.
    Port(Name),
}

impl fmt::Display for PeriodOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Processor => f.write_str("a virtual processor"),
            Self::Below => f.write_str("the time below user level"),
            Self::Port(name) => write!(f, "the port '{name}'"),
        }
    }
}

/// Reason why a reservation is refused. The operator's fault, or nobody's: the capacity is
/// exhausted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The reservation exceeds limits that hold on every node.
    #[error(transparent)]
    Reservation(#[from] ReservationError),
    /// The session holds a reservation already.
    #[error("the session {id} holds a reservation already; change that one")]
    Held {
        /// Number of the session.
        id: SessionId,
    },
    /// The session holds no reservation that could be changed.
    #[error("the session {id} holds no reservation; admit one")]
    Unknown {
        /// Number of the session.
        id: SessionId,
    },
    /// The period is too short for a node with one core.
    #[error(
        "the period of {of} is {period}, and this node has one core, on which periods are at least \
         {}; choose a longer period, or a machine with two cores",
        Time(ONE_CORE_PERIOD_MIN)
    )]
    OneCore {
        /// Resource that the period belongs to.
        of: PeriodOf,
        /// Requested period.
        period: Time,
    },
    /// No guest core has enough left for the virtual processor.
    #[error(
        "the virtual processor {requested} is {} of a guest core; with that period {left} of one core \
         can still be reserved, of {total}: {}",
        Parts(requested.share.parts_per_million()), advice(*fits)
    )]
    Processor {
        /// Requested virtual processor.
        requested: VirtualProcessor,
        /// Largest part of one core that can still be reserved with this period.
        left: Parts,
        /// Reservable part of each core.
        total: Parts,
        /// Longest slice of this period that would be admitted.
        fits: Option<Share>,
    },
    /// The packet cores have less left than requested.
    #[error(
        "the time below user level, {requested}, is {} of a packet core; {left} can still be \
         reserved, of {total}: {}",
        Parts(requested.parts_per_million()), advice(*fits)
    )]
    Below {
        /// Requested share.
        requested: Share,
        /// Unreserved part.
        left: Parts,
        /// Reservable part of all packet cores together.
        total: Parts,
        /// Longest slice of this period that would be admitted.
        fits: Option<Share>,
    },
    /// Less memory is left than requested.
    #[error(
        "{requested} of memory are requested, and {} of {} are left{}; request at most that, \
         or reduce another session's reservation",
        left.at_most(), total.rounded(), in_use(*unreserved)
    )]
    Memory {
        /// Requested memory.
        requested: Size,
        /// Unreserved memory.
        left: Size,
        /// Reservable memory.
        total: Size,
        /// Part of it in use by sessions without a memory reservation.
        unreserved: Size,
    },
    /// The session uses more memory than requested, and memory in use cannot be reclaimed.
    #[error(
        "{requested} of memory are requested, and the session uses {}, which cannot be reclaimed \
         while its services run; request at least that, or remove some of them",
        used.at_least()
    )]
    MemoryUsed {
        /// Requested memory.
        requested: Size,
        /// Memory in use.
        used: Size,
    },
    /// Less packet memory is left than the requested queue.
    #[error(
        "a queue of {requested} is requested, and {} of {} of packet memory are left; \
         request at most that, or reduce another session's reservation",
        left.at_most(), total.rounded()
    )]
    Queue {
        /// Requested queue.
        requested: Size,
        /// Unreserved packet memory.
        left: Size,
        /// Reservable packet memory.
        total: Size,
    },
    /// The port has less left than requested.
    #[error(
        "{requested} of the port '{port}' is {} of its rate; {left} can still be reserved, of \
         {total}: {}",
        Parts(requested.parts_per_million()), advice(*fits)
    )]
    Port {
        /// Name of the port.
        port: Name,
        /// Requested share.
        requested: Share,
        /// Unreserved part of its rate.
        left: Parts,
        /// Reservable part of its rate.
        total: Parts,
        /// Longest slice of this period that would be admitted.
        fits: Option<Share>,
    },
    /// The slice is shorter than the transmission time of the port's longest packet.
    #[error(
        "{requested} of the port '{port}' is shorter than the transmission time of its longest packet, \
         {packet} bytes, and packets are not fragmented; request a slice of at least {least}, or a \
         longer period with a slice to match",
        packet = packet.0
    )]
    PortSlice {
        /// Name of the port.
        port: Name,
        /// Requested share.
        requested: Share,
        /// Transmission time of the longest packet.
        least: Time,
        /// Length of the longest packet.
        packet: Bytes,
    },
    /// The node cannot enforce shares of ports, since it has no front door.
    #[error(
        "shares of the port '{port}' cannot be enforced on this node: it has no front door (BPF), \
         so the kernel sends services' packets and charges them to no session; start the node \
         where XDP can be loaded, or reserve no shares of ports"
    )]
    PortUnheld {
        /// Name of the port.
        port: Name,
    },
    /// The node has no port of that name.
    #[error("there is no port '{port}'; this node has {}", names(known))]
    PortUnknown {
        /// Requested port.
        port: Name,
        /// Ports of the node.
        known: Vec<Name>,
    },
}

fn advice(fits: Option<Share>) -> String {
    match fits {
        Some(share) => format!("request at most {share}, or reduce another session's reservation"),
        None => "request a longer period, or reduce another session's reservation".to_owned(),
    }
}

fn in_use(unreserved: Size) -> String {
    match unreserved.0 {
        Bytes::ZERO => String::new(),
        _ => format!(" (sessions without a reservation use {})", unreserved.rounded()),
    }
}

fn names(known: &[Name]) -> String {
    if known.is_empty() {
        return "no ports".to_owned();
    }
    let quoted: Vec<String> = known.iter().map(|name| format!("'{name}'")).collect();
    quoted.join(", ")
}
