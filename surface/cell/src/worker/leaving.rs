//! What waits to leave by a port of whose rate sessions have shares.

use super::Cell;
use crate::pacer;
use crate::protocol::{PortFacts, SessionFacts};
use units::{Bytes, PortId, SessionId};
use xsk::Packet;

impl Cell {
    /// Gives the rings what may leave by now. True when something did.
    pub(super) fn send_waiting(&mut self) -> bool {
        if !self.egress.is_used() {
            return false;
        }
        self.egress.set_time(pacer::now());
        if !self.egress.is_waiting() {
            return false;
        }
        let left = self.egress.leave(&mut self.ports, &mut self.pool, &mut self.sessions);
        self.report.egress_gone += left.lost;
        if left.sent > 0 {
            self.flush();
        }
        left.sent > 0
    }

    /// The rings are empty: lanes may go below whose packets have all left, since nothing from
    /// there overtakes them.
    pub(super) fn have_departed(&mut self) {
        self.leaving = false;
        for entry in self.watch.lanes() {
            let service = self.services.get_mut(usize::from(entry.0)).and_then(Option::as_mut);
            let Some(service) = service else { continue };
            if self.egress.waits(service.facts.session) {
                self.leaving = true;
            } else {
                service.depart();
            }
        }
    }

    /// A session is there, or was promised something else.
    pub(super) fn set_session(&mut self, facts: &SessionFacts) {
        let now = pacer::now();
        self.sessions.set(now, facts);
        self.egress.set_time(now);
        let waited = self.egress.set(facts);
        self.send_at_once(waited);
    }

    /// There is no such session any more.
    pub(super) fn forget_session(&mut self, id: SessionId) {
        let now = pacer::now();
        self.egress.set_time(now);
        let waited = self.egress.forget(id);
        self.send_at_once(waited);
        self.sessions.forget(now, id);
    }

    /// What a port's device sends in a second is known, or another number.
    pub(super) fn set_rate(&mut self, facts: &PortFacts) {
        self.egress.set_time(pacer::now());
        let waited = self.egress.set_port(facts);
        let at_port = |(session, packet)| (facts.port, session, packet);
        self.send_at_once(waited.into_iter().map(at_port).collect());
    }

    /// Packets that do not have to wait any more: nobody has a share of their port.
    fn send_at_once(&mut self, waited: Vec<(PortId, SessionId, Packet)>) {
        for (port, session, packet) in waited {
            self.sessions.release(session, Bytes(packet.memory_length() as u64));
            if let Err((packet, _)) = self.ports.send(port.0, packet, &mut self.pool) {
                packet.recycle(&mut self.pool);
                self.report.egress_gone += 1;
            }
        }
    }

    /// Packets whose port is gone.
    pub(super) fn lose(&mut self, waited: Vec<(SessionId, Packet)>) {
        for (session, packet) in waited {
            self.sessions.release(session, Bytes(packet.memory_length() as u64));
            packet.recycle(&mut self.pool);
            self.report.egress_gone += 1;
        }
    }
}
