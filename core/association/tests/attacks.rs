//! Attacks without keys: floods, forged and changed messages.

mod common;

use association::table::{Counts, HALF_OPEN_TIME, Refusal, UNPROVEN_MAX};
use association::wire::INITIATION_LENGTH;
use association::{Budget, Config, Protection, Role};
use common::{Chance, Faults, Network, Node, address, config, pair};
use std::net::SocketAddr;
use units::Nanos;

const SECOND: Nanos = Nanos::from_millis(1000);
const FLOOD: u64 = 100_000;

/// Generates a message 1 without valid content, from a random address.
fn bogus(chance: &mut Chance) -> (SocketAddr, Vec<u8>) {
    let mut datagram = vec![0; INITIATION_LENGTH];
    datagram[0] = 0x11;
    chance.fill(&mut datagram[40..76]);
    datagram[72] |= 1;
    let bytes = chance.draw().to_be_bytes();
    let port = 1024 + chance.below(60_000) as u16;
    (SocketAddr::from(([bytes[0] | 64, bytes[1], bytes[2], bytes[3]], port)), datagram)
}

#[test]
fn a_flood_of_bogus_initiations_grows_no_state_and_disturbs_no_association() {
    let mut network = pair(31);
    let before = network.node(2).table.counts();
    let mut chance = Chance(31);
    let (mut received, mut answered) = (0, 0);
    for number in 0..FLOOD {
        let (from, datagram) = bogus(&mut chance);
        let now = network.now + Nanos(number * SECOND.0 / FLOOD);
        for (to, answer) in network.node(2).handle(now, from, &datagram) {
            assert!(to == from && answer.len() <= datagram.len(), "no amplification");
            answered += answer.len();
        }
        received += datagram.len();
    }
    assert!(answered < received / 10, "{answered} of {received}");
    let after = network.node(2).table.counts();
    assert_eq!(after, Counts { half_open: UNPROVEN_MAX, unproven: UNPROVEN_MAX, ..before });
    let refused = network.node(2).table.refused().clone();
    assert!(refused[&Refusal::CookieNeeded] >= FLOOD - UNPROVEN_MAX as u64, "{refused:?}");

    // The association continues, and a genuine initiator gets one during the flood.
    let mut datagram = vec![0; association::packet::OVERHEAD];
    let sealer = &mut network.node(1).newest().unwrap().sealer;
    sealer.seal(Protection::Encrypted, Role::Call, &[1; 32], &mut datagram).unwrap();
    assert!(network.node(2).newest().unwrap().opener.open(&mut datagram).is_ok());
    network.run(SECOND);
    let id = network.connect(1, 2);
    network.run(SECOND);
    assert!(network.node(1).keys.contains_key(&id));
    network.run(HALF_OPEN_TIME);
    let left = network.node(2).table.counts();
    assert_eq!((left.half_open, left.unproven, left.live), (0, 0, before.live + 1));
}

#[test]
fn one_prefix_cannot_fill_the_table_even_with_cookies() {
    let mut network = Network::new(32, Faults::default(), [Node::new(Nanos(1), 2, "", 32)]);
    let mut chance = Chance(32);
    for number in 0..2000u64 {
        let (_, mut datagram) = bogus(&mut chance);
        let from = SocketAddr::from(([192, 0, 2, number as u8], 1000 + (number % 7) as u16));
        // Initiator that receives at its address: it repeats message 1 with the cookie.
        for (_, answer) in network.node(2).handle(Nanos(1), from, &datagram) {
            if answer[0] == 0x14 {
                datagram[8..40].copy_from_slice(&answer[8..40]);
                network.node(2).handle(Nanos(1), from, &datagram);
            }
        }
    }
    let counts = network.node(2).table.counts();
    assert_eq!((counts.half_open, counts.unproven), (32, 8));
    assert!(network.node(2).table.refused()[&Refusal::PrefixFull] > 1000);
    // Other prefixes are not affected.
    let (_, datagram) = bogus(&mut chance);
    let from = SocketAddr::from(([198, 51, 100, 1], 1));
    assert_eq!(network.node(2).handle(Nanos(1), from, &datagram).len(), 1);
}

#[test]
fn computations_per_second_are_bounded_under_any_load() {
    let tight = Config { budget: Budget(100), ..config(2, "") };
    let mut node = Node::with(Nanos(1), 2, tight, 33);
    let mut chance = Chance(33);
    let mut answers = 0;
    for number in 0..20_000u64 {
        let (from, mut datagram) = bogus(&mut chance);
        let now = Nanos(1 + number * 500_000);
        for _ in 0..2 {
            for (_, answer) in node.handle(now, from, &datagram) {
                match answer[0] {
                    0x12 => answers += 1,
                    _ => datagram[8..40].copy_from_slice(&answer[8..40]),
                }
            }
        }
    }
    // Limit: ten seconds and a burst of 75, at four computations each.
    assert!((200..=270).contains(&answers), "{answers}");
    assert!(node.table.refused()[&Refusal::BudgetSpent] > 10_000);
}

