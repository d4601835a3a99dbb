//! The cell's half of a service that can leave user level: one lane, whose memory
//! programs below share.
//!
//! ```text
//!   packet from a ring ─▶ has_run? load: what ran below is taken over
//!                         on_packet
//!   transmit rings empty ▶ depart: what comes next below is laid ready, left += 1
//!   timer, message ─────▶ take: nobody below any more ─▶ load, hook ─▶ give_back
//! ```
//!
//! Linear memory is the same pages everywhere. The globals and the memory's size are
//! not: wasmtime keeps its own, and programs have theirs in the instance block. They
//! are carried over where the lane changes hands, and nowhere else. When that is, the
//! front door decides (levels/bpf/c/service.h).

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
use crate::protocol::SharedFacts;
use crate::service::mappings::{Mapping, Mappings, SharedError};

/// Looks at a lane that a program is in before it is given up: far more than the
/// largest fuel budget takes.
const PATIENCE: u32 = 1 << 24;

/// Lane, block and memory of one service.
#[derive(Debug)]
pub(crate) struct Shared {
    lane: Lane<'static>,
    mapping: Rc<Mapping>,
    departures: Departures,
    /// Packets were handled here since the last departure: what comes next below is to be laid
    /// ready for it. Others were with the module below, which may run there now.
    handled: bool,
    /// `LEVEL_*`: where the daemon wants its packets.
    home: u32,
    /// Another version of the service has the lane.
    retired: bool,
}

impl Shared {
    /// Maps what the daemon made; `fds` are an arena, a block and a ring. `is_new`: nobody in
    /// this cell has the lane yet.
    pub(crate) fn map(
        mappings: &mut Mappings,
        facts: &SharedFacts,
        fds: &[OwnedFd],
        lane: Option<Lane<'static>>,
        is_new: bool,
    ) -> Result<Self, SharedError> {
        let lane = lane.ok_or(SharedError::Missing("its lane"))?;
        let mapping = mappings.map(facts, fds)?;
        // The daemon has set the lane to its beginning: nothing was ever sent up.
        let departures = if is_new { Departures::new(&lane) } else { Departures::default() };
        let (home, retired) = (LEVEL_USER, false);
        Ok(Self { lane, mapping, departures, handled: false, home, retired })
    }

    /// Has the oldest record read of what its programs sent and told, if there is one.
    pub(crate) fn next_record(
        &mut self,
        read: impl FnOnce(&[u8]),
    ) -> Result<Option<()>, BrokenRing> {
        self.mapping.ring.borrow_mut().next(read)
    }

    /// Becomes readable when a program leaves something.
    pub(crate) fn ring_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.mapping.ring_fd.as_fd()
    }

    /// The memory, for an instance.
    pub(crate) fn memory(&self) -> Arc<dyn SharedMemory> {
        Arc::clone(&self.mapping.memory) as Arc<dyn SharedMemory>
    }

    /// Zeros in all of the memory, for another instance. The caller has the memory.
    pub(crate) fn clear_memory(&self) {
        self.mapping.clear_memory();
    }

    /// Whether the module has run below since this was asked last. To be asked with the memory
    /// in hand: before a packet that was sent up is handled, and after [`Shared::take`].
    #[inline]
    pub(crate) fn has_run(&self) -> bool {
        self.lane.take_ran()
    }

    /// Whether a packet is of before the last [`Shared::begin_recount`].
    pub(crate) fn is_of_before(&self, epoch: u8) -> bool {
        !self.departures.is_of_this(epoch)
    }

    /// All services are done with a packet; it is gone with [`Shared::depart`].
    #[inline]
    pub(crate) fn leave(&mut self, epoch: u8) {
        self.handled = true;
        self.departures.leave(epoch);
    }

    /// The same of one that its module was through with below.
    pub(crate) fn leave_past(&mut self, epoch: u8) {
        self.departures.leave(epoch);
    }

    /// The devices have all packets that left: they are gone, and with them the module's memory
    /// if the last one was among them.
    pub(crate) fn depart(&mut self, instance: Option<&mut Instance<Packet>>) {
        if !self.departures.any_leaving() {
            return;
        }
        match instance {
            Some(instance) if self.home != LEVEL_USER && self.handled => self.save(instance),
            Some(_) => {}
            // Nobody may run in what a trap left.
            None => self.lane.set_target(LEVEL_USER),
        }
        self.handled = false;
        self.departures.depart(&self.lane);
    }

    /// Has the memory for this thread alone until [`Shared::give_back`]: packets come up,
    /// and wait. False when a program does not leave the lane.
    pub(crate) fn take(&self) -> bool {
        self.lane.set_target(LEVEL_USER);
        (0..PATIENCE).any(|_| {
            std::hint::spin_loop();
            self.lane.is_free()
        })
    }

    /// Lets packets go where the daemon wants them, if there is an instance for them.
    pub(crate) fn give_back(&self, instance: Option<&mut Instance<Packet>>) {
        let Some(instance) = instance else { return };
        self.save(instance);
        self.lane.set_target(self.home);
    }

    /// The daemon wants the packets at this level. To be followed by [`Shared::give_back`].
    pub(crate) fn set_home(&mut self, level: u32) {
        self.home = level;
    }

    /// Packets come up from now on, whatever the daemon wanted: that is the answer.
    pub(crate) fn stay_above(&mut self) -> u32 {
        std::mem::replace(&mut self.home, LEVEL_USER)
    }

    /// Another version of the service has the lane from now on, and its count; its packets are
    /// up until the daemon wants them elsewhere.
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

    /// As set last.
    pub(crate) const fn home(&self) -> u32 {
        self.home
    }

    /// Whether packets may be handled below.
    pub(crate) fn may_be_below(&self) -> bool {
        self.home != LEVEL_USER
    }

    /// Why programs below are no longer run: the trap's code, or `NOT_A_VERDICT`, and the
    /// place in the module.
    pub(crate) fn trapped(&self) -> Option<(u32, u32)> {
        let cause = self.lane.trapped()?;
        let place = self.mapping.block.u32(layout::TRAP_PLACE);
        Some((cause, place.map_or(0, |place| place.load(Ordering::Acquire))))
    }

    /// There is another instance: programs below may run again.
    pub(crate) fn clear_trap(&self) {
        self.lane.clear_trapped();
    }

    /// Begins to count anew: some of what was sent up never came.
    pub(crate) fn begin_recount(&mut self) {
        self.departures.begin(&self.lane);
    }

    /// All that was sent up before [`Shared::begin_recount`] has been handled, or is lost.
    pub(crate) fn settle(&mut self) {
        self.departures.settle(&self.lane);
    }

    /// What programs below left.
    pub(crate) fn load(&self, instance: &mut Instance<Packet>) {
        // The block is the module's own, and both have the same limit: it fits.
        let _ = take_up(instance, &self.mapping.block);
    }

    /// What programs below begin with.
    fn save(&self, instance: &mut Instance<Packet>) {
        let _ = take_below(instance, &self.mapping.block);
    }
}

impl Drop for Shared {
    /// The service goes: its memory is not shared any more.
    fn drop(&mut self) {
        if !self.retired {
            self.lane.set_target(LEVEL_USER);
        }
    }
}
