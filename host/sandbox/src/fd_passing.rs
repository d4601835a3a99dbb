//! Messages with descriptors over a pair of connected sockets of one machine.
//!
//! A message is one packet of a `SOCK_SEQPACKET` socket: whole or not at all. What the messages
//! mean is not known here.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::{Errno, FdFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect as connect_to, listen as listen_on, recvmsg, sendmsg, socket_with, socketpair, sockopt,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::path::Path;
use units::Nanos;

/// Largest message in bytes: a report about one service fits, whatever its counters.
pub const MESSAGE_LENGTH_MAX: usize = 128 << 10;
/// Limit of descriptors in one message.
pub const DESCRIPTORS_MAX: usize = 32;

/// Returns both ends of a new connection, which are closed when the process executes another
/// program.
///
/// # Errors
/// The kernel has no descriptors or memory left.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    for end in [&ours, &theirs] {
        sockopt::set_socket_send_buffer_size(end, SEND_BUFFER)?;
    }
    Ok((ours, theirs))
}

/// Limit of bytes that were sent and not read.
const SEND_BUFFER: usize = 4 * MESSAGE_LENGTH_MAX;
/// Limit of connections that wait to be accepted: one daemon after the other, with some to spare.
const BACKLOG: i32 = 4;

/// Returns a socket that listens at a path, for peers whose end was closed with the process at the
/// other one. Only this user may connect. The path appears when connections are possible.
///
/// # Errors
/// The path cannot be created, or is too long.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let unready = path.with_extension("new");
    bind(&socket, &SocketAddrUnix::new(&unready)?)?;
    let owner_only = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&unready, owner_only)?;
    listen_on(&socket, BACKLOG)?;
    std::fs::rename(&unready, path)?;
    Ok(socket)
}

/// Accepts the next connection of a socket of [`listen`], if one waits.
///
/// # Errors
/// The kernel refuses.
pub fn accept(socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    match accept_with(socket, SocketFlags::CLOEXEC) {
        Ok(connection) => {
            sockopt::set_socket_send_buffer_size(&connection, SEND_BUFFER)?;
            Ok(Some(connection))
        }
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Connects to a socket of [`listen`]; returns the connection and the id of the process that
/// listens. It need not have accepted yet.
///
/// # Errors
/// `ConnectionRefused` when that process is gone.
pub fn connect(path: &Path) -> io::Result<(OwnedFd, u32)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect_to(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER)?;
    let peer = sockopt::socket_peercred(&socket)?;
    Ok((socket, peer.pid.as_raw_nonzero().get().unsigned_abs()))
}

/// Sends one message and copies of the descriptors; waits while the other end does not read.
///
/// # Errors
/// `InvalidInput` beyond the limits; else as reported by the kernel.
pub fn send(socket: BorrowedFd<'_>, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_as(socket, message, fds, SendFlags::empty())
}

/// Sends like [`send`] without waiting; returns false when there is no room before the other end
/// has read.
///
/// # Errors
/// Same as [`send`].
pub fn try_send(
    socket: BorrowedFd<'_>,
    message: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<bool> {
    match send_as(socket, message, fds, SendFlags::DONTWAIT) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

fn send_as(
    socket: BorrowedFd<'_>,
    message: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    if message.is_empty() || message.len() > MESSAGE_LENGTH_MAX || fds.len() > DESCRIPTORS_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(message)], &mut ancillary, SendFlags::NOSIGNAL | flags)?;
    Ok(())
}

/// Result of a reception.
#[derive(Debug)]
pub enum Received {
    /// Message, with its length in the buffer, and its descriptors.
    Message(usize, Vec<OwnedFd>),
    /// No message is there now.
    Nothing,
    /// The other end is closed.
    Closed,
}

/// Receives one message into `buffer`, without waiting.
///
/// # Errors
/// `InvalidData` when the buffer or the descriptors' space was too small.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let outcome = match recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags) {
        Ok(outcome) => outcome,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
        Err(Errno::CONNRESET) => return Ok(Received::Closed),
        Err(error) => return Err(error.into()),
    };
    let fds = ancillary
        .drain()
        .flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<_>>(),
            _ => Vec::new(),
        })
        .collect();
    let cut = rustix::net::ReturnFlags::TRUNC | rustix::net::ReturnFlags::CTRUNC;
    if outcome.flags.intersects(cut) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // A message is never empty: nothing read is the end.
    Ok(if outcome.bytes == 0 { Received::Closed } else { Received::Message(outcome.bytes, fds) })
}

