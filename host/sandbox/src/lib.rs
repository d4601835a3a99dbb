//! Confinement of cells, compile workers and codecs before they process untrusted input.
//!
//! ```text
//!  enter ─▶ limits ─▶ an empty root ─▶ a user of its own ─▶ no capability ─▶ landlock
//!           then work that a sealed process can no longer do, such as starting a thread
//!  seal  ─▶ no process, no further descriptor ─▶ the system call filter, on every thread
//! ```
//!
//! Afterwards no file, socket or process can be opened, made, signalled or traced, and no process
//! of the same user can trace this one. Its descriptors, and those that its daemon still sends,
//! keep working. A codec is another program: it can open the files that programs need to start,
//! and nothing else. Each way out is closed by two layers: docs/reference/privileges.md.

pub mod child;
pub mod cores;
pub mod fd_passing;
mod filter;
pub mod process;
mod rights;
mod ruleset;
pub mod shared_words;
pub mod standard_streams;

pub use ruleset::{Landlock, landlock};

use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit,
};
use std::io;
use std::path::Path;

/// Limit of a cell's descriptors: a socket for each queue of each port, four for each service, room
/// for those of a module's images, and two for each connection of stream services, of which there
/// may be some ten thousand. A host whose own limit is lower has fewer connections.
const CELL_DESCRIPTORS_MAX: u64 = 65_536;
/// Returns the limit of descriptors for a cell under this process's own limit.
#[must_use]
pub fn descriptors_of_cell() -> u64 {
    let hard = getrlimit(Resource::Nofile).maximum;
    hard.map_or(CELL_DESCRIPTORS_MAX, |hard| hard.min(CELL_DESCRIPTORS_MAX))
}

/// Limit of a compile worker's descriptors: its standard streams.
const WORKER_DESCRIPTORS_MAX: u64 = 3;

/// Limit of a codec's descriptors: its standard streams, and one library after another.
const CODEC_DESCRIPTORS_MAX: u64 = 64;
/// Limit of a codec's threads, if it has a user of its own: it is configured for one, and some
/// versions have one for each of reading, decoding, filtering and writing.
const CODEC_THREADS_MAX: u64 = 32;

/// Error of confining the process, which must then not continue.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// A limit could not be lowered.
    #[error("cannot lower the limit on {0}: {1}")]
    Limit(&'static str, io::Error),
    /// Capabilities could not be dropped.
    #[error("cannot drop the capabilities: {0}")]
    Capabilities(String),
    /// The process could not be made untraceable (`PR_SET_DUMPABLE`).
    #[error("cannot keep other processes out of the memory (PR_SET_DUMPABLE): {0}")]
    Dumpable(io::Error),
    /// The flag `PR_SET_NO_NEW_PRIVS` could not be set.
    #[error("cannot give up new privileges (PR_SET_NO_NEW_PRIVS): {0}")]
    NoNewPrivileges(io::Error),
    /// Landlock exists, and refuses.
    #[error("cannot restrict the process with landlock: {0}")]
    Landlock(#[from] landlock::RulesetError),
    /// The system call filter was refused.
    #[error("cannot install the system call filter: {0}")]
    Filter(String),
}

/// Role of a confined process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Cell: runs modules, and gets sockets and memory from its daemon.
    Cell {
        /// Size of the packet memory in bytes, which the kernel locks when the first socket is
        /// made.
        locked_bytes: u64,
    },
    /// Compile worker: turns one module into code, from standard input to standard output.
    CompileWorker,
    /// Codec: runs a program of the machine that turns video into pictures, from standard input to
    /// standard output.
    Codec,
}

/// Measures that were possible on this machine, beyond those of every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confined {
    /// User id that no other process has; `None` where this process may not change its user.
    pub user: Option<u32>,
    /// True if the root is an empty folder in which nothing can be created.
    pub empty_root: bool,
    /// Support for landlock.
    pub landlock: Landlock,
    /// True if `CAP_IPC_LOCK` had to stay, because the limit on locked memory is too low and cannot
    /// be raised.
    pub locks_memory: bool,
}

/// Process that has given up its rights, and may still start threads.
#[derive(Debug)]
#[must_use = "without the filter every system call is open"]
pub struct Entered {
    role: Role,
    confined: Confined,
}

/// Gives up the rights of a process that has one thread; those that it starts later have none
/// either.
///
/// # Errors
/// A step is refused: see [`SandboxError`].
pub fn enter(role: Role) -> Result<Entered, SandboxError> {
    enter_with(role, None)
}

