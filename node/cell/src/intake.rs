//! Intake of packets: from AF_XDP sockets, packet ports, and the TAP device of kernel level.
//!
//! ```text
//!  AF_XDP sockets ─ metadata in front ────┐
//!  packet ports ─ classified here ────────┼─▶ Dispatcher::on_packet
//!  TAP device ─ metadata; or handled by ──┘
//!                its module: it only leaves
//! ```
//!
//! The intake decides nothing about services. Each batch has a number, by which a service knows
//! that its module cannot have run in the kernel since the previous packet.

pub(crate) mod counts;
mod packet_ports;
mod tap_reader;
#[cfg(test)]
mod tests;

use crate::control::round::Round;
use crate::datapath::RuleActions;
use crate::dispatch::{BATCH, Dispatcher};
use crate::packet_memory::WAITING_MAX;
use crate::protocol::CellReport;
use crate::sched::Timer;
use crate::service::Origin;
use abi::layout::MARK_LENGTH;
use anyhow::Result;
use bpf_maps::{META_LEAVES, META_MARK, PacketMeta};
use packet_ports::PacketPorts;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use tap_reader::{MARKED_LENGTH, TapReader, mark_of};
use xsk::Packet;

/// Packets whose headers are prefetched while one is handled: enough to hide the latency, and no
/// more than a core has loads in flight.
const AHEAD: usize = 4;
/// Packets of one pass of the loop from which on more are expected at once. The thread then polls a
/// little longer before it waits in the kernel: waking it up takes the CPU that brings the packets
/// as long as bringing a dozen.
const BURST: usize = BATCH / 2;
/// Polls of the receive rings before waiting, and pauses of the processor between two: 10 to 30 µs,
/// three bursts of a fast driver.
const LOOKS: u32 = 64;
const PAUSES: u32 = 8;

/// Owner of the packet ports' classifier, of the TAP device's reading end, and of the batch in
/// hand.
#[derive(Debug)]
pub(crate) struct Intake {
    /// Packets of one socket; empty between batches.
    batch: VecDeque<Packet>,
    packet_ports: PacketPorts,
    /// Device by which packets come up from kernel level; `None` until the daemon has passed it.
    tap: Option<TapReader>,
    /// Packets from sockets since the thread last considered waiting.
    came: usize,
    /// Number of batches so far.
    batches: u64,
    /// Packets without the front door's metadata.
    no_metadata: u64,
    /// Packets from kernel level, or a packet port, for which there was no frame memory.
    up_dropped: u64,
}

impl Intake {
    /// Creates an intake without sources.
    pub(crate) fn new() -> Self {
        Self {
            batch: VecDeque::with_capacity(BATCH),
            packet_ports: PacketPorts::default(),
            tap: None,
            came: 0,
            batches: 0,
            no_metadata: 0,
            up_dropped: 0,
        }
    }

