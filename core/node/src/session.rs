//! The sessions of a node: so far the two that every node has.
//!
//! Everything that runs or matches carries one from the first day on, so that
//! reservations can come without touching what exists.

use serde::{Deserialize, Serialize};
use units::{Name, SessionId};

/// Housekeeping and infrastructure: charged to nobody.
pub const SYSTEM: &str = "system";
/// Those who reserved nothing.
pub const BEST_EFFORT: &str = "best-effort";

/// A session as `tam session list` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Its number in maps and metadata.
    pub id: SessionId,
    /// Its name.
    pub name: Name,
}

/// The sessions that every node has.
#[must_use]
pub fn built_in() -> [Session; 2] {
    [
        Session { id: SessionId::SYSTEM, name: system() },
        Session { id: SessionId::BEST_EFFORT, name: best_effort() },
    ]
}

/// The name of the session of housekeeping and infrastructure.
#[must_use]
pub fn system() -> Name {
    constant(SYSTEM)
}

/// The name of the session for those who reserved nothing.
#[must_use]
pub fn best_effort() -> Name {
    constant(BEST_EFFORT)
}

fn constant(name: &'static str) -> Name {
    Name::new(name).expect("both constants above are lower-case letters and '-'")
}