/// Gives up rights like [`enter`], for a codec, which then executes this program.
///
/// # Errors
/// Same as [`enter`].
pub fn enter_codec(program: &Path) -> Result<Entered, SandboxError> {
    enter_with(Role::Codec, program.parent())
}

fn enter_with(role: Role, folder: Option<&Path>) -> Result<Entered, SandboxError> {
    limit("core dumps", Resource::Core, 0)?;
    rights::drop_bounding();
    // A codec's libraries are in the machine's folders.
    let empty_root = role != Role::Codec && rights::enter_empty_root();
    let (user, locks_memory) = match role {
        Role::Cell { locked_bytes } => limit_locked_memory(locked_bytes)?,
        Role::CompileWorker | Role::Codec => (rights::become_unique_user(false), false),
    };
    rights::drop_capabilities(locks_memory)?;
    // A change of the user resets the flag.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|errno| SandboxError::Dumpable(errno.into()))?;
    rustix::thread::set_no_new_privs(true)
        .map_err(|errno| SandboxError::NoNewPrivileges(errno.into()))?;
    let landlock = ruleset::restrict(role, folder)?;
    Ok(Entered { role, confined: Confined { user, empty_root, landlock, locks_memory } })
}

impl Entered {
    /// Applies the system call filter: every thread of the process makes only the calls of its role
    /// from now on. All threads have to run by now: a thread's first steps need more calls.
    ///
    /// # Errors
    /// A step is refused: see [`SandboxError`].
    pub fn seal(self) -> Result<Confined, SandboxError> {
        let descriptors = match self.role {
            Role::Cell { .. } => CELL_DESCRIPTORS_MAX,
            Role::CompileWorker => WORKER_DESCRIPTORS_MAX,
            Role::Codec => CODEC_DESCRIPTORS_MAX,
        };
        match self.role {
            // Threads count among all processes of a user, and the filter lets it make no process.
            Role::Codec if self.confined.user.is_none() => {}
            Role::Codec => limit("processes", Resource::Nproc, CODEC_THREADS_MAX)?,
            _ => limit("processes", Resource::Nproc, 0)?,
        }
        limit("descriptors", Resource::Nofile, descriptors)?;
        if !matches!(self.role, Role::Cell { .. }) {
            limit("file sizes", Resource::Fsize, 0)?;
        }
        if self.role == Role::Codec {
            let first =
                filter::without_clone3().map_err(|e| SandboxError::Filter(e.to_string()))?;
            seccompiler::apply_filter_all_threads(&first)
                .map_err(|e| SandboxError::Filter(e.to_string()))?;
        }
        let filter = filter::of(self.role).map_err(|e| SandboxError::Filter(e.to_string()))?;
        seccompiler::apply_filter_all_threads(&filter)
            .map_err(|e| SandboxError::Filter(e.to_string()))?;
        Ok(self.confined)
    }
}

/// Does [`enter`] and [`Entered::seal`], for a process without further threads.
///
/// # Errors
/// Same as [`enter`] and [`Entered::seal`].
pub fn confine(role: Role) -> Result<Confined, SandboxError> {
    enter(role)?.seal()
}

/// Sets a resource limit that cannot be raised again.
fn limit(name: &'static str, resource: Resource, most: u64) -> Result<(), SandboxError> {
    let hard = getrlimit(resource).maximum;
    let most = Some(hard.map_or(most, |hard| hard.min(most)));
    setrlimit(resource, Rlimit { current: most, maximum: most })
        .map_err(|errno| SandboxError::Limit(name, errno.into()))
}

/// Changes to a user of its own that may lock this many bytes. Returns the user, and true if the
/// capability to lock memory has to stay. The kernel counts locked memory by user, so a limit is
/// one of this process only if no other process has its user.
fn limit_locked_memory(bytes: u64) -> Result<(Option<u32>, bool), SandboxError> {
    let hard = getrlimit(Resource::Memlock).maximum;
    let raised = Rlimit { current: Some(bytes), maximum: Some(bytes) };
    let is_enough =
        hard.is_none_or(|hard| hard >= bytes) || setrlimit(Resource::Memlock, raised).is_ok();
    let user = rights::become_unique_user(!is_enough);
    let most = if is_enough && user.is_some() { bytes } else { hard.unwrap_or(u64::MAX) };
    limit("locked memory", Resource::Memlock, most)?;
    Ok((user, !is_enough || user.is_none()))
}

#[cfg(test)]
mod tests;
