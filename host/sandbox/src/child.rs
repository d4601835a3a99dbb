//! Child processes: the descriptors that they inherit.

use nix::unistd::dup2_stderr;
use rustix::fd::{AsRawFd, OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::{FdFlags, fcntl_setfd};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Lets the program that `command` starts inherit `fd` under the returned number; the caller's copy
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

/// Marks all inherited descriptors of this process close-on-exec, except the standard streams and
/// those passed to [`inherit`].
///
/// # Errors When the kernel refuses.
pub fn hand_nothing_down() -> io::Result<()> {
    let flags = libc::CLOSE_RANGE_CLOEXEC.cast_signed();
    // SAFETY: the call takes three numbers, and closes nothing in this process.
    let done = unsafe { libc::close_range(FIRST_OTHER, libc::c_uint::MAX, flags) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// First descriptor after the standard streams.
const FIRST_OTHER: libc::c_uint = 3;

/// Reopens standard error write-only. A terminal can be read through each of the standard streams,
/// whatever its direction.
///
/// # Errors When it cannot be opened again, as a socket cannot; then it stays as it is.
pub fn only_write_to_standard_error() -> io::Result<()> {
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
    fn what_a_process_was_given_it_does_not_hand_down() {
        const INSIDE: &str = "TAM_CHILD_HANDS_DOWN";
        let has = |number: &str| {
            let test = format!("test -e /proc/self/fd/{number}");
            Command::new("/bin/sh").args(["-c", &test]).status().unwrap().success()
        };
        if let Some(number) = std::env::var_os(INSIDE) {
            let number = number.into_string().unwrap();
            assert!(has(&number));
            hand_nothing_down().unwrap();
            return assert!(!has(&number));
        }
        let (_ours, theirs) = crate::fd_passing::pair().unwrap();
        let name = "child::tests::what_a_process_was_given_it_does_not_hand_down";
        let mut again = Command::new(std::env::current_exe().unwrap());
        let number = inherit(&mut again, theirs);
        again.args(["--exact", name]).env(INSIDE, number.to_string());
        assert!(again.output().unwrap().status.success());
    }

    #[test]
    fn what_could_be_read_by_standard_error_is_only_written() {
        const INSIDE: &str = "TAM_CHILD_INSIDE";
        if std::env::var_os(INSIDE).is_some() {
            only_write_to_standard_error().unwrap();
            let flags = rustix::fs::fcntl_getfl(io::stderr()).unwrap();
            assert_eq!(flags & OFlags::ACCMODE, OFlags::WRONLY);
            eprint!("written");
            return;
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = std::fs::File::options().read(true).write(true).open(file.path()).unwrap();
        let name = "child::tests::what_could_be_read_by_standard_error_is_only_written";
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", name, "--nocapture"]).env(INSIDE, "1").stderr(open);
        assert!(again.output().unwrap().status.success());
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "written");
    }
}
