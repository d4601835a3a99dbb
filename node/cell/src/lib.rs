//! Cell: a worker process that runs modules and holds no identity.
//!
//! ```text
//!  daemon ── ToCell, descriptors ──▶ ┌──────────────────────────────┐
//!         ◀── FromCell ───────────── │ one thread on the guest core │
//!                                    │  receive ─▶ lane ─▶ verdict  │
//!  AF_XDP sockets of each port ◀───▶ │                  │           │
//!                                    └──────────────────┼───────────┘
//!                                     TUN, for what only the kernel routes
//! ```
//!
//! [`protocol`] has the messages between daemon and cell; [`run`] is the process. It opens nothing:
//! every socket and file comes from the daemon. It never learns the identity of a principal, or
//! what else runs on the node; its only keys are those of single associations, for minutes. It
//! outlives its daemon, and the next one takes it over: [`adopt`].

#![forbid(unsafe_code)]

pub mod below;
mod codec;
mod compile;
mod control;
mod datapath;
mod dispatch;
mod intake;
mod memory;
mod packet_memory;
pub mod protocol;
mod sched;
mod service;
mod streams;
pub mod timing;
mod worker;

pub use codec::run_codec;
pub use compile::{CompileFailure, CompileWorker, Compiled, Limit, compile_worker};
pub use control::link::adopt;
pub use datapath::associations::bounced;
pub use intake::counts::DoorCounts;
pub use packet_memory::PacketMemory;
pub use protocol::{Answer as CallAnswer, PROTOCOL_VERSION, Question as CallQuestion};
pub use worker::run;

use std::path::{Path, PathBuf};

/// Returns the number of packets that a dead cell left in the rings of a socket.
///
/// # Errors
/// The socket was not bound yet.
pub fn left_behind(socket: std::os::fd::BorrowedFd<'_>) -> std::io::Result<u64> {
    xsk::left_behind(socket, datapath::port::RINGS)
}

/// Returns the path of the socket, in a node's run directory, by which a daemon finds the cell with
/// this process id.
#[must_use]
pub fn socket_in(directory: &Path, pid: u32) -> PathBuf {
    directory.join(format!("cell-{pid}.sock"))
}

/// Returns the process ids of the cells with a socket in a node's run directory, including dead
/// ones.
///
/// # Errors
/// The directory cannot be read; a missing one has no cells.
pub fn known_in(directory: &Path) -> std::io::Result<Vec<u32>> {
    let files = match std::fs::read_dir(directory) {
        Ok(files) => files,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut pids = Vec::new();
    for file in files {
        let name = file?.file_name();
        let number = name.to_str().and_then(|n| n.strip_prefix("cell-")?.strip_suffix(".sock"));
        pids.extend(number.and_then(|number| number.parse::<u32>().ok()));
    }
    Ok(pids)
}
