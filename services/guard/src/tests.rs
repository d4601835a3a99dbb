//! Tests of the guard with frames written header by header, and of its table with crafted prefixes.

use super::prefixes::{BUCKETS, Finding, Prefix, Table, WAYS};
use super::settings::{Settings, refuse};
use super::{CROWDED, OVER, SUSPECTS, TABLE, on_packet, on_start};
use tam::Verdict;
use tam::testing::Node;

const HARMLESS: Verdict = Verdict::pass_by(1);
const SUSPECT: Verdict = Verdict::pass_by(0);
const SETTINGS: Settings = Settings { threshold: 100, hold: 5, ..Settings::DEFAULT };
/// Number of prefixes of an attacker.
const CRAFTED: u64 = 1_000_000;

/// Returns a node with a threshold of 10 packets a second, and a hold of 5 seconds.
fn guard() -> Node {
    let node = Node::new()
        .with_window(96)
        .with_parameter("threshold", &10_u32.to_le_bytes())
        .with_parameter("hold", &5_u16.to_le_bytes())
        .with_parameter("seed", &7_u64.to_le_bytes());
    started(node)
}

fn started(mut node: Node) -> Node {
    TABLE.with(|table| *table = Table::ZERO);
    node.start(on_start).unwrap();
    node.set_now_ms(1_000_000);
    node
}

fn v4(source: [u8; 4]) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([0x08, 0, 0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0]);
    frame.extend(source);
    frame.extend([10, 0, 0, 1, 0, 7, 0, 9, 0, 8, 0, 0]);
    frame
}

fn v6(source: [u8; 16]) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64]);
    frame.extend(source);
    frame.extend([0x20; 16]);
    frame.extend([0, 7, 0, 9, 0, 8, 0, 0]);
    frame
}

/// Sends `count` equal packets; returns the last verdict.
fn all(node: &mut Node, frame: &[u8], count: u32) -> Verdict {
    let mut verdicts = (0..count).map(|_| node.packet(on_packet, frame).verdict);
    let first = verdicts.next().unwrap();
    assert!(verdicts.all(|verdict| verdict == first));
    first
}

#[test]
fn a_prefix_over_the_threshold_goes_on_marked_and_others_leave_the_graph() {
    let mut node = guard();
    let (over, suspects) = (OVER.value(), SUSPECTS.value());
    assert_eq!(all(&mut node, &v4([192, 0, 2, 7]), 10), HARMLESS);
    // Same prefix, another host.
    let outcome = node.packet(on_packet, &v4([192, 0, 2, 8]));
    assert_eq!(outcome.verdict, SUSPECT);
    assert_eq!(outcome.bytes, v4([192, 0, 2, 8]));
    assert_eq!(outcome.mark[..10], [192, 0, 2, 0, 0, 0, 0, 0, 4, 24]);
    assert_eq!(outcome.mark[12..], [6, 0, 0, 0], "until the second behind five whole ones");
    let again = node.packet(on_packet, &v4([192, 0, 2, 9]));
    assert_eq!((again.verdict, again.mark), (SUSPECT, outcome.mark));
    assert_eq!(all(&mut node, &v4([192, 0, 3, 7]), 10), HARMLESS);
    assert_eq!((OVER.value() - over, SUSPECTS.value() - suspects), (1, 2));
}

#[test]
fn ipv6_has_prefixes_of_its_own() {
    let mut node = guard();
    // Same bits as 192.0.2.0/24 as an IPv4 prefix.
    let mut source = [0; 16];
    source[..3].copy_from_slice(&[192, 0, 2]);
    assert_eq!(all(&mut node, &v4([192, 0, 2, 7]), 10), HARMLESS);
    assert_eq!(all(&mut node, &v6(source), 10), HARMLESS);
    // Bits after the first 48.
    (source[6], source[15]) = (9, 9);
    let outcome = node.packet(on_packet, &v6(source));
    assert_eq!(outcome.verdict, SUSPECT);
    assert_eq!(outcome.mark[..10], [192, 0, 2, 0, 0, 0, 0, 0, 6, 48]);
    source[5] = 1;
    assert_eq!(all(&mut node, &v6(source), 10), HARMLESS);
}

#[test]
fn a_held_prefix_is_released_after_the_hold_below_half_the_threshold() {
    let mut node = guard();
    let frame = v4([192, 0, 2, 7]);
    let at = |node: &mut Node, second: u64, count: u32| {
        node.set_now_ms(1_000_000 + second * 1000);
        all(node, &frame, count)
    };
    assert_eq!(at(&mut node, 0, 10), HARMLESS);
    assert_eq!(at(&mut node, 0, 1), SUSPECT);
    // Half the threshold and one more: it remains.
    assert_eq!(at(&mut node, 4, 6), SUSPECT);
    for second in 5..10 {
        assert_eq!(at(&mut node, second, 5), SUSPECT, "{second}");
    }
    assert_eq!(at(&mut node, 10, 10), HARMLESS);
}

#[test]
fn each_second_begins_anew() {
    let mut node = guard();
    for second in 0..20 {
        node.set_now_ms(1_000_000 + second * 1000);
        assert_eq!(all(&mut node, &v4([192, 0, 2, 7]), 10), HARMLESS);
    }
}

