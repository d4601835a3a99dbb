//! Table of rights: every role at every endpoint with things of every owner, from the HTTP request to
//! the check, without a kernel, a process or a socket.

use super::{check_change, check_request, sight};
use crate::access::{Caller, Gate, Place};
use crate::answer::failed;
use crate::control::change::Change;
use crate::control::sessions::no_session;
use crate::control::testbed::{MODULES, Testbed, deploy, digest, name};
use crate::http::router;
use crate::reply::Reply;
use crate::request::{Incoming, Request};
use abi::Level;
use api::{
    ApplyRequest, DeployRequest, ENDPOINTS, Operation, RollbackRequest, RuleRequest, RulesRequest,
};
use api::{SessionChange, SessionRequest, SignaturesRequest};
use axum::Router;
use axum::body::Body;
use axum::http::header::AUTHORIZATION;
use axum::http::{self, HeaderMap, StatusCode};
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::mpsc;
use tower::ServiceExt;
use trust::{Extent, Grant, HeldToken, Kind, ModulePattern, PublicKey, SecretKey, Seed, Token};
use trust::{SignatureFile, UnixTime};
use units::RuleId;

const ROOT: u8 = 1;
const SECOND_ROOT: u8 = 3;
/// Administrator of another node.
const OTHER_ROOT: u8 = 77;
const ALICE: u8 = 10;
const BOB: u8 = 11;
/// Sessions of the owners, whose names every ordinary token grants.
const SESSIONS: [&str; 3] = ["s-operator", "s-alice", "s-bob"];

/// Answer to a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Got {
    /// The request is granted.
    Granted,
    /// The subject does not exist, as far as the role may know.
    NotThere,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    /// Owner of the socket.
    Operator,
    /// Holder of a token that grants everything.
    Administrator,
    /// Holder of a token that reads everybody's.
    Watcher,
    Alice,
    /// Holder of Alice's token, narrowed to reading.
    AliceReads,
    Bob,
    /// Holder of a token of Alice's that has ended.
    Ended,
    /// Holder of a token of another node's administrator.
    Stranger,
    /// Client over the network without a token.
    Nobody,
}

const ROLES: [Role; 9] = [
    Role::Operator,
    Role::Administrator,
    Role::Watcher,
    Role::Alice,
    Role::AliceReads,
    Role::Bob,
    Role::Ended,
    Role::Stranger,
    Role::Nobody,
];

const OWNERS: [Role; 3] = [Role::Operator, Role::Alice, Role::Bob];

fn key(number: u8) -> SecretKey {
    SecretKey::from_seed(&Seed::new([number; 32]))
}

fn token(root: u8, principal: u8, grant: &Grant) -> String {
    let token = Token::mint(&key(root), key(principal).public(), grant, &Seed::new([99; 32]));
    token.unwrap().held().unwrap().to_string()
}

fn narrowed(token: &str, to: &Grant) -> String {
    HeldToken::parse(token).unwrap().narrow(to, &Seed::new([98; 32])).unwrap().to_string()
}

/// Returns the grant of a principal with modules of its own on traffic of its own.
fn ordinary(traffic: &str) -> Grant {
    use trust::Operation::{Capture, Deploy, Message, Move, Read, Remove, Rule, Session, Store};
    let operations = [Read, Store, Deploy, Remove, Move, Message, Rule, Capture, Session];
    let sessions = ["best-effort"].into_iter().chain(SESSIONS);
    Grant {
        operations: Extent::only(operations),
        sessions: Extent::only(sessions.map(str::to_owned)),
        modules: Extent::only([ModulePattern::NameBegins("m".to_owned())]),
        kinds: Extent::only([Kind::Application]),
        levels: Extent::All,
        functions: Extent::none(),
        traffic: Extent::only([traffic.parse().unwrap()]),
        ..Grant::none()
    }
}

