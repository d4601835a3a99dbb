//! Tests of tokens: against the same grants evaluated in plain Rust, with changed tokens, and with
//! tokens that are expensive to evaluate.

use super::*;
use crate::grant::{Extent, Kind};
use crate::request::{Amounts, Operation, RequestedModule};
use abi::Level;
use ipnet::IpNet;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::select;
use zeroize::Zeroizing;

const NOW: UnixTime = UnixTime(1_790_000_000);

fn seed(byte: u8) -> Seed {
    Zeroizing::new([byte; 32])
}

fn key(byte: u8) -> SecretKey {
    SecretKey::from_seed(&seed(byte))
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn minted(grant: &Grant) -> Token {
    Token::mint(&key(1), key(2).public(), grant, &seed(3)).unwrap()
}

/// Returns a token with these narrowings as a node verifies it.
fn narrowed(grant: &Grant, by: &[Grant]) -> Token {
    let mut held = minted(grant).held().unwrap();
    for (at, grant) in by.iter().enumerate() {
        held = held.narrow(grant, &seed(10 + u8::try_from(at).unwrap())).unwrap();
    }
    Token::verify(&held.to_string(), &[key(9).public(), key(1).public()]).unwrap()
}

fn monitor() -> RequestedModule {
    RequestedModule {
        digest: [7; 32],
        name: "monitor".into(),
        signers: [key(5).public().into()].into(),
        kind: Some(Kind::Application),
    }
}

fn deployment() -> AccessRequest {
    AccessRequest {
        session: Some("alice".into()),
        module: Some(monitor()),
        levels: [Level::Nic, Level::User].into(),
        functions: ["counter_add".to_owned()].into(),
        traffic: [net("10.1.2.0/24"), net("fd00:1::/64")].into(),
        amounts: Amounts([Some(3), None, None, None]),
        ..AccessRequest::to(Operation::Deploy)
    }
}

fn alices() -> Grant {
    Grant {
        operations: Extent::only([Operation::Read, Operation::Deploy]),
        sessions: Extent::only(["alice".to_owned()]),
        modules: Extent::only(["name:mon*".parse().unwrap()]),
        kinds: Extent::only([Kind::Application]),
        levels: Extent::only([Level::Nic, Level::User]),
        functions: Extent::only(["counter_add".to_owned(), "now".to_owned()]),
        traffic: Extent::only([net("10.1.0.0/16"), net("fd00:1::/32")]),
        ceilings: Amounts([Some(4), None, None, None]),
        until: Some(UnixTime(NOW.0 + 60)),
    }
}

fn lacks(token: &Token, ask: &AccessRequest, now: UnixTime) -> String {
    token.authorize(ask, now).unwrap_err().to_string()
}

#[test]
fn an_unknown_module_may_be_granted_unless_only_other_digests_are() {
    let modules = |texts: &[&str]| {
        let patterns = texts.iter().map(|text| text.parse().unwrap());
        Grant { modules: Extent::only(patterns), ..Grant::all() }
    };
    let this = format!("sha256:{}", "07".repeat(32));
    let other = format!("sha256:{}", "08".repeat(32));
    let signer = format!("signer:{}", key(5).public());
    for (granted, left, could) in [
        (Grant::all(), Grant::all(), true),
        (modules(&[&this]), Grant::all(), true),
        (modules(&[&other]), Grant::all(), false),
        (modules(&[&other, "name:mon*"]), Grant::all(), true),
        (modules(&[&signer]), Grant::all(), true),
        (modules(&[]), Grant::all(), false),
        (Grant::all(), modules(&[&other]), false),
        (modules(&["name:monitor"]), modules(&[&this]), true),
    ] {
        let token = narrowed(&granted, &[left]);
        assert_eq!(token.could_cover_module(&[7; 32]), could, "{granted:?}");
        // The negative answer is final: also with a name and signers it is not granted.
        let ask = AccessRequest { module: Some(monitor()), ..AccessRequest::to(Operation::Read) };
        assert!(could || token.authorize(&ask, NOW).is_err());
    }
}

#[test]
fn a_granted_request_is_allowed_and_the_grant_round_trips() {
    let token = narrowed(&alices(), &[]);
    assert_eq!(token.principal(), key(2).public());
    assert_eq!(token.grant(), &alices());
    assert_eq!(token.authorize(&deployment(), NOW), Ok(()));
    assert_eq!(token.authorize(&AccessRequest::to(Operation::Read), NOW), Ok(()));
    assert_eq!(narrowed(&Grant::all(), &[]).authorize(&deployment(), NOW), Ok(()));
}

#[test]
fn each_missing_right_is_named_whichever_block_omits_it() {
    type Change = fn(&mut AccessRequest);
    let cases: [(Change, &str); 9] = [
        (|ask| ask.operation = Operation::Rule, "operation rule"),
        (|ask| ask.session = Some("bob".into()), "session bob"),
        (|ask| ask.module.as_mut().unwrap().name = "touch".into(), "module name:touch"),
        (
            |ask| ask.module.as_mut().unwrap().kind = Some(Kind::Infrastructure),
            "kind infrastructure",
        ),
        (|ask| ask.levels = [Level::Kernel].into(), "level kernel"),
        (|ask| ask.functions = ["emit".to_owned()].into(), "function emit"),
        (|ask| ask.traffic = [net("10.2.0.0/24")].into(), "traffic 10.2.0.0/24"),
        (|ask| ask.traffic = [net("10.0.0.0/8")].into(), "traffic 10.0.0.0/8"),
        (|ask| ask.amounts.0[0] = Some(5), "ceiling services: 5 services, 4 at most"),
    ];
    let granted = narrowed(&alices(), &[]);
    let left = narrowed(&Grant::all(), &[Grant::all(), alices()]);
    for (change, named) in cases {
        let mut ask = deployment();
        change(&mut ask);
        let expected = format!("the capability lacks {named}");
        assert_eq!(lacks(&granted, &ask, NOW), expected);
        assert_eq!(lacks(&left, &ask, NOW), expected);
    }
    for token in [&granted, &left] {
        let later = lacks(token, &deployment(), UnixTime(NOW.0 + 65));
        assert_eq!(later, "the capability lacks time: it ended 5 s ago");
    }
    let nothing = lacks(&narrowed(&Grant::none(), &[]), &deployment(), NOW);
    for dimension in Dimension::EXTENTS {
        assert!(nothing.contains(dimension.name()), "{nothing}");
    }
}

#[test]
fn a_token_ends_at_its_time_and_not_before() {
    for token in [narrowed(&alices(), &[]), narrowed(&Grant::all(), &[alices()])] {
        let ask = AccessRequest::to(Operation::Read);
        assert_eq!(token.authorize(&ask, UnixTime(NOW.0 + 59)), Ok(()));
        assert!(token.authorize(&ask, UnixTime(NOW.0 + 60)).is_err());
        assert!(token.authorize(&ask, UnixTime(u64::MAX)).is_err());
    }
}

#[test]
fn only_tokens_signed_by_an_administrator_are_accepted() {
    let text = minted(&alices()).held().unwrap().to_string();
    let refused = |text: &str, roots: &[PublicKey]| Token::verify(text, roots).unwrap_err();
    assert_eq!(refused(&text, &[key(2).public()]), TokenError::NotOurs);
    assert_eq!(refused(&text, &[]), TokenError::NotOurs);
    assert!(Token::verify(&format!(" biscuit:{text}\n"), &[key(1).public()]).is_ok());
    for wrong in ["", "x", "biscuit:", &text[..text.len() / 2], &format!("{text}{text}")] {
        let error = refused(wrong, &[key(1).public()]);
        assert!(matches!(error, TokenError::NotAToken(_) | TokenError::NotOurs), "{error}");
    }
    let long = "a".repeat(LENGTH_MAX + 1);
    assert_eq!(refused(&long, &[]), TokenError::TooLong(long.len()));
}

#[test]
fn a_changed_token_is_never_accepted() {
    let held = minted(&alices()).held().unwrap().narrow(&alices(), &seed(4)).unwrap();
    let bytes = held.biscuit.to_vec().unwrap();
    let (mut refused, mut same) = (0, 0);
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let Ok(token) = UnverifiedBiscuit::from(&changed) else {
            refused += 1;
            continue;
        };
        match Token::verify(&token.to_base64().unwrap(), &[key(1).public()]) {
            // Parts that are not signed: the root key's number, and the encoding of a number.
            Ok(token) => {
                assert_eq!(token.revocation_ids(), held.revocation_ids(), "bit {bit}");
                same += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > bytes.len() * 7, "{refused} refused, {same} the same");
}

#[test]
fn a_block_cannot_grant_more_than_the_block_before_it() {
    let held = minted(&Grant::none()).held().unwrap();
    let wider = held.narrow(&Grant::all(), &seed(4)).unwrap();
    let block = BlockBuilder::new()
        .code("grant(\"operation\", \"read\"); all(\"operation\"); principal(\"x\");")
        .unwrap();
    let facts = held.biscuit.append_with_keypair(&pair(&seed(4)).unwrap(), block).unwrap();
    for text in [wider.to_string(), facts.to_base64().unwrap()] {
        let token = Token::verify(&text, &[key(1).public()]).unwrap();
        assert_eq!(token.principal(), key(2).public());
        assert!(token.authorize(&AccessRequest::to(Operation::Read), NOW).is_err());
    }
}

#[test]
fn expensive_tokens_are_refused_before_evaluation() {
    let held = minted(&Grant::all()).held().unwrap();
    let with = |code: &str| {
        let block = BlockBuilder::new().code(code).expect(code);
        let token = held.biscuit.append_with_keypair(&pair(&seed(4)).unwrap(), block).unwrap();
        Token::verify(&token.to_base64().unwrap(), &[key(1).public()])
    };
    let many: String = (0..200).map(|number| format!("p({number});")).collect();
    let inner = (0..99).map(|it| it.to_string()).collect::<Vec<_>>().join(",");
    let bombs = [
        format!("{many} check if p($a), p($b), p($c), $a + $b + $c == -1;"),
        "check if p($a), p($b), p($c), p($d);".to_owned(),
        "s(\"xx\"); t($a) <- s($a);".to_owned(),
        format!("check if [{inner}].all($a -> [{inner}].all($b -> $a != $b + 100));"),
        format!("{many} check if p($a), [{inner}].all($b -> $a != $b + 1000);")
            + &"check if p($a), p($b), $a == -1;".repeat(30),
    ];
    let large = (0..350).map(|it| (it * 7).to_string()).collect::<Vec<_>>().join(",");
    let text = "x".repeat(3000);
    let more = [
        "check if \"a\".matches(\"(((a{99}){99}){40})\") || true;".to_owned(),
        "check if asked(\"operation\", $o), [\"a\", \"b\"].any($r -> $o.matches($r));".to_owned(),
        "check if \"a\".extern::slow(\"b\");".to_owned(),
        // Operations on growing values: each costs what it reads, not one step.
        format!("s({{{large}}}); check if s($s), $s{}.length() > 1;", ".union($s)".repeat(300)),
        format!("s({{{large}}}); check if s($s), $s{}.length() > 1;", ".union($s)".repeat(400)),
        format!("t(\"{text}\"); check if t($t), ($t{}).length() > 1;", " + $t".repeat(400)),
        format!("s({{{large}}}); {}", "check if s($s), s($r), $s == $r;".repeat(20)),
        format!("t(\"{text}\"); {}", "check if t($t), t($r), $t.contains($r);".repeat(40)),
        format!(
            "s({{{large}}}); check if s($s), {{1}}.any($x -> $s.contains($x){});",
            " && $s.contains($x)".repeat(90)
        ),
        format!("check if {} true;", "true &&! ".repeat(400)),
    ];
    for bomb in bombs.into_iter().chain(more) {
        let refused = with(&bomb).map(|_| ()).unwrap_err();
        assert!(matches!(refused, TokenError::TooComplex { block: 1, .. }), "{refused}");
    }
    let usual = "check if asked(\"operation\", $o), [\"read\", \"deploy\"].contains($o);";
    assert_eq!(with(usual).unwrap().authorize(&deployment(), NOW), Ok(()));
    let refused = with("check if asked(\"operation\", \"read\")").unwrap();
    let said = lacks(&refused, &deployment(), NOW);
    assert!(said.starts_with("block 1 of the capability says: check if asked("), "{said}");
}

#[test]
fn a_token_is_narrowed_so_often_and_no_more() {
    let mut held = minted(&Grant::all()).held().unwrap();
    for at in 1..BLOCKS_MAX {
        let next = seed(u8::try_from(at).unwrap());
        held =
            held.narrow(&Grant { ceilings: Amounts([Some(1); 4]), ..Grant::all() }, &next).unwrap();
    }
    assert_eq!(held.blocks().len(), BLOCKS_MAX);
    let refused = held.narrow(&Grant::all(), &seed(4)).unwrap_err();
    assert_eq!(refused, TokenError::TooManyBlocks(BLOCKS_MAX + 1));
    assert!(held.blocks()[0].contains("principal("), "{:?}", held.blocks());
    let ids = held.revocation_ids();
    assert_eq!(ids.len(), BLOCKS_MAX);
    assert_eq!(ids[3].to_string().parse(), Ok(ids[3].clone()));
    let revoked: BTreeSet<_> = ids.iter().collect();
    assert_eq!(revoked.len(), BLOCKS_MAX, "each block has its own");
}

#[test]
fn values_that_a_token_cannot_hold_are_named() {
    let narrow = |grant: &Grant| minted(&Grant::all()).held().unwrap().narrow(grant, &seed(4));
    let word = Grant { sessions: Extent::only(["a\"; all(\"x\")".into()]), ..Grant::all() };
    let refused = narrow(&word).map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("is no session; it is letters, digits"), "{refused}");
    let many = Extent::only((0..65).map(|number| format!("s{number}")));
    let refused = narrow(&Grant { sessions: many, ..Grant::all() }).map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("65 values for session"), "{refused}");
}

