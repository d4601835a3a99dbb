//! Requests of the API, and the documents that answer them.

use crate::access::Caller;
use crate::answer::{Answer, error, failed, usage};
use crate::cells::{AfterReport, CellNumber};
use crate::control::apply::{generations, shown_desired};
use crate::control::authority::Sight;
use crate::control::authorize;
use crate::control::deployments::numbers;
use crate::control::signatures::SignatureWrite;
use crate::daemon::Daemon;
use crate::dataplane::ports;
use crate::reply::Reply;
use crate::request::{Incoming, Request};
use api::{
    DesiredInfo, ErrorCode, NodeInfo, PortInfo, RevocationList, RuleInfo, RuleList, SCHEMA_VERSION,
    ServiceInfo, ServiceList, SessionInfo,
};
use node::state::CellState;
use node::{Service, ServiceState};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// Longest wait of a handover for changes to end: a new version is watched for half a second.
const SETTLED_WITHIN: Duration = Duration::from_secs(3);

impl Daemon {
    /// Handles a request for which the modules that it names have been looked for.
    pub(crate) fn handle_fetched(&mut self, Incoming { caller, request }: Incoming) {
        self.control.set_now(self.now());
        self.control.set_reusable(self.plane.instances.reusable());
        match request {
            Request::Change(change) => self.control.handle_change(caller, change),
            request => {
                let captures = &self.captures;
                let rule_of = |id| crate::capture::rule_of(captures, id);
                let state = self.control.state_mut();
                match authorize::check_request(state, &caller, &request, &rule_of) {
                    Ok(()) => self.answer(caller, request),
                    Err(refusal) => request.refuse(refusal),
                }
            }
        }
    }

    /// Answers a request, now or when what it needs has come. Whoever no longer waits for the answer
    /// does not get it.
    fn answer(&mut self, caller: Caller, request: Request) {
        let sight = authorize::sight(self.control.state_mut(), &caller);
        match request {
            // Control handles them.
            Request::Change(change) => self.control.handle_change(caller, change),
            Request::Node(reply) => reply.ok(self.node_info(&sight)),
            Request::Services(reply) => self.after_report(AfterReport::Services(sight, reply)),
            Request::Service(wanted, reply) => {
                self.after_report(AfterReport::Service(wanted, reply));
            }
            Request::Message(wanted, message, reply) => self.message(&wanted, &message, reply),
            Request::Rules(reply) => reply.answer(self.rule_list(&sight)),
            Request::Events(since, wait, reply) => self.events(since, wait, sight, reply),
            Request::BeginCapture(request, reply) => reply.answer(self.begin_capture(&request)),
            Request::Captured(id, wait, reply) => self.captured(id, wait, reply),
            Request::EndCapture(id, reply) => self.end_capture(id, reply),
            Request::Metrics(reply) => self.after_report(AfterReport::Metrics(reply)),
            Request::Why(reply) => reply.ok(self.why_list(&sight)),
            Request::Explain(request, reply) => self.explain(&request, reply),
            Request::Modules(reply) => reply.answer(self.module_list(&caller)),
            Request::PutModule(wasm, early, reply) => self.put_module(wasm, early, reply),
            Request::MayPull(_, reply) => reply.ok(()),
            Request::WantPull(digest, hops, reply) => {
                self.want_for_pull(caller, digest, hops, reply);
            }
            Request::AddSignatures(wanted, request, reply) => {
                self.add_signatures(&wanted, &request.file, reply);
            }
            Request::Stats(reply) => self.after_report(AfterReport::Stats(sight, reply)),
            Request::Revoke(request, reply) => self.control.handle_revocation(&request, reply),
            Request::Revocations(reply) => {
                let revoked = self.control.state().authority().revoked().texts();
                let revoked = revoked.into_iter().collect();
                reply.ok(RevocationList { schema_version: SCHEMA_VERSION, revoked });
            }
            Request::Backup(reply) => self.backup(reply),
            Request::Desired(reply) => self.desired_info(reply),
            Request::Ledger(question) => self.ask_ledger(question),
            Request::Sessions(reply) => self.after_report(AfterReport::Sessions(sight, reply)),
            Request::Session(wanted, reply) => {
                self.after_report(AfterReport::Session(sight, wanted, reply));
            }
            Request::HandOver(reply) => {
                self.handing_over = Some((Instant::now() + SETTLED_WITHIN, reply));
                self.hand_over_settled();
            }
        }
    }

    fn desired_info(&self, reply: Reply<DesiredInfo>) {
        let mut info = shown_desired(&self.file, self.control.desired());
        let journal = self.control.desired().journal();
        // Beside the loop: the journal may be waiting for the disk.
        tokio::task::spawn_blocking(move || {
            let listed = journal.lock().unwrap_or_else(PoisonError::into_inner).list();
            reply.answer(match listed {
                Ok(heads) => {
                    info.generations = generations(heads);
                    Ok(info)
                }
                Err(problem) => Err(failed(problem)),
            });
        });
    }

    /// Keeps a client's signatures of a module, beside the loop.
    fn add_signatures(&mut self, wanted: &str, file: &str, reply: Reply<api::SignaturesStored>) {
        match SignatureWrite::new(self.control.state_mut().modules_mut(), wanted, file) {
            Ok(write) => drop(tokio::task::spawn_blocking(move || reply.answer(write.run()))),
            Err(refusal) => reply.refuse(refusal),
        }
    }

    /// Answers a request to hand over when no change is under way and no new version is watched, or
    /// when that takes too long. Nobody hears then what became of a change, and the next daemon goes
    /// on with what a snapshot has, which is the version before.
    pub(crate) fn hand_over_settled(&mut self) {
        let is_settled = self.control.is_settled();
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
                None if self.control.node().bpf() => "on".to_owned(),
                None => "off: it was switched off".to_owned(),
            },
            ledger: self.billing.state(),
            below_fuel_per_ms: self.speed().map(session::below::Speed::per_ms),
            period_min_ms: self.period_min().as_millis(),
            ports: self.plane.ports.iter().map(|port| port_info(port, &self.plane.ports)).collect(),
            sessions: self
                .control
                .node()
                .sessions()
                .filter(|session| sight.has_session(session))
                .map(|s| SessionInfo { id: s.id.0, name: s.name.to_string() })
                .collect(),
            cell: match self.control.node().cell().0 {
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
        let checked = self.control.state().find(wanted).and_then(|service| {
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

    /// Returns the services that a client may see.
    pub(crate) fn seen_services(&self, sight: &Sight) -> ServiceList {
        let seen =
            self.control.node().services().filter(|s| sight.has(s.session.as_str(), s.owner));
        let services = self.service_infos(seen);
        ServiceList { schema_version: SCHEMA_VERSION, services }
    }

    pub(crate) fn find_service(&self, wanted: &str) -> Answer<ServiceInfo> {
        self.control
            .state()
            .find(wanted)
            .map(|it| self.service_info(it, numbers(&self.control.state().rules_to(&it.name))))
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
            owner: self.control.state().authority().shown(service.owner),
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

    pub(crate) fn rule_list(&self, sight: &Sight) -> Answer<RuleList> {
        let rules = self
            .control
            .node()
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
                    owner: self.control.state().authority().shown(view.owner),
                    reach: api::reach_text(&view.reach),
                    packets: stats.packets,
                    bytes: stats.bytes,
                })
            })
            .collect::<Answer<_>>()?;
        Ok(RuleList { schema_version: SCHEMA_VERSION, rules })
    }
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
