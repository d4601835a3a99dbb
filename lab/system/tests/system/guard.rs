//! Services `guard` and `guard-limit`: a flood beside legitimate traffic, crafted sources, the
//! account that pays, and their state across replacements and moves.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use api::{Event, EventKind, LedgerRecord};
use testkit::{RawPort, Service, root_or_skip, service_module, wait_for};
use wire::FrameBuilder;

use crate::common::{Line, SOON};
use crate::ledger::records;

const LEGITIMATE: u16 = 7000;
const FLOOD: u16 = 7001;
/// Time between two steps of a sender. A sleep is never shorter, so that one packet in each step is
/// at most 500 packets a second.
const GAP: Duration = Duration::from_millis(2);
/// Packets per second that a prefix may send: twice the legitimate rate.
const THRESHOLD: &str = "1000";
/// Fewest steps of a flood, by which it must have been noticed.
const STEPS: u32 = 2000;
const STEPS_MAX: u32 = 20_000;
/// Packets that shall have gone to the second part when a flood ends.
const SUSPECTS: u64 = 5000;
/// Source prefix of the flood; the next constant is its form in events.
const FLOODER: [u8; 3] = [198, 51, 100];
const FLOODER_EVENT: &str = "0418c633640000000000";
/// Crafted sources, and those of a soak run: each a prefix of its own.
const CRAFTED: u32 = 100_000;
const CRAFTED_SOAK: u32 = 1_000_000;
/// Time until a bill has been written; the node writes one each second.
const BILLED_WITHIN: Duration = Duration::from_secs(40);

/// Guard in front of a server, and the senders to it.
struct Guarded {
    // Dropped in this order: sockets before their network.
    legitimate: UdpSocket,
    flood: UdpSocket,
    sender: RawPort,
    /// Frame from the client to the server.
    frame: FrameBuilder,
    server: Ipv4Addr,
    line: Line,
}

impl Guarded {
    fn up([first, second]: [&str; 2], hold: &str, limit: &str) -> Self {
        let line = Line::billed_each_second();
        line.resolve_neighbours();
        let limiting = Service {
            level: second,
            session: "system",
            parameters: &[("limit", limit)],
            ..Service::default()
        };
        line.node.deploy(&service_module("guard-limit").unwrap(), &limiting).unwrap();
        let counting = Service {
            level: first,
            session: "system",
            rules: &["in left"],
            then: &["guard-limit"],
            parameters: &[("threshold", THRESHOLD), ("hold", hold), ("seed", "7")],
            ..Service::default()
        };
        let guard = line.node.deploy(&service_module("guard").unwrap(), &counting).unwrap().service;
        assert_eq!(guard.level, first, "{}", guard.level_reason);
        let (legitimate, flood) = (line.udp("server", LEGITIMATE), line.udp("server", FLOOD));
        let sender = RawPort::open(&line.net, "client", "r1").unwrap();
        let (frame, server) = (line.frame(), line.net.v4("server", "r1").unwrap());
        Self { legitimate, flood, sender, frame, server, line }
    }

    /// Sends a packet of one of five flows of the client's.
    fn send_legitimate(&self, number: u32) {
        let port = 4000 + (number % 5) as u16;
        let frame = self.frame.clone().udp(port, LEGITIMATE);
        self.sender.send(&frame.payload(b"ask").build()).unwrap();
    }

    fn send_flood(&self, source: impl Into<Ipv4Addr>) {
        let frame = self.frame.clone().ipv4(source.into(), self.server, 64);
        self.sender.send(&frame.udp(4000, FLOOD).payload(b"flood").build()).unwrap();
    }

    fn counter(&self, service: &str, name: &str) -> u64 {
        self.line.node.service(service).unwrap().stats.counters[name]
    }

    /// Sends packets of the client alone, all of which arrive, and none at the second part.
    fn quiet(&self, packets: u32) {
        let before = self.counter("guard-limit", "packets");
        for number in 0..packets {
            self.send_legitimate(number);
            std::thread::sleep(GAP);
        }
        assert_eq!(drain(&self.legitimate), packets);
        assert_eq!(self.counter("guard-limit", "packets"), before);
    }

