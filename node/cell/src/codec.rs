//! Process of a codec: it gives up every privilege that it does not need, and executes a program of
//! the machine that turns video into pictures.
//!
//! The codec reads video from standard input and writes pictures to standard output; both are one
//! socket, whose other end a cell has. docs/reference/privileges.md says what a malicious video can
//! do.

use rustix::process::{Resource, Rlimit, setpriority_process, setrlimit};
use sandbox::cores;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use stream_services::CODEC_MEMORY;

/// Nice value of a codec, behind the node's own processes.
const NICE: i32 = 5;

/// Executes `program` with these arguments, confined. It avoids the core that runs modules, unless
/// there is no other. Returns only with an error.
///
/// # Errors
/// A privilege cannot be given up, or the program cannot be run.
pub fn run_codec(
    program: &Path,
    guest_core: Option<usize>,
    arguments: &[OsString],
) -> Result<std::convert::Infallible, io::Error> {
    if let Some(core) = guest_core {
        // If the kernel refuses, the codec shares that core, at its own priority.
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
