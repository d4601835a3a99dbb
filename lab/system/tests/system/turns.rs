//! Turns of sessions at user level: a session with a reservation gets its time beside modules that
//! never end, and a call whose turn is over continues where it was.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::SessionRequest;
use testkit::{Service, root_or_skip, wait_for};

use crate::common::{Ends, Line, SOON, module, steps_of_work};

const VICTIM: u16 = 7000;
/// L4 port before those of the hostile sessions: number n has this one plus n.
const HOSTILE: u16 = 7100;

/// Module that never ends.
const ENDLESS: &str = r#"(memory (export "memory") 1 1)
    (func (export "on_packet") (result i32) (loop (br 0)) (i32.const 0))"#;

/// Returns a module that counts its packets after `steps` steps of work, and writes the count into
/// the first bytes of the payload.
pub fn counting(steps: u32) -> String {
    let work = steps_of_work(steps);
    format!(
        r#"(memory (export "memory") 1 1)
    (global (export "tam_counter_seen") i32 (i32.const 0x9000))
    (func (export "on_packet") (result i32) (local $step i32) (local $hash i32)
      {work}
      (i64.store (i32.const 0x9000) (i64.add (i64.load (i32.const 0x9000)) (i64.const 1)))
      (i32.const 0))
    (func (export "on_message") (param i32) (result i32)
      (i32.wrap_i64 (i64.load (i32.const 0x9000))))"#
    )
}

fn user(name: &str, fields: &str) -> Vec<u8> {
    module(name, "window = 64\nmemory_pages_max = 1\nlevels = [\"user\"]", fields)
}

impl Line {
    /// Creates a session with this reservation.
    pub fn with_session<'a>(
        &self,
        name: &str,
        cpu: impl IntoIterator<Item = &'a str>,
        queue: Option<&str>,
    ) {
        let request = SessionRequest {
            name: name.to_owned(),
            cpu: cpu.into_iter().map(str::to_owned).collect(),
            queue: queue.map(str::to_owned),
            ..SessionRequest::default()
        };
        self.node.client().create_session(&request).unwrap();
    }

    fn serve(&self, session: &str, wasm: &[u8], name: &str, port: u16) {
        let rule = format!("proto udp dport {port}");
        let service = Service { name, session, rules: &[&rule], ..Service::default() };
        self.node.deploy(wasm, &service).unwrap();
    }

    /// Creates sessions without reservations, each with a module that never ends.
    fn with_hostile(&self, count: u16) {
        for number in 0..count {
            let name = format!("hostile-{number}");
            self.with_session(&name, None, None);
            self.serve(&name, &user("endless", ENDLESS), &name, HOSTILE + number);
        }
    }

    fn traps(&self, service: &str) -> u64 {
        self.node.service(service).unwrap().stats.traps.values().sum()
    }

    fn free_frames(&self) -> (u64, u64) {
        let cell = self.node.stats().unwrap().cell;
        (cell.frames_free, cell.frames_total)
    }
}

/// Returns the numbers of the packets that come, until none has for a while.
pub fn numbers(receiver: &UdpSocket) -> Vec<u32> {
    let mut payload = [0; 64];
    let mut numbers = Vec::new();
    while let Ok(length) = receiver.recv(&mut payload) {
        let number = payload[..length].first_chunk().unwrap();
        numbers.push(u32::from_be_bytes(*number));
    }
    numbers
}

#[test]
fn a_session_with_reserved_time_loses_no_packet_beside_endless_modules() {
    if !root_or_skip("sessions that take turns") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    line.with_session("gold", Some("1ms/4ms"), Some("1MiB"));
    line.serve("gold", &user("count", &counting(100)), "victim", VICTIM);
    line.with_hostile(5);
    let (receiver, sender) = (line.udp("server", VICTIM), line.sender_to(VICTIM));
    let hostile: Vec<UdpSocket> = (0..5).map(|number| line.sender_to(HOSTILE + number)).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for socket in &hostile {
                    socket.send(b"never").unwrap();
                }
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        let _ends = Ends(&over);
        for number in 0..1500u32 {
            sender.send(&number.to_be_bytes()).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        let came = numbers(&receiver);
        assert_eq!(came, (0..1500).collect::<Vec<_>>(), "all of them, in order");
        let answers = line.node.client().message("victim", b"?").unwrap().answers;
        assert_eq!(answers, [Some(1500)]);
    });
    for number in 0..5 {
        assert!(line.traps(&format!("hostile-{number}")) > 0, "each had its turns");
    }
    let gold = line.node.client().session("gold").unwrap();
    assert_eq!(gold.used.total.queue_dropped, Some(0));
    assert!(gold.used.total.cpu_ns > Some(0));
}

