//! The cell's end of the connection to its daemon, and how the next one finds it.
//!
//! ```text
//!  daemon ── pair ── cell        the one that started it
//!     ✗              │
//!                    ▼
//!              cell-PID.sock ◀── the next one: ToCell::Adopt
//! ```
//!
//! A daemon that dies or hands over ends nothing that runs: packets, timers and hooks go on,
//! what would be told is left out and counted. A cell without services is of no use to
//! anybody, and ends with its daemon.

use super::Cell;
use super::reports::Reporting;
use crate::PROTOCOL_VERSION;
use crate::datapath::kernel::KernelWay;
use crate::protocol::{Adopted, FromCell, Given, ToCell, encode};
use anyhow::{Context, Result};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use sandbox::fd_passing::{self, Received};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use units::{CoarseInstant, EntryId, Millis, Nanos};

/// A cell without a daemon for so long ends: nobody looks after its services any more. An hour
/// is enough for an operator who has to find out what is wrong with a node file.
const ALONE_MAX: Millis = Millis(3_600_000);

/// Descriptors that a cell can have: a socket for each queue, and the two devices.
const GIVEN_MAX: usize = bpf_maps::PORTS_MAX * bpf_maps::QUEUES_MAX + 2;

/// The connection, or where the next one comes from.
pub(super) struct Connection {
    socket: Option<OwnedFd>,
    listening: OwnedFd,
    alone_since: CoarseInstant,
}

impl Connection {
    /// Makes this process known in the folder before it is confined.
    pub(super) fn new(socket: OwnedFd, directory: &Path) -> Result<Self> {
        let path = crate::socket_in(directory, std::process::id());
        let listening =
            fd_passing::listen(&path).with_context(|| format!("making {}", path.display()))?;
        // A daemon that came after ours has looked for cells before this one could be found.
        if is_closed(socket.as_fd())? {
            let _ = std::fs::remove_file(&path);
            anyhow::bail!("the daemon is gone");
        }
        Ok(Self { socket: Some(socket), listening, alone_since: CoarseInstant::ZERO })
    }

