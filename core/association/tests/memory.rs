//! Search for leftover keys: this process searches its own memory after keys should have been
//! overwritten. The only test of its file, so that nothing else runs in the process.

#![cfg(not(debug_assertions))] // Without optimisation the compiler copies secrets that are only looked at.

use association::packet::OVERHEAD;
use association::{Associations, Budget, Config, Effect, Peer, Protection, Role, Traffic};
use aws_lc_rs::hkdf::{HKDF_SHA256, Prk};
use std::fs::File;
use std::hint::black_box;
use std::io::{Read, Seek, SeekFrom};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use trust::{SecretKey, Seed};
use units::Nanos;
use zeroize::Zeroizing;

/// Mask of recorded secrets, so that the search does not find the record itself.
const MASK: u8 = 0x5a;

/// Masked record of a secret's second half: an allocator writes into the first half of freed
/// memory.
type Note = [u8; 16];

fn hidden(secret: &[u8; 32]) -> Note {
    std::array::from_fn(|at| secret[16 + at] ^ MASK)
}

/// Returns how many of these secrets occur anywhere in the writable memory of this process.
fn found(notes: &[Note], buffer: &mut [u8]) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut memory = File::open("/proc/self/mem").unwrap();
    let mut is_found = vec![false; notes.len()];
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let (begin, end) = line.split_whitespace().next().unwrap().split_once('-').unwrap();
        let [mut at, end] = [begin, end].map(|text| u64::from_str_radix(text, 16).unwrap());
        while at < end {
            let length = (end - at).min(buffer.len() as u64) as usize;
            memory.seek(SeekFrom::Start(at)).unwrap();
            if memory.read_exact(&mut buffer[..length]).is_err() {
                break;
            }
            for bytes in buffer[..length].windows(16) {
                for (found, note) in is_found.iter_mut().zip(notes) {
                    *found |= bytes[0] ^ MASK == note[0]
                        && bytes.iter().zip(note).all(|(byte, noted)| byte ^ MASK == *noted);
                }
            }
            // Overlap, so that a secret across two reads is found.
            at += if at + (length as u64) < end { length as u64 - 15 } else { length as u64 };
        }
    }
    buffer.fill(0);
    is_found.iter().filter(|found| **found).count()
}

fn address(which: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, which as u8, 1], 1))
}

/// Runs a handshake and records its random bytes; returns both tables and the keys of both sides.
fn handshake(notes: &mut Vec<Note>) -> ([Associations; 2], Vec<Traffic>) {
    let mut state = 7u64;
    let mut random = |into: &mut [u8]| {
        for byte in into.iter_mut() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 33) as u8;
        }
        if let Ok(secret) = (&*into).try_into() {
            notes.push(hidden(secret));
        }
    };
    let mut tables = [1, 2].map(|byte| {
        let key = SecretKey::from_seed(&Seed::from([byte; 32]));
        let config = Config { key, token: String::new(), budget: Budget(1000) };
        Associations::new(Nanos(1), config, &mut random).unwrap()
    });
    let peer = Peer { address: address(1), principal: None };
    let (_, mut effects) = tables[0].connect(Nanos(1), peer, &mut random).unwrap();
    let mut traffic = Vec::new();
    for number in 0.. {
        let mut sent = None;
        for effect in effects {
            match effect {
                Effect::Send { datagram, .. } => sent = Some(datagram),
                Effect::Established(new) => traffic.push(new.traffic),
                Effect::Ended { reason, .. } => panic!("{reason:?}"),
            }
        }
        let Some(sent) = sent else { break };
        let to = 1 - number % 2;
        effects = tables[to].handle(Nanos(1), address(1 - to), &sent, &mut random);
    }
    (tables, traffic)
}

/// Records the keys in transit to another process, and the first keys derived from them. Out of
/// line, so that compiler copies are on the stack below.
#[inline(never)]
fn note_below(traffic: &Traffic, notes: &mut Vec<Note>) {
    let bytes = traffic.to_bytes().unwrap();
    let (rest, seal) = bytes.split_last_chunk().unwrap();
    for secret in [seal, rest.last_chunk().unwrap()] {
        let prk = Prk::new_less_safe(HKDF_SHA256, secret);
        let mut key = Zeroizing::new([0; 32]);
        let derived = prk.expand(&[b"tamandua association 1 key"], HKDF_SHA256);
        derived.and_then(|okm| okm.fill(&mut *key)).unwrap();
        notes.extend([hidden(secret), hidden(&key)]);
    }
}

fn note(traffic: &Traffic, notes: &mut Vec<Note>) {
    note_below(traffic, notes);
    #[inline(never)]
    fn wipe() {
        black_box(&mut [0u8; 4096]);
    }
    wipe();
}

/// Runs the whole life of keys. Records are compared before and after they are dropped; the stack
/// is kept until the receiver hangs up.
fn live(noted: &Sender<Vec<Note>>, go_on: &Receiver<()>) {
    let mut notes = Vec::with_capacity(64);
    let (tables, traffic) = handshake(&mut notes);
    traffic.iter().for_each(|traffic| note(traffic, &mut notes));
    noted.send(notes.clone()).unwrap();
    go_on.recv().unwrap();
    for traffic in traffic {
        let (mut opener, mut sealer) = traffic.split();
        let mut datagram = vec![0; OVERHEAD];
        sealer.seal(Protection::Encrypted, Role::Call, &[0; 32], &mut datagram).unwrap();
        assert!(opener.open(&mut datagram).is_err());
    }
    drop(tables);
    noted.send(notes).unwrap();
    assert!(go_on.recv().is_err());
}

#[test]
fn secrets_are_gone_from_memory_when_their_associations_are() {
    let mut buffer = vec![0; 1 << 20];
    let ((to_here, noted), (go_on, to_there)) = (channel(), channel());
    // The other thread ends when `go_on` does, also when something here does not hold.
    std::thread::scope(move |scope| {
        scope.spawn(move || live(&to_here, &to_there));
        let notes = noted.recv().unwrap();
        assert_eq!(notes.len(), 16, "keys and cookies that were drawn, and those of traffic");
        let there = found(&notes, &mut buffer);
        assert!(there >= 6, "the search finds what is there: {there} of {}", notes.len());
        go_on.send(()).unwrap();
        let notes = noted.recv().unwrap();
        assert_eq!(found(&notes, &mut buffer), 0, "of {}", notes.len());
    });
}
