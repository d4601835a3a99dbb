//! Deployments: from a request to a service that runs and is recorded.
//!
//! ```text
//!  request ─▶ Deploy ─▶ waits until it runs ─▶ recorded ─▶ answered
//!                          └ refused: it did not start, was removed, or its capability ended
//! ```

use super::action::{Action, DeployedAnswer};
use super::edit::{self, Edit, RuleChanges};
use super::recorded::{Recorded, Waiting};
use super::recording::Facts;
use super::state::NodeState;
use super::{lacks, signatures};
use crate::access::Caller;
use crate::answer::{
    Answer, error, failed, level, name, quoted, session, stage, unexpected, usage,
};
use crate::reply::Reply;
use api::{DeployRequest, Deployed, ErrorCode, ErrorInfo, EventKind, Replaced};
use node::budget::{Budget, OverBudget};
use node::desired::DesiredService;
use node::{Action as RuleAction, Command, Outcome, RuleSpec};
use std::collections::{BTreeMap, BTreeSet};
use units::{Name, Nanos, RuleId};

/// Deployment that has begun.
pub(super) struct Begun {
    pub(super) service: Name,
    /// Rules of the service that no packet can reach, each with one that hides it.
    shadowed: Vec<(u32, u32)>,
    rules: RuleChanges,
    /// Version that it replaces.
    replaces: Option<Replaced>,
}

