//! Checks of what requests ask for against what their clients' capabilities grant: deny by default.
//!
//! ```text
//! caller, request ─▶ operation granted? ─▶ the thing there, and the caller's? ─▶ all of the rest?
//!                      └ what is missing      └ the same answer for both            └ what is missing
//! ```
//!
//! The socket's owner is asked nothing.

#[cfg(test)]
mod endpoint_tests;
mod sessions;

use super::authority::{EVERYBODY, Rights, Visibility};
use super::change::Change;
use super::state::NodeState;
use crate::access::{Caller, SEND_ONE};
use crate::answer::{
    Answer, error, level, no_capture, refused, session as session_name, stage, usage,
};
use crate::deploy::Module;
use crate::request::{LedgerQuestion, Request};
use abi::Level;
use api::{DeployRequest, ErrorCode, ErrorInfo};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use module_store::{Digest, StoredModule};
use node::rule::Stage;
use node::{Match, Owner, Refusal};
use std::collections::BTreeSet;
use trust::{AccessRequest, Denied, Kind, Operation, PublicKey, RequestedModule};
use units::{Name, RuleId};

/// Largest number of rules of one request by a capability: each is compared with what it grants.
const RULES_MAX: usize = 4096;

/// Returns a refusal, with what to do about it.
fn denied(problem: &Denied, caller: &Caller) -> ErrorInfo {
    let (message, help) = match (caller, problem) {
        (Caller::Anyone, Denied::Missing(missing)) => {
            let rights: Vec<String> = missing.iter().map(ToString::to_string).collect();
            let message = format!("without a capability there is no {}", rights.join(", "));
            (message, SEND_ONE)
        }
        (_, Denied::Revoked) => (problem.to_string(), "ask whoever gave it to you for another one"),
        _ => (
            problem.to_string(),
            "`tam token inspect` shows what a capability grants; whoever signed it can make another one",
        ),
    };
    error(ErrorCode::Refused, message, Some(help))
}

/// Checks whether a client may have a change made.
///
/// # Errors
/// The refusal, which says what is missing; a thing that is another's is one that is not there.
pub(crate) fn check_change(state: &mut NodeState, caller: &Caller, change: &Change) -> Answer<()> {
    if matches!(caller, Caller::Operator) {
        return Ok(());
    }
    if let Change::Deploy(request, _) = change {
        load_asked(state, caller, Operation::Deploy, &request.module)?;
    }
    let asker = Asker::new(state, caller);
    match change {
        Change::Remove(name, cascade, _) => asker.remove(name, *cascade),
        Change::Move(name, request, _) => asker.move_to(name, request),
        Change::Deploy(request, _) => asker.deploy(request),
        Change::AddRules(request, _) => asker.add_rules(request),
        Change::RemoveRule(rule, _) => asker.rule(Operation::Rule, *rule).map(drop),
        Change::CreateSession(request, _) => sessions::create_session(&asker, request),
        Change::SetSession(name, change, _) => sessions::set_session(&asker, name, change),
        Change::RemoveSession(name, cascade, _) => sessions::remove_session(&asker, name, *cascade),
        Change::Bpf(..) | Change::Apply(..) | Change::Confirm(_) | Change::Rollback(..) => {
            asker.check(&AccessRequest::to(Operation::Administer))
        }
    }
}

