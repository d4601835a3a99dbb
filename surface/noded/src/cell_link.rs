//! The daemon's end of its cell: a process and a socket. The process is a child, or one
//! that a daemon before left.

use anyhow::{Context, Result};
use cell::protocol::{FromCell, ToCell, decode, encode};
use os::fd_passing::{self, Received};
use os::process::Stranger;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::Duration;

/// Packet frames of a cell for each of its queues: both rings and the fill ring full.
const FRAMES_PER_QUEUE: u32 = 3 * 2048;
/// Most packet frames of a cell: 256 MiB.
const FRAMES_MAX: u32 = 65_536;

/// A process that was told to end at once has ended within this, on a busy machine.
const END_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug)]
enum Process {
    Child(Child),
    /// Of a daemon before.
    Left(Stranger),
}

/// A running cell.
#[derive(Debug)]
pub(crate) struct CellLink {
    process: Process,
    /// Where the next daemon finds it.
    known_at: PathBuf,
    socket: Arc<OwnedFd>,
    heard: mpsc::UnboundedReceiver<Result<FromCell>>,
}

impl CellLink {
    /// Starts the worker process; the next daemon finds it in `directory`.
    pub(crate) fn spawn(directory: &Path, queues: u32, core: usize) -> Result<Self> {
        let (ours, theirs) = fd_passing::pair().context("making the cell's socket")?;
        let mut command = Command::new(crate::deploy::PROGRAM);
        let number = os::child::inherit(&mut command, theirs);
        let frames = (FRAMES_PER_QUEUE * queues.max(2)).min(FRAMES_MAX);
        let child = command
            .arg("cell")
            .args(["--fd", &number.to_string()])
            .arg("--directory")
            .arg(directory)
            .args(["--frames", &frames.to_string()])
            .args(["--core", &core.to_string()])
            .stdin(Stdio::null())
            .spawn()
            .context("starting the cell")?;
        let known_at = cell::socket_in(directory, child.id());
        Self::join(Process::Child(child), known_at, ours)
    }

    /// Takes over the process of a daemon before, whose end of the connection is `socket`.
    pub(crate) fn take_over(left: Stranger, directory: &Path, socket: OwnedFd) -> Result<Self> {
        let known_at = cell::socket_in(directory, left.pid());
        Self::join(Process::Left(left), known_at, socket)
    }

    fn join(process: Process, known_at: PathBuf, socket: OwnedFd) -> Result<Self> {
        let socket = Arc::new(socket);
        let (sender, heard) = mpsc::unbounded_channel();
        let listened = Arc::clone(&socket);
        std::thread::Builder::new()
            .name("cell-listener".to_owned())
            .spawn(move || listen(&listened, &sender))
            .context("starting the thread that hears the cell")?;
        Ok(Self { process, known_at, socket, heard })
    }

    /// Sends a message.
    pub(crate) fn send(&self, message: &ToCell, fds: &[BorrowedFd<'_>]) -> Result<()> {
        let bytes = encode(message)?;
        fd_passing::send(self.socket.as_fd(), &bytes, fds).context("telling the cell")
    }

    /// The next message; `None` when the cell is gone. Cancelling loses nothing.
    pub(crate) async fn receive(&mut self) -> Result<Option<FromCell>> {
        self.heard.recv().await.transpose()
    }

    /// How the process ended, in words; kills it when it still runs.
    pub(crate) fn end(self) -> String {
        let ended = match self.process {
            Process::Child(mut child) => {
                let _ = child.kill();
                child.wait().map(|status| status.to_string())
            }
            Process::Left(left) => end(&left).map(|()| "it was a daemon's before".to_owned()),
        };
        // It may not have come so far as to make it.
        let _ = std::fs::remove_file(&self.known_at);
        match ended {
            Ok(status) => format!("the cell ended: {status}"),
            Err(error) => format!("the cell ended: {error}"),
        }
    }

    /// The cell's process number.
    pub(crate) fn pid(&self) -> u32 {
        match &self.process {
            Process::Child(child) => child.id(),
            Process::Left(left) => left.pid(),
        }
    }
}

/// Ends a cell that is not our child.
pub(crate) fn end(cell: &Stranger) -> std::io::Result<()> {
    cell.kill()?;
    match cell.wait(END_WITHIN)? {
        true => Ok(()),
        false => Err(std::io::ErrorKind::TimedOut.into()),
    }
}

/// The cell that was made known under this process number in a node's folder, with a
/// connection to it; `None` when it is gone, and then it is known no more.
pub(crate) fn find(directory: &Path, pid: u32) -> Option<(Stranger, OwnedFd)> {
    let path = cell::socket_in(directory, pid);
    // Its number first: as long as the connection finds its process, nobody else has it.
    let stranger = Stranger::open(pid);
    let found = stranger.and_then(|stranger| {
        let (socket, listener) = fd_passing::connect(&path)?;
        if listener != pid {
            return Err(std::io::ErrorKind::NotFound.into());
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

/// Passes on what the cell says until it is gone, or nobody listens.
fn listen(socket: &OwnedFd, sender: &mpsc::UnboundedSender<Result<FromCell>>) {
    let mut buffer = vec![0; fd_passing::MESSAGE_LENGTH_MAX];
    loop {
        let message = match hear(socket, &mut buffer) {
            Ok(Some(message)) => Ok(message),
            Ok(None) => return,
            Err(error) => Err(error),
        };
        let failed = message.is_err();
        if sender.send(message).is_err() || failed {
            return;
        }
    }
}

fn hear(socket: &OwnedFd, buffer: &mut [u8]) -> Result<Option<FromCell>> {
    loop {
        match fd_passing::receive(socket.as_fd(), buffer)? {
            Received::Message(length, _) => return Ok(Some(decode(&buffer[..length])?)),
            Received::Closed => return Ok(None),
            Received::Nothing => fd_passing::wait_readable(&[socket.as_fd()], None)?,
        }
    }
}
