//! Memory limits of sessions: all memory that exists because of a session counts in one number.

use std::fs;
use std::time::Duration;

use api::client::ClientError;
use api::{ErrorCode, MemoryUse, SessionChange, SessionRequest};
use testkit::{Service, root_or_skip, wait_for};

use crate::common::{Line, SOON, module};

const PAGE: u64 = 65_536;
const MIB: u64 = 1 << 20;
/// Time that the previous version is kept, and a margin.
const PROBATION: Duration = Duration::from_millis(700);
/// L4 port of packets for modules that grow.
const VICTIM: u16 = 7300;
const BOMB: u16 = 7301;

/// Module that grows by the pages of a one-byte message and writes to all of them: it answers its
/// size, or -1. To an empty message it answers how often it was warned of low memory; to two bytes,
/// the remaining memory of the last warning, in KiB.
const GROWER: &str = r#"(memory (export "memory") 1 256)
    (global $lows (mut i32) (i32.const 0))
    (global $used (mut i32) (i32.const 0))
    (func (export "on_memory_low") (param $used_now i32) (param $most i32)
      (global.set $used (local.get $used_now))
      (global.set $lows (i32.add (global.get $lows) (i32.const 1))))
    (func (export "on_message") (param $length i32) (result i32) (local $before i32)
      (if (i32.eqz (local.get $length)) (then (return (global.get $lows))))
      (if (i32.eq (local.get $length) (i32.const 2)) (then (return (global.get $used))))
      (local.set $before (memory.grow (i32.load8_u (i32.const 0x8102))))
      (if (i32.lt_s (local.get $before) (i32.const 0)) (then (return (i32.const -1))))
      (memory.fill (i32.shl (local.get $before) (i32.const 16)) (i32.const 1)
        (i32.shl (i32.load8_u (i32.const 0x8102)) (i32.const 16)))
      (memory.size))
    (func (export "on_packet") (result i32) (i32.const 0))"#;

/// Module that answers how often it was warned of low memory.
const BELOW: &str = r#"(memory (export "memory") 1 4)
    (global $lows (mut i32) (i32.const 0))
    (func (export "on_memory_low") (param i32 i32)
      (global.set $lows (i32.add (global.get $lows) (i32.const 1))))
    (func (export "on_message") (param i32) (result i32) (global.get $lows))
    (func (export "on_packet") (result i32) (drop (memory.grow (i32.const 0))) (i32.const 0))"#;

fn grower(lanes: u16) -> Vec<u8> {
    let manifest =
        format!("window = 64\nmemory_pages_max = 256\nlanes = {lanes}\nlevels = [\"user\"]\n");
    module("grower", &manifest, GROWER)
}

fn memory(text: &str) -> SessionChange {
    SessionChange { memory: Some(text.to_owned()), ..SessionChange::default() }
}

fn refused<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> (ErrorCode, String) {
    let error = answer.unwrap_err();
    (error.code(), error.to_string())
}

impl Line {
    /// Creates a session that reserves this much memory.
    fn with_memory(&self, name: &str, memory: &str) {
        let memory = Some(memory.to_owned());
        let request = SessionRequest { name: name.to_owned(), memory, ..SessionRequest::default() };
        self.node.client().create_session(&request).unwrap();
    }

    fn grower_in(&self, session: &str, name: &str) {
        let service = Service { name, session, ..Service::default() };
        self.node.deploy(&grower(1), &service).unwrap();
    }

    /// Sends a message; returns the answer of each lane.
    fn says(&self, service: &str, message: &[u8]) -> Vec<Option<i32>> {
        self.node.client().message(service, message).unwrap().answers
    }

    fn grow(&self, service: &str, pages: u8) -> i32 {
        self.says(service, &[pages])[0].unwrap()
    }

    fn memory_of(&self, session: &str) -> MemoryUse {
        self.node.client().session(session).unwrap().used.memory.unwrap()
    }
}

