//! Context of a change of deployments, and parts of the request.

use std::collections::BTreeMap;

use abi::Level;
use units::{Name, Nanos};

use super::effects::Effects;
use super::sessions::Sessions;
use crate::budget::Budget;
use crate::command::Memory;
use crate::owner::Owner;
use crate::policy::OnFailure;
use crate::port::Port;
use crate::refusal::Refusal;
use crate::rule::RuleSpec;
use crate::service::ModuleInfo;

/// Context of one change: the node's other owners, lent for the call.
pub(super) struct Context<'a> {
    pub(super) now: Nanos,
    pub(super) ports: &'a [Port],
    pub(super) sessions: &'a Sessions,
    /// True if the cell is ready for work.
    pub(super) is_ready: bool,
    pub(super) out: &'a mut Effects,
}

/// Service as a deploy requests it.
pub(super) struct ServiceRequest {
    pub(super) service: Name,
    pub(super) module: ModuleInfo,
    pub(super) parameters: BTreeMap<String, String>,
    pub(super) session: Name,
    pub(super) rules: Vec<RuleSpec>,
    pub(super) level: Option<Level>,
    pub(super) then: Vec<Name>,
    pub(super) budget: Budget,
    pub(super) on_failure: OnFailure,
    pub(super) memory: Memory,
    pub(super) owner: Option<Owner>,
}

/// Parts of a service that differ from one version to the next.
pub(super) struct Version {
    pub(super) module: ModuleInfo,
    pub(super) parameters: BTreeMap<String, String>,
    pub(super) level: Option<Level>,
    pub(super) memory: Memory,
}

/// Refuses a module that declares none of the levels that a node has; whether it fits one of them
/// is known when it starts.
pub(super) fn check_levels(module: &ModuleInfo) -> Result<(), Refusal> {
    let levels = &module.manifest.levels;
    if levels.iter().all(|&level| level == Level::Cluster) {
        let module = module.manifest.name.clone();
        return Err(Refusal::Level { module, levels: levels.clone() });
    }
    Ok(())
}

/// Refuses a rule that comes with a service and does not lead to it.
pub(super) fn check_leads_to(spec: &RuleSpec, came_with: Option<&Name>) -> Result<(), Refusal> {
    match came_with {
        Some(service) if spec.action.service() != Some(service) => Err(Refusal::ActionElsewhere {
            text: spec.r#match.to_string(),
            service: service.clone(),
            action: spec.action.clone(),
        }),
        _ => Ok(()),
    }
}
