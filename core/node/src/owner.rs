//! Whose something is. The node keeps the numbers and hands them on; which key and which token
//! they stand for, whoever gives the commands knows.

use serde::{Deserialize, Serialize};

/// For whom a service runs or a rule stands. What the operator wants has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Owner {
    /// Who pays, and whose packets they are.
    pub principal: PrincipalId,
    /// Under which capability it came: what is revoked takes it along.
    pub capability: CapabilityId,
}

/// The number of a principal on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PrincipalId(pub u32);

/// The number of a capability on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CapabilityId(pub u32);

/// Whether two things are the same principal's, or both the operator's.
#[must_use]
pub fn same_principal(one: Option<Owner>, other: Option<Owner>) -> bool {
    one.map(|owner| owner.principal) == other.map(|owner| owner.principal)
}
