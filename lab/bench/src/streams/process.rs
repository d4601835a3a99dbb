//! External programs that run beside a benchmark, and their usage.
//!
//! Processes end when their owner is dropped; if this program is killed instead, the kernel ends
//! them (prctl(2), PR_SET_PDEATHSIG).

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use namespaces::netns::{self, NetNs};
use rustix::process::{Pid, Signal, kill_process};

/// Program, and the Debian package that contains it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tool {
    program: &'static str,
    package: &'static str,
}

/// Load generator for HTTP.
pub(crate) const WRK: Tool = Tool { program: "wrk", package: "wrk" };
/// Origin and proxy.
pub(crate) const NGINX: Tool = Tool { program: "nginx", package: "nginx" };
/// Proxy.
pub(crate) const HAPROXY: Tool = Tool { program: "haproxy", package: "haproxy" };
/// Server of live audio.
pub(crate) const ICECAST: Tool = Tool { program: "icecast2", package: "icecast2" };
/// Encoder of films, and the baseline of a codec alone.
pub(crate) const FFMPEG: Tool = Tool { program: "ffmpeg", package: "ffmpeg" };

/// Wrapper that makes the kernel end a program with its parent, or runs it as another user.
const SETPRIV: Tool = Tool { program: "setpriv", package: "util-linux" };
/// Wrapper that pins a program to a CPU.
pub(crate) const TASKSET: Tool = Tool { program: "taskset", package: "util-linux" };

/// Folders of daemons that an ordinary PATH does not name.
const SYSTEM_FOLDERS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];
/// Time from the start until a program listens, and from its signal until it has ended.
const START_TIME_MAX: Duration = Duration::from_secs(10);
const STOP_TIME_MAX: Duration = Duration::from_secs(2);
/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Bytes at the end of a program's log that an error shows.
const LOG_SHOWN: usize = 1000;

impl Tool {
    /// Returns the program's path.
    pub(crate) fn find(self) -> Result<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).chain(SYSTEM_FOLDERS.map(PathBuf::from));
        folders.map(|folder| folder.join(self.program)).find(|file| file.is_file()).with_context(
            || {
                format!(
                    "there is no program '{}' on PATH or in {}: install the package {}",
                    self.program, SYSTEM_FOLDERS[0], self.package
                )
            },
        )
    }

    /// Returns the first line that the program prints for this version flag.
    pub(crate) fn version(self, flag: &str) -> Result<String> {
        let said = Command::new(self.find()?).arg(flag).stdin(Stdio::null()).output();
        let said = said.with_context(|| format!("asking {} for its version", self.program))?;
        let text = [said.stdout, said.stderr].concat();
        Ok(String::from_utf8_lossy(&text).lines().next().unwrap_or_default().trim().to_owned())
    }
}

/// Program that runs until this is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    name: &'static str,
    log: PathBuf,
}

impl Process {
    /// Starts a program in a namespace and on a CPU, with its output in a file of the folder. The
    /// program does not outlive the calling thread.
    pub(crate) fn start(
        tool: Tool,
        arguments: &[&str],
        place: (&NetNs, usize),
        folder: &Path,
    ) -> Result<Self> {
        Self::start_as(None, tool, arguments, place, folder)
    }

    /// Starts a program like [`Self::start`], as another user and group.
    pub(crate) fn start_as(
        user: Option<u32>,
        tool: Tool,
        arguments: &[&str],
        (namespace, cpu): (&NetNs, usize),
        folder: &Path,
    ) -> Result<Self> {
        let log = folder.join(format!("{}.log", tool.program));
        let file = File::create(&log).context("making a program's log")?;
        // Each runs the next in its place: the process stays the same.
        let mut command = Command::new(SETPRIV.find()?);
        command.args(["--pdeathsig", "TERM"]);
        if let Some(user) = user {
            command.arg(format!("--reuid={user}")).arg(format!("--regid={user}"));
            command.arg("--clear-groups");
        }
        command.arg(TASKSET.find()?).arg("-c").arg(cpu.to_string()).arg(tool.find()?);
        command.args(arguments).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        netns::command_in(namespace, &mut command)?;
        let child = command.spawn().with_context(|| format!("starting {}", tool.program))?;
        Ok(Self { child, name: tool.program, log })
    }

