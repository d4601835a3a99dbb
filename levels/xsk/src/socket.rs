//! AF_XDP socket: the receive and transmit rings of a (port, queue) on the cell's UMEM.

use crate::packet::{Packet, SEGMENTS_MAX, Segment};
use crate::ring::Ring;
use crate::umem::{FRAME_LENGTH, FramePool, Umem};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XDP_PGOFF_RX_RING,
    XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc,
    XdpDescOptions, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{SendFlags, bind, send};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// Time to retry a bind while the queue still belongs to a socket of a process that died: the
/// kernel releases it a moment after the exit.
const BIND_PATIENCE: Duration = Duration::from_secs(2);
/// Pause between two tries to bind.
const BIND_PAUSE: Duration = Duration::from_millis(5);

/// Parameters of a socket.
#[derive(Clone, Copy, Debug)]
pub struct SocketConfig {
    /// Interface index of the port's device.
    pub ifindex: u32,
    /// Receive queue of the device.
    pub queue: u32,
    /// Number of the socket among those of its UMEM.
    pub number: u16,
    /// Entries of the rings, powers of two.
    pub rings: Rings,
    /// Most frames in flight on the transmit side.
    pub leaving_max: u32,
    /// Frames of more than one descriptor (kernel 6.6): needed for MTUs above 3,800.
    pub multi_buffer: bool,
}

/// Entries of a socket's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rings {
    /// Entries of the receive ring and of the fill ring.
    pub receive: u32,
    /// Entries of the transmit ring and of the completion ring.
    pub transmit: u32,
}

/// Failed step of the set-up: a fault of the host or of the operator.
#[derive(Debug, thiserror::Error)]
#[error("AF_XDP socket on device {ifindex} queue {queue}: {step}: {source}")]
pub struct SetupError {
    ifindex: u32,
    queue: u32,
    step: &'static str,
    source: std::io::Error,
}

/// Bound socket with its four rings.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    umem: Rc<Umem>,
    receive: Ring<XdpDesc>,
    transmit: Ring<XdpDesc>,
    fill: Ring<u64>,
    completion: Ring<u64>,
    /// Descriptors given to the kernel to send and not yet completed.
    in_transmit: u32,
    rings: Rings,
    leaving_max: u32,
    number: u16,
}