fn extents<T: Ord + Clone + std::fmt::Debug + 'static>(
    values: Vec<T>,
) -> impl Strategy<Value = Extent<T>> {
    let most = values.len();
    prop_oneof![Just(Extent::All), btree_set(select(values), 0..=most).prop_map(Extent::Only),]
}

fn prefixes() -> Vec<IpNet> {
    ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "::/0", "fd00::/8", "fd00:1::/32"]
        .map(net)
        .to_vec()
}

fn words() -> Vec<String> {
    ["alice", "bob", "counter_add"].map(String::from).to_vec()
}

fn grants() -> impl Strategy<Value = Grant> {
    let patterns = ["name:monitor", "name:m*", "name:*", "name:touch"]
        .map(|text| text.parse().unwrap())
        .into_iter()
        .chain([ModulePattern::Digest([7; 32]), ModulePattern::Signer(key(5).public().into())])
        .collect::<Vec<ModulePattern>>();
    (
        extents(Operation::ALL.to_vec()),
        extents(words()),
        extents(patterns),
        extents(Kind::ALL.to_vec()),
        extents(Level::ALL.to_vec()),
        extents(words()),
        extents(prefixes()),
        vec(proptest::option::of(0..4_u64), 4),
        proptest::option::of(0..4_u64),
    )
        .prop_map(
            |(operations, sessions, modules, kinds, levels, functions, traffic, most, until)| {
                Grant {
                    operations,
                    sessions,
                    modules,
                    kinds,
                    levels,
                    functions,
                    traffic,
                    ceilings: Amounts(most.try_into().unwrap()),
                    until: until.map(UnixTime),
                }
            },
        )
}