/// Checks whether a client may have a request answered that changes nothing that shall run.
/// `rule_of` returns the rule of a capture.
///
/// # Errors
/// The refusal, which says what is missing; a thing that is another's is one that is not there.
pub(crate) fn check_request(
    state: &mut NodeState,
    caller: &Caller,
    request: &Request,
    rule_of: &dyn Fn(u32) -> Option<RuleId>,
) -> Answer<()> {
    if matches!(caller, Caller::Operator) {
        return Ok(());
    }
    match request {
        Request::AddSignatures(wanted, ..) => {
            load_asked(state, caller, Operation::Store, wanted)?;
        }
        Request::MayPull(digest, _) => {
            load_asked(state, caller, Operation::Read, &digest.to_string())?;
        }
        _ => {}
    }
    if let Request::Change(change) = request {
        return check_change(state, caller, change);
    }
    let asker = Asker::new(state, caller);
    match request {
        Request::Node(_)
        | Request::Services(_)
        | Request::Rules(_)
        | Request::Modules(_)
        | Request::Stats(_)
        | Request::Events(..)
        | Request::Sessions(_)
        | Request::Session(..)
        | Request::Why(_) => asker.check(&AccessRequest::to(Operation::Read)),
        Request::Service(name, _) => asker.service(Operation::Read, name).map(drop),
        Request::Message(name, ..) => asker.service(Operation::Message, name).map(drop),
        Request::PutModule(wasm, ..) => asker.put_module(wasm),
        Request::AddSignatures(wanted, ..) => asker.add_signatures(wanted),
        Request::MayPull(digest, _) => asker.pull(digest),
        Request::WantPull(digest, ..) => asker.could_have(Operation::Read, digest),
        Request::BeginCapture(request, _) => asker.capture(request),
        Request::Captured(id, ..) | Request::EndCapture(id, _) => asker.captured(*id, rule_of(*id)),
        Request::Ledger(LedgerQuestion::Receipt(principal, ..)) => asker.receipt(principal),
        Request::Metrics(_) | Request::Explain(..) | Request::Desired(_) | Request::Ledger(_) => {
            asker.everybodys(Operation::Read)
        }
        Request::Change(_)
        | Request::HandOver(_)
        | Request::Revoke(..)
        | Request::Revocations(_)
        | Request::Backup(_) => asker.check(&AccessRequest::to(Operation::Administer)),
    }
}

/// Checks whether a client may have a service deployed, without a request of the API.
pub(super) fn check_deployment(
    state: &mut NodeState,
    caller: &Caller,
    request: &DeployRequest,
) -> Answer<()> {
    load_asked(state, caller, Operation::Deploy, &request.module)?;
    Asker::new(state, caller).deploy(request)
}

/// Loads the module that a request names into memory, so that it can be examined.
fn load_asked(
    state: &mut NodeState,
    caller: &Caller,
    operation: Operation,
    module: &str,
) -> Answer<()> {
    let now = state.capability_time();
    let may = state.authority.rights(caller, now).check(&AccessRequest::to(operation));
    may.map_err(|problem| denied(&problem, caller))?;
    // What cannot be had is the same as what may not be had: the asker says so.
    if let Ok(digest) = state.modules.resolve(module) {
        let _ = state.modules.load(&digest);
        let _ = state.modules.signers_of(&digest);
    }
    Ok(())
}

/// Checks whether a module is worth a fetch for a client: one of this digest may be the client's.
pub(crate) fn check_wanted(
    state: &mut NodeState,
    caller: &Caller,
    operation: Operation,
    digest: &Digest,
) -> Answer<()> {
    Asker::new(state, caller).could_have(operation, digest)
}

/// Checks whether a module that is not in memory yet is a client's.
pub(crate) fn check_new(
    state: &mut NodeState,
    caller: &Caller,
    operation: Operation,
    digest: &Digest,
    module: &Module,
) -> Answer<()> {
    Asker::new(state, caller).may_have(operation, digest, module)
}

/// Checks whether packets of a client may call modules at all.
pub(crate) fn check_calls(state: &mut NodeState, caller: &Caller) -> bool {
    Asker::new(state, caller).check(&AccessRequest::to(Operation::Deploy)).is_ok()
}

/// Returns what of the node a client may see.
pub(crate) fn sight(state: &mut NodeState, caller: &Caller) -> Visibility {
    match caller {
        Caller::Operator => Visibility::of_everything(),
        _ => sessions::sight(&Asker::new(state, caller)),
    }
}

