//! Requests of a cell to the kernel, and their answers in the cell's memory (`c/ask.h`).

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use bpf_maps::{
    ASK_ARRIVE, ASK_NOTE, Answer, CHANGED_DESTINATION, CHANGED_SOURCE, ETHERTYPE_ASKED, End,
    Request,
};
use units::PortId;

use crate::mapped::MappedWords;

/// Ethernet header in front of the IP packet of a query.
pub const QUESTION_HEAD: [u8; 14] = {
    let [high, low] = ETHERTYPE_ASKED.to_be_bytes();
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, high, low]
};
/// Most bytes of the packet in a query: the longest IP header without extensions, and L4 ports.
pub const QUESTION_PACKET: usize = 64;

/// Map of answers.
#[derive(Debug)]
pub struct Answers {
    words: MappedWords,
    number: u32,
}

impl Answers {
    /// Maps the answers in another process, which got the map's descriptor from the one that made
    /// it.
    ///
    /// # Errors
    /// The kernel does not map it.
    pub fn from_fd(fd: &OwnedFd) -> io::Result<Self> {
        let words = MappedWords::new(fd.as_fd(), size_of::<Answer>() / 8)?;
        Ok(Self { words, number: 0 })
    }

    /// Begins a query: by which port would the kernel send a packet that arrives by this one, or by
    /// the node's own device? To be written behind [`QUESTION_HEAD`] and the packet's first
    /// [`QUESTION_PACKET`] bytes.
    pub fn ask(&mut self, arrival: Option<PortId>) -> Request {
        self.number = self.number.wrapping_add(1);
        let port = arrival.map_or(u16::MAX, |port| port.0);
        Request { number: self.number, port, ..Request::default() }
    }

    /// Begins a record that a packet leaves with another source than the kernel sees, or arrived
    /// with another destination; written with the packet as the kernel gets it, as of
    /// [`Answers::ask`]. The answer is some port, without a meaning, on success.
    pub fn note(
        &mut self,
        arrival: Option<PortId>,
        source: Option<End>,
        destination: Option<End>,
    ) -> Request {
        let changed =
            source.map_or(0, |_| CHANGED_SOURCE) | destination.map_or(0, |_| CHANGED_DESTINATION);
        Request {
            kind: ASK_NOTE,
            changed,
            source: source.unwrap_or_default(),
            destination: destination.unwrap_or_default(),
            ..self.ask(arrival)
        }
    }

    /// Begins the reception of a frame by a port, to be written behind the frame. The answer is
    /// that port on success.
    pub fn arrive(&mut self, port: PortId) -> Request {
        Request { kind: ASK_ARRIVE, ..self.ask(Some(port)) }
    }

    /// Returns the port in the answer to the last request; `None` when there is no port, or no
    /// answer.
    #[must_use]
    pub fn answer(&self) -> Option<PortId> {
        let value = self.words.word(offset_of!(Answer, value) / 8)?.load(Ordering::Acquire);
        let (number, port) = ((value >> 32) as u32, value as u32);
        if number != self.number {
            return None;
        }
        u16::try_from(port.checked_sub(1)?).ok().map(PortId)
    }
}
