//! Processes by descriptor, which cannot refer to another process when the id is reused.

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Process that is not a child of this one.
#[derive(Debug)]
pub struct ForeignProcess {
    pid: u32,
    fd: OwnedFd,
}

impl ForeignProcess {
    /// Opens the process that has this id now. Whether it is the right one has to be checked after
    /// this: as long as that one lives, no other gets its id.
    ///
    /// # Errors
    /// The process does not exist.
    pub fn open(pid: u32) -> io::Result<Self> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self { pid, fd: pidfd_open(number, PidfdFlags::empty())? })
    }

    /// Returns the process id.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Kills the process; it is no error when it has ended already.
    ///
    /// # Errors
    /// The caller may not signal the process.
    pub fn kill(&self) -> io::Result<()> {
        match pidfd_send_signal(&self.fd, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the process has ended, at most this long; returns true if it has.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn wait(&self, most: Duration) -> io::Result<bool> {
        let timeout =
            Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Waits until a child of this process has ended; returns the processor time of all its threads.
/// Its status is still to be waited for.
///
/// # Errors
/// The process is no child of this one.
pub fn cpu_time_at_end(child: u32) -> io::Result<Duration> {
    let (how, none) = (libc::WEXITED | libc::WNOWAIT, std::ptr::null_mut::<libc::siginfo_t>());
    loop {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the kernel writes at most one rusage to where `usage` has room for one, and no
        // siginfo, as it is told of no place for it (waitid(2), the system call's fifth argument).
        // WHY: no library has a wait that leaves the status and says the processor time.
        let done = unsafe {
            libc::syscall(libc::SYS_waitid, libc::P_PID, child, none, how, usage.as_mut_ptr())
        };
        if done == 0 {
            // SAFETY: every bit pattern is an rusage, and it began as zeros.
            let usage = unsafe { usage.assume_init() };
            return Ok(span(usage.ru_utime) + span(usage.ru_stime));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Returns the processor time that a process has taken so far, all its threads together.
///
/// # Errors
/// The process does not exist.
pub fn cpu_time(pid: u32) -> io::Result<Duration> {
    let number = libc::clockid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    // The clock id of a process: include/linux/posix-timers_types.h, CPUCLOCK_SCHED of all threads.
    let clock = (!number << 3) | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec where there is room for one.
    // WHY: no library names the clock of another process but by a descriptor.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Ok(Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanos))
}

fn span(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_time_of_a_child_is_known_when_it_has_ended_and_its_status_afterwards() {
        let work = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; exit 3";
        let mut child = std::process::Command::new("/bin/sh").args(["-c", work]).spawn().unwrap();
        let took = cpu_time_at_end(child.id()).unwrap();
        assert!((Duration::from_millis(1)..Duration::from_secs(60)).contains(&took), "{took:?}");
        assert_eq!(child.wait().unwrap().code(), Some(3));
        assert!(cpu_time_at_end(child.id()).is_err(), "it is nobody's child any more");
    }

    #[test]
    fn the_processor_time_of_a_process_is_known_while_it_runs() {
        let mut shell = std::process::Command::new("/bin/sh");
        let mut child = shell.args(["-c", "while :; do :; done"]).spawn().unwrap();
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while cpu_time(child.id()).unwrap() < Duration::from_millis(5) {
            assert!(std::time::Instant::now() < until, "it runs");
        }
        child.kill().unwrap();
        let took = cpu_time_at_end(child.id()).unwrap();
        assert!(took >= Duration::from_millis(4), "{took:?}");
        child.wait().unwrap();
        assert!(cpu_time(child.id()).is_err());
        assert!(cpu_time(u32::MAX).is_err());
    }

    #[test]
    fn a_stranger_is_ended_and_waited_for() {
        let mut child = std::process::Command::new("/bin/sleep").arg("60").spawn().unwrap();
        let stranger = ForeignProcess::open(child.id()).unwrap();
        assert!(!stranger.wait(Duration::ZERO).unwrap());
        stranger.kill().unwrap();
        assert!(stranger.wait(Duration::from_secs(10)).unwrap());
        child.wait().unwrap();
        stranger.kill().unwrap();
        assert!(ForeignProcess::open(child.id()).is_err(), "its number names nobody");
    }
}
