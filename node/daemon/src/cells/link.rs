//! The daemon's end of its cell: a process and a socket. The process is a child, or one
//! that a daemon before left.

use super::watch::CellWatch;
use crate::LogFormat;
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cell::protocol::{FromCell, ToCell, decode, encode};
use rustix::net::Shutdown;
use sandbox::fd_passing::{self, Received};
use sandbox::process::ForeignProcess;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::task::{Context, Poll};
use tokio::io::Interest;
use tokio::time::Duration;
use units::Nanos;
use zeroize::Zeroizing;

/// Messages that are queued while the send buffer is full: a cell that sends so many, and reads
/// none, is broken.
const HEARD_MAX: usize = 65_536;

/// Time after which a cell that does not read its messages is ended: the daemon does nothing else
/// meanwhile.
const READ_WITHIN: Nanos = Nanos::from_millis(10_000);

/// Reason of a connection that was closed because the cell does not read.
const NOT_READ: &str = "it has not read its messages for 10 s";

/// Environment variable with the log level of the node's processes.
const LOG_VARIABLE: &str = "TAM_LOG";

/// Time within which a killed process ends on a busy machine.
const END_WITHIN: Duration = Duration::from_secs(10);

/// Process at the other end of a link.
pub(super) trait Process: fmt::Debug + Send {
    /// Returns its process ID.
    fn pid(&self) -> u32;

    /// Kills it, if it still runs. Returns how it ended, in words.
    ///
    /// # Errors
    /// The process cannot be killed, or does not end.
    fn end(self: Box<Self>) -> io::Result<String>;
}

impl Process for Child {
    fn pid(&self) -> u32 {
        self.id()
    }

    fn end(mut self: Box<Self>) -> io::Result<String> {
        let _ = self.kill();
        self.wait().map(|status| status.to_string())
    }
}

/// Process that a previous daemon started.
impl Process for ForeignProcess {
    fn pid(&self) -> u32 {
        Self::pid(self)
    }

    fn end(self: Box<Self>) -> io::Result<String> {
        end(&self).map(|()| "it was a daemon's before".to_owned())
    }
}

/// A running cell.
#[derive(Debug)]
pub(crate) struct CellLink {
    process: Box<dyn Process>,
    /// Path of the socket by which the next daemon finds the cell.
    known_at: PathBuf,
    /// Connection to the cell; typed as a stream, but it preserves message boundaries.
    socket: tokio::net::UnixStream,
    /// Buffer for one message.
    buffer: RefCell<Vec<u8>>,
    /// Messages received while the socket's send buffer was full.
    received: RefCell<VecDeque<FromCell>>,
    /// Watchdog of the cell's answers.
    pub(crate) watch: CellWatch,
    /// True once the socket was shut down because the cell does not read.
    is_given_up: Cell<bool>,
}

/// Result of a non-blocking receive.
enum ReceiveResult {
    Message(Box<FromCell>),
    Nothing,
    Gone,
}

