//! What a capture sees of the cell: packets as they leave, and what modules dropped, with the
//! verdict. Without a capture a packet pays for one comparison with nothing.

use crate::protocol::{TapFacts, Tapped};
use abi::{PacketBytes, Verdict};
use bpf_maps::PacketMeta;
use engine::Trap;
use units::{EntryId, PortId, SessionId};
use xsk::Packet;

/// Packets that the daemon gets of one turn: what its socket has room for.
const TAPPED_PER_TURN_MAX: usize = 256;

/// A capture that goes on.
#[derive(Debug)]
pub(crate) struct Tap {
    facts: TapFacts,
    /// Of the packet that is being handled.
    context: Tapped,
    waiting: Vec<Tapped>,
    lost: u64,
}

impl Tap {
    pub(crate) fn new(facts: TapFacts) -> Self {
        Self { facts, context: Tapped::default(), waiting: Vec::new(), lost: 0 }
    }

    /// A packet's module has decided; what it dropped ends here.
    pub(crate) fn decided(
        &mut self,
        (entry, session): (EntryId, SessionId),
        meta: &PacketMeta,
        packet: &Packet,
        verdict: &Result<Verdict, Trap>,
    ) {
        let dropped = matches!(verdict, Ok(Verdict::Raise | Verdict::Drop { .. }) | Err(_));
        let said = verdict.as_ref().map_err(|trap| trap.kind).copied();
        let verdict = Tapped::words(said);
        self.context = Tapped {
            port: PortId(meta.arrival_port),
            entry: Some(entry),
            rule: u32::from(meta.rule),
            session: session.0,
            verdict,
            dropped,
            ..Tapped::default()
        };
        if dropped {
            self.keep(packet, PortId(meta.arrival_port));
        }
    }

    /// A packet leaves by a port.
    pub(crate) fn leaves(&mut self, packet: &Packet, port: u16) {
        if !self.facts.dropped_only {
            self.keep(packet, PortId(port));
        }
    }

    /// What follows is no packet of a rule: frames of modules' own making.
    pub(crate) fn forget(&mut self) {
        self.context = Tapped::default();
    }

    fn keep(&mut self, packet: &Packet, port: PortId) {
        if self.waiting.len() == TAPPED_PER_TURN_MAX {
            self.lost += 1;
            return;
        }
        let length = packet.length();
        let mut bytes = vec![0; length.min(self.facts.snap as usize)];
        if packet.load(0, &mut bytes).is_err() {
            bytes.clear();
        }
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        // Since the machine started: neither is negative.
        let time_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        let length = length as u32;
        self.waiting.push(Tapped { time_ns, port, length, bytes, ..self.context.clone() });
    }

    /// What the daemon is to be told since the last call, and how many had no room.
    pub(crate) fn take(&mut self) -> (Vec<Tapped>, u64) {
        (std::mem::take(&mut self.waiting), std::mem::take(&mut self.lost))
    }
}