/// Returns those of the modules that a client may run.
pub(crate) fn readable(
    state: &mut NodeState,
    caller: &Caller,
    modules: Vec<StoredModule>,
) -> Vec<StoredModule> {
    if matches!(caller, Caller::Operator) {
        return modules;
    }
    let asker = Asker::new(state, caller);
    let may = |module: &StoredModule| {
        let module = RequestedModule {
            digest: *module.digest.bytes(),
            name: module.name.clone().unwrap_or_default(),
            signers: BTreeSet::new(),
            kind: Some(Kind::Application),
        };
        asker
            .check(&AccessRequest { module: Some(module), ..AccessRequest::to(Operation::Read) })
            .is_ok()
    };
    modules.into_iter().filter(may).collect()
}

/// Rights of one client at one moment, and what they are compared with.
struct Asker<'a> {
    state: &'a NodeState,
    rights: Rights<'a>,
    caller: &'a Caller,
}

impl<'a> Asker<'a> {
    /// Creates the rights that a client has now.
    fn new(state: &'a mut NodeState, caller: &'a Caller) -> Self {
        let now = state.capability_time();
        let state: &NodeState = state;
        Self { state, rights: state.authority.rights(caller, now), caller }
    }

    fn check(&self, ask: &AccessRequest) -> Answer<()> {
        self.rights.check(ask).map_err(|problem| denied(&problem, self.caller))
    }

    /// Authorizes an operation on something that belongs to everybody or to nobody.
    fn everybodys(&self, operation: Operation) -> Answer<()> {
        let session = Some(EVERYBODY.to_owned());
        self.check(&AccessRequest { session, ..AccessRequest::to(operation) })
    }

    /// Checks a request for a receipt: a principal's own, or anybody's.
    fn receipt(&self, principal: &PublicKey) -> Answer<()> {
        match self.caller {
            Caller::Holder(holder) if holder.token.principal() == *principal => {
                self.check(&AccessRequest::to(Operation::Read))
            }
            _ => self.everybodys(Operation::Read),
        }
    }

    /// Returns the session and owner of a service that is there and that the operation is granted on.
    fn service(&self, operation: Operation, name: &str) -> Answer<(Name, Option<Owner>)> {
        self.check(&AccessRequest::to(operation))?;
        let wanted = Name::new(name).ok();
        let desired = &self.state.desired.state().services;
        let there = wanted.as_ref().and_then(|name| {
            let service = self.state.node.service(name);
            let runs = service.map(|service| (service.session.clone(), service.owner));
            runs.or_else(|| desired.get(name).map(|it| (it.session.clone(), it.owner)))
        });
        let mine = |(session, owner): &(Name, Option<Owner>)| {
            self.rights.reach(operation, session.as_str(), *owner)
        };
        there.filter(mine).ok_or_else(|| {
            let seen = self.state.node.services().filter(|service| {
                self.rights.reach(Operation::Read, service.session.as_str(), service.owner)
            });
            crate::answer::no_service(name, seen.map(|service| service.name.as_str()))
        })
    }

    /// Returns the owner of a rule that is there and that the operation is granted on.
    fn rule(&self, operation: Operation, rule: RuleId) -> Answer<Option<Owner>> {
        self.check(&AccessRequest::to(operation))?;
        let views = self.state.node.rules();
        let found = views.iter().find(|view| view.rule.id == rule);
        let mine = found.filter(|view| {
            self.rights.reach(operation, view.rule.spec.session.as_str(), view.owner)
        });
        mine.map(|view| view.owner).ok_or_else(|| refused(&Refusal::RuleUnknown { rule }))
    }

    /// Checks a removal: rules of others that lead to a service go with it only if they are the
    /// client's, too.
    fn remove(&self, name: &str, cascade: bool) -> Answer<()> {
        self.service(Operation::Remove, name)?;
        if !cascade {
            return Ok(());
        }
        let views = self.state.node.rules();
        let led = views.iter().filter(|view| {
            let to = view.rule.spec.action.service();
            to.is_some_and(|to| to.as_str() == name) && view.came_with.is_none()
        });
        for view in led {
            let session = view.rule.spec.session.as_str();
            if !self.rights.reach(Operation::Rule, session, view.owner) {
                let ask = AccessRequest {
                    session: Some(session.to_owned()),
                    ..AccessRequest::to(Operation::Rule)
                };
                self.check(&ask)?;
                return self.everybodys(Operation::Rule);
            }
        }
        Ok(())
    }

