//! Landlock: the kernel keeps the process from files, ports and processes by what they are, not
//! by the system call that reaches for them.
//!
//! Nothing is allowed, but that a codec reads and runs what programs are started of, and that a
//! cell connects: what it connects are the sockets that its daemon
//! made, since the filter lets it make none. What an older kernel does not know it does not refuse;
//! there the filter stands alone.

use super::Role;
use landlock::{
    ABI, Access, AccessFs, AccessNet, LandlockStatus, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, Scope, path_beneath_rules,
};
use std::fmt;
use std::path::Path;

/// The newest that is asked for; of an older kernel all that it has.
const NEWEST: ABI = ABI::V10;

/// Since then landlock keeps signals and abstract sockets within the fence (Linux 6.12).
const SCOPED: u32 = 6;

/// What the kernel's landlock does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landlock {
    /// Nothing: it is not built in.
    NotBuilt,
    /// Nothing: it is built in, and off since boot.
    Off,
    /// What this version of its interface has.
    Version(u32),
}

impl Landlock {
    /// Whether it keeps signals and abstract sockets in, too.
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

/// What programs are started of: their libraries, where those are found, and what the machine's
/// processors are. Not `/etc` otherwise, not `/proc`.
const OF_PROGRAMS: [&str; 7] =
    ["/usr", "/lib", "/lib64", "/bin", "/nix/store", "/etc/ld.so.cache", "/sys/devices/system"];

/// Fences the calling thread in, and what it starts. A codec also has its program's folder.
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

/// What landlock would do for a cell on this machine.
///
/// # Errors
/// When it is there and refuses.
pub fn landlock() -> Result<Landlock, String> {
    // A thread of its own stays behind the fence, and ends there.
    let tried = std::thread::spawn(|| raise(Role::Cell { locked_bytes: 0 }, None)).join();
    tried.map_err(|_| "the trial ended".to_owned())?.map_err(|error| error.to_string())
}