    /// Waits until the program accepts connections.
    pub(crate) fn listens(mut self, namespace: &NetNs, at: SocketAddr) -> Result<Self> {
        let end = Instant::now() + START_TIME_MAX;
        loop {
            let connected = netns::in_namespace(namespace, || TcpStream::connect(at))?;
            let Err(error) = connected else { return Ok(self) };
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended with {status} instead of listening: {}", self.name, self.said());
            }
            if Instant::now() >= end {
                return Err(anyhow!(error).context(format!(
                    "{} does not listen at {at}: {}",
                    self.name,
                    self.said()
                )));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns the program's process number, and those of its children.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let mut found = vec![self.child.id()];
        found.extend(children(self.child.id()));
        found
    }

    fn said(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let end = &text[text.len().saturating_sub(LOG_SHOWN)..];
        String::from_utf8_lossy(end).trim().to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let children = children(self.child.id());
        signal(self.child.id(), Signal::TERM);
        let end = Instant::now() + STOP_TIME_MAX;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(POLL_INTERVAL);
        }
        if matches!(self.child.try_wait(), Ok(None)) {
            // Children first, since their numbers could be reused once their parent is gone.
            children.into_iter().for_each(|child| signal(child, Signal::KILL));
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn signal(process: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(process).ok().and_then(Pid::from_raw) {
        // One that has ended needs none.
        let _ = kill_process(pid, signal);
    }
}

/// Runs `work` on a CPU; processes that it starts stay there.
pub(crate) fn on_cpu<T: Send>(cpu: usize, work: impl FnOnce() -> T + Send) -> Result<T> {
    let thread = || -> std::io::Result<T> {
        sandbox::cores::pin_to(cpu)?;
        Ok(work())
    };
    std::thread::scope(|scope| scope.spawn(thread).join())
        .map_err(|_| anyhow!("a thread of the benchmark ended"))?
        .with_context(|| format!("binding to CPU {cpu}"))
}

fn children(process: u32) -> Vec<u32> {
    let path = format!("/proc/{process}/task/{process}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|child| child.parse().ok()).collect()
}

/// Returns the processor time that processes have used, with their threads, including ended ones.
pub(crate) fn cpu_time(processes: &[u32]) -> Result<Duration> {
    let ticks = rustix::param::clock_ticks_per_second();
    processes.iter().try_fold(Duration::ZERO, |sum, process| {
        let text = std::fs::read_to_string(format!("/proc/{process}/stat"))
            .with_context(|| format!("reading the time of process {process}: has it ended?"))?;
        let used = stat_ticks(&text).context("a process's time is not understood")?;
        Ok(sum + Duration::from_secs_f64(used as f64 / ticks as f64))
    })
}

/// Returns utime plus stime of proc_pid_stat(5); the name before them may have spaces.
fn stat_ticks(text: &str) -> Option<u64> {
    let (_, fields) = text.rsplit_once(')')?;
    let mut times = fields.split_ascii_whitespace().skip(11).map(str::parse::<u64>);
    Some(times.next()?.ok()? + times.next()?.ok()?)
}

/// Returns the memory of processes as PSS in bytes: a shared page is divided among its users.
pub(crate) fn memory(processes: &[u32]) -> Result<u64> {
    processes.iter().try_fold(0, |sum, process| {
        let text = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup"))
            .with_context(|| format!("reading the memory of process {process}: has it ended?"))?;
        Ok(sum + pss(&text).context("a process's memory is not understood")?)
    })
}

/// Returns the bytes of proc_pid_smaps_rollup's line `Pss`.
fn pss(text: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    Some(value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt as _;

    #[test]
    fn a_missing_program_names_its_package() {
        let none = Tool { program: "tamandua-none", package: "the-package" };
        let error = none.find().unwrap_err().to_string();
        assert!(error.contains("'tamandua-none'") && error.contains("the-package"), "{error}");
    }

    #[test]
    fn processor_time_and_memory_of_a_process_are_parsed() {
        let stat = "7 (a (strange) name) S 1 7 7 0 -1 4194304 1 2 3 4 150 25 0 0 20 0 1 0 9 1 1";
        assert_eq!(stat_ticks(stat), Some(175));
        assert_eq!(stat_ticks("7 (cut) S 1"), None);
        assert_eq!(pss("Rss:  9 kB\nPss:     12 kB\nPss_Anon: 3 kB\n"), Some(12 * 1024));
        assert_eq!(pss("Rss: 9 kB\n"), None);
        let own = [std::process::id()];
        assert!(memory(&own).unwrap() > 0);
        assert!(cpu_time(&own).unwrap() < Duration::from_secs(86_400));
    }

    #[test]
    fn a_program_ends_with_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let sleeps = Tool { program: "sleep", package: "coreutils" };
        let here = NetNs::current().unwrap();
        let process = Process::start(sleeps, &["60"], (&here, 0), folder.path()).unwrap();
        let path = format!("/proc/{}", process.child.id());
        assert!(Path::new(&path).exists());
        drop(process);
        assert!(!Path::new(&path).exists());
    }

    #[test]
    fn a_program_ends_with_who_started_it() {
        let starts = |user: Option<u32>| {
            let folder = tempfile::tempdir().unwrap();
            let sleeps = Tool { program: "sleep", package: "coreutils" };
            let here = NetNs::current().unwrap();
            let (arguments, place) = (["60"], (&here, 0));
            let process = Process::start_as(user, sleeps, &arguments, place, folder.path());
            let process = process.unwrap();
            let name = format!("/proc/{}/comm", process.child.id());
            while std::fs::read_to_string(&name).unwrap().trim() != "sleep" {
                std::thread::sleep(POLL_INTERVAL);
            }
            process
        };
        // Only root may become somebody else.
        let is_root = rustix::process::geteuid().is_root();
        for user in [None, is_root.then_some(65_534)] {
            let mut process = std::thread::spawn(move || starts(user)).join().unwrap();
            let status = process.child.wait().unwrap();
            assert_eq!(status.signal(), Some(Signal::TERM.as_raw()), "{user:?}");
        }
    }

    #[test]
    fn a_program_that_ends_instead_of_listening_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let complains = Tool { program: "ls", package: "coreutils" };
        let here = NetNs::current().unwrap();
        let arguments = ["/tamandua-none"];
        let process = Process::start(complains, &arguments, (&here, 0), folder.path()).unwrap();
        let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
        let error = process.listens(&here, nobody).unwrap_err().to_string();
        assert!(error.contains("ls ended with") && error.contains("tamandua-none"), "{error}");
    }
}
