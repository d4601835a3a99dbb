//! What a cell and a compile worker give up before they touch what a stranger wrote.
//!
//! ```text
//!  enter ─▶ limits ─▶ an empty root ─▶ a user of its own ─▶ no capability ─▶ landlock
//!           then whatever a confined process cannot do any more: a second thread
//!  seal  ─▶ no process, no further descriptor ─▶ the system call filter, on every thread
//! ```
//!
//! Afterwards no file, socket or process can be opened, made, signalled or traced, and nobody
//! of the same user traces this one. Descriptors that it has, and those that its daemon still
//! sends, keep working. A codec is another program: it opens what programs are started of, and
//! nothing else. Two layers stand in front of each way out: docs/reference/privileges.md.

pub mod child;
pub mod cores;
pub mod fd_passing;
mod fence;
mod filter;
pub mod process;
mod rights;
pub mod shared_words;
pub mod standard_streams;

pub use fence::{Landlock, landlock};

use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit,
};
use std::io;
use std::path::Path;

/// Descriptors of a cell: a socket for each queue of each port, four for each service, room for
/// those of a module's images, and two for each connection of stream services, of which there may
/// be some ten thousand. A host whose own limit is lower has fewer connections.
const CELL_DESCRIPTORS_MAX: u64 = 65_536;
/// Descriptors that a cell of this process's limit may have.
#[must_use]
pub fn descriptors_of_cell() -> u64 {
    let hard = getrlimit(Resource::Nofile).maximum;
    hard.map_or(CELL_DESCRIPTORS_MAX, |hard| hard.min(CELL_DESCRIPTORS_MAX))
}

/// Those of a compile worker: its standard streams.
const WORKER_DESCRIPTORS_MAX: u64 = 3;

/// Those of a codec: its standard streams, and one library after another.
const CODEC_DESCRIPTORS_MAX: u64 = 64;
/// Threads of a codec, where it is a user of its own: it is told to have one, and some versions have
/// one for each of reading, decoding, filtering and writing.
const CODEC_THREADS_MAX: u64 = 32;

/// Why the process could not be confined; it must then not go on.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// A limit could not be lowered.
    #[error("lowering the limit on {0}: {1}")]
    Limit(&'static str, io::Error),
    /// Capabilities could not be dropped.
    #[error("dropping the capabilities: {0}")]
    Capabilities(String),
    /// Its memory would stay open to others.
    #[error("keeping others out of the memory: {0}")]
    Dumpable(io::Error),
    /// `PR_SET_NO_NEW_PRIVS`.
    #[error("giving up new privileges: {0}")]
    NoNewPrivileges(io::Error),
    /// Landlock is there, and refuses.
    #[error("fencing the process in with landlock: {0}")]
    Landlock(#[from] landlock::RulesetError),
    /// The filter was refused.
    #[error("installing the system call filter: {0}")]
    Filter(String),
}

/// Who is confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Runs modules, and has sockets and memory from its daemon.
    Cell {
        /// Packet memory, which the kernel locks when its first socket comes.
        locked_bytes: u64,
    },
    /// Turns one module into code: standard input to standard output.
    CompileWorker,
    /// Runs a program of the machine that turns video into pictures: standard input to standard
    /// output.
    Codec,
}

/// What was possible here, beyond what every machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confined {
    /// The user that nobody else is; none where this process may not change its user.
    pub user: Option<u32>,
    /// Whether the root is a folder in which nothing is and nothing can be made.
    pub empty_root: bool,
    /// What landlock could do.
    pub landlock: Landlock,
    /// Whether a capability had to stay: `CAP_IPC_LOCK`, where the limit on locked memory is too
    /// low and cannot be raised.
    pub locks_memory: bool,
}

/// A process that has given up its rights, and may still start threads.
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
/// When a step is refused: see [`SandboxError`].
pub fn enter(role: Role) -> Result<Entered, SandboxError> {
    enter_with(role, None)
}

/// The same for a codec, which goes on as this program.
///
/// # Errors
/// As [`enter`].
pub fn enter_codec(program: &Path) -> Result<Entered, SandboxError> {
    enter_with(Role::Codec, program.parent())
}

fn enter_with(role: Role, folder: Option<&Path>) -> Result<Entered, SandboxError> {
    limit("core dumps", Resource::Core, 0)?;
    rights::drop_bounding();
    // A codec's libraries are in the machine's folders.
    let empty_root = role != Role::Codec && rights::leave_files();
    let (user, locks_memory) = match role {
        Role::Cell { locked_bytes } => lock_as_a_user(locked_bytes)?,
        Role::CompileWorker | Role::Codec => (rights::become_nobody_else(false), false),
    };
    rights::drop_capabilities(locks_memory)?;
    // A change of the user undoes it.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|errno| SandboxError::Dumpable(errno.into()))?;
    rustix::thread::set_no_new_privs(true)
        .map_err(|errno| SandboxError::NoNewPrivileges(errno.into()))?;
    let landlock = fence::raise(role, folder)?;
    Ok(Entered { role, confined: Confined { user, empty_root, landlock, locks_memory } })
}

impl Entered {
    /// Closes what is left: every thread of the process makes only the system calls of its role
    /// from now on. Those that were started have to run by now: a thread's first steps need more.
    ///
    /// # Errors
    /// When a step is refused: see [`SandboxError`].
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

/// [`enter`] and [`Entered::seal`] in one, for a process without further threads.
///
/// # Errors
/// As these.
pub fn confine(role: Role) -> Result<Confined, SandboxError> {
    enter(role)?.seal()
}

/// So much and no more, and no way back.
fn limit(what: &'static str, resource: Resource, most: u64) -> Result<(), SandboxError> {
    let hard = getrlimit(resource).maximum;
    let most = Some(hard.map_or(most, |hard| hard.min(most)));
    setrlimit(resource, Rlimit { current: most, maximum: most })
        .map_err(|errno| SandboxError::Limit(what, errno.into()))
}

/// Becomes a user of its own that may lock so many bytes, and says whether the capability to lock
/// memory has to stay: what a user has locked is counted together, so a limit says something of
/// this process only if no other has its user.
fn lock_as_a_user(bytes: u64) -> Result<(Option<u32>, bool), SandboxError> {
    let hard = getrlimit(Resource::Memlock).maximum;
    let raised = Rlimit { current: Some(bytes), maximum: Some(bytes) };
    let is_enough =
        hard.is_none_or(|hard| hard >= bytes) || setrlimit(Resource::Memlock, raised).is_ok();
    let user = rights::become_nobody_else(!is_enough);
    let most = if is_enough && user.is_some() { bytes } else { hard.unwrap_or(u64::MAX) };
    limit("locked memory", Resource::Memlock, most)?;
    Ok((user, !is_enough || user.is_none()))
}

#[cfg(test)]
mod tests;