#[test]
fn a_suspended_call_resumes_before_messages_and_a_new_version_are_handled() {
    if !root_or_skip("sessions that take turns") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    // A call takes about 600 µs: three turns of 200 µs, of which a busy machine takes a part.
    line.with_session("slow", Some("200us/2ms"), Some("1MiB"));
    line.serve("slow", &user("count", &counting(600_000)), "slow", VICTIM);
    line.with_hostile(1);
    let (receiver, sender) = (line.udp("server", VICTIM), line.sender_to(VICTIM));
    receiver.set_read_timeout(Some(SOON)).unwrap();
    let hostile = line.sender_to(HOSTILE);
    for number in 0..5u32 {
        sender.send(&number.to_be_bytes()).unwrap();
        hostile.send(b"never").unwrap();
    }
    // Asked in the middle of a call, or between two: the answer is a whole number of packets.
    let answers = line.node.client().message("slow", b"?").unwrap().answers;
    assert!(matches!(answers[..], [Some(0..=5)]), "{answers:?}");
    let another = user("count", &counting(599_999));
    let service = Service { name: "slow", session: "slow", ..Service::default() };
    line.node.deploy(&another, &service).unwrap();
    let mut payload = [0; 4];
    for number in 0..5u32 {
        assert_eq!(receiver.recv(&mut payload).unwrap(), 4, "packet {number}");
        assert_eq!(u32::from_be_bytes(payload), number);
    }
    let answers = line.node.client().message("slow", b"?").unwrap().answers;
    assert_eq!(answers, [Some(5)], "the version before has left what it knew");
    assert_eq!(line.traps("slow"), 0, "a turn that is over is no time limit");
}

#[test]
fn packets_beyond_a_sessions_queue_are_dropped_and_counted_for_that_session_only() {
    if !root_or_skip("sessions that take turns") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    line.with_session("short", Some("50us/4ms"), Some("16KiB"));
    line.with_session("gold", Some("1ms/4ms"), Some("1MiB"));
    line.serve("short", &user("count", &counting(30_000)), "short", VICTIM + 1);
    line.serve("gold", &user("count", &counting(10)), "gold", VICTIM);
    let receivers = [line.udp("server", VICTIM), line.udp("server", VICTIM + 1)];
    let senders = [line.sender_to(VICTIM), line.sender_to(VICTIM + 1)];
    let before = line.books();
    for number in 0..200u32 {
        for sender in &senders {
            sender.send(&number.to_be_bytes()).unwrap();
        }
    }
    let [gold, mut short] = receivers.each_ref().map(numbers);
    assert_eq!(gold, (0..200).collect::<Vec<_>>());
    let counted = |session: &str| line.node.client().session(session).unwrap().used;
    // On a busy machine a call takes many of its slices: the last may come late.
    let over = wait_for(SOON, || {
        short.extend(numbers(&receivers[1]));
        let dropped = counted("short").total.queue_dropped.unwrap_or_default();
        (short.len() as u64 + dropped == 200).then_some(())
    });
    assert!(over.is_some(), "{} came, {:?}", short.len(), counted("short"));
    assert!(!short.is_empty() && short.len() < 200 && short.is_sorted(), "{}", short.len());
    let dropped = 200 - short.len() as u64;
    let balance = line.balance_since(&before);
    assert_eq!(balance.drops, [("left.drop_queue".to_owned(), dropped)].into());
    assert_eq!(counted("short").total.queue_dropped, Some(dropped));
    assert_eq!(counted("gold").total.queue_dropped, Some(0));
    assert_eq!(counted("short").queue_bytes, Some(0), "nothing waits any more");
}

#[test]
fn removing_a_session_during_a_call_leaks_no_packet_memory() {
    if !root_or_skip("sessions that take turns") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    line.with_session("gold", Some("1ms/4ms"), None);
    let at_rest = line.free_frames();
    for _ in 0..5 {
        line.with_hostile(3);
        for number in 0..3 {
            let sender = line.sender_to(HOSTILE + number);
            for _ in 0..100 {
                sender.send(b"never").unwrap();
            }
        }
        for number in 0..3 {
            line.node.client().remove_session(&format!("hostile-{number}"), true).unwrap();
        }
    }
    let freed = wait_for(SOON, || (line.free_frames() == at_rest).then_some(()));
    assert!(freed.is_some(), "{:?} of {at_rest:?}", line.free_frames());
    assert_eq!(line.node.client().sessions().unwrap().sessions.len(), 3);
    let (receiver, sender) = (line.udp("server", HOSTILE), line.sender_to(HOSTILE));
    sender.send(&7u32.to_be_bytes()).unwrap();
    assert_eq!(numbers(&receiver), [7], "what was theirs goes plainly again");
}
