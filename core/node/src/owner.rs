//! Owners of services, rules and sessions, as numbers. The node only stores and passes them on; the
//! daemon knows which key and which token they stand for.

use serde::{Deserialize, Serialize};

/// Owner of a service, rule or session. Objects of the operator have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Owner {
    /// Principal that pays, and whose packets they are.
    pub principal: PrincipalId,
    /// Capability that permitted it; if it is revoked, the object is removed.
    pub capability: CapabilityId,
}

/// Number of a principal on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PrincipalId(pub u32);

/// Number of a capability on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CapabilityId(pub u32);

/// Returns true if both have the same principal, or both are the operator's.
#[must_use]
pub fn same_principal(one: Option<Owner>, other: Option<Owner>) -> bool {
    one.map(|owner| owner.principal) == other.map(|owner| owner.principal)
}
