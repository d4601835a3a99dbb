//! Named network namespaces, as `ip netns` makes them: a file below `/run/netns` on which the
//! kernel's namespace is mounted.
//!
//! A namespace is a property of a thread; only [`enter`] changes the calling thread. Links and
//! addresses inside a namespace are in `netlink`.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

/// Directory of named namespaces, shared with `ip netns`.
pub const NAMESPACES: &str = "/run/netns";

/// Longest name of a namespace: the longest file name (`NAME_MAX`).
pub const NAMESPACE_NAME_LENGTH_MAX: usize = 255;

/// The namespace of the calling thread; `/proc/self` would be that of the process's first thread.
const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";

/// Error of creating, finding, entering or removing a namespace.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// The name is no file name.
    #[error(
        "'{name}' cannot name a network namespace: use 1 to {NAMESPACE_NAME_LENGTH_MAX} characters without '/', and neither '.' nor '..'"
    )]
    Name {
        /// Name as given.
        name: String,
    },
    /// The namespace exists already.
    #[error("the network namespace '{name}' already exists; remove it or choose another name")]
    Exists {
        /// Name of the namespace.
        name: String,
    },
    /// The namespace does not exist.
    #[error("there is no network namespace '{name}' in {NAMESPACES}")]
    Missing {
        /// Name as given.
        name: String,
    },
    /// The kernel refused a step.
    #[error("cannot {action} for the network namespace '{name}': {source}{}", hint(source))]
    Refused {
        /// Step, as a verb with its object.
        action: &'static str,
        /// Name of the namespace.
        name: String,
        /// Error of the kernel.
        source: io::Error,
    },
}

fn hint(source: &io::Error) -> &'static str {
    if source.kind() == io::ErrorKind::PermissionDenied {
        "; run as root or with CAP_SYS_ADMIN"
    } else {
        ""
    }
}

/// Open network namespace; it exists as long as this value, even after its name is gone.
#[derive(Debug)]
pub struct NetNs {
    name: String,
    file: File,
}

impl NetNs {
    /// Returns the namespace of the calling thread.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn current() -> Result<Self, NetnsError> {
        let name = "(current)".to_owned();
        match File::open(OWN_NAMESPACE) {
            Ok(file) => Ok(Self { name, file }),
            Err(source) => Err(NetnsError::Refused { action: "open /proc", name, source }),
        }
    }

    /// Opens the namespace of this name.
    ///
    /// # Errors
    /// The namespace does not exist, or the caller may not open it.
    pub fn open(name: &str) -> Result<Self, NetnsError> {
        match File::open(path_of(name)?) {
            Ok(file) => Ok(Self { name: name.to_owned(), file }),
            Err(source) if source.kind() == io::ErrorKind::NotFound => {
                Err(NetnsError::Missing { name: name.to_owned() })
            }
            Err(source) => {
                Err(NetnsError::Refused { action: "open the file", name: name.to_owned(), source })
            }
        }
    }

    /// Creates a new, empty namespace of this name: one loopback device, down.
    ///
    /// # Errors
    /// The name is taken or the caller lacks `CAP_SYS_ADMIN`; nothing is left then.
    pub fn create(name: &str) -> Result<Self, NetnsError> {
        let path = path_of(name)?;
        let refused = |action| {
            move |source: io::Error| NetnsError::Refused { action, name: name.to_owned(), source }
        };
        share_directory().map_err(refused("prepare /run/netns"))?;
        OpenOptions::new().write(true).create_new(true).mode(0o444).open(&path).map_err(
            |source| match source.kind() {
                io::ErrorKind::AlreadyExists => NetnsError::Exists { name: name.to_owned() },
                _ => NetnsError::Refused { action: "make the file", name: name.to_owned(), source },
            },
        )?;
        if let Err(source) = mount_new_namespace(&path) {
            // The mount failed, so the file is the empty one made above.
            let _ = std::fs::remove_file(&path);
            return Err(refused("make and mount the namespace")(source));
        }
        Self::open(name)
    }

    /// Returns the name, or `(current)` if it was not opened by name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number that `/proc/PID/ns/net` shows for processes inside (an inode of nsfs).
    ///
    /// # Errors
    /// The descriptor cannot be examined, which no kernel does to an open one.
    pub fn inode(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.ino())
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Removes the name. The namespace itself ends with its last process and descriptor.
///
/// # Errors
/// The namespace does not exist, or the caller lacks `CAP_SYS_ADMIN`.
pub fn delete(name: &str) -> Result<(), NetnsError> {
    let path = path_of(name)?;
    let refused = |action, source| NetnsError::Refused { action, name: name.to_owned(), source };
    match umount2(&path, MntFlags::MNT_DETACH) {
        // EINVAL: a file without a mount, left by a creator that died between the two steps.
        Ok(()) | Err(Errno::EINVAL) => {}
        Err(Errno::ENOENT) => return Err(NetnsError::Missing { name: name.to_owned() }),
        Err(errno) => return Err(refused("unmount it", errno.into())),
    }
    match std::fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(refused("remove the file", source))
        }
        _ => Ok(()),
    }
}

