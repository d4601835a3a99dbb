//! Establishment, renewal and end of associations.

mod common;

use association::table::{
    ASSOCIATIONS_PER_PRINCIPAL_MAX, ATTEMPT_TIME_MAX, LIFETIME_MAX, RENEW_AFTER, RENEW_AGAIN,
    Refusal,
};
use association::wire::INITIATION_LENGTH;
use association::{
    AssociationError, Associations, Config, Effect, Protection, Reason, Role, Traffic,
};
use common::{Chance, Faults, Network, Node, address, config, pair, principal};
use trust::token;
use units::Nanos;

const SECOND: Nanos = Nanos::from_millis(1000);

#[test]
fn both_sides_learn_the_others_principal_and_capability() {
    let mut network = pair(1);
    let (byte_1, byte_2) = (principal(1), principal(2));
    let at_1 = network.node(1).newest().map(|keys| (keys.peer, keys.token.clone(), keys.is_ours));
    assert_eq!(at_1, Some((byte_2, String::new(), true)));
    let at_2 = network.node(2).newest().map(|keys| (keys.peer, keys.token.clone(), keys.is_ours));
    assert_eq!(at_2, Some((byte_1, "token of 1".to_owned(), false)));
}

#[test]
fn packets_go_both_ways() {
    let mut network = pair(2);
    for (from, to) in [(1, 2), (2, 1)] {
        for protection in [Protection::Authenticated, Protection::Encrypted] {
            let mut datagram = vec![7; association::packet::OVERHEAD + 64];
            let sealer = &mut network.node(from).newest().unwrap().sealer;
            sealer.seal(protection, Role::Call, &[1; 32], &mut datagram).unwrap();
            let opener = &mut network.node(to).newest().unwrap().opener;
            assert_eq!(opener.open(&mut datagram.clone()).unwrap().payload, [7; 64]);
            assert!(opener.open(&mut datagram).is_err());
        }
    }
}

