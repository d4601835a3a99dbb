//! Unit tests of services that can leave user level, with memory of this process in place of the
//! kernel's maps: the test plays the front door and the programs in the kernel.

use super::graph::{FRAIL, HANG, Interrupts, PASSES, is_blocked};
use super::*;
use crate::protocol::ArenaSpec;
use bpf::Lanes;
use bpf_maps::{ENTRIES_MAX, LEVEL_NIC, LEVEL_USER, Lane};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};
use wasm_to_bpf::layout;

const RING_LENGTH: u32 = 4096;
/// Number of pages of 4 KiB in one page of linear memory.
const ARENA_PAGES: u64 = 16;

pub(crate) fn memory(length: usize) -> OwnedFd {
    let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, length as u64).unwrap();
    fd
}

/// Reads a word.
pub(crate) fn read(fd: &OwnedFd, at: usize) -> u32 {
    let mut bytes = [0; 4];
    rustix::io::pread(fd, &mut bytes, at as u64).unwrap();
    u32::from_le_bytes(bytes)
}

pub(crate) fn write(fd: &OwnedFd, at: usize, bytes: &[u8]) {
    assert_eq!(rustix::io::pwrite(fd, bytes, at as u64).unwrap(), bytes.len());
}

/// Returns the configuration of a service with shared memory at this address.
fn sharing(address: u64) -> ServiceSpec {
    let shared = ArenaSpec {
        address,
        arena_pages: ARENA_PAGES,
        number: 1,
        used: false,
        grows: false,
        globals: 0,
        ring_length: RING_LENGTH,
    };
    ServiceSpec { shared: Some(shared), ..facts(ENTRY) }
}

/// Service with shared memory, and the kernel's side of it.
struct Below {
    rig: Rig,
    lanes: OwnedFd,
    block: OwnedFd,
    ring: OwnedFd,
    /// Bytes of the ring that programs have written.
    written: u64,
}

impl Below {
    /// Starts a service of this module.
    fn start(body: &str) -> Self {
        // Tests run in parallel in one process, each with addresses of its own.
        static NEXT: AtomicU64 = AtomicU64::new(1 << 44);
        let address = NEXT.fetch_add(16 << 32, Ordering::Relaxed);
        let mut rig = Rig::new();
        let lanes = memory(ENTRIES_MAX * size_of::<Lane>());
        let given = Box::leak(Box::new(Lanes::from_fd(&lanes).unwrap()));
        rig.dispatcher.services_mut().set_lanes(given);
        let page = rustix::param::page_size();
        let arena = memory(ARENA_PAGES as usize * 4096);
        let block = memory(layout::block_length(0) as usize);
        let ring = memory(2 * page + 2 * RING_LENGTH as usize);
        let facts = sharing(address);
        let code = Rig::code_of(&facts, body);
        let fds = [code, arena, block.try_clone().unwrap(), ring.try_clone().unwrap()];
        rig.loader.start(facts, &fds, &mut rig.dispatcher, &mut round(&mut rig.link)).unwrap();
        assert_eq!(rig.words(), ["Started(EntryId(3))"]);
        Self { rig, lanes, block, ring, written: 0 }
    }

    fn at(field: usize) -> usize {
        usize::from(ENTRY.0) * size_of::<Lane>() + field
    }

    fn field(&self, field: usize) -> u32 {
        read(&self.lanes, Self::at(field))
    }

    /// Returns the number of packets that went up, and of those that are gone.
    fn counts(&self) -> (u32, u32) {
        (self.field(offset_of!(Lane, sent_up)), self.field(offset_of!(Lane, left)))
    }

    fn target(&self) -> u32 {
        self.field(offset_of!(Lane, target))
    }

    /// Sends a packet up, as the front door does.
    fn send_up(&mut self, word: u32) {
        let (sent, epoch) = (self.counts().0, self.field(offset_of!(Lane, epoch)));
        if self.field(offset_of!(Lane, epoch_seen)) != epoch {
            write(&self.lanes, Self::at(offset_of!(Lane, epoch_start)), &sent.to_le_bytes());
            write(&self.lanes, Self::at(offset_of!(Lane, epoch_seen)), &epoch.to_le_bytes());
        }
        write(&self.lanes, Self::at(offset_of!(Lane, sent_up)), &(sent + 1).to_le_bytes());
        let (packet, mut origin) = self.rig.packet(ENTRY, word);
        origin.meta.flags |= epoch << bpf_maps::META_EPOCH_SHIFT;
        self.rig.dispatcher.on_packet(packet, origin, &mut round(&mut self.rig.link));
    }

    /// Records that the module has run in the kernel, and its trap code.
    fn run_below(&self, trap: u32) {
        write(&self.lanes, Self::at(offset_of!(Lane, ran)), &1u32.to_le_bytes());
        write(&self.lanes, Self::at(offset_of!(Lane, trapped)), &trap.to_le_bytes());
    }