/// Returns the resident memory of a process, in bytes.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn a_session_is_limited_to_its_memory_and_notified_before_it_is_used_up() {
    if !root_or_skip("memory of sessions") {
        return;
    }
    let line = Line::up();
    let client = line.node.client();
    line.with_memory("gold", "8MiB");
    line.with_memory("silver", "8MiB");
    line.grower_in("gold", "grower");
    line.grower_in("silver", "neighbour");
    let begin = line.memory_of("gold");
    assert_eq!(begin.by_use["linear"], PAGE);
    assert_eq!(begin.by_use.values().sum::<u64>(), begin.used_bytes);
    assert!(begin.by_use["stacks"] > 0 && begin.by_use["code"] > 0 && begin.by_use["host"] > 0);
    assert_eq!((begin.refused, begin.lows), (0, 0));

    // Page by page to its end: the call is told -1, as WebAssembly says.
    let mut grown = 0;
    while line.grow("grower", 1) > 0 {
        grown += 1;
        assert!(grown < 8 * MIB / PAGE, "it is held to nothing");
    }
    let full = line.memory_of("gold");
    assert_eq!(full.by_use["linear"], (1 + grown) * PAGE);
    assert_eq!(full.used_bytes, begin.used_bytes + grown * PAGE);
    assert!(full.used_bytes <= 8 * MIB && full.used_bytes + PAGE > 8 * MIB, "{full:?}");
    assert_eq!((full.refused, full.lows, full.peak_bytes), (1, 1, full.used_bytes));
    // Told once, when less than an eighth was left.
    assert_eq!(line.says("grower", b""), [Some(1)]);
    let heard = line.says("grower", b"??")[0].unwrap() as u64 * 1024;
    assert!(heard > 7 * MIB && heard <= 7 * MIB + PAGE, "{heard}");
    // The neighbour has all of its own, and has heard nothing.
    assert_eq!(line.says("neighbour", b""), [Some(0)]);
    assert_eq!(line.grow("neighbour", 64), 65);
    assert_eq!(line.memory_of("silver").refused, 0);

    // More, at run time; the crossing is another one.
    client.set_session("gold", &memory("16MiB")).unwrap();
    assert_eq!(line.grow("grower", 32) as u64, 1 + grown + 32);
    assert_eq!(line.says("grower", b""), [Some(1)]);
    // Less than what is in use cannot be promised to others, but all the rest.
    let used = line.memory_of("gold").used_bytes;
    let (code, says) = refused(client.set_session("gold", &memory("8MiB")));
    assert_eq!(code, ErrorCode::Limit, "{says}");
    assert!(says.contains("8MiB of memory are requested") && says.contains("uses"), "{says}");
    assert_eq!(client.session("gold").unwrap().promised.memory_bytes, Some(16 * MIB));
    let less = used.div_ceil(1024) + 64;
    client.set_session("gold", &memory(&format!("{less}KiB"))).unwrap();
    let told = wait_for(SOON, || (line.says("grower", b"") == [Some(2)]).then_some(()));
    assert!(told.is_some(), "what was promised is nearly used up now");
    assert!(line.grow("grower", 64) < 0);

    // What goes gives back everything.
    line.node.remove("grower").unwrap();
    let end = line.memory_of("gold");
    assert_eq!(end.by_use, [("queue".to_owned(), MIB)].into());
    assert_eq!(end.used_bytes, MIB);
    assert_eq!(line.memory_of("silver").by_use["linear"], 65 * PAGE);
}

#[test]
fn a_service_that_does_not_fit_is_refused_with_what_it_needs_and_leaves_nothing() {
    if !root_or_skip("memory of sessions") {
        return;
    }
    let line = Line::up();
    line.with_memory("gold", "256KiB");
    let deploy = || {
        let service = Service { session: "gold", ..Service::default() };
        line.node
            .deploy(&grower(1), &service)
            .map_err(|error| error.downcast::<ClientError>().expect("the node has refused it"))
    };
    let (code, says) = refused(deploy());
    assert_eq!(code, ErrorCode::Limit, "{says}");
    for part in ["of memory are needed", "224KiB are left", "32KiB of 256KiB", "--memory"] {
        assert!(says.contains(part), "no '{part}' in {says}");
    }
    let gone = wait_for(SOON, || line.node.service("grower").is_err().then_some(()));
    assert!(gone.is_some(), "it never ran");
    let nothing = line.memory_of("gold");
    // A queue is an eighth of its memory.
    assert_eq!((nothing.used_bytes, nothing.peak_bytes), (32 << 10, 32 << 10), "{nothing:?}");

    line.node.client().set_session("gold", &memory("1MiB")).unwrap();
    deploy().unwrap();
    let used = || {
        let memory = line.memory_of("gold");
        memory.used_bytes - memory.by_use["queue"]
    };
    let one = used();
    assert!(one > MIB / 2 && one <= MIB, "two do not fit into a MiB: {one}");
    // Another version is beside this one for a while: that needs twice as much.
    let (code, says) = refused(deploy());
    assert_eq!(code, ErrorCode::Limit, "{says}");
    assert!(says.contains("goes on as it was"), "{says}");
    assert_eq!(used(), one);
    line.node.client().set_session("gold", &memory("2MiB")).unwrap();
    deploy().unwrap();
    std::thread::sleep(PROBATION);
    let again = wait_for(SOON, || (used() == one).then_some(()));
    assert!(again.is_some(), "the version before is gone: {:?}", line.memory_of("gold"));
    assert!(line.memory_of("gold").peak_bytes >= 2 * one);
}

