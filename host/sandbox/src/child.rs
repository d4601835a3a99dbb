//! Descriptors that child processes inherit.

use nix::unistd::dup2_stderr;
use rustix::fd::{AsRawFd, OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::{FdFlags, fcntl_setfd};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Passes `fd` to the program that `command` starts, under the returned number; the caller's copy
/// lives as long as `command`.
pub fn inherit(command: &mut Command, fd: OwnedFd) -> RawFd {
    let number = fd.as_raw_fd();
    // SAFETY: between fork and exec only fcntl runs, which is async-signal-safe,
    // on a descriptor that the closure owns.
    unsafe {
        command.pre_exec(move || Ok(fcntl_setfd(&fd, FdFlags::empty())?));
    }
    number
}

/// Closes inherited descriptors in all programs that this process starts, except the standard
/// streams and descriptors passed by [`inherit`].
///
/// # Errors
/// The kernel refuses.
pub fn close_inherited_on_exec() -> io::Result<()> {
    let flags = libc::CLOSE_RANGE_CLOEXEC.cast_signed();
    // SAFETY: the call takes three numbers, and closes nothing in this process.
    let done = unsafe { libc::close_range(FIRST_OTHER, libc::c_uint::MAX, flags) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Number of the first descriptor after the standard streams.
const FIRST_OTHER: libc::c_uint = 3;

/// Reopens standard error for writing only. On a terminal each of the standard streams can be read.
///
/// # Errors
/// Standard error cannot be opened again, as a socket cannot; then it stays as it is.
pub fn reopen_standard_error_write_only() -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOCTTY | OFlags::CLOEXEC;
    let again = rustix::fs::open("/proc/self/fd/2", flags, Mode::empty())?;
    Ok(dup2_stderr(&again)?)
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

    #[test]
    fn inherited_descriptors_are_not_passed_on() {
        const INSIDE: &str = "TAM_CHILD_HANDS_DOWN";
        let has = |number: &str| {
            let test = format!("test -e /proc/self/fd/{number}");
            Command::new("/bin/sh").args(["-c", &test]).status().unwrap().success()
        };
        if let Some(number) = std::env::var_os(INSIDE) {
            let number = number.into_string().unwrap();
            assert!(has(&number));
            close_inherited_on_exec().unwrap();
            return assert!(!has(&number));
        }
        let (_ours, theirs) = crate::fd_passing::pair().unwrap();
        let name = "child::tests::inherited_descriptors_are_not_passed_on";
        let mut again = Command::new(std::env::current_exe().unwrap());
        let number = inherit(&mut again, theirs);
        again.args(["--exact", name]).env(INSIDE, number.to_string());
        assert!(again.output().unwrap().status.success());
    }

    #[test]
    fn standard_error_is_reopened_for_writing_only() {
        const INSIDE: &str = "TAM_CHILD_INSIDE";
        if std::env::var_os(INSIDE).is_some() {
            reopen_standard_error_write_only().unwrap();
            let flags = rustix::fs::fcntl_getfl(io::stderr()).unwrap();
            assert_eq!(flags & OFlags::ACCMODE, OFlags::WRONLY);
            eprint!("written");
            return;
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = std::fs::File::options().read(true).write(true).open(file.path()).unwrap();
        let name = "child::tests::standard_error_is_reopened_for_writing_only";
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", name, "--nocapture"]).env(INSIDE, "1").stderr(open);
        assert!(again.output().unwrap().status.success());
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "written");
    }
}
