//! Unit tests of messages between daemon and cell: each is decoded as it was encoded, and anything
//! else is refused.

use super::*;
use abi::{Event, HostFunction};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use serde::de::{DeserializeOwned, Error, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Value, json};
use session::Reservation;
use tcp_intercept::Counts;
use units::Name;

/// Number of messages of each kind that are tried.
const CASES: u32 = 24;

/// Counts the variants of an enum that its derived implementation asks for.
struct Variants<'a>(&'a mut usize);

impl<'de> serde::Deserializer<'de> for Variants<'_> {
    type Error = serde::de::value::Error;

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = variants.len();
        Err(Self::Error::custom("counted"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(Self::Error::custom("no enum"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

fn variants<T: DeserializeOwned>() -> usize {
    let mut count = 0;
    assert!(T::deserialize(Variants(&mut count)).is_err());
    count
}

fn text() -> impl Strategy<Value = String> {
    vec(any::<char>(), 0..12).prop_map(String::from_iter)
}

fn entry() -> impl Strategy<Value = EntryId> {
    any::<u16>().prop_map(EntryId)
}

fn port() -> impl Strategy<Value = PortId> {
    any::<u16>().prop_map(PortId)
}

fn session() -> impl Strategy<Value = SessionId> {
    any::<u16>().prop_map(SessionId)
}

fn bytes() -> impl Strategy<Value = Bytes> {
    any::<u64>().prop_map(Bytes)
}

fn nanos() -> impl Strategy<Value = Nanos> {
    any::<u64>().prop_map(Nanos)
}

fn association() -> impl Strategy<Value = AssociationId> {
    (1..=u32::MAX).prop_map(|id| AssociationId::new(id).unwrap())
}

fn question() -> impl Strategy<Value = Question> {
    (option::of(association()), any::<[u8; 32]>())
        .prop_map(|(association, digest)| Question { association, digest })
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        entry().prop_map(Answer::Service),
        any::<u64>().prop_map(|for_ms| Answer::Refused { for_ms }),
    ]
}

fn kept() -> impl Strategy<Value = RetainedSizes> {
    any::<(u32, u32)>().prop_map(|(code, module)| RetainedSizes { code, module })
}

fn port_facts() -> impl Strategy<Value = CellPort> {
    let numbers = (port(), any::<[u32; 3]>(), any::<[u8; 6]>(), any::<[bool; 3]>());
    (numbers, text(), option::of(any::<u64>().prop_map(BitsPerSecond))).prop_map(
        |((port, [ifindex, queue, mtu], mac, [raw, cabled, in_driver]), name, rate)| CellPort {
            port,
            name,
            ifindex,
            queue,
            mac,
            mtu,
            raw,
            cabled,
            in_driver,
            rate,
        },
    )
}

fn pool() -> impl Strategy<Value = Pool> {
    let name = "[a-z][a-z0-9]{0,6}".prop_map(|name| Name::new(&name).unwrap());
    let events = vec(select(Event::ALL.to_vec()), 0..3);
    (name, any::<u16>(), any::<u8>(), events).prop_map(|(name, lanes, processor, events)| Pool {
        name,
        lanes,
        processor,
        events,
    })
}

fn shared() -> impl Strategy<Value = ArenaSpec> {
    (any::<[u64; 2]>(), any::<[u32; 3]>(), any::<[bool; 2]>()).prop_map(
        |([address, arena_pages], [number, globals, ring_length], [used, grows])| ArenaSpec {
            address,
            arena_pages,
            number,
            used,
            grows,
            globals,
            ring_length,
        },
    )
}

fn service_facts() -> impl Strategy<Value = ServiceSpec> {
    let fields = [KeyField::Source, KeyField::SourcePort, KeyField::Rule];
    let functions = select(vec![
        HostFunctions::ALL,
        HostFunctions::NONE,
        HostFunctions::NONE.with(HostFunction::Event),
    ]);
    let numbers = (entry(), session(), any::<[u32; 3]>(), any::<u16>(), any::<[bool; 2]>());
    let division = (vec(pool(), 0..3), vec(select(fields.to_vec()), 0..3), functions);
    let words = (
        text(),
        btree_map(text(), vec(any::<u8>(), 0..9), 0..3),
        btree_map(any::<u16>(), text(), 0..3),
    );
    let rest = (option::of(any::<u32>()), option::of(shared()), kept());
    (numbers, division, words, rest).prop_map(|(numbers, division, words, rest)| {
        let (entry, session, [window, memory_pages_min, memory_pages_max], lanes, flags) = numbers;
        let (pools, flows_by, functions) = division;
        let (name, parameters, refusals) = words;
        let (timer_ms, shared, kept) = rest;
        let [brief, closed] = flags;
        ServiceSpec {
            entry,
            name,
            session,
            window,
            memory_pages_min,
            memory_pages_max,
            lanes,
            pools,
            flows_by,
            timer_ms,
            brief,
            parameters,
            refusals,
            functions,
            closed,
            shared,
            kept,
        }
    })
}

fn stream_facts() -> impl Strategy<Value = StreamSpec> {
    let words = (text(), btree_map(text(), vec(any::<u8>(), 0..9), 0..3));
    (entry(), session(), any::<u32>(), any::<bool>(), words, kept()).prop_map(
        |(entry, session, memory_pages_max, closed, (name, parameters), kept)| StreamSpec {
            entry,
            name,
            session,
            memory_pages_max,
            parameters,
            closed,
            kept,
        },
    )
}

/// Returns reservations: shares from none to all, in periods that a node accepts.
fn session_facts() -> impl Strategy<Value = SessionSpec> {
    let share = (1..=10u32, 1..=4u32).prop_map(|(tenths, ms)| {
        // Slices are 100 µs at least.
        format!("{}us/{}ms", (tenths * ms * 100).max(100), ms.max(4))
    });
    let cpu = vec((share.clone(), any::<bool>()), 0..4);
    let size = || option::of((1..64u64).prop_map(|size| format!("{size}MiB")));
    let send = btree_map("[a-z]{1,5}", share.clone(), 0..3);
    let all = (session(), cpu, option::of(share), size(), size(), send, 1..=1000u16);
    all.prop_filter_map("a reservation", |(id, cpu, below, memory, queue, send, weight)| {
        let extra = |(share, extra)| if extra { format!("{share}+extra") } else { share };
        let mut text = json!({ "send": send, "weight": weight });
        text["cpu"] = cpu.into_iter().map(extra).collect();
        for (key, value) in [("below", below), ("memory", memory), ("queue", queue)] {
            if let Some(value) = value {
                text[key] = value.into();
            }
        }
        let reservation: Reservation = serde_json::from_value(text).ok()?;
        reservation.check().ok()?;
        Some(SessionSpec { id, reservation })
    })
}

fn edge() -> impl Strategy<Value = Edge> {
    prop_oneof![Just(Edge::Out), entry().prop_map(Edge::To), Just(Edge::Down)]
}

/// Returns messages of the daemon, in the order in which they are declared.
fn to_cell() -> Vec<BoxedStrategy<ToCell>> {
    use ToCell as M;
    let ways = select(vec![StateTransfer::Memory, StateTransfer::Hooks, StateTransfer::Empty]);
    let tap = any::<(u32, bool, bool)>();
    let tap =
        tap.prop_map(|(snap, arriving, dropped_only)| CaptureSpec { snap, arriving, dropped_only });
    let codecs = (any::<u16>(), option::of(text()));
    vec![
        Just(M::Kernel).boxed(),
        Just(M::KernelFrames).boxed(),
        port_facts().prop_map(M::AddPort).boxed(),
        port_facts().prop_map(M::ChangePort).boxed(),
        port().prop_map(M::RemovePort).boxed(),
        (port_facts(), option::of(port())).prop_map(|(facts, to)| M::AddFrames(facts, to)).boxed(),
        port().prop_map(M::DivertedPort).boxed(),
        any::<u64>().prop_map(M::Rules).boxed(),
        Just(M::Counts).boxed(),
        Just(M::Tap).boxed(),
        Just(M::Lanes).boxed(),
        Just(M::RuleFacts).boxed(),
        Just(M::QueueCredits).boxed(),
        Just(M::PortShares).boxed(),
        Just(M::Answers).boxed(),
        (port(), session(), any::<Option<u32>>())
            .prop_map(|(p, s, l)| M::SetPortShare(p, s, l))
            .boxed(),
        Just(M::Expect).boxed(),
        bytes().prop_map(M::Memory).boxed(),
        session_facts().prop_map(|facts| M::Session(Box::new(facts))).boxed(),
        option::of(session()).prop_map(M::MemoryOf).boxed(),
        session().prop_map(M::ForgetSession).boxed(),
        service_facts().prop_map(|facts| M::Start(Box::new(facts))).boxed(),
        stream_facts().prop_map(|facts| M::StartStreams(Box::new(facts))).boxed(),
        stream_facts().prop_map(|facts| M::ReplaceStreams(Box::new(facts))).boxed(),
        any::<bool>().prop_map(|v6| M::Sockets { v6 }).boxed(),
        codecs.prop_map(|(cores, missing)| M::Codecs(CodecSpec { cores, missing })).boxed(),
        any::<(u64, u32)>().prop_map(|(codec, pid)| M::CodecStarted(codec, pid)).boxed(),
        (any::<u64>(), text(), nanos())
            .prop_map(|(n, why, cpu)| M::CodecEnded(n, why, cpu))
            .boxed(),
        (service_facts(), ways).prop_map(|(facts, way)| M::Replace(Box::new(facts), way)).boxed(),
        entry().prop_map(M::VersionKnown).boxed(),
        (entry(), any::<u32>()).prop_map(|(entry, level)| M::Target(entry, level)).boxed(),
        (entry(), vec(edge(), EDGES_MAX))
            .prop_map(|(entry, edges)| M::Edges(entry, edges.try_into().unwrap()))
            .boxed(),
        (entry(), any::<bool>()).prop_map(|(entry, closed)| M::Closed(entry, closed)).boxed(),
        entry().prop_map(M::Recount).boxed(),
        entry().prop_map(M::Settle).boxed(),
        vec(any::<u8>(), 0..64)
            .prop_map(|keys| M::Associate(SecretBytes(Zeroizing::new(keys))))
            .boxed(),
        association().prop_map(M::Disassociate).boxed(),
        (question(), answer())
            .prop_map(|(question, answer)| M::CallAnswer(question, answer))
            .boxed(),
        entry().prop_map(M::Stop).boxed(),
        (entry(), vec(any::<u8>(), 0..99)).prop_map(|(entry, it)| M::Message(entry, it)).boxed(),
        Just(M::Report).boxed(),
        Just(M::ReportSessions).boxed(),
        option::of(tap).prop_map(M::Capture).boxed(),
        vec(entry(), 0..9).prop_map(M::Adopt).boxed(),
    ]
}

fn account() -> impl Strategy<Value = Account> {
    (option::of(bytes()), any::<[u64; 4]>()).prop_map(|(reserved, [used, peak, refused, lows])| {
        let mut account = Account::default();
        (account.reserved, account.refused, account.lows) = (reserved, refused, lows);
        (account.used, account.peak) = (Bytes(used), Bytes(peak));
        account
    })
}

fn service_report() -> impl Strategy<Value = Box<ServiceReport>> {
    let counts = any::<[u64; 7]>();
    let streams = (counts, any::<u64>(), nanos()).prop_map(|(counts, requests, cpu)| {
        let [accepted, unreachable, reset, ended, other_port, up, down] = counts;
        let counts = Counts { accepted, unreachable, reset, ended, other_port, up, down };
        StreamReport { counts, requests, cpu }
    });
    let maps = (btree_map(any::<u16>(), any::<u64>(), 0..4), btree_map(text(), any::<u64>(), 0..4));
    let rest = (option::of(text()), option::of(streams), any::<u16>());
    (any::<[u64; 6]>(), maps, rest).prop_map(|(numbers, maps, rest)| {
        let [packets, bytes, forwarded, drop_trap, sent, memory_bytes] = numbers;
        let (drop_module, counters) = maps;
        let (last_trap, streams, lanes_running) = rest;
        Box::new(ServiceReport {
            packets,
            bytes,
            forwarded,
            drop_trap,
            sent,
            memory_bytes,
            drop_module,
            traps: counters.clone(),
            counters,
            last_trap,
            streams,
            lanes_running,
            ..ServiceReport::default()
        })
    })
}

fn session_report() -> impl Strategy<Value = SessionReport> {
    (session(), any::<[u64; 4]>(), account(), any::<[u64; DEVIATIONS]>()).prop_map(
        |(session, [cpu, queue, dropped, sent], memory, deviations)| SessionReport {
            session,
            cpu: Nanos(cpu),
            queue: Bytes(queue),
            dropped,
            sent: Bytes(sent),
            memory,
            deviations,
        },
    )
}

/// Returns a report of a cell with a different number in every field.
fn cell_report(first: u64) -> CellReport {
    let mut number = first;
    let mut value = serde_json::to_value(CellReport::default()).unwrap();
    each_number(&mut value, &mut |it| {
        number += 1;
        *it = number;
    });
    serde_json::from_value(value).unwrap()
}

/// Calls `with` for every number in a value.
fn each_number(value: &mut Value, with: &mut impl FnMut(&mut u64)) {
    match value {
        Value::Number(number) => {
            let mut it = number.as_u64().unwrap();
            with(&mut it);
            *number = it.into();
        }
        Value::Object(all) => all.values_mut().for_each(|value| each_number(value, with)),
        _ => {}
    }
}

fn tapped() -> impl Strategy<Value = Box<CapturedFrame>> {
    let seen = prop_oneof![
        any::<u16>().prop_map(CapturePoint::Arrival),
        Just(CapturePoint::Departure),
        Just(CapturePoint::End)
    ];
    let who = (port(), option::of(entry()), any::<Option<u32>>(), any::<u16>());
    let what = (any::<u64>(), any::<u32>(), vec(any::<u8>(), 0..64));
    (who, what, text(), seen).prop_map(|(who, what, verdict, seen)| {
        let (port, entry, rule, session) = who;
        let (time_ns, length, bytes) = what;
        Box::new(CapturedFrame {
            time_ns,
            port,
            entry,
            rule,
            session,
            verdict,
            seen,
            length,
            bytes,
        })
    })
}

fn failure() -> impl Strategy<Value = Failure> {
    (text(), any::<bool>()).prop_map(|(reason, is_short)| Failure { reason, is_short })
}

/// Returns messages of the cell, in the order in which they are declared.
fn from_cell() -> Vec<BoxedStrategy<FromCell>> {
    use FromCell as M;
    let given = prop_oneof![
        (port(), any::<u32>()).prop_map(|(port, queue)| ReturnedFd::Socket(port, queue)),
        Just(ReturnedFd::Kernel),
        Just(ReturnedFd::Tap),
    ];
    let services = vec((entry(), any::<Option<u32>>()), 0..9);
    let adopted = (any::<u32>(), services, any::<u32>());
    vec![
        (port(), any::<u32>()).prop_map(|(port, queue)| M::PortReady(port, queue)).boxed(),
        (port(), any::<u32>(), text()).prop_map(|(p, q, why)| M::PortFailed(p, q, why)).boxed(),
        entry().prop_map(M::Started).boxed(),
        (entry(), failure()).prop_map(|(entry, why)| M::StartFailed(entry, why)).boxed(),
        any::<[u16; 2]>().prop_map(M::WantsSockets).boxed(),
        (any::<u64>(), text()).prop_map(|(codec, wish)| M::WantsCodec(codec, wish)).boxed(),
        any::<u64>().prop_map(M::CodecUnwanted).boxed(),
        (entry(), any::<u64>()).prop_map(|(entry, us)| M::Replaced(entry, us)).boxed(),
        (entry(), failure()).prop_map(|(entry, why)| M::ReplaceFailed(entry, why)).boxed(),
        entry().prop_map(M::VersionConfirmed).boxed(),
        (entry(), text()).prop_map(|(entry, why)| M::RolledBack(entry, why)).boxed(),
        entry().prop_map(M::Targeted).boxed(),
        entry().prop_map(M::TargetFailed).boxed(),
        entry().prop_map(M::Recounting).boxed(),
        entry().prop_map(M::Settled).boxed(),
        (entry(), service_report()).prop_map(|(entry, it)| M::Stopped(entry, it)).boxed(),
        (entry(), any::<u32>(), text(), any::<u64>())
            .prop_map(|(entry, lane, trap, traps)| M::Trapped(entry, lane, trap, traps))
            .boxed(),
        (entry(), any::<u32>(), vec(any::<u8>(), 0..256))
            .prop_map(|(entry, code, data)| M::Event(entry, code, data))
            .boxed(),
        (entry(), text()).prop_map(|(entry, text)| M::Log(entry, text)).boxed(),
        (entry(), vec(any::<Option<i32>>(), 0..9)).prop_map(|(e, it)| M::Answered(e, it)).boxed(),
        association().prop_map(M::Associated).boxed(),
        question().prop_map(M::Call).boxed(),
        (entry(), service_report()).prop_map(|(entry, it)| M::Service(entry, it)).boxed(),
        vec(session_report(), 0..4).prop_map(M::Sessions).boxed(),
        Just(M::SessionsReported).boxed(),
        (bytes(), option::of((session(), account().prop_map(Box::new))))
            .prop_map(|(rest, of)| M::MemoryOf(rest, of))
            .boxed(),
        any::<u32>().prop_map(|it| M::Reported(Box::new(cell_report(it.into())))).boxed(),
        tapped().prop_map(M::Captured).boxed(),
        adopted
            .prop_map(|(protocol, services, given)| {
                M::Adopted(Adopted { protocol, services, given })
            })
            .boxed(),
        given.prop_map(M::Returned).boxed(),
    ]
}

/// Encodes and decodes each kind of message, and truncates and changes the bytes.
fn check<T: Serialize + DeserializeOwned + fmt::Debug>(kinds: Vec<BoxedStrategy<T>>) {
    assert_eq!(kinds.len(), variants::<T>(), "each kind of message is tried");
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    for (number, kind) in kinds.iter().enumerate() {
        let result = TestRunner::new(config.clone()).run(kind, |message| {
            let bytes = encode(&message).unwrap();
            prop_assert_eq!(usize::from(bytes[0]), number, "in the order of the declaration");
            let read: T = decode(&bytes).unwrap();
            prop_assert_eq!(format!("{read:?}"), format!("{message:?}"));
            prop_assert_eq!(&encode(&read).unwrap(), &bytes, "also what is not shown");
            for length in 0..bytes.len() {
                prop_assert!(decode::<T>(&bytes[..length]).is_err(), "cut at {length}");
            }
            let more = [&bytes[..], &[0]].concat();
            let error = decode::<T>(&more).unwrap_err().to_string();
            prop_assert!(error.ends_with("1 bytes too many"), "{error}");
            // A later version may have one kind more.
            let later = [&[kinds.len() as u8], &bytes[1..]].concat();
            prop_assert!(decode::<T>(&later).is_err());
            Ok(())
        });
        result.unwrap_or_else(|error| panic!("message {number}: {error}"));
    }
}

#[test]
fn every_message_of_the_daemon_comes_out_as_it_went_in_and_no_part_of_one_is_taken() {
    check(to_cell());
}

#[test]
fn every_message_of_the_cell_comes_out_as_it_went_in_and_no_part_of_one_is_taken() {
    check(from_cell());
}

proptest! {
    #[test]
    fn bytes_that_are_no_message_are_refused_and_never_a_panic(
        bytes in vec(any::<u8>(), 0..300),
        kind in 0..44u8,
    ) {
        for bytes in [bytes.clone(), [&[kind], &bytes[..]].concat()] {
            // Bytes that are a message after all mean the same when they are encoded again.
            if let Ok(message) = decode::<ToCell>(&bytes) {
                let again: ToCell = decode(&encode(&message).unwrap()).unwrap();
                prop_assert_eq!(format!("{again:?}"), format!("{message:?}"));
            }
            if let Ok(message) = decode::<FromCell>(&bytes) {
                let again: FromCell = decode(&encode(&message).unwrap()).unwrap();
                prop_assert_eq!(format!("{again:?}"), format!("{message:?}"));
            }
        }
    }
}

#[test]
fn a_false_length_is_refused_without_allocating_it() {
    // A control message that claims a length of 2^63 bytes, of which none follow.
    let mut bytes = encode(&ToCell::Message(EntryId(1), Vec::new())).unwrap();
    bytes.pop();
    bytes.extend([[0xff; 9].as_slice(), &[0x01]].concat());
    assert!(decode::<ToCell>(&bytes).is_err());
}

#[test]
fn keys_are_not_shown() {
    let message = ToCell::Associate(SecretBytes(Zeroizing::new(b"key".to_vec())));
    assert_eq!(format!("{message:?}"), "Associate(3 secret bytes)");
}

#[test]
fn each_counter_of_a_service_is_a_packet_outcome_or_a_listed_exception() {
    let others = ["packets", "bytes", "sent", "sent_dropped", "memory_bytes", "lanes_running"];
    let empty = serde_json::to_value(ServiceReport::default()).unwrap();
    for (name, value) in empty.as_object().unwrap() {
        let mut report = empty.clone();
        match (name.as_str(), value) {
            ("drop_module", _) => report[name] = json!({ "7": 3 }),
            (_, Value::Number(_)) => report[name] = json!(3),
            _ => continue,
        }
        let report: ServiceReport = serde_json::from_value(report).unwrap();
        let ended = if others.contains(&name.as_str()) { 0 } else { 3 };
        let dropped = if name.starts_with("drop_") { 3 } else { 0 };
        assert_eq!((report.ended(), report.dropped()), (ended, dropped), "{name}");
    }
}

#[test]
fn reports_of_two_cells_add_up_in_every_number() {
    let sum = cell_report(0).plus(&cell_report(1_000));
    let [one, other] = [cell_report(0), cell_report(1_000)].map(|it| numbers(&it));
    let expected: Vec<u64> = one.iter().zip(&other).map(|(one, other)| one + other).collect();
    assert_eq!(numbers(&sum), expected);
    assert!(one.len() > 30, "associations are in it");
}

/// Returns every number of a report, in the order of its fields.
fn numbers(report: &CellReport) -> Vec<u64> {
    let mut all = Vec::new();
    each_number(&mut serde_json::to_value(report).unwrap(), &mut |it| all.push(*it));
    all
}

#[test]
fn each_drop_of_an_active_packet_has_its_name() {
    let report = cell_report(0).associations;
    let mut dropped: Vec<u64> = report.dropped().iter().map(|(_, count)| *count).collect();
    let all = serde_json::to_value(report).unwrap();
    // Fields that count no drops: arrivals, waiting packets, calls, packets for the kernel, and
    // live keys.
    let others = ["live", "waiting", "received", "calls", "to_kernel"];
    let all = all.as_object().unwrap().iter().filter(|(name, _)| !others.contains(&name.as_str()));
    let mut expected: Vec<u64> = all.map(|(_, count)| count.as_u64().unwrap()).collect();
    dropped.sort_unstable();
    expected.sort_unstable();
    assert_eq!(dropped, expected);
}

#[test]
fn the_reason_of_a_failure_is_cut_between_two_characters() {
    let of = |text: &str| Failure::of(&anyhow::Error::msg(text.to_owned())).reason;
    assert_eq!(of("it does not start"), "it does not start");
    let cut = of(&"é…".repeat(REASON_LENGTH_MAX));
    assert!(cut.ends_with('…') && cut.len() <= REASON_LENGTH_MAX + 3, "{}", cut.len());
}
