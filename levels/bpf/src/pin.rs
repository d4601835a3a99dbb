//! Pins: names in the BPF file system that keep a map, program or link alive.
//!
//! The names that a node uses are not decided here.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libbpf_sys as sys;

/// Kind of object that a descriptor refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A map.
    Map,
    /// A program.
    Program,
    /// A link.
    Link,
}

impl Kind {
    /// Returns the name in `/proc/self/fd`, the one that `anon_inode_getfd` is given in
    /// kernel/bpf/syscall.c.
    fn link_name(self) -> &'static str {
        match self {
            Self::Map => "bpf-map",
            Self::Program => "bpf-prog",
            // The name of a reopened link; a new one is a "bpf_link".
            Self::Link => "bpf-link",
        }
    }
}

/// Failure to pin, open or unpin an object: a fault of the operator, or a defect of this program.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// The path is taken.
    #[error("{path} is pinned already; remove it, or use what is pinned there")]
    Exists {
        /// Path of the pin.
        path: PathBuf,
    },
    /// The pin does not exist.
    #[error("nothing is pinned at {path}")]
    Missing {
        /// Path of the pin.
        path: PathBuf,
    },
    /// The directory is not in a BPF file system.
    #[error(
        "cannot pin at {path}: it does not lie in a BPF file system; 'mount -t bpf bpf /sys/fs/bpf' makes one"
    )]
    NotBpffs {
        /// Path of the pin.
        path: PathBuf,
    },
    /// An object of another kind is pinned there.
    #[error("{path} is a pinned {found}, not a {expected}")]
    Kind {
        /// Path of the pin.
        path: PathBuf,
        /// Requested kind, as in `/proc/self/fd`.
        expected: &'static str,
        /// Kind found, as in `/proc/self/fd`.
        found: String,
    },
    /// The kernel refused for another reason.
    #[error("cannot {action} {path}: {source}")]
    Kernel {
        /// `pin`, `open` or `unpin`.
        action: &'static str,
        /// Path of the pin.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Removes a pin; its object is freed when nothing else holds it.
///
/// # Errors
/// [`PinError::Missing`] when there is none; [`PinError::Kernel`] otherwise.
pub fn unpin(path: &Path) -> Result<(), PinError> {
    std::fs::remove_file(path).map_err(|error| refused("unpin", path, error))
}

/// Returns true if a directory lies in a BPF file system.
#[must_use]
pub fn is_bpffs(folder: &Path) -> bool {
    // include/uapi/linux/magic.h
    const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
    rustix::fs::statfs(folder).is_ok_and(|found| found.f_type as u64 & 0xffff_ffff == BPF_FS_MAGIC)
}

/// Usual mount point of the BPF file system.
pub const BPFFS: &str = "/sys/fs/bpf";

/// Mounts the BPF file system at its usual mount point, if it is not mounted yet: systemd does at
/// boot, elsewhere it may not have been needed. It stays, as after bpftool.
///
/// # Errors
/// The kernel refuses. In a mount namespace that is not the machine's (`ip netns
/// exec` makes one) nothing is mounted: pins would be gone with the last process in it.
pub fn mount_bpffs() -> io::Result<()> {
    let machines = std::fs::read_link("/proc/1/ns/mnt");
    // Some containers do not let even root inspect the first process: then this is the machine.
    let elsewhere = machines.is_ok_and(|machines| {
        std::fs::read_link("/proc/self/ns/mnt").is_ok_and(|own| own != machines)
    });
    if elsewhere || is_bpffs(Path::new(BPFFS)) {
        return Ok(());
    }
    use rustix::mount::{MountFlags, mount};
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RELATIME;
    Ok(mount("bpf", BPFFS, "bpf", flags, Some(c"mode=700"))?)
}

/// Pins the object behind `fd`.
pub(crate) fn pin(fd: BorrowedFd<'_>, path: &Path) -> Result<(), PinError> {
    let name = c_path("pin", path)?;
    // SAFETY: the name ends with NUL and lives across the call; fd is open while borrowed.
    let answer = unsafe { sys::bpf_obj_pin(fd.as_raw_fd(), name.as_ptr()) };
    if answer < 0 {
        return Err(refused("pin", path, io::Error::from_raw_os_error(-answer)));
    }
    Ok(())
}

/// Opens a pinned object, and checks its kind.
pub(crate) fn open(path: &Path, expected: Kind) -> Result<OwnedFd, PinError> {
    let name = c_path("open", path)?;
    // SAFETY: the name ends with NUL and lives across the call.
    let answer = unsafe { sys::bpf_obj_get(name.as_ptr()) };
    if answer < 0 {
        return Err(refused("open", path, io::Error::from_raw_os_error(-answer)));
    }
    // SAFETY: a new descriptor that nobody else holds.
    let fd = unsafe { OwnedFd::from_raw_fd(answer) };
    let shown = std::fs::read_link(format!("/proc/self/fd/{answer}"))
        .map_err(|error| refused("open", path, error))?;
    let shown = shown.to_string_lossy().into_owned();
    if !shown.ends_with(expected.link_name()) {
        let path = path.to_owned();
        return Err(PinError::Kind { path, expected: expected.link_name(), found: shown });
    }
    Ok(fd)
}

fn c_path(action: &'static str, path: &Path) -> Result<CString, PinError> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|error| refused(action, path, io::Error::new(io::ErrorKind::InvalidInput, error)))
}

fn refused(action: &'static str, path: &Path, source: io::Error) -> PinError {
    let path = path.to_owned();
    match source.raw_os_error() {
        Some(libc::EEXIST) => PinError::Exists { path },
        Some(libc::ENOENT) if action != "pin" => PinError::Missing { path },
        Some(libc::EPERM) if action == "pin" && !path.parent().is_some_and(is_bpffs) => {
            PinError::NotBpffs { path }
        }
        _ => PinError::Kernel { action, path, source },
    }
}
