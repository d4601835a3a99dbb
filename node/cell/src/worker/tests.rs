//! Unit tests of the root of a cell's process: each message of its daemon goes to the owner of its
//! subject.

use super::*;
use crate::PROTOCOL_VERSION;
use crate::control::link::tests::received;
use crate::datapath::tests::{Wire, facts as port_facts};
use crate::dispatch::tests::{ENTRY, NEXT, OBEYS, Rig, facts};
use crate::protocol::{FromCell, SessionSpec, StateTransfer, encode};
use crate::sched::tests::Noted;
use rustix::fd::AsFd;
use std::collections::BTreeMap;
use units::{Bytes, Edge, PortId, SessionId};
use wire::FrameBuilder;

const NOW: CoarseInstant = CoarseInstant::from_millis(1_000);

/// Cell, with its daemon's end of the link.
struct Pair {
    cell: Cell<Noted>,
    daemon: OwnedFd,
    buffer: Vec<u8>,
    _directory: tempfile::TempDir,
}

impl Pair {
    fn new() -> Self {
        let Rig { dispatcher, loader, streams, link, daemon, directory, .. } = Rig::new();
        let cell = Cell {
            link,
            deferred: Deferred::default(),
            reports: Reports::default(),
            loader,
            intake: Intake::new(),
            dispatcher,
            streams,
            awake_until: CoarseInstant::ZERO,
        };
        let buffer = vec![0; fd_passing::MESSAGE_LENGTH_MAX];
        Self { cell, daemon, buffer, _directory: directory }
    }

