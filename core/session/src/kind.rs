//! Classes of scheduled work: guaranteed, extra and best effort.

use serde::{Deserialize, Serialize};

/// Class of a time slot on a processor or on a port: what entitles its holder to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Part of the slice reserved for the current period.
    Guaranteed,
    /// Surplus given to a session whose reserved slice is used up.
    Extra,
    /// Surplus given to a session without a reservation, or whose reservation has not begun.
    BestEffort,
}