    /// Writes a record of a program into the ring.
    fn leave_record(&mut self, kind: u32, value: u32, data: &[u8]) {
        let (page, instance, length) =
            (rustix::param::page_size(), 77u64.to_le_bytes(), data.len() as u32);
        let parts = [kind, value].map(u32::to_le_bytes).concat();
        let tail = [&length.to_le_bytes()[..], &[0; 4], data].concat();
        let record = [&parts[..], &instance, &tail].concat();
        let header = [record.len() as u32, 0].map(u32::to_le_bytes).concat();
        let at = 2 * page + self.written as usize;
        write(&self.ring, at, &[header, record.clone()].concat());
        self.written += (record.len() as u64 + 8).next_multiple_of(8);
        write(&self.ring, page, &self.written.to_le_bytes());
    }

    fn set_level(&mut self, level: u32) -> bool {
        let Rig { dispatcher, link, .. } = &mut self.rig;
        dispatcher.set_level(ENTRY, level, &mut round(link)).unwrap()
    }
}

#[test]
fn a_lane_counts_what_has_left_when_the_devices_have_it() {
    let mut below = Below::start(OBEYS);
    assert_eq!(below.rig.dispatcher.services().with_lanes(), [ENTRY]);
    for _ in 0..3 {
        below.send_up(Verdict::Drop { reason: 1 }.to_value());
    }
    assert_eq!(below.counts(), (3, 0));
    assert!(below.rig.dispatcher.services().is_leaving());
    below.rig.dispatcher.flush();
    assert_eq!(below.counts(), (3, 3));
    assert!(!below.rig.dispatcher.services().is_leaving());
}

#[test]
fn a_service_moves_to_the_level_set_by_the_daemon_and_up_for_a_hook() {
    let mut below = Below::start(ANSWERS);
    assert!(below.set_level(LEVEL_NIC));
    assert_eq!(below.rig.words(), ["Targeted(EntryId(3))"]);
    assert_eq!(below.target(), LEVEL_NIC);
    let service = below.rig.dispatcher.services().get(ENTRY).unwrap();
    assert_eq!(service.home(), Some(LEVEL_NIC));
    assert!(below.rig.ask(Control::Message(PendingMessage::of_daemon([1].into()))));
    assert_eq!(below.rig.words(), ["Answered(EntryId(3), [Some(1)])"]);
    assert_eq!(below.target(), LEVEL_NIC, "its memory is given back");
    assert!(below.set_level(LEVEL_USER));
    assert_eq!(below.target(), LEVEL_USER);
}

#[test]
fn a_packet_from_another_service_runs_in_the_lane_without_counting_as_departed() {
    let mut below = Below::start(OBEYS);
    below.set_level(LEVEL_NIC);
    let (packet, origin) = below.rig.packet(ENTRY, Verdict::Drop { reason: 2 }.to_value());
    let origin = Origin { batch: None, counted_by: None, ..origin };
    below.rig.dispatcher.on_packet(packet, origin, &mut round(&mut below.rig.link));
    assert_eq!(below.rig.report(ENTRY).drop_module[&2], 1);
    assert_eq!((below.counts(), below.target()), ((0, 0), LEVEL_NIC));
}

#[test]
fn a_trap_below_is_taken_over_with_the_next_packet_and_the_module_begins_anew() {
    let mut below = Below::start(OBEYS);
    below.set_level(LEVEL_NIC);
    below.rig.reported();
    below.run_below(1);
    below.send_up(Verdict::Drop { reason: 1 }.to_value());
    let reported = below.rig.reported();
    assert!(matches!(reported[..], [FromCell::Trapped(ENTRY, 0, _, 1)]), "{reported:?}");
    let report = below.rig.report(ENTRY);
    assert_eq!((report.drop_module[&1], report.lanes_running), (1, 1), "by the next instance");
    assert_eq!(below.field(offset_of!(Lane, trapped)), 0, "programs may run again");
    assert_eq!(below.field(offset_of!(Lane, ran)), 0);
}

#[test]
fn a_trap_below_is_found_without_a_packet_when_it_is_looked_at() {
    let mut below = Below::start(OBEYS);
    below.set_level(LEVEL_NIC);
    below.rig.reported();
    below.run_below(1);
    below.rig.dispatcher.tick(&mut round(&mut below.rig.link));
    let reported = below.rig.reported();
    assert!(matches!(reported[..], [FromCell::Trapped(ENTRY, 0, _, 1)]), "{reported:?}");
    assert_eq!(below.rig.report(ENTRY).lanes_running, 1);
    assert!(below.rig.dispatcher.services().poll_timeout() < CoarseInstant::NEVER, "and again");
}

