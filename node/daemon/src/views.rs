//! Requests of the API, and the documents that answer them.

use crate::access::Caller;
use crate::authority::Sight;
use crate::cells::{AfterReport, CellNumber};
use crate::control::recording::Facts;
use crate::daemon::{Daemon, Request, Waiting};
use crate::dataplane::ports;
use crate::deploy::Module;
use crate::edit::Edit;
use crate::events::Note;
use crate::http::{Answer, error};
use crate::recorded::{Ahead, Purpose, Recorded};
use crate::reply::Reply;
use crate::state::NOTHING_CHANGED;
use abi::Level;
use api::{
    Deployed, ErrorCode, ErrorInfo, EventKind, NodeInfo, PortInfo, Removed, RuleInfo, RuleList,
    RuleRemoved, RulesAdded, SCHEMA_VERSION, ServiceInfo, ServiceList, SessionInfo,
};
use cell::protocol::ToCell;
use module_store::Digest;
use node::desired::DesiredRule;
use node::state::CellState;
use node::{Action, Command, ModuleInfo, Outcome, Owner, RuleSpec, Service, ServiceState};
use std::time::{Duration, Instant};
use units::{Name, RuleId};

/// Longest wait of a handover for changes to end: a new version is watched for half a second.
const SETTLED_WITHIN: Duration = Duration::from_secs(3);

/// A mistake in a request.
pub(crate) fn usage(problem: impl std::fmt::Display) -> ErrorInfo {
    error(ErrorCode::Usage, problem.to_string(), None)
}

/// The node's own doing, or the host's.
pub(crate) fn failed(problem: impl std::fmt::Display) -> ErrorInfo {
    error(ErrorCode::Failed, problem.to_string(), None)
}

pub(crate) fn name(text: &str) -> Answer<Name> {
    Name::new(text).map_err(usage)
}

fn pairs(shadowed: &[(RuleId, RuleId)]) -> Vec<(u32, u32)> {
    shadowed.iter().map(|(rule, by)| (rule.0, by.0)).collect()
}

fn numbers(rules: &[RuleId]) -> Vec<u32> {
    rules.iter().map(|rule| rule.0).collect()
}

/// A deployment that has begun: the service, its rules that no packet can reach, and the version
/// whose place it takes.
pub(crate) type Begun = (Name, Vec<(u32, u32)>, Option<api::Replaced>);

impl Daemon {
    /// Answers a request, now or when what it needs has come. Whoever no
    /// longer waits for the answer does not get it.
    pub(crate) fn answer(&mut self, caller: Caller, request: Request) {
        match request {
            Request::Node(reply) => {
                let sight = self.sight(&caller);
                reply.ok(self.node_info(&sight));
            }
            Request::Services(reply) => {
                let sight = self.sight(&caller);
                self.after_report(AfterReport::Services(sight, reply));
            }
            Request::Service(wanted, reply) => {
                self.after_report(AfterReport::Service(wanted, reply));
            }
            Request::Deploy(request, reply) => self.deploy(&caller, *request, reply),
            Request::Remove(wanted, cascade, reply) => self.remove(&wanted, cascade, reply),
            Request::Move(wanted, request, reply) => self.start_move(&wanted, &request, reply),
            Request::Bpf(request, reply) => self.switch_bpf(request.enabled, reply),
            Request::Message(wanted, message, reply) => self.message(&wanted, &message, reply),
            Request::Rules(reply) => {
                let sight = self.sight(&caller);
                reply.answer(self.rule_list(&sight));
            }
            Request::AddRules(request, reply) => self.add_rules(&caller, &request, reply),
            Request::RemoveRule(rule, reply) => self.remove_rule(rule, reply),
            Request::Events(since, wait, reply) => {
                let sight = self.sight(&caller);
                self.events(since, wait, sight, reply);
            }
            Request::BeginCapture(request, reply) => {
                reply.answer(self.begin_capture(&request));
            }
            Request::Captured(id, wait, reply) => self.captured(id, wait, reply),
            Request::EndCapture(id, reply) => self.end_capture(id, reply),
            Request::Metrics(reply) => self.after_report(AfterReport::Metrics(reply)),
            Request::Why(reply) => {
                let sight = self.sight(&caller);
                reply.ok(self.why_list(&sight));
            }
            Request::Explain(request, reply) => self.explain(&request, reply),
            Request::Modules(reply) => reply.answer(self.module_list(&caller)),
            Request::PutModule(wasm, early, reply) => self.put_module(wasm, early, reply),
            Request::MayPull(_, reply) => reply.ok(()),
            Request::WantPull(digest, hops, reply) => {
                self.want_for_pull(caller, digest, hops, reply);
            }
            Request::AddSignatures(wanted, request, reply) => {
                self.add_signatures(&wanted, &request, reply);
            }
            Request::Stats(reply) => {
                let sight = self.sight(&caller);
                self.after_report(AfterReport::Stats(sight, reply));
            }
            Request::Revoke(request, reply) => self.revoke(&request, reply),
            Request::Revocations(reply) => reply.ok(self.revocations()),
            Request::Backup(reply) => self.backup(reply),
            Request::Desired(reply) => self.desired_info(reply),
            Request::Apply(request, reply) => self.apply(&request, reply),
            Request::Confirm(reply) => self.confirm(reply),
            Request::Rollback(request, reply) => self.rollback(&request, reply),
            Request::Ledger(question) => self.ask_ledger(question),
            Request::Session(question) => self.ask_session(&caller, question),
            Request::HandOver(reply) => {
                self.handing_over = Some((Instant::now() + SETTLED_WITHIN, reply));
                self.hand_over_settled();
            }
        }
    }