/// Returns the names of all namespaces, sorted; empty if none was ever created.
///
/// # Errors
/// The directory cannot be read.
pub fn list() -> Result<Vec<String>, NetnsError> {
    let refused = |source| NetnsError::Refused {
        action: "list /run/netns",
        name: "(all)".to_owned(),
        source,
    };
    let entries = match std::fs::read_dir(NAMESPACES) {
        Ok(entries) => entries,
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(refused(source)),
    };
    let mut names = Vec::new();
    for entry in entries {
        // Names that are no UTF-8 were created neither here nor by `ip netns`.
        if let Ok(name) = entry.map_err(refused)?.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Moves the calling thread, and only it, into the namespace.
///
/// # Errors
/// The caller lacks `CAP_SYS_ADMIN`.
pub fn enter(namespace: &NetNs) -> Result<(), NetnsError> {
    setns(namespace, CloneFlags::CLONE_NEWNET).map_err(|errno| NetnsError::Refused {
        action: "enter it",
        name: namespace.name.clone(),
        source: errno.into(),
    })
}

/// Runs a closure on a new thread inside the namespace and waits for it; a panic of the closure
/// continues in the caller.
///
/// Sockets and netlink handles opened inside stay in that namespace when they are handed out.
///
/// # Errors
/// The caller lacks `CAP_SYS_ADMIN` or no thread can be started.
pub fn in_namespace<T: Send>(
    namespace: &NetNs,
    closure: impl FnOnce() -> T + Send,
) -> Result<T, NetnsError> {
    on_fresh_thread(|| enter(namespace).map(|()| closure())).map_err(|source| {
        NetnsError::Refused { action: "start a thread", name: namespace.name.clone(), source }
    })?
}

/// Sets the command to start inside the namespace. Nothing else of the process changes: `/sys`
/// still shows the devices of the caller's namespace.
///
/// # Errors
/// No descriptor is left to hold the namespace until the command has started.
pub fn command_in<'command>(
    namespace: &NetNs,
    command: &'command mut Command,
) -> Result<&'command mut Command, NetnsError> {
    let held: OwnedFd = namespace
        .file
        .try_clone()
        .map_err(|source| NetnsError::Refused {
            action: "hold a descriptor",
            name: namespace.name.clone(),
            source,
        })?
        .into();
    let enter = move || setns(&held, CloneFlags::CLONE_NEWNET).map_err(io::Error::from);
    // SAFETY: the closure runs in the child between fork and exec, where only async-signal-safe
    // work is allowed: it makes one system call on a descriptor it owns, allocates nothing,
    // takes no lock, and a raw OS error converts without allocation.
    unsafe { command.pre_exec(enter) };
    Ok(command)
}

fn path_of(name: &str) -> Result<PathBuf, NetnsError> {
    let bad = name.is_empty()
        || name == "."
        || name == ".."
        || name.len() > NAMESPACE_NAME_LENGTH_MAX
        || name.contains(['/', '\0']);
    if bad {
        return Err(NetnsError::Name { name: name.chars().take(64).collect() });
    }
    Ok(Path::new(NAMESPACES).join(name))
}

/// Makes `/run/netns` a shared mount, as iproute2 does, so that namespaces created or removed here
/// appear or vanish in every mount namespace.
fn share_directory() -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(NAMESPACES)?;
    let share = || {
        mount(
            None::<&str>,
            NAMESPACES,
            None::<&str>,
            MsFlags::MS_SHARED | MsFlags::MS_REC,
            None::<&str>,
        )
    };
    match share() {
        Ok(()) => Ok(()),
        // The directory is no mount point yet; a bind mount onto itself makes it one.
        Err(Errno::EINVAL) => {
            mount(
                Some(NAMESPACES),
                NAMESPACES,
                None::<&str>,
                MsFlags::MS_BIND | MsFlags::MS_REC,
                None::<&str>,
            )?;
            Ok(share()?)
        }
        Err(errno) => Err(errno.into()),
    }
}

fn mount_new_namespace(path: &Path) -> io::Result<()> {
    on_fresh_thread(|| -> io::Result<()> {
        unshare(CloneFlags::CLONE_NEWNET)?;
        Ok(mount(Some(OWN_NAMESPACE), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)?)
    })?
}

/// Runs a closure on a new thread that ends with it, so that no pool thread stays in another
/// namespace.
fn on_fresh_thread<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread =
            std::thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, work)?;
        match thread.join() {
            Ok(value) => Ok(value),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_name_that_leaves_the_directory_is_refused() {
        for bad in ["", ".", "..", "a/b", "../x", &"a".repeat(256)] {
            assert!(matches!(NetNs::open(bad), Err(NetnsError::Name { .. })), "{bad:?}");
        }
    }

    #[test]
    fn a_namespace_is_made_listed_entered_and_removed() {
        if !testbase::root_or_skip("a network namespace") {
            return;
        }
        let scratch = Scratch::new("life");
        let name = scratch.name();
        assert!(list().unwrap().contains(&name.to_owned()));
        assert!(matches!(NetNs::create(name), Err(NetnsError::Exists { .. })));

        let own = NetNs::current().unwrap().inode().unwrap();
        let inside = in_namespace(&scratch.ns, || NetNs::current().unwrap().inode().unwrap());
        assert_eq!(inside.unwrap(), scratch.ns.inode().unwrap());
        assert_eq!(NetNs::current().unwrap().inode().unwrap(), own, "the caller has not moved");

        delete(name).unwrap();
        assert!(!list().unwrap().contains(&name.to_owned()));
        assert!(matches!(delete(name), Err(NetnsError::Missing { .. })));
        assert!(matches!(NetNs::open(name), Err(NetnsError::Missing { .. })));
    }

    #[test]
    fn a_namespace_is_seen_by_ip_netns_and_by_commands_inside() {
        if !testbase::root_or_skip("a network namespace") {
            return;
        }
        let scratch = Scratch::new("iproute");
        let listed = Command::new("ip").args(["netns", "list"]).output().unwrap();
        assert!(String::from_utf8_lossy(&listed.stdout).contains(scratch.name()));

        let mut command = Command::new("readlink");
        let inside = command_in(&scratch.ns, command.arg("/proc/self/ns/net")).unwrap().output();
        let expected = format!("net:[{}]\n", scratch.ns.inode().unwrap());
        assert_eq!(String::from_utf8(inside.unwrap().stdout).unwrap(), expected);
    }
}
