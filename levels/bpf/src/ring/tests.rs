//! Tests with rings simulated by a file, for states that the kernel never or only briefly produces,
//! and with the kernel's own.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::{Map, MapSpec, Program, RawFunction, RawKind, RawMap, RawProgram, insn};

const LENGTH: u32 = 4096;

/// Ring in a file, written as the kernel would.
struct Played {
    file: File,
    written: u64,
}

impl Played {
    /// Makes a ring with both positions at `position`: a multiple of 8.
    fn begun_at(position: u64) -> (Self, RingBuffer) {
        let file = tempfile::tempfile().unwrap();
        let page = rustix::param::page_size() as u64;
        file.set_len(2 * page + 2 * u64::from(LENGTH)).unwrap();
        file.write_all_at(&position.to_le_bytes(), 0).unwrap();
        let mut played = Self { file, written: position };
        played.produce(position);
        let ring = RingBuffer::from_fd(played.file.as_fd(), LENGTH).unwrap();
        (played, ring)
    }

    fn produce(&mut self, position: u64) {
        let page = rustix::param::page_size() as u64;
        self.written = position;
        self.file.write_all_at(&position.to_le_bytes(), page).unwrap();
    }

    /// Writes data at a position, in both of its mappings.
    fn put(&self, position: u64, bytes: &[u8]) {
        let (page, length) = (rustix::param::page_size() as u64, u64::from(LENGTH));
        for (at, byte) in (position..).zip(bytes) {
            for copy in [0, length] {
                let place = 2 * page + copy + at % length;
                self.file.write_all_at(&[*byte], place).unwrap();
            }
        }
    }

    /// Writes a record; returns the position of its header.
    fn write(&mut self, bits: u32, bytes: &[u8]) -> u64 {
        let position = self.written;
        self.put(position, &(bits | bytes.len() as u32).to_le_bytes());
        self.put(position + HEADER, bytes);
        self.produce(position + HEADER + (bytes.len() as u64).next_multiple_of(HEADER));
        position
    }

    fn consumed(&self) -> u64 {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, 0).unwrap();
        u64::from_le_bytes(bytes)
    }
}

fn take(ring: &mut RingBuffer) -> Option<Vec<u8>> {
    ring.next(<[u8]>::to_vec).unwrap()
}

#[test]
fn records_come_in_order_and_their_place_is_given_back() {
    let (mut played, mut ring) = Played::begun_at(0);
    assert_eq!(take(&mut ring), None);
    played.write(0, b"one");
    played.write(0, b"");
    played.write(0, b"eightbyt");
    assert_eq!(take(&mut ring).unwrap(), b"one");
    assert_eq!(played.consumed(), 16);
    assert_eq!(take(&mut ring).unwrap(), b"");
    assert_eq!(take(&mut ring).unwrap(), b"eightbyt");
    assert_eq!((take(&mut ring), played.consumed()), (None, 40));
}

#[test]
fn a_record_over_the_end_is_in_one_piece() {
    for before in [8, 16, 24] {
        let (mut played, mut ring) = Played::begun_at(3 * u64::from(LENGTH) - before);
        let bytes: Vec<u8> = (0..100).collect();
        played.write(0, &bytes);
        assert_eq!(take(&mut ring).unwrap(), bytes);
    }
}

#[test]
fn a_record_given_up_is_passed_over() {
    let (mut played, mut ring) = Played::begun_at(0);
    played.write(DISCARDED, b"nothing");
    played.write(0, b"something");
    played.write(DISCARDED, b"nothing");
    assert_eq!(take(&mut ring).unwrap(), b"something");
    assert_eq!((take(&mut ring), played.consumed()), (None, played.written));
}

#[test]
fn reading_waits_for_a_record_that_is_being_written() {
    let (mut played, mut ring) = Played::begun_at(0);
    let first = played.write(BUSY, b"first");
    played.write(0, b"second");
    assert_eq!((take(&mut ring), played.consumed()), (None, 0));
    played.put(first, &5u32.to_le_bytes());
    assert_eq!(take(&mut ring).unwrap(), b"first");
    assert_eq!(take(&mut ring).unwrap(), b"second");
}

#[test]
fn a_full_ring_is_read() {
    let (mut played, mut ring) = Played::begun_at(64);
    let bytes = vec![7; LENGTH as usize - 8];
    played.write(0, &bytes);
    assert_eq!(take(&mut ring).unwrap(), bytes);
}

#[test]
fn a_record_that_cannot_be_is_an_error_and_stays_one() {
    let (mut played, mut ring) = Played::begun_at(0);
    let position = played.write(0, b"right");
    for length in [9, LENGTH - 8, LENGTH, BUSY - 1 - DISCARDED] {
        played.put(position, &length.to_le_bytes());
        let broken = BrokenRing { position, length, written: 16 };
        assert_eq!(ring.next(|_| ()), Err(broken));
        assert_eq!(ring.next(|_| ()), Err(broken));
    }
    played.put(position, &5u32.to_le_bytes());
    assert_eq!(take(&mut ring).unwrap(), b"right");
}

