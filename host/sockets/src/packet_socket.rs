//! Raw Ethernet frames in and out of one device (packet(7)), for tests and traffic generators. A
//! node's own packets never use it.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Receive buffer in bytes: a second of 64-byte frames at their true cost of about 800 bytes each,
/// at 80,000 a second.
const RECEIVE_BUFFER: libc::c_int = 64 << 20;
/// Offset of a VLAN tag in a frame, after the two MAC addresses.
pub(crate) const TAG_OFFSET: usize = 12;
/// Length of a VLAN tag in bytes.
pub(crate) const TAG_LENGTH: usize = 4;
/// Length of the one control message of a frame, with its header.
const CONTROL_LENGTH: usize = 64;

/// Packet socket bound to one device: it receives all frames that come in, and none that goes out.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
}

/// Memory of a control message, aligned for `cmsghdr`.
#[repr(C, align(8))]
pub(crate) struct Control([u8; CONTROL_LENGTH]);

impl Default for Control {
    fn default() -> Self {
        Self([0; CONTROL_LENGTH])
    }
}

impl Control {
    /// Sets the control memory of a message; `self` must live as long as it.
    pub(crate) fn lend(&mut self, message: &mut libc::msghdr) {
        message.msg_control = self.0.as_mut_ptr().cast();
        message.msg_controllen = CONTROL_LENGTH as _;
    }
}

impl PacketSocket {
    /// Opens a socket for the device of this index, in the calling thread's network namespace.
    ///
    /// # Errors
    /// The caller lacks `CAP_NET_RAW` or the device does not exist.
    pub fn open(index: u32) -> io::Result<Self> {
        // Without a protocol no frame of another device is received before bind.
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: socket takes three numbers.
        let raw = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and is owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        set(&fd, libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
        set(&fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
        set(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER)?;
        bind(&fd, index, libc::ETH_P_ALL as u16)?;
        Ok(Self { fd })
    }

    /// Sends one frame as it is, from the destination MAC address on.
    ///
    /// # Errors
    /// `EINVAL` below 14 bytes, `EMSGSIZE` above the device's MTU and header.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        rustix::net::send(&self.fd, frame, rustix::net::SendFlags::empty())?;
        Ok(())
    }

    /// Returns the next frame within `timeout`, its outermost VLAN tag in line; `None` if none
    /// comes. A frame longer than 65,535 bytes is truncated.
    ///
    /// # Errors
    /// The device goes down or away.
    pub fn receive(&self, timeout: Duration) -> io::Result<Option<Vec<u8>>> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(frame) = self.receive_now()? {
                return Ok(Some(frame));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let timeout = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Returns a frame that is there already.
    fn receive_now(&self) -> io::Result<Option<Vec<u8>>> {
        let mut frame = vec![0; TAG_LENGTH + usize::from(u16::MAX)];
        let mut control = Control::default();
        // Room for the tag is left in front, so that putting it back moves 12 bytes only.
        let room = &mut frame[TAG_LENGTH..];
        let mut piece = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        // SAFETY: msghdr is a plain struct of pointers and lengths, for which zeroes are valid.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        control.lend(&mut message);
        // SAFETY: the message points to `piece`, `frame` and `control`, with their true
        // lengths; all of them outlive the call.
        let length =
            unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        let Ok(length) = usize::try_from(length) else {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        };
        frame.truncate(TAG_LENGTH + length);
        match tag(&message) {
            Some(tag) if length >= TAG_OFFSET => {
                frame.copy_within(TAG_LENGTH..TAG_LENGTH + TAG_OFFSET, 0);
                frame[TAG_OFFSET..TAG_OFFSET + TAG_LENGTH].copy_from_slice(&tag);
            }
            _ => drop(frame.drain(..TAG_LENGTH)),
        }
        Ok(Some(frame))
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Sets an option of a socket to a number.
pub(crate) fn set(
    socket: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option's value is an int that outlives the call, its length the true one.
    let done = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), length)
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Binds a packet socket to the device of this index.
pub(crate) fn bind(socket: &OwnedFd, index: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: sockaddr_ll is a plain struct of integers, for which zeroes are valid.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as libc::c_ushort;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = libc::c_int::try_from(index).map_err(io::Error::other)?;
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is a sockaddr_ll that outlives the call, its length the true one.
    let done = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the VLAN tag that the kernel took out of a frame (`PACKET_AUXDATA`, Linux 3.14 for its
/// protocol).
pub(crate) fn tag(message: &libc::msghdr) -> Option<[u8; TAG_LENGTH]> {
    // SAFETY: recvmsg filled the message, whose control memory still lives in the caller.
    let header = unsafe { libc::CMSG_FIRSTHDR(message).as_ref() }?;
    let whole = size_of::<libc::tpacket_auxdata>() + size_of::<libc::cmsghdr>();
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_PACKET, libc::PACKET_AUXDATA)
        || (header.cmsg_len as usize) < whole
    {
        return None;
    }
    // SAFETY: the message's data is a tpacket_auxdata of full length, as its header just said;
    // it is read without regard to alignment.
    let data = unsafe { libc::CMSG_DATA(header).cast::<libc::tpacket_auxdata>().read_unaligned() };
    if data.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let protocol = if data.tp_status & libc::TP_STATUS_VLAN_TPID_VALID == 0 {
        libc::ETH_P_8021Q as u16
    } else {
        data.tp_vlan_tpid
    };
    let ([a, b], [c, d]) = (protocol.to_be_bytes(), data.tp_vlan_tci.to_be_bytes());
    Some([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;
    use namespaces::netns::in_namespace;
    use namespaces::scratch::Scratch;
    use netlink::{Netlink, VethEnd};

    #[test]
    fn a_frame_crosses_a_pair_of_devices_with_its_tags() {
        if !testbase::root_or_skip("a network namespace") {
            return;
        }
        let scratch = Scratch::new("packet");
        let netlink = Netlink::open_in(&scratch.ns).unwrap();
        let ends = ["left", "right"].map(|name| VethEnd { name, namespace: &scratch.ns });
        netlink.create_veth(ends, 1500).unwrap();
        let devices = ["left", "right"].map(|name| netlink.link(name).unwrap().index);
        for device in devices {
            netlink.set_up(device).unwrap();
        }
        let sockets = devices.map(|device| {
            netlink.wait_running(device, Duration::from_secs(5)).unwrap();
            in_namespace(&scratch.ns, || PacketSocket::open(device).unwrap()).unwrap()
        });
        let macs = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        for rest in [
            &[0x88, 0xb5, 1, 2, 3][..],
            &[0x81, 0x00, 0xa0, 10, 0x88, 0xb5, 9, 9],
            &[0x88, 0xa8, 0, 20, 0x81, 0x00, 0, 10, 0x88, 0xb5, 9, 9],
        ] {
            let frame = [&macs[..], rest].concat();
            sockets[0].send(&frame).unwrap();
            let end = Instant::now() + Duration::from_secs(5);
            let received = std::iter::from_fn(|| {
                let left = end.saturating_duration_since(Instant::now());
                sockets[1].receive(left).unwrap()
            });
            // Frames of the kernel itself (router solicitations) come, too.
            assert!(received.take(100).any(|received| received == frame), "{rest:x?}");
        }
    }
}