/// Returns the token of each role that has one.
fn tokens() -> BTreeMap<Role, String> {
    let alice = token(ROOT, ALICE, &ordinary("10.1.0.0/16"));
    let reads = Grant { operations: Extent::only([trust::Operation::Read]), ..Grant::all() };
    let ended = Grant { until: Some(UnixTime(1)), ..ordinary("10.1.0.0/16") };
    BTreeMap::from([
        (Role::Administrator, token(ROOT, 12, &Grant::all())),
        (Role::Watcher, narrowed(&token(SECOND_ROOT, 13, &Grant::all()), &reads)),
        (Role::AliceReads, narrowed(&alice, &reads)),
        (Role::Alice, alice),
        (Role::Bob, token(SECOND_ROOT, BOB, &ordinary("10.2.0.0/16"))),
        (Role::Ended, token(ROOT, ALICE, &ended)),
        (Role::Stranger, token(OTHER_ROOT, ALICE, &Grant::all())),
    ])
}

/// Node with a service, a rule and a session of each owner.
struct World {
    bed: Testbed,
    gate: Gate,
    tokens: BTreeMap<Role, String>,
    router: Router,
    requests: mpsc::Receiver<Incoming>,
    rules: BTreeMap<Role, u32>,
}

impl World {
    fn new() -> Self {
        let (sender, requests) = mpsc::channel(1);
        let administrators = [ROOT, SECOND_ROOT].map(|root| key(root).public());
        let mut world = Self {
            bed: Testbed::new(),
            gate: Gate::new(administrators.to_vec(), false),
            tokens: tokens(),
            router: router(sender),
            requests,
            rules: BTreeMap::new(),
        };
        OWNERS.into_iter().for_each(|owner| world.furnish(owner));
        world
    }

    fn furnish(&mut self, owner: Role) {
        let caller = self.caller(owner);
        let (bed, service) = (&mut self.bed, service(owner));
        let request = Box::new(deploy(&service, 0));
        let _answer = bed.ask_as(&caller, |reply| Change::Deploy(request, reply));
        bed.starts(&service);
        bed.write_all();
        let rules = vec![RuleRequest::new(traffic(owner), format!("service {service}"))];
        let rules = RulesRequest { rules };
        let mut added = bed.ask_as(&caller, |reply| Change::AddRules(rules, reply));
        let request = SessionRequest { name: session(owner), ..SessionRequest::default() };
        let request = Box::new(request);
        let mut made = bed.ask_as(&caller, |reply| Change::CreateSession(request, reply));
        bed.write_all();
        made.try_answer().unwrap().unwrap();
        self.rules.insert(owner, added.try_answer().unwrap().unwrap().rules[0]);
    }

    /// Returns the client of a role at the socket.
    fn caller(&self, role: Role) -> Caller {
        match self.tokens.get(&role) {
            Some(token) => Caller::Holder(self.gate.holder(token).unwrap()),
            None => Caller::Operator,
        }
    }