    /// Sends one packet of the client beside ten of a flood, until the second part has seen enough
    /// of them; returns the number that the client sent.
    fn flood(&self) -> u32 {
        let mut sent = 0;
        while sent < STEPS || self.counter("guard-limit", "packets") < SUSPECTS {
            assert!(sent < STEPS_MAX, "nobody noticed the flood");
            for _ in 0..100 {
                for host in 0..10 {
                    let [a, b, c] = FLOODER;
                    self.send_flood([a, b, c, host]);
                }
                self.send_legitimate(sent);
                sent += 1;
                std::thread::sleep(GAP);
            }
        }
        sent
    }

    fn events(&self, code: u32) -> Vec<Event> {
        let events = self.line.node.client().events(0, 0).unwrap().events;
        let found = events.into_iter().filter(|event| {
            event.kind == EventKind::ModuleEvent
                && event.service.as_deref() == Some("guard-limit")
                && event.reason == Some(format!("code {code}"))
        });
        found.collect()
    }

    /// Waits for an event about the flooder.
    fn assert_event(&self, code: u32) {
        let found = wait_for(4 * SOON, || self.events(code).pop());
        let found = found.unwrap_or_else(|| panic!("no event {code}\n{}", self.line.node.log()));
        assert!(found.text.contains(FLOODER_EVENT), "{found:?}");
    }

    /// Waits until the ledger has this many packets of a service, and no more.
    fn assert_billed(&self, service: &str, packets: u64) {
        let billed = || {
            let of = |it: &LedgerRecord| it.service.as_deref() == Some(service);
            let records = records(&self.line).into_iter();
            records.filter(of).map(|it| it.used.packets_in).sum::<u64>()
        };
        let all = wait_for(BILLED_WITHIN, || (billed() == packets).then_some(()));
        assert!(all.is_some(), "{service}: {} of {packets}", billed());
    }

    /// Checks that the packets of both parts are in the ledger completely, on the node's own
    /// account.
    fn assert_only_the_node_pays(&self, is_theirs: impl Fn(&LedgerRecord) -> bool) {
        for service in ["guard", "guard-limit"] {
            self.assert_billed(service, self.line.node.service(service).unwrap().stats.packets);
        }
        let node = self.line.node.client().node().unwrap().node_key;
        let theirs: Vec<_> = records(&self.line).into_iter().filter(is_theirs).collect();
        assert!(!theirs.is_empty());
        for record in theirs {
            assert_eq!((&record.session[..], &record.principal), ("system", &node), "{record:?}");
        }
    }
}

/// Returns the number of datagrams that wait or come until none has for a while.
fn drain(socket: &UdpSocket) -> u32 {
    let mut payload = [0; 16];
    std::iter::from_fn(|| socket.recv(&mut payload).ok()).count() as u32
}

#[test]
fn a_flood_of_ten_times_the_load_wakes_guard_limit_and_spares_legitimate_senders() {
    if !root_or_skip("the guard under a flood") {
        return;
    }
    for levels in [["nic", "nic"], ["nic", "user"]] {
        let guarded = Guarded::up(levels, "2", "100");
        // After the guard comes a service of a paying principal.
        let rules: &[_] = &["in left proto udp"];
        let paid = Service { level: levels[0], rules, ..Service::default() };
        guarded.line.node.deploy(&service_module("monitor").unwrap(), &paid).unwrap();
        guarded.quiet(200);
        assert_eq!(guarded.events(1), [], "it sleeps");
        let before = guarded.line.books();
        let sent = guarded.flood();
        let (arrived, flooded) = (drain(&guarded.legitimate), drain(&guarded.flood));
        assert!(arrived >= sent - sent / 100, "{levels:?}: {arrived} of {sent}");
        assert!(flooded < sent * 10 / 2, "{levels:?}: {flooded} of {}", sent * 10);
        // Hosts do not count what a packet socket sends.
        let balance = guarded.line.books().since(&before);
        let all = balance.dropped() + u64::from(flooded + arrived);
        assert_eq!(all, u64::from(sent * 11), "{balance}");
        let dropped = balance.drops["guard-limit.module.prefix limited"];
        let guard = guarded.line.node.service("guard").unwrap().stats;
        let limit = guarded.line.node.service("guard-limit").unwrap().stats;
        assert!(guard.counters["suspects"] >= limit.packets, "a ring may have been full");
        assert_eq!(limit.packets, limit.counters["passed"] + dropped);
        assert_eq!(limit.counters["strangers"], 0);
        println!("{levels:?}: {arrived} of {sent} arrived, {flooded} of {} flooded", sent * 10);
        guarded.assert_event(1);
        guarded.assert_event(4);
        guarded.quiet(200);
        assert_eq!(guarded.counter("guard-limit", "woken"), limit.counters["woken"]);
        assert_eq!(guarded.counter("guard-limit", "asleep"), limit.counters["woken"]);
        guarded.assert_only_the_node_pays(|record| {
            record.service.as_ref().is_some_and(|service| service != "monitor")
        });
        guarded.assert_billed("monitor", u64::from(200 + arrived + flooded + 200));
    }
}