    /// Answers a request to hand over when no change is under way and no new version is watched, or
    /// when that takes too long. Nobody hears then what became of a change, and the next daemon goes
    /// on with what a snapshot has, which is the version before.
    pub(crate) fn hand_over_settled(&mut self) {
        let is_settled = !self.node.is_replacing() && self.is_idle();
        let is_due = |(until, _): &mut (Instant, _)| is_settled || *until <= Instant::now();
        let Some((_, reply)) = self.handing_over.take_if(is_due) else { return };
        self.hands_over = true;
        let (node, pid) = (self.file.name.to_string(), std::process::id());
        reply.ok(api::HandedOver { schema_version: SCHEMA_VERSION, node, pid });
    }

    pub(crate) fn node_info(&self, sight: &Sight) -> NodeInfo {
        NodeInfo {
            schema_version: SCHEMA_VERSION,
            name: self.file.name.to_string(),
            node_key: self.node_key.public().to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs(),
            fast_path: self.file.fast_path.name().to_owned(),
            bpf: match &self.plane.no_bpf {
                Some(reason) => format!("off: {reason}"),
                None if self.node.bpf() => "on".to_owned(),
                None => "off: it was switched off".to_owned(),
            },
            ledger: self.billing.state(),
            below_fuel_per_ms: self.speed().map(session::below::Speed::per_ms),
            period_min_ms: self.period_min().as_millis(),
            ports: self.plane.ports.iter().map(|port| port_info(port, &self.plane.ports)).collect(),
            sessions: self
                .node
                .sessions()
                .filter(|session| sight.has_session(session))
                .map(|s| SessionInfo { id: s.id.0, name: s.name.to_string() })
                .collect(),
            cell: match self.node.cell().0 {
                CellState::Starting => "starting",
                CellState::Ready if self.cells.is_silent() => "silent",
                CellState::Ready => "ready",
                CellState::Lost { .. } => "lost",
            }
            .to_owned(),
            cell_pid: self.cells.pid(CellNumber::FIRST),
            associations: if sight.everything { self.association_list() } else { Vec::new() },
        }
    }

    /// Gives a message to a service that runs; the cell's answer goes to `reply`.
    fn message(
        &mut self,
        wanted: &str,
        request: &api::MessageRequest,
        reply: Reply<api::MessageAnswers>,
    ) {
        let checked = self.find(wanted).and_then(|service| {
            if service.state != ServiceState::Running {
                return Err(failed(format!("the service '{wanted}' does not run at present")));
            }
            Ok((service.entry, message_bytes(&request.data_hex)?))
        });
        match checked {
            Ok((entry, bytes)) => {
                self.cells.deliver(entry, bytes, reply);
            }
            Err(refusal) => reply.refuse(refusal),
        }
    }

    fn switch_bpf(&mut self, enabled: bool, reply: Reply<api::BpfSet>) {
        if let Some(reason) = self.plane.no_bpf.as_ref().filter(|_| enabled) {
            return reply.refuse(failed(reason));
        }
        let facts = Facts::of(if enabled { "node --bpf on" } else { "node --bpf off" });
        self.record(facts, Edit::Bpf(enabled), Recorded::Bpf { enabled, reply });
    }

