//! Service that can leave user level, as seen by the cell: one lane, whose memory programs in the
//! kernel share.
//!
//! ```text
//!   packet from a ring ─▶ has_run? load: take over what ran in the kernel
//!                         on_packet
//!   transmit rings empty ▶ publish_departures: store state for programs, left += 1
//!   timer, message ─────▶ take: wait until no program runs ─▶ load, hook ─▶ give_back
//! ```
//!
//! Linear memory is the same pages everywhere. The globals and the memory's size are not: wasmtime
//! keeps its own, and programs have theirs in the instance block. They are copied when the lane
//! changes hands, and only then. The front door decides when that is (levels/bpf/c/service.h).

use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bpf::{BrokenRing, Departures, Lane};
use bpf_maps::LEVEL_USER;
use engine::Instance;
use level::SharedMemory;
use rustix::fd::OwnedFd;
use wasm_to_bpf::layout;
use xsk::Packet;

use crate::below::{take_below, take_up};
use crate::protocol::ArenaSpec;
use crate::service::mappings::{Mapping, Mappings, SharedError};

/// Polls of a lane in which a program runs before the attempt is given up: far more than the
/// largest fuel budget takes.
const PATIENCE: u32 = 1 << 24;

/// Lane, block and memory of one service.
#[derive(Debug)]
pub(crate) struct Shared {
    lane: Lane<'static>,
    mapping: Rc<Mapping>,
    departures: Departures,
    /// Set if packets were handled here since the last departure, so that the state must be stored
    /// for programs in the kernel. Other packets were with the module in the kernel, which may run
    /// there now.
    handled: bool,
    /// Level (`LEVEL_*`) at which the daemon wants the packets handled.
    home: u32,
    /// Set if another version of the service has taken over the lane.
    retired: bool,
}

impl Shared {
    /// Maps what the daemon created; `fds` are an arena, a block and a ring. `is_new` states that
    /// no service of this cell uses the lane yet.
    pub(crate) fn map(
        mappings: &mut Mappings,
        facts: &ArenaSpec,
        fds: &[OwnedFd],
        lane: Option<Lane<'static>>,
        is_new: bool,
    ) -> Result<Self, SharedError> {
        let lane = lane.ok_or(SharedError::Missing("its lane"))?;
        let mapping = mappings.map(facts, fds)?;
        // The daemon has reset the lane: no packet was ever sent up.
        let departures = if is_new { Departures::new(&lane) } else { Departures::default() };
        let (home, retired) = (LEVEL_USER, false);
        Ok(Self { lane, mapping, departures, handled: false, home, retired })
    }

    /// Reads the oldest record of the ring, if there is one.
    pub(crate) fn next_record(
        &mut self,
        read: impl FnOnce(&[u8]),
    ) -> Result<Option<()>, BrokenRing> {
        self.mapping.ring.borrow_mut().next(read)
    }