#[test]
fn the_keys_go_to_another_process_as_bytes_once() {
    let nodes = [1, 2].map(|byte| Node::new(Nanos(1), byte, "", 3));
    let mut network = Network::new(3, Faults::default(), nodes);
    network.connect(1, 2);
    network.run(SECOND);
    // Reassembled from the harness's parts: a daemon would have sent this to its cell.
    let mut chance = Chance(9);
    let mut random = |into: &mut [u8]| chance.fill(into);
    let mut tables =
        [1, 2].map(|byte| Associations::new(Nanos(1), config(byte, ""), &mut random).unwrap());
    let peer = association::Peer { address: address(2), principal: None };
    let (_, mut effects) = tables[0].connect(Nanos(1), peer, &mut random).unwrap();
    let mut traffic = Vec::new();
    for hop in 1.. {
        let mut next = Vec::new();
        for effect in effects {
            match effect {
                association::Effect::Send { datagram, .. } => {
                    let (to, from) = (hop % 2, address(1 + ((hop + 1) % 2) as u8));
                    next.extend(tables[to].handle(Nanos(1), from, &datagram, &mut random));
                }
                association::Effect::Established(new) => traffic.push(new.traffic),
                association::Effect::Ended { reason, .. } => panic!("{reason:?}"),
            }
        }
        effects = next;
        if effects.is_empty() {
            break;
        }
    }
    let ends = traffic.iter().map(|traffic| traffic.to_bytes().unwrap());
    let mut ends: Vec<_> = ends.map(|bytes| Traffic::from_bytes(&bytes).unwrap().split()).collect();
    let (mut opener, _) = ends.pop().unwrap();
    let (_, mut sealer) = ends.pop().unwrap();
    let mut datagram = vec![0; association::packet::OVERHEAD];
    sealer.seal(Protection::Encrypted, Role::Call, &[2; 32], &mut datagram).unwrap();
    assert!(opener.open(&mut datagram).is_ok());
    let bytes = traffic[0].to_bytes().unwrap();
    assert!(Traffic::from_bytes(&bytes[..bytes.len() - 1]).is_err());
    assert!(Traffic::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
    let secret: String = bytes[bytes.len() - 32..].iter().map(|byte| format!("{byte}, ")).collect();
    assert!(!format!("{:?}", traffic[0]).contains(secret.trim_end_matches(", ")));
}

#[test]
fn over_a_lossy_network_both_sides_establish_the_association() {
    for seed in 0..60 {
        let faults = Faults { lost: 4, doubled: 4, changed: 6, delay_max: Nanos::from_millis(400) };
        let nodes = [1, 2, 3].map(|byte| Node::new(Nanos(1), byte, "a token", seed));
        let mut network = Network::new(seed, faults, nodes);
        // A third of all messages is lost or corrupted: unanswered initiators start over.
        let mut missing = vec![(1, 2), (3, 2), (2, 1)];
        for _ in 0..4 {
            let mut rest = Vec::new();
            let asked: Vec<_> =
                missing.iter().map(|(from, to)| network.connect(*from, *to)).collect();
            network.run(ATTEMPT_TIME_MAX);
            for (id, (from, to)) in asked.into_iter().zip(missing) {
                let node = network.node(from);
                if !node.all.contains(&id) {
                    assert!(node.ended.contains(&(id, Reason::NoAnswer)), "seed {seed}");
                    rest.push((from, to));
                }
            }
            missing = rest;
        }
        assert!(missing.is_empty(), "seed {seed}");
    }
}

#[test]
fn only_the_requested_principal_learns_the_initiators_identity() {
    let nodes = [1, 2].map(|byte| Node::new(Nanos(1), byte, "", 4));
    let mut network = Network::new(4, Faults::default(), nodes);
    let now = network.now;
    let (id, sent) = network.node(1).connect(now, 2, Some(3));
    network.send(1, sent);
    network.run(SECOND);
    let reason = Reason::OtherPrincipal(principal(2));
    assert_eq!(network.node(1).ended, [(id, reason)]);
    let messages: Vec<u8> = network.recorded.iter().map(|sent| sent.2[0] & 0x0f).collect();
    assert_eq!(messages, [1, 2], "message 3, which names the asker, was never sent");
    assert_eq!(network.node(2).table.counts().live, 0);
}

#[test]
fn a_token_that_makes_the_answer_long_is_sent_to_a_proven_address_only() {
    let token = "t".repeat(token::LENGTH_MAX);
    let nodes = [Node::new(Nanos(1), 1, &token, 5), Node::new(Nanos(1), 2, &token, 5)];
    let mut network = Network::new(5, Faults::default(), nodes);
    let id = network.connect(1, 2);
    network.run(SECOND);
    let kinds: Vec<(u8, usize)> =
        network.recorded.iter().map(|sent| (sent.2[0] & 0x0f, sent.2.len())).collect();
    let order: Vec<u8> = kinds.iter().map(|kind| kind.0).collect();
    assert_eq!(order, [1, 4, 1, 2, 3, 5], "{kinds:?}");
    assert!(kinds[1].1 < INITIATION_LENGTH && kinds[3].1 > token::LENGTH_MAX);
    assert_eq!(network.node(1).keys[&id].token, token);
    assert_eq!(network.node(2).newest().unwrap().token, token);
    let too_long = Config { token: token + "t", ..config(1, "") };
    let made = Associations::new(Nanos(1), too_long, &mut |into| into.fill(1)).err();
    assert_eq!(made, Some(AssociationError::TokenTooLong(token::LENGTH_MAX + 1)));
}

#[test]
fn an_association_has_a_successor_before_it_ends_and_none_is_kept() {
    let mut network = pair(6);
    let first = network.node(1).newest[0];
    network.run(RENEW_AFTER);
    let second = network.node(1).newest[1];
    assert_eq!(network.node(1).keys[&second].replaces, Some(first));
    assert!(network.node(1).keys.contains_key(&first), "what is on its way is still opened");
    network.run(LIFETIME_MAX);
    assert_eq!(network.node(1).ended[0], (first, Reason::Expired));
    // After an hour there are one or two, and there was always at least one.
    for _ in 0..3600 {
        network.run(SECOND);
        for byte in [1, 2] {
            let live = network.node(byte).keys.len();
            assert!((1..=2).contains(&live), "{live} at {byte}");
            assert_eq!(network.node(byte).table.counts().live, live);
        }
    }
    assert!(network.node(1).newest.len() > 30);
}

#[test]
fn a_renewal_that_fails_is_tried_again_and_then_the_association_ends() {
    let mut network = pair(7);
    let id = network.node(1).newest[0];
    network.faults.lost = 1;
    network.run(LIFETIME_MAX);
    assert_eq!(network.node(1).ended, [(id, Reason::Expired)]);
    assert!(network.node(1).keys.is_empty() && network.node(2).keys.is_empty());
    network.run(ATTEMPT_TIME_MAX + RENEW_AGAIN);
    for byte in [1, 2] {
        assert_eq!(network.node(byte).table.counts(), Default::default());
        assert_eq!(network.node(byte).table.next_timeout(), None);
    }
}

#[test]
fn either_side_ends_an_association_at_both_ends() {
    for ending in [1, 2] {
        let mut network = pair(8);
        let ids = [1, 2].map(|byte| network.node(byte).newest[0]);
        let id = ids[usize::from(ending) - 1];
        let sent = network.node(ending).end(id);
        network.send(ending, sent);
        network.run(SECOND);
        for byte in [1, 2] {
            let reason = if byte == ending { Reason::Here } else { Reason::ByPeer };
            let ended = (ids[usize::from(byte) - 1], reason);
            assert_eq!(network.node(byte).ended, [ended]);
            assert_eq!(network.node(byte).table.counts().live, 0);
        }
    }
}

#[test]
fn a_restarted_node_gets_new_associations_and_its_old_ones_expire() {
    let mut network = pair(9);
    let old = network.node(1).newest[0];
    let now = network.now;
    network.nodes.insert(2, Node::new(now, 2, "", 77));
    // The user of the association gets no answers, and requests a renewal.
    let Node { table, chance, .. } = network.node(1);
    let effects = table.renew(now, old, &mut |into| chance.fill(into)).unwrap();
    assert!(table.renew(now, old, &mut |into| chance.fill(into)).unwrap().is_empty(), "once");
    let sent = network.node(1).take(effects);
    network.send(1, sent);
    network.run(SECOND);
    assert_eq!(network.node(1).newest().unwrap().replaces, Some(old));
    assert_eq!(network.node(2).newest().unwrap().peer, principal(1));
    network.run(LIFETIME_MAX);
    assert!(network.node(1).ended.contains(&(old, Reason::Expired)));
}

#[test]
fn a_principal_has_a_few_associations_and_the_oldest_is_evicted() {
    let mut network = pair(10);
    let ids: Vec<_> = (0..ASSOCIATIONS_PER_PRINCIPAL_MAX)
        .map(|_| {
            let id = network.connect(1, 2);
            network.run(SECOND);
            id
        })
        .collect();
    assert_eq!(network.node(2).table.counts().live, ASSOCIATIONS_PER_PRINCIPAL_MAX);
    assert_eq!(network.node(2).ended.len(), 1);
    assert!(ids.iter().all(|id| network.node(1).keys.contains_key(id)));
}

#[test]
fn a_peer_that_does_not_answer_is_reported() {
    let mut network = Network::new(11, Faults::default(), [Node::new(Nanos(1), 1, "", 11)]);
    let id = network.connect(1, 9);
    network.run(ATTEMPT_TIME_MAX);
    assert_eq!(network.node(1).ended, [(id, Reason::NoAnswer)]);
    let sent = network.recorded.len();
    assert!((5..=9).contains(&sent), "{sent} attempts");
    let mut keys: Vec<_> = network.recorded.iter().map(|sent| sent.2[40..72].to_vec()).collect();
    keys.dedup();
    assert_eq!(keys.len(), sent, "each with a new key");
}

#[test]
fn the_same_seed_brings_the_same_messages() {
    let run = |seed| {
        let faults = Faults { lost: 3, doubled: 3, changed: 9, delay_max: SECOND };
        let nodes = [1, 2].map(|byte| Node::new(Nanos(1), byte, "", seed));
        let mut network = Network::new(seed, faults, nodes);
        network.connect(1, 2);
        network.connect(2, 1);
        network.run(LIFETIME_MAX);
        network.recorded
    };
    assert_eq!(run(12), run(12));
    assert_ne!(run(12), run(13));
}

#[test]
fn a_message_that_comes_twice_is_answered_once() {
    let network = pair(13);
    let (from, _, question) = network.recorded[0].clone();
    let nodes = [Node::new(Nanos(1), 2, "", 14)];
    let mut fresh = Network::new(14, Faults::default(), nodes);
    assert_eq!(fresh.node(2).handle(Nanos(1), from, &question).len(), 1);
    assert!(fresh.node(2).handle(Nanos(1), from, &question).is_empty());
    assert_eq!(fresh.node(2).table.refused()[&Refusal::Duplicate], 1);
    assert_eq!(fresh.node(2).table.counts().half_open, 1);
}

#[test]
fn a_clock_that_goes_back_ends_nothing_early_and_lets_nothing_in() {
    let mut network = pair(15);
    let id = network.node(1).newest[0];
    let (_, _, question) = network.recorded[0].clone();
    for now in [Nanos(0), Nanos::from_millis(50), Nanos(0)] {
        for byte in [1, 2] {
            assert!(network.node(byte).timeout(now).is_empty());
        }
        network.node(2).handle(now, address(1), &question);
        assert_eq!(network.node(2).table.counts().live, 1);
    }
    network.run(RENEW_AFTER);
    assert!(network.node(1).keys.contains_key(&id), "it is as old as it was");
    assert_eq!(network.node(1).newest().unwrap().replaces, Some(id));
}

#[test]
fn a_responder_may_end_an_association_instead_of_confirming_it() {
    let mut chance = Chance(9);
    let mut random = |into: &mut [u8]| chance.fill(into);
    let mut tables =
        [1, 2].map(|byte| Associations::new(Nanos(1), config(byte, ""), &mut random).unwrap());
    let peer = association::Peer { address: address(2), principal: None };
    let (asked, effects) = tables[0].connect(Nanos(1), peer, &mut random).unwrap();
    let mut on_the_way: Vec<(usize, Vec<u8>)> = Vec::new();
    let sends = |effects: Vec<Effect>, to: usize, on_the_way: &mut Vec<(usize, Vec<u8>)>| {
        let datagrams = effects.into_iter().filter_map(|effect| match effect {
            Effect::Send { datagram, .. } => Some((to, datagram)),
            _ => None,
        });
        on_the_way.extend(datagrams);
    };
    sends(effects, 1, &mut on_the_way);
    let mut ended = None;
    while let Some((to, datagram)) = on_the_way.pop() {
        let from = address(2 - to as u8);
        // A forged end has no effect.
        if to == 0 && datagram.len() == 40 {
            let mut forged = datagram.clone();
            forged[39] ^= 1;
            assert_eq!(tables[0].handle(Nanos(2), from, &forged, &mut random).len(), 0);
        }
        let effects = tables[to].handle(Nanos(2), from, &datagram, &mut random);
        let new = effects.iter().find_map(|effect| match effect {
            Effect::Established(new) => Some(new.id),
            _ => None,
        });
        ended = ended.or(effects.iter().find_map(|effect| match effect {
            Effect::Ended { id, reason } => Some((*id, *reason)),
            _ => None,
        }));
        match new {
            // Lost: its confirmation is never sent.
            Some(id) => sends(tables[to].end(id), 1 - to, &mut on_the_way),
            None => sends(effects, 1 - to, &mut on_the_way),
        }
    }
    assert_eq!(ended, Some((asked, Reason::ByPeer)));
    assert_eq!((tables[0].counts().initiated, tables[1].counts().live), (0, 0));
}