impl CellLink {
    /// Starts the worker process; the next daemon finds it in `directory`.
    pub(crate) fn spawn(
        directory: &Path,
        queues: u32,
        core: usize,
        log_format: LogFormat,
    ) -> Result<Self> {
        let (ours, theirs) = fd_passing::pair().context("making the cell's socket")?;
        let mut command = Command::new(crate::deploy::PROGRAM);
        let number = sandbox::child::inherit(&mut command, theirs);
        // The only variable of the daemon's environment that the cell gets is the log level.
        command.env_clear().envs(std::env::var_os(LOG_VARIABLE).map(|value| (LOG_VARIABLE, value)));
        crate::deploy::away_from_terminal(&mut command);
        let child = command
            .arg("cell")
            .args(["--fd", &number.to_string()])
            .arg("--directory")
            .arg(directory)
            .args(["--queues", &queues.to_string()])
            .args(["--core", &core.to_string()])
            .args(["--log-format", log_format.name()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("starting the cell")?;
        let known_at = cell::socket_in(directory, child.id());
        Self::join(Box::new(child), known_at, ours)
    }

    /// Takes over the cell process of an earlier daemon, with `socket` as the daemon's end of the
    /// connection.
    pub(crate) fn take_over(
        left: ForeignProcess,
        directory: &Path,
        socket: OwnedFd,
    ) -> Result<Self> {
        let known_at = cell::socket_in(directory, left.pid());
        Self::join(Box::new(left), known_at, socket)
    }

    /// Joins a process, the path where the next daemon finds it, and this end of the connection.
    pub(super) fn join(
        process: Box<dyn Process>,
        known_at: PathBuf,
        socket: OwnedFd,
    ) -> Result<Self> {
        // Both ends wait only for the other's answers, so none needs a reader thread.
        let socket = UnixStream::from(socket);
        socket.set_nonblocking(true).context("preparing the cell's socket")?;
        let socket = tokio::net::UnixStream::from_std(socket)
            .context("registering the cell's socket for polling")?;
        let buffer = RefCell::new(vec![0; fd_passing::MESSAGE_LENGTH_MAX]);
        Ok(Self {
            process,
            known_at,
            socket,
            buffer,
            received: RefCell::default(),
            watch: CellWatch::default(),
            is_given_up: Cell::new(false),
        })
    }

    /// Sends a message. While the send buffer is full, messages of the cell are received and
    /// queued, since it may be waiting for buffer space itself. A cell that sends and reads nothing
    /// for [`READ_WITHIN`] is given up, which [`CellLink::poll_receive`] reports.
    pub(crate) fn send(&self, message: &ToCell, fds: &[BorrowedFd<'_>]) -> Result<()> {
        // Some are secret.
        let bytes = Zeroizing::new(encode(message)?);
        let socket = self.socket.as_fd();
        while !fd_passing::try_send(socket, &bytes, fds).context("sending a message to the cell")? {
            let waited = fd_passing::wait_readable_or_writable(socket, READ_WITHIN);
            if !waited.context("waiting for the cell to read its messages")? {
                self.is_given_up.set(true);
                // Readers of the link get an end of file.
                rustix::net::shutdown(socket, Shutdown::Both)
                    .context("disconnecting from the cell")?;
                bail!(NOT_READ);
            }
            if let ReceiveResult::Message(message) =
                self.receive().context("receiving from the cell")?
            {
                let mut received = self.received.borrow_mut();
                ensure!(received.len() < HEARD_MAX, "the cell does not read what it is told");
                received.push_back(*message);
            }
        }
        Ok(())
    }

    /// Polls for the next message; `None` when the cell is gone.
    pub(crate) fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<FromCell>>> {
        loop {
            if let Some(message) = self.received.borrow_mut().pop_front() {
                return Poll::Ready(Ok(Some(message)));
            }
            match self.socket.poll_read_ready(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(ready) => ready.context("waiting for the cell")?,
            }
            let received = self.socket.try_io(Interest::READABLE, || match self.receive()? {
                // So that the next wait is one.
                ReceiveResult::Nothing => Err(io::ErrorKind::WouldBlock.into()),
                received => Ok(received),
            });
            return Poll::Ready(match received {
                Ok(ReceiveResult::Message(message)) => Ok(Some(*message)),
                Ok(ReceiveResult::Gone) if self.is_given_up.get() => Err(anyhow!(NOT_READ)),
                Ok(ReceiveResult::Gone) => Ok(None),
                Ok(ReceiveResult::Nothing) => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => Err(error).context("receiving from the cell"),
            });
        }
    }

    /// The next message, if there is one; `None` also when the cell is gone.
    pub(crate) fn receive_next(&mut self) -> Result<Option<FromCell>> {
        if let Some(message) = self.received.borrow_mut().pop_front() {
            return Ok(Some(message));
        }
        Ok(match self.receive().context("receiving from the cell")? {
            ReceiveResult::Message(message) => Some(*message),
            ReceiveResult::Nothing | ReceiveResult::Gone => None,
        })
    }

    /// Receives a message, without waiting for the runtime's readiness event.
    fn receive(&self) -> io::Result<ReceiveResult> {
        let mut buffer = self.buffer.borrow_mut();
        Ok(match fd_passing::receive(self.socket.as_fd(), &mut buffer)? {
            Received::Message(length, _) => {
                let message = decode(&buffer[..length]).map_err(io::Error::other)?;
                ReceiveResult::Message(Box::new(message))
            }
            Received::Nothing => ReceiveResult::Nothing,
            Received::Closed => ReceiveResult::Gone,
        })
    }

    /// Kills the process if it still runs; returns the text of how it ended.
    pub(crate) fn end(self) -> String {
        let ended = self.process.end();
        // The cell may have ended before it created the socket.
        let _ = std::fs::remove_file(&self.known_at);
        match ended {
            Ok(status) => format!("the cell ended: {status}"),
            Err(error) => format!("the cell ended: {error}"),
        }
    }

    /// The cell's process number.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }
}

/// Ends a cell that is not our child.
pub(crate) fn end(cell: &ForeignProcess) -> io::Result<()> {
    cell.kill()?;
    match cell.wait(END_WITHIN)? {
        true => Ok(()),
        false => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Returns the cell whose socket in a node's run directory has this process id, with a connection
/// to it; `None`, and removes the socket, if the process is gone.
pub(crate) fn find(directory: &Path, pid: u32) -> Option<(ForeignProcess, OwnedFd)> {
    let path = cell::socket_in(directory, pid);
    // The process is opened first: while the connection finds it, its process id cannot be reused.
    let stranger = ForeignProcess::open(pid);
    let found = stranger.and_then(|stranger| {
        let (socket, listener) = fd_passing::connect(&path)?;
        if listener != pid {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok((stranger, socket))
    });
    match found {
        Ok(found) => Some(found),
        Err(error) => {
            tracing::debug!(pid, %error, "a cell is gone");
            let _ = std::fs::remove_file(&path);
            None
        }
    }
}

#[cfg(test)]
mod tests;