#[test]
fn a_module_below_user_level_is_notified_and_charged_for_all_of_its_memory() {
    if !root_or_skip("memory of sessions") {
        return;
    }
    let line = Line::up();
    line.with_memory("gold", "8MiB");
    let manifest = "window = 64\nmemory_pages_max = 4\nlevels = [\"nic\", \"user\"]\n";
    let service =
        Service { session: "gold", level: "nic", rules: &["proto icmp"], ..Service::default() };
    line.node.deploy(&module("below", manifest, BELOW), &service).unwrap();
    line.resolve_neighbours();
    assert_eq!(line.node.service("below").unwrap().level, "nic");
    let used = line.memory_of("gold");
    assert!(used.by_use["linear"] >= 4 * PAGE, "all that it may have, from its start: {used:?}");
    assert!(used.by_use["below"] > 0, "{used:?}");
    assert_eq!(line.says("below", b""), [Some(0)]);
    line.grower_in("gold", "grower");
    while line.grow("grower", 1) > 0 {}
    let told = wait_for(SOON, || (line.says("below", b"") == [Some(1)]).then_some(()));
    assert!(told.is_some(), "{:?}", line.says("below", b""));
    assert_eq!(line.says("grower", b""), [Some(1)]);
    // It is where it was, and packets go through it.
    line.resolve_neighbours();
    assert_eq!(line.node.service("below").unwrap().level, "nic");
    assert_eq!(line.node.service("below").unwrap().stats.traps.len(), 0);
}

/// Module that grows by a page with each packet, as far as it can, and passes it.
const BOMB_FIELDS: &str = r#"(memory (export "memory") 1 256)
    (func (export "on_packet") (result i32) (local $before i32)
      (local.set $before (memory.grow (i32.const 1)))
      (if (i32.ge_s (local.get $before) (i32.const 0)) (then
        (memory.fill (i32.shl (local.get $before) (i32.const 16)) (i32.const 1)
          (i32.const 65536))))
      (i32.const 0))"#;

