//! Pools of lanes: events on the virtual processors that a manifest names, and flows by the fields
//! that it names.

use testkit::{Service, root_or_skip, wait_for};

use crate::common::{Line, SOON, module, steps_of_work};

const PORT: u16 = 7200;

/// Returns a module that works some two milliseconds on each packet, and counts timers.
fn working() -> String {
    let work = steps_of_work(1_400_000);
    format!(
        r#"(memory (export "memory") 1 1)
    (global (export "tam_counter_ticks") i32 (i32.const 0x9010))
    (func (export "on_packet") (result i32) (local $step i32) (local $hash i32)
      {work}
      (i32.const 1))
    (func (export "on_timer")
      (i64.store (i32.const 0x9010) (i64.add (i64.load (i32.const 0x9010)) (i64.const 1))))"#
    )
}

/// Module that counts its packets; it answers a message with the number that came to this lane.
const LANES: &str = r#"(memory (export "memory") 1 1)
    (func (export "on_packet") (result i32)
      (i32.store (i32.const 0x9000) (i32.add (i32.load (i32.const 0x9000)) (i32.const 1)))
      (i32.const 1))
    (func (export "on_message") (param i32) (result i32) (i32.load (i32.const 0x9000)))"#;

#[test]
fn a_pool_is_called_while_another_has_used_up_its_virtual_processor() {
    if !root_or_skip("pools of lanes") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    line.with_session("gold", ["1ms/50ms", "1ms/50ms"], None);
    let manifest = "window = 64\nmemory_pages_max = 1\ntimer_ms = 10\n\
        [pools.packets]\nprocessor = 0\nevents = [\"packet\"]\n\
        [pools.timers]\nprocessor = 1\nevents = [\"timer\"]\n";
    let wasm = module("worker", manifest, &working());
    let rule = format!("proto udp dport {PORT}");
    let service =
        Service { name: "worker", session: "gold", rules: &[&rule], ..Service::default() };
    line.node.deploy(&wasm, &service).unwrap();
    let sender = line.sender_to(PORT);
    // Each takes two periods of its virtual processor: there is work for two seconds.
    for number in 0..20u32 {
        sender.send(&number.to_be_bytes()).unwrap();
    }
    // On one virtual processor a timer would have its turn between two packets; a busy machine takes
    // time from both.
    let handled = || Some(line.node.service("worker").unwrap().stats).filter(|it| it.packets >= 6);
    let stats = wait_for(SOON, handled).expect("six packets are through");
    let ticks = stats.counters.get("ticks").copied().unwrap_or_default();
    assert!(ticks >= 3 * stats.packets, "{ticks} timers beside {} packets", stats.packets);
    let waits = line.node.client().session("gold").unwrap().used.queue_bytes;
    assert!(waits > Some(0), "all packets are through: nobody was in the timer's way");
    let gold = line.node.service("worker").unwrap();
    assert_eq!(gold.stats.traps, [].into(), "a call that stands still is not ended");
}

#[test]
fn packets_of_a_flow_meet_by_the_fields_that_the_manifest_says() {
    if !root_or_skip("flows by fields") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let manifest = "window = 64\nmemory_pages_max = 1\nflows_by = [\"source_port\"]\n\
        [pools.packets]\nlanes = 8\nevents = [\"packet\", \"message\"]\n\
        [pools.spare]\nevents = [\"message\"]\n";
    let wasm = module("lanes", manifest, LANES);
    let rule = format!("proto udp dport {PORT}-{}", PORT + 99);
    let service = Service { name: "lanes", rules: &[&rule], ..Service::default() };
    line.node.deploy(&wasm, &service).unwrap();
    let counts = || -> Vec<i32> {
        let answers = line.node.client().message("lanes", b"?").unwrap().answers;
        answers.into_iter().map(Option::unwrap).collect()
    };
    let arrived = |count: i32| {
        wait_for(SOON, || Some(counts()).filter(|counts| counts.iter().sum::<i32>() == count))
            .unwrap_or_else(|| panic!("{count} packets: {:?}", counts()))
    };
    let client = line.udp("client", 0);
    for port in 0..24 {
        client.send_to(b"one flow", line.server(PORT + port)).unwrap();
    }
    let of_one = arrived(24);
    assert_eq!(of_one.len(), 9, "each lane that has messages answers");
    assert_eq!(of_one.iter().max(), Some(&24), "one source port, one lane: {of_one:?}");
    for _ in 0..32 {
        line.udp("client", 0).send_to(b"another", line.server(PORT)).unwrap();
    }
    let of_many = arrived(56);
    let busy = of_many.iter().filter(|&&count| count > 0).count();
    assert!(busy > 3, "32 source ports are in these lanes: {of_many:?}");
    assert_eq!(of_many.last(), Some(&0), "the pool without packets has none: {of_many:?}");
}
