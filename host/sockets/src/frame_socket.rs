//! Ethernet frames of one device in and out, without XDP (packet(7)), for a node's packet ports.
//!
//! ```text
//! the daemon: open, take                the cell: receive, send
//!
//!   receive buffer   │ room for a tag │ frame, without its outermost tag │
//!   a frame          │ frame, tags in line                              │ + unfinished work
//! ```
//!
//! The sender may have left work on a frame to its device: segmentation to the MTU, or the
//! checksum ([`Unfinished`]). Such a frame is marked, and passed on as it is.

use crate::packet_socket::{Control, TAG_LENGTH, TAG_OFFSET, set, tag};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::cell::Cell;
use std::io::{self, IoSlice};
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Mark of frames that were taken already and go back into the kernel. Other programs could use the
/// number too, so it is an unlikely one.
pub const TAKEN_MARK: u32 = 0x7461_6d70;
/// Mark of frames that a port's own socket sends, so that a watcher of the device's egress sees
/// only frames of others.
pub const SENT_MARK: u32 = 0x7461_6d73;
/// Receive buffer in bytes, where the caller may request that much.
const RECEIVE_BUFFER: libc::c_int = 32 << 20;
/// Receive buffer in bytes of a socket that watches egress.
const WATCH_BUFFER: libc::c_int = 4 << 20;
/// Request number of `SIOCGSTAMPNS` (asm-generic/sockios.h, the one of `struct timespec`).
const SIOCGSTAMPNS: libc::Ioctl = 0x8907;
/// Longest frame: 64 KiB that a device was to segment, with its headers.
const FRAME_LENGTH_MAX: usize = 14 + 2 * TAG_LENGTH + (64 << 10) + 256;
/// Length of `struct virtio_net_hdr`.
const HEADER_LENGTH: usize = 10;
/// Flag `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the L4 checksum is to be completed.
const NEEDS_SUM: u8 = 1;
/// Offset of `SKF_AD_PKTTYPE` in a socket filter (linux/filter.h).
const SKF_AD_PKTTYPE: u32 = (libc::SKF_AD_OFF + 4) as u32;
/// Offset of `SKF_AD_MARK` in a socket filter (linux/filter.h).
const SKF_AD_MARK: u32 = (libc::SKF_AD_OFF + 20) as u32;

/// Work on a frame that its sender left to the device (`struct virtio_net_hdr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unfinished {
    flags: u8,
    kind: u8,
    header_length: u16,
    segment_length: u16,
    sum_from: u16,
    sum_at: u16,
}

impl Unfinished {
    fn parse(b: [u8; HEADER_LENGTH]) -> Self {
        let word = |at: usize| u16::from_ne_bytes([b[at], b[at + 1]]);
        let [flags, kind, ..] = b;
        Self {
            flags,
            kind,
            header_length: word(2),
            segment_length: word(4),
            sum_from: word(6),
            sum_at: word(8),
        }
    }

    fn bytes(self) -> [u8; HEADER_LENGTH] {
        let mut bytes = [self.flags, self.kind, 0, 0, 0, 0, 0, 0, 0, 0];
        let words = [self.header_length, self.segment_length, self.sum_from, self.sum_at];
        for (at, word) in (2..).step_by(2).zip(words) {
            bytes[at..at + 2].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Returns the payload length of each packet that the frame is to be segmented into; `None` for
    /// a whole packet.
    #[must_use]
    pub fn segment_length(self) -> Option<u16> {
        (self.kind != 0 && self.segment_length > 0).then_some(self.segment_length)
    }

    /// Returns the same work for the frame with a tag of this length inserted before its IP header.
    fn moved(mut self, by: usize) -> Self {
        let by = by as u16;
        if self.kind != 0 {
            self.header_length = self.header_length.saturating_add(by);
        }
        if self.flags & NEEDS_SUM != 0 {
            self.sum_from = self.sum_from.saturating_add(by);
        }
        self
    }
}

/// Frame with its unfinished work.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Bytes from the destination MAC address on, with tags in line.
    pub bytes: &'a [u8],
    /// Work that is not done yet.
    pub unfinished: Unfinished,
}

/// Buffer for received frames.
#[derive(Debug)]
pub struct Buffer(Box<[u8; TAG_LENGTH + FRAME_LENGTH_MAX]>);

impl Default for Buffer {
    fn default() -> Self {
        Self(Box::new([0; TAG_LENGTH + FRAME_LENGTH_MAX]))
    }
}

/// Counters that the kernel keeps for a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Frames given to the socket.
    pub received: u64,
    /// Frames dropped for lack of room.
    pub dropped: u64,
}

