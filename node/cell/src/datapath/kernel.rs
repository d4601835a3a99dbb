//! Path of IP packets into the kernel's stack, where they arrive by a device of the node: a TUN
//! device, or a packet socket where there is none.

use crate::datapath::link::l3_offset;
use crate::protocol::KERNEL_MAC;
use rustix::fd::OwnedFd;
use sockets::frame_socket::{FrameSocket, PIECES_MAX, Unfinished};
use std::io::IoSlice;
use wire::protocol::{ETHERNET_LENGTH, ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use xsk::{Packet, SEGMENTS_MAX};

/// Source MAC address of frames sent there, which no device has.
const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Device or socket into the kernel's stack.
#[derive(Debug)]
pub(crate) enum KernelPath {
    Tun(OwnedFd),
    Frames(FrameSocket),
}

const _: () = assert!(PIECES_MAX > SEGMENTS_MAX, "a header and a packet are sent together");

impl KernelPath {
    /// Hands the IP packet of a frame to the kernel. Returns false if the kernel refuses it, and
    /// `None` if the frame has no IP packet.
    pub(crate) fn take_packet(&self, packet: &Packet) -> Option<bool> {
        let l3_offset = l3_offset(packet.head())?;
        let mut pieces: [&[u8]; SEGMENTS_MAX] = [&[]; SEGMENTS_MAX];
        let mut count = 0;
        for chunk in packet.chunks() {
            let skip = if count == 0 { l3_offset } else { 0 };
            pieces[count] = &chunk[skip..];
            count += 1;
        }
        Some(self.take(&pieces[..count]))
    }

    /// Hands a packet, in pieces, to the kernel. Returns false if the kernel refuses it.
    fn take(&self, pieces: &[&[u8]]) -> bool {
        match self {
            Self::Tun(device) => {
                let mut slices = [IoSlice::new(&[]); SEGMENTS_MAX];
                slices.iter_mut().zip(pieces).for_each(|(to, piece)| *to = IoSlice::new(piece));
                rustix::io::writev(device, &slices[..pieces.len()]).is_ok()
            }
            Self::Frames(socket) => {
                let version = pieces.first().and_then(|piece| piece.first()).map(|byte| byte >> 4);
                let kind = if version == Some(6) { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 };
                let mut header = [0; ETHERNET_LENGTH];
                header[..6].copy_from_slice(&KERNEL_MAC);
                header[6..12].copy_from_slice(&OWN_MAC);
                header[12..].copy_from_slice(&kind.to_be_bytes());
                let mut all: [&[u8]; PIECES_MAX] = [&[]; PIECES_MAX];
                all[0] = &header;
                all[1..].iter_mut().zip(pieces).for_each(|(to, piece)| *to = piece);
                socket.send(&all[..=pieces.len()], Unfinished::default()).is_ok()
            }
        }
    }
}