    fn move_to(&self, name: &str, request: &api::MoveRequest) -> Answer<()> {
        let (session, _) = self.service(Operation::Move, name)?;
        let levels = [level(&request.level)?].into();
        let session = Some(session.to_string());
        self.check(&AccessRequest { session, levels, ..AccessRequest::to(Operation::Move) })
    }

    fn deploy(&self, request: &DeployRequest) -> Answer<()> {
        let session = session_name(request.session.as_deref())?;
        let kind = kind_of(&session);
        let (digest, module) = self.module(Operation::Deploy, &request.module)?;
        if request.allow_older {
            self.check(&AccessRequest::to(Operation::Administer))?;
        }
        let manifest = &module.checked.manifest;
        let name = match &request.name {
            Some(text) => Name::new(text).map_err(usage)?,
            None => manifest.name.clone(),
        };
        let present = self.state.node.service(&name);
        if let Some(service) = present
            && !self.rights.reach(Operation::Deploy, service.session.as_str(), service.owner)
        {
            let message = format!("the name '{name}' is not free on this node");
            let help = "give the service another one: `tam deploy --name`";
            return Err(error(ErrorCode::Refused, message, Some(help)));
        }
        for next in &request.then {
            self.service(Operation::Deploy, next)?;
        }
        let wanted = request.level.as_deref().map(level).transpose()?;
        let mut rules = Vec::with_capacity(request.rules.len());
        for text in &request.rules {
            rules.push(text.parse::<Match>().map_err(usage)?);
        }
        stage_fits(request.stage.as_deref(), kind)?;
        let mut ask = AccessRequest {
            session: Some(session.to_string()),
            module: Some(module_ask(digest, module, Some(kind))),
            levels: levels_of(manifest, wanted),
            functions: functions_of(module),
            traffic: self.traffic(rules.iter())?,
            ..AccessRequest::to(Operation::Deploy)
        };
        ask.amounts = self.amounts(&session, &name, manifest);
        self.check(&ask)?;
        sessions::usable(self, &session)
    }

    /// Returns a module that is there and that the operation is granted on.
    fn module(&self, operation: Operation, wanted: &str) -> Answer<(Digest, &Module)> {
        let found = self.state.modules.resolve(wanted).ok();
        let found = found.and_then(|digest| Some((digest, self.state.modules.get(&digest)?)));
        let mine = found.filter(|(digest, module)| self.is_granted(operation, digest, module));
        mine.ok_or_else(|| not_granted(wanted))
    }

    /// Checks that a module may be granted of which nothing but its digest is known.
    fn could_have(&self, operation: Operation, digest: &Digest) -> Answer<()> {
        self.check(&AccessRequest::to(operation))?;
        match self.rights.could_have(digest) {
            true => Ok(()),
            false => Err(not_granted(&digest.to_string())),
        }
    }

    /// Checks that the operation on a module is granted that is not in memory yet.
    fn may_have(&self, operation: Operation, digest: &Digest, module: &Module) -> Answer<()> {
        match self.is_granted(operation, digest, module) {
            true => Ok(()),
            false => Err(not_granted(&digest.to_string())),
        }
    }

    /// Returns whether the operation on a module is granted: a module that is read is of no kind,
    /// others may be of either.
    fn is_granted(&self, operation: Operation, digest: &Digest, module: &Module) -> bool {
        let kinds = match operation {
            Operation::Read => vec![None],
            _ => Kind::ALL.map(Some).to_vec(),
        };
        kinds.into_iter().any(|kind| {
            let module = Some(module_ask(*digest, module, kind));
            self.rights.check(&AccessRequest { module, ..AccessRequest::to(operation) }).is_ok()
        })
    }