#[test]
fn a_message_with_any_byte_changed_leads_to_no_association() {
    let mut tried = 0;
    for which in 0..4 {
        let length = pair(34).recorded[which].2.len();
        // Message 1 is mostly padding: every other byte is changed, and some of the padding.
        let step = |at: usize| if which == 0 && at > 80 { 97 } else { 1 };
        let mut at = 0;
        while at < length {
            for bit in [0, 3, 7] {
                changed(which, at, 1 << bit);
                tried += 1;
            }
            at += step(at);
        }
    }
    assert!(tried > 1000, "{tried}");
}

/// Runs a handshake in which one message arrives changed, and nothing is repeated.
fn changed(which: usize, at: usize, bit: u8) {
    let nodes =
        [(1, "token of 1"), (2, "")].map(|(byte, token)| Node::new(Nanos(1), byte, token, 34));
    let mut network = Network::new(34, Faults::default(), nodes);
    let now = network.now;
    let (_, mut sent) = network.node(1).connect(now, 2, None);
    let mut to = 2;
    for number in 0..4 {
        let Some((_, mut datagram)) = sent.pop() else { break };
        if number == which {
            datagram[at] ^= bit;
        }
        sent = network.node(to).handle(now, address(3 - to), &datagram);
        to = 3 - to;
    }
    let both = [1, 2].map(|byte| network.node(byte).table.counts().live);
    let expected = if which == 3 { [0, 1] } else { [0, 0] };
    assert_eq!(both, expected, "message {which}, byte {at}, bit {bit:#x}");
}

#[test]
fn a_guessed_association_id_can_neither_end_nor_confirm_it() {
    let mut network = pair(35);
    let id = network.node(2).newest[0];
    let now = network.now;
    for kind in [0x12, 0x13, 0x14, 0x15, 0x16] {
        let mut forged = vec![kind, 0, 0, 0];
        forged.extend(id.to_bytes());
        forged.resize(if kind == 0x14 { 72 } else { 40 }, 0x5a);
        assert!(network.node(2).handle(now, address(1), &forged).is_empty());
    }
    assert_eq!(network.node(2).table.counts().live, 1);
    assert!(network.node(2).ended.is_empty());
}

#[test]
fn an_end_of_one_direction_is_invalid_in_the_other() {
    let mut network = pair(36);
    let (now, id) = (network.now, network.node(1).newest[0]);
    let sent = network.node(1).end(id);
    let (_, mut end) = sent.into_iter().next().unwrap();
    // Reflected to its sender, which has another association by then.
    let other = network.connect(1, 2);
    network.run(SECOND);
    end[4..8].copy_from_slice(&other.to_bytes());
    network.node(1).handle(now, address(2), &end);
    assert!(network.node(1).keys.contains_key(&other));
}

#[test]
fn forged_answers_and_cookies_do_not_keep_a_handshake_from_its_end() {
    let nodes = [1, 2].map(|byte| Node::new(Nanos(1), byte, "", 37));
    let mut network = Network::new(37, Faults::default(), nodes);
    let id = network.connect(1, 2);
    let (now, mut chance) = (network.now, Chance(37));
    for kind in [0x12, 0x12, 0x12, 0x14, 0x14, 0x14, 0x15] {
        let mut forged = vec![kind, 0, 0, 0];
        forged.extend(id.to_bytes());
        let length = [72, 300][usize::from(kind == 0x12)];
        let mut rest = vec![0; length - 8];
        chance.fill(&mut rest);
        forged.extend(rest);
        assert!(network.node(1).handle(now, address(2), &forged).is_empty());
    }
    network.run(SECOND);
    assert!(network.node(1).keys.contains_key(&id));
}

#[test]
fn random_bytes_are_refused() {
    let mut network = pair(38);
    let (now, mut chance) = (network.now, Chance(38));
    for _ in 0..20_000 {
        let mut datagram = vec![0; chance.below(300) as usize];
        chance.fill(&mut datagram);
        if let Some(first) = datagram.first_mut() {
            *first = 0x10 | *first & 7;
        }
        assert!(network.node(2).handle(now, address(1), &datagram).is_empty());
    }
    assert_eq!(network.node(2).table.counts().live, 1);
}

#[test]
fn a_node_whose_messages_are_reflected_does_not_authenticate_to_itself() {
    let mut node = Node::new(Nanos(1), 1, "", 39);
    let (_, mut sent) = node.connect(Nanos(1), 2, None);
    let mut kinds = Vec::new();
    for _ in 0..6 {
        let Some((_, datagram)) = sent.pop() else { break };
        kinds.push(datagram[0] & 0x0f);
        sent = node.handle(Nanos(1), address(2), &datagram);
    }
    assert_eq!(kinds, [1, 2], "its own answer is not believed");
    assert_eq!((node.table.counts().live, node.table.refused()[&Refusal::Forged]), (0, 1));
}
