//! Requests to the kernel by the TAP device of the node, at whose ingress a program does them within
//! the same system call (`bpf::Answers`):
//!
//! * By which port would it send this packet? Asked only while sessions have shares of ports: a
//!   packet that the kernel routes for a service pays where it leaves, like those that leave from
//!   here.
//! * This packet, which the kernel gets with another source, leaves with that one; this came with
//!   another destination.
//! * This frame has come in by that port.

use crate::datapath::link::l3_offset;
use bpf::{Answers, QUESTION_HEAD, QUESTION_PACKET};
use bpf_maps::{End, Request};
use rustix::fd::OwnedFd;
use std::io::IoSlice;
use units::PortId;
use xsk::{Packet, SEGMENTS_MAX};

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

    /// Notes that a frame's IP packet, which the kernel receives by this port, leaves with this source,
    /// which its module gave it, when the kernel sends it, and came with that destination. False when
    /// the kernel would send it by no port of the node, where nobody gives it the source.
    pub(crate) fn note(
        &mut self,
        packet: &Packet,
        arrival: Option<PortId>,
        source: Option<End>,
        destination: Option<End>,
    ) -> bool {
        let request = self.answers.note(arrival, source, destination);
        self.question(packet, request).is_some()
    }

    /// Returns the port by which the kernel would send a frame's IP packet as it is now, received by
    /// that port or by the node's own device; `None` when it would answer or keep it, or send it by no
    /// port of the node.
    pub(crate) fn egress_of(&mut self, packet: &Packet, arrival: Option<PortId>) -> Option<PortId> {
        let request = self.answers.ask(arrival);
        self.question(packet, request)
    }

    /// Makes a port's device receive a frame, and returns whether it did.
    pub(crate) fn arrive(&mut self, packet: &Packet, port: PortId) -> bool {
        let request = self.answers.arrive(port);
        let mut pieces = [IoSlice::new(&[]); SEGMENTS_MAX + 1];
        let mut count = 0;
        for (piece, chunk) in pieces.iter_mut().zip(packet.chunks()) {
            *piece = IoSlice::new(chunk);
            count += 1;
        }
        pieces[count] = IoSlice::new(bytemuck::bytes_of(&request));
        self.put(&pieces[..=count]).is_some()
    }

    fn question(&mut self, packet: &Packet, request: Request) -> Option<PortId> {
        let head = packet.head();
        let ip = &head[l3_offset(head)?..];
        let ip = &ip[..ip.len().min(QUESTION_PACKET)];
        let request = bytemuck::bytes_of(&request);
        self.put(&[&QUESTION_HEAD, ip, request].map(IoSlice::new))
    }

    fn put(&mut self, pieces: &[IoSlice<'_>]) -> Option<PortId> {
        // Without memory for it nobody answers, and the last answer is not this request's.
        let _ = rustix::io::writev(&self.device, pieces);
        self.answers.answer()
    }
}
