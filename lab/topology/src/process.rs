//! Termination of a lab's processes: by a request, then by force. Never ends an unrelated process
//! that has reused a number.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Time for a process to end after the request: a node removes its pins and restores its devices in
/// a fraction of it.
const POLITE_TIME: Duration = Duration::from_secs(5);
/// Time for a killed process to disappear, unless it hangs in the kernel.
const KILL_TIME: Duration = Duration::from_secs(2);

/// Process held by a descriptor, so that its number cannot be reused while this lives.
pub(crate) struct Held {
    pub(crate) pid: u32,
    descriptor: OwnedFd,
}

impl Held {
    /// Returns the process of this number, if it started at this time.
    pub(crate) fn begun_at(pid: u32, started_then: u64) -> Option<Self> {
        let held = Self::open(pid)?;
        // Examined after it is held: from here on the number is this process's.
        (started(pid).ok()? == started_then).then_some(held)
    }

    fn open(pid: u32) -> Option<Self> {
        let number = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let descriptor = pidfd_open(number, PidfdFlags::empty()).ok()?;
        Some(Self { pid, descriptor })
    }

    fn signal(&self, signal: Signal) {
        // One that ended meanwhile (ESRCH) is what was wanted.
        let _ = pidfd_send_signal(&self.descriptor, signal);
    }

    /// Returns true if the process has ended before `end`.
    fn ended_by(&self, end: Instant) -> bool {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let timeout = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            match poll(&mut [PollFd::new(&self.descriptor, PollFlags::IN)], Some(&timeout)) {
                Ok(0) if left.is_zero() => return false,
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return true,
                Err(_) => return false,
            }
        }
    }
}

/// Ends processes: a request to all of them first, force for those that stay. Returns the numbers
/// of those that ended.
pub(crate) fn end(processes: Vec<Held>) -> Vec<u32> {
    processes.iter().for_each(|process| process.signal(Signal::TERM));
    let polite_end = Instant::now() + POLITE_TIME;
    let (mut ended, stubborn): (Vec<_>, Vec<_>) =
        processes.into_iter().partition(|process| process.ended_by(polite_end));
    stubborn.iter().for_each(|process| process.signal(Signal::KILL));
    let kill_end = Instant::now() + KILL_TIME;
    ended.extend(stubborn.into_iter().filter(|process| process.ended_by(kill_end)));
    ended.into_iter().map(|process| process.pid).collect()
}

/// Returns the processes, without this one, whose network namespace is one of these (by inode).
pub(crate) fn inside(namespaces: &[u64]) -> io::Result<Vec<Held>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if pid == std::process::id() {
            continue;
        }
        let Some(held) = Held::open(pid) else { continue };
        let namespace = fs::metadata(format!("/proc/{pid}/ns/net"));
        if namespace.is_ok_and(|namespace| namespaces.contains(&namespace.ino())) {
            found.push(held);
        }
    }
    Ok(found)
}

/// Returns the start time of a process in clock ticks since boot: field 22 of `/proc/PID/stat`,
/// proc(5).
pub(crate) fn started(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the program's name in parentheses, and may hold spaces and more
    // parentheses; the third comes after the last of them.
    stat.rsplit_once(')')
        .and_then(|(_, rest)| rest.split_ascii_whitespace().nth(19)?.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no starting time in its stat"))
}
