//! Replay attacks: a recorded packet is accepted once, by its receiver, and never again: not in any
//! order, not after a restart of either side, not by a successor of the association.

mod common;

use association::packet::OVERHEAD;
use association::table::RENEW_AFTER;
use association::window::REACH;
use association::{AssociationId, Protection, Role};
use common::{Chance, Faults, Network, Node, address, pair};
use std::collections::BTreeSet;
use units::Nanos;

/// Number of packets in an ordinary run; a million with `TAM_SOAK=1`.
const COUNT: u64 = 10_000;
const COUNT_SOAK: u64 = 1_000_000;

fn count() -> u64 {
    if std::env::var_os("TAM_SOAK").is_some() { COUNT_SOAK } else { COUNT }
}

/// Recorded packet, with the number that it carries.
struct Recorded {
    datagram: Vec<u8>,
    number: u64,
}

fn seal(network: &mut Network, from: u8, number: u64) -> Recorded {
    let mut datagram = vec![0; OVERHEAD + 8];
    let at = OVERHEAD - 16;
    datagram[at..at + 8].copy_from_slice(&number.to_be_bytes());
    let protection = [Protection::Authenticated, Protection::Encrypted][number as usize % 2];
    let sealer = &mut network.node(from).newest().unwrap().sealer;
    sealer.seal(protection, Role::Call, &[1; 32], &mut datagram).unwrap();
    Recorded { datagram, number }
}

/// Opens a datagram as a node's cell would: by the association that it names.
fn open(node: &mut Node, datagram: &[u8]) -> Option<u64> {
    let mut datagram = datagram.to_vec();
    let Ok(association::Kind::Active(id)) = association::wire::kind(&datagram) else {
        return None;
    };
    let opened = node.keys.get_mut(&id)?.opener.open(&mut datagram).ok()?;
    Some(u64::from_be_bytes((&*opened.payload).try_into().unwrap()))
}

/// Delivers packets with losses, duplicates and reordering; returns the accepted ones.
fn deliver(
    network: &mut Network,
    to: u8,
    packets: &[Recorded],
    chance: &mut Chance,
) -> BTreeSet<u64> {
    let mut accepted = BTreeSet::new();
    let mut late: Vec<usize> = Vec::new();
    let mut give = |network: &mut Network, at: usize| {
        if let Some(number) = open(network.node(to), &packets[at].datagram) {
            assert_eq!(number, packets[at].number);
            assert!(accepted.insert(number), "packet {number} was accepted twice");
        }
    };
    for at in 0..packets.len() {
        match chance.below(10) {
            0 => {}
            1..=3 => late.push(at),
            4 => {
                give(network, at);
                give(network, at);
            }
            _ => give(network, at),
        }
        if late.len() as u64 > chance.below(REACH / 4) {
            let which = chance.below(late.len() as u64) as usize;
            give(network, late.swap_remove(which));
        }
    }
    accepted
}

/// Replays every packet ever sent to all nodes, in another order.
fn replay(network: &mut Network, packets: &[Recorded], chance: &mut Chance) {
    for _ in 0..packets.len() {
        let packet = &packets[chance.below(packets.len() as u64) as usize];
        for byte in [1, 2] {
            assert_eq!(open(network.node(byte), &packet.datagram), None, "{}", packet.number);
        }
    }
    for packet in packets {
        for byte in [1, 2] {
            assert_eq!(open(network.node(byte), &packet.datagram), None, "{}", packet.number);
        }
    }
}

/// Replays the handshakes to both nodes from their original addresses: none establishes anything.
fn replay_handshakes(network: &mut Network) {
    let recorded = network.recorded.clone();
    let known: Vec<usize> = [1, 2].map(|byte| network.node(byte).all.len()).to_vec();
    for _ in 0..2 {
        for (from, to, datagram) in &recorded {
            for byte in [1, 2] {
                let now = network.now;
                let sent = network.node(byte).handle(now, *from, datagram);
                // Answers are delivered to their destination, the other genuine node.
                drop(sent);
                let _ = to;
            }
        }
    }
    let now_known = [1, 2].map(|byte| network.node(byte).all.len());
    assert_eq!(known, now_known, "a recorded handshake made an association");
}

