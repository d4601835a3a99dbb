//! User namespaces, so that a process without privileges can be root inside one.
//!
//! ```text
//!  a user's process ─▶ user namespace, in which it is root, network and mounts of its own
//!                         └─▶ an empty /run, gone with the last process inside
//! ```

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use std::io;
use std::path::Path;

use crate::sysctl;

/// Directories that the process gets private copies of: they have the names of namespaces, nodes
/// and labs.
const FOLDERS: [&str; 1] = ["/run"];

/// Error of entering a user namespace. The host's fault.
#[derive(Debug, thiserror::Error)]
pub enum UserNamespaceError {
    /// The kernel or its settings refuse it.
    #[error("this machine refuses user namespaces to its users ({source}){}", hint())]
    Refused {
        /// Error of the kernel.
        source: io::Error,
    },
    /// A later step inside the namespace failed.
    #[error("cannot {action} in a user namespace: {source}{}", hint())]
    Step {
        /// Step that failed.
        action: String,
        /// Error of the kernel.
        source: io::Error,
    },
}

/// Setting by which a machine refuses user namespaces to its users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Key of the setting, for sysctl(8).
    pub key: &'static str,
    /// Value that refuses them, which it has.
    pub refusing: &'static str,
    /// Value that allows them.
    pub allowing: &'static str,
}

const fn refusal_by(key: &'static str, refusing: &'static str, allowing: &'static str) -> Refusal {
    Refusal { key, refusing, allowing }
}

/// Settings of Linux, of Debian's kernels, and of Ubuntu's (24.04).
const SETTINGS: [Refusal; 3] = [
    refusal_by("user.max_user_namespaces", "0", "15000"),
    refusal_by("kernel.unprivileged_userns_clone", "0", "1"),
    refusal_by("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
];

/// Returns the setting that refuses user namespaces on this machine, if one does.
#[must_use]
pub fn refusal() -> Option<Refusal> {
    let refuses = |setting: &Refusal| {
        sysctl::read(setting.key).is_ok_and(|value| value.trim() == setting.refusing)
    };
    SETTINGS.into_iter().find(refuses)
}

/// Returns advice on the setting to change, if a setting is the reason.
fn hint() -> String {
    refusal().map_or_else(String::new, |Refusal { key, refusing, allowing }| {
        format!("; {key} is {refusing}, and 'sysctl -w {key}={allowing}' as root allows them")
    })
}

/// Returns true if the process is root, here or in a user namespace.
#[must_use]
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Moves the process into namespaces of its own: user, in which it is root, network and mounts. The
/// contents of [`FOLDERS`] are hidden from it.
///
/// # Errors
/// The machine refuses, or the process has other threads.
pub fn enter() -> Result<(), UserNamespaceError> {
    let (user, group) = (nix::unistd::geteuid(), nix::unistd::getegid());
    unshare(CloneFlags::CLONE_NEWUSER)
        .map_err(|errno| UserNamespaceError::Refused { source: errno.into() })?;
    // No group may be mapped before this (user_namespaces(7)).
    write("/proc/self/setgroups", "deny")?;
    write("/proc/self/uid_map", &format!("0 {user} 1"))?;
    write("/proc/self/gid_map", &format!("0 {group} 1"))?;
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
        .map_err(step("unshare network and mounts"))?;
    // Mounts made here do not appear in other namespaces.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .map_err(step("keep mounts private"))?;
    for folder in FOLDERS.into_iter().filter(|folder| Path::new(folder).is_dir()) {
        mount(Some("tmpfs"), folder, Some("tmpfs"), MsFlags::empty(), Some("mode=755"))
            .map_err(step(&format!("mount an empty {folder}")))?;
    }
    Ok(())
}

fn write(path: &str, text: &str) -> Result<(), UserNamespaceError> {
    std::fs::write(path, text)
        .map_err(|source| UserNamespaceError::Step { action: format!("write {path}"), source })
}

fn step(action: &str) -> impl Fn(nix::errno::Errno) -> UserNamespaceError {
    move |errno| UserNamespaceError::Step { action: action.to_owned(), source: errno.into() }
}
