//! Unit tests of a cell's services without its process: modules, and a daemon's end of the link,
//! but no port.

mod graph;
mod histories;
mod maps;
mod ports;
pub(crate) mod shared;
mod verdicts;

use super::*;
use crate::control::link::tests::received;
use crate::packet_memory::PacketMemory;
use crate::protocol::{RetainedSizes, ServiceSpec, SessionReport, StateTransfer};
use crate::sched::tests::Noted;
use crate::service::loader::Loader;
use crate::service::message::PendingMessage;
use abi::Verdict;
use sandbox::fd_passing;
use std::collections::BTreeMap;
use std::sync::Mutex;
use units::Edge;
use wire::FrameBuilder;
use xsk::Umem;

pub(crate) const ENTRY: EntryId = EntryId(3);
pub(crate) const NEXT: EntryId = EntryId(5);
const NOW: CoarseInstant = CoarseInstant::from_millis(1_000);

/// Module whose verdict on a packet is the packet's payload.
pub(crate) const OBEYS: &str =
    r#"(func (export "on_packet") (result i32) (i32.load (i32.const 0x812c)))"#;
/// Module whose verdict on a packet is the packet's payload, and that answers messages with their
/// lengths. It traps if the payload is no verdict.
const ANSWERS: &str = r#"
    (func (export "on_packet") (result i32) (i32.load (i32.const 0x812c)))
    (func (export "on_message") (param i32) (result i32) (local.get 0))"#;
/// Module that sends an event for each timer.
pub(crate) const TICKS: &str = r#"
    (import "tam" "event" (func $event (param i32 i32 i32) (result i32)))
    (func (export "on_packet") (result i32) (i32.const 0))
    (func (export "on_timer") (drop (call $event (i32.const 9) (i32.const 0) (i32.const 2))))"#;
/// Module that sends a message of 5 bytes for each packet to those before it.
const SENDS: &str = r#"
    (import "tam" "message_send" (func $send (param i32 i32) (result i32)))
    (func (export "on_packet") (result i32)
      (drop (call $send (i32.const 0) (i32.const 5))) (i32.const 1))"#;
/// Module that does not start.
const REFUSES: &str = r#"
    (func (export "on_packet") (result i32) (i32.const 0))
    (func (export "on_start") (result i32) unreachable)"#;

