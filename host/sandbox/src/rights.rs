//! Root, user and capabilities of a confined process.

use super::SandboxError;
use caps::{CapSet, Capability, CapsHashSet};
use rustix::process::{Gid, Uid};
use std::io;

/// Capability to lock memory, kept where a limit cannot express the amount.
const LOCK: Capability = Capability::CAP_IPC_LOCK;

/// First of a range of user IDs that no machine assigns: after those that containers get, before
/// those that do not fit a signed number (systemd's list of user numbers, "unused"). Adding the
/// process ID gives each running process a unique user.
const OWN_USERS: u32 = 0x7000_0000;

/// Changes root and working directory to an empty directory: the descriptor list of a thread that
/// has ended. Returns false where this process may not.
pub(super) fn leave_files() -> bool {
    let left = std::thread::spawn(|| -> io::Result<()> {
        // Root and working directory belong to the process, whichever thread changes them.
        rustix::process::chdir("/proc/thread-self/fdinfo")?;
        rustix::process::chroot(".")?;
        Ok(rustix::process::chdir("/")?)
    });
    matches!(left.join(), Ok(Ok(())))
}

/// Changes to a user ID that no other process has. Returns `None` where this process may not.
pub(super) fn become_nobody_else(keep: bool) -> Option<u32> {
    let number = OWN_USERS | rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
    let (user, group) = (Uid::from_raw(number), Gid::from_raw(number));
    rustix::thread::set_keep_capabilities(keep).ok()?;
    rustix::thread::set_thread_groups(&[]).ok()?;
    rustix::thread::set_thread_res_gid(group, group, group).ok()?;
    rustix::thread::set_thread_res_uid(user, user, user).ok()?;
    Some(number)
}

/// Drops all capabilities from all sets, except [`LOCK`] if `keep` is true.
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

/// Drops the bounding set, from which a program could still gain capabilities. Where this process
/// may not, no new privileges prevents the gain.
pub(super) fn drop_bounding() {
    let _ = caps::clear(None, CapSet::Bounding);
}