    /// Sends a request of a role about an object of an owner. A granted request is not carried out,
    /// so that the next one finds the same state.
    async fn ask(&mut self, role: Role, operation: Operation, owner: Role) -> Got {
        let mut request = self.request(operation, owner);
        let mut headers = HeaderMap::new();
        if let Some(token) = self.tokens.get(&role) {
            headers.insert(AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
        }
        let place = if role == Role::Nobody { Place::Remote } else { Place::Own };
        let caller = match self.gate.caller(&headers, place) {
            Ok(caller) => caller,
            Err(refusal) => return got(refusal.code.http_status()),
        };
        request.extensions_mut().insert(caller.clone());
        let response = self.router.clone().oneshot(request);
        let mut response = std::pin::pin!(response);
        let status = loop {
            tokio::select! {
                biased;
                response = &mut response => break response.unwrap().status(),
                Some(incoming) = self.requests.recv() => decide(&mut self.bed, incoming),
            }
        };
        if let Caller::Holder(holder) = caller {
            holder.take_used();
        }
        assert_ne!(status, StatusCode::BAD_REQUEST, "{operation:?} is asked wrongly");
        got(status.as_u16())
    }

    fn request(&self, operation: Operation, owner: Role) -> http::Request<Body> {
        let endpoint = ENDPOINTS.iter().find(|it| it.operation == operation).unwrap();
        let rule = self.rules[&owner].to_string();
        let name = match operation {
            Operation::AddSignatures => digest(&MODULES[0]).to_string(),
            Operation::Session | Operation::SetSession | Operation::RemoveSession => session(owner),
            _ => service(owner),
        };
        let query = match operation {
            Operation::Remove | Operation::RemoveSession => "?cascade=true".to_owned(),
            Operation::LedgerReceipt => format!("?principal={}", principal(owner)),
            _ => String::new(),
        };
        // A capture's number is here that of its rule.
        let path = endpoint.path.replace("{name}", &name).replace("{id}", &rule);
        http::Request::builder()
            .method(endpoint.method.as_str())
            .uri(path + &query)
            .header("content-type", "application/json")
            .body(Body::from(body(operation, owner, &rule)))
            .unwrap()
    }
}

/// Decides a request as the daemon does, and refuses what is granted with a failure.
fn decide(bed: &mut Testbed, Incoming { caller, request }: Incoming) {
    let rule_of_capture = |id| Some(RuleId(id));
    let checked = check_request(bed.control.state_mut(), &caller, &request, &rule_of_capture);
    match (checked, request) {
        // One that the client does not see is not there.
        (Ok(()), Request::Session(wanted, reply)) => {
            let sight = sight(bed.control.state_mut(), &caller);
            let node = bed.control.node();
            let found = node.session(&name(&wanted)).filter(|it| sight.has_session(it));
            reply.refuse(match found {
                Some(_) => failed("it is granted"),
                None => no_session(node, &sight, &wanted),
            });
        }
        (Ok(()), request) => request.refuse(failed("it is granted")),
        // Control refuses it, too, when its turn comes.
        (Err(_), Request::Change(change)) => {
            if let Caller::Holder(holder) = &caller {
                holder.take_used();
            }
            bed.control.handle_change(caller, change);
            bed.settle();
        }
        (Err(refusal), request) => request.refuse(refusal),
    }
}

fn got(status: u16) -> Got {
    match status {
        404 => Got::NotThere,
        403 => Got::Refused,
        _ => Got::Granted,
    }
}

fn service(owner: Role) -> String {
    format!("of-{owner:?}").to_lowercase()
}

fn session(owner: Role) -> String {
    format!("s-{owner:?}").to_lowercase()
}

fn traffic(owner: Role) -> &'static str {
    match owner {
        Role::Alice => "dst 10.1.7.0/24",
        Role::Bob => "dst 10.2.7.0/24",
        _ => "dst 10.3.7.0/24",
    }
}

fn principal(owner: Role) -> PublicKey {
    match owner {
        Role::Alice => key(ALICE).public(),
        Role::Bob => key(BOB).public(),
        // The node's.
        _ => key(7).public(),
    }
}

