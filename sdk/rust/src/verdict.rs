//! What a service decided about one packet.

use crate::layout::verdict_code;

/// What a service decided about one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// To the next module of the graph; forward where the edge leads nowhere, as after the
    /// last one.
    Pass {
        /// 0 to 3: which of the modules that `tam deploy --then` named, in their order.
        edge: u8,
        /// The packet was re-addressed: look its route up again.
        reroute: bool,
    },
    /// Drop and count it.
    Drop {
        /// A number of your own; `[reasons]` in `module.toml` names it.
        reason: u16,
    },
    /// Out of the port that it came in by, MAC addresses swapped, nothing else.
    Bounce,
    /// Out of this port as it is.
    Redirect {
        /// From [`port`](crate::port), looked up in `on_start`.
        port: u16,
    },
    /// The same module at the next level up.
    Raise,
}

impl Verdict {
    /// To the next module; after the last one, forward by the route that the packet came with.
    pub const PASS: Self = Self::pass_by(0);

    /// To the module at this edge, 0 to 3; forward where it leads nowhere.
    #[must_use]
    pub const fn pass_by(edge: u8) -> Self {
        Self::Pass { edge, reroute: false }
    }

    /// The number that `on_packet` returns.
    #[must_use]
    pub const fn to_value(self) -> u32 {
        match self {
            Self::Pass { edge, reroute } => {
                let flag = if reroute { verdict_code::REROUTE_FLAG } else { 0 };
                verdict_code::PASS | flag | (edge as u32) << 16
            }
            Self::Drop { reason } => verdict_code::DROP | (reason as u32) << 16,
            Self::Bounce => verdict_code::BOUNCE,
            Self::Redirect { port } => verdict_code::REDIRECT | (port as u32) << 16,
            Self::Raise => verdict_code::RAISE,
        }
    }
}