/// Dispatcher, with what the cell's root lends it.
pub(crate) struct Rig {
    pub(crate) engine: Engine,
    pub(crate) dispatcher: Dispatcher<Noted>,
    pub(crate) loader: Loader,
    pub(crate) streams: StreamTurns,
    pub(crate) link: Link,
    pub(crate) daemon: OwnedFd,
    pub(crate) directory: tempfile::TempDir,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (daemon, cell) = fd_passing::pair().unwrap();
        let (engine, accounts) = (Engine::new().unwrap(), Memory::new());
        let memory = PacketMemory::of(1);
        let (umem, pool) = Umem::new(64).unwrap();
        let scheduler = Scheduler::new(Noted::default(), memory, accounts.clone());
        let streams = proxy_wasm::Engine::new().unwrap();
        Self {
            dispatcher: Dispatcher::new(engine.clone(), Datapath::new(umem, pool), scheduler),
            streams: StreamTurns::new(streams, accounts.clone()).unwrap(),
            loader: Loader::new(engine.clone(), accounts),
            engine,
            link: Link::new(cell, directory.path()).unwrap(),
            daemon,
            directory,
        }
    }

    /// Compiles a module, once for all tests of a process; returns its code in sealed memory.
    pub(crate) fn code_of(facts: &ServiceSpec, body: &str) -> OwnedFd {
        static COMPILED: Mutex<BTreeMap<String, Vec<u8>>> = Mutex::new(BTreeMap::new());
        let text = format!(r#"(module {body} (memory (export "memory") 1 1))"#);
        let name = format!("{:?} {text}", facts.kind());
        let mut compiled = COMPILED.lock().unwrap();
        let code = compiled.entry(name).or_insert_with(|| {
            let wasm = wat::parse_str(text).unwrap();
            Engine::new().unwrap().compile(&wasm, facts.kind()).unwrap()
        });
        fd_passing::sealed_memory("code", code).unwrap()
    }

    /// Prepares a service, which only has to start.
    pub(crate) fn ready(&mut self, facts: ServiceSpec, body: &str) -> Ready {
        let code = Self::code_of(&facts, body);
        self.loader.prepare(facts, (&code, &[]), BTreeMap::new(), None, true).unwrap()
    }

    pub(crate) fn start(&mut self, facts: ServiceSpec, body: &str) {
        let ready = self.ready(facts, body);
        self.dispatcher.start(ready, &mut round(&mut self.link));
    }

    /// Creates a packet for that service, whose payload is this word.
    pub(crate) fn packet(&mut self, entry: EntryId, word: u32) -> (Packet, Origin) {
        let frame = FrameBuilder::new().ipv4([10, 0, 0, 1], [10, 0, 1, 2], 64).udp(1, 2);
        let bytes = frame.payload(&word.to_le_bytes()).build();
        let meta = PacketMeta {
            entry: entry.0,
            flags: 4 << 8 | 17 << 16,
            l3_offset: 14,
            l4_offset: 34,
            then: [RULE_NONE; 2],
            ..PacketMeta::default()
        };
        let origin = Origin::from_door(meta, [0; MARK_LENGTH], 1);
        (self.dispatcher.path_mut().packet_of(&bytes).unwrap(), origin)
    }

    fn give(&mut self, entry: EntryId, verdict: Verdict) {
        self.give_word(entry, verdict.to_value());
    }

    fn give_word(&mut self, entry: EntryId, word: u32) {
        let (packet, origin) = self.packet(entry, word);
        self.dispatcher.on_packet(packet, origin, &mut round(&mut self.link));
    }

    fn ask(&mut self, control: Control) -> bool {
        self.dispatcher.request(ENTRY, control, &mut round(&mut self.link))
    }

    /// Runs rounds of turns until no session has work.
    fn run_turns(&mut self) {
        let Self { dispatcher, streams, link, .. } = self;
        while dispatcher.run_turns(streams, &mut round(link)) {}
    }

    /// Adds another session, so that sessions take turns from now on.
    fn add_session(&mut self, id: u16, json: &str) {
        let facts =
            SessionSpec { id: SessionId(id), reservation: serde_json::from_str(json).unwrap() };
        self.dispatcher.set_session(pacer::now(), &facts);
    }

    /// Connects a service's edges to others: the first to the first, and so on.
    fn connect(&mut self, entry: EntryId, to: &[Edge]) {
        let mut edges = [Edge::Out; abi::layout::EDGES_MAX];
        edges[..to.len()].copy_from_slice(to);
        self.dispatcher.services_mut().get_mut(entry).unwrap().set_edges(edges);
    }

    /// Runs a turn that is over as soon as it has begun, which suspends a call that loops. Returns
    /// false if no session has work.
    fn run_short_turn(&mut self) -> bool {
        let Self { dispatcher, streams, link, .. } = self;
        let begin = pacer::now();
        dispatcher.work((begin, begin), streams, &mut round(link)).is_some()
    }

    fn stop(&mut self, entry: EntryId) -> ServiceReport {
        self.dispatcher.stop(entry, &mut round(&mut self.link))
    }

    fn session(&mut self, place: usize) -> SessionReport {
        let sessions = self.dispatcher.scheduler_mut().sessions_mut();
        sessions.poll_report(place, Bytes::ZERO, true).unwrap()
    }

    pub(crate) fn report(&mut self, entry: EntryId) -> ServiceReport {
        self.dispatcher.services_mut().get_mut(entry).unwrap().report()
    }

    fn cell(&self) -> CellReport {
        let mut report = CellReport::default();
        self.dispatcher.report(&mut report);
        report
    }

    /// Returns messages to the daemon since the last call.
    pub(crate) fn reported(&self) -> Vec<FromCell> {
        received(&self.daemon)
    }

    /// Returns the text of the messages to the daemon since the last call.
    fn words(&self) -> Vec<String> {
        self.reported().iter().map(|message| format!("{message:?}")).collect()
    }
}

