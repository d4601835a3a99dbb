//! Other end of a port's wire, and a TAP device: frames in and out, byte by byte.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::namespace::ifindex;

/// Longest wait for a frame.
const PATIENCE: Duration = Duration::from_secs(5);
/// Silence after which no frame is expected.
const SILENCE: Duration = Duration::from_millis(50);
/// Longest frame of the tests.
const FRAME_MAX: usize = 4096;

/// Descriptor that returns one frame at a time, non-blocking.
#[derive(Debug)]
pub struct WireEnd {
    file: File,
    /// True for a packet socket, whose outermost VLAN tag is beside the frame.
    keeps_tag_apart: bool,
}

impl WireEnd {
    /// Opens a device: its incoming frames are read here, and frames are sent out of it.
    pub fn of_device(device: &str) -> Self {
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK;
        // SAFETY: it makes a descriptor and takes numbers only.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, protocol.into()) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: a new descriptor that nobody else holds.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let one: libc::c_int = 1;
        let buffer: libc::c_int = 16 << 20;
        for (level, name, value) in [
            (libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, one),
            (libc::SOL_PACKET, libc::PACKET_AUXDATA, one),
            (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, buffer),
        ] {
            // SAFETY: the option's value is an int, which lives across the call.
            let answer = unsafe {
                let length = size_of_val(&value) as u32;
                libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), length)
            };
            assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
        }
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: protocol,
            sll_ifindex: ifindex(device) as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        // SAFETY: the address lives across the call and is as long as said.
        let answer = unsafe {
            libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32)
        };
        assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
        Self { file: fd.into(), keeps_tag_apart: true }
    }

    /// Makes a TAP device; frames sent out of it are read here.
    pub fn of_new_tap(device: &str) -> Self {
        let file = File::options().read(true).write(true).open("/dev/net/tun").unwrap();
        // SAFETY: ifreq is a plain struct of integers and bytes, for which zeroes are valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: TUNSETIFF reads and writes one ifreq, which outlives the call.
        let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: it changes flags of our own descriptor.
        let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
        Self { file, keeps_tag_apart: false }
    }

    /// Sends a frame out of the device.
    pub fn send(&self, frame: &[u8]) {
        rustix::io::write(&self.file, frame).unwrap();
    }

    /// Returns a pending frame, its tags in line.
    pub fn receive_now(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; FRAME_MAX];
        let tag = self.receive_into(&mut frame)?;
        if let Some(tag) = tag {
            frame.splice(12..12, tag);
        }
        Some(frame)
    }

    /// Reads a frame; returns the tag beside it.
    fn receive_into(&self, frame: &mut Vec<u8>) -> Option<Option<[u8; 4]>> {
        #[repr(C, align(8))]
        struct Control([u8; 64]);
        if !self.keeps_tag_apart {
            return match (&self.file).read(frame) {
                Ok(length) => {
                    frame.truncate(length);
                    Some(None)
                }
                Err(error) => none_on_would_block(&error),
            };
        }
        let mut control = Control([0; 64]);
        let mut piece = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
        // SAFETY: msghdr is a plain struct of pointers and numbers, for which zeroes are valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control.0.len();
        // SAFETY: all that the message points at lives across the call and is as long as said.
        let length = unsafe { libc::recvmsg(self.file.as_raw_fd(), &raw mut message, 0) };
        if length < 0 {
            return none_on_would_block(&std::io::Error::last_os_error());
        }
        frame.truncate(length as usize);
        // SAFETY: the kernel has filled the message in.
        let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        if header.is_null() {
            return Some(None);
        }
        // SAFETY: the only control message that was asked for, whole within `control`.
        let aux: libc::tpacket_auxdata =
            unsafe { std::ptr::read_unaligned(libc::CMSG_DATA(header).cast()) };
        let is_there = aux.tp_status & libc::TP_STATUS_VLAN_VALID != 0;
        let words = [aux.tp_vlan_tpid.to_be_bytes(), aux.tp_vlan_tci.to_be_bytes()];
        Some(is_there.then(|| [words[0][0], words[0][1], words[1][0], words[1][1]]))
    }

    /// Returns the next frame for which `wanted` is true; others, which the kernel sends by itself,
    /// are discarded.
    pub fn receive(&self, wanted: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let next = || std::iter::from_fn(|| self.receive_now()).find(|frame| wanted(frame));
        testbase::wait_for(PATIENCE, next).expect("a frame")
    }

    /// Returns true if no such frame arrives for a while.
    pub fn is_silent(&self, wanted: impl Fn(&[u8]) -> bool) -> bool {
        let end = Instant::now() + SILENCE;
        while Instant::now() < end {
            if self.receive_now().is_some_and(|frame| wanted(&frame)) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

fn none_on_would_block<T>(error: &std::io::Error) -> Option<T> {
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
    None
}
