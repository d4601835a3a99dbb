//! External programs in a namespace: started, watched, ended in time.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use namespaces::netns::{NetNs, command_in};
use rustix::process::{Pid, Signal, kill_process};

use crate::wait_for;

/// Result of a program.
#[derive(Clone, Debug)]
pub struct Output {
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// Running program; it is killed on drop.
#[derive(Debug)]
pub struct Running {
    command: String,
    child: Child,
    outputs: Option<[JoinHandle<Vec<u8>>; 2]>,
}

/// Runs a program in a namespace and waits for it.
///
/// # Errors
/// The program cannot be started, or still runs after `timeout` and is killed.
pub fn run(namespace: &NetNs, argv: &[&str], timeout: Duration) -> Result<Output> {
    Running::start(namespace, argv)?.wait(timeout)
}

impl Running {
    /// Starts a program in a namespace.
    ///
    /// # Errors
    /// The program does not exist, or the command is empty.
    pub fn start(namespace: &NetNs, argv: &[&str]) -> Result<Self> {
        let [program, arguments @ ..] = argv else { bail!("there is no program to run") };
        // A background job of a script would ignore SIGINT, and with it Ctrl-C; this resets that.
        let mut command = Command::new("env");
        command.args(["--default-signal=INT", program]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command_in(namespace, &mut command)?
            .spawn()
            .with_context(|| format!("starting {program}"))?;
        let outputs = [
            child.stdout.take().map_or_else(|| read(std::io::empty()), read),
            child.stderr.take().map_or_else(|| read(std::io::empty()), read),
        ];
        Ok(Self { command: argv.join(" "), child, outputs: Some(outputs) })
    }

    /// Returns the process's number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends the program SIGINT, as Ctrl-C does.
    ///
    /// # Errors
    /// The program runs no more.
    pub fn interrupt(&self) -> Result<()> {
        // Not waited for yet: the number is still its own.
        kill_process(Pid::from_child(&self.child), Signal::INT).context(self.command.clone())
    }

    /// Waits for the program's end.
    ///
    /// # Errors
    /// The program still runs after `timeout` and is killed.
    pub fn wait(mut self, timeout: Duration) -> Result<Output> {
        let ended = wait_for(timeout, || self.child.try_wait().transpose());
        let Some(status) = ended else { bail!("'{}' still runs after {timeout:?}", self.command) };
        let texts = self.outputs.take().map(|handles| handles.map(JoinHandle::join));
        let [stdout, stderr] = texts
            .context("the output was taken before")?
            .map(|bytes| String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned());
        Ok(Output { status: status?, stdout, stderr })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that ended cannot be killed, and its status is known already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(mut source: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // Output before an error is kept; the program's status tells the rest.
        let _ = source.read_to_end(&mut bytes);
        bytes
    })
}
