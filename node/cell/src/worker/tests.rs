//! The root of a cell's process: each message of its daemon goes to the owner of what it is about.

use super::*;
use crate::PROTOCOL_VERSION;
use crate::control::link::tests::received;
use crate::dispatch::tests::{ENTRY, NEXT, OBEYS, Rig, facts};
use crate::protocol::{SessionFacts, StateWay, encode};
use crate::sched::tests::Noted;
use rustix::fd::AsFd;
use units::{Bytes, Edge, SessionId};

const NOW: CoarseInstant = CoarseInstant::from_millis(1_000);

/// A cell, and its daemon.
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

    /// Sends a message of the daemon.
    fn send(&self, message: &ToCell, fds: &[&OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        fd_passing::send(self.daemon.as_fd(), &encode(message).unwrap(), &fds).unwrap();
    }

    /// Has the cell handle what was sent.
    fn drain(&mut self) -> Result<bool> {
        self.cell.drain_messages(&mut self.buffer, NOW)
    }

    /// Returns what the cell has told since the last call, in words.
    fn told(&self) -> Vec<String> {
        received(&self.daemon).iter().map(|message| format!("{message:?}")).collect()
    }

    /// Sends a message, and returns what the cell tells.
    fn ask(&mut self, message: &ToCell, fds: &[&OwnedFd]) -> Vec<String> {
        self.send(message, fds);
        assert!(self.drain().unwrap());
        self.told()
    }

    /// Starts a service.
    fn start(&mut self, entry: EntryId) {
        let code = Rig::code_of(&facts(entry), OBEYS);
        let told = self.ask(&ToCell::Start(Box::new(facts(entry))), &[&code]);
        assert_eq!(told, [format!("Started({entry:?})")]);
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
    let told = pair.ask(&ToCell::Stop(ENTRY), &[]);
    assert!(told[0].starts_with("Stopped(EntryId(3)"), "{told:?}");
    assert!(pair.cell.dispatcher.services().is_empty());
}

#[test]
fn a_replacement_without_a_service_is_refused_and_one_with_another_counts_as_unknown() {
    let mut pair = Pair::new();
    let code = Rig::code_of(&facts(ENTRY), OBEYS);
    let replace = ToCell::Replace(Box::new(facts(ENTRY)), StateWay::Empty);
    let told = pair.ask(&replace, &[&code]);
    assert!(told[0].starts_with("ReplaceFailed(EntryId(3)"), "{told:?}");
    pair.start(ENTRY);
    let told = pair.ask(&replace, &[&code]);
    assert!(told[0].starts_with("Replaced(EntryId(3)"), "{told:?}");
    let is_unknown = |pair: &Pair| pair.cell.dispatcher.services().get(ENTRY).unwrap().is_unknown();
    assert!(is_unknown(&pair));
    assert_eq!(pair.ask(&ToCell::Target(ENTRY, 1), &[]), [""; 0], "meant for the one before");
    pair.ask(&ToCell::VersionKnown(ENTRY), &[]);
    assert!(!is_unknown(&pair));
    assert_eq!(pair.ask(&ToCell::Target(ENTRY, 1), &[]), ["TargetFailed(EntryId(3))"]);
}

#[test]
fn what_a_command_lacks_ends_the_cell_with_its_name() {
    for (message, missing) in [
        (ToCell::Start(Box::new(facts(ENTRY))), "Start came without its code"),
        (ToCell::Counts, "Counts came without their memory"),
        (ToCell::Lanes, "Lanes came without its map"),
        (ToCell::CodecStarted(1, 2), "CodecStarted came without its socket"),
        (ToCell::Taken(units::PortId(1)), "Taken came without its descriptor"),
    ] {
        let mut pair = Pair::new();
        pair.send(&message, &[]);
        assert_eq!(pair.drain().unwrap_err().to_string(), missing);
    }
}

#[test]
fn code_that_is_none_is_refused_and_the_cell_goes_on() {
    let mut pair = Pair::new();
    let code = fd_passing::sealed_memory("code", b"no code").unwrap();
    let told = pair.ask(&ToCell::Start(Box::new(facts(ENTRY))), &[&code]);
    assert!(told[0].starts_with("StartFailed(EntryId(3)"), "{told:?}");
    assert!(pair.cell.dispatcher.services().is_empty());
}

#[test]
fn memory_is_accounted_for_sessions_and_a_session_can_be_forgotten() {
    let mut pair = Pair::new();
    let total = ToCell::Memory(Bytes(64 << 20));
    assert_eq!(pair.ask(&total, &[]), [""; 0]);
    let reservation = serde_json::from_str(r#"{"memory":"16MiB"}"#).unwrap();
    let session = SessionFacts { id: SessionId(2), reservation };
    pair.ask(&ToCell::Session(Box::new(session)), &[]);
    let told = pair.ask(&ToCell::MemoryOf(Some(SessionId(2))), &[]);
    assert!(told[0].starts_with("MemoryOf(Bytes(0), Some((SessionId(2)"), "{told:?}");
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
        let told = pair.told();
        let kinds = told.iter().map(|word| word.split('(').next().unwrap().to_owned());
        rounds.push(kinds.collect::<Vec<String>>());
    }
    assert_eq!(rounds[0], ["Service"; 8], "as many as one round tells");
    assert_eq!(rounds[1..], [vec!["Service"], vec!["Sessions", "Reported"]]);
    // Nothing but what did something since.
    pair.ask(&ToCell::ReportSessions, &[]);
    let mut told = Vec::new();
    while pair.cell.reports.are_due() {
        pair.cell.send_reports().unwrap();
        told.extend(pair.told());
    }
    assert_eq!(told.last().unwrap(), "SessionsReported");
    assert!(told.len() <= 2, "{told:?}");
}

#[test]
fn a_report_on_everything_has_the_sessions_that_were_asked_for_meanwhile() {
    let mut pair = Pair::new();
    pair.ask(&ToCell::Report, &[]);
    pair.ask(&ToCell::ReportSessions, &[]);
    let mut told = Vec::new();
    while pair.cell.reports.are_due() {
        pair.cell.send_reports().unwrap();
        told.extend(pair.told());
    }
    assert!(told.last().unwrap().starts_with("Reported("), "{told:?}");
}

#[test]
fn another_daemon_keeps_what_it_knows_and_gets_the_device() {
    let mut pair = Pair::new();
    pair.start(ENTRY);
    pair.start(NEXT);
    let (_kernel, device) = std::os::unix::net::UnixDatagram::pair().unwrap();
    pair.ask(&ToCell::Up, &[&device.into()]);
    pair.ask(&ToCell::Report, &[]);
    let told = pair.ask(&ToCell::Adopt(vec![NEXT]), &[]);
    let adopted = format!(
        "Adopted(Adopted {{ protocol: {PROTOCOL_VERSION}, services: [(EntryId(5), None)], given: 1 }})"
    );
    assert_eq!(told, [adopted, "Given(Up)".to_owned()]);
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
    let told = pair.ask(&ToCell::RemovePort(units::PortId(3)), &[]);
    assert_eq!(told, [""; 0]);
    assert_eq!(pair.ask(&ToCell::Tap(None), &[]), [""; 0]);
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
    assert_eq!(pair.told(), [""; 0]);
}

#[test]
fn eight_busy_rounds_at_most_go_by_without_a_look_at_the_daemon() {
    for (busy, rounds, asked) in [(0, 0, 1), (3, 3, 4), (7, 7, 8), (8, 8, 8), (100, 8, 8)] {
        let mut calls = 0;
        let seen = busy_rounds(|| {
            calls += 1;
            calls <= busy
        });
        assert_eq!((seen, calls), (rounds, asked), "{busy}");
    }
}
