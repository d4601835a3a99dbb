//! Rights: which requests are granted, refused, or answered as if their thing were not there, for
//! each client and the things of each owner (docs/guides/trust.md, "What a request needs").

use super::super::testbed::{MODULES, Testbed, client, deploy, digest, holder, key, name};
use super::*;
use crate::reply::Reply;
use api::{CaptureRequest, MoveRequest, RuleRequest, RulesRequest, SessionChange, SessionRequest};
use ledger::Period;
use node::wanted::Hops;
use session::admission::{Capacity, PortCapacity};
use trust::{Extent, Grant, ModulePattern, UnixTime};
use units::{BitsPerSecond, Bytes};

/// Numbers of the principals' keys.
const ALICE: u8 = 10;
const BOB: u8 = 11;

/// Returns the grant of a principal that runs all test modules on its own traffic.
fn ordinary(traffic: &str) -> Grant {
    use Operation::{Capture, Deploy, Message, Move, Read, Remove, Rule, Session, Store};
    let operations = [Read, Store, Deploy, Remove, Move, Message, Rule, Capture, Session];
    let sessions = ["best-effort", "s-operator", "s-alice", "s-bob"].map(str::to_owned);
    Grant {
        operations: Extent::only(operations),
        sessions: Extent::only(sessions),
        modules: Extent::only([ModulePattern::NameBegins("m".to_owned())]),
        kinds: Extent::only([Kind::Application]),
        levels: Extent::All,
        traffic: Extent::only([traffic.parse().unwrap()]),
        ..Grant::none()
    }
}

fn alices() -> Grant {
    ordinary("10.1.0.0/16")
}

fn only(operation: Operation) -> Grant {
    Grant { operations: Extent::only([operation]), ..Grant::all() }
}

fn unread<T>() -> Reply<T> {
    Reply::pair().0
}

/// Owner of the things that a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Operator,
    Alice,
    Bob,
}

impl Of {
    const ALL: [Self; 3] = [Self::Operator, Self::Alice, Self::Bob];

    fn caller(self) -> Caller {
        match self {
            Self::Operator => Caller::Operator,
            Self::Alice => client(ALICE, &alices(), &[]),
            Self::Bob => client(BOB, &ordinary("10.2.0.0/16"), &[]),
        }
    }

    fn service(self) -> String {
        format!("of-{self:?}").to_lowercase()
    }

    fn session(self) -> String {
        format!("s-{self:?}").to_lowercase()
    }

    fn traffic(self) -> &'static str {
        match self {
            Self::Operator => "dst 10.3.7.0/24",
            Self::Alice => "dst 10.1.7.0/24",
            Self::Bob => "dst 10.2.7.0/24",
        }
    }

    fn principal(self) -> PublicKey {
        let number = match self {
            // The node pays for what the operator runs.
            Self::Operator => 7,
            Self::Alice => ALICE,
            Self::Bob => BOB,
        };
        key(number).public()
    }
}

fn create(session: impl Into<String>) -> SessionRequest {
    SessionRequest { name: session.into(), ..SessionRequest::default() }
}