#[test]
fn records_of_programs_are_passed_on_and_invalid_ones_reported() {
    let mut below = Below::start(OBEYS);
    let record = layout::record::KIND_EVENT;
    below.leave_record(record, 5, b"below");
    below.leave_record(layout::record::KIND_MESSAGE, 0, b"message");
    below.leave_record(layout::record::KIND_FRAME, 9, &[0; 60]);
    below.rig.dispatcher.take_records(&mut below.rig.link);
    assert_eq!(below.rig.words(), [r"Event(EntryId(3), 5, [98, 101, 108, 111, 119])"]);
    assert!(below.rig.dispatcher.has_messages());
    assert_eq!(below.rig.report(ENTRY).sent_dropped, 1, "there is no such port");
    below.leave_record(99, 0, b"");
    below.rig.dispatcher.take_records(&mut below.rig.link);
    assert!(below.rig.report(ENTRY).last_trap.unwrap().contains("kind 99"));
}

#[test]
fn raised_packets_that_were_lost_are_settled_by_a_recount() {
    let mut below = Below::start(OBEYS);
    below.send_up(Verdict::Drop { reason: 1 }.to_value());
    // Another packet went up, and never arrived.
    let (sent, _) = below.counts();
    write(&below.lanes, Below::at(offset_of!(Lane, sent_up)), &(sent + 1).to_le_bytes());
    below.rig.dispatcher.flush();
    assert_eq!(below.counts(), (2, 1));
    below.rig.dispatcher.recount(ENTRY, Shared::begin_recount);
    assert!(!below.rig.dispatcher.services().has_of_before(ENTRY));
    below.send_up(Verdict::Drop { reason: 1 }.to_value());
    below.rig.dispatcher.flush();
    below.rig.dispatcher.recount(ENTRY, Shared::settle);
    assert_eq!(below.counts(), (3, 3));
}

#[test]
fn packets_from_before_a_recount_are_known_while_they_are_queued() {
    let mut below = Below::start(OBEYS);
    below.rig.add_session(2, "{}");
    below.send_up(Verdict::Drop { reason: 1 }.to_value());
    below.rig.dispatcher.recount(ENTRY, Shared::begin_recount);
    assert!(below.rig.dispatcher.services().has_of_before(ENTRY));
    below.rig.run_turns();
    assert!(!below.rig.dispatcher.services().has_of_before(ENTRY));
    assert!(below.rig.dispatcher.services().is_leaving());
    below.rig.dispatcher.flush();
    assert_eq!(below.counts(), (1, 1));
}

#[test]
fn a_lanes_packet_counts_as_gone_when_the_next_service_stops_while_handling_it() {
    let mut below = Below::start(PASSES);
    below.rig.add_session(2, "{}");
    below.rig.start(facts(NEXT), FRAIL);
    below.rig.connect(ENTRY, &[Edge::To(NEXT)]);
    below.rig.run_turns();
    let _interrupts = Interrupts::of(&below.rig.engine);
    below.send_up(HANG);
    while !is_blocked(&below.rig, NEXT) {
        assert!(below.rig.run_short_turn());
    }
    below.rig.dispatcher.flush();
    assert_eq!(below.counts(), (1, 0), "the lane may not go below: it would overtake it");
    below.rig.stop(NEXT);
    below.rig.dispatcher.flush();
    assert_eq!(below.counts(), (1, 1));
}

#[test]
fn a_service_that_stops_leaves_its_lane_up() {
    let mut below = Below::start(OBEYS);
    below.set_level(LEVEL_NIC);
    below.rig.dispatcher.stop(ENTRY, &mut round(&mut below.rig.link));
    assert_eq!(below.target(), LEVEL_USER);
    assert!(below.rig.dispatcher.services().with_lanes().is_empty());
    assert_eq!(read(&below.block, layout::TRAP_CODE as usize), 0);
}

#[test]
fn a_service_with_incomplete_shared_descriptors_does_not_start() {
    let mut rig = Rig::new();
    let facts = sharing(1 << 45);
    let code = Rig::code_of(&facts, OBEYS);
    let lanes = memory(ENTRIES_MAX * size_of::<Lane>());
    for missing in ["its lane is missing", "a descriptor is missing"] {
        let code = code.try_clone().unwrap();
        rig.loader
            .start(facts.clone(), &[code], &mut rig.dispatcher, &mut round(&mut rig.link))
            .unwrap();
        let reported = rig.words();
        assert!(
            reported[0].starts_with("StartFailed") && reported[0].contains(missing),
            "{reported:?}"
        );
        let given = Box::leak(Box::new(Lanes::from_fd(&lanes).unwrap()));
        rig.dispatcher.services_mut().set_lanes(given);
    }
}