#[test]
fn recorded_packets_are_accepted_once_also_after_restarts_and_by_no_successor() {
    let mut chance = Chance(21);
    let mut network = pair(21);
    let mut recorded: Vec<Recorded> = (0..count()).map(|it| seal(&mut network, 1, it)).collect();
    let accepted = deliver(&mut network, 2, &recorded, &mut chance);
    assert!(accepted.len() as u64 > count() / 2, "{}", accepted.len());
    // Packets lost in transit but recorded may arrive once, within the window.
    let late = |network: &mut Network, packet: &Recorded| open(network.node(2), &packet.datagram);
    let late: Vec<u64> = recorded.iter().filter_map(|packet| late(&mut network, packet)).collect();
    assert!(late.iter().all(|number| !accepted.contains(number)));
    replay(&mut network, &recorded, &mut chance);

    network.run(RENEW_AFTER);
    assert!(network.node(2).newest.len() > 1, "there is a successor");
    recorded.extend((0..100).map(|number| seal(&mut network, 1, count() + number)));
    let begin = recorded.len() - 100;
    assert!(deliver(&mut network, 2, &recorded[begin..], &mut chance).len() > 50);
    let rest = &recorded[begin..];
    let again = rest.iter().filter_map(|packet| open(network.node(2), &packet.datagram)).count();
    assert!(again < 50, "only what was lost");
    replay(&mut network, &recorded, &mut chance);
    replay_handshakes(&mut network);

    for byte in [2, 1, 2] {
        let (now, seed) = (network.now, chance.draw());
        network.nodes.insert(byte, Node::new(now, byte, "", seed));
        replay(&mut network, &recorded, &mut chance);
        replay_handshakes(&mut network);
        network.connect(byte, 3 - byte);
        network.run(Nanos::from_millis(1000));
        assert!(network.node(byte).newest().is_some(), "they know each other again");
        replay(&mut network, &recorded, &mut chance);
    }
}

#[test]
fn across_key_changes_each_packet_is_accepted_at_most_once() {
    use association::packet::EPOCH_PACKETS;
    let mut chance = Chance(22);
    let mut network = pair(22);
    let (mut accepted, mut next) = (BTreeSet::new(), 0);
    let mut recorded = Vec::new();
    while next < EPOCH_PACKETS + 3000 {
        let packet = seal(&mut network, 1, next);
        let is_near = next % EPOCH_PACKETS > EPOCH_PACKETS - 3000 || next >= EPOCH_PACKETS;
        if is_near {
            recorded.push(packet);
        } else if next % 4096 == 0 {
            accepted.extend(open(network.node(2), &packet.datagram));
        }
        next += 1;
    }
    let around = deliver(&mut network, 2, &recorded, &mut chance);
    assert!(around.range(..EPOCH_PACKETS).count() > 1000);
    assert!(around.range(EPOCH_PACKETS..).count() > 1000);
    for packet in &recorded {
        if let Some(number) = open(network.node(2), &packet.datagram) {
            assert!(!around.contains(&number));
        }
    }
    replay(&mut network, &recorded, &mut chance);
    assert_eq!(accepted.len() as u64, (EPOCH_PACKETS - 3000).div_ceil(4096));
}

#[test]
fn random_network_histories_use_no_id_and_no_packet_twice() {
    for seed in 0..40 {
        let faults = Faults { lost: 5, doubled: 3, changed: 8, delay_max: Nanos::from_millis(900) };
        let nodes = [1, 2, 3].map(|byte| Node::new(Nanos(1), byte, "token", seed));
        let mut network = Network::new(seed, faults, nodes);
        let mut chance = Chance(seed);
        for _ in 0..60 {
            act(&mut network, &mut chance);
            network.run(Nanos::from_millis(chance.below(20_000)));
        }
        // Associations reported by one side are known to the other.
        for byte in [1u8, 2, 3] {
            assert!(network.node(byte).table.counts().half_open < 100);
        }
    }
}

/// Performs a random action: connect, end, restart, or a replay.
fn act(network: &mut Network, chance: &mut Chance) {
    let byte = 1 + chance.below(3) as u8;
    let now = network.now;
    match chance.below(8) {
        0..=3 => {
            let to = 1 + (byte - 1 + 1 + chance.below(2) as u8) % 3;
            network.connect(byte, to);
        }
        4 => {
            let ids: Vec<AssociationId> = network.node(byte).keys.keys().copied().collect();
            if let Some(id) = ids.first() {
                let sent = network.node(byte).end(*id);
                network.send(byte, sent);
            }
        }
        5 => {
            let seed = chance.draw();
            network.nodes.insert(byte, Node::new(now, byte, "token", seed));
        }
        _ => {
            let many = network.recorded.len() as u64;
            for _ in 0..many.min(20) {
                let at = chance.below(many) as usize;
                let (from, to, datagram) = network.recorded[at].clone();
                let Some(to) = (1..=3).find(|byte| address(*byte) == to) else { continue };
                let before = network.node(to).all.len();
                let live = |network: &mut Network| network.node(to).newest.len();
                let was = live(network);
                let sent = network.node(to).handle(now, from, &datagram);
                // A lost message 3 may arrive late, once: the id is new then.
                assert!(live(network) - was == network.node(to).all.len() - before);
                network.send(to, sent);
            }
        }
    }
}