fn rule(r#match: &str, action: &str) -> RulesRequest {
    RulesRequest { rules: vec![RuleRequest::new(r#match, action)] }
}

/// Node with a service, a rule and a session of each owner.
struct World {
    bed: Testbed,
}

impl World {
    fn new() -> Self {
        let mut world = Self { bed: Testbed::new() };
        for of in Of::ALL {
            let (caller, service) = (of.caller(), of.service());
            world.deploy(&caller, deploy(&service, 4));
            let rules = rule(of.traffic(), &format!("service {service}"));
            world.make(&caller, |reply| Change::AddRules(rules, reply));
            world.create(&caller, create(of.session()));
        }
        world
    }

    /// Makes a change for a client that is granted it.
    fn make<T>(&mut self, caller: &Caller, change: impl FnOnce(Reply<T>) -> Change) {
        let mut awaited = self.bed.ask_as(caller, change);
        self.bed.write_all();
        awaited.try_answer().expect("it is answered").map_err(|it| it.message).unwrap();
    }

    /// Deploys a client's service and lets it run.
    fn deploy(&mut self, caller: &Caller, request: DeployRequest) {
        let service = request.name.clone().unwrap();
        let mut awaited = self.bed.ask_as(caller, |reply| Change::Deploy(Box::new(request), reply));
        assert_eq!(awaited.try_answer().map(Result::err), None, "'{service}' waits to start");
        self.bed.starts(&service);
        self.bed.write_all();
    }

    fn create(&mut self, caller: &Caller, request: SessionRequest) {
        self.make(caller, |reply| Change::CreateSession(Box::new(request), reply));
    }

    /// Returns the number of an owner's rule.
    fn rule(&self, of: Of) -> u32 {
        let rules = self.bed.control.node().numbered_rules();
        let found = rules.iter().find(|(_, rule)| rule.spec.r#match.to_string() == of.traffic());
        found.unwrap().0.0
    }

    /// Checks a request of a client; captures have the numbers of their rules.
    fn check(&mut self, caller: &Caller, request: &Request) -> Answer<()> {
        if let Caller::Holder(holder) = caller {
            holder.take_used();
        }
        let rule_of = |capture| Some(RuleId(capture));
        check_request(self.bed.control.state_mut(), caller, request, &rule_of)
    }

    fn check_deploy(&mut self, caller: &Caller, request: DeployRequest) -> Answer<()> {
        self.check(caller, &Request::Change(Change::Deploy(Box::new(request), unread())))
    }

    fn check_rules(&mut self, caller: &Caller, request: RulesRequest) -> Answer<()> {
        self.check(caller, &Request::Change(Change::AddRules(request, unread())))
    }

    fn check_create(&mut self, caller: &Caller, request: SessionRequest) -> Answer<()> {
        self.check(caller, &Request::Change(Change::CreateSession(Box::new(request), unread())))
    }

    fn check_remove(&mut self, caller: &Caller, service: &str, cascade: bool) -> Answer<()> {
        let change = Change::Remove(service.to_owned(), cascade, unread());
        self.check(caller, &Request::Change(change))
    }
}

/// Returns a sign for the answer to a request.
fn sign(answer: &Answer<()>) -> char {
    match answer {
        Ok(()) => '+',
        Err(refusal) if refusal.code == ErrorCode::Refused => '-',
        Err(refusal) if refusal.code == ErrorCode::NotFound => '0',
        Err(refusal) => panic!("{:?}: {}", refusal.code, refusal.message),
    }
}

fn refusal(answer: Answer<()>) -> (ErrorCode, String) {
    let refusal = answer.expect_err("it is refused");
    (refusal.code, refusal.message)
}

/// Makes one request about an owner's things.
type Make = fn(&World, Of) -> Request;

fn change(make: Change) -> Request {
    Request::Change(make)
}

/// Requests with what becomes of them: `+` is granted, `-` refused, `0` as if it were not there.
///
/// ```text
///  operator  administrator  reader of everything   about Bob's
///  Alice                                           about hers, the operator's, Bob's
///  Alice, narrowed to reading                      about hers, Bob's
///  Alice, of yesterday; nobody                     about hers
/// ```
fn table() -> Vec<(&'static str, &'static str, Make)> {
    const ADMINISTER: &str = "++- --- -- --";
    const EVERYBODYS: &str = "+++ --- -- --";
    const SHOWN: &str = "+++ +++ ++ --";
    const OWN: &str = "++- +00 -- --";
    const GRANTED: &str = "++- +-- -- --";
    const MODULE: &str = "++- +++ -- --";
    vec![
        ("node", SHOWN, |_, _| Request::Node(unread())),
        ("services", SHOWN, |_, _| Request::Services(unread())),
        ("rules", SHOWN, |_, _| Request::Rules(unread())),
        ("modules", SHOWN, |_, _| Request::Modules(unread())),
        ("stats", SHOWN, |_, _| Request::Stats(unread())),
        ("events", SHOWN, |_, _| Request::Events(0, 0, unread())),
        ("why", SHOWN, |_, _| Request::Why(unread())),
        ("sessions", SHOWN, |_, _| Request::Sessions(unread())),
        // Its document says that it is not there.
        ("session", SHOWN, |_, of| Request::Session(of.session(), unread())),
        ("service", "+++ +00 +0 --", |_, of| Request::Service(of.service(), unread())),
        ("message", OWN, |_, of| {
            let message = api::MessageRequest { data_hex: "00".to_owned() };
            Request::Message(of.service(), message, unread())
        }),
        ("move", OWN, |_, of| {
            let to = MoveRequest { level: "user".to_owned() };
            change(Change::Move(of.service(), to, unread()))
        }),
        ("remove", OWN, |_, of| change(Change::Remove(of.service(), false, unread()))),
        ("remove all", OWN, |_, of| change(Change::Remove(of.service(), true, unread()))),
        ("deploy", GRANTED, |_, of| {
            change(Change::Deploy(Box::new(deploy(&of.service(), 4)), unread()))
        }),
        ("add rules", GRANTED, |_, of| {
            change(Change::AddRules(rule(of.traffic(), "drop"), unread()))
        }),
        ("remove rule", OWN, |world, of| {
            change(Change::RemoveRule(RuleId(world.rule(of)), unread()))
        }),
        ("create session", "++- ++- -- --", |_, of| {
            change(Change::CreateSession(Box::new(create(of.session())), unread()))
        }),
        ("set session", "++- +-0 -- --", |_, of| {
            let weight = SessionChange { weight: Some(7), ..SessionChange::default() };
            change(Change::SetSession(of.session(), Box::new(weight), unread()))
        }),
        ("remove session", "++- +-0 -- --", |_, of| {
            change(Change::RemoveSession(of.session(), true, unread()))
        }),
        ("put module", MODULE, |_, _| Request::PutModule(MODULES[0].wasm.clone(), false, unread())),
        ("add signatures", MODULE, |_, _| {
            let signatures = api::SignaturesRequest { file: String::new() };
            Request::AddSignatures(digest(&MODULES[0]).to_string(), signatures, unread())
        }),
        ("pull", SHOWN, |_, _| Request::MayPull(digest(&MODULES[0]), unread())),
        ("want", SHOWN, |_, _| Request::WantPull(Digest::of(b""), Hops::MAX, unread())),
        ("capture a rule", OWN, |world, of| {
            let rule = Some(world.rule(of));
            Request::BeginCapture(CaptureRequest { rule, ..Default::default() }, unread())
        }),
        ("capture all", ADMINISTER, |_, _| {
            Request::BeginCapture(CaptureRequest::default(), unread())
        }),
        ("captured", OWN, |world, of| Request::Captured(world.rule(of), 0, unread())),
        ("end capture", OWN, |world, of| Request::EndCapture(world.rule(of), unread())),
        ("metrics", EVERYBODYS, |_, _| Request::Metrics(unread())),
        ("explain", EVERYBODYS, |_, _| Request::Explain(Default::default(), unread())),
        ("desired", EVERYBODYS, |_, _| Request::Desired(unread())),
        ("ledger", EVERYBODYS, |_, _| Request::Ledger(LedgerQuestion::Records(0, unread()))),
        ("totals", EVERYBODYS, |_, _| {
            let period = Period { since: UnixTime(0), until: UnixTime(1) };
            Request::Ledger(LedgerQuestion::Totals(period, unread()))
        }),
        ("receipt", "+++ +-- +- --", |_, of| {
            Request::Ledger(LedgerQuestion::Receipt(Box::new(of.principal()), 0, unread()))
        }),
        ("bpf", ADMINISTER, |_, _| {
            change(Change::Bpf(api::BpfRequest { enabled: true }, unread()))
        }),
        ("apply", ADMINISTER, |_, _| change(Change::Apply(Box::default(), unread()))),
        ("confirm", ADMINISTER, |_, _| change(Change::Confirm(unread()))),
        ("rollback", ADMINISTER, |_, _| {
            change(Change::Rollback(api::RollbackRequest::default(), unread()))
        }),
        ("hand over", ADMINISTER, |_, _| Request::HandOver(unread())),
        ("revoke", ADMINISTER, |_, _| {
            Request::Revoke(api::RevokeRequest { revoke: Vec::new() }, unread())
        }),
        ("revocations", ADMINISTER, |_, _| Request::Revocations(unread())),
        ("backup", ADMINISTER, |_, _| Request::Backup(unread())),
    ]
}

#[test]
fn each_client_reaches_only_its_own_objects_within_its_capability() {
    let reads = only(Operation::Read);
    let yesterday = Grant { until: Some(UnixTime(1_000_000_000)), ..alices() };
    let columns: Vec<(Caller, Of)> = vec![
        (Caller::Operator, Of::Bob),
        (client(12, &Grant::all(), &[]), Of::Bob),
        (client(13, &Grant::all(), std::slice::from_ref(&reads)), Of::Bob),
        (Of::Alice.caller(), Of::Alice),
        (Of::Alice.caller(), Of::Operator),
        (Of::Alice.caller(), Of::Bob),
        (client(ALICE, &alices(), std::slice::from_ref(&reads)), Of::Alice),
        (client(ALICE, &alices(), std::slice::from_ref(&reads)), Of::Bob),
        (client(ALICE, &yesterday, &[]), Of::Alice),
        (Caller::Anyone, Of::Alice),
    ];
    let mut world = World::new();
    let mut wrong = Vec::new();
    for (request, expected, make) in table() {
        let mut found = String::new();
        for (at, (caller, of)) in columns.iter().enumerate() {
            if [3, 6, 8].contains(&at) {
                found.push(' ');
            }
            let asked = make(&world, *of);
            found.push(sign(&world.check(caller, &asked)));
        }
        if found != expected {
            wrong.push(format!("{request}: {found}, not {expected}"));
        }
    }
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn what_a_deployment_lacks_is_named() {
    let mut world = World::new();
    let alice = Of::Alice.caller();
    let mut few = Grant::all();
    few.ceilings.0[0] = Some(1);
    let of = |narrowed: Grant| client(ALICE, &alices(), &[narrowed]);
    let at_user = of(Grant { levels: Extent::only([Level::User]), ..Grant::all() });
    let (few, unnamed) = (of(few), of(Grant { modules: Extent::none(), ..Grant::all() }));
    type Edit = fn(&mut DeployRequest);
    let cases: [(&Caller, Edit, ErrorCode, &str); 14] = [
        (
            &alice,
            |it| it.rules = vec!["dst 10.9.0.0/16".into()],
            ErrorCode::Refused,
            "the capability lacks traffic 10.9.0.0/16",
        ),
        (
            &alice,
            |it| it.rules = vec!["proto udp".into()],
            ErrorCode::Refused,
            "the capability lacks traffic 0.0.0.0/0, traffic ::/0",
        ),
        (
            &alice,
            |it| it.rules = vec!["dst 10.0.0.0/8".into()],
            ErrorCode::Refused,
            "the capability lacks traffic 10.0.0.0/8",
        ),
        (
            &alice,
            |it| it.session = Some("system".into()),
            ErrorCode::Refused,
            "the capability lacks session system, kind infrastructure",
        ),
        (
            &alice,
            |it| it.session = Some("s-bob".into()),
            ErrorCode::NotFound,
            "there is no session 's-bob' on this node",
        ),
        (
            &at_user,
            |it| it.level = Some("nic".into()),
            ErrorCode::Refused,
            "the capability lacks level kernel, level nic",
        ),
        (&few, |_| {}, ErrorCode::Refused, "ceiling services: 2 services, 1 at most"),
        (
            &alice,
            |it| it.allow_older = true,
            ErrorCode::Refused,
            "the capability lacks operation administer",
        ),
        (
            &alice,
            |it| it.then = vec!["of-bob".into()],
            ErrorCode::NotFound,
            "there is no service 'of-bob' on this node",
        ),
        (
            &alice,
            |it| it.name = Some("of-bob".into()),
            ErrorCode::Refused,
            "the name 'of-bob' is not free on this node",
        ),
        (
            &alice,
            |it| it.stage = Some("in".into()),
            ErrorCode::Usage,
            "the stages 'in' and 'out' are for rules of the session system",
        ),
        (
            &alice,
            |it| it.level = Some("nick".into()),
            ErrorCode::Usage,
            "'nick' is no level; did you mean 'nic'?",
        ),
        (&unnamed, |_| {}, ErrorCode::NotFound, "that the capability lets you run"),
        (
            &Caller::Anyone,
            |_| {},
            ErrorCode::Refused,
            "without a capability there is no operation deploy",
        ),
    ];
    for (caller, edit, code, says) in cases {
        let mut request = deploy("second", 4);
        edit(&mut request);
        let (found, said) = refusal(world.check_deploy(caller, request));
        assert!(found == code && said.contains(says), "{found:?} {said}\nnot {code:?} {says}");
    }
    let mut request = deploy("second", 4);
    request.rules = vec!["src 10.1.1.0/24 dst 10.9.0.0/16".into(), "dst 10.1.2.3".into()];
    request.then = vec!["of-alice".into()];
    request.session = Some("s-operator".into());
    assert_eq!(world.check_deploy(&alice, request), Ok(()), "it lacks nothing");
    let (code, said) = refusal(world.check_deploy(&Caller::Anyone, deploy("second", 4)));
    assert_eq!((code, said.contains("capability")), (ErrorCode::Refused, true), "{said}");
}

#[test]
fn a_module_runs_with_the_functions_that_are_granted_or_not_at_all() {
    let mut world = World::new();
    let manifest = r#"abi = 1\nname = \"mapper\"\nversion = \"0.1.0\"\nwindow = 64\n"#;
    let text = format!(
        r#"(module (@custom "tamandua" "{manifest}")
        (import "tam" "packet_load" (func (param i32 i32 i32) (result i32)))
        (import "tam" "now_ms" (func (result i64))) (memory (export "memory") 1)
        (func (export "on_packet") (result i32) (i32.const 0)))"#
    );
    let module = Module::check(wat::parse_str(text).unwrap()).unwrap();
    let mapper = digest(&module);
    world.bed.control.state_mut().modules_mut().insert(mapper, module);
    let request = || DeployRequest { module: mapper.to_string(), ..deploy("second", 4) };
    let (_, said) = refusal(world.check_deploy(&Of::Alice.caller(), request()));
    assert_eq!(said, "the capability lacks function now_ms, function packet_load");
    let functions = Extent::only(["now_ms", "packet_load"].map(str::to_owned));
    let able = client(ALICE, &Grant { functions, ..alices() }, &[]);
    assert_eq!(world.check_deploy(&able, request()), Ok(()));
    let functions = Extent::only(["packet_load".to_owned()]);
    let less = client(ALICE, &Grant::all(), &[Grant { functions, ..Grant::all() }]);
    let (_, said) = refusal(world.check_deploy(&less, request()));
    assert!(said.contains("function now_ms") && !said.contains("packet_load"), "{said}");
}

#[test]
fn modules_without_a_grant_are_answered_like_missing_ones() {
    let mut world = World::new();
    let patterns = [ModulePattern::Digest(*digest(&MODULES[4]).bytes())];
    let one = Grant { modules: Extent::only(patterns), ..alices() };
    let caller = client(ALICE, &one, &[]);
    let hidden = digest(&MODULES[0]).to_string();
    let absent = Digest::of(b"nothing").to_string();
    let mut answers = [&hidden, &absent, &"m0".to_owned()].map(|module| {
        let request = DeployRequest { module: module.clone(), ..deploy("second", 4) };
        let (code, said) = refusal(world.check_deploy(&caller, request));
        assert_eq!(code, ErrorCode::NotFound);
        said.replace(module.as_str(), "MODULE")
    });
    answers.sort();
    assert_eq!(answers[0], "the node has no module 'MODULE' that the capability lets you run");
    assert_eq!(answers[0], answers[2]);

    for (module, is_granted) in [(&MODULES[4], true), (&MODULES[0], false)] {
        let pull = Request::MayPull(digest(module), unread());
        assert_eq!(world.check(&caller, &pull).is_ok(), is_granted);
        let signatures = api::SignaturesRequest { file: String::new() };
        let sign = Request::AddSignatures(digest(module).to_string(), signatures, unread());
        assert_eq!(world.check(&caller, &sign).is_ok(), is_granted);
        let want = Request::WantPull(digest(module), Hops::MAX, unread());
        assert_eq!(world.check(&caller, &want).is_ok(), is_granted);
        let state = world.bed.control.state_mut();
        let wanted = check_wanted(state, &caller, Operation::Deploy, &digest(module));
        assert_eq!(wanted.is_ok(), is_granted);
        let new = check_new(state, &caller, Operation::Deploy, &digest(module), module);
        assert_eq!(new.is_ok(), is_granted);
    }
    let stored = |module: &Module| StoredModule {
        digest: digest(module),
        reference: None,
        name: Some(module.checked.manifest.name.to_string()),
        version: None,
        description: None,
        bytes: 0,
        image: digest(module),
    };
    let all: Vec<StoredModule> = MODULES.iter().map(stored).collect();
    let state = world.bed.control.state_mut();
    let seen = readable(state, &caller, all.clone());
    assert_eq!(seen.iter().map(|it| it.digest).collect::<Vec<_>>(), [digest(&MODULES[4])]);
    assert_eq!(readable(state, &Caller::Operator, all.clone()).len(), all.len());
    assert_eq!(readable(state, &Caller::Anyone, all).len(), 0);
}

#[test]
fn rules_are_of_traffic_sessions_and_ports_that_are_granted() {
    let mut world = World::new();
    let alice = Of::Alice.caller();
    let capacity = Capacity {
        ports: [(name("right"), gigabit())].into(),
        ..world.bed.control.node().capacity().cloned().unwrap_or_default()
    };
    world.bed.control.set_capacity(capacity);
    let with = |session: &str, r#match: &str, action: &str| {
        let rule = RuleRequest::new(r#match, action);
        RulesRequest { rules: vec![RuleRequest { session: Some(session.to_owned()), ..rule }] }
    };
    let mine = "dst 10.1.2.0/24";
    for request in [
        rule(mine, "drop"),
        rule("src 10.1.2.0/24 dst 8.8.8.8", "forward"),
        rule(mine, "service of-alice"),
        with("s-alice", mine, "drop"),
        with("s-operator", mine, "drop"),
    ] {
        assert_eq!(world.check_rules(&alice, request.clone()), Ok(()), "{request:?}");
    }
    let no_share = "the session 's-alice' was promised no share of the port 'right'";
    for (request, code, says) in [
        (rule("dst 10.2.2.0/24", "drop"), ErrorCode::Refused, "lacks traffic 10.2.2.0/24"),
        (rule("any", "drop"), ErrorCode::Refused, "lacks traffic 0.0.0.0/0, traffic ::/0"),
        (rule("src fd00::/64", "drop"), ErrorCode::Refused, "lacks traffic fd00::/64"),
        (rule(mine, "service of-bob"), ErrorCode::NotFound, "no service 'of-bob'"),
        (rule(mine, "service nobody"), ErrorCode::NotFound, "no service 'nobody'"),
        (with("s-bob", mine, "drop"), ErrorCode::NotFound, "no session 's-bob'"),
        (with("system", mine, "drop"), ErrorCode::Refused, "lacks session system"),
        (with("s-alice", mine, "out right"), ErrorCode::Refused, no_share),
        (rule(mine, "discard"), ErrorCode::Usage, "discard"),
        (rule("dst 10.1.2.0/33", "drop"), ErrorCode::Usage, "10.1.2.0/33"),
        (RulesRequest { rules: many(RULES_MAX + 1) }, ErrorCode::Limit, "4097 rules at once"),
    ] {
        let (found, said) = refusal(world.check_rules(&alice, request));
        assert!(found == code && said.contains(says), "{found:?} {said}\nnot {code:?} {says}");
    }
    let share = [("right".to_owned(), "1ms/10ms".to_owned())];
    let change = SessionChange { send: Some(share.into()), ..SessionChange::default() };
    world.make(&alice, |reply| Change::SetSession("s-alice".into(), Box::new(change), reply));
    assert_eq!(world.check_rules(&alice, with("s-alice", mine, "out right")), Ok(()));
    assert!(world.check_rules(&alice, with("s-alice", mine, "out left")).is_err());
}

/// Returns rules of Alice's traffic.
fn many(count: usize) -> Vec<RuleRequest> {
    vec![RuleRequest::new("dst 10.1.2.0/24", "drop"); count]
}

fn gigabit() -> PortCapacity {
    PortCapacity { rate: BitsPerSecond(1_000_000_000), packet_max: Bytes(1514) }
}

#[test]
fn a_removal_takes_nothing_of_others_along() {
    let mut world = World::new();
    let alice = Of::Alice.caller();
    let to_hers = rule("dst 10.3.9.0/24", "service of-alice");
    world.make(&Caller::Operator, |reply| Change::AddRules(to_hers, reply));
    assert_eq!(world.check_remove(&alice, "of-alice", false), Ok(()), "the node says what leads");
    let (code, said) = refusal(world.check_remove(&alice, "of-alice", true));
    assert_eq!((code, said.as_str()), (ErrorCode::Refused, "the capability lacks session *"));

    world.deploy(
        &Caller::Operator,
        DeployRequest { session: Some("s-alice".to_owned()), ..deploy("guest", 4) },
    );
    let remove =
        |cascade| Request::Change(Change::RemoveSession("s-alice".to_owned(), cascade, unread()));
    assert_eq!(world.check(&alice, &remove(false)), Ok(()));
    assert_eq!(sign(&world.check(&alice, &remove(true))), '-', "a service of the operator");
    let change = |reply| Change::Remove("guest".to_owned(), true, reply);
    let _removed = world.bed.ask(change);
    world.bed.write_all();
    world.bed.control.handle_drained(world.bed.entry("guest"));
    world.bed.settle();
    world.bed.stops("guest");
    world.bed.write_all();
    assert_eq!(world.check(&alice, &remove(true)), Ok(()));
    let mut theirs = rule("dst 10.3.10.0/24", "drop");
    theirs.rules[0].session = Some("s-alice".to_owned());
    world.make(&Caller::Operator, |reply| Change::AddRules(theirs, reply));
    assert_eq!(sign(&world.check(&alice, &remove(true))), '-', "a rule of the operator");
}

#[test]
fn a_ceiling_binds_what_a_principal_has_in_a_session() {
    let mut world = World::new();
    let mut grant = alices();
    // Each of these modules may grow to 16 MiB, and she has one service there already.
    grant.ceilings.0[2] = Some(3 * 256 * 65_536);
    let caller = client(ALICE, &grant, &[]);
    world.deploy(&caller, deploy("second", 4));
    world.deploy(&Caller::Operator, deploy("other", 4));
    assert_eq!(world.check_deploy(&caller, deploy("third", 4)), Ok(()));
    world.deploy(&caller, deploy("third", 4));
    let (_, said) = refusal(world.check_deploy(&caller, deploy("fourth", 4)));
    let says = "the capability lacks ceiling memory: 67108864 bytes, 50331648 at most";
    assert_eq!(said, says);
    assert_eq!(world.check_deploy(&caller, deploy("third", 5)), Ok(()), "in its own place");
    let elsewhere = DeployRequest { session: Some("s-alice".to_owned()), ..deploy("fourth", 4) };
    assert_eq!(world.check_deploy(&caller, elsewhere), Ok(()), "another session");
}

#[test]
fn ceilings_of_sessions_bind_all_tokens_of_one_grant_together() {
    let mut world = World::new();
    world.bed.control.set_capacity(Capacity {
        guest_cores: 4,
        packet_cores: 2,
        memory: Bytes(1 << 30),
        packet_memory: Bytes(1 << 30),
        ports: [(name("right"), gigabit())].into(),
        ..Capacity::default()
    });
    let mut grant = Grant { sessions: Extent::All, ..alices() };
    (grant.ceilings.0[1], grant.ceilings.0[3]) = (Some(500_000), Some(400_000_000));
    let whole = client(ALICE, &grant, &[]);
    let part =
        client(ALICE, &grant, &[Grant { until: Some(UnixTime(u64::MAX / 2)), ..Grant::all() }]);
    let other = client(ALICE, &Grant { functions: Extent::All, ..grant.clone() }, &[]);
    let cpu =
        |session: &str, cpu: &str| SessionRequest { cpu: vec![cpu.into()], ..create(session) };
    world.create(&whole, cpu("one", "1ms/4ms"));
    assert_eq!(world.check_create(&part, cpu("two", "1ms/4ms")), Ok(()), "just as much");
    let says = "ceiling cpu: 750000 parts of a million of one core, 500000 at most";
    for caller in [&whole, &part] {
        let (code, said) = refusal(world.check_create(caller, cpu("two", "2ms/4ms")));
        assert!(code == ErrorCode::Refused && said.contains(says), "{said}");
    }
    let below = SessionRequest { below: Some("2ms/4ms".into()), ..create("two") };
    assert_eq!(sign(&world.check_create(&part, below)), '-', "below user level counts, too");
    assert_eq!(world.check_create(&other, cpu("two", "2ms/4ms")), Ok(()), "another grant");
    let set = |cpu: &str| {
        let change = SessionChange { cpu: Some(vec![cpu.into()]), ..SessionChange::default() };
        Request::Change(Change::SetSession("one".to_owned(), Box::new(change), unread()))
    };
    assert_eq!(world.check(&part, &set("2ms/4ms")), Ok(()), "in the place of what it has");
    assert_eq!(sign(&world.check(&part, &set("3ms/4ms"))), '-');

    let send = |port: &str, share: &str| SessionRequest {
        send: [(port.into(), share.into())].into(),
        ..create("two")
    };
    assert_eq!(world.check_create(&whole, send("right", "2ms/5ms")), Ok(()));
    let (_, said) = refusal(world.check_create(&whole, send("right", "3ms/5ms")));
    let says = "ceiling bandwidth: 600000000 bits per second, 400000000 at most";
    assert!(said.contains(says), "{said}");
    // The node promises no shares of a port of unknown rate.
    assert_eq!(world.check_create(&whole, send("left", "4ms/5ms")), Ok(()));
}

#[test]
fn the_memory_of_a_session_counts_once_with_its_queue() {
    let mut world = World::new();
    let mut grant = alices();
    grant.ceilings.0[2] = Some(64 << 20);
    let caller = client(ALICE, &grant, &[]);
    let with = |memory: Option<&str>, queue: Option<&str>| SessionRequest {
        memory: memory.map(str::to_owned),
        queue: queue.map(str::to_owned),
        ..create("s-alice")
    };
    for (memory, queue, expected) in [
        (Some("64MiB"), None, '+'),
        (Some("65MiB"), None, '-'),
        (Some("64MiB"), Some("64MiB"), '+'),
        (None, Some("64MiB"), '+'),
        (None, Some("65MiB"), '-'),
    ] {
        let found = sign(&world.check_create(&caller, with(memory, queue)));
        assert_eq!(found, expected, "memory {memory:?}, queue {queue:?}");
    }
}

#[test]
fn answers_about_a_hidden_and_a_missing_session_differ_only_in_its_name() {
    let mut world = World::new();
    let alice = Of::Alice.caller();
    let set = |session: &str| {
        Request::Change(Change::SetSession(session.to_owned(), Box::default(), unread()))
    };
    let hidden = refusal(world.check(&alice, &set("s-bob")));
    let absent = refusal(world.check(&alice, &set("s-bbb")));
    assert_eq!(hidden.1.replace("s-bob", "s-bbb"), absent.1);
    assert!(!hidden.1.contains("did you mean 's-bob'"), "{}", hidden.1);
    let (code, said) = refusal(world.check_create(&alice, create("s-bob")));
    assert_eq!(code, ErrorCode::Refused);
    assert_eq!(said, "the name 's-bob' is not free on this node");
    let (_, said) = refusal(world.check_create(&alice, create("gold")));
    assert_eq!(said, "the capability lacks session gold");
    let sight = sight(world.bed.control.state_mut(), &alice);
    let node = world.bed.control.node();
    let seen = node.sessions().filter(|it| sight.has_session(it)).map(|it| it.name.to_string());
    assert_eq!(seen.collect::<Vec<_>>(), ["best-effort", "s-operator", "s-alice"]);
    let seen = node.services().filter(|it| sight.has(it.session.as_str(), it.owner));
    assert_eq!(seen.map(|it| it.name.to_string()).collect::<Vec<_>>(), ["of-alice"]);
}

#[test]
fn revoking_a_token_revokes_its_narrowed_copies_and_not_its_origin() {
    let mut world = World::new();
    let reads = only(Operation::Read);
    let (alice, delegate) = (Of::Alice.caller(), client(ALICE, &alices(), &[reads]));
    let list = || Request::Services(unread());
    let revoke = |world: &mut World, text: &str| {
        let mut revoked = crate::control::authority::Revoked::default();
        revoked.insert(text).unwrap();
        world.bed.control.state_mut().authority.revoke(revoked);
    };
    let ids = |caller: &Caller| match caller {
        Caller::Holder(holder) => holder.ids.clone(),
        _ => Vec::new(),
    };
    assert_eq!(ids(&delegate).len(), 2);
    revoke(&mut world, &ids(&delegate)[1].to_string());
    let (code, said) = refusal(world.check(&delegate, &list()));
    assert_eq!((code, said.as_str()), (ErrorCode::Refused, "the capability was revoked"));
    assert_eq!(world.check(&alice, &list()), Ok(()));
    revoke(&mut world, &ids(&alice)[0].to_string());
    assert_eq!(sign(&world.check(&alice, &list())), '-');
    assert_eq!(world.check(&Of::Bob.caller(), &list()), Ok(()));
    revoke(&mut world, &key(1).public().to_string());
    for caller in [Of::Bob.caller(), holder()] {
        assert_eq!(sign(&world.check(&caller, &list())), '-', "its administrator is revoked");
    }
    assert_eq!(world.check(&Caller::Operator, &list()), Ok(()));
}