impl Socket {
    /// Sets the socket `fd` up on `umem` and binds it. The first socket of a UMEM registers it;
    /// later ones name existing sockets in `shares`.
    ///
    /// # Errors
    /// The step that the kernel refused.
    pub fn new(
        fd: OwnedFd,
        umem: Rc<Umem>,
        config: &SocketConfig,
        shares: &[BorrowedFd<'_>],
    ) -> Result<Self, SetupError> {
        let at = |step: &'static str| {
            let (ifindex, queue) = (config.ifindex, config.queue);
            move |source: Errno| SetupError { ifindex, queue, step, source: source.into() }
        };
        let io = |step: &'static str| {
            let (ifindex, queue) = (config.ifindex, config.queue);
            move |source: std::io::Error| SetupError { ifindex, queue, step, source }
        };
        if shares.is_empty() {
            register(&fd, &umem).map_err(at("registering the UMEM"))?;
        }
        let Rings { receive: coming, transmit: leaving } = config.rings;
        sockopt::set_xdp_umem_fill_ring_size(&fd, coming).map_err(at("sizing the fill ring"))?;
        sockopt::set_xdp_umem_completion_ring_size(&fd, leaving)
            .map_err(at("sizing the completion ring"))?;
        sockopt::set_xdp_rx_ring_size(&fd, coming).map_err(at("sizing the receive ring"))?;
        sockopt::set_xdp_tx_ring_size(&fd, leaving).map_err(at("sizing the transmit ring"))?;
        let offsets = sockopt::xdp_mmap_offsets(&fd).map_err(at("asking for ring offsets"))?;
        let receive = Ring::map(fd.as_fd(), XDP_PGOFF_RX_RING, offsets.rx, coming)
            .map_err(io("mapping the receive ring"))?;
        let transmit = Ring::map(fd.as_fd(), XDP_PGOFF_TX_RING, offsets.tx, leaving)
            .map_err(io("mapping the transmit ring"))?;
        let fill = Ring::map(fd.as_fd(), XDP_UMEM_PGOFF_FILL_RING, offsets.fr, coming)
            .map_err(io("mapping the fill ring"))?;
        let completion = Ring::map(fd.as_fd(), XDP_UMEM_PGOFF_COMPLETION_RING, offsets.cr, leaving)
            .map_err(io("mapping the completion ring"))?;
        bind_to_one(&fd, config, shares).map_err(at("binding"))?;
        Ok(Self {
            fd,
            umem,
            receive,
            transmit,
            fill,
            completion,
            in_transmit: 0,
            rings: config.rings,
            leaving_max: config.leaving_max.min(leaving),
            number: config.number,
        })
    }

    /// Takes up to `max` whole packets from the receive ring into `batch`.
    /// Packets of more than [`SEGMENTS_MAX`] frames go back to the pool; their
    /// number is returned.
    pub fn receive(
        &mut self,
        batch: &mut VecDeque<Packet>,
        max: usize,
        pool: &mut FramePool,
    ) -> u32 {
        let filled = self.receive.filled((max * SEGMENTS_MAX) as u32);
        let (mut taken, mut oversized) = (0, 0);
        let mut at = 0;
        while at < filled && batch.len() < max {
            let Some(count) = self.descriptors(at, filled) else { break };
            match self.assemble(at, count, pool) {
                Some(packet) => batch.push_back(packet),
                None => oversized += 1,
            }
            at += count;
            taken = at;
        }
        if taken > 0 {
            self.receive.release(taken);
        }
        oversized
    }

    /// Returns true if the receive ring has a descriptor for [`Socket::receive`].
    pub fn has_received(&mut self) -> bool {
        self.receive.filled(1) > 0
    }

    /// Returns the number of descriptors of the packet that begins at entry `at`, or `None` when
    /// its last descriptor has not arrived yet.
    fn descriptors(&self, at: u32, filled: u32) -> Option<u32> {
        let last = (at..filled)
            .find(|&i| !self.receive.read(i).options.contains(XdpDescOptions::XDP_PKT_CONTD))?;
        Some(last - at + 1)
    }

    fn assemble(&self, at: u32, count: u32, pool: &mut FramePool) -> Option<Packet> {
        let mut packet = Packet::empty(Rc::clone(&self.umem));
        let fits = count as usize <= SEGMENTS_MAX;
        for i in at..at + count {
            let descriptor = self.receive.read(i);
            let (frame, start) = self.umem.frame_at(descriptor.addr)?;
            if fits {
                packet.segments[packet.count] =
                    Some(Segment { frame, start: start as u16, length: descriptor.len as u16 });
                packet.count += 1;
            } else {
                pool.give(frame);
            }
        }
        fits.then_some(packet)
    }

    /// Puts a packet on the transmit ring; [`Socket::flush`] makes it visible.
    ///
    /// # Errors
    /// Gives the packet back when the ring is full.
    pub fn send(&mut self, mut packet: Packet) -> Result<(), Packet> {
        let count = packet.count as u32;
        if self.in_transmit + count > self.leaving_max || self.transmit.free_entries(count) < count
        {
            return Err(packet);
        }
        for at in 0..packet.count {
            let Some(segment) = packet.segments[at].take() else { continue };
            let more = at + 1 < packet.count;
            self.umem.give_to(&segment.frame, self.number);
            self.transmit.write(XdpDesc {
                addr: segment.frame.address() + u64::from(segment.start),
                len: u32::from(segment.length),
                options: if more { XdpDescOptions::XDP_PKT_CONTD } else { XdpDescOptions::empty() },
            });
            self.in_transmit += 1;
        }
        Ok(())
    }

    /// Publishes the packets sent since the last call and has the kernel transmit them.
    ///
    /// In copy mode each call sends at most 32 descriptors, so it is repeated while it makes
    /// progress. Packets that the device cannot take now stay in the ring until the next call.
    pub fn flush(&mut self, pool: &mut FramePool) {
        if self.in_transmit == 0 {
            return;
        }
        self.transmit.publish();
        let mut before = self.in_transmit + 1;
        while self.in_transmit > 0 && self.in_transmit < before && self.transmit.needs_wakeup() {
            before = self.in_transmit;
            // The rings show the outcome: busy and full mean "later".
            let _ = send(&self.fd, &[], SendFlags::DONTWAIT);
            self.complete(pool);
        }
        self.complete(pool);
    }

    /// Returns the frames of transmitted packets to the pool.
    pub fn complete(&mut self, pool: &mut FramePool) {
        let done = self.completion.filled(self.rings.transmit);
        for i in 0..done {
            if let Some((frame, _)) = self.umem.frame_at(self.completion.read(i)) {
                pool.give(frame);
            }
        }
        if done > 0 {
            self.completion.release(done);
            self.in_transmit = self.in_transmit.saturating_sub(done);
        }
    }

    /// Fills the fill ring up to `most` frames, as far as ring and pool allow.
    pub fn refill(&mut self, pool: &mut FramePool, most: u32) {
        self.umem.replenish(pool);
        let unwanted = self.rings.receive.saturating_sub(most);
        let free = self.fill.free_entries(self.rings.receive).saturating_sub(unwanted);
        let mut given = 0;
        while given < free {
            let Some(frame) = pool.take() else { break };
            self.umem.give_to(&frame, self.number);
            self.fill.write(frame.address());
            given += 1;
        }
        if given > 0 {
            self.fill.publish();
        }
    }

    /// Returns true if the device has taken everything that was sent before the last
    /// [`Socket::flush`]: packets that another process sends from now on leave later.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.transmit.is_taken()
    }

    /// Reclaims all frames of a device that is gone or loses this socket. Requires that everything
    /// received was taken and no [`Packet`] of the UMEM is alive. Returns the number of packets
    /// that still waited to be sent.
    pub fn dissolve(self, pool: &mut FramePool) -> u64 {
        let waiting = self.transmit.untaken();
        let packets = waiting.filter(|d| !d.options.contains(XdpDescOptions::XDP_PKT_CONTD));
        let packets = packets.count() as u64;
        let Self { fd, umem, receive, transmit, fill, completion, number, .. } = self;
        // The last of these closes the socket, unless another process has it: from then on the
        // kernel reads and writes none of its frames.
        drop((fd, receive, transmit, fill, completion));
        umem.reclaim(number, pool);
        packets
    }

    /// Returns true while the device holds frames to send.
    #[must_use]
    pub const fn transmitting(&self) -> bool {
        self.in_transmit > 0
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the number of packets in the rings of a socket whose process is gone: received and not
/// taken, or to be sent. They are lost with the socket.
///
/// # Errors
/// The socket's rings do not have this number of entries.
pub fn left_behind(socket: BorrowedFd<'_>, rings: Rings) -> std::io::Result<u64> {
    let offsets = sockopt::xdp_mmap_offsets(socket)?;
    let receive = Ring::<XdpDesc>::map(socket, XDP_PGOFF_RX_RING, offsets.rx, rings.receive)?;
    let transmit = Ring::<XdpDesc>::map(socket, XDP_PGOFF_TX_RING, offsets.tx, rings.transmit)?;
    let whole = |d: &XdpDesc| !d.options.contains(XdpDescOptions::XDP_PKT_CONTD);
    Ok(receive.waiting().chain(transmit.waiting()).filter(whole).count() as u64)
}

fn register(fd: &OwnedFd, umem: &Umem) -> Result<(), Errno> {
    sockopt::set_xdp_umem_reg(
        fd,
        XdpUmemReg {
            addr: umem.address(),
            len: umem.length() as u64,
            chunk_size: FRAME_LENGTH as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        },
    )
}

/// Binds the socket to the UMEM of one of `shares`: the device of a share may just have vanished,
/// which unbinds its socket.
fn bind_to_one(
    fd: &OwnedFd,
    config: &SocketConfig,
    shares: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let Some((last, others)) = shares.split_last() else {
        return bind_patiently(fd, config, None);
    };
    for share in others {
        match bind_patiently(fd, config, Some(*share)) {
            Err(Errno::BADF) => {}
            bound => return bound,
        }
    }
    bind_patiently(fd, config, Some(*last))
}

fn bind_patiently(
    fd: &OwnedFd,
    config: &SocketConfig,
    share: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut waited = Duration::ZERO;
    loop {
        match bind_to(fd, config, share) {
            Err(Errno::BUSY) if waited < BIND_PATIENCE => {
                std::thread::sleep(BIND_PAUSE);
                waited += BIND_PAUSE;
            }
            result => return result,
        }
    }
}

fn bind_to(
    fd: &OwnedFd,
    config: &SocketConfig,
    share: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut flags = SocketAddrXdpFlags::empty();
    if let Some(shared_umem_fd) = share {
        // Mode and wake-up flags are those of the shared socket.
        flags |= SocketAddrXdpFlags::XDP_SHARED_UMEM;
        let addr = SocketAddrXdp::new(flags, config.ifindex, config.queue);
        return bind(fd, &SocketAddrXdpWithSharedUmem { addr, shared_umem_fd });
    }
    flags |= SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
    if config.multi_buffer {
        flags |= SocketAddrXdpFlags::XDP_USE_SG;
    }
    bind(fd, &SocketAddrXdp::new(flags, config.ifindex, config.queue))
}