#[test]
fn crafted_sources_get_no_legitimate_prefix_held() {
    if !root_or_skip("the guard under crafted sources") {
        return;
    }
    let soak = std::env::var_os("TAM_SOAK").is_some();
    let crafted = if soak { CRAFTED_SOAK } else { CRAFTED };
    let guarded = Guarded::up(["nic", "nic"], "2", "0");
    let mut sent = 0;
    for number in 0..crafted {
        // From 11.0.0.0 on each from a prefix of its own.
        let [_, b, c, d] = number.to_be_bytes();
        guarded.send_flood([11 + b, c, d, 1]);
        if number % 100 == 0 {
            guarded.send_legitimate(sent);
            sent += 1;
            std::thread::sleep(GAP);
        }
    }
    let arrived = drain(&guarded.legitimate);
    println!("{crafted} crafted sources: {arrived} of {sent} arrived");
    assert!(arrived >= sent - sent / 100, "{arrived} of {sent}");
    let guard = guarded.line.node.service("guard").unwrap().stats;
    assert!(guard.packets >= u64::from(crafted), "{guard:?}");
    assert_eq!(["over", "suspects", "crowded"].map(|name| guard.counters[name]), [0; 3]);
    assert_eq!(guarded.counter("guard-limit", "packets"), 0);
    // Compilers, too: nothing else runs.
    guarded.assert_only_the_node_pays(|_| true);
}

#[test]
fn a_prefix_that_is_held_stays_so_while_the_guard_moves_and_is_replaced() {
    if !root_or_skip("the guard while it moves") {
        return;
    }
    let guarded = Guarded::up(["nic", "nic"], "3600", "0");
    guarded.flood();
    drain(&guarded.flood);
    let (node, client) = (&guarded.line.node, guarded.line.node.client());
    let assert_held = |what: &str| {
        for host in 0..10 {
            let [a, b, c] = FLOODER;
            guarded.send_flood([a, b, c, host]);
        }
        assert_eq!(drain(&guarded.flood), 0, "{what}");
    };
    assert_held("at once");
    for (service, level) in [
        ("guard-limit", "user"),
        ("guard", "kernel"),
        ("guard", "user"),
        ("guard", "nic"),
        ("guard-limit", "nic"),
    ] {
        assert_eq!(client.move_service(service, level).unwrap().level, level);
        assert_held(&format!("{service} at {level}"));
    }
    let counting: &[_] = &[("threshold", THRESHOLD), ("hold", "3600")];
    let limiting: &[_] = &[("limit", "0")];
    let edge: &[_] = &["guard-limit"];
    for (service, parameters, then) in [("guard", counting, edge), ("guard-limit", limiting, &[])] {
        let again =
            Service { level: "nic", session: "system", parameters, then, ..Service::default() };
        node.deploy(&service_module(service).unwrap(), &again).unwrap();
        assert_held(&format!("{service} once more"));
    }
    assert_eq!(guarded.counter("guard", "over"), 1);
    assert_eq!(guarded.counter("guard-limit", "woken"), 1);
}
