//! Minimal AF_XDP socket: it receives, in copy mode, and returns frames with the metadata in front
//! of them. levels/xsk is the real one; levels do not use each other.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use bpf_maps::PacketMeta;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc,
    XdpRingOffset, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketType, bind, socket, sockopt};

const FRAMES: u32 = 512;
const FRAME: usize = 4096;

/// Bound socket. Its memory lives as long as the process.
#[derive(Debug)]
pub struct Receiver {
    fd: OwnedFd,
    memory: *mut u8,
    receive: Ring,
    fill: Ring,
}

#[derive(Debug)]
struct Ring {
    start: *mut u8,
    offsets: XdpRingOffset,
}

impl Ring {
    fn map(fd: BorrowedFd<'_>, offsets: XdpRingOffset, entry: usize, at: u64) -> Self {
        let length = offsets.desc as usize + FRAMES as usize * entry;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { mmap(std::ptr::null_mut(), length, protection, flags, fd, at) };
        Self { start: start.unwrap().cast(), offsets }
    }

    fn counter(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: an aligned counter within the mapping, which both sides access atomically.
        unsafe { &*self.start.add(offset as usize).cast::<AtomicU32>() }
    }

    fn entry<T>(&self, at: u32) -> *mut T {
        let offset = self.offsets.desc as usize + (at % FRAMES) as usize * size_of::<T>();
        // SAFETY: within the mapping, whose entries are `T`s.
        unsafe { self.start.add(offset).cast() }
    }
}

impl Receiver {
    /// Receives packets that are redirected to the first queue of a device.
    pub fn bind(ifindex: u32) -> Self {
        let fd = socket(AddressFamily::XDP, SocketType::RAW, None).unwrap();
        let length = FRAMES as usize * FRAME;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let memory =
            unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, MapFlags::PRIVATE) };
        let memory: *mut u8 = memory.unwrap().cast();
        let umem = XdpUmemReg {
            addr: memory as u64,
            len: length as u64,
            chunk_size: FRAME as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(&fd, umem).unwrap();
        sockopt::set_xdp_umem_fill_ring_size(&fd, FRAMES).unwrap();
        sockopt::set_xdp_umem_completion_ring_size(&fd, FRAMES).unwrap();
        sockopt::set_xdp_rx_ring_size(&fd, FRAMES).unwrap();
        let offsets = sockopt::xdp_mmap_offsets(&fd).unwrap();
        let receive = Ring::map(fd.as_fd(), offsets.rx, size_of::<XdpDesc>(), XDP_PGOFF_RX_RING);
        let fill = Ring::map(fd.as_fd(), offsets.fr, size_of::<u64>(), XDP_UMEM_PGOFF_FILL_RING);
        bind(&fd, &SocketAddrXdp::new(SocketAddrXdpFlags::XDP_COPY, ifindex, 0)).unwrap();
        let receiver = Self { fd, memory, receive, fill };
        (0..FRAMES).for_each(|frame| receiver.give_back(u64::from(frame) * FRAME as u64));
        receiver
    }

    fn give_back(&self, address: u64) {
        let producer = self.fill.counter(self.fill.offsets.producer);
        let at = producer.load(Ordering::Relaxed);
        // SAFETY: the entry is ours: no more frames are given than the ring has entries.
        unsafe { self.fill.entry::<u64>(at).write(address & !(FRAME as u64 - 1)) };
        producer.store(at + 1, Ordering::Release);
    }

    /// Returns a pending packet.
    pub fn receive_now(&self) -> Option<(PacketMeta, Vec<u8>)> {
        let consumer = self.receive.counter(self.receive.offsets.consumer);
        let at = consumer.load(Ordering::Relaxed);
        if at == self.receive.counter(self.receive.offsets.producer).load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: the kernel has filled this entry and does not touch it until it is consumed.
        let descriptor = unsafe { self.receive.entry::<XdpDesc>(at).read() };
        let front = descriptor.addr as usize - size_of::<PacketMeta>();
        let length = descriptor.len as usize + size_of::<PacketMeta>();
        // SAFETY: the kernel's descriptor lies within the memory, with headroom for metadata.
        let bytes = unsafe { std::slice::from_raw_parts(self.memory.add(front), length) };
        let (meta, frame) = bytes.split_at(size_of::<PacketMeta>());
        let packet = (bytemuck::pod_read_unaligned(meta), frame.to_vec());
        consumer.store(at + 1, Ordering::Release);
        self.give_back(descriptor.addr);
        Some(packet)
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
