//! Documents of `GET /v1/services`.

use super::rules::rules_by_service;
use crate::answer::Answer;
use crate::control::authority::Visibility;
use crate::control::deployments::numbers;
use crate::observe::counters::service_stats;
use crate::observe::view::View;
use ::node::budget::{Budget, OverBudget};
use ::node::{Service, ServiceState};
use api::{SCHEMA_VERSION, ServiceInfo, ServiceList};

/// Returns the services that a client may see.
pub(crate) fn seen_services(view: &View<'_>, sight: &Visibility) -> ServiceList {
    let seen = view.node.services().filter(|it| sight.has(it.session.as_str(), it.owner));
    let services = service_infos(view, seen);
    ServiceList { schema_version: SCHEMA_VERSION, services }
}

/// Returns one service by a client's word for it.
///
/// # Errors
/// The service does not exist.
pub(crate) fn find_service(view: &View<'_>, wanted: &str) -> Answer<ServiceInfo> {
    let service = view.state.find(wanted)?;
    Ok(service_info(view, service, numbers(&view.state.rules_to(&service.name))))
}

/// Returns the documents of services.
pub(in crate::observe) fn service_infos<'a>(
    view: &View<'_>,
    services: impl Iterator<Item = &'a Service>,
) -> Vec<ServiceInfo> {
    let mut rules = rules_by_service(view.node);
    let info = |it: &Service| service_info(view, it, rules.remove(&it.name).unwrap_or_default());
    services.map(info).collect()
}

fn service_info(view: &View<'_>, service: &Service, rules: Vec<u32>) -> ServiceInfo {
    let manifest = &service.module.manifest;
    let values = manifest.values(&service.parameters).unwrap_or_default();
    let (state, reason) = match &service.state {
        ServiceState::Starting => ("starting", None),
        ServiceState::Running => ("running", None),
        ServiceState::Failed { reason } => ("failed", Some(reason.clone())),
        ServiceState::Bypassed { reason } => ("bypassed", Some(reason.clone())),
        ServiceState::Stopping => ("stopping", None),
    };
    ServiceInfo {
        name: service.name.to_string(),
        digest: service.module.digest.clone(),
        module: manifest.name.to_string(),
        version: manifest.version.clone(),
        description: manifest.description.clone(),
        session: service.session.to_string(),
        owner: view.state.authority().shown(service.owner),
        level: service.level.name().to_owned(),
        level_reason: service.level_reason.clone(),
        state: state.to_owned(),
        reason,
        restarts: service.restarts,
        entry: service.entry.0,
        lanes: match manifest.lanes {
            abi::Lanes::Count(count) => count,
            abi::Lanes::PerCore => 1,
        },
        parameters: values.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect(),
        rules,
        budget: (service.budget != Budget::default()).then(|| budget_shown(&service.budget)),
        on_failure: service.on_failure.to_string(),
        then: service.then.iter().map(|(edge, next)| (*edge, next.to_string())).collect(),
        stats: service_stats(view, service),
    }
}

fn budget_shown(budget: &Budget) -> api::Budget {
    let over = match budget.over {
        OverBudget::Drop => "drop",
        OverBudget::Raise => "raise",
    };
    let (fuel, packets, bytes) = (budget.fuel, budget.packets, budget.bytes);
    api::Budget { fuel, packets, bytes, over: Some(over.to_owned()) }
}