/// Packet socket bound to one device, non-blocking.
#[derive(Debug)]
pub struct FrameSocket {
    fd: OwnedFd,
    /// Counters so far: the kernel resets its own with each query.
    counted: Cell<Counted>,
}

impl FrameSocket {
    /// Opens a socket that sends frames and receives none, until [`FrameSocket::take`].
    ///
    /// # Errors
    /// The caller lacks `CAP_NET_RAW` in its network namespace, or the device does not exist.
    pub fn open(index: u32) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: socket takes three numbers.
        let raw = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and is owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let socket = Self::from(fd);
        let packet = libc::SOL_PACKET;
        set(&socket.fd, packet, libc::PACKET_VNET_HDR, 1)?;
        set(&socket.fd, packet, libc::PACKET_AUXDATA, 1)?;
        set(&socket.fd, packet, libc::PACKET_IGNORE_OUTGOING, 1)?;
        socket.filter(&[statement(libc::BPF_RET | libc::BPF_K, 0)])?;
        crate::packet_socket::bind(&socket.fd, index, libc::ETH_P_ALL as u16)?;
        Ok(socket)
    }

    /// Opens a socket whose frames carry this mark.
    ///
    /// # Errors
    /// Same as [`FrameSocket::open`]; also, the caller lacks `CAP_NET_ADMIN`.
    pub fn open_marked(index: u32, mark: u32) -> io::Result<Self> {
        let socket = Self::open(index)?;
        set(&socket.fd, libc::SOL_SOCKET, libc::SO_MARK, mark as libc::c_int)?;
        Ok(socket)
    }

    /// Opens a socket that receives the frames that leave by its device, except those with
    /// [`SENT_MARK`].
    ///
    /// # Errors
    /// Same as [`FrameSocket::open`].
    pub fn watch(index: u32) -> io::Result<Self> {
        let socket = Self::open(index)?;
        set(&socket.fd, libc::SOL_SOCKET, libc::SO_RCVBUF, WATCH_BUFFER)?;
        // The kernel records the time of each frame from the first query on.
        let _ = socket.stamp();
        set(&socket.fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 0)?;
        let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        socket.filter(&[
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, SKF_AD_PKTTYPE),
            libc::sock_filter { jf: 2, ..statement(equal, libc::PACKET_OUTGOING.into()) },
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, SKF_AD_MARK),
            libc::sock_filter { jf: 1, ..statement(equal, SENT_MARK) },
            statement(libc::BPF_RET | libc::BPF_K, 0),
            statement(libc::BPF_RET | libc::BPF_K, u32::MAX),
        ])?;
        Ok(socket)
    }

    /// Returns the time of the last received frame, in nanoseconds since 1970. `None` before the
    /// first one, and where the kernel does not say.
    #[must_use]
    pub fn stamp(&self) -> Option<u64> {
        let mut stamp = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the request fills a timespec, which outlives the call.
        let done = unsafe { libc::ioctl(self.fd.as_raw_fd(), SIOCGSTAMPNS, &raw mut stamp) };
        let seconds = u64::try_from(stamp.tv_sec).ok().filter(|_| done == 0)?;
        Some(seconds * 1_000_000_000 + u64::try_from(stamp.tv_nsec).ok()?)
    }

    /// Starts to receive the frames of the device that do not carry [`TAKEN_MARK`]. Returns the
    /// size of the receive buffer in bytes.
    ///
    /// # Errors
    /// The kernel refuses the filter.
    pub fn take(&self) -> io::Result<usize> {
        let size = libc::SO_RCVBUFFORCE;
        // Sizes above the general limit are possible only in the machine's initial user namespace.
        if set(&self.fd, libc::SOL_SOCKET, size, RECEIVE_BUFFER).is_err() {
            set(&self.fd, libc::SOL_SOCKET, libc::SO_RCVBUF, RECEIVE_BUFFER)?;
        }
        let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        self.filter(&[
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, SKF_AD_MARK),
            libc::sock_filter { jf: 1, ..statement(equal, TAKEN_MARK) },
            statement(libc::BPF_RET | libc::BPF_K, 0),
            statement(libc::BPF_RET | libc::BPF_K, u32::MAX),
        ])?;
        Ok(rustix::net::sockopt::socket_recv_buffer_size(&self.fd)?)
    }

    /// Returns the next frame, if one is there. A frame longer than any that the kernel makes is
    /// truncated.
    ///
    /// # Errors
    /// The device goes down or away.
    pub fn receive<'a>(&self, buffer: &'a mut Buffer) -> io::Result<Option<Frame<'a>>> {
        let mut header = [0; HEADER_LENGTH];
        let mut control = Control::default();
        let all = &mut buffer.0[..];
        // Room for the tag is left in front, so that putting it back moves 12 bytes only.
        let room = &mut all[TAG_LENGTH..];
        let mut pieces = [
            libc::iovec { iov_base: header.as_mut_ptr().cast(), iov_len: HEADER_LENGTH },
            libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() },
        ];
        // SAFETY: msghdr is a plain struct of pointers and lengths, for which zeroes are valid.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_iov = pieces.as_mut_ptr();
        message.msg_iovlen = pieces.len() as _;
        control.lend(&mut message);
        // SAFETY: the message points to `pieces`, `header`, the buffer and `control`, with their
        // true lengths; all of them outlive the call.
        let length =
            unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        let Ok(length) = usize::try_from(length) else {
            return match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                error if error.kind() == io::ErrorKind::Interrupted => Ok(None),
                error => Err(error),
            };
        };
        let length = length.saturating_sub(HEADER_LENGTH);
        let unfinished = Unfinished::parse(header);
        let whole = TAG_LENGTH + length;
        Ok(Some(match tag(&message).filter(|_| length >= TAG_OFFSET) {
            Some(tag) => {
                all.copy_within(TAG_LENGTH..TAG_LENGTH + TAG_OFFSET, 0);
                all[TAG_OFFSET..TAG_OFFSET + TAG_LENGTH].copy_from_slice(&tag);
                Frame { bytes: &all[..whole], unfinished: unfinished.moved(TAG_LENGTH) }
            }
            None => Frame { bytes: &all[TAG_LENGTH..whole], unfinished },
        }))
    }

    /// Returns true if a frame is there.
    #[must_use]
    pub fn has_received(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Sends a frame, given in pieces.
    ///
    /// # Errors
    /// `WouldBlock` when the device's queue is full; else why it cannot be sent.
    ///
    /// # Panics
    /// The frame has more than [`PIECES_MAX`] pieces.
    pub fn send(&self, pieces: &[&[u8]], unfinished: Unfinished) -> io::Result<()> {
        assert!(pieces.len() <= PIECES_MAX, "a packet has fewer pieces");
        let header = unfinished.bytes();
        let mut slices = [IoSlice::new(&[]); PIECES_MAX + 1];
        slices[0] = IoSlice::new(&header);
        for (slice, piece) in slices[1..].iter_mut().zip(pieces) {
            *slice = IoSlice::new(piece);
        }
        match rustix::io::writev(&self.fd, &slices[..=pieces.len()]) {
            Ok(_) => Ok(()),
            Err(Errno::NOBUFS | Errno::AGAIN) => Err(io::ErrorKind::WouldBlock.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the kernel's counters since the socket was opened. A query resets them for all
    /// descriptors of the socket, so only one descriptor should be queried.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn counted(&self) -> io::Result<Counted> {
        // SAFETY: tpacket_stats is a plain struct of integers, for which zeroes are valid.
        let mut stats: libc::tpacket_stats = unsafe { zeroed() };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: the value and its length outlive the call, and the length is the true one.
        let done = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut stats).cast(),
                &raw mut length,
            )
        };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut sum = self.counted.get();
        // The kernel counts dropped frames as received, too.
        sum.received += u64::from(stats.tp_packets.wrapping_sub(stats.tp_drops));
        sum.dropped += u64::from(stats.tp_drops);
        self.counted.set(sum);
        Ok(sum)
    }

    fn filter(&self, program: &[libc::sock_filter]) -> io::Result<()> {
        let program = libc::sock_fprog {
            len: program.len() as libc::c_ushort,
            filter: program.as_ptr().cast_mut(),
        };
        let length = size_of::<libc::sock_fprog>() as libc::socklen_t;
        // SAFETY: the value is a sock_fprog that points to instructions of that number; both
        // outlive the call, which copies them.
        let done = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                length,
            )
        };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Limit of pieces of a sent frame: five frames of packet memory, and one to spare.
pub const PIECES_MAX: usize = 6;

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

impl From<OwnedFd> for FrameSocket {
    fn from(fd: OwnedFd) -> Self {
        Self { fd, counted: Cell::default() }
    }
}

impl AsFd for FrameSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests;