/// Requests for deployments that are not answered.
#[derive(Default)]
pub(crate) struct Deployments {
    /// Requests whose services do not run yet, by service.
    waiting: BTreeMap<Name, Waiting>,
    /// Services that run and are being recorded. Another version must not be mistaken for that one
    /// meanwhile.
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
        let since = state.now();
        let begun = match self.begin(state, is_called, caller, request) {
            Ok(begun) => begun,
            Err(refusal) => return reply.refuse(refusal),
        };
        let Begun { service, shadowed, rules, replaces } = begun;
        let level = request.level.as_deref().and_then(|text| level(text).ok());
        let (took, paused) = (Nanos::ZERO, Nanos::ZERO);
        let waiting = Waiting {
            reply,
            since,
            shadowed,
            rules,
            replaces,
            paused,
            took,
            service: service.clone(),
            level,
            failure: None,
        };
        self.waiting.insert(service, waiting);
    }

    /// Gives the node the command of a deployment.
    ///
    /// # Errors
    /// The request has a mistake, or the node refuses it.
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
        let before = edit::rule_ids_with(&state.node, &service);
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
            return Err(unexpected("a deployment"));
        };
        let rules = RuleChanges::between(&before, &rules);
        if replaces.is_none() {
            state.note_rules(EventKind::RulesAdded, &rules.added);
        }
        let replaces = replaces.map(|digest| Replaced {
            digest,
            state_kept: !request.discard_state,
            paused_us: 0,
        });
        Ok(Begun { service, shadowed: pairs(&shadowed), rules, replaces })
    }

    /// Notes the time for which packets waited for a new version.
    pub(super) fn handle_paused(&mut self, service: &Name, paused: Nanos) {
        if let Some(waiting) = self.waiting.get_mut(service) {
            waiting.paused = paused;
        }
    }

    /// Handles a service that runs as it was deployed: it is recorded, and answered then.
    pub(super) fn handle_running(&mut self, state: &mut NodeState, service: &Name) {
        let Some(mut waiting) = self.waiting.remove(service) else { return };
        waiting.took = state.now().saturating_sub(waiting.since);
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
    let Waiting { reply, took, shadowed, rules, service, replaces, paused, failure, .. } = waiting;
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
            if replaces.is_some() {
                state.note_rules(EventKind::RulesAdded, &rules.added);
                state.note_rules(EventKind::RulesRemoved, &rules.removed);
            }
            let paused_us = paused.0 / 1000;
            let replaced = replaces.map(|replaced| Replaced { paused_us, ..replaced });
            let answer = DeployedAnswer { service, took, shadowed, lacks, rules, replaced, reply };
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

#[cfg(test)]
mod tests {
    use super::super::change::Change;
    use super::super::testbed::{MODULES, Testbed, deploy, digest};
    use super::*;
    use node::Event;

    fn asked(bed: &mut Testbed, request: DeployRequest) -> crate::reply::Awaited<Deployed> {
        bed.ask(|reply| Change::Deploy(Box::new(request), reply))
    }

    fn with_rule(request: DeployRequest) -> DeployRequest {
        DeployRequest { rules: vec!["dst 10.0.0.0/8".to_owned()], ..request }
    }

    fn code<T>(awaited: &mut crate::reply::Awaited<T>) -> Option<ErrorCode> {
        awaited.try_answer().and_then(|answer| answer.err().map(|refusal| refusal.code))
    }

    #[test]
    fn a_service_is_answered_once_it_runs_and_is_recorded() {
        let mut bed = Testbed::new();
        let mut awaited = asked(&mut bed, with_rule(deploy("monitor", 4)));
        assert!(!bed.is_writing(), "it does not run yet");
        assert!(!bed.control.is_idle());
        bed.starts("monitor");
        assert!(bed.is_writing() && bed.deployed.is_empty() && !bed.is_desired("monitor"));
        bed.write();
        assert!(bed.is_desired("monitor") && bed.desired_rules() == 1 && bed.control.is_idle());
        let answer = bed.deployed.pop().unwrap();
        assert_eq!((answer.service.as_str(), answer.replaced), ("monitor", None));
        assert!(awaited.try_answer().is_none(), "the daemon adds the service's document");
    }

    #[test]
    fn the_answer_names_the_rules_that_came_and_went() {
        let mut bed = Testbed::new();
        let rules = |texts: &[&str], module| DeployRequest {
            rules: texts.iter().map(|text| (*text).to_owned()).collect(),
            ..deploy("monitor", module)
        };
        let _asked = asked(&mut bed, rules(&["proto icmp", "proto udp"], 4));
        bed.starts("monitor");
        bed.write_all();
        let changes = bed.deployed.pop().unwrap().rules;
        assert_eq!(changes, RuleChanges { added: vec![0, 1], removed: vec![] });
        let entry = bed.entry("monitor");
        let mut replaced = |request| {
            let _asked = asked(&mut bed, request);
            bed.event(Event::ServiceReplaced { entry });
            bed.event(Event::ServiceKept { entry });
            bed.write_all();
            bed.deployed.pop().unwrap().rules
        };
        let changes = replaced(rules(&["proto udp", "proto tcp"], 5));
        assert_eq!(changes, RuleChanges { added: vec![2], removed: vec![0] });
        assert_eq!(replaced(rules(&[], 4)), RuleChanges::default(), "it keeps them");
        let kinds = bed.notes.drain(..).map(|note| note.into_event(0, 0).0.kind);
        let kinds: Vec<_> = kinds.filter(|kind| kind.name().starts_with("rules_")).collect();
        let expected = [EventKind::RulesAdded, EventKind::RulesAdded, EventKind::RulesRemoved];
        assert_eq!(kinds, expected);
    }

    #[test]
    fn a_new_service_that_cannot_be_recorded_is_removed_again_with_what_leads_to_it() {
        let mut bed = Testbed::new();
        let mut awaited = asked(&mut bed, with_rule(deploy("monitor", 4)));
        bed.starts("monitor");
        let rule = api::RuleRequest::new("dst 11.0.0.0/8", "service monitor");
        let request = api::RulesRequest { rules: vec![rule] };
        let mut added = bed.ask(|reply| Change::AddRules(request, reply));
        bed.fail_write();
        assert_eq!(code(&mut awaited), Some(ErrorCode::Failed));
        assert!(bed.control.node().numbered_rules().is_empty());
        // The rule was added to a service that was there then.
        bed.write();
        assert!(added.try_answer().is_some_and(|answer| answer.is_ok()));
        assert_eq!(bed.desired_rules(), 0, "nor does it come back with a start");
        bed.stops("monitor");
        assert!(bed.control.node().service(&Name::new("monitor").unwrap()).is_none());
    }

    #[test]
    fn a_name_is_deployed_once_at_a_time_until_it_is_recorded() {
        let mut bed = Testbed::new();
        let _first = asked(&mut bed, deploy("monitor", 4));
        for is_running in [false, true] {
            if is_running {
                bed.starts("monitor");
            }
            let refusal = asked(&mut bed, deploy("monitor", 5)).try_answer().unwrap().unwrap_err();
            assert!(refusal.message.contains("is being deployed already"), "{}", refusal.message);
        }
        bed.write();
        let mut second = asked(&mut bed, deploy("monitor", 5));
        assert!(second.try_answer().is_none());
    }

    #[test]
    fn a_new_version_that_cannot_be_recorded_runs_on_and_whoever_deployed_it_is_told() {
        let mut bed = Testbed::new();
        bed.run("monitor");
        let mut awaited = asked(&mut bed, deploy("monitor", 5));
        let entry = bed.entry("monitor");
        bed.event(Event::ServiceReplaced { entry });
        assert!(!bed.is_writing(), "it is watched first");
        bed.control.handle_paused(&Name::new("monitor").unwrap(), Nanos(7_000));
        bed.event(Event::ServiceKept { entry });
        bed.fail_write();
        let refusal = awaited.try_answer().unwrap().unwrap_err();
        assert_eq!(refusal.code, ErrorCode::Partial);
        assert!(!refusal.message.contains("nothing has changed"), "{}", refusal.message);
        let desired =
            &bed.control.state().desired().state().services[&Name::new("monitor").unwrap()];
        assert_eq!(desired.digest, digest(&MODULES[4]).to_string());
        let present = bed.control.node().service(&Name::new("monitor").unwrap()).unwrap();
        assert_eq!(present.module.digest, digest(&MODULES[5]).to_string());
    }

    #[test]
    fn a_version_that_fails_or_is_put_back_is_refused_and_not_recorded() {
        let mut bed = Testbed::new();
        bed.run("monitor");
        let entry = bed.entry("monitor");
        let reason = || "no room".to_owned();
        let mut awaited = asked(&mut bed, deploy("monitor", 5));
        bed.control.handle_event(Event::ReplaceFailed { entry, reason: reason() }, true);
        bed.settle();
        assert_eq!(code(&mut awaited), Some(ErrorCode::Limit), "there is not enough of something");
        let mut awaited = asked(&mut bed, deploy("monitor", 5));
        bed.event(Event::ServiceReplaced { entry });
        bed.event(Event::ServicePutBack { entry, reason: reason() });
        assert_eq!(code(&mut awaited), Some(ErrorCode::Failed));
        assert!(!bed.is_writing());
    }

    #[test]
    fn a_version_in_the_place_of_one_that_failed_is_recorded_though_it_fails_too() {
        let mut bed = Testbed::new();
        bed.run("monitor");
        let entry = bed.entry("monitor");
        let fails = |bed: &mut Testbed| {
            bed.event(Event::ServiceFailed { entry, reason: "no memory".to_owned() });
        };
        fails(&mut bed);
        let mut awaited = asked(&mut bed, deploy("monitor", 5));
        bed.wait(10_000);
        fails(&mut bed);
        assert!(awaited.try_answer().is_none());
        bed.write();
        assert_eq!(code(&mut awaited), Some(ErrorCode::Failed));
        let desired =
            &bed.control.state().desired().state().services[&Name::new("monitor").unwrap()];
        assert_eq!(desired.digest, digest(&MODULES[5]).to_string(), "the node tries that again");
    }

    #[test]
    fn a_request_with_a_mistake_changes_nothing() {
        let mut bed = Testbed::new();
        let wrong = |change: fn(&mut DeployRequest)| {
            let mut request = deploy("monitor", 4);
            change(&mut request);
            request
        };
        let requests = [
            wrong(|it| it.name = Some("no name".to_owned())),
            wrong(|it| it.level = Some("moon".to_owned())),
            wrong(|it| it.rules = vec!["dst nowhere".to_owned()]),
            wrong(|it| it.on_failure = Some("perhaps".to_owned())),
            with_rule(wrong(|it| it.stage = Some("behind".to_owned()))),
            wrong(|it| {
                let over = Some("weep".to_owned());
                it.budget = Some(api::Budget { over, ..api::Budget::default() });
            }),
        ];
        for request in requests {
            let shown = format!("{request:?}");
            assert_eq!(code(&mut asked(&mut bed, request)), Some(ErrorCode::Usage), "{shown}");
        }
        let request = DeployRequest { module: "nothing".to_owned(), ..deploy("monitor", 4) };
        assert_eq!(code(&mut asked(&mut bed, request)), Some(ErrorCode::NotFound));
        assert_eq!((bed.control.node().services().count(), bed.is_writing()), (0, false));
    }
}
