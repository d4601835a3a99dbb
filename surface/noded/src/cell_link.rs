//! The daemon's end of its cell: a child process and a socket.

use anyhow::{Context, Result};
use cell::protocol::{FromCell, ToCell, decode, encode};
use os::fd_passing::{self, Received};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Packet frames of a cell for each of its queues: both rings and the fill ring full.
const FRAMES_PER_QUEUE: u32 = 3 * 2048;
/// Most packet frames of a cell: 256 MiB.
const FRAMES_MAX: u32 = 65_536;

/// A running cell.
#[derive(Debug)]
pub(crate) struct CellLink {
    child: Child,
    socket: Arc<OwnedFd>,
    heard: mpsc::UnboundedReceiver<Result<FromCell>>,
}

impl CellLink {
    /// Starts the worker process.
    pub(crate) fn spawn(queues: u32, core: usize) -> Result<Self> {
        let (ours, theirs) = fd_passing::pair().context("making the cell's socket")?;
        let mut command = Command::new(crate::deploy::PROGRAM);
        let number = os::child::inherit(&mut command, theirs);
        let frames = (FRAMES_PER_QUEUE * queues.max(2)).min(FRAMES_MAX);
        let child = command
            .arg("cell")
            .args(["--fd", &number.to_string()])
            .args(["--frames", &frames.to_string()])
            .args(["--core", &core.to_string()])
            .stdin(Stdio::null())
            .spawn()
            .context("starting the cell")?;
        let socket = Arc::new(ours);
        let (sender, heard) = mpsc::unbounded_channel();
        let listened = Arc::clone(&socket);
        std::thread::Builder::new()
            .name("cell-listener".to_owned())
            .spawn(move || listen(&listened, &sender))
            .context("starting the thread that hears the cell")?;
        Ok(Self { child, socket, heard })
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
    pub(crate) fn end(mut self) -> String {
        let _ = self.child.kill();
        match self.child.wait() {
            Ok(status) => format!("the cell ended: {status}"),
            Err(error) => format!("the cell ended: {error}"),
        }
    }

    /// The cell's process number.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
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
