//! Answers about where the kernel would send a packet, in the memory of a cell that asks
//! (`c/ask.h`).

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use bpf_maps::Answer;
use units::PortId;

use crate::mapped::MappedWords;

/// Bytes of a question in front of the packet's IP header: as an Ethernet header has them.
pub const QUESTION_HEAD: usize = 14;
/// Bytes of the packet that a question has: the longest IP header without extensions, and ports.
pub const QUESTION_PACKET: usize = 64;

/// Byte 10 of a question that is a note (`TAM_ASK_NOTES`).
const NOTES: u8 = 1;

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

    /// Begins another question; what is to be written in front of its IP packet.
    pub fn ask(&mut self, is_v6: bool) -> [u8; QUESTION_HEAD] {
        self.number = self.number.wrapping_add(1);
        let mut head = [0; QUESTION_HEAD];
        head[..4].copy_from_slice(&self.number.to_ne_bytes());
        let kind: u16 = if is_v6 { 0x86dd } else { 0x0800 };
        head[QUESTION_HEAD - 2..].copy_from_slice(&kind.to_be_bytes());
        head
    }

    /// Begins a note that an IPv4 packet leaves with this source; what is to be written in front of
    /// it as the kernel gets it. The answer is a port, of no meaning, when it was taken.
    pub fn note(&mut self, address: [u8; 4], port_be: [u8; 2]) -> [u8; QUESTION_HEAD] {
        let mut head = self.ask(false);
        head[4..8].copy_from_slice(&address);
        head[8..10].copy_from_slice(&port_be);
        head[10] = NOTES;
        head
    }

    /// The port that the last question's packet would leave by; `None` when it would leave by none,
    /// or nobody has answered.
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