/// Lends a link for a round of the loop, at the time of the tests.
pub(crate) fn round(link: &mut Link) -> Round<'_> {
    Round { now: NOW, link }
}

/// Returns the configuration of a service of the best-effort session.
pub(crate) fn facts(entry: EntryId) -> ServiceSpec {
    ServiceSpec {
        entry,
        name: "obeys".into(),
        session: SessionId::BEST_EFFORT,
        window: 64,
        memory_pages_min: 1,
        memory_pages_max: 1,
        lanes: 1,
        pools: Vec::new(),
        flows_by: Vec::new(),
        timer_ms: None,
        brief: false,
        parameters: BTreeMap::new(),
        refusals: BTreeMap::new(),
        functions: abi::HostFunctions::ALL,
        closed: false,
        shared: None,
        kept: RetainedSizes::default(),
    }
}

#[test]
fn a_service_starts_at_once_and_this_is_reported() {
    let mut rig = Rig::new();
    rig.start(facts(ENTRY), OBEYS);
    assert_eq!(rig.words(), ["Started(EntryId(3))"]);
    assert_eq!(rig.report(ENTRY).lanes_running, 1);
}

#[test]
fn a_service_that_does_not_start_is_removed_and_the_reason_reported() {
    let mut rig = Rig::new();
    rig.start(facts(ENTRY), REFUSES);
    assert!(matches!(rig.reported()[..], [FromCell::StartFailed(ENTRY, _)]));
    assert!(rig.dispatcher.services().is_empty());
}

#[test]
fn packets_end_as_their_module_says_and_each_has_one_end() {
    let mut rig = Rig::new();
    rig.start(facts(ENTRY), OBEYS);
    let free = rig.cell().frames_free;
    for verdict in [
        Verdict::PASS,
        Verdict::Pass { edge: 0, reroute: true },
        Verdict::Drop { reason: 7 },
        Verdict::Drop { reason: 7 },
        Verdict::Bounce,
        Verdict::Redirect { port: 4 },
        Verdict::Raise,
    ] {
        rig.give(ENTRY, verdict);
    }
    let report = rig.report(ENTRY);
    // The rig has no port, and no path into the kernel.
    assert_eq!((report.drop_kernel, report.drop_no_port, report.drop_raise), (2, 2, 1));
    assert_eq!(report.drop_module, BTreeMap::from([(7, 2)]));
    assert_eq!((report.packets, report.ended()), (7, 7));
    assert_eq!(rig.cell().frames_free, free, "their memory is free again");
}

