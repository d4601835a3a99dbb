//! Root, user and capabilities of a confined process.

use super::SandboxError;
use caps::{CapSet, Capability, CapsHashSet};
use rustix::process::{Gid, Uid};
use std::io;

/// The capability to lock memory, where a limit cannot say how much.
const LOCK: Capability = Capability::CAP_IPC_LOCK;

/// Users from this number on are nobody's on any machine: behind those that containers get, before
/// those that do not fit a signed number (systemd's list of user numbers, "unused"). With the
/// process number added each process is another user as long as it lives.
const OWN_USERS: u32 = 0x7000_0000;

/// Leaves the file system for a folder that has nothing in it: the list of descriptors of a
/// thread that has ended. False where this process may not.
pub(super) fn leave_files() -> bool {
    let left = std::thread::spawn(|| -> io::Result<()> {
        // Root and working folder are the process's, whichever thread changes them.
        rustix::process::chdir("/proc/thread-self/fdinfo")?;
        rustix::process::chroot(".")?;
        Ok(rustix::process::chdir("/")?)
    });
    matches!(left.join(), Ok(Ok(())))
}

/// Becomes a user that no other process is. None where this process may not.
pub(super) fn become_nobody_else(keep: bool) -> Option<u32> {
    let number = OWN_USERS | rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
    let (user, group) = (Uid::from_raw(number), Gid::from_raw(number));
    rustix::thread::set_keep_capabilities(keep).ok()?;
    rustix::thread::set_thread_groups(&[]).ok()?;
    rustix::thread::set_thread_res_gid(group, group, group).ok()?;
    rustix::thread::set_thread_res_uid(user, user, user).ok()?;
    Some(number)
}

/// No capability in any set, but for [`LOCK`] if it has to be.
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

/// Takes the capabilities away that a program could still come by. Where this process may not,
/// there is none that it could come by either: no new privileges.
pub(super) fn drop_bounding() {
    let _ = caps::clear(None, CapSet::Bounding);
}
