//! Active packets on their way through the cell.

use super::Cell;
use crate::datapath::associations::Taken;
use crate::datapath::deliver::End;
use crate::protocol::{Answer, FromCell, Question, SecretBytes};
use crate::service::Way;
use abi::layout::MARK_LENGTH;
use anyhow::{Context, Result};
use association::Traffic;
use bpf_maps::{META_DATA, PacketMeta, RULE_NONE};
use units::{Bytes, CoarseInstant, EntryId, SessionId};
use xsk::Packet;

impl Cell {
    /// A frame for the node's associations.
    #[inline(never)]
    pub(super) fn receive_active(
        &mut self,
        mut packet: Packet,
        meta: PacketMeta,
        now: CoarseInstant,
    ) {
        match self.path.associations.take(&mut packet, &meta, now) {
            Taken::Call(entry) => self.call(packet, meta, entry, now),
            Taken::End => packet.recycle(&mut self.path.pool),
            Taken::Kernel => {
                let mut exits = self.path.exits(&mut self.sessions, SessionId::BEST_EFFORT);
                if exits.hand_back(packet, &meta) != End::ToKernel {
                    self.path.associations.report.to_kernel -= 1;
                    self.path.associations.report.kernel_refused += 1;
                }
            }
            Taken::Wait(question) => {
                self.path.associations.keep(packet, meta, now, &mut self.path.pool);
                // A daemon that is busy, or not there, is asked again by a later packet.
                if let Some(question) = question
                    && !self.link.try_send(&FromCell::Calls(question)).unwrap_or(false)
                {
                    let busy = Answer::Refused { for_ms: 0 };
                    self.path.associations.answered(question, busy, now, &mut self.path.pool);
                }
            }
        }
    }

    /// Gives the payload of an active packet to the service that it calls.
    fn call(&mut self, packet: Packet, mut meta: PacketMeta, entry: EntryId, now: CoarseInstant) {
        meta.entry = entry.0;
        meta.flags |= META_DATA;
        meta.then = [RULE_NONE; 2];
        let mark = [0; MARK_LENGTH];
        let way = Way { meta, mark, batch: None, counted_by: None, room: Bytes::ZERO };
        self.hand_on(packet, way, entry, now);
    }

    /// Takes the keys of an association.
    pub(super) fn associate(&mut self, keys: &SecretBytes) -> Result<()> {
        let traffic = Traffic::from_bytes(&keys.0).context("taking an association's keys")?;
        let id = traffic.id;
        self.path.associations.begin(traffic);
        self.link.send(&FromCell::Associated(id))
    }

    /// The daemon has said whom packets call; those that waited for it go on.
    pub(super) fn called(&mut self, question: Question, answer: Answer, now: CoarseInstant) {
        self.path.associations.answered(question, answer, now, &mut self.path.pool);
        self.arm();
        while let Some((packet, meta, entry)) = self.path.associations.next_ready() {
            self.call(packet, meta, entry, now);
        }
    }
}