    /// Switches the levels below user on or off, now that this is recorded.
    pub(crate) fn bpf_recorded(
        &mut self,
        enabled: bool,
        reply: Reply<api::BpfSet>,
        written: Answer<()>,
    ) {
        let moving = written.and_then(|()| self.set_bpf(enabled).map_err(failed));
        self.bpf_allowed |= enabled && moving.is_ok();
        reply.answer(moving.map(|moving| {
            let moving = moving.iter().map(Name::to_string).collect();
            api::BpfSet { schema_version: SCHEMA_VERSION, enabled, moving }
        }));
    }

    /// Lets modules run as BPF programs, or takes all to user level; those that move.
    pub(crate) fn set_bpf(&mut self, enabled: bool) -> anyhow::Result<Vec<Name>> {
        if let Some(reason) = self.plane.no_bpf.as_ref().filter(|_| enabled) {
            anyhow::bail!("{reason}");
        }
        match self.command(Command::Bpf { enabled }) {
            Ok(Outcome::Bpf { moving }) => {
                let may = if enabled { "may run" } else { "do not run any more" };
                let text = format!("modules {may} below user level");
                self.plane.instances.clear_spares();
                self.note(Note::new(EventKind::BpfSwitched, text));
                Ok(moving)
            }
            Ok(_) => Ok(Vec::new()),
            Err(refusal) => anyhow::bail!("{}", refusal.message),
        }
    }

    /// Returns the services that a client may see.
    pub(crate) fn seen_services(&self, sight: &Sight) -> ServiceList {
        let seen = self.node.services().filter(|s| sight.has(s.session.as_str(), s.owner));
        let services = self.service_infos(seen);
        ServiceList { schema_version: SCHEMA_VERSION, services }
    }

    pub(crate) fn find_service(&self, wanted: &str) -> Answer<ServiceInfo> {
        self.find(wanted).map(|it| self.service_info(it, numbers(&self.rules_to(&it.name))))
    }

    pub(crate) fn find(&self, wanted: &str) -> Answer<&Service> {
        let found = Name::new(wanted).ok().and_then(|name| self.node.service(&name));
        found.ok_or_else(|| no_service(wanted, self.node.services().map(|s| s.name.as_str())))
    }