/// Takes ownership of a descriptor that this process inherited, by its number.
///
/// Call it once for a number, before the process opens anything that could get it.
///
/// # Errors
/// `InvalidInput` for a standard stream or a negative number; `EBADF` when it is not open.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number <= STANDARD_ERROR {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the number is not negative; the borrow ends with the call, which
    // asks the kernel whether it is open and closes nothing.
    let flags = rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) })?;
    if flags.contains(FdFlags::CLOEXEC) {
        // The descriptor did not come through exec: this process opened it, and owns it elsewhere.
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: it is open, and came through exec, so nothing else in this process
    // owns it; the flag set below makes a second call refuse.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
    Ok(fd)
}

/// Last of the standard streams 0 to 2, which are not taken over.
const STANDARD_ERROR: RawFd = 2;

/// Returns a sealed memory file with these bytes, which can no longer change.
///
/// # Errors
/// The kernel has no memory or descriptors left.
pub fn sealed_memory(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    use std::io::Write;
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(bytes)?;
    let all = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&file, all)?;
    Ok(file.into())
}

/// Returns the contents of a memory file of [`sealed_memory`].
///
/// # Errors
/// `InvalidData` when it may still change, or is longer than `length_max`.
pub fn read_sealed_memory(fd: BorrowedFd<'_>, length_max: u64) -> io::Result<Vec<u8>> {
    use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
    let length = u64::try_from(fstat(fd)?.st_size).unwrap_or(u64::MAX);
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW;
    if length > length_max || !fcntl_get_seals(fd)?.contains(seals) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length as usize];
    let mut at = 0;
    while at < bytes.len() {
        match rustix::io::pread(fd, &mut bytes[at..], at as u64)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => at += read,
        }
    }
    Ok(bytes)
}

