//! Any bytes as a message between a daemon and its cell. The daemon treats the cell's messages as
//! untrusted: hostile code may have taken over the process that runs modules.

use std::collections::BTreeMap;
use std::fmt::Debug;

use abi::{Event, HostFunction, HostFunctions, KeyField, Pool};
use bpf_maps::{Key, Mask, OwnPrefix, Rule};
use cell::protocol::{
    ArenaSpec, CellPort, CellReport, CodecSpec, Failure, FromCell, RetainedSizes, ServiceReport,
    ServiceSpec, SessionReport, SessionSpec, StateTransfer, ToCell, decode, encode,
};
use node::classifier::RuleSet;
use node::door::OwnSources;
use node::door::rules::{decode as decode_rules, encode as encode_rules};
use serde::Serialize;
use serde::de::DeserializeOwned;
use units::{Bytes, Edge, EntryId, Nanos, PortId, SessionId};

pub fn read(bytes: &[u8]) {
    reads_back::<FromCell>(bytes);
    reads_back::<ToCell>(bytes);
    reads_rules(bytes);
}

/// Reads the rules of packet ports, which the cell gets as bytes of their own.
fn reads_rules(bytes: &[u8]) {
    match decode_rules(bytes) {
        Ok((rules, own)) => {
            assert_eq!(encode_rules(&rules, &own), bytes, "one set, one way to write it")
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Parses a message; checks that an accepted one is the same after it was written and read again,
/// and takes no more memory than its length suggests.
fn reads_back<T: Serialize + DeserializeOwned + Debug>(bytes: &[u8]) {
    let message: T = match decode(bytes) {
        Ok(message) => message,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let written = encode(&message).expect("it was just read");
    // A number may be written in more bytes than it needs, and in no fewer.
    assert!(written.len() <= bytes.len());
    let again: T = decode(&written).expect("it was just written");
    assert_eq!(format!("{again:?}"), format!("{message:?}"));
}

/// Returns one rule for packets of a port.
fn own() -> OwnSources {
    let prefix = |length, address_be| OwnPrefix { length, address_be };
    let prefixes = [prefix(24, [198, 51, 100, 0]), prefix(32, [10, 0, 0, 1])];
    OwnSources::new(prefixes.into(), [PortId(1)].into())
}

fn rules() -> RuleSet {
    let mask = Mask { bits: Key { port: u16::MAX, ..Key::default() }, ..Mask::default() };
    let key = Key { port: 1, ..Key::default() };
    RuleSet { masks: vec![mask], entries: vec![(key, Rule::default())], ..RuleSet::default() }
}

/// Returns a reservation with a value for everything that can be reserved.
fn reservation() -> session::Reservation {
    let text = r#"{"cpu":["1ms/4ms+extra"],"below":"400us/4ms","memory":"64MiB","queue":"256KiB",
        "send":{"left":"2ms/6ms"},"weight":200}"#;
    serde_json::from_str(text).unwrap_or_default()
}

fn pool(name: &str, processor: u8) -> Pool {
    let events = vec![Event::Packet, Event::Timer];
    let name = units::Name::new(name).expect("a name");
    Pool { name, lanes: 1 + u16::from(processor), processor, events }
}

/// Returns a message of each kind.
pub fn seeds() -> Vec<Vec<u8>> {
    let entry = EntryId(7);
    let service = ServiceSpec {
        entry,
        name: "monitor".into(),
        session: SessionId(1),
        window: 96,
        memory_pages_min: 2,
        memory_pages_max: 16,
        lanes: 3,
        pools: vec![pool("fast", 0), pool("slow", 1)],
        flows_by: vec![KeyField::Source, KeyField::Rule],
        timer_ms: Some(1000),
        brief: true,
        parameters: BTreeMap::from([("dscp".into(), vec![46])]),
        refusals: BTreeMap::from([(1, "'dscp' is over 63".into())]),
        functions: HostFunctions::ALL.without(HostFunction::Event),
        closed: true,
        shared: Some(ArenaSpec {
            number: 9,
            used: true,
            address: 0x7f00_0000_0000,
            arena_pages: 256,
            grows: false,
            globals: 1,
            ring_length: 1 << 18,
        }),
        kept: RetainedSizes { code: 4_000, module: 700 },
    };
    let port = CellPort {
        port: PortId(1),
        name: "left".into(),
        ifindex: 3,
        queue: 0,
        mac: [2, 0, 0, 0, 0, 1],
        mtu: 1500,
        raw: false,
        in_driver: true,
        cabled: true,
        rate: None,
    };
    let report = ServiceReport {
        packets: 9,
        forwarded: 8,
        drop_module: BTreeMap::from([(7, 1)]),
        counters: BTreeMap::from([("packets".into(), 9)]),
        last_trap: Some("unreachable at module offset 0x20".into()),
        ..ServiceReport::default()
    };
    let to = [
        ToCell::Kernel,
        ToCell::AddPort(port),
        ToCell::Start(Box::new(service.clone())),
        ToCell::Replace(Box::new(service), StateTransfer::Memory),
        ToCell::Session(Box::new(SessionSpec { id: SessionId(2), reservation: reservation() })),
        ToCell::Memory(Bytes(1 << 30)),
        ToCell::MemoryOf(Some(SessionId(2))),
        ToCell::ForgetSession(SessionId(2)),
        ToCell::Adopt(vec![entry]),
        ToCell::CodecStarted(7, 4_711),
        ToCell::CodecEnded(7, "it fell".to_owned(), Nanos(9)),
        ToCell::Codecs(CodecSpec { cores: 1, missing: Some("none".to_owned()) }),
        ToCell::Target(entry, 1),
        ToCell::Edges(entry, [Edge::To(EntryId(8)), Edge::Down, Edge::Out, Edge::Out]),
        ToCell::Closed(entry, true),
        ToCell::Stop(entry),
        ToCell::Message(entry, b"flush".to_vec()),
        ToCell::Report,
    ];
    let from = [
        FromCell::PortReady(PortId(1), 0),
        FromCell::PortFailed(PortId(1), 0, "busy".into()),
        FromCell::StartFailed(entry, Failure { reason: "refused".into(), is_short: true }),
        FromCell::Replaced(entry, 250),
        FromCell::WantsCodec(7, "width=160 height=120 rate=10 pixels=rgb24".to_owned()),
        FromCell::CodecUnwanted(7),
        FromCell::RolledBack(entry, "unreachable".into()),
        FromCell::Stopped(entry, Box::new(report.clone())),
        FromCell::Trapped(entry, 0, "unreachable".into(), 3),
        FromCell::Event(entry, 1, vec![1, 2, 3]),
        FromCell::Answered(entry, vec![Some(0), None]),
        FromCell::Service(entry, Box::new(report)),
        FromCell::Sessions(vec![SessionReport {
            session: SessionId(2),
            cpu: Nanos(1_000_000),
            queue: Bytes(1500),
            dropped: 1,
            sent: Bytes(64),
            ..SessionReport::new(SessionId(2))
        }]),
        FromCell::MemoryOf(Bytes(1 << 20), Some((SessionId(2), Box::default()))),
        FromCell::SessionsReported,
        FromCell::Reported(Box::new(CellReport { frames_total: 6144, ..CellReport::default() })),
    ];
    let to = to.iter().map(encode).collect::<Vec<_>>();
    let messages = to.into_iter().chain(from.iter().map(encode)).filter_map(Result::ok);
    messages.chain([encode_rules(&rules(), &own())]).collect()
}