#[test]
fn positions_that_cannot_be_are_errors() {
    // More than the ring holds; the producer behind the consumer; between two records.
    for (consumer, producer) in [(0, u64::from(LENGTH) + 8), (16, 8), (4, 32)] {
        let (mut played, mut ring) = Played::begun_at(consumer);
        played.produce(producer);
        let written = producer.wrapping_sub(consumer);
        let broken = BrokenRing { position: consumer, length: 0, written };
        assert_eq!(ring.next(|_| ()), Err(broken));
    }
}

#[test]
fn a_length_that_no_ring_has_is_refused() {
    let (played, _) = Played::begun_at(0);
    for length in [0, 1, 100, 3 * 4096] {
        let error = RingBuffer::from_fd(played.file.as_fd(), length).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{length}");
    }
}

/// Makes an XDP program that writes the packet's first five bytes, and then discards a record.
fn writer(ring: &Map) -> Program {
    const OUTPUT: i32 = 130;
    const RESERVE: i32 = 131;
    const DISCARD: i32 = 133;
    let words = [
        insn::word(0x61, 6, 1, 0, 0),   // r6 = data
        insn::word(0x61, 7, 1, 4, 0),   // r7 = data_end
        insn::word(0xbf, 8, 6, 0, 0),   // r8 = r6
        insn::word(0x07, 8, 0, 0, 8),   // r8 += 8
        insn::word(0x2d, 8, 7, 18, 0),  // if r8 > r7 goto end
        insn::word(0x79, 6, 6, 0, 0),   // r6 = *(u64 *)r6
        insn::word(0x7b, 10, 6, -8, 0), // *(u64 *)(r10 - 8) = r6
        insn::word(0x18, 1, 0, 0, 0),
        insn::word(0, 0, 0, 0, 0),
        insn::word(0xbf, 2, 10, 0, 0),
        insn::word(0x07, 2, 0, 0, -8),
        insn::word(0xb7, 3, 0, 0, 5),
        insn::word(0xb7, 4, 0, 0, 0),
        insn::word(0x85, 0, 0, 0, OUTPUT),
        insn::word(0x18, 1, 0, 0, 0),
        insn::word(0, 0, 0, 0, 0),
        insn::word(0xb7, 2, 0, 0, 16),
        insn::word(0xb7, 3, 0, 0, 0),
        insn::word(0x85, 0, 0, 0, RESERVE),
        insn::word(0x15, 0, 0, 3, 0), // if r0 == 0 goto end
        insn::word(0xbf, 1, 0, 0, 0),
        insn::word(0xb7, 2, 0, 0, 0),
        insn::word(0x85, 0, 0, 0, DISCARD),
        insn::word(0xb7, 0, 0, 0, 2), // end: XDP_PASS
        insn::exit(),
    ];
    let map = |instruction| RawMap { instruction, fd: ring.as_fd(), value: None };
    let entry = RawFunction {
        start: 0,
        name: "entry".into(),
        takes_context: true,
        scalars: 0,
        global: true,
    };
    RawProgram {
        name: "tam_test",
        kind: RawKind::Xdp { fragments: false },
        instructions: &words,
        maps: &[map(7), map(14)],
        functions: &[entry],
    }
    .load()
    .unwrap()
}

fn is_ready(ring: &RingBuffer) -> bool {
    let mut descriptors = [PollFd::new(ring, PollFlags::IN)];
    poll(&mut descriptors, Some(&Timespec::default())).unwrap() == 1
}

#[test]
fn what_programs_write_is_read_round_and_round() {
    if !rustix::process::geteuid().is_root() {
        return testbase::skip_this("making BPF maps needs root");
    }
    let map = Map::create("tam_test", &MapSpec::ring_buffer(LENGTH)).unwrap();
    let writer = writer(&map);
    let mut ring = RingBuffer::from_fd(map.as_fd(), LENGTH).unwrap();
    assert!(!is_ready(&ring));
    // Each run takes 40 bytes, so that the edge falls at another offset in each cycle.
    for round in 0..500u64 {
        let mut packet = [0; 64];
        packet[..8].copy_from_slice(&round.to_le_bytes());
        assert_eq!(writer.test_run(&packet, None, 1).unwrap().retval, 2);
        assert!(is_ready(&ring));
        assert_eq!(take(&mut ring).unwrap(), &round.to_le_bytes()[..5], "round {round}");
        assert_eq!(take(&mut ring), None);
        assert!(!is_ready(&ring));
    }
    // Another reader continues where this one stopped.
    writer.test_run(&[9; 64], None, 1).unwrap();
    drop(ring);
    let mut next = RingBuffer::from_fd(map.as_fd(), LENGTH).unwrap();
    assert_eq!((take(&mut next), take(&mut next)), (Some(vec![9; 5]), None));

    let longer = RingBuffer::from_fd(map.as_fd(), 2 * LENGTH);
    assert_eq!(longer.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    let array = Map::create("tam_test", &MapSpec::array(8, 1)).unwrap();
    assert!(RingBuffer::from_fd(array.as_fd(), LENGTH).is_err());
}
