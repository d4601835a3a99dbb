//! What waits to leave by a port of whose rate sessions have shares, and services that leave for
//! another level.

use super::Cell;
use crate::datapath::egress::{Departing, Exit};
use crate::protocol::{FromCell, PortFacts, SessionFacts};
use crate::sched::pacer;
use crate::service::Service;
use crate::service::shared::Shared;
use crate::worker::AWAKE;
use anyhow::Result;
use bpf_maps::{LEVEL_USER, META_BY_KERNEL, PacketMeta};
use units::{Bytes, CoarseInstant, EntryId, PortId, SessionId};
use xsk::Packet;

impl Cell {
    /// Gives the rings what may leave by now. True when something did.
    pub(super) fn send_waiting(&mut self) -> bool {
        if !self.path.egress.is_used() {
            return false;
        }
        self.path.egress.set_time(pacer::now());
        if !self.path.egress.is_waiting() {
            return false;
        }
        let (ports, kernel) = (&mut self.path.ports, self.path.kernel.as_ref());
        let left = self.path.egress.leave(ports, kernel, &mut self.path.pool, &mut self.sessions);
        self.report.egress_gone += left.lost;
        if left.sent > 0 {
            self.flush();
        }
        left.sent > 0
    }

    /// A packet came up that a module at kernel level is through with: it meets no other, and leaves
    /// when it is its session's turn, with the room that it has taken.
    #[cold]
    pub(super) fn let_leave(&mut self, packet: Packet, meta: PacketMeta) {
        let (port, entry, epoch) = (meta.egress_port, EntryId(meta.entry), meta.epoch());
        let counted = self.path.egress.come(meta.flow_hash, meta.room_epoch());
        let (session, memory) =
            (SessionId(meta.arrival_port), Bytes(packet.memory_length() as u64));
        let has_come = meta.counted_in();
        if let Some(epoch) = has_come {
            self.sessions.come(session, memory, epoch);
        }
        let by = if meta.flags & META_BY_KERNEL == 0 { Exit::Port } else { Exit::Kernel };
        // What the kernel routes is seen when that sends it.
        if let Some(tap) = self.path.tap.as_mut().filter(|_| by == Exit::Port) {
            tap.decided_below((entry, session), &meta);
            tap.leaves(&packet, port);
        }
        let has_room = has_come.is_some() || self.sessions.hold(session, memory);
        let refused = if !has_room {
            Some(packet)
        } else if self.path.egress.shares(port) {
            let departing = Departing { packet, by };
            let refused = self.path.egress.enqueue(port, session, departing, counted).err();
            refused.map(|(packet, _)| packet)
        } else {
            // The port is not shared any more.
            self.path.egress.gone(counted);
            self.sessions.release(session, memory);
            self.send_now(port, Departing { packet, by });
            None
        };
        if let Some(packet) = refused {
            if has_room {
                self.sessions.release(session, memory);
            } else {
                self.path.egress.gone(counted);
            }
            packet.recycle(&mut self.path.pool);
            self.report.egress_gone += 1;
        }
        let is_counted = self.services.get_mut(entry).is_some_and(|it| it.leave_past(epoch));
        self.services.leaves(is_counted);
    }

    /// A session is there, or was promised something else.
    pub(super) fn set_session(&mut self, facts: &SessionFacts) {
        let now = pacer::now();
        self.sessions.set(now, facts);
        let processors = &facts.reservation.processors;
        let is_bounded = !processors.is_empty() && processors.iter().all(|it| !it.extra);
        let sum = processors.iter().map(|it| it.share.parts_per_million() / 1000).sum();
        self.streams.codecs().set_ceiling(facts.id, is_bounded.then_some(sum));
        self.path.egress.set_time(now);
        let waited = self.path.egress.set(facts);
        self.send_at_once(waited);
    }

    /// There is no such session any more.
    pub(super) fn forget_session(&mut self, id: SessionId) {
        let now = pacer::now();
        self.path.egress.set_time(now);
        let waited = self.path.egress.forget(id);
        self.send_at_once(waited);
        self.sessions.forget(now, id);
        self.streams.codecs().set_ceiling(id, None);
    }

    /// What a port's device sends in a second is known, or another number.
    pub(super) fn set_rate(&mut self, facts: &PortFacts) {
        self.path.egress.set_time(pacer::now());
        let waited = self.path.egress.set_port(facts);
        let at_port = |(session, packet)| (facts.port, session, packet);
        self.send_at_once(waited.into_iter().map(at_port).collect());
    }

    /// Packets that do not have to wait any more: nobody has a share of their port.
    fn send_at_once(&mut self, waited: Vec<(PortId, SessionId, Departing)>) {
        for (port, session, departing) in waited {
            let memory = Bytes(departing.packet.memory_length() as u64);
            self.sessions.release(session, memory);
            self.send_now(port.0, departing);
        }
    }

    fn send_now(&mut self, port: u16, departing: Departing) {
        let (kernel, asker) = (self.path.kernel.as_ref(), self.path.egress.asker());
        let sent = departing.send(port, &mut self.path.ports, kernel, asker, &mut self.path.pool);
        if let Err((left, _)) = sent {
            left.into_iter().for_each(|left| left.packet.recycle(&mut self.path.pool));
            self.report.egress_gone += 1;
        }
    }

    /// Packets whose port is gone.
    pub(super) fn lose(&mut self, waited: Vec<(SessionId, Departing)>) {
        for (session, Departing { packet, .. }) in waited {
            self.sessions.release(session, Bytes(packet.memory_length() as u64));
            packet.recycle(&mut self.path.pool);
            self.report.egress_gone += 1;
        }
    }

    /// Has a service handled at another level.
    pub(super) fn set_level(
        &mut self,
        entry: EntryId,
        level: u32,
        now: CoarseInstant,
    ) -> Result<()> {
        let service = self.services.get_mut(entry);
        if service.as_ref().is_some_and(|service| service.is_unknown()) {
            // It was meant for the version before; the daemon has forgotten it when it hears.
            return Ok(());
        }
        let set = service.is_some_and(|service| service.set_level(level, now));
        // The lane is looked at from now on.
        self.services.look_at(entry, CoarseInstant::ZERO);
        if set && level != LEVEL_USER {
            self.stay_awake(now + AWAKE);
        }
        self.tell_traps(entry);
        let answer = if set { FromCell::Targeted } else { FromCell::TargetFailed };
        self.link.send(&answer(entry))
    }

    /// Nothing of before [`ToCell::Recount`] is anywhere.
    pub(super) fn settle(&mut self, entry: EntryId) -> Result<()> {
        self.flush();
        self.recount(entry, Shared::settle);
        self.link.send(&FromCell::Settled(entry))
    }

    pub(super) fn recount(&mut self, entry: EntryId, act: impl FnOnce(&mut Shared)) {
        if let Some(shared) = self.services.get_mut(entry).and_then(Service::shared) {
            act(shared);
        }
    }
}
