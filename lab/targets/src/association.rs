//! Messages between nodes: whatever arrives, no identity is accepted without proof, no packet is
//! opened that was not sealed, and no stranger gets more bytes than it sent.

use ::association::packet::{FromAnyone, OVERHEAD};
use ::association::wire::{self, Message};
use ::association::{
    Associations, Budget, Config, Effect, Kind, Opener, Peer, Protection, Role, Traffic,
};
use ::trust::{SecretKey, Seed};
use std::net::SocketAddr;
use units::Nanos;

const NOW: Nanos = Nanos(1);
const ADDRESSES: [([u8; 4], u16); 2] = [([10, 0, 0, 1], 1), ([10, 0, 1, 1], 2)];

fn address(which: usize) -> SocketAddr {
    SocketAddr::from(ADDRESSES[which])
}

/// Returns a source of bytes that are the same each time.
fn counting(start: u8) -> impl FnMut(&mut [u8]) {
    let mut last = start;
    move |into| {
        for byte in into {
            last = last.wrapping_mul(5).wrapping_add(37);
            *byte = last;
        }
    }
}

/// Handshake of two nodes up to the message of this number: that message, and the effects of it and
/// those before.
struct Handshake {
    tables: [Associations; 2],
    message: Vec<u8>,
    traffic: Vec<Traffic>,
}

fn handshake(up_to: usize) -> Handshake {
    let table = |which: usize| {
        let key = SecretKey::from_seed(&Seed::from([which as u8 + 1; 32]));
        let config = Config { key, token: "a token".to_owned(), budget: Budget(1000) };
        let made = Associations::new(NOW, config, &mut counting(which as u8));
        made.expect("the token is short")
    };
    let mut tables = [table(0), table(1)];
    let peer = Peer { address: address(1), principal: None };
    let (_, effects) = tables[0].connect(NOW, peer, &mut counting(9)).expect("the first one");
    let (mut message, mut traffic) = (sent(effects, &mut Vec::new()), Vec::new());
    for number in 0..up_to {
        let to = 1 - number % 2;
        let effects = tables[to].handle(NOW, address(1 - to), &message, &mut counting(7));
        message = sent(effects, &mut traffic);
    }
    Handshake { tables, message, traffic }
}

/// Returns the one datagram among some effects; keys are put aside.
fn sent(effects: Vec<Effect>, traffic: &mut Vec<Traffic>) -> Vec<u8> {
    let mut datagram = Vec::new();
    for effect in effects {
        match effect {
            Effect::Send { datagram: one, .. } => datagram = one,
            Effect::Established(new) => traffic.push(new.traffic),
            Effect::Ended { reason, .. } => unreachable!("nobody ends anything: {reason:?}"),
        }
    }
    datagram
}

/// Returns an opener, and one packet of each kind for it.
fn packets() -> (Opener, [Vec<u8>; 2]) {
    let mut ends = handshake(4).traffic;
    let (opener, _) = ends.remove(0).split();
    let (_, mut sealer) = ends.remove(0).split();
    let mut seal = |protection| {
        let mut datagram = vec![0x61; OVERHEAD + 20];
        let sealed = sealer.seal(protection, Role::Call, &[2; 32], &mut datagram);
        sealed.map(|_| datagram).expect("there is room")
    };
    (opener, [seal(Protection::Authenticated), seal(Protection::Encrypted)])
}

pub fn read(bytes: &[u8]) {
    if let Ok(traffic) = Traffic::from_bytes(bytes) {
        let again = traffic.to_bytes().expect("what was read can be written");
        assert!(Traffic::from_bytes(&again).is_ok_and(|again| again.id == traffic.id));
    }
    match (wire::kind(bytes), Message::read(bytes)) {
        (Ok(Kind::Active(_) | Kind::Anyone), read) => {
            assert!(read.is_err());
            active(bytes);
        }
        (Ok(Kind::Handshake), Ok(message)) => of_the_handshake(bytes, &message),
        (Ok(Kind::Handshake), Err(error)) => assert!(!error.to_string().is_empty()),
        (Err(_), read) => assert!(read.is_err()),
    }
}

fn active(bytes: &[u8]) {
    let (mut opener, genuine) = packets();
    let is_genuine = genuine.iter().any(|packet| packet == bytes);
    let opened = opener.open(&mut bytes.to_vec()).is_ok();
    assert_eq!(opened, is_genuine);
    assert!(opener.open(&mut bytes.to_vec()).is_err(), "twice");
    assert!(!opened || FromAnyone::read(&mut bytes.to_vec()).is_err());
}

fn of_the_handshake(bytes: &[u8], message: &Message<'_>) {
    // How far the handshake is when this message can come.
    let number = match message {
        Message::Initiation { .. } => 0,
        Message::Answer { .. } | Message::Cookie { .. } => 1,
        Message::Finish { .. } => 2,
        Message::Confirm { .. } => 3,
        Message::End { .. } => 4,
    };
    let Handshake { mut tables, message: mut genuine, .. } = handshake(number);
    if number == 4 {
        genuine = end(&mut tables[0]);
    }
    let to = 1 - number % 2;
    let before = tables[to].counts();
    let effects = tables[to].handle(NOW, address(1 - to), bytes, &mut counting(7));
    for effect in effects {
        match effect {
            Effect::Send { to: receiver, datagram } => {
                assert_eq!(receiver, address(1 - to));
                assert!(number > 0 || datagram.len() <= bytes.len(), "amplified");
            }
            Effect::Established(_) | Effect::Ended { .. } => assert_eq!(bytes, genuine),
        }
    }
    let after = tables[to].counts();
    assert!(after.live == before.live || bytes == genuine);
    assert!(after.half_open <= before.half_open + usize::from(number == 0));
}

/// Returns the datagram by which a node ends its association.
fn end(table: &mut Associations) -> Vec<u8> {
    let id = table.ids().next().expect("they know each other");
    let datagram = |effect| match effect {
        Effect::Send { datagram, .. } => Some(datagram),
        Effect::Established(_) | Effect::Ended { .. } => None,
    };
    table.end(id).into_iter().find_map(datagram).expect("the other side is told")
}

pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = (0..4).map(|number| handshake(number).message).collect();
    seeds.push(handshake(4).traffic[0].to_bytes().expect("it can be written").to_vec());
    seeds.extend(packets().1);
    seeds.push([&FromAnyone::head(Role::Call, &[3; 32])[..], b"payload"].concat());
    seeds.push(end(&mut handshake(4).tables[0]));
    seeds
}
