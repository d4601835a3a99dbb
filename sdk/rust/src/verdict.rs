//! Verdicts of a service on packets.

use crate::layout::verdict_code;

/// Verdict of a service on one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Pass to the next module of the graph; forward if the edge leads nowhere, as after the last
    /// one.
    Pass {
        /// Edge 0 to 3: index of the modules that `tam deploy --then` named.
        edge: u8,
        /// True if the packet was re-addressed and needs a new route lookup.
        reroute: bool,
    },
    /// Drop and count it.
    Drop {
        /// Reason of your own, named by `[reasons]` in `module.toml`.
        reason: u16,
    },
    /// Send out of the arrival port, with MAC addresses swapped and no other change.
    Bounce,
    /// Send out of this port unchanged.
    Redirect {
        /// Number from [`port`](crate::port), looked up in `on_start`.
        port: u16,
    },
    /// Pass to the same module at the next level up.
    Raise,
}

impl Verdict {
    /// Passes to the next module; after the last one, forwards by the route that the packet came
    /// with.
    pub const PASS: Self = Self::pass_by(0);

    /// Passes to the module at this edge, 0 to 3; forwards if it leads nowhere.
    #[must_use]
    pub const fn pass_by(edge: u8) -> Self {
        Self::Pass { edge, reroute: false }
    }

    /// Returns the number for `on_packet`'s result.
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
