//! Deployments: from a request to a service that runs and is recorded.
//!
//! ```text
//!  request ─▶ Deploy ─▶ waits until it runs ─▶ recorded ─▶ answered
//!                          └ refused: it did not start, was removed, or its capability ended
//! ```

use super::action::{Action, DeployedAnswer};
use super::edit::{self, Edit};
use super::recorded::{Recorded, Waiting};
use super::recording::Facts;
use super::state::NodeState;
use super::{lacks, signatures};
use crate::access::Caller;
use crate::answer::{Answer, error, failed, level, name, quoted, session, stage, usage};
use crate::reply::Reply;
use api::{DeployRequest, Deployed, ErrorCode, ErrorInfo, EventKind, Replaced};
use node::budget::{Budget, OverBudget};
use node::desired::DesiredService;
use node::{Action as RuleAction, Command, Outcome, RuleSpec};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use units::{Name, RuleId};

/// Deployment that has begun.
pub(super) struct Begun {
    pub(super) service: Name,
    /// Its rules that no packet can reach, each with one that hides it.
    shadowed: Vec<(u32, u32)>,
    /// Version whose place it takes.
    replaces: Option<Replaced>,
}

/// Requests for deployments that are not answered.
#[derive(Default)]
pub(crate) struct Deployments {
    /// Requests whose services do not run yet, by service.
    waiting: BTreeMap<Name, Waiting>,
    /// Services that run and are being recorded. Another version would have to be told from that
    /// one by then.
    recording: BTreeSet<Name>,
}

impl Deployments {
    /// Returns true when no request waits for a service to run.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Handles a request to deploy a service.
    pub(super) fn handle_request(
        &mut self,
        state: &mut NodeState,
        is_called: &dyn Fn(&Name) -> bool,
        caller: &Caller,
        request: &DeployRequest,
        reply: Reply<Deployed>,
    ) {
        let since = Instant::now();
        let begun = match self.begin(state, is_called, caller, request) {
            Ok(begun) => begun,
            Err(refusal) => return reply.refuse(refusal),
        };
        let Begun { service, shadowed, replaces } = begun;
        let level = request.level.as_deref().and_then(|text| level(text).ok());
        let (took_ms, paused_us) = (0, 0);
        let waiting = Waiting {
            reply,
            since,
            shadowed,
            replaces,
            paused_us,
            took_ms,
            service: service.clone(),
            level,
            failure: None,
        };
        self.waiting.insert(service, waiting);
    }

    /// Gives the node the command of a deployment.
    ///
    /// # Errors
    /// When the request has a mistake, or the node refuses it.
    pub(super) fn begin(
        &self,
        state: &mut NodeState,
        is_called: &dyn Fn(&Name) -> bool,
        caller: &Caller,
        request: &DeployRequest,
    ) -> Answer<Begun> {
        state.check_billing()?;
        let digest = state.modules.resolve(&request.module)?;
        if state.modules.code(&digest, state.bpf_now()).is_some() {
            state.push(Action::ExpectService);
        }
        let mut module = state.modules.hold(&digest)?;
        if !request.allow_older {
            signatures::check_version(state, &digest)?;
        }
        if !matches!(caller, Caller::Operator) {
            // What it imports was granted, and nothing else is linked.
            let imports = module.imports;
            module = module.with_functions(imports);
        }
        let service = match &request.name {
            Some(text) => name(text)?,
            None => module.manifest.name.clone(),
        };
        if is_called(&service) {
            let message = format!("'{service}' is the name of a service that packets have called");
            return Err(error(ErrorCode::Refused, message, Some("give the service another one")));
        }
        if self.waiting.contains_key(&service) || self.recording.contains(&service) {
            let message = format!("'{service}' is being deployed already; try again in a second");
            return Err(failed(message));
        }
        let session = session(request.session.as_deref())?;
        let wanted_level = request.level.as_deref().map(level).transpose()?;
        let rule = |text: &String| {
            let action = RuleAction::Service(service.clone());
            let mut spec = RuleSpec::new(text.parse().map_err(usage)?, action);
            spec.session = session.clone();
            spec.priority = request.priority.unwrap_or(spec.priority);
            spec.stage = stage(request.stage.as_deref())?;
            Ok(spec)
        };
        let rules = request.rules.iter().map(rule).collect::<Answer<_>>()?;
        let on_failure = match &request.on_failure {
            Some(text) => text.parse().map_err(usage)?,
            // Like its rules.
            None => state.node.service(&service).map(|it| it.on_failure).unwrap_or_default(),
        };
        state.prefer_reusable(&digest);
        let owner = state.owner_of(caller);
        let command = Command::Deploy {
            service: service.clone(),
            module,
            parameters: request.parameters.clone(),
            session,
            rules,
            level: wanted_level,
            budget: request.budget.as_ref().map(budget).transpose()?.unwrap_or_default(),
            then: request.then.iter().map(|next| name(next)).collect::<Answer<_>>()?,
            on_failure,
            discard_state: request.discard_state,
            owner,
        };
        let outcome = state.command_of(caller, command)?;
        let Outcome::Deployed { shadowed, rules, replaces, .. } = outcome else {
            return Err(failed("the node answered a deployment with something else"));
        };
        if replaces.is_none() {
            state.note_rules(EventKind::RulesAdded, &numbers(&rules));
        }
        let replaces = replaces.map(|digest| Replaced {
            digest,
            state_kept: !request.discard_state,
            paused_us: 0,
        });
        Ok(Begun { service, shadowed: pairs(&shadowed), replaces })
    }