    fn put_module(&self, wasm: &[u8]) -> Answer<()> {
        self.check(&AccessRequest::to(Operation::Store))?;
        let module = Module::check(wasm.to_vec()).map_err(usage)?;
        let ask = module_ask(Digest::of(wasm), &module, Some(Kind::Application));
        self.check(&AccessRequest { module: Some(ask), ..AccessRequest::to(Operation::Store) })
    }

    fn pull(&self, digest: &Digest) -> Answer<()> {
        self.check(&AccessRequest::to(Operation::Read))?;
        self.module(Operation::Read, &digest.to_string()).map(drop)
    }

    fn add_signatures(&self, wanted: &str) -> Answer<()> {
        self.check(&AccessRequest::to(Operation::Store))?;
        self.module(Operation::Store, wanted).map(drop)
    }

    fn add_rules(&self, request: &api::RulesRequest) -> Answer<()> {
        self.check(&AccessRequest::to(Operation::Rule))?;
        let count = request.rules.len();
        if count > RULES_MAX {
            let message = format!("{count} rules at once; with a capability at most {RULES_MAX}");
            return Err(error(ErrorCode::Limit, message, Some("send them in parts")));
        }
        let mut matches = Vec::with_capacity(count);
        let mut sessions = BTreeSet::new();
        for rule in &request.rules {
            let session = session_name(rule.session.as_deref())?;
            stage_fits(rule.stage.as_deref(), kind_of(&session))?;
            let action: node::Action = rule.action.parse().map_err(usage)?;
            if let Some(service) = action.service() {
                self.service(Operation::Rule, service.as_str())?;
            }
            if let Some(port) = action.port() {
                self.port_of(&session, port)?;
            }
            sessions.insert(session);
            matches.push(rule.r#match.parse::<Match>().map_err(usage)?);
        }
        let traffic = self.traffic(matches.iter())?;
        for session in sessions {
            let (named, traffic) = (Some(session.to_string()), traffic.clone());
            self.check(&AccessRequest {
                session: named,
                traffic,
                ..AccessRequest::to(Operation::Rule)
            })?;
            sessions::usable(self, &session)?;
        }
        Ok(())
    }

    /// Checks that a rule of a session may name a port: the session must have a share of it, so
    /// that no session sends by a port of which it was granted nothing.
    fn port_of(&self, session: &Name, port: &Name) -> Answer<()> {
        let of = self.state.node.sessions().find(|it| it.name == *session);
        if of.is_some_and(|it| it.reservation.send.contains_key(port)) {
            return Ok(());
        }
        let message = format!("the session '{session}' was promised no share of the port '{port}'");
        let help = "`tam session set SESSION --send PORT=SHARE` promises it one";
        Err(error(ErrorCode::Refused, message, Some(help)))
    }

    /// Checks a capture: of everybody's packets, or of those of one rule of the client's.
    fn capture(&self, request: &api::CaptureRequest) -> Answer<()> {
        match request.rule {
            Some(rule) if !self.rights.reach_everybody(Operation::Capture) => {
                self.rule(Operation::Capture, RuleId(rule)).map(drop)
            }
            _ => self.everybodys(Operation::Capture),
        }
    }

    /// Checks that a capture is there, and its rule the client's; others are said not to be there.
    fn captured(&self, id: u32, rule: Option<RuleId>) -> Answer<()> {
        self.check(&AccessRequest::to(Operation::Capture))?;
        let mine = match rule {
            Some(rule) => self.rule(Operation::Capture, rule).is_ok(),
            None => false,
        };
        match mine || self.rights.reach_everybody(Operation::Capture) {
            true => Ok(()),
            false => Err(no_capture(id)),
        }
    }

    /// Returns the traffic that rules match, as far as the owner of packets depends on it: the source
    /// or the destination of each, whichever is granted.
    fn traffic<'m>(&self, rules: impl Iterator<Item = &'m Match>) -> Answer<BTreeSet<IpNet>> {
        let mut asked = BTreeSet::new();
        for rule in rules {
            let named = [rule.destination, rule.source].into_iter().flatten().map(IpNet::from);
            let named: Vec<IpNet> = named.collect();
            let mine = named.iter().find(|prefix| self.grants_traffic(prefix));
            match mine.or(named.first()) {
                Some(prefix) => drop(asked.insert(*prefix)),
                None => {
                    asked.extend([IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())])
                }
            }
        }
        Ok(asked)
    }

    /// Returns true when rules may match this alone.
    fn grants_traffic(&self, prefix: &IpNet) -> bool {
        match self.caller {
            Caller::Operator => true,
            Caller::Anyone => false,
            Caller::Holder(holder) => holder.token.covers_traffic(prefix),
        }
    }

    /// Returns the amounts that the client's principal would have in a session with this service.
    fn amounts(&self, session: &Name, name: &Name, new: &abi::Manifest) -> trust::request::Amounts {
        let others = self.state.node.services().filter(|service| {
            service.session == *session
                && service.name != *name
                && self.rights.is_own(service.owner)
        });
        let memories = others.map(|service| memory_bytes(&service.module.manifest));
        let (mut count, mut memory) = (1_u64, memory_bytes(new));
        for bytes in memories {
            (count, memory) = (count + 1, memory.saturating_add(bytes));
        }
        let mut amounts = trust::request::Amounts::NONE;
        (amounts.0[0], amounts.0[2]) = (Some(count), Some(memory));
        amounts
    }
}