    /// Sends a message as the daemon.
    fn send(&self, message: &ToCell, fds: &[&OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        fd_passing::send(self.daemon.as_fd(), &encode(message).unwrap(), &fds).unwrap();
    }

    /// Makes the cell handle what was sent.
    fn drain(&mut self) -> Result<bool> {
        self.cell.drain_messages(&mut self.buffer, NOW)
    }

    /// Returns the text of the cell's messages since the last call.
    fn reported(&self) -> Vec<String> {
        received(&self.daemon).iter().map(|message| format!("{message:?}")).collect()
    }

    /// Sends a message, and returns the text of the cell's messages.
    fn ask(&mut self, message: &ToCell, fds: &[&OwnedFd]) -> Vec<String> {
        self.send(message, fds);
        assert!(self.drain().unwrap());
        self.reported()
    }

    /// Starts a service.
    fn start(&mut self, entry: EntryId) {
        let code = Rig::code_of(&facts(entry), OBEYS);
        let reported = self.ask(&ToCell::Start(Box::new(facts(entry))), &[&code]);
        assert_eq!(reported, [format!("Started({entry:?})")]);
    }
}

#[test]
fn a_service_starts_is_asked_and_stops() {
    let mut pair = Pair::new();
    pair.start(ENTRY);
    assert!(pair.cell.awake_until > NOW, "its first packet is expected");
    assert_eq!(
        pair.ask(&ToCell::Message(ENTRY, vec![1]), &[]),
        ["Answered(EntryId(3), [None])"],
        "it has no hook"
    );
    assert_eq!(pair.ask(&ToCell::Message(NEXT, vec![1]), &[]), ["Answered(EntryId(5), [])"]);
    let mut edges = [Edge::Out; abi::layout::EDGES_MAX];
    edges[2] = Edge::To(NEXT);
    pair.ask(&ToCell::Edges(ENTRY, edges), &[]);
    assert_eq!(pair.cell.dispatcher.services().before(NEXT), [ENTRY]);
    let reported = pair.ask(&ToCell::Stop(ENTRY), &[]);
    assert!(reported[0].starts_with("Stopped(EntryId(3)"), "{reported:?}");
    assert!(pair.cell.dispatcher.services().is_empty());
}

#[test]
fn a_replacement_without_a_service_is_refused_and_one_with_another_counts_as_unknown() {
    let mut pair = Pair::new();
    let code = Rig::code_of(&facts(ENTRY), OBEYS);
    let replace = ToCell::Replace(Box::new(facts(ENTRY)), StateTransfer::Empty);
    let reported = pair.ask(&replace, &[&code]);
    assert!(reported[0].starts_with("ReplaceFailed(EntryId(3)"), "{reported:?}");
    pair.start(ENTRY);
    let reported = pair.ask(&replace, &[&code]);
    assert!(reported[0].starts_with("Replaced(EntryId(3)"), "{reported:?}");
    let is_unknown = |pair: &Pair| pair.cell.dispatcher.services().get(ENTRY).unwrap().is_unknown();
    assert!(is_unknown(&pair));
    assert_eq!(pair.ask(&ToCell::Target(ENTRY, 1), &[]), [""; 0], "meant for the one before");
    pair.ask(&ToCell::VersionKnown(ENTRY), &[]);
    assert!(!is_unknown(&pair));
    assert_eq!(pair.ask(&ToCell::Target(ENTRY, 1), &[]), ["TargetFailed(EntryId(3))"]);
}

#[test]
fn a_command_that_lacks_a_descriptor_ends_the_cell_with_its_name() {
    for (message, missing) in [
        (ToCell::Start(Box::new(facts(ENTRY))), "Start came without its code"),
        (ToCell::Counts, "Counts came without their memory"),
        (ToCell::Lanes, "Lanes came without its map"),
        (ToCell::CodecStarted(1, 2), "CodecStarted came without its socket"),
        (ToCell::DivertedPort(units::PortId(1)), "Taken came without its descriptor"),
    ] {
        let mut pair = Pair::new();
        pair.send(&message, &[]);
        assert_eq!(pair.drain().unwrap_err().to_string(), missing);
    }
}

#[test]
fn invalid_code_is_refused_and_the_cell_continues() {
    let mut pair = Pair::new();
    let code = fd_passing::sealed_memory("code", b"no code").unwrap();
    let reported = pair.ask(&ToCell::Start(Box::new(facts(ENTRY))), &[&code]);
    assert!(reported[0].starts_with("StartFailed(EntryId(3)"), "{reported:?}");
    assert!(pair.cell.dispatcher.services().is_empty());
}

#[test]
fn memory_is_accounted_for_sessions_and_a_session_can_be_forgotten() {
    let mut pair = Pair::new();
    let total = ToCell::Memory(Bytes(64 << 20));
    assert_eq!(pair.ask(&total, &[]), [""; 0]);
    let reservation = serde_json::from_str(r#"{"memory":"16MiB"}"#).unwrap();
    let session = SessionSpec { id: SessionId(2), reservation };
    pair.ask(&ToCell::Session(Box::new(session)), &[]);
    let reported = pair.ask(&ToCell::MemoryOf(Some(SessionId(2))), &[]);
    assert!(reported[0].starts_with("MemoryOf(Bytes(0), Some((SessionId(2)"), "{reported:?}");
    assert!(pair.cell.dispatcher.scheduler().takes_turns());
    pair.ask(&ToCell::ForgetSession(SessionId(2)), &[]);
    assert!(!pair.cell.dispatcher.scheduler().takes_turns());
}

#[test]
fn a_report_comes_in_rounds_and_ends_with_the_cell() {
    let mut pair = Pair::new();
    for entry in 0..9 {
        pair.start(EntryId(entry));
    }
    pair.ask(&ToCell::Report, &[]);
    let mut rounds = Vec::new();
    while pair.cell.reports.are_due() {
        pair.cell.send_reports().unwrap();
        let reported = pair.reported();
        let kinds = reported.iter().map(|word| word.split('(').next().unwrap().to_owned());
        rounds.push(kinds.collect::<Vec<String>>());
    }
    assert_eq!(rounds[0], ["Service"; 8], "as many as one round tells");
    assert_eq!(rounds[1..], [vec!["Service"], vec!["Sessions", "Reported"]]);
    // Only sessions that did something since are reported.
    pair.ask(&ToCell::ReportSessions, &[]);
    let mut reported = Vec::new();
    while pair.cell.reports.are_due() {
        pair.cell.send_reports().unwrap();
        reported.extend(pair.reported());
    }
    assert_eq!(reported.last().unwrap(), "SessionsReported");
    assert!(reported.len() <= 2, "{reported:?}");
}

#[test]
fn a_report_on_everything_has_the_sessions_that_were_asked_for_meanwhile() {
    let mut pair = Pair::new();
    pair.ask(&ToCell::Report, &[]);
    pair.ask(&ToCell::ReportSessions, &[]);
    let mut reported = Vec::new();
    while pair.cell.reports.are_due() {
        pair.cell.send_reports().unwrap();
        reported.extend(pair.reported());
    }
    assert!(reported.last().unwrap().starts_with("Reported("), "{reported:?}");
}

#[test]
fn an_adopting_daemon_gets_the_tap_and_unknown_services_are_removed() {
    let mut pair = Pair::new();
    pair.start(ENTRY);
    pair.start(NEXT);
    let (_kernel, device) = std::os::unix::net::UnixDatagram::pair().unwrap();
    pair.ask(&ToCell::Tap, &[&device.into()]);
    pair.ask(&ToCell::Report, &[]);
    let reported = pair.ask(&ToCell::Adopt(vec![NEXT]), &[]);
    let adopted = format!(
        "Adopted(Adopted {{ protocol: {PROTOCOL_VERSION}, services: [(EntryId(5), None)], given: 1 }})"
    );
    assert_eq!(reported, [adopted, "Returned(Tap)".to_owned()]);
    assert!(!pair.cell.reports.are_due(), "nobody waits for it any more");
    assert!(pair.cell.dispatcher.services().get(ENTRY).is_none());
}

#[test]
fn a_cell_without_a_daemon_ends_unless_it_serves() {
    for serves in [false, true] {
        let mut pair = Pair::new();
        if serves {
            pair.start(ENTRY);
        }
        let (other, _) = fd_passing::pair().unwrap();
        drop(std::mem::replace(&mut pair.daemon, other));
        assert_eq!(pair.drain().unwrap(), serves);
    }
}

#[test]
fn a_port_that_is_gone_and_rules_that_are_none_change_nothing() {
    let mut pair = Pair::new();
    let reported = pair.ask(&ToCell::RemovePort(units::PortId(3)), &[]);
    assert_eq!(reported, [""; 0]);
    assert_eq!(pair.ask(&ToCell::Capture(None), &[]), [""; 0]);
    assert_eq!(pair.ask(&ToCell::Recount(ENTRY), &[]), ["Recounting(EntryId(3))"]);
    assert_eq!(pair.ask(&ToCell::Settle(ENTRY), &[]), ["Settled(EntryId(3))"]);
    let nothing = fd_passing::sealed_memory("rules", b"none").unwrap();
    pair.send(&ToCell::Rules(1), &[&nothing]);
    assert!(pair.drain().is_err());
}

#[test]
fn the_cell_stays_awake_while_somebody_is_expected() {
    let mut pair = Pair::new();
    pair.ask(&ToCell::Expect, &[]);
    assert_eq!(pair.cell.awake_until, NOW + EXPECT);
    pair.cell.stay_awake(NOW);
    assert_eq!(pair.cell.awake_until, NOW + EXPECT, "never for less");
    pair.cell.run_deferred(NOW).unwrap();
    assert_eq!(pair.reported(), [""; 0]);
}

#[test]
fn the_daemon_is_polled_after_at_most_eight_busy_rounds() {
    for (busy, rounds, asked) in [(0, 0, 1), (3, 3, 4), (7, 7, 8), (8, 8, 8), (100, 8, 8)] {
        let mut calls = 0;
        let seen = busy_rounds(|| {
            calls += 1;
            calls <= busy
        });
        assert_eq!((seen, calls), (rounds, asked), "{busy}");
    }
}

/// Sends a sequence of messages to a cell, whose daemon then disconnects.
fn live(mut pair: Pair, messages: &[(ToCell, Vec<OwnedFd>)]) -> (Vec<FromCell>, Result<()>) {
    for (message, fds) in messages {
        pair.send(message, &fds.iter().collect::<Vec<_>>());
    }
    // The cell's messages can still be read after the daemon has stopped sending.
    rustix::net::shutdown(&pair.daemon, rustix::net::Shutdown::Write).unwrap();
    let ended = pair.cell.serve();
    (received(&pair.daemon), ended)
}

#[test]
fn the_loop_takes_frames_of_a_port_through_a_service_and_ends_with_its_daemon() {
    let pair = Pair::new();
    let ports = [PortId(0), PortId(1)].map(|port| (port, Wire::new()));
    let [(left, (left_wire, left_sockets)), (right, (right_wire, right_sockets))] = ports;
    let frame = FrameBuilder::new()
        .ethernet([2; 6], port_facts(left).mac)
        .ipv4([10, 0, 0, 1], [10, 0, 1, 2], 64)
        .udp(1, 53)
        .payload(&abi::Verdict::Redirect { port: right.0 }.to_value().to_le_bytes())
        .build();
    (0..5).for_each(|_| left_wire.come(&frame));
    let rules = node::door::rules::encode(&to_service(ENTRY), &Default::default());
    let rules = fd_passing::sealed_memory("rules", &rules).unwrap();
    let counts = crate::DoorCounts::create().unwrap();
    let code = Rig::code_of(&facts(ENTRY), OBEYS);
    let start = ToCell::Start(Box::new(facts(ENTRY)));
    let (reported, ended) = live(
        pair,
        &[
            (ToCell::AddFrames(port_facts(left), None), left_sockets.into()),
            (ToCell::AddFrames(port_facts(right), None), right_sockets.into()),
            (ToCell::Counts, vec![counts.as_fd().try_clone_to_owned().unwrap()]),
            (ToCell::Rules(3), vec![rules]),
            (start, vec![code]),
            // Frames that arrived by the port are handled before it is removed.
            (ToCell::RemovePort(left), Vec::new()),
            (ToCell::Stop(ENTRY), Vec::new()),
        ],
    );
    ended.unwrap();
    let [
        FromCell::PortReady(PortId(0), 0),
        FromCell::PortReady(PortId(1), 0),
        FromCell::Started(ENTRY),
        FromCell::Stopped(ENTRY, report),
    ] = &reported[..]
    else {
        panic!("{reported:?}");
    };
    assert_eq!((report.packets, report.redirected), (5, 5));
    assert_eq!(right_wire.sent(), vec![frame.clone(); 5]);
    let stats = counts.port(left);
    assert_eq!((stats.rx_packets, stats.rx_bytes), (5, 5 * frame.len() as u64));
    assert_eq!((counts.rules(), counts.rule(units::RuleId(0)).packets), (3, 5));
}

/// Returns rules that send UDP to port 53 to this service.
fn to_service(entry: EntryId) -> node::classifier::RuleSet {
    use node::classifier::{Destination, Lookup, Path, compile};
    use node::rule::{Rule, RuleSpec};
    let [echo, best_effort] = ["echo", "best-effort"].map(|name| units::Name::new(name).unwrap());
    let destination = Destination { entry, path: Path::Cell, kind: abi::check::Kind::Packets };
    let lookup = Lookup {
        ports: BTreeMap::new(),
        services: [(echo, destination)].into(),
        sessions: std::sync::Arc::new([(best_effort, SessionId::BEST_EFFORT)].into()),
        at_tc: Default::default(),
        down: Default::default(),
    };
    let spec =
        RuleSpec::new("proto udp dport 53".parse().unwrap(), "service echo".parse().unwrap());
    compile(&[Rule { id: units::RuleId(0), spec }], &lookup).unwrap()
}

#[test]
fn the_loop_ends_with_what_keeps_it_from_going_on() {
    let (reported, ended) =
        live(Pair::new(), &[(ToCell::Report, Vec::new()), (ToCell::Tap, Vec::new())]);
    ended.unwrap();
    assert!(
        reported.is_empty(),
        "a report has its turn behind the daemon's messages: {reported:?}"
    );
    let (_, ended) = live(Pair::new(), &[(ToCell::Lanes, Vec::new())]);
    assert_eq!(ended.unwrap_err().to_string(), "Lanes came without its map");
}

#[test]
fn maps_that_are_none_are_named() {
    for (message, what) in [
        (ToCell::Lanes, "mapping the lanes"),
        (ToCell::QueueCredits, "mapping the queue credits of sessions"),
        (ToCell::PortShares, "mapping the accounts of ports' shares"),
        (ToCell::RuleFacts, "mapping the actions of rules"),
    ] {
        let mut pair = Pair::new();
        // A socket instead of memory.
        let (other, _) = fd_passing::pair().unwrap();
        pair.send(&message, &[&other]);
        assert_eq!(pair.drain().unwrap_err().to_string(), what);
        for message in [message, ToCell::Answers] {
            let mut pair = Pair::new();
            pair.send(&message, &[]);
            let error = pair.drain().unwrap_err().to_string();
            assert_eq!(error, format!("{message:?} came without its map"));
        }
    }
}

#[test]
fn another_daemon_finds_no_packets_memory_and_no_watch_of_services_that_are_gone() {
    let mut pair = Pair::new();
    let hook = r#"
        (import "tam" "queue_watch" (func $watch (param i32 i32) (result i32)))
        (func (export "on_start") (result i32) (drop (call $watch (i32.const 50) (i32.const 25)))
          (i32.const 0))
        (func (export "on_packet") (result i32) (i32.const 1))
        (func (export "on_queue") (param i32 i32))"#;
    let code = Rig::code_of(&facts(ENTRY), hook);
    pair.ask(&ToCell::Start(Box::new(facts(ENTRY))), &[&code]);
    let session = SessionSpec { id: SessionId(2), reservation: Default::default() };
    pair.ask(&ToCell::Session(Box::new(session)), &[]);
    // Some messages wait for their turn.
    for _ in 0..3 {
        let dispatcher = &mut pair.cell.dispatcher;
        let packet = dispatcher.path_mut().packet_of(&[0; 60]).unwrap();
        let meta = bpf_maps::PacketMeta {
            entry: ENTRY.0,
            then: [bpf_maps::RULE_NONE; 2],
            ..Default::default()
        };
        let origin = crate::service::Origin::from_door(meta, Default::default(), 1);
        dispatcher.on_packet(packet, origin, &mut Round { now: NOW, link: &mut pair.cell.link });
    }
    let report = |pair: &mut Pair| {
        let sessions = pair.cell.dispatcher.scheduler_mut().sessions_mut();
        let queue = sessions.poll_report(1, Bytes::ZERO, true).unwrap().queue;
        let mut report = crate::protocol::CellReport::default();
        pair.cell.dispatcher.report(&mut report);
        (queue, report.frames_total - report.frames_free)
    };
    assert_eq!(report(&mut pair), (Bytes(3 * 4096), 3));
    pair.ask(&ToCell::Adopt(Vec::new()), &[]);
    assert_eq!(report(&mut pair), (Bytes::ZERO, 0));
    let sessions = pair.cell.dispatcher.scheduler_mut().sessions_mut();
    assert!((0..300).any(|_| !sessions.admit(SessionId::BEST_EFFORT, Bytes(4096))), "it is full");
    assert_eq!(sessions.poll_event(), None, "nobody is told");
}
