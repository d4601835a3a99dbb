//! Another process, by a descriptor that keeps its number from becoming somebody else's.

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A process that is not our child.
#[derive(Debug)]
pub struct Stranger {
    pid: u32,
    fd: OwnedFd,
}

impl Stranger {
    /// The process that has this number now. Whether it is the one that is meant has to be
    /// asked after this: as long as that one lives, nobody else gets its number.
    ///
    /// # Errors
    /// When there is none.
    pub fn open(pid: u32) -> io::Result<Self> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self { pid, fd: pidfd_open(number, PidfdFlags::empty())? })
    }

    /// Its number.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Ends it at once; it is no error when it has ended already.
    ///
    /// # Errors
    /// When this process may not.
    pub fn kill(&self) -> io::Result<()> {
        match pidfd_send_signal(&self.fd, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until it has ended, at most so long; whether it has.
    ///
    /// # Errors
    /// What the kernel says.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_is_ended_and_waited_for() {
        let mut child = std::process::Command::new("/bin/sleep").arg("60").spawn().unwrap();
        let stranger = Stranger::open(child.id()).unwrap();
        assert!(!stranger.wait(Duration::ZERO).unwrap());
        stranger.kill().unwrap();
        assert!(stranger.wait(Duration::from_secs(10)).unwrap());
        child.wait().unwrap();
        stranger.kill().unwrap();
        assert!(Stranger::open(child.id()).is_err(), "its number names nobody");
    }
}
