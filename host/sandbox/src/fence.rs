//! Landlock: the kernel denies the process access to files, ports and processes by the object, not
//! by the system call.
//!
//! Nothing is allowed, with two exceptions: a codec reads and executes the files that programs need
//! to start, and a cell connects sockets; those were made by its daemon, since the system call
//! filter lets a cell make none. An older kernel does not restrict what its version of landlock
//! does not know; there the filter is the only layer.

use super::Role;
use landlock::{
    ABI, Access, AccessFs, AccessNet, LandlockStatus, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, Scope, path_beneath_rules,
};
use std::fmt;
use std::path::Path;

/// Newest ABI that is requested; an older kernel applies all that it has.
const NEWEST: ABI = ABI::V10;

/// First ABI that restricts signals and abstract sockets (Linux 6.12).
const SCOPED: u32 = 6;

/// Landlock support of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landlock {
    /// Landlock is not built in.
    NotBuilt,
    /// Landlock is built in, and disabled at boot.
    Off,
    /// Version of the landlock ABI.
    Version(u32),
}

impl Landlock {
    /// Returns true if landlock restricts signals and abstract sockets, too.
    #[must_use]
    pub const fn is_scoped(self) -> bool {
        matches!(self, Self::Version(SCOPED..))
    }
}

impl fmt::Display for Landlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBuilt => f.write_str("landlock is not in this kernel"),
            Self::Off => f.write_str("landlock is off since boot"),
            Self::Version(version) => write!(f, "landlock, version {version}"),
        }
    }
}

/// Files that programs need to start: libraries, the loader's search paths, and the description of
/// the machine's processors. No other part of `/etc`, nothing of `/proc`.
const OF_PROGRAMS: [&str; 7] =
    ["/usr", "/lib", "/lib64", "/bin", "/nix/store", "/etc/ld.so.cache", "/sys/devices/system"];

/// Restricts the calling thread, and the processes and threads that it starts. A codec may also use
/// its program's folder.
pub(super) fn raise(role: Role, folder: Option<&Path>) -> Result<Landlock, RulesetError> {
    let ruleset = Ruleset::default().handle_access(AccessFs::from_all(NEWEST))?;
    let ruleset = match role {
        Role::Cell { .. } => ruleset,
        Role::CompileWorker | Role::Codec => ruleset.handle_access(AccessNet::from_all(NEWEST))?,
    };
    let mut ruleset = ruleset.scope(Scope::from_all(NEWEST))?.create()?;
    if role == Role::Codec {
        let folders = OF_PROGRAMS.iter().map(Path::new).chain(folder);
        ruleset = ruleset.add_rules(path_beneath_rules(folders, AccessFs::from_read(NEWEST)))?;
    }
    let status = ruleset.restrict_self()?;
    Ok(match status.landlock {
        LandlockStatus::NotImplemented => Landlock::NotBuilt,
        LandlockStatus::NotEnabled => Landlock::Off,
        LandlockStatus::Available { effective_abi, .. } => Landlock::Version(effective_abi as u32),
    })
}

/// Returns the landlock support that a cell has on this machine.
///
/// # Errors When landlock is present and refuses.
pub fn landlock() -> Result<Landlock, String> {
    // A thread of its own takes the restriction and ends with it.
    let tried = std::thread::spawn(|| raise(Role::Cell { locked_bytes: 0 }, None)).join();
    tried.map_err(|_| "the trial ended".to_owned())?.map_err(|error| error.to_string())
}