    /// Returns a descriptor that is readable when a program has written a record.
    pub(crate) fn ring_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.mapping.ring_fd.as_fd()
    }

    /// Returns the memory, for an instance.
    pub(crate) fn memory(&self) -> Arc<dyn SharedMemory> {
        Arc::clone(&self.mapping.memory) as Arc<dyn SharedMemory>
    }

    /// Zeroes the memory, for another instance. The caller owns the memory.
    pub(crate) fn clear_memory(&self) {
        self.mapping.clear_memory();
    }

    /// Returns true, once, if the module has run in the kernel since the last call. The caller owns
    /// the memory: it calls this before handling a packet that was sent up, and after
    /// [`Shared::take`].
    #[inline]
    pub(crate) fn has_run(&self) -> bool {
        self.lane.take_ran()
    }

    /// Returns true if a packet was counted before the last [`Shared::begin_recount`].
    pub(crate) fn is_of_before(&self, epoch: u8) -> bool {
        !self.departures.is_of_this(epoch)
    }

    /// Counts a packet with which all services are done; published by
    /// [`Shared::publish_departures`].
    #[inline]
    pub(crate) fn release(&mut self, epoch: u8) {
        self.handled = true;
        self.departures.leave(epoch);
    }

    /// Counts a packet whose module handled it in the kernel.
    pub(crate) fn release_bypassed(&mut self, epoch: u8) {
        self.departures.leave(epoch);
    }

    /// Publishes departures, once the devices have sent the packets: with the last of them the
    /// programs in the kernel own the memory again.
    pub(crate) fn publish_departures(&mut self, instance: Option<&mut Instance<Packet>>) {
        if !self.departures.any_leaving() {
            return;
        }
        match instance {
            Some(instance) if self.home != LEVEL_USER && self.handled => self.save(instance),
            Some(_) => {}
            // No program may run in the memory that a trap left.
            None => self.lane.set_target(LEVEL_USER),
        }
        self.handled = false;
        self.departures.depart(&self.lane);
    }

    /// Takes the memory for this thread until [`Shared::give_back`]: packets come up, and wait.
    /// Returns false if a program does not leave the lane.
    pub(crate) fn take(&self) -> bool {
        self.lane.set_target(LEVEL_USER);
        (0..PATIENCE).any(|_| {
            std::hint::spin_loop();
            self.lane.is_free()
        })
    }

    /// Returns the memory: packets go to the level that the daemon wants, if there is an instance
    /// for them.
    pub(crate) fn give_back(&self, instance: Option<&mut Instance<Packet>>) {
        let Some(instance) = instance else { return };
        self.save(instance);
        self.lane.set_target(self.home);
    }

    /// Sets the level at which the daemon wants the packets; takes effect with
    /// [`Shared::give_back`].
    pub(crate) fn set_home(&mut self, level: u32) {
        self.home = level;
    }

    /// Makes packets come up from now on. Returns the level that the daemon wanted.
    pub(crate) fn stay_above(&mut self) -> u32 {
        std::mem::replace(&mut self.home, LEVEL_USER)
    }

    /// Hands the lane and its packet count over to another version of the service, whose packets
    /// stay at user level until the daemon moves them.
    pub(crate) fn retire(&mut self, next: Option<&mut Self>) {
        self.retired = true;
        self.home = LEVEL_USER;
        if let Some(next) = next {
            next.retired = false;
            next.home = LEVEL_USER;
            std::mem::swap(&mut next.departures, &mut self.departures);
            next.handled |= self.handled;
        }
    }

    /// Returns the level at which the daemon wants the packets.
    pub(crate) const fn home(&self) -> u32 {
        self.home
    }

    /// Returns true if packets may be handled below user level.
    pub(crate) fn may_be_below(&self) -> bool {
        self.home != LEVEL_USER
    }

    /// Returns the trap for which programs no longer run: its code, or `NOT_A_VERDICT`, and the
    /// offset in the module.
    pub(crate) fn trapped(&self) -> Option<(u32, u32)> {
        let cause = self.lane.trapped()?;
        let place = self.mapping.block.u32(layout::TRAP_PLACE);
        Some((cause, place.map_or(0, |place| place.load(Ordering::Acquire))))
    }

    /// Lets programs run again, in another instance.
    pub(crate) fn clear_trap(&self) {
        self.lane.clear_trapped();
    }

    /// Restarts the count of packets, of which some that were sent up never arrived.
    pub(crate) fn begin_recount(&mut self) {
        self.departures.begin(&self.lane);
    }

    /// Ends the old count: all packets sent up before [`Shared::begin_recount`] were handled, or
    /// are lost.
    pub(crate) fn settle(&mut self) {
        self.departures.settle(&self.lane);
    }

    /// Takes over the state that programs in the kernel left.
    pub(crate) fn load(&self, instance: &mut Instance<Packet>) {
        // The block belongs to this module and both have the same limit, so the memory size fits.
        let _ = take_up(instance, &self.mapping.block);
    }

    /// Stores the state with which programs in the kernel begin.
    fn save(&self, instance: &mut Instance<Packet>) {
        let _ = take_below(instance, &self.mapping.block);
    }
}

impl Drop for Shared {
    /// Moves the packets of a removed service up: its memory is no longer shared.
    fn drop(&mut self) {
        if !self.retired {
            self.lane.set_target(LEVEL_USER);
        }
    }
}