#[test]
fn memory_bombs_get_their_reservation_and_their_neighbour_loses_nothing() {
    if !root_or_skip("memory of sessions") {
        return;
    }
    // As many as there is room for services, but for some.
    const BOMBS: u16 = 200;
    let line = Line::up();
    line.resolve_neighbours();
    // Without a queue of its own its packets would find the bombs' in their place.
    let gold = SessionRequest {
        name: "gold".to_owned(),
        cpu: vec!["1ms/4ms".to_owned()],
        memory: Some("4MiB".to_owned()),
        queue: Some("64KiB".to_owned()),
        ..SessionRequest::default()
    };
    line.node.client().create_session(&gold).unwrap();
    let wasm = module("quiet", "window = 64\nmemory_pages_max = 8\nlevels = [\"user\"]", GROWER);
    let rule = format!("proto udp dport {VICTIM}");
    let service = Service { session: "gold", rules: &[&rule], ..Service::default() };
    line.node.deploy(&wasm, &service).unwrap();
    let manifest = "window = 64\nmemory_pages_max = 256\nlevels = [\"user\"]";
    let bomb = module("bomb", manifest, BOMB_FIELDS);
    let before = resident(line.node.cell().unwrap());
    for number in 0..BOMBS {
        let name = format!("bomb-{number}");
        line.with_memory(&name, "2MiB");
        let rule = format!("proto udp dport {}", BOMB + number);
        let service =
            Service { name: &name, session: &name, rules: &[&rule], ..Service::default() };
        line.node.deploy(&bomb, &service).unwrap();
    }
    let (receiver, sender) = (line.udp("server", VICTIM), line.sender_to(VICTIM));
    receiver.set_read_timeout(Some(SOON)).unwrap();
    let bombs: Vec<_> = (0..BOMBS).map(|number| line.sender_to(BOMB + number)).collect();
    let mut payload = [0; 64];
    for number in 0..40u32 {
        for bomb in &bombs {
            // No program receives its packets, and the server answers with ICMP errors.
            let _ = bomb.send(b"boom");
        }
        sender.send(&number.to_be_bytes()).unwrap();
        assert_eq!(receiver.recv(&mut payload).unwrap(), 4, "packet {number}");
        assert_eq!(payload[..4], number.to_be_bytes());
    }
    // Of what reserved no queue some packets find no room: until each has been refused some.
    let is_refused = |session: &api::SessionDetails| {
        let used = session.used.memory.as_ref();
        !session.name.starts_with("bomb-") || used.is_some_and(|used| used.refused > 0)
    };
    let refused = wait_for(SOON, || {
        for bomb in &bombs {
            let _ = bomb.send(b"boom");
        }
        let sessions = line.node.client().sessions().unwrap().sessions;
        sessions.iter().all(is_refused).then_some(())
    });
    assert!(refused.is_some(), "each bomb meets its limit");
    let all = line.node.client().sessions().unwrap().sessions;
    for number in 0..BOMBS {
        let named = |it: &&api::SessionDetails| it.name == format!("bomb-{number}");
        let used = all.iter().find(named).unwrap().used.memory.clone().unwrap();
        assert!(used.used_bytes <= 2 * MIB && used.refused > 0, "{number}: {used:?}");
        assert!(used.used_bytes + PAGE > 2 * MIB, "it got what was promised: {used:?}");
    }
    let grown = resident(line.node.cell().unwrap()).saturating_sub(before);
    let promised = u64::from(BOMBS) * 2 * MIB;
    assert!(grown <= promised + MIB, "{grown} of {promised}");
    // The neighbour has its own yet.
    assert_eq!(line.grow("quiet", 7), 8);
    assert_eq!(line.memory_of("gold").refused, 0);
}

#[test]
fn memory_charges_match_the_resident_memory_of_cell_and_daemon() {
    if !root_or_skip("memory of sessions") {
        return;
    }
    let line = Line::up();
    line.with_memory("gold", "256MiB");
    let processes = || {
        let cell = resident(line.node.cell().unwrap());
        (cell, resident(line.node.pid().unwrap()))
    };
    // One-time allocations of the first service, the first message and so on.
    line.grower_in("gold", "first");
    line.grow("first", 1);
    line.node.remove("first").unwrap();
    let ((cell, daemon), begin) = (processes(), line.memory_of("gold").used_bytes);
    assert_eq!(begin, MIB, "its queue");
    for number in 0..10 {
        let name = format!("grower-{number}");
        let service = Service { name: &name, session: "gold", ..Service::default() };
        line.node.deploy(&grower(4), &service).unwrap();
        for _ in 0..2 {
            assert_eq!(line.says(&name, &[16]).len(), 4);
        }
    }
    let charged = line.memory_of("gold");
    let (cell_now, daemon_now) = processes();
    let (in_cell, in_daemon) = (cell_now - cell, daemon_now.saturating_sub(daemon));
    eprintln!("charged {charged:?}; in the cell {in_cell}, in the daemon {in_daemon}");
    let linear = charged.by_use["linear"];
    assert_eq!(linear, 10 * 4 * 33 * PAGE);
    // All of linear memory was written to, but for the first pages; stacks hardly.
    let (stacks, all) = (charged.by_use["stacks"], charged.used_bytes);
    let (least, most) = (linear - 10 * 4 * PAGE, all - MIB);
    assert!((least..=most).contains(&(in_cell + in_daemon)), "{least} to {most}");
    let beyond = all - MIB - stacks - (in_cell + in_daemon);
    assert!(beyond < all / 20, "5 %, but for stacks and queue: {beyond}");
}
