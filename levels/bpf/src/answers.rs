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

/// Ethernet header in front of an IP packet that is asked about.
pub const QUESTION_HEAD: [u8; 14] = {
    let [high, low] = ETHERTYPE_ASKED.to_be_bytes();
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, high, low]
};
/// Bytes of the packet that a question has: the longest IP header without extensions, and ports.
pub const QUESTION_PACKET: usize = 64;

/// The map of answers.
#[derive(Debug)]
pub struct Answers {
    words: MappedWords,
    number: u32,
}

impl Answers {
    /// Maps it in another process, which got the map's descriptor from the one that made it.
    ///
    /// # Errors
    /// When the kernel does not map it.
    pub fn given(fd: &OwnedFd) -> io::Result<Self> {
        let words = MappedWords::new(fd.as_fd(), size_of::<Answer>() / 8)?;
        Ok(Self { words, number: 0 })
    }

    /// Begins another request: by which port would the kernel send a packet that it receives by this
    /// one, or by the node's own device? To be written behind [`QUESTION_HEAD`] and the packet's first
    /// [`QUESTION_PACKET`] bytes.
    pub fn ask(&mut self, arrival: Option<PortId>) -> Request {
        self.number = self.number.wrapping_add(1);
        let port = arrival.map_or(u16::MAX, |port| port.0);
        Request { number: self.number, port, ..Request::default() }
    }

    /// Begins a note that a packet leaves with another source, or came with another destination, than
    /// the kernel has it with; it is written as the kernel gets it, as of [`Answers::ask`]. The answer
    /// is a port, of no meaning, when it was taken.
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

    /// Begins the arrival of a frame by a port, to be written behind the frame. The answer is that
    /// port when it was taken.
    pub fn arrive(&mut self, port: PortId) -> Request {
        Request { kind: ASK_ARRIVE, ..self.ask(Some(port)) }
    }

    /// Returns the port that the last request is answered with; `None` when it is none, or nobody
    /// has answered.
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
