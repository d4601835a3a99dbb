//! Tests of active packets: each is opened once, complete, by its receiver only, in any order.

use super::*;
use crate::secret::Secret;
use crate::window::REACH;
use proptest::prelude::*;

const DIGEST: [u8; 32] = [0xd1; 32];
const BOTH: [Protection; 2] = [Protection::Authenticated, Protection::Encrypted];

fn id(number: u32) -> AssociationId {
    AssociationId::new(number).unwrap()
}

fn pair() -> (Opener, Sealer) {
    let chain = || Chain::new(&Secret::new(&[3; 32]));
    (Opener::new(id(5), chain()), Sealer::new(id(5), chain()))
}

fn sealed(sealer: &mut Sealer, protection: Protection, payload: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0; payload.len() + OVERHEAD];
    datagram[PAYLOAD_AT..][..payload.len()].copy_from_slice(payload);
    sealer.seal(protection, Role::Call, &DIGEST, &mut datagram).unwrap();
    datagram
}

/// Returns a sealer that has sealed `counter` packets.
fn later(counter: u64) -> Sealer {
    let (_, mut sealer) = pair();
    let epoch = counter / EPOCH_PACKETS;
    for before in 0..epoch {
        sealer.chain.spend(before);
    }
    sealer.next = counter;
    sealer
}

proptest! {
    #[test]
    fn a_packet_comes_out_as_it_went_in(payload in prop::collection::vec(any::<u8>(), 0..3000)) {
        let (mut opener, mut sealer) = pair();
        for (number, protection) in BOTH.into_iter().enumerate() {
            let mut datagram = sealed(&mut sealer, protection, &payload);
            let is_clear = payload.len() > 15 && datagram[PAYLOAD_AT..].starts_with(&payload);
            prop_assert!(payload.len() < 16 || is_clear == (protection == BOTH[0]));
            prop_assert_eq!(crate::wire::kind(&datagram), Ok(crate::Kind::Active(id(5))));
            let opened = opener.open(&mut datagram).unwrap();
            prop_assert_eq!(&*opened.payload, &payload[..]);
            prop_assert_eq!((opened.digest, opened.counter), (&DIGEST, number as u64));
            prop_assert_eq!(opened.protection, protection);
        }
    }

    #[test]
    fn each_packet_is_opened_once_in_any_order(
        order in prop::collection::vec(0usize..60, 1..200), start in 0u64..3,
    ) {
        let (mut opener, _) = pair();
        // Counters around a change of the key are included.
        let mut sealer = later((start * EPOCH_PACKETS).saturating_sub(30));
        let packets: Vec<Vec<u8>> =
            (0..60).map(|at| sealed(&mut sealer, BOTH[at % 2], b"payload")).collect();
        let mut seen = std::collections::BTreeSet::new();
        for at in order {
            prop_assert_eq!(opener.open(&mut packets[at].clone()).is_ok(), seen.insert(at));
        }
    }
}

#[test]
fn a_packet_with_any_bit_changed_is_refused_and_does_no_harm() {
    let (mut opener, mut sealer) = pair();
    for protection in BOTH {
        let datagram = sealed(&mut sealer, protection, &[0x55; 40]);
        for bit in 0..datagram.len() * 8 {
            let mut changed = datagram.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(opener.open(&mut changed).is_err(), "bit {bit}, {protection:?}");
        }
        for length in 0..datagram.len() {
            assert!(opener.open(&mut datagram[..length].to_vec()).is_err(), "{length} bytes");
        }
        assert!(opener.open(&mut [&datagram[..], &[0]].concat()).is_err());
        assert!(opener.open(&mut datagram.clone()).is_ok());
    }
}

#[test]
fn an_answer_is_distinguished_from_a_call() {
    let (mut opener, mut sealer) = pair();
    for (protection, role) in BOTH.into_iter().zip([Role::Answer, Role::Call]) {
        let mut datagram = [0; OVERHEAD + 1];
        sealer.seal(protection, role, &DIGEST, &mut datagram).unwrap();
        let mut other = datagram;
        other[1] ^= ANSWER;
        assert_eq!(opener.open(&mut other), Err(Refused::Forged));
        assert_eq!(opener.open(&mut datagram).unwrap().role, role);
    }
}

#[test]
fn a_packet_of_another_association_or_of_the_own_direction_is_refused() {
    let (mut opener, mut sealer) = pair();
    let other = Chain::new(&Secret::new(&[4; 32]));
    let mut foreign = sealed(&mut Sealer::new(id(5), other), BOTH[0], b"x");
    assert_eq!(opener.open(&mut foreign), Err(Refused::Forged));
    let chain = Chain::new(&Secret::new(&[3; 32]));
    let mut misled = sealed(&mut Sealer::new(id(6), chain), BOTH[0], b"x");
    assert_eq!(opener.open(&mut misled), Err(Refused::Other(id(6))));
    assert!(opener.open(&mut sealed(&mut sealer, BOTH[0], b"x")).is_ok());
}