    /// Returns the device by which packets come up from kernel level.
    pub(crate) fn tap(&self) -> Option<BorrowedFd<'_>> {
        self.tap.as_ref().map(TapReader::as_fd)
    }

    /// Adds its counters to a report.
    pub(crate) fn report(&self, report: &mut CellReport) {
        let of_tap = self.tap.as_ref().map_or(0, TapReader::bare);
        report.no_metadata = self.no_metadata + of_tap;
        report.up_dropped = self.up_dropped;
    }

    /// Sets the device by which packets come up from kernel level.
    pub(crate) fn set_tap(&mut self, device: Option<OwnedFd>) {
        self.no_metadata += self.tap.as_ref().map_or(0, TapReader::bare);
        self.tap = device.map(TapReader::new);
    }

    /// Installs rules of packet ports, and returns their actions. The daemon waits until their
    /// number is published.
    ///
    /// # Errors
    /// The memory holds no rules.
    pub(crate) fn install(&mut self, number: u64, rules: &OwnedFd) -> Result<RuleActions> {
        self.packet_ports.install(number, rules)
    }

    /// Counts frames of packet ports in this memory from now on.
    ///
    /// # Errors
    /// The memory cannot be mapped.
    pub(crate) fn count_in(&mut self, memory: OwnedFd) -> Result<()> {
        self.packet_ports.count_in(memory)
    }

    /// Receives one batch of each socket, and sends the resulting packets. Returns true if there
    /// were any, or a socket still transmits.
    pub(crate) fn receive(
        &mut self,
        to: &mut Dispatcher<impl Timer>,
        round: &mut Round<'_>,
    ) -> bool {
        let mut is_busy = false;
        let sockets = to.path_mut().sockets();
        for socket in 0..sockets {
            to.path_mut().receive(socket, BATCH, &mut self.batch);
            if !self.batch.is_empty() {
                is_busy = true;
                self.came += self.batch.len();
                self.batches += 1;
                to.begin_batch(&self.batch);
                self.batch.iter().take(AHEAD).for_each(Packet::load_ahead);
                while let Some(packet) = self.batch.pop_front() {
                    if let Some(later) = self.batch.get(AHEAD - 1) {
                        later.load_ahead();
                    }
                    self.handle(packet, to, round);
                }
                to.end_batch();
            }
        }
        to.flush();
        to.refill() || is_busy
    }

    /// Receives at most `most` packets from kernel level, and as many frames of each packet port.
    /// Returns true if there were any.
    pub(crate) fn receive_others(
        &mut self,
        most: usize,
        to: &mut Dispatcher<impl Timer>,
        round: &mut Round<'_>,
    ) -> bool {
        let has_come_up = self.receive_up(most, to, round);
        self.receive_frames(most, to, round) || has_come_up
    }

    /// Handles everything that is in the receive rings and packet sockets at this moment.
    pub(crate) fn drain_ports(&mut self, to: &mut Dispatcher<impl Timer>, round: &mut Round<'_>) {
        let rounds = WAITING_MAX as usize / BATCH;
        let _ = (0..rounds).all(|_| self.receive(to, round));
        self.receive_frames(WAITING_MAX as usize, to, round);
    }

    /// Handles everything that is in the receive rings, in packet sockets and in the TAP device at
    /// this moment.
    pub(crate) fn drain(&mut self, to: &mut Dispatcher<impl Timer>, round: &mut Round<'_>) {
        self.drain_ports(to, round);
        self.receive_up(WAITING_MAX as usize, to, round);
    }

    /// Polls the receive rings for a while after a burst. Returns true if packets arrived.
    pub(crate) fn linger(&mut self, to: &mut Dispatcher<impl Timer>) -> bool {
        if std::mem::take(&mut self.came) < BURST {
            return false;
        }
        to.flush();
        (0..LOOKS).any(|_| {
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
            to.path_mut().has_received()
        })
    }

    fn receive_frames(
        &mut self,
        most: usize,
        to: &mut Dispatcher<impl Timer>,
        round: &mut Round<'_>,
    ) -> bool {
        let Self { packet_ports, batches, up_dropped, .. } = self;
        packet_ports.receive(most, to, |to, bytes, meta| {
            let Some(packet) = to.path_mut().packet_of(bytes) else {
                *up_dropped += 1;
                return;
            };
            to.arm();
            // Each packet is a batch of its own, read when it is handled.
            *batches += 1;
            let origin = Origin::from_door(meta, [0; MARK_LENGTH], *batches);
            to.on_packet(packet, origin, round);
        })
    }

    fn receive_up(
        &mut self,
        most: usize,
        to: &mut Dispatcher<impl Timer>,
        round: &mut Round<'_>,
    ) -> bool {
        let Some(tap) = &mut self.tap else { return false };
        let mut count = 0;
        while count < most
            && let Some((meta, mark, frame)) = tap.next()
        {
            count += 1;
            to.arm();
            let leaves = meta.flags & META_LEAVES != 0;
            match to.path_mut().packet_of(frame) {
                Some(packet) if leaves => to.on_packet_from_below(packet, meta),
                Some(packet) => {
                    // Each packet is a batch of its own, read when it is handled.
                    self.batches += 1;
                    to.on_packet(packet, Origin::from_door(meta, mark, self.batches), round);
                }
                // The service has counted that packet already.
                None if leaves => to.path_mut().lose_from_below(),
                None => self.up_dropped += 1,
            }
        }
        count > 0
    }

    #[inline]
    fn handle(&mut self, packet: Packet, to: &mut Dispatcher<impl Timer>, round: &mut Round<'_>) {
        let Some(meta) = packet.metadata::<{ size_of::<PacketMeta>() }>() else {
            packet.recycle(to.path_mut().pool());
            self.no_metadata += 1;
            return;
        };
        let meta: PacketMeta = bytemuck::cast(meta);
        let mark = match meta.flags & META_MARK {
            0 => [0; MARK_LENGTH],
            // The front door wrote both, the mark in front.
            _ => packet.metadata::<MARKED_LENGTH>().map_or([0; MARK_LENGTH], mark_of),
        };
        to.on_packet(packet, Origin::from_door(meta, mark, self.batches), round);
    }
}