/// Returns the body of a request about an owner's things.
fn body(operation: Operation, owner: Role, rule: &str) -> Vec<u8> {
    let text = match operation {
        Operation::Deploy => serde_json::to_string(&deploy(&service(owner), 0)).unwrap(),
        Operation::Message => r#"{"data_hex": "78"}"#.to_owned(),
        Operation::Move => r#"{"level": "user"}"#.to_owned(),
        Operation::Bpf => r#"{"enabled": true}"#.to_owned(),
        Operation::CreateSession => format!(r#"{{"name": "{}"}}"#, session(owner)),
        Operation::SetSession => r#"{"weight": 7}"#.to_owned(),
        Operation::AddRules => {
            let rule = RuleRequest::new(traffic(owner).replace(".7.", ".8."), "drop");
            serde_json::to_string(&RulesRequest { rules: vec![rule] }).unwrap()
        }
        Operation::StoreModule => return MODULES[0].wasm.clone(),
        Operation::AddSignatures => {
            let file = SignatureFile::default().to_string();
            serde_json::to_string(&SignaturesRequest { file }).unwrap()
        }
        Operation::Explain => r#"{"packet": "proto udp dst 10.1.7.1 in left"}"#.to_owned(),
        Operation::Capture => format!(r#"{{"rule": {rule}}}"#),
        Operation::Apply => serde_json::to_string(&ApplyRequest::default()).unwrap(),
        Operation::Rollback => serde_json::to_string(&RollbackRequest::default()).unwrap(),
        Operation::Revoke => format!(r#"{{"revoke": ["{}"]}}"#, key(200).public()),
        _ => String::new(),
    };
    text.into_bytes()
}

/// Returns what the guide to trust says ("What a request needs").
fn expected(role: Role, operation: Operation, owner: Role) -> Got {
    use Operation as O;
    let own = match role {
        Role::Alice | Role::AliceReads => owner == Role::Alice,
        Role::Bob => owner == Role::Bob,
        _ => false,
    };
    match (role, operation) {
        // A token of an unknown signer is refused everywhere.
        (Role::Stranger, _) => Got::Refused,
        (_, O::OpenApi) => Got::Granted,
        (Role::Ended | Role::Nobody, _) => Got::Refused,
        (Role::Operator | Role::Administrator, _) => Got::Granted,
        (_, O::Sessions | O::Session | O::CreateSession | O::SetSession | O::RemoveSession) => {
            expected_of_session(role, operation, owner, own)
        }
        (_, O::Node | O::Services | O::Rules | O::Modules | O::Stats | O::Events | O::Why) => {
            Got::Granted
        }
        (
            Role::Watcher,
            O::Service
            | O::Metrics
            | O::Explain
            | O::Desired
            | O::Ledger
            | O::LedgerTotals
            | O::LedgerReceipt,
        ) => Got::Granted,
        (Role::Watcher, _) => Got::Refused,
        (_, O::LedgerReceipt | O::Service) if own => Got::Granted,
        (_, O::Service) => Got::NotThere,
        (Role::AliceReads, _) => Got::Refused,
        (
            _,
            O::Remove
            | O::Message
            | O::Move
            | O::RemoveRule
            | O::Capture
            | O::Captured
            | O::EndCapture,
        ) => {
            if own {
                Got::Granted
            } else {
                Got::NotThere
            }
        }
        // A name that is taken, and traffic that is another's.
        (_, O::Deploy | O::AddRules) if own => Got::Granted,
        (_, O::StoreModule | O::AddSignatures) => Got::Granted,
        _ => Got::Refused,
    }
}

/// Returns what the guide to trust says ("Sessions").
fn expected_of_session(role: Role, operation: Operation, owner: Role, own: bool) -> Got {
    use Operation as O;
    let reads = matches!(operation, O::Sessions | O::Session);
    match (role, operation) {
        (_, O::Sessions) | (Role::Watcher, O::Session) => Got::Granted,
        (Role::Watcher | Role::AliceReads, _) if !reads => Got::Refused,
        _ if own => Got::Granted,
        // Every holder whose token names it may see and use it; a request to create one of that
        // name is told that it exists.
        (_, O::Session | O::CreateSession) if owner == Role::Operator => Got::Granted,
        (_, O::CreateSession) => Got::Refused,
        _ if owner == Role::Operator => Got::Refused,
        _ => Got::NotThere,
    }
}

#[tokio::test(flavor = "current_thread")]
async fn every_role_has_the_specified_access_at_every_endpoint_to_objects_of_every_owner() {
    let mut world = World::new();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for endpoint in ENDPOINTS {
        for (role, owner) in ROLES.into_iter().flat_map(|role| OWNERS.map(|owner| (role, owner))) {
            let operation = endpoint.operation;
            let expected = expected(role, operation, owner);
            let got = world.ask(role, operation, owner).await;
            count += 1;
            if got != expected {
                wrong.push(format!(
                    "{role:?} {operation:?} of {owner:?}: {got:?}, not {expected:?}"
                ));
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
    assert_eq!(count, ENDPOINTS.len() * ROLES.len() * OWNERS.len());
}

#[test]
fn a_principal_sees_its_own_and_nothing_of_others() {
    let mut world = World::new();
    let all = ["of-alice", "of-bob", "of-operator"];
    for (role, services, sessions) in [
        (
            Role::Operator,
            &all[..],
            &["best-effort", "s-alice", "s-bob", "s-operator", "system"][..],
        ),
        (Role::Watcher, &all, &["best-effort", "s-alice", "s-bob", "s-operator", "system"]),
        (Role::Alice, &["of-alice"], &["best-effort", "s-alice", "s-operator"]),
        (Role::AliceReads, &["of-alice"], &["best-effort", "s-alice", "s-operator"]),
        (Role::Bob, &["of-bob"], &["best-effort", "s-bob", "s-operator"]),
    ] {
        let caller = world.caller(role);
        let sight = sight(world.bed.control.state_mut(), &caller);
        let node = world.bed.control.node();
        let seen = node.services().filter(|it| sight.has(it.session.as_str(), it.owner));
        let seen: BTreeSet<&str> = seen.map(|it| it.name.as_str()).collect();
        assert_eq!(seen, services.iter().copied().collect(), "{role:?}");
        let rules = node.rules();
        let seen = rules.iter().filter(|it| sight.has(it.rule.spec.session.as_str(), it.owner));
        assert_eq!(seen.count(), services.len(), "{role:?}");
        let seen = node.sessions().filter(|it| sight.has_session(it));
        let seen: BTreeSet<&str> = seen.map(|it| it.name.as_str()).collect();
        assert_eq!(seen, sessions.iter().copied().collect(), "{role:?}");
    }
}

/// Returns the answer to a change, code and message, if it is refused before it is tried.
fn refused(world: &mut World, caller: &Caller, change: impl FnOnce() -> Change) -> Option<String> {
    let refusal = check_change(world.bed.control.state_mut(), caller, &change()).err();
    if let Caller::Holder(holder) = caller {
        holder.take_used();
    }
    refusal.map(|it| format!("{:?}: {}", it.code, it.message))
}

/// Returns a change whose reply is discarded.
fn change<T>(change: impl FnOnce(Reply<T>) -> Change) -> Change {
    change(Reply::pair().0)
}

fn deploys(request: DeployRequest) -> Change {
    change(|reply| Change::Deploy(Box::new(request), reply))
}

#[test]
fn what_a_capability_lacks_is_named() {
    let mut world = World::new();
    let alice = world.tokens[&Role::Alice].clone();
    let mut few = Grant::all();
    few.ceilings.0[0] = Some(1);
    let narrower = |to: &Grant| narrowed(&alice, to);
    let at_user = narrower(&Grant { levels: Extent::only([Level::User]), ..Grant::all() });
    let few = narrower(&few);
    let only_m0 = ModulePattern::Name("m0".to_owned());
    let only_m0 = narrower(&Grant { modules: Extent::only([only_m0]), ..Grant::all() });
    let callers = [&alice, &at_user, &few, &only_m0];
    let [alice, at_user, few, only_m0] =
        callers.map(|token| Caller::Holder(world.gate.holder(token).unwrap()));
    let new = |module, rules: &[&str]| DeployRequest {
        rules: rules.iter().map(|it| (*it).to_owned()).collect(),
        ..deploy("new", module)
    };
    let in_system = DeployRequest { session: Some("system".to_owned()), ..new(0, &[]) };
    let older = DeployRequest { allow_older: true, ..new(0, &[]) };
    // Level user is above all others, and what begins at nic may come to kernel.
    let at_nic = DeployRequest { level: Some("nic".to_owned()), ..new(4, &[]) };
    for (caller, request, says) in [
        (&alice, new(0, &["dst 10.9.0.0/16"]), "Refused: the capability lacks traffic 10.9.0.0/16"),
        (&alice, new(0, &["proto udp"]), "lacks traffic 0.0.0.0/0, traffic ::/0"),
        (&alice, in_system, "lacks session system"),
        (&alice, older, "lacks operation administer"),
        (&at_user, at_nic.clone(), "lacks level kernel, level nic"),
        (&few, new(0, &[]), "ceiling services: 2 services, 1 at most"),
    ] {
        let said = refused(&mut world, caller, || deploys(request)).unwrap_or_default();
        assert!(said.contains(says), "{said} instead of {says}");
    }
    for (caller, request) in [
        (&alice, new(0, &["src 10.1.9.0/24", "dst 10.1.0.0/16 proto udp"])),
        (&alice, at_nic),
        (&at_user, new(0, &[])),
        (&few, deploy("of-alice", 0)),
        (&only_m0, new(0, &[])),
    ] {
        assert_eq!(refused(&mut world, caller, || deploys(request)), None);
    }
    // Whether a module of others is there or not is the same.
    let unknown = format!("sha256:{}", "0".repeat(64));
    let answers = [digest(&MODULES[2]).to_string(), unknown, "m1".to_owned()].map(|module| {
        let request = DeployRequest { module: module.clone(), ..new(0, &[]) };
        let said = refused(&mut world, &only_m0, || deploys(request)).unwrap();
        assert!(said.starts_with("NotFound"), "{said}");
        said.replace(&module, "M")
    });
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:#?}");
}

#[test]
fn sessions_of_others_are_answered_like_missing_ones() {
    let mut world = World::new();
    let grant = Grant {
        sessions: Extent::only([SESSIONS[1], SESSIONS[0], "absent"].map(str::to_owned)),
        ..ordinary("10.2.0.0/16")
    };
    let bob = world.gate.holder(&token(ROOT, BOB, &grant)).unwrap();
    let bob = Caller::Holder(bob);
    let ask = |world: &mut World, session: &str| {
        let weight = || Box::new(SessionChange { weight: Some(5), ..Default::default() });
        let mut rule = RuleRequest::new("dst 10.2.0.0/16", "drop");
        rule.session = Some(session.to_owned());
        let rules = RulesRequest { rules: vec![rule] };
        let request = DeployRequest { session: Some(session.to_owned()), ..deploy("new", 0) };
        let name = session.to_owned();
        [
            deploys(request),
            change(|reply| Change::AddRules(rules, reply)),
            change(|reply| Change::SetSession(name.clone(), weight(), reply)),
            change(|reply| Change::RemoveSession(name.clone(), true, reply)),
        ]
        .map(|change| refused(world, &bob, || change).map(|said| said.replace(session, "NAME")))
    };
    let (hers, absent) = (ask(&mut world, "s-alice"), ask(&mut world, "absent"));
    assert_eq!(hers, absent);
    let is_not_there = |said: &Option<String>| said.as_ref().unwrap().starts_with("NotFound");
    assert!(hers.iter().all(is_not_there), "{hers:?}");
    let looked_at = |world: &mut World, session: &str| {
        let sight = sight(world.bed.control.state_mut(), &bob);
        let node = world.bed.control.node();
        let said = no_session(node, &sight, session);
        (said.code, said.message.replace(session, "NAME"))
    };
    assert_eq!(looked_at(&mut world, "s-alice"), looked_at(&mut world, "s-alike"));
    // The operator's is there to be used, and not to be changed.
    let [deployed, added, set, removed] = ask(&mut world, "s-operator");
    assert_eq!((deployed, added), (None, None));
    for said in [set, removed] {
        assert!(said.as_ref().is_some_and(|said| said.starts_with("Refused")), "{said:?}");
    }
}