    /// Notes the microseconds for which packets waited for a new version.
    pub(super) fn handle_paused(&mut self, service: &Name, paused_us: u64) {
        if let Some(waiting) = self.waiting.get_mut(service) {
            waiting.paused_us = paused_us;
        }
    }

    /// Handles a service that runs as it was deployed: it is recorded, and answered then.
    pub(super) fn handle_running(&mut self, state: &mut NodeState, service: &Name) {
        let Some(mut waiting) = self.waiting.remove(service) else { return };
        waiting.took_ms = super::apply::millis(waiting.since);
        self.record(state, service, waiting);
    }

    /// Handles a service that failed and is tried again: the version before does not come back, so
    /// the one that was to take its place is recorded, and the deployment refused.
    pub(super) fn handle_failed(
        &mut self,
        state: &mut NodeState,
        service: &Name,
        refusal: ErrorInfo,
    ) {
        let Some(mut waiting) = self.waiting.remove(service) else { return };
        if waiting.replaces.is_none() {
            return waiting.reply.refuse(refusal);
        }
        waiting.failure = Some(refusal);
        self.record(state, service, waiting);
    }

    fn record(&mut self, state: &mut NodeState, service: &Name, waiting: Waiting) {
        let Some(present) = state.node.service(service) else { return };
        let desired = DesiredService::of(present, waiting.level);
        let rules = edit::rules_with(&state.node, service);
        let facts = Facts::of(format!("deploy {service}"));
        let edit = Edit::Deploy(service.clone(), Box::new(desired), rules);
        self.recording.insert(service.clone());
        state.record(facts, edit, Recorded::Deployed(Box::new(waiting)));
    }

    /// Answers a deployment that is recorded, or could not be.
    pub(super) fn handle_recorded(
        &mut self,
        state: &mut NodeState,
        waiting: Waiting,
        written: Answer<()>,
    ) {
        self.recording.remove(&waiting.service);
        answer(state, waiting, written);
    }

    /// Refuses a deployment that waits.
    pub(super) fn refuse(&mut self, service: &Name, refusal: ErrorInfo) {
        if let Some(waiting) = self.waiting.remove(service) {
            waiting.reply.refuse(refusal);
        }
    }
}

/// Answers a deployment that is recorded; a new service that could not be recorded is removed
/// again.
fn answer(state: &mut NodeState, waiting: Waiting, written: Answer<()>) {
    let Waiting { reply, took_ms, shadowed, service, replaces, paused_us, failure, .. } = waiting;
    let is = if failure.is_some() { "is tried again" } else { "runs" };
    let problem = match (written, failure) {
        (Ok(()), Some(failure)) => return reply.refuse(failure),
        (Ok(()), None) => {
            state.desired.shortfall_mut().services.remove(&service);
            let Some(present) = edit::present(&state.node, &service) else {
                return reply.refuse(failed(format!("the service '{service}' was removed")));
            };
            let lacks = lacks::of_service(&state.modules, present);
            let digest = present.module.digest.parse();
            signatures::mark_versions(state, digest);
            let replaced = replaces.map(|replaced| Replaced { paused_us, ..replaced });
            let answer = DeployedAnswer { service, took_ms, shadowed, lacks, replaced, reply };
            return state.push(Action::AnswerDeployed(Box::new(answer)));
        }
        (Err(problem), _) => problem,
    };
    if replaces.is_none() {
        // It is gone already if that is refused.
        let _ = state.command(Command::Remove { service, cascade: true });
        return reply.refuse(problem);
    }
    // The version before cannot be had back with what this one has learnt since.
    reply.refuse(ErrorInfo {
        code: ErrorCode::Partial,
        message: format!(
            "the new version of '{service}' {is}, but a start of the node would begin with the one before: {}",
            problem.message.trim_end_matches(super::desired::NOTHING_CHANGED)
        ),
        help: problem.help,
    });
}

/// Returns rules that others hide as pairs of their numbers.
pub(super) fn pairs(shadowed: &[(RuleId, RuleId)]) -> Vec<(u32, u32)> {
    shadowed.iter().map(|(rule, by)| (rule.0, by.0)).collect()
}

/// Returns the numbers of rules.
pub(crate) fn numbers(rules: &[RuleId]) -> Vec<u32> {
    rules.iter().map(|rule| rule.0).collect()
}

fn budget(wanted: &api::Budget) -> Answer<Budget> {
    let over = match wanted.over.as_deref() {
        None | Some("raise") => OverBudget::Raise,
        Some("drop") => OverBudget::Drop,
        Some(other) => {
            let other = quoted(other);
            return Err(usage(format!("over budget there is drop and raise, not '{other}'")));
        }
    };
    Ok(Budget { fuel: wanted.fuel, packets: wanted.packets, bytes: wanted.bytes, over })
}
