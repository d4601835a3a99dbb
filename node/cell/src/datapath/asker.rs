//! Requests to the kernel by the TAP device of the node, at whose ingress a program answers them
//! within the same system call (`bpf::Answers`):
//!
//! * Egress: the port by which the kernel would send this packet. Asked only while sessions have
//!   shares of ports: a packet that the kernel routes for a service pays where it leaves, like
//!   packets that leave from here.
//! * Translation: this packet, which the kernel gets with another source, leaves with that one; it
//!   arrived with another destination.
//! * Arrival: this frame has arrived by that port.

use crate::datapath::link::l3_offset;
use bpf::{Answers, QUESTION_HEAD, QUESTION_PACKET};
use bpf_maps::{End, Request};
use rustix::fd::OwnedFd;
use std::io::IoSlice;
use units::PortId;
use xsk::{Packet, SEGMENTS_MAX};

/// Map of answers, and the device by which requests are sent.
#[derive(Debug)]
pub(crate) struct Asker {
    answers: Answers,
    device: OwnedFd,
}

impl Asker {
    pub(crate) const fn new(answers: Answers, device: OwnedFd) -> Self {
        Self { answers, device }
    }

    /// Records the translation of a frame's IP packet, which the kernel receives by `arrival`: it
    /// leaves with this source, which its module set, and arrived with that destination. Returns
    /// false if the kernel would send it by no port of the node, where the source cannot be set.
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

    /// Returns the port by which the kernel would send a frame's IP packet as it is now, received
    /// by `arrival` or by the node's own device; `None` if the kernel would answer or keep it, or
    /// send it by no port of the node.
    pub(crate) fn egress_of(&mut self, packet: &Packet, arrival: Option<PortId>) -> Option<PortId> {
        let request = self.answers.ask(arrival);
        self.question(packet, request)
    }

    /// Makes a port's device receive a frame. Returns false if it does not.
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
        // Without memory for the request there is no answer to it, and `answer` returns none.
        let _ = rustix::io::writev(&self.device, pieces);
        self.answers.answer()
    }
}
