//! Confinement by landlock: the kernel denies access to files, ports and processes by object, not
//! by system call.
//!
//! Everything is denied, except that a codec reads and runs the files that programs need to start,
//! and that a cell connects: its sockets are made by its daemon, since the filter lets it make
//! none. An older kernel does not deny what its landlock does not cover; there the filter is the
//! only layer.

use super::Role;
use landlock::{
    ABI, Access, AccessFs, AccessNet, LandlockStatus, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, Scope, path_beneath_rules,
};
use std::fmt;
use std::path::Path;

/// Newest version that is requested; an older kernel applies all that it has.
const NEWEST: ABI = ABI::V10;

/// First version that denies signals and abstract sockets to processes outside (Linux 6.12).
const SCOPED: u32 = 6;

/// Support for landlock in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landlock {
    /// Not built in.
    NotBuilt,
    /// Built in, but not enabled at boot.
    Off,
    /// Supported, with this version of its interface.
    Version(u32),
}

impl Landlock {
    /// Returns true if signals and abstract sockets are confined, too.
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

/// Files that programs need to start: their libraries, the library cache, and the description of
/// the processors. Not `/etc` otherwise, not `/proc`.
const PROGRAM_FILES: [&str; 7] =
    ["/usr", "/lib", "/lib64", "/bin", "/nix/store", "/etc/ld.so.cache", "/sys/devices/system"];

/// Confines the calling thread and its later children. A codec also gets access to its program's
/// folder.
pub(super) fn restrict(role: Role, folder: Option<&Path>) -> Result<Landlock, RulesetError> {
    let ruleset = Ruleset::default().handle_access(AccessFs::from_all(NEWEST))?;
    let ruleset = match role {
        Role::Cell { .. } => ruleset,
        Role::CompileWorker | Role::Codec => ruleset.handle_access(AccessNet::from_all(NEWEST))?,
    };
    let mut ruleset = ruleset.scope(Scope::from_all(NEWEST))?.create()?;
    if role == Role::Codec {
        let folders = PROGRAM_FILES.iter().map(Path::new).chain(folder);
        ruleset = ruleset.add_rules(path_beneath_rules(folders, AccessFs::from_read(NEWEST)))?;
    }
    let status = ruleset.restrict_self()?;
    Ok(match status.landlock {
        LandlockStatus::NotImplemented => Landlock::NotBuilt,
        LandlockStatus::NotEnabled => Landlock::Off,
        LandlockStatus::Available { effective_abi, .. } => Landlock::Version(effective_abi as u32),
    })
}

/// Returns the landlock support that a cell would get on this machine.
///
/// # Errors
/// Landlock exists and refuses.
pub fn landlock() -> Result<Landlock, String> {
    // A separate thread is confined, and ends.
    let tried = std::thread::spawn(|| restrict(Role::Cell { locked_bytes: 0 }, None)).join();
    tried.map_err(|_| "the trial ended".to_owned())?.map_err(|error| error.to_string())
}
