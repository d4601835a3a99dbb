//! Connection of the cell to its daemon, and the socket by which the next daemon finds it.
//!
//! ```text
//!  daemon ── pair ── cell        the daemon that started it
//!     ✗              │
//!                    ▼
//!              cell-PID.sock ◀── the next daemon: ToCell::Adopt
//! ```
//!
//! A daemon that dies or hands over does not stop what runs: packets, timers and hooks go on;
//! messages to it are dropped and counted. A cell without services ends with its daemon.

use crate::PROTOCOL_VERSION;
use crate::protocol::{Adopted, FromCell, ReturnedFd, ToCell, encode};
use anyhow::{Context, Result};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use sandbox::fd_passing::{self, Received};
use std::io;
use std::path::Path;
use units::{CoarseInstant, EntryId, Millis, Nanos};

/// Time after which a cell without a daemon ends: nobody looks after its services any more. An hour
/// is enough for an operator who has to find a fault in a node file.
const ALONE_MAX: Millis = Millis(3_600_000);

/// Most descriptors that a cell can return: a socket for each queue, and the two devices.
const GIVEN_MAX: usize = bpf_maps::PORTS_MAX * bpf_maps::QUEUES_MAX + 2;

/// Event and trap messages sent in one round: a storm of them must not fill the daemon's queue.
/// Others are dropped and counted.
const NOTICES_PER_ROUND_MAX: usize = 16;

/// Connection to the daemon, or the socket that waits for the next one.
pub(crate) struct Link {
    socket: Option<OwnedFd>,
    listening: OwnedFd,
    alone_since: CoarseInstant,
    /// Number of notices of this round.
    notices: usize,
    /// Number of messages that no daemon received.
    dropped: u64,
}

impl Link {
    /// Creates the socket of this process in the node's run directory, before the process is
    /// confined.
    ///
    /// # Errors
    /// The directory takes no socket, or the daemon is gone already.
    pub(crate) fn new(socket: OwnedFd, directory: &Path) -> Result<Self> {
        let path = crate::socket_in(directory, std::process::id());
        let listening =
            fd_passing::listen(&path).with_context(|| format!("making {}", path.display()))?;
        // A daemon that came after this cell's has looked for cells before this one could be found.
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

    /// Returns true when there has been no daemon for [`ALONE_MAX`].
    pub(crate) fn is_given_up(&self, now: CoarseInstant) -> bool {
        now.saturating_since(self.alone_since) >= ALONE_MAX
    }

    /// Returns the descriptor that is readable when there is a message or a connection.
    pub(crate) fn readable_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.socket.as_ref().unwrap_or(&self.listening).as_fd())
    }

    /// Returns the number of messages that no daemon received.
    pub(crate) const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Begins a round of the loop, which resets the limit on notices.
    pub(crate) const fn handle_round(&mut self) {
        self.notices = 0;
    }

    /// Receives one message. A closed connection is replaced by that of the next daemon. `None`
    /// while there is no daemon.
    ///
    /// # Errors
    /// The socket fails.
    pub(crate) fn receive(
        &mut self,
        buffer: &mut [u8],
        now: CoarseInstant,
    ) -> Result<Option<Received>> {
        loop {
            if self.socket.is_none() {
                self.socket = fd_passing::accept(self.listening.as_fd())
                    .context("accepting a daemon's connection")?;
            }
            let Some(socket) = &self.socket else { return Ok(None) };
            match fd_passing::receive(socket.as_fd(), buffer)
                .context("receiving a message of the daemon")?
            {
                Received::Closed => {
                    self.socket = None;
                    self.alone_since = now;
                }
                received => return Ok(Some(received)),
            }
        }
    }

    /// Sends a message that the daemon waits for; counts it as dropped if there is no daemon.
    ///
    /// # Errors
    /// The socket fails otherwise than by being closed.
    pub(crate) fn send(&mut self, message: &FromCell) -> Result<()> {
        let is_sent = self.send_with(message, &[])?;
        self.dropped += u64::from(!is_sent);
        Ok(())
    }

    /// Sends a message with descriptors. Returns false if there is no daemon.
    ///
    /// # Errors
    /// The socket fails otherwise than by being closed.
    pub(crate) fn send_with(&self, message: &FromCell, fds: &[BorrowedFd<'_>]) -> Result<bool> {
        self.put(message, |socket, bytes| fd_passing::send(socket, bytes, fds).map(|()| true))
    }

    /// Sends a message that may be lost. Returns false also if the socket's buffer is full. Never
    /// blocks packets.
    ///
    /// # Errors
    /// The socket fails otherwise than by being closed.
    pub(crate) fn try_send(&self, message: &FromCell) -> Result<bool> {
        self.put(message, |socket, bytes| fd_passing::try_send(socket, bytes, &[]))
    }

    /// Sends a message that may be lost, within the limit of the round; counts it as dropped if it
    /// is.
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
        let bytes = encode(message)?;
        if bytes.len() > fd_passing::MESSAGE_LENGTH_MAX {
            // Texts in messages are bounded where they are made: this is a fault of the cell, and no
            // reason to end all of its services.
            tracing::error!(
                length = bytes.len(),
                "a message to the daemon is too long: it is lost"
            );
            return Ok(false);
        }
        match send(socket.as_fd(), &bytes) {
            Ok(is_sent) => Ok(is_sent),
            // The closed connection is noticed when the next message is received.
            Err(error) if is_gone(&error) => Ok(false),
            Err(error) => Err(error).context("sending a message to the daemon"),
        }
    }
}

/// Returns true if the other end is closed and no message of it is left.
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

/// Takes over a cell, as a daemon: connects, sends the services it knows, and receives the cell's
/// inventory and descriptors. Waits `patience_ms` at most for each message.
///
/// # Errors
/// The cell does not answer, or is of another version.
pub fn adopt(
    socket: &OwnedFd,
    keep: Vec<EntryId>,
    patience_ms: u64,
) -> Result<(Adopted, Vec<(ReturnedFd, OwnedFd)>)> {
    fd_passing::send(socket.as_fd(), &encode(&ToCell::Adopt(keep))?, &[])
        .context("sending a message to the cell")?;
    let mut buffer = vec![0; fd_passing::MESSAGE_LENGTH_MAX];
    let (FromCell::Adopted(adopted), _) = receive(socket, &mut buffer, patience_ms)? else {
        anyhow::bail!("the cell sent an unexpected message");
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
        let (FromCell::Returned(what), mut fds) = receive(socket, &mut buffer, patience_ms)? else {
            anyhow::bail!("the cell sent an unexpected message");
        };
        given.push((what, fds.pop().context("a descriptor is missing")?));
    }
    Ok((adopted, given))
}

/// Receives the next message of an adoption.
fn receive(
    socket: &OwnedFd,
    buffer: &mut [u8],
    patience_ms: u64,
) -> Result<(FromCell, Vec<OwnedFd>)> {
    let mut has_waited = false;
    loop {
        match fd_passing::receive(socket.as_fd(), buffer)? {
            Received::Message(length, fds) => match crate::protocol::decode(&buffer[..length])? {
                message @ (FromCell::Adopted(_) | FromCell::Returned(_)) => {
                    return Ok((message, fds));
                }
                // Messages meant for the daemon before.
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