    /// The daemon's end, also of one that has just come; `None` while there is none.
    pub(super) fn socket(&mut self) -> Result<Option<BorrowedFd<'_>>> {
        if self.socket.is_none() {
            self.socket = fd_passing::accept(self.listening.as_fd()).context("taking a daemon")?;
        }
        Ok(self.socket.as_ref().map(AsFd::as_fd))
    }

    /// The daemon is gone.
    pub(super) fn lost(&mut self, now: CoarseInstant) {
        self.socket = None;
        self.alone_since = now;
    }

    /// Whether it has been without a daemon for too long.
    pub(super) fn is_given_up(&self, now: CoarseInstant) -> bool {
        now.saturating_since(self.alone_since) >= ALONE_MAX
    }

    /// What becomes readable when there is something to hear.
    pub(super) fn waited_for(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.socket.as_ref().unwrap_or(&self.listening).as_fd())
    }

    /// Sends a message that the daemon waits for; false when nobody is there to hear it.
    pub(super) fn tell(&self, message: &FromCell, fds: &[BorrowedFd<'_>]) -> Result<bool> {
        self.told(message, |socket, bytes| fd_passing::send(socket, bytes, fds).map(|()| true))
    }

    /// Sends one that may be lost: false also when the daemon has not read those before.
    /// Packets do not wait for it.
    pub(super) fn notify(&self, message: &FromCell) -> Result<bool> {
        self.told(message, |socket, bytes| fd_passing::try_send(socket, bytes, &[]))
    }

    fn told(
        &self,
        message: &FromCell,
        send: impl FnOnce(BorrowedFd<'_>, &[u8]) -> io::Result<bool>,
    ) -> Result<bool> {
        let Some(socket) = &self.socket else { return Ok(false) };
        match send(socket.as_fd(), &encode(message)?) {
            Ok(told) => Ok(told),
            // That it is gone is seen when it is heard next.
            Err(error) if is_gone(&error) => Ok(false),
            Err(error) => Err(error).context("telling the daemon"),
        }
    }
}

/// Whether the other end is closed and nothing of it is left to hear.
fn is_closed(socket: BorrowedFd<'_>) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::default()))?;
    Ok(fds[0].revents().intersects(PollFlags::HUP))
}

fn is_gone(error: &io::Error) -> bool {
    let gone = [Errno::PIPE, Errno::CONNRESET, Errno::NOTCONN];
    gone.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

impl Cell {
    /// Another daemon takes over: all services but those that it knows go, and it gets what it
    /// cannot have otherwise.
    pub(super) fn adopted(&mut self, keep: &[EntryId]) -> Result<()> {
        let keep: BTreeSet<EntryId> = keep.iter().copied().collect();
        // Captures end with the daemon that was asked for them, and so do reports.
        self.path.tap = None;
        self.reporting = Reporting::default();
        self.sessions.forget_told();
        // The next daemon does not know whose they are.
        self.path.associations.end_all(&mut self.path.pool);
        for slot in &mut self.services {
            if let Some(service) = slot
                && !keep.contains(&service.facts.entry)
            {
                self.watch.forget(service.facts.entry);
                *slot = None;
            }
        }
        let gone: Vec<EntryId> =
            self.streams.all().map(|(entry, _)| entry).filter(|it| !keep.contains(it)).collect();
        for entry in gone {
            self.streams.stop(entry);
        }
        self.streams.forget_asked();
        let services = self.services.iter().flatten();
        let streams = self.streams.all().map(|(entry, _)| (entry, None));
        let mut given: Vec<(Given, OwnedFd)> = Vec::new();
        for (port, queue, fd) in self.path.ports.queues() {
            given.push((Given::Socket(port, queue), fd.try_clone_to_owned()?));
        }
        let kernel = self.path.kernel.as_ref().and_then(|way| match way {
            KernelWay::Tun(device) => Some((Given::Kernel, device.as_fd())),
            // A node without TUN has packet ports, and is not adopted.
            KernelWay::Frames(_) => None,
        });
        let up = self.up.as_ref().map(|up| (Given::Up, up.as_fd()));
        for (what, fd) in kernel.into_iter().chain(up) {
            given.push((what, fd.try_clone_to_owned()?));
        }
        self.tell(&FromCell::Adopted(Adopted {
            protocol: PROTOCOL_VERSION,
            services: services
                .map(|service| (service.facts.entry, service.home()))
                .chain(streams)
                .collect(),
            given: given.len() as u32,
        }))?;
        for (what, fd) in given {
            self.daemon.tell(&FromCell::Given(what), &[fd.as_fd()])?;
        }
        Ok(())
    }
}

/// How a daemon takes a cell over: connects, says what it knows, and hears what there is.
/// Waits `patience_ms` at most for each message.
///
/// # Errors
/// When the cell does not answer, or is of another version.
pub fn adopt(
    socket: &OwnedFd,
    keep: Vec<EntryId>,
    patience_ms: u64,
) -> Result<(Adopted, Vec<(Given, OwnedFd)>)> {
    fd_passing::send(socket.as_fd(), &encode(&ToCell::Adopt(keep))?, &[])
        .context("telling the cell")?;
    let mut buffer = vec![0; fd_passing::MESSAGE_LENGTH_MAX];
    let (FromCell::Adopted(adopted), _) = hear(socket, &mut buffer, patience_ms)? else {
        anyhow::bail!("the cell answers something else");
    };
    let (found, expected) = (adopted.protocol, PROTOCOL_VERSION);
    anyhow::ensure!(found == expected, "the cell speaks version {found}, not {expected}");
    let count = adopted.given as usize;
    anyhow::ensure!(
        count <= GIVEN_MAX,
        "the cell has {count} descriptors, and {GIVEN_MAX} at most"
    );
    let mut given = Vec::with_capacity(count);
    for _ in 0..count {
        let (FromCell::Given(what), mut fds) = hear(socket, &mut buffer, patience_ms)? else {
            anyhow::bail!("the cell answers something else");
        };
        given.push((what, fds.pop().context("a descriptor is missing")?));
    }
    Ok((adopted, given))
}

/// The next message of an adoption.
fn hear(socket: &OwnedFd, buffer: &mut [u8], patience_ms: u64) -> Result<(FromCell, Vec<OwnedFd>)> {
    let mut has_waited = false;
    loop {
        match fd_passing::receive(socket.as_fd(), buffer)? {
            Received::Message(length, fds) => match crate::protocol::decode(&buffer[..length])? {
                message @ (FromCell::Adopted(_) | FromCell::Given(_)) => return Ok((message, fds)),
                // Meant for the daemon before.
                _ => has_waited = false,
            },
            Received::Closed => anyhow::bail!("the cell ended"),
            Received::Nothing if has_waited => {
                anyhow::bail!("the cell does not answer within {patience_ms} ms")
            }
            Received::Nothing => {
                fd_passing::wait_readable(
                    &[socket.as_fd()],
                    Some(Nanos::from_millis(patience_ms)),
                )?;
                has_waited = true;
            }
        }
    }
}
