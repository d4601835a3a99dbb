//! Root, user and capabilities of a confined process.

use super::SandboxError;
use caps::{CapSet, Capability, CapsHashSet};
use rustix::process::{Gid, Uid};
use std::io;

/// Capability to lock memory, where a limit cannot say how much.
const LOCK: Capability = Capability::CAP_IPC_LOCK;

/// First of the user ids that are unused on any machine: above those of containers, below those
/// that do not fit a signed number (systemd's list of user numbers, "unused"). With the process id
/// added, each process has a different user while it lives.
const OWN_USERS: u32 = 0x7000_0000;

/// Changes the root to an empty folder: the list of descriptors of a thread that has ended. Returns
/// false where this process may not.
pub(super) fn enter_empty_root() -> bool {
    let left = std::thread::spawn(|| -> io::Result<()> {
        // Root and working folder are shared by all threads.
        rustix::process::chdir("/proc/thread-self/fdinfo")?;
        rustix::process::chroot(".")?;
        Ok(rustix::process::chdir("/")?)
    });
    matches!(left.join(), Ok(Ok(())))
}

/// Changes to a user id that no other process has. Returns `None` where this process may not.
pub(super) fn become_unique_user(keep: bool) -> Option<u32> {
    let number = OWN_USERS | rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
    let (user, group) = (Uid::from_raw(number), Gid::from_raw(number));
    rustix::thread::set_keep_capabilities(keep).ok()?;
    rustix::thread::set_thread_groups(&[]).ok()?;
    rustix::thread::set_thread_res_gid(group, group, group).ok()?;
    rustix::thread::set_thread_res_uid(user, user, user).ok()?;
    Some(number)
}

/// Drops all capabilities in every set, except [`LOCK`] if `keep` is set.
pub(super) fn drop_capabilities(keep: bool) -> Result<(), SandboxError> {
    drop_all(keep).map_err(|error| SandboxError::Capabilities(error.to_string()))
}

fn drop_all(keep: bool) -> Result<(), caps::errors::CapsError> {
    let permitted = caps::read(None, CapSet::Permitted)?;
    let kept: CapsHashSet = permitted.into_iter().filter(|held| keep && *held == LOCK).collect();
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    caps::set(None, CapSet::Effective, &kept)?;
    caps::set(None, CapSet::Permitted, &kept)
}

/// Drops capabilities from the bounding set, through which a program could regain them. Where this
/// process may not, it cannot regain any either: no new privileges.
pub(super) fn drop_bounding() {
    let _ = caps::clear(None, CapSet::Bounding);
}
