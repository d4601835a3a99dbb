//! Why something cannot be promised: of what, how much was asked, how much is left, and what to
//! change.

use core::fmt;

use units::{Bytes, Name, SessionId};

use crate::processor::VirtualProcessor;
use crate::reservation::ReservationError;
use crate::share::{Parts, Share, Time};
use crate::text::Size;

use super::ONE_CORE_PERIOD_MIN;

/// What a period is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeriodOf {
    /// A virtual processor.
    Processor,
    /// Time below user level.
    Below,
    /// A port.
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

/// Why a reservation is refused. The operator's fault, or that of nobody: there is no more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No node can have it.
    #[error(transparent)]
    Reservation(#[from] ReservationError),
    /// It was admitted before.
    #[error("the session {id} holds a reservation already; change that one")]
    Held {
        /// The session.
        id: SessionId,
    },
    /// It holds nothing that could be changed.
    #[error("the session {id} holds no reservation; admit one")]
    Unknown {
        /// The session.
        id: SessionId,
    },
    /// A period too short for a node with one core.
    #[error(
        "the period of {of} is {period}, and this node has one core, on which nothing is promised \
         in less than {}; take a longer period, or a machine with two cores",
        Time(ONE_CORE_PERIOD_MIN)
    )]
    OneCore {
        /// Of what.
        of: PeriodOf,
        /// What was asked for.
        period: Time,
    },
    /// More than any guest core has left.
    #[error(
        "the virtual processor {asked} is {} of a guest core; with that period {left} of one can \
         be promised yet, of {total}: {}",
        Parts(asked.share.parts_per_million()), advice(*fits)
    )]
    Processor {
        /// What was asked for.
        asked: VirtualProcessor,
        /// What is left of the core that has most, for this period.
        left: Parts,
        /// What was there to be promised, of each core.
        total: Parts,
        /// The longest slice of this period that there is.
        fits: Option<Share>,
    },
    /// More than the packet cores have left.
    #[error(
        "the time below user level, {asked}, is {} of a packet core; {left} can be promised yet, \
         of {total}: {}",
        Parts(asked.parts_per_million()), advice(*fits)
    )]
    Below {
        /// What was asked for.
        asked: Share,
        /// What is left.
        left: Parts,
        /// What was there to be promised, of all packet cores together.
        total: Parts,
        /// The longest slice of this period that there is.
        fits: Option<Share>,
    },
    /// More memory than is left.
    #[error(
        "{asked} of memory are asked for, and {left} are left of {total}{}; ask for that much, or \
         take some from another session",
        in_use(*rest)
    )]
    Memory {
        /// What was asked for.
        asked: Size,
        /// What is left.
        left: Size,
        /// What there is for sessions.
        total: Size,
        /// What of it sessions use that reserved none.
        rest: Size,
    },
    /// Less memory than it has in use, which cannot be taken back.
    #[error(
        "{asked} of memory are asked for, and the session uses {used}, which cannot be taken back \
         while it runs; ask for at least that, or remove some of its services"
    )]
    MemoryUsed {
        /// What was asked for.
        asked: Size,
        /// What it uses.
        used: Size,
    },
    /// A longer queue than packet memory is left for.
    #[error(
        "a queue of {asked} is asked for, and {left} are left of {total} of packet memory; ask \
         for that much, or take some from another session"
    )]
    Queue {
        /// What was asked for.
        asked: Size,
        /// What is left.
        left: Size,
        /// What there is for sessions.
        total: Size,
    },
    /// More than the port has left.
    #[error(
        "{asked} of the port '{port}' is {} of its rate; {left} can be promised yet, of {total}: {}",
        Parts(asked.parts_per_million()), advice(*fits)
    )]
    Port {
        /// The port.
        port: Name,
        /// What was asked for.
        asked: Share,
        /// What is left.
        left: Parts,
        /// What was there to be promised.
        total: Parts,
        /// The longest slice of this period that there is.
        fits: Option<Share>,
    },
    /// Less than a packet in each period.
    #[error(
        "{asked} of the port '{port}' is shorter than its longest packet, of {packet} bytes, which \
         is not cut; ask for a slice of at least {least}, or a longer period with a slice to match",
        packet = packet.0
    )]
    PortSlice {
        /// The port.
        port: Name,
        /// What was asked for.
        asked: Share,
        /// What its longest packet takes.
        least: Time,
        /// That packet.
        packet: Bytes,
    },
    /// A node on which nothing holds services to shares.
    #[error(
        "a share of the port '{port}' could not be held on this node: it has no front door (BPF), \
         so the kernel sends what services pass, and pays for nobody; start the node where XDP can \
         be loaded, or promise nothing of ports"
    )]
    PortUnheld {
        /// The port.
        port: Name,
    },
    /// A port that is not there.
    #[error("there is no port '{port}'; this node has {}", names(known))]
    PortUnknown {
        /// As given.
        port: Name,
        /// Those that there are.
        known: Vec<Name>,
    },
}

fn advice(fits: Option<Share>) -> String {
    match fits {
        Some(share) => format!("ask for at most {share}, or take some from another session"),
        None => "ask for a longer period, or take some from another session".to_owned(),
    }
}

fn in_use(rest: Size) -> String {
    match rest.0 {
        Bytes::ZERO => String::new(),
        _ => format!(", of which sessions that reserved none use {rest}"),
    }
}

fn names(known: &[Name]) -> String {
    if known.is_empty() {
        return "no ports".to_owned();
    }
    let quoted: Vec<String> = known.iter().map(|name| format!("'{name}'")).collect();
    quoted.join(", ")
}