/// Returns the refusal of a module that is not there, or not the client's.
pub(crate) fn not_granted(wanted: &str) -> ErrorInfo {
    let shown: String = wanted.chars().take(96).flat_map(char::escape_default).collect();
    let message = format!("the node has no module '{shown}' that the capability lets you run");
    let help =
        "'tam deploy FILE.wasm' stores one; `tam token inspect` shows which ones are granted";
    error(ErrorCode::NotFound, message, Some(help))
}

/// Returns the kind of a session's services.
fn kind_of(session: &Name) -> Kind {
    if session.as_str() == node::session::SYSTEM { Kind::Infrastructure } else { Kind::Application }
}

/// Checks the stage of rules: those before and behind the principals' are infrastructure's. The node
/// says so, too; here a wrong word is found before anything is asked.
fn stage_fits(text: Option<&str>, kind: Kind) -> Answer<()> {
    match (stage(text)?, kind) {
        (Some(Stage::In | Stage::Out), Kind::Application) => {
            Err(usage("the stages 'in' and 'out' are for rules of the session system"))
        }
        _ => Ok(()),
    }
}

fn module_ask(digest: Digest, module: &Module, kind: Option<Kind>) -> RequestedModule {
    let name = module.checked.manifest.name.to_string();
    RequestedModule { digest: *digest.bytes(), name, signers: module.signers.clone(), kind }
}

/// Returns the levels at which a service may come to run: where it is wanted, and above.
fn levels_of(manifest: &abi::Manifest, wanted: Option<Level>) -> BTreeSet<Level> {
    let first = wanted.or_else(|| manifest.levels.first().copied()).unwrap_or(Level::User);
    let declared = manifest.levels.iter().copied().filter(|level| *level >= first);
    declared.chain([first]).filter(|level| *level <= Level::User).chain([Level::User]).collect()
}

fn functions_of(module: &Module) -> BTreeSet<String> {
    module.checked.imports.iter().map(|function| function.spec().name.to_owned()).collect()
}

/// Returns the memory that a service may grow to, of all its lanes, in bytes.
fn memory_bytes(manifest: &abi::Manifest) -> u64 {
    let pages = manifest.memory_pages_max.unwrap_or(abi::layout::MEMORY_PAGES_MAX);
    let lanes = match manifest.lanes {
        abi::Lanes::Count(count) => u64::from(count),
        abi::Lanes::PerCore => 1,
    };
    u64::from(pages) * 65_536 * lanes
}

#[cfg(test)]
mod tests;