    pub(crate) fn service_infos<'a>(
        &self,
        services: impl Iterator<Item = &'a Service>,
    ) -> Vec<ServiceInfo> {
        let mut rules = self.rules_by_service();
        let info = |it: &Service| self.service_info(it, rules.remove(&it.name).unwrap_or_default());
        services.map(info).collect()
    }

    fn service_info(&self, service: &Service, rules: Vec<u32>) -> ServiceInfo {
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
            owner: self.owner_shown(service.owner),
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
            budget: (service.budget != node::budget::Budget::default())
                .then(|| shown(&service.budget)),
            on_failure: service.on_failure.to_string(),
            then: service.then.iter().map(|(edge, next)| (*edge, next.to_string())).collect(),
            stats: self.service_stats(service),
        }
    }

    fn deploy(&mut self, caller: &Caller, request: api::DeployRequest, reply: Reply<Deployed>) {
        let since = Instant::now();
        let deployed = self.start_deployment(caller, &request);
        match deployed {
            Ok((service, shadowed, replaces)) => {
                let level = request.level.as_deref().and_then(|text| level(text).ok());
                let waiting = Waiting {
                    reply,
                    since,
                    shadowed,
                    replaces,
                    paused_us: 0,
                    took_ms: 0,
                    service: service.clone(),
                    level,
                };
                self.waiting.insert(service, waiting);
            }
            Err(refusal) => reply.refuse(refusal),
        }
    }

    pub(crate) fn start_deployment(
        &mut self,
        caller: &Caller,
        request: &api::DeployRequest,
    ) -> Answer<Begun> {
        self.check_billing()?;
        let digest = self.resolve(&request.module)?;
        if self.modules.get(&digest).is_some_and(|module| module.code(self.bpf_now()).is_some()) {
            self.cells.tell_all(&ToCell::Expect, &[]);
        }
        let mut module = self.hold(&digest)?;
        if !request.allow_older {
            self.check_version(&digest)?;
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
        if self.is_called(&service) {
            let message = format!("'{service}' is the name of a service that packets have called");
            return Err(error(ErrorCode::Refused, message, Some("give the service another one")));
        }
        if self.waiting.contains_key(&service) {
            let message = format!("'{service}' is being deployed already; try again in a second");
            return Err(failed(message));
        }
        let session = self.session(request.session.as_deref())?;
        let level = request.level.as_deref().map(level).transpose()?;
        let rules = request
            .rules
            .iter()
            .map(|text| {
                let mut spec =
                    RuleSpec::new(text.parse().map_err(usage)?, Action::Service(service.clone()));
                spec.session = session.clone();
                spec.priority = request.priority.unwrap_or(spec.priority);
                spec.stage = stage(request.stage.as_deref())?;
                Ok(spec)
            })
            .collect::<Answer<_>>()?;
        let on_failure = match &request.on_failure {
            Some(text) => text.parse().map_err(usage)?,
            // Like its rules.
            None => self.node.service(&service).map(|it| it.on_failure).unwrap_or_default(),
        };
        self.prefer_spare(&digest);
        let owner = self.owner_of(caller);
        let command = Command::Deploy {
            service: service.clone(),
            module,
            parameters: request.parameters.clone(),
            session,
            rules,
            level,
            budget: request.budget.as_ref().map(budget).transpose()?.unwrap_or_default(),
            then: request.then.iter().map(|next| name(next)).collect::<Answer<_>>()?,
            on_failure,
            discard_state: request.discard_state,
            owner,
        };
        let outcome = self.command_of(caller, command)?;
        let Outcome::Deployed { shadowed, rules, replaces, .. } = outcome else {
            return Err(failed("the node answered a deployment with something else"));
        };
        if replaces.is_none() {
            self.note_rules(EventKind::RulesAdded, &numbers(&rules));
        }
        let replaces = replaces.map(|digest| api::Replaced {
            digest,
            state_kept: !request.discard_state,
            paused_us: 0,
        });
        Ok((service, pairs(&shadowed), replaces))
    }

    /// The digest of the module that is meant.
    pub(crate) fn resolve(&self, wanted: &str) -> Answer<Digest> {
        // One that is held need not be looked for, and may not be on the disk yet.
        let digest = wanted.parse().ok();
        if let Some(problem) = digest.and_then(|digest| self.desired.why_not_stored(&digest)) {
            return Err(problem.clone());
        }
        let held = digest.filter(|digest| self.modules.contains_key(digest));
        held.map_or_else(|| self.store.resolve(wanted), Ok).map_err(|problem| {
            let help = "'tam deploy FILE.wasm' stores a module and deploys it";
            error(ErrorCode::NotFound, problem.to_string(), Some(help))
        })
    }

    /// Has the module in memory, checked, whether or not it may run.
    pub(crate) fn take_in(&mut self, digest: &Digest) -> Answer<ModuleInfo> {
        if !self.modules.contains_key(digest) {
            let wasm = self.store.get(digest).map_err(failed)?;
            self.modules.insert(*digest, Module::check(wasm).map_err(usage)?);
        }
        let module = self.modules.get(digest).ok_or_else(|| failed("the module is gone"))?;
        Ok(ModuleInfo::of(digest.to_string(), &module.checked))
    }

    /// Has a module that may run in memory, checked.
    pub(crate) fn hold(&mut self, digest: &Digest) -> Answer<ModuleInfo> {
        let module = self.take_in(digest)?;
        self.permit(digest)?;
        Ok(module)
    }

    pub(crate) fn session(&self, wanted: Option<&str>) -> Answer<Name> {
        wanted.map_or_else(|| Ok(node::session::best_effort()), name)
    }

    /// Answers a deployment whose service runs now, when that is recorded.
    pub(crate) fn deployed(&mut self, mut waiting: Waiting) {
        let Some(desired) = self.as_desired(&waiting) else { return };
        let took_ms = crate::apply::millis(waiting.since);
        let service = waiting.service.clone();
        let came_with = |rule: &DesiredRule| rule.came_with.as_ref() == Some(&service);
        let rules = self.node.numbered_rules().into_iter().map(|(_, rule)| rule).filter(came_with);
        let rules: Vec<RuleSpec> = rules.map(|rule| rule.spec).collect();
        let facts = Facts::of(format!("deploy {service}"));
        waiting.took_ms = took_ms;
        let edit = Edit::Deploy(service, Box::new(desired), rules);
        self.record(facts, edit, Recorded::Deployed(Box::new(waiting)));
    }

    /// Answers a deployment; a new service that could not be recorded is removed again.
    pub(crate) fn deployment_recorded(&mut self, waiting: Waiting, written: Answer<()>) {
        let Waiting { reply, took_ms, shadowed, service, replaces, paused_us, .. } = waiting;
        let is_new = replaces.is_none();
        let answer = written.and_then(|()| {
            self.desired.missing.remove(&service);
            let info = self.find_service(service.as_str())?;
            self.mark_versions(info.digest.parse());
            let schema_version = SCHEMA_VERSION;
            let replaced = replaces.map(|replaced| api::Replaced { paused_us, ..replaced });
            let lacks = self.lacks(&info);
            Ok(Deployed { schema_version, service: info, took_ms, shadowed, lacks, replaced })
        });
        reply.answer(match answer {
            Err(_) if is_new => {
                // It is gone already if that is refused.
                let _ = self.command(Command::Remove { service, cascade: true });
                answer
            }
            // The version before cannot be had back with what this one has learnt since.
            Err(problem) => Err(ErrorInfo {
                code: ErrorCode::Partial,
                message: format!(
                    "the new version of '{service}' runs, but a start of the node would begin with the one before: {}",
                    problem.message.trim_end_matches(NOTHING_CHANGED)
                ),
                help: problem.help,
            }),
            done => done,
        });
    }

    /// Removes a service; answers when the cell has stopped it: then its name is free.
    fn remove(&mut self, wanted: &str, cascade: bool, reply: Reply<Removed>) {
        let service = match name(wanted) {
            Ok(service) => service,
            Err(refusal) => return reply.refuse(refusal),
        };
        let cause = format!("remove {service}");
        let edit = Edit::Remove(service.clone());
        let missing = self.desired.state().services.contains_key(&service);
        if missing && self.node.service(&service).is_none() {
            // It is desired, and did not start.
            return self.record(
                Facts::of(cause),
                edit,
                Recorded::MissingRemoved { service, reply },
            );
        }
        let command = Command::Remove { service: service.clone(), cascade };
        let counted = self.sessions_of(&self.rules_to(&service));
        let purpose = Purpose::ServiceRemoved { service, counted, reply };
        self.record_ahead(Ahead { command, purpose }, cause, edit);
    }

    /// Answers the removal of a service, now or when the cell has stopped it.
    pub(crate) fn service_removed(
        &mut self,
        service: Name,
        counted: Vec<(RuleId, Name)>,
        reply: Reply<Removed>,
        outcome: Answer<Outcome>,
    ) {
        match outcome {
            Ok(Outcome::Removed { rules, stopping, .. }) => {
                self.close(counted);
                self.note_rules(EventKind::RulesRemoved, &numbers(&rules));
                let removed = removed(&service, &rules);
                if stopping {
                    self.removals.remove_service(service, reply, removed);
                } else {
                    reply.ok(removed);
                }
            }
            Ok(_) => reply.refuse(failed("the node answered a removal with something else")),
            Err(refusal) => reply.refuse(refusal),
        }
    }

    fn add_rules(
        &mut self,
        caller: &Caller,
        request: &api::RulesRequest,
        reply: Reply<RulesAdded>,
    ) {
        let owner = self.owner_of(caller);
        match self.try_add_rules(caller, owner, request) {
            Ok((added, specs)) => {
                let facts = Facts::of(match specs.as_slice() {
                    [spec] => format!("rule add {} -> {}", spec.r#match, spec.action),
                    specs => format!("rule add, {} rules", specs.len()),
                });
                let edit = Edit::AddRules(specs, owner);
                self.record(facts, edit, Recorded::RulesAdded { added, reply });
            }
            Err(refusal) => reply.refuse(refusal),
        }
    }

    /// Answers with new rules; those that could not be recorded are removed again.
    pub(crate) fn rules_recorded(
        &mut self,
        added: RulesAdded,
        reply: Reply<RulesAdded>,
        written: Answer<()>,
    ) {
        if written.is_err() {
            for rule in &added.rules {
                // It is gone already if that is refused.
                let _ = self.command(Command::RuleRemove { rule: RuleId(*rule) });
            }
        }
        reply.answer(written.map(|()| added));
    }

    fn try_add_rules(
        &mut self,
        caller: &Caller,
        owner: Option<Owner>,
        request: &api::RulesRequest,
    ) -> Answer<(RulesAdded, Vec<RuleSpec>)> {
        let specs: Vec<RuleSpec> = request
            .rules
            .iter()
            .map(|rule| {
                let mut spec = RuleSpec::new(
                    rule.r#match.parse().map_err(usage)?,
                    rule.action.parse().map_err(usage)?,
                );
                spec.session = self.session(rule.session.as_deref())?;
                spec.priority = rule.priority.unwrap_or(spec.priority);
                spec.stage = stage(rule.stage.as_deref())?;
                spec.flows = rule.flows.as_deref().map(str::parse).transpose().map_err(usage)?;
                Ok(spec)
            })
            .collect::<Answer<_>>()?;
        let command = Command::RuleAdd { specs: specs.clone(), owner };
        let outcome = self.command_of(caller, command)?;
        let Outcome::RulesAdded { rules, shadowed } = outcome else {
            return Err(failed("the node answered new rules with something else"));
        };
        let (rules, shadowed) = (numbers(&rules), pairs(&shadowed));
        self.note_rules(EventKind::RulesAdded, &rules);
        Ok((RulesAdded { schema_version: SCHEMA_VERSION, rules, shadowed }, specs))
    }

    fn remove_rule(&mut self, rule: RuleId, reply: Reply<RuleRemoved>) {
        let edit = Edit::RemoveRule(self.desired_rule(rule));
        let command = Command::RuleRemove { rule };
        let cause = format!("rule remove {rule}");
        let counted = self.sessions_of(&[rule]);
        let purpose = Purpose::RuleRemoved { rule, counted, reply };
        self.record_ahead(Ahead { command, purpose }, cause, edit);
    }

    /// Returns the answer to the removal of a rule.
    pub(crate) fn rule_removed(
        &mut self,
        rule: RuleId,
        counted: Vec<(RuleId, Name)>,
    ) -> RuleRemoved {
        self.close(counted);
        self.note_rules(EventKind::RulesRemoved, &[rule.0]);
        RuleRemoved { schema_version: SCHEMA_VERSION, rule: rule.0 }
    }

    /// Tells of rules that came or went.
    pub(crate) fn note_rules(&mut self, kind: EventKind, rules: &[u32]) {
        let did = if kind == EventKind::RulesAdded { "added" } else { "removed" };
        let (first, last) = match rules {
            [] => return,
            [rule] => {
                let text = format!("rule {rule} was {did}");
                return self.note(Note::new(kind, text).rule(RuleId(*rule)));
            }
            [first, .., last] => (first, last),
        };
        let text = format!("{} rules were {did}, {first} to {last}", rules.len());
        self.note(Note::new(kind, text));
    }

    /// Rules that are going, with the sessions for which they counted.
    pub(crate) fn sessions_of(&self, rules: &[RuleId]) -> Vec<(RuleId, Name)> {
        let payer = |rule: &RuleId| Some((*rule, self.node.rule_payer(*rule)?.0.clone()));
        rules.iter().filter_map(payer).collect()
    }

    /// Keeps what rules counted that are gone.
    pub(crate) fn close(&mut self, rules: Vec<(RuleId, Name)>) {
        for (rule, session) in rules {
            if let Ok(stats) = self.plane.front.rule_stats(rule) {
                self.recorder.mark();
                let sum = self.closed.entry(session).or_default();
                sum.0 += stats.packets;
                sum.1 += stats.bytes;
            }
        }
    }

    pub(crate) fn rule_list(&self, sight: &Sight) -> Answer<RuleList> {
        let rules = self
            .node
            .all_rules()
            .into_iter()
            .filter(|view| sight.has(view.rule.spec.session.as_str(), view.owner))
            .map(|view| {
                let stats = self.plane.front.rule_stats(view.rule.id).map_err(failed)?;
                Ok(RuleInfo {
                    id: view.rule.id.0,
                    r#match: view.rule.spec.r#match.to_string(),
                    flows: view.rule.spec.flows.as_ref().map(|flows| flows.count() as u64),
                    action: view.rule.spec.action.to_string(),
                    priority: view.rule.spec.priority,
                    session: view.rule.spec.session.to_string(),
                    stage: view.rule.spec.stage().to_string(),
                    came_with: view.came_with.map(|name| name.to_string()),
                    owner: self.owner_shown(view.owner),
                    reach: api::reach_text(&view.reach),
                    packets: stats.packets,
                    bytes: stats.bytes,
                })
            })
            .collect::<Answer<_>>()?;
        Ok(RuleList { schema_version: SCHEMA_VERSION, rules })
    }
}

/// Returns the answer to the removal of a service, with the rules that went with it.
pub(crate) fn removed(service: &Name, rules: &[RuleId]) -> Removed {
    Removed { schema_version: SCHEMA_VERSION, service: service.to_string(), rules: numbers(rules) }
}

/// What is answered for a service that is not there, and for one that is not the caller's.
pub(crate) fn no_service<'a>(wanted: &str, known: impl Iterator<Item = &'a str>) -> ErrorInfo {
    let meant = abi::manifest::Meant::new(wanted, known);
    let shown: String = wanted.chars().take(40).flat_map(char::escape_default).collect();
    error(
        ErrorCode::NotFound,
        format!("there is no service '{shown}' on this node{meant}"),
        Some("'tam list' shows the services"),
    )
}

