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

use crate::PROTOCOL_VERSION;
use crate::protocol::{Adopted, FromCell, Given, ToCell, encode};
use anyhow::{Context, Result};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use sandbox::fd_passing::{self, Received};
use std::io;
use std::path::Path;
use units::{CoarseInstant, EntryId, Millis, Nanos};

/// A cell without a daemon for so long ends: nobody looks after its services any more. An hour
/// is enough for an operator who has to find out what is wrong with a node file.
const ALONE_MAX: Millis = Millis(3_600_000);

/// Descriptors that a cell can have: a socket for each queue, and the two devices.
const GIVEN_MAX: usize = bpf_maps::PORTS_MAX * bpf_maps::QUEUES_MAX + 2;

/// Event and trap messages of one round that the daemon gets; a storm of them
/// must not fill its queue. What is left out is counted.
const NOTICES_PER_ROUND_MAX: usize = 16;

/// Connection to the daemon, or the socket at which the next one is awaited.
pub(crate) struct Link {
    socket: Option<OwnedFd>,
    listening: OwnedFd,
    alone_since: CoarseInstant,
    /// Number of notices of this round.
    notices: usize,
    /// Number of messages that no daemon got.
    dropped: u64,
}

impl Link {
    /// Makes this process known in the folder before it is confined.
    ///
    /// # Errors
    /// When the folder takes no socket, or the daemon is gone already.
    pub(crate) fn new(socket: OwnedFd, directory: &Path) -> Result<Self> {
        let path = crate::socket_in(directory, std::process::id());
        let listening =
            fd_passing::listen(&path).with_context(|| format!("making {}", path.display()))?;
        // A daemon that came after ours has looked for cells before this one could be found.
        if is_closed(socket.as_fd())? {
            let _ = std::fs::remove_file(&path);
            anyhow::bail!("the daemon is gone");
        }
        Ok(Self {
            socket: Some(socket),
            listening,
            alone_since: CoarseInstant::ZERO,
            notices: 0,
            dropped: 0,
        })
    }

    /// Returns true when there has been no daemon for too long.
    pub(crate) fn is_given_up(&self, now: CoarseInstant) -> bool {
        now.saturating_since(self.alone_since) >= ALONE_MAX
    }

    /// Returns the descriptor that becomes readable when there is something to receive.
    pub(crate) fn waited_for(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.socket.as_ref().unwrap_or(&self.listening).as_fd())
    }

    /// Returns how many messages no daemon got.
    pub(crate) const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Begins a round of the loop: as many notices as in each may be sent again.
    pub(crate) const fn handle_round(&mut self) {
        self.notices = 0;
    }

    /// Receives one message; a connection that is closed makes way for the next daemon's. `None`
    /// while there is no daemon.
    ///
    /// # Errors
    /// When the socket fails.
    pub(crate) fn receive(
        &mut self,
        buffer: &mut [u8],
        now: CoarseInstant,
    ) -> Result<Option<Received>> {
        loop {
            if self.socket.is_none() {
                self.socket =
                    fd_passing::accept(self.listening.as_fd()).context("taking a daemon")?;
            }
            let Some(socket) = &self.socket else { return Ok(None) };
            match fd_passing::receive(socket.as_fd(), buffer).context("hearing the daemon")? {
                Received::Closed => {
                    self.socket = None;
                    self.alone_since = now;
                }
                received => return Ok(Some(received)),
            }
        }
    }

    /// Sends a message that the daemon waits for, and counts it when there is no daemon.
    ///
    /// # Errors
    /// When the socket fails otherwise than by being closed.
    pub(crate) fn send(&mut self, message: &FromCell) -> Result<()> {
        let is_sent = self.send_with(message, &[])?;
        self.dropped += u64::from(!is_sent);
        Ok(())
    }

    /// Sends a message with descriptors; returns false when there is no daemon.
    ///
    /// # Errors
    /// When the socket fails otherwise than by being closed.
    pub(crate) fn send_with(&self, message: &FromCell, fds: &[BorrowedFd<'_>]) -> Result<bool> {
        self.put(message, |socket, bytes| fd_passing::send(socket, bytes, fds).map(|()| true))
    }

    /// Sends a message that may be lost; returns false also when the daemon has not read those
    /// before. Packets do not wait for it.
    ///
    /// # Errors
    /// When the socket fails otherwise than by being closed.
    pub(crate) fn try_send(&self, message: &FromCell) -> Result<bool> {
        self.put(message, |socket, bytes| fd_passing::try_send(socket, bytes, &[]))
    }

    /// Sends a message that may be lost, one of a limited number in a round; counts it when it is.
    pub(crate) fn notice(&mut self, message: &FromCell) {
        self.notices += 1;
        let may_go = self.notices <= NOTICES_PER_ROUND_MAX;
        if !may_go || !self.try_send(message).unwrap_or_default() {
            self.dropped += 1;
        }
    }

    fn put(
        &self,
        message: &FromCell,
        send: impl FnOnce(BorrowedFd<'_>, &[u8]) -> io::Result<bool>,
    ) -> Result<bool> {
        let Some(socket) = &self.socket else { return Ok(false) };
        match send(socket.as_fd(), &encode(message)?) {
            Ok(is_sent) => Ok(is_sent),
            // That it is gone is seen when the next message is received.
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

#[cfg(test)]
pub(crate) mod tests;