#[test]
fn an_edge_leads_to_the_next_service_and_one_that_is_down_nowhere() {
    let mut rig = Rig::new();
    rig.start(facts(ENTRY), OBEYS);
    rig.start(facts(NEXT), r#"(func (export "on_packet") (result i32) (i32.const 1))"#);
    let service = rig.dispatcher.services_mut().get_mut(ENTRY).unwrap();
    let mut edges = [Edge::Out; abi::layout::EDGES_MAX];
    (edges[0], edges[1]) = (Edge::To(NEXT), Edge::Down);
    service.set_edges(edges);
    rig.give(ENTRY, Verdict::PASS);
    rig.give(ENTRY, Verdict::Pass { edge: 1, reroute: false });
    let (first, next) = (rig.report(ENTRY), rig.report(NEXT));
    assert_eq!((first.passed_on, first.drop_down, first.ended()), (1, 1, 2));
    assert_eq!((next.packets, next.drop_module.get(&0)), (1, Some(&1)));
    assert_eq!(rig.dispatcher.services().before(NEXT), [ENTRY]);
}

#[test]
fn a_packet_whose_service_was_removed_is_counted_as_without_a_service() {
    let mut rig = Rig::new();
    rig.give(ENTRY, Verdict::PASS);
    // The payload of an active packet has no other path.
    let (packet, mut origin) = rig.packet(ENTRY, 0);
    origin.meta.flags |= META_DATA;
    rig.dispatcher.on_packet(packet, origin, &mut round(&mut rig.link));
    let report = rig.cell();
    assert_eq!((report.no_service, report.no_service_dropped), (2, 2));
    assert_eq!(report.frames_free, report.frames_total);
}

#[test]
fn an_instance_that_traps_is_replaced_at_once_and_this_is_reported() {
    let mut rig = Rig::new();
    rig.start(facts(ENTRY), OBEYS);
    rig.reported();
    rig.give_word(ENTRY, 0xffff);
    rig.give(ENTRY, Verdict::Drop { reason: 1 });
    let report = rig.report(ENTRY);
    assert_eq!((report.drop_trap, report.drop_module.get(&1)), (1, Some(&1)));
    assert_eq!((report.lanes_running, report.traps.values().sum::<u64>()), (1, 1));
    assert!(matches!(rig.reported()[..], [FromCell::Trapped(ENTRY, 0, _, 1)]));
    assert_eq!(rig.dispatcher.services().poll_timeout(), CoarseInstant::ZERO, "it is looked at");
}

#[test]
fn messages_of_the_daemon_are_answered_by_every_lane() {
    let mut rig = Rig::new();
    rig.start(ServiceSpec { lanes: 3, ..facts(ENTRY) }, ANSWERS);
    assert!(rig.ask(Control::Message(PendingMessage::of_daemon([1, 2].into()))));
    let reported = rig.words();
    assert_eq!(
        reported,
        ["Started(EntryId(3))", "Answered(EntryId(3), [Some(2), Some(2), Some(2)])"]
    );
    assert!(
        !rig.dispatcher.request(NEXT, Control::Timer, &mut round(&mut rig.link)),
        "there is none"
    );
}

#[test]
fn a_module_that_has_no_hook_answers_nothing() {
    let mut rig = Rig::new();
    rig.start(facts(ENTRY), OBEYS);
    assert!(rig.ask(Control::Message(PendingMessage::of_daemon([1].into()))));
    assert_eq!(rig.words()[1], "Answered(EntryId(3), [None])");
}

#[test]
fn a_module_gets_messages_of_those_behind_it_and_each_is_counted() {
    let mut rig = Rig::new();
    rig.start(facts(ENTRY), ANSWERS);
    rig.start(facts(NEXT), SENDS);
    rig.give(NEXT, Verdict::PASS);
    assert!(rig.dispatcher.has_messages());
    rig.dispatcher.deliver_messages(&mut round(&mut rig.link));
    assert_eq!(rig.cell().messages_unheard, 1, "nobody is before it");
    let mut edges = [Edge::Out; abi::layout::EDGES_MAX];
    edges[0] = Edge::To(NEXT);
    rig.dispatcher.services_mut().get_mut(ENTRY).unwrap().set_edges(edges);
    rig.give(NEXT, Verdict::PASS);
    rig.dispatcher.deliver_messages(&mut round(&mut rig.link));
    let report = rig.cell();
    assert_eq!((report.messages_delivered, report.messages_unheard), (1, 1));
    assert!(!rig.dispatcher.has_messages());
}

#[test]
fn a_timer_is_due_by_the_exact_clock_and_its_events_are_sent() {
    let mut rig = Rig::new();
    rig.start(ServiceSpec { timer_ms: Some(1), ..facts(ENTRY) }, TICKS);
    rig.dispatcher.tick(&mut round(&mut rig.link));
    let reported = rig.words();
    assert_eq!(reported, ["Started(EntryId(3))", "Event(EntryId(3), 9, [0, 0])"]);
    assert!(rig.dispatcher.services().poll_timeout() < CoarseInstant::NEVER);
}

#[test]
fn with_another_session_packets_wait_for_their_turn() {
    let mut rig = Rig::new();
    for brief in [false, true] {
        let entry = if brief { NEXT } else { ENTRY };
        rig.start(ServiceSpec { brief, ..facts(entry) }, OBEYS);
    }
    rig.add_session(2, "{}");
    for entry in [ENTRY, NEXT, ENTRY] {
        rig.give(entry, Verdict::Drop { reason: 2 });
    }
    assert!(rig.session(1).queue > Bytes::ZERO);
    assert_eq!((rig.report(ENTRY).ended(), rig.report(NEXT).ended()), (0, 0));
    assert!(rig.dispatcher.services().is_busy(ENTRY));
    rig.run_turns();
    let of = |report: &ServiceReport| (report.packets, report.drop_module.get(&2).copied());
    assert_eq!((of(&rig.report(ENTRY)), of(&rig.report(NEXT))), ((2, Some(2)), (1, Some(1))));
    let session = rig.session(1);
    assert!(session.queue == Bytes::ZERO && session.cpu > Nanos::ZERO);
    assert!(!rig.dispatcher.services().is_busy(ENTRY));
}

#[test]
fn a_full_queue_drops_and_counts_and_queued_packets_bypass_a_stopped_service() {
    let mut rig = Rig::new();
    rig.add_session(2, r#"{"queue":"16KiB"}"#);
    rig.start(ServiceSpec { session: SessionId(2), ..facts(ENTRY) }, OBEYS);
    rig.run_turns();
    assert_eq!(rig.words(), ["Started(EntryId(3))"]);
    // A packet takes a frame of 4 KiB.
    for _ in 0..6 {
        rig.give(ENTRY, Verdict::PASS);
    }
    assert_eq!((rig.report(ENTRY).drop_queue, rig.session(2).dropped), (2, 2));
    let report = rig.dispatcher.stop(ENTRY, &mut round(&mut rig.link));
    assert_eq!((report.packets, report.drop_queue), (2, 2), "the others never came to it");
    assert_eq!((rig.cell().no_service, rig.session(2).queue), (4, Bytes::ZERO));
    rig.run_turns();
    assert_eq!(rig.cell().frames_free, rig.cell().frames_total);
}

#[test]
fn a_hook_waits_for_its_sessions_turn_too() {
    let mut rig = Rig::new();
    rig.add_session(2, "{}");
    rig.start(facts(ENTRY), ANSWERS);
    assert_eq!(rig.words(), [""; 0], "its start, too");
    rig.run_turns();
    rig.ask(Control::Message(PendingMessage::of_daemon([0; 7].into())));
    assert_eq!(rig.words(), ["Started(EntryId(3))"]);
    rig.run_turns();
    assert_eq!(rig.words(), ["Answered(EntryId(3), [Some(7)])"]);
}

#[test]
fn another_version_keeps_the_counters_and_an_early_trap_puts_the_old_one_back() {
    let mut rig = Rig::new();
    rig.start(facts(ENTRY), OBEYS);
    rig.give(ENTRY, Verdict::Drop { reason: 3 });
    let always = r#"(func (export "on_packet") (result i32) (i32.const 0x40001))"#;
    let ready = rig.ready(facts(ENTRY), always);
    assert!(rig.ask(Control::Replace(Box::new(ready), StateTransfer::Empty)));
    let reported = rig.reported();
    assert!(matches!(reported[1..], [FromCell::Replaced(ENTRY, _)]), "{reported:?}");
    rig.give(ENTRY, Verdict::PASS);
    let reasons = rig.report(ENTRY).drop_module;
    assert_eq!(reasons, BTreeMap::from([(3, 1), (4, 1)]), "counters are the name's");
    // Levels in the daemon's messages are meant for the old version, until it confirms the new one.
    assert!(rig.dispatcher.services().get(ENTRY).unwrap().is_unknown());
    let trapping = r#"(func (export "on_packet") (result i32) unreachable)"#;
    let ready = rig.ready(facts(ENTRY), trapping);
    assert!(rig.ask(Control::Replace(Box::new(ready), StateTransfer::Empty)));
    rig.reported();
    rig.give(ENTRY, Verdict::PASS);
    let reported = rig.reported();
    let [FromCell::Trapped(ENTRY, ..), FromCell::RolledBack(ENTRY, _)] = &reported[..] else {
        panic!("{reported:?}");
    };
    rig.give(ENTRY, Verdict::PASS);
    assert_eq!(rig.report(ENTRY).drop_module[&4], 2, "the version before runs again");
}

#[test]
fn a_version_with_other_lanes_cannot_have_the_state_and_the_old_one_goes_on() {
    let mut rig = Rig::new();
    rig.start(facts(ENTRY), OBEYS);
    rig.reported();
    let ready = rig.ready(ServiceSpec { lanes: 2, ..facts(ENTRY) }, OBEYS);
    assert!(rig.ask(Control::Replace(Box::new(ready), StateTransfer::Memory)));
    assert!(matches!(rig.reported()[..], [FromCell::ReplaceFailed(ENTRY, _)]));
    let ready = rig.ready(facts(ENTRY), OBEYS);
    assert!(rig.ask(Control::Replace(Box::new(ready), StateTransfer::Memory)));
    assert!(matches!(rig.reported()[..], [FromCell::Replaced(ENTRY, _)]));
}

#[test]
fn queue_credit_is_taken_from_the_session_of_a_packets_service() {
    let mut rig = Rig::new();
    rig.start(facts(ENTRY), OBEYS);
    assert!(!rig.dispatcher.set_level(ENTRY, 1, &mut round(&mut rig.link)).unwrap());
    assert_eq!(rig.words()[1..], ["TargetFailed(EntryId(3))"], "it cannot leave user level");
    let (_, origin) = rig.packet(ENTRY, 0);
    let services = rig.dispatcher.services();
    assert_eq!(services.of_session(SessionId::BEST_EFFORT), [ENTRY]);
    assert_eq!(services.payer(&origin), SessionId::BEST_EFFORT);
    rig.dispatcher.retain(|entry| entry == NEXT, &mut round(&mut rig.link));
    assert!(rig.dispatcher.services().is_empty());
    assert_eq!(rig.dispatcher.services().payer(&origin), SessionId::SYSTEM, "nobody knows");
}

#[test]
fn a_removed_session_leaves_no_packets() {
    let mut rig = Rig::new();
    rig.add_session(2, "{}");
    assert!(rig.dispatcher.scheduler().takes_turns());
    rig.dispatcher.forget_session(pacer::now(), SessionId(2));
    assert!(!rig.dispatcher.scheduler().takes_turns());
    rig.start(facts(ENTRY), OBEYS);
    rig.give(ENTRY, Verdict::Drop { reason: 0 });
    assert_eq!(rig.report(ENTRY).ended(), 1, "packets are handled as they come");
}

#[test]
fn pools_have_their_own_events_and_turns() {
    let mut rig = Rig::new();
    let pool = |name: &str, processor, events: &[abi::Event]| abi::Pool {
        name: units::Name::new(name).unwrap(),
        lanes: 1,
        processor,
        events: events.to_vec(),
    };
    let pools = vec![
        pool("fast", 0, &[abi::Event::Packet]),
        pool("slow", 1, &[abi::Event::Timer, abi::Event::Message]),
    ];
    rig.add_session(2, "{}");
    let declared = ServiceSpec { lanes: 2, pools, session: SessionId(2), ..facts(ENTRY) };
    rig.start(declared, ANSWERS);
    rig.run_turns();
    rig.ask(Control::Message(PendingMessage::of_daemon([0; 3].into())));
    rig.give(ENTRY, Verdict::Drop { reason: 1 });
    rig.run_turns();
    assert_eq!(rig.words(), ["Started(EntryId(3))", "Answered(EntryId(3), [Some(3)])"]);
    let report = rig.report(ENTRY);
    assert_eq!((report.lanes_running, report.drop_module.get(&1)), (2, Some(&1)));
}

#[test]
fn a_packet_of_a_graph_is_queued_at_each_service_for_its_turn() {
    let mut rig = Rig::new();
    rig.add_session(2, "{}");
    rig.start(facts(ENTRY), OBEYS);
    rig.start(facts(NEXT), r#"(func (export "on_packet") (result i32) (i32.const 1))"#);
    rig.run_turns();
    let mut edges = [Edge::Out; abi::layout::EDGES_MAX];
    edges[0] = Edge::To(NEXT);
    rig.dispatcher.services_mut().get_mut(ENTRY).unwrap().set_edges(edges);
    for _ in 0..3 {
        rig.give(ENTRY, Verdict::PASS);
    }
    rig.run_turns();
    let (first, next) = (rig.report(ENTRY), rig.report(NEXT));
    assert_eq!((first.passed_on, next.packets, next.drop_module.get(&0)), (3, 3, Some(&3)));
    assert_eq!(rig.session(1).queue, Bytes::ZERO);
    assert_eq!(rig.cell().frames_free, rig.cell().frames_total);
}

#[test]
fn low_memory_is_notified_once_in_its_sessions_turns() {
    let mut rig = Rig::new();
    let hook = r#"
        (import "tam" "event" (func $event (param i32 i32 i32) (result i32)))
        (func (export "on_packet") (result i32) (i32.const 0))
        (func (export "on_memory_low") (param i32 i32)
          (drop (call $event (local.get 1) (i32.const 0) (i32.const 0))))"#;
    rig.start(facts(ENTRY), hook);
    let low = session::memory::LowMemory {
        session: SessionId::BEST_EFFORT,
        used: Bytes(7 << 10),
        most: Bytes(8 << 10),
    };
    assert!(rig.ask(Control::MemoryLow(low)));
    assert_eq!(rig.words(), ["Started(EntryId(3))", "Event(EntryId(3), 8, [])"]);
}

#[test]
fn a_service_that_watches_its_queue_is_notified() {
    let mut rig = Rig::new();
    let hook = r#"
        (import "tam" "queue_watch" (func $watch (param i32 i32) (result i32)))
        (import "tam" "event" (func $event (param i32 i32 i32) (result i32)))
        (func (export "on_start") (result i32) (drop (call $watch (i32.const 50) (i32.const 25)))
          (i32.const 0))
        (func (export "on_packet") (result i32) (i32.const 1))
        (func (export "on_queue") (param i32 i32)
          (drop (call $event (local.get 0) (i32.const 0) (i32.const 0))))"#;
    rig.add_session(2, r#"{"queue":"16KiB"}"#);
    rig.start(ServiceSpec { session: SessionId(2), ..facts(ENTRY) }, hook);
    rig.run_turns();
    for _ in 0..3 {
        rig.give(ENTRY, Verdict::PASS);
    }
    rig.dispatcher.report_queues(&mut round(&mut rig.link));
    rig.run_turns();
    rig.dispatcher.report_queues(&mut round(&mut rig.link));
    rig.run_turns();
    let reported = rig.words();
    assert_eq!(
        reported.len(),
        3,
        "its start, that it was long, and that it is short again: {reported:?}"
    );
    assert!(reported[1..].iter().all(|it| it.starts_with("Event(EntryId(3)")), "{reported:?}");
}

#[test]
fn captured_packets_are_sent_and_unread_ones_counted() {
    let mut rig = Rig::new();
    rig.dispatcher.send_captures(&mut rig.link);
    let facts = crate::protocol::CaptureSpec { snap: 16, arriving: true, dropped_only: true };
    rig.dispatcher.path_mut().set_capture(Some(facts));
    rig.start(self::facts(ENTRY), OBEYS);
    rig.give(ENTRY, Verdict::Drop { reason: 2 });
    rig.dispatcher.send_captures(&mut rig.link);
    assert!(matches!(rig.reported()[..], [FromCell::Started(_), FromCell::Captured(_)]));
    let (other, _) = fd_passing::pair().unwrap();
    drop(std::mem::replace(&mut rig.daemon, other));
    rig.give(ENTRY, Verdict::Drop { reason: 2 });
    rig.dispatcher.send_captures(&mut rig.link);
    assert_eq!(rig.cell().tapped_lost, 1);
}