/// Waits until one of the descriptors is readable or the time is over; a signal ends the wait like
/// the end of the time.
///
/// # Errors
/// The kernel refuses.
pub fn wait_readable(fds: &[BorrowedFd<'_>], time: Option<Nanos>) -> io::Result<()> {
    wait_for(fds, PollFlags::IN, time).map(drop)
}

/// Waits until a socket has a message, or room for one again. Returns false when it has neither
/// within the time; true also after a signal.
///
/// # Errors
/// The kernel refuses.
pub fn wait_readable_or_writable(socket: BorrowedFd<'_>, time: Nanos) -> io::Result<bool> {
    wait_for(&[socket], PollFlags::IN | PollFlags::OUT, Some(time))
}

/// Waits for events on descriptors; returns false when the time is over.
fn wait_for(fds: &[BorrowedFd<'_>], events: PollFlags, time: Option<Nanos>) -> io::Result<bool> {
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), events)).collect();
    let timeout = time.map(|time| Timespec {
        tv_sec: (time.0 / 1_000_000_000) as i64,
        tv_nsec: (time.0 % 1_000_000_000) as i64,
    });
    match poll(&mut polled, timeout.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_message_brings_its_descriptors() {
        let (a, b) = pair().unwrap();
        let sealed = sealed_memory("test", b"code").unwrap();
        send(a.as_fd(), b"hello", &[sealed.as_fd()]).unwrap();
        let mut buffer = [0; 64];
        let Received::Message(5, fds) = receive(b.as_fd(), &mut buffer).unwrap() else {
            panic!("no message")
        };
        assert_eq!(&buffer[..5], b"hello");
        let mut code = [0; 8];
        assert_eq!(rustix::io::pread(&fds[0], &mut code, 0), Ok(4));
        assert_eq!(&code[..4], b"code");
        assert!(rustix::io::write(&fds[0], b"x").is_err(), "sealed memory was written");
        assert_eq!(read_sealed_memory(fds[0].as_fd(), 4).unwrap(), b"code");
        assert!(read_sealed_memory(fds[0].as_fd(), 3).is_err(), "it is longer");
        assert!(matches!(receive(b.as_fd(), &mut buffer).unwrap(), Received::Nothing));
        drop(a);
        // A process that another test is starting has a copy of our end until its exec.
        let end = Instant::now() + Duration::from_secs(5);
        while !matches!(receive(b.as_fd(), &mut buffer).unwrap(), Received::Closed) {
            assert!(Instant::now() < end, "the other end is still open");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_listener_is_found_by_its_path() {
        let folder = tempfile();
        let path = folder.join("here.sock");
        let listening = listen(&path).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        assert!(accept(listening.as_fd()).unwrap().is_none());
        let (ours, pid) = connect(&path).unwrap();
        assert_eq!(pid, std::process::id());
        // The message is sent before the connection is accepted.
        send(ours.as_fd(), b"hello", &[]).unwrap();
        let theirs = accept(listening.as_fd()).unwrap().expect("somebody waits");
        let mut buffer = [0; 64];
        let received = receive(theirs.as_fd(), &mut buffer).unwrap();
        assert!(matches!(received, Received::Message(5, _)), "{received:?}");
        drop((listening, theirs));
        let refused = connect(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        std::fs::remove_dir_all(folder).unwrap();
    }

    fn tempfile() -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("tam-fd-passing-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn only_inherited_descriptors_are_taken_and_once() {
        use rustix::fd::{AsRawFd, IntoRawFd};
        let (a, b) = pair().unwrap();
        let own = a.as_raw_fd();
        assert_eq!(inherited(own).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(inherited(2).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        rustix::io::fcntl_setfd(&b, FdFlags::empty()).unwrap();
        let taken = inherited(b.into_raw_fd()).unwrap();
        let again = inherited(taken.as_raw_fd());
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(inherited(1_000_000).is_err(), "a number that is not open was taken");
    }

    #[test]
    fn try_send_fails_without_room_and_succeeds_after_the_other_end_has_read() {
        let (a, b) = pair().unwrap();
        let message = vec![7; MESSAGE_LENGTH_MAX];
        let mut sent = 0;
        while try_send(a.as_fd(), &message, &[]).unwrap() {
            sent += 1;
            assert!(sent < 100, "an end has room for so much only");
        }
        assert!(sent > 0);
        let mut buffer = vec![0; MESSAGE_LENGTH_MAX];
        // Messages of the other end are received meanwhile.
        assert!(!wait_readable_or_writable(a.as_fd(), Nanos::from_millis(1)).unwrap());
        send(b.as_fd(), b"wait", &[]).unwrap();
        assert!(wait_readable_or_writable(a.as_fd(), Nanos::from_millis(60_000)).unwrap());
        assert!(matches!(receive(a.as_fd(), &mut buffer), Ok(Received::Message(4, _))));
        for _ in 0..sent {
            let received = receive(b.as_fd(), &mut buffer);
            assert!(matches!(received, Ok(Received::Message(MESSAGE_LENGTH_MAX, _))));
        }
        assert!(wait_readable_or_writable(a.as_fd(), Nanos::from_millis(60_000)).unwrap());
        assert!(try_send(a.as_fd(), &message, &[]).unwrap());
        drop(b);
        // A process that another test starts has the end, too, until its program runs.
        let is_gone = || try_send(a.as_fd(), &message, &[]).is_err().then_some(());
        let within = std::time::Duration::from_secs(60);
        testbase::wait_for(within, is_gone).expect("nobody is there");
    }

    #[test]
    fn a_message_that_is_too_long_is_not_sent() {
        let (a, _b) = pair().unwrap();
        let long = vec![0; MESSAGE_LENGTH_MAX + 1];
        assert_eq!(send(a.as_fd(), &long, &[]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