/// A stage by its name.
pub(crate) fn stage(text: Option<&str>) -> Answer<Option<node::rule::Stage>> {
    text.map(str::parse).transpose().map_err(usage)
}

fn budget(wanted: &api::Budget) -> Answer<node::budget::Budget> {
    use node::budget::{Budget, OverBudget};
    let over = match wanted.over.as_deref() {
        None | Some("raise") => OverBudget::Raise,
        Some("drop") => OverBudget::Drop,
        Some(other) => {
            let shown: String = other.chars().take(40).flat_map(char::escape_default).collect();
            return Err(usage(format!("over budget there is drop and raise, not '{shown}'")));
        }
    };
    Ok(Budget { fuel: wanted.fuel, packets: wanted.packets, bytes: wanted.bytes, over })
}

fn shown(budget: &node::budget::Budget) -> api::Budget {
    let over = match budget.over {
        node::budget::OverBudget::Drop => "drop",
        node::budget::OverBudget::Raise => "raise",
    };
    let (fuel, packets, bytes) = (budget.fuel, budget.packets, budget.bytes);
    api::Budget { fuel, packets, bytes, over: Some(over.to_owned()) }
}

fn port_info(port: &ports::LivePort, all: &[ports::LivePort]) -> PortInfo {
    let other = all.iter().find(|other| Some(other.port.id) == port.bridge);
    let mac = port.config.mac.map(|byte| format!("{byte:02x}")).join(":");
    PortInfo {
        id: port.port.id.0,
        name: port.port.spec.name.to_string(),
        device: port.port.spec.device.clone(),
        ifindex: port.config.ifindex,
        mac,
        mtu: port.config.mtu,
        driver: port.driver.clone(),
        kind: match port.port.spec.kind {
            node::PortKind::Device => "device",
            node::PortKind::Tun => "tun",
        }
        .to_owned(),
        mode: port.mode.name().to_owned(),
        mode_reason: port.mode_reason.clone(),
        mode_cost: port.mode.cost().to_owned(),
        state: if port.away.is_none() { "up" } else { "away" }.to_owned(),
        bridge: other.map(|other| other.port.spec.name.to_string()),
        away_reason: port.away.as_ref().map(|away| away.reason.clone()),
        queues: port.queues,
        slow_reasons: ports::slow_reasons_of(port),
        offloads_off: port.offloads_off.clone(),
    }
}

/// The bytes of a control message.
fn message_bytes(digits: &str) -> Answer<Vec<u8>> {
    let length_max = abi::host::MESSAGE_LENGTH_MAX;
    if digits.len() > 2 * length_max {
        let message = format!("a message has at most {length_max} bytes");
        return Err(error(ErrorCode::Limit, message, None));
    }
    let wrong = || usage("'data_hex' has an even number of hexadecimal digits");
    if !digits.len().is_multiple_of(2) || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    let pairs = (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16));
    pairs.collect::<Result<_, _>>().map_err(|_| wrong())
}

/// The level of that name.
pub(crate) fn level(text: &str) -> Answer<Level> {
    Level::ALL.iter().copied().find(|level| level.name() == text).ok_or_else(|| {
        let known = Level::ALL.iter().map(|level| level.name());
        let meant = abi::manifest::Meant::new(text, known);
        let shown: String = text.chars().take(40).flat_map(char::escape_default).collect();
        usage(format!("'{shown}' is no level{meant}"))
    })
}
