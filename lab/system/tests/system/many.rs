//! Many sessions: a thousand of them are created and removed by one change.

use std::fmt::Write as _;

use api::ApplyRequest;
use testkit::root_or_skip;

use crate::common::{Line, module};

/// Sessions of one change: four times the limit of the time when their number indexed an array.
const MANY: u16 = 1_000;
/// L4 port of the first session's packets.
const PORT_FIRST: u16 = 20_000;
const SMALL: &str = r#"(memory (export "memory") 1 1)
    (global (export "tam_counter_seen") i32 (i32.const 0x9000))
    (func (export "on_packet") (result i32)
      (i64.store (i32.const 0x9000) (i64.add (i64.load (i32.const 0x9000)) (i64.const 1)))
      (i32.const 0))"#;

impl Line {
    fn change(&self, text: String) {
        self.node.client().apply(&ApplyRequest { text, ..ApplyRequest::default() }).unwrap();
    }

    fn count_sessions(&self) -> usize {
        self.node.client().sessions().unwrap().sessions.len()
    }
}

#[test]
fn a_thousand_sessions_are_added_and_removed_by_one_change_and_each_gets_its_packets() {
    if !root_or_skip("a thousand sessions") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let small = module("small", "window = 64\nmemory_pages_max = 1\nlevels = [\"user\"]", SMALL);
    let digest = line.node.client().store_module(small).unwrap().digest;
    let mut text = String::new();
    for number in 0..MANY {
        let port = PORT_FIRST + number;
        writeln!(
            text,
            "[[session]]\nname = \"s{number}\"\n[[service]]\nname = \"s{number}\"\n\
             module = \"{digest}\"\nsession = \"s{number}\"\nrules = [\"proto udp dport {port}\"]"
        )
        .unwrap();
    }
    let before = line.books();
    line.change(text);
    assert_eq!(line.count_sessions(), usize::from(MANY) + 2);
    let seen = |number: u16| {
        let service = line.node.service(&format!("s{number}")).unwrap();
        service.stats.counters["seen"]
    };
    let some = [0, 255, 256, MANY - 1];
    for (number, packets) in some.into_iter().zip(1..) {
        let (receiver, sender) =
            (line.udp("server", PORT_FIRST + number), line.sender_to(PORT_FIRST + number));
        let mut payload = [0; 8];
        for _ in 0..packets {
            sender.send(b"to one").unwrap();
            receiver.recv(&mut payload).unwrap();
        }
    }
    for (number, packets) in some.into_iter().zip(1..) {
        assert_eq!(seen(number), packets, "s{number}");
    }
    assert_eq!(seen(1), 0);
    let balance = line.balance_since(&before);
    assert!(balance.holds() && balance.drops.is_empty(), "{balance}");
    line.change(String::new());
    assert_eq!(
        (line.count_sessions(), line.node.client().services().unwrap().services.len()),
        (2, 0)
    );
}
