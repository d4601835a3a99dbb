//! Child processes that inherit a descriptor.

use rustix::fd::{AsRawFd, OwnedFd, RawFd};
use rustix::io::{FdFlags, fcntl_setfd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Has the program that `command` starts inherit `fd` under the number that is
/// returned; the caller's copy lives as long as `command`.
pub fn inherit(command: &mut Command, fd: OwnedFd) -> RawFd {
    let number = fd.as_raw_fd();
    // SAFETY: between fork and exec only fcntl runs, which is async-signal-safe,
    // on a descriptor that the closure owns.
    unsafe {
        command.pre_exec(move || Ok(fcntl_setfd(&fd, FdFlags::empty())?));
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_child_has_the_descriptor() {
        let (ours, theirs) = crate::fd_passing::pair().unwrap();
        let mut command = Command::new("/bin/sh");
        let number = inherit(&mut command, theirs);
        let status = command.args(["-c", &format!("test -e /proc/self/fd/{number}")]).status();
        assert!(status.unwrap().success());
        drop(ours);
    }
}