#[test]
fn prefixes_are_as_long_as_the_operator_says() {
    for (length, other) in [(32, [192, 0, 2, 8]), (1, [64, 0, 0, 1]), (8, [193, 0, 0, 1])] {
        let node = Node::new().with_parameter("threshold", &2_u32.to_le_bytes());
        let mut node = started(node.with_parameter("prefix4", &[length]));
        assert_eq!(all(&mut node, &v4([192, 0, 2, 7]), 2), HARMLESS);
        assert_eq!(all(&mut node, &v4(other), 2), HARMLESS, "/{length}");
        let outcome = node.packet(on_packet, &v4([192, 0, 2, 7]));
        assert_eq!((outcome.verdict, outcome.mark[9]), (SUSPECT, length));
    }
    assert_eq!(Prefix::new(6, u64::MAX, 64).bits, u64::MAX);
    assert_eq!(Prefix::new(6, u64::MAX, 1).bits, 1 << 63);
}

#[test]
fn what_is_no_ip_or_cut_short_passes_uncounted() {
    let mut node = guard();
    let mut arp = [0; 60];
    arp[12..14].copy_from_slice(&[8, 6]);
    assert_eq!(all(&mut node, &arp, 50), HARMLESS);
    assert_eq!(all(&mut node, &v4([192, 0, 2, 7])[..30], 50), HARMLESS);
}

#[test]
fn parameters_that_say_nothing_are_refused() {
    for (name, value, code) in [
        ("threshold", &[1, 0, 0, 0][..], refuse::THRESHOLD),
        ("hold", &[0, 0], refuse::HOLD),
        ("hold", &[0xff, 0xff], refuse::HOLD),
        ("prefix4", &[0], refuse::PREFIX4),
        ("prefix4", &[33], refuse::PREFIX4),
        ("prefix6", &[65], refuse::PREFIX6),
    ] {
        assert_eq!(Node::new().with_parameter(name, value).start(on_start), Err(code), "{name}");
    }
}

fn table(seed: u64) -> Box<Table> {
    let mut table = Box::new(Table::ZERO);
    table.begin(seed);
    table
}

/// Returns a different prefix for each number, spread over all prefixes.
fn crafted(number: u64) -> Prefix {
    Prefix::new(6, number.wrapping_mul(0x9e37_79b9_7f4a_7c15), 48)
}

#[test]
fn a_million_crafted_prefixes_cause_no_false_suspicion_and_hide_no_flood() {
    for seed in 1..=3 {
        let mut table = table(seed);
        let (legitimate, flooder) = (Prefix::new(4, 10 << 56, 24), Prefix::new(4, 11 << 56, 24));
        let mut caught = 0;
        for number in 0..CRAFTED {
            // A million in one second, all from different prefixes.
            assert_eq!(table.count(&crafted(number), 9, &SETTINGS), Finding::Harmless);
            if number % (CRAFTED / 100) == 0 {
                let found = table.count(&legitimate, 9, &SETTINGS);
                assert_eq!(found, Finding::Harmless, "seed {seed}, {number}");
            }
            // A thousandth of them sends ten times the threshold.
            if number % (CRAFTED / 1000) == 0 {
                let found = table.count(&flooder, 9, &SETTINGS);
                caught += u32::from(matches!(found, Finding::Suspect { .. }));
            }
        }
        assert!(caught >= 800, "seed {seed}: {caught} of 1000, of which 100 are allowed");
    }
}

#[test]
fn prefixes_crafted_with_a_known_seed_cause_no_false_suspicion() {
    let mut table = table(1);
    let legitimate = Prefix::new(4, 10 << 56, 24);
    let Finding::Harmless = table.count(&legitimate, 1, &SETTINGS) else { panic!("the first one") };
    let bucket = place_of(&mut table, legitimate) / WAYS;
    // Number of the sixteen million IPv4 prefixes in the same bucket.
    let all = (0..1 << 24).map(|number: u64| Prefix::new(4, number << 40, 24));
    let meeting: Vec<Prefix> = all
        .filter(|prefix| *prefix != legitimate)
        .filter(|prefix| table.bucket(prefix) == bucket)
        .take(CRAFTED as usize / 250)
        .collect();
    assert_eq!(meeting.len() as u64, CRAFTED / 250);
    for second in 100..350 {
        for (at, prefix) in meeting.iter().enumerate() {
            assert_eq!(table.count(prefix, second, &SETTINGS), Finding::Harmless);
            if at % (meeting.len() / 100) == 0 {
                let found = table.count(&legitimate, second, &SETTINGS);
                assert_eq!(found, Finding::Harmless, "{second}");
            }
        }
    }
}

/// Returns the slot of a prefix, found by sending too much from it in a second of its own.
fn place_of(table: &mut Table, prefix: Prefix) -> usize {
    let once = Settings { threshold: 2, hold: 1, ..SETTINGS };
    let found = (0..3).map(|_| table.count(&prefix, 50, &once)).last();
    match found {
        Some(Finding::Suspect { slot, .. }) => usize::from(slot),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_table_full_of_suspects_lets_others_through() {
    let mut node = guard();
    let before = CROWDED.value();
    let mut suspects = 0;
    TABLE.with(|table| {
        // Four per slot, all over the threshold.
        for number in 0..4 * (BUCKETS * WAYS) as u64 {
            let found = (0..101).map(|_| table.count(&crafted(number), 1_000, &SETTINGS)).last();
            suspects += u64::from(matches!(found, Some(Finding::Suspect { .. })));
        }
    });
    let places = (BUCKETS * WAYS) as u64;
    assert!((places * 9 / 10..=places).contains(&suspects), "{suspects} of {places}");
    for host in 0..100 {
        assert_eq!(node.packet(on_packet, &v4([192, 0, host, 7])).verdict, HARMLESS);
    }
    assert!(CROWDED.value() - before >= 90);
}