#[test]
fn the_key_changes_with_the_epoch_and_the_old_one_goes() {
    let (mut opener, _) = pair();
    let mut sealer = later(EPOCH_PACKETS - 2);
    let [before, late, after] = [(); 3].map(|()| sealed(&mut sealer, BOTH[1], b"x"));
    assert!(opener.open(&mut before.clone()).is_ok());
    assert!(opener.open(&mut after.clone()).is_ok());
    assert_eq!(opener.epoch, 1);
    assert!(opener.open(&mut late.clone()).is_ok(), "the key before is there");
    let mut next = sealed(&mut later(2 * EPOCH_PACKETS), BOTH[1], b"x");
    assert!(opener.open(&mut next).is_ok());
    let held =
        [&opener.keys[0], &opener.keys[1]].map(|key| key.as_ref().unwrap().seal(0, b"", &mut []));
    let chain = || Chain::new(&Secret::new(&[3; 32]));
    let of = |epoch| chain().key(epoch).unwrap().seal(0, b"", &mut []);
    assert_eq!(held, [of(2), of(1)], "and that of epoch 0 is gone");
}

#[test]
fn many_lost_packets_are_tolerated_and_too_many_are_reported() {
    let reach = crate::secret::EPOCHS_AHEAD_MAX;
    let (mut opener, _) = pair();
    let far = (reach + 1) * EPOCH_PACKETS;
    let mut packet = sealed(&mut later(far), BOTH[0], b"x");
    assert!(opener.open(&mut packet).is_ok());
    assert_eq!(opener.epoch, reach + 1);
    let (mut opener, _) = pair();
    let mut packet = sealed(&mut later(far + EPOCH_PACKETS), BOTH[0], b"x");
    assert_eq!(opener.open(&mut packet), Err(Refused::NoKey(far + EPOCH_PACKETS)));
    assert_eq!(opener.epoch, 0);
}

#[test]
fn a_forged_counter_moves_neither_window_nor_key() {
    let (mut opener, mut sealer) = pair();
    let mut packets: Vec<Vec<u8>> = (0..3).map(|_| sealed(&mut sealer, BOTH[0], b"x")).collect();
    for ahead in [1, REACH + 7, EPOCH_PACKETS, 40 * EPOCH_PACKETS, COUNTER_MAX, u64::MAX] {
        let mut forged = packets[0].clone();
        forged[8..16].copy_from_slice(&ahead.to_be_bytes());
        assert!(opener.open(&mut forged).is_err(), "{ahead}");
    }
    assert!(packets.iter_mut().all(|packet| opener.open(packet).is_ok()));
}

#[test]
fn an_association_that_is_used_up_seals_nothing() {
    let mut sealer = later(0);
    sealer.next = COUNTER_MAX;
    let mut datagram = [0; OVERHEAD];
    assert_eq!(sealer.seal(BOTH[0], Role::Call, &DIGEST, &mut datagram), Err(SealError::UsedUp));
    assert_eq!(datagram, [0; OVERHEAD]);
    let short = sealer.seal(BOTH[0], Role::Call, &DIGEST, &mut datagram[..OVERHEAD - 1]);
    assert_eq!(short, Err(SealError::NoRoom(OVERHEAD - 1)));
}

#[test]
fn an_unauthenticated_packet_is_distinguished_from_an_authenticated_one() {
    let mut datagram = [&FromAnyone::head(Role::Call, &DIGEST)[..], b"payload"].concat();
    assert_eq!(crate::wire::kind(&datagram), Ok(crate::Kind::Anyone));
    let (mut opener, mut sealer) = pair();
    assert_eq!(opener.open(&mut datagram), Err(Refused::Malformed(WireError::Association)));
    let read = FromAnyone::read(&mut datagram).unwrap();
    assert_eq!((read.digest, &*read.payload), (&DIGEST, &b"payload"[..]));
    for (at, error) in [(1, WireError::Flags(1)), (15, WireError::NotZero)] {
        let mut changed = datagram.clone();
        changed[at] = 1;
        assert_eq!(FromAnyone::read(&mut changed), Err(error));
    }
    let mut vouched = sealed(&mut sealer, BOTH[0], b"x");
    assert_eq!(FromAnyone::read(&mut vouched), Err(WireError::Association));
    let answer = FromAnyone::head(Role::Answer, &DIGEST);
    assert_eq!(FromAnyone::read(&mut answer.to_vec()).unwrap().role, Role::Answer);
    // Without its id a packet parses as unauthenticated, tag included. An attacker that strips the
    // id could send the same packet itself, and its content is not attributed to anyone.
    vouched[4..8].fill(0);
    vouched[8..16].fill(0);
    assert!(FromAnyone::read(&mut vouched).is_ok());
}