fn asks() -> impl Strategy<Value = AccessRequest> {
    let kinds = proptest::option::of(any::<bool>());
    let modules = (select(vec!["monitor", "touch", "other"]), any::<bool>(), kinds).prop_map(
        |(name, signed, infrastructure)| RequestedModule {
            name: name.into(),
            digest: [if signed { 7 } else { 8 }; 32],
            signers: signed.then(|| key(5).public().into()).into_iter().collect(),
            kind: infrastructure.map(|it| Kind::ALL[usize::from(it)]),
        },
    );
    (
        select(Operation::ALL.to_vec()),
        proptest::option::of(select(words())),
        proptest::option::of(modules),
        btree_set(select(Level::ALL.to_vec()), 0..3),
        btree_set(select(words()), 0..3),
        btree_set(select(prefixes()), 0..3),
        vec(proptest::option::of(0..4_u64), 4),
    )
        .prop_map(|(operation, session, module, levels, functions, traffic, amounts)| {
            AccessRequest {
                operation,
                session,
                module,
                levels,
                functions,
                traffic,
                amounts: Amounts(amounts.try_into().unwrap()),
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Compares a token with its grants evaluated in plain Rust, each of which must allow the
    /// request.
    #[test]
    fn a_token_allows_the_intersection_of_its_grants(
        granted in grants(),
        by in vec(grants(), 0..3),
        wanted in vec(asks(), 12),
        now in 0..5_u64,
    ) {
        let token = narrowed(&granted, &by);
        for ask in wanted {
            let all = std::iter::once(&granted).chain(&by);
            let agreed = all.clone().all(|grant| grant.missing(&ask, UnixTime(now)).is_empty());
            let said = token.authorize(&ask, UnixTime(now));
            prop_assert_eq!(said.is_ok(), agreed, "{:?} for {:?} by {:?}", said, ask, token);
        }
    }
}

#[test]
fn a_prefix_lies_within_another_when_its_text_begins_with_that_ones() {
    for one in prefixes() {
        assert_eq!(crate::grant::of_bits(&bits(&one)), Some(one));
        for other in prefixes() {
            let within = bits(&one).starts_with(&bits(&other));
            assert_eq!(within, other.contains(&one), "{one} in {other}");
        }
    }
    for wrong in ["", "4:2", "4", "5:0", "4:+1", &format!("4:{}", "0".repeat(33))] {
        assert_eq!(crate::grant::of_bits(wrong), None, "{wrong}");
    }
}

#[test]
fn rules_for_any_number_of_prefixes_are_one_request() {
    let traffic: BTreeSet<IpNet> = (0..1000_u32)
        .map(|at| IpNet::new((0x0a01_0000 + at).to_be_bytes().into(), 32).unwrap())
        .collect();
    let token = narrowed(&Grant::all(), &[alices()]);
    let mut ask = AccessRequest { traffic, ..AccessRequest::to(Operation::Deploy) };
    assert_eq!(token.authorize(&ask, NOW), Ok(()));
    ask.traffic.insert(net("10.200.0.1/32"));
    assert_eq!(lacks(&token, &ask, NOW), "the capability lacks traffic 10.200.0.1/32");
}

#[test]
fn a_block_of_a_third_party_is_refused() {
    use biscuit_auth::{KeyPair, UnverifiedBiscuit};
    let held = minted(&Grant::all()).held().unwrap();
    let request = held.biscuit.third_party_request().unwrap();
    let other = KeyPair::new();
    let facts = BlockBuilder::new().code("p(1); p(2);").unwrap();
    let block = request.create_block(&other.private(), facts).unwrap();
    let token: UnverifiedBiscuit =
        held.biscuit.append_third_party(&block.serialize().unwrap()).unwrap();
    let refused = Token::verify(&token.to_base64().unwrap(), &[key(1).public()]).unwrap_err();
    assert!(refused.to_string().contains("a third party signed it"), "{refused}");
}

/// Largest narrowing of each dimension in practice, several times over.
#[test]
fn a_long_chain_of_ordinary_narrowings_is_within_the_steps() {
    let sessions = Extent::only((0..12).map(|number| format!("session-{number}")));
    let functions = Extent::only((0..12).map(|number| format!("function_{number}")));
    let traffic: Vec<_> = (0..8).map(|it| format!("10.{it}.0.0/16").parse().unwrap()).collect();
    let traffic = Extent::only(traffic);
    let grant = Grant { sessions, functions, traffic, ..Grant::all() };
    let mut held = minted(&Grant::all()).held().unwrap();
    for at in 1..8 {
        held = held.narrow(&grant, &seed(at)).unwrap();
    }
    let token = Token::verify(&held.to_string(), &[key(1).public()]).unwrap();
    assert!(token.steps() < bounds::STEPS_MAX, "{}", token.steps());
}
