//! Questions to the kernel: by which port would it send this packet? They go by the TAP device of
//! the node, at whose ingress a program answers within the same system call (`bpf::Answers`).
//!
//! Asked only while sessions have shares of ports: a packet that the kernel routes for a service
//! pays where it leaves, like those that leave from here. And told, by the same way, which source a
//! packet leaves with that the kernel gets with another.

use crate::deliver::l3_offset;
use crate::source::Source;
use bpf::{Answers, QUESTION_HEAD, QUESTION_PACKET};
use rustix::fd::OwnedFd;
use std::io::IoSlice;
use units::PortId;
use xsk::Packet;

/// The map of answers, and the device that is asked.
#[derive(Debug)]
pub(crate) struct Asker {
    answers: Answers,
    device: OwnedFd,
}

impl Asker {
    pub(crate) const fn new(answers: Answers, device: OwnedFd) -> Self {
        Self { answers, device }
    }

    /// Notes that a frame's IPv4 packet leaves with this source, which its module gave it, when the
    /// kernel sends it. False when the kernel would send it by no port of the node, where nobody
    /// gives it that source.
    pub(crate) fn note(&mut self, packet: &Packet, source: Source) -> bool {
        let question = self.answers.note(source.address, source.port);
        self.put(packet, &question).is_some()
    }

    /// Returns the port by which the kernel would send a frame's IP packet as it is now; `None` when
    /// it would answer or keep it, or send it by no port of the node.
    pub(crate) fn egress_of(&mut self, packet: &Packet) -> Option<PortId> {
        let is_v6 = ip_of(packet)?.first()? >> 4 == 6;
        let question = self.answers.ask(is_v6);
        self.put(packet, &question)
    }

    fn put(&mut self, packet: &Packet, question: &[u8; QUESTION_HEAD]) -> Option<PortId> {
        let ip = ip_of(packet)?;
        // Without memory for it nobody answers, and the last answer is not this question's.
        let _ = rustix::io::writev(&self.device, &[IoSlice::new(question), IoSlice::new(ip)]);
        self.answers.answer()
    }
}

/// Returns the head of a frame's IP packet.
fn ip_of(packet: &Packet) -> Option<&[u8]> {
    let head = packet.head();
    let ip = &head[l3_offset(head)?..];
    Some(&ip[..ip.len().min(QUESTION_PACKET)])
}
