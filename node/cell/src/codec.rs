//! A codec's process: it gives up every right that it can do without, and goes on as a program of
//! the machine that turns video into pictures.
//!
//! It reads video from standard input and writes pictures to standard output, which are both one
//! socket whose other end a cell has. Whatever somebody put into the video, what can be done of it
//! is in docs/reference/privileges.md.

use rustix::process::{Resource, Rlimit, setpriority_process, setrlimit};
use sandbox::cores;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use stream_services::CODEC_MEMORY;

/// How nice a codec is: what the node itself does goes before it.
const NICE: i32 = 5;

/// Goes on as `program` with these arguments, confined; the core that runs modules is left to them,
/// unless there is no other. Returns only what keeps it from that.
///
/// # Errors
/// When a right cannot be given up, or the program cannot be run.
pub fn run_codec(
    program: &Path,
    guest_core: Option<usize>,
    arguments: &[OsString],
) -> Result<std::convert::Infallible, io::Error> {
    if let Some(core) = guest_core {
        // Where the kernel refuses, it shares that core, at its own priority.
        let _ = cores::exclude(core);
    }
    let _ = setpriority_process(None, NICE);
    let most = Some(CODEC_MEMORY);
    setrlimit(Resource::Data, Rlimit { current: most, maximum: most })?;
    let entered = sandbox::enter_codec(program).map_err(io::Error::other)?;
    entered.seal().map_err(io::Error::other)?;
    let mut command = Command::new(program);
    Err(command.args(arguments).env_clear().exec())
}
