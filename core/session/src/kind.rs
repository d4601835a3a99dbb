//! On whose account somebody is given something.

use serde::{Deserialize, Serialize};

/// Why somebody is given time of a processor or of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// It was promised, and is the slice of its running period.
    Guaranteed,
    /// It has a promise whose slice is used up, and a part of what nobody reserved or uses.
    Extra,
    /// It has no promise, or one that has not begun.
    BestEffort,
}
