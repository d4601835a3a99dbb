//! Codecs of stream services: processes that the daemon starts for its cell, which may start none.
//!
//! ```text
//!  cell: WantsCodec ─▶ thread: `tam codec` ─▶ ffmpeg, one end of a socket
//!        ◀─ CodecStarted, the other end ──┘      │ its last words, its processor time
//!        ◀─ CodecEnded ──────────────────────────┘
//! ```
//!
//! A codec ends with its socket, whoever holds the other end: so one whose daemon has died goes on,
//! as its connection does. The daemon ends those that its cell does not want any more, and all of
//! them when the cell is gone, or the node stops.

use crate::daemon::Daemon;
use crate::deploy::PROGRAM;
use crate::done::Done;
use cell::protocol::{CodecFacts, ToCell};
use mpeg2::Wish;
use rustix::net::sockopt::set_socket_send_buffer_size_force;
use sandbox::process::Stranger;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use stream_services::CODEC_BUFFER;
use tokio::sync::mpsc::UnboundedSender;
use units::Nanos;

/// The program that turns video into pictures.
const CODEC: &str = "ffmpeg";
/// Codecs at a time, whatever a cell asks for: two for each of its streams, of which there are at
/// most half as many.
const CODECS_MAX: usize = 256;
/// Bytes of a codec's last words that are told: a line.
const WORDS_MAX: usize = 300;
/// Bytes of what a codec says that are read at once.
const READ_LENGTH: usize = 4_096;

/// Those that run, by the cell's numbers.
#[derive(Default)]
pub(crate) struct Codecs {
    /// Where the program is.
    program: Option<PathBuf>,
    /// None while one is being started, and while one is that is not wanted any more.
    running: BTreeMap<u64, Option<Stranger>>,
    /// Those of cells before do not count.
    cell: u64,
}

/// A codec that was started, or has ended.
pub(crate) enum CodecNews {
    Started { process: Stranger, socket: OwnedFd },
    Ended { why: String, took: Duration },
}

/// Which one: the cell's and its own number.
pub(crate) type CodecNumber = (u64, u64);

impl Codecs {
    /// Looks for the program on the path of this process.
    pub(crate) fn find() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let program = std::env::split_paths(&path).map(|folder| folder.join(CODEC));
        Self { program: program.filter(|it| it.is_absolute()).find(is_program), ..Self::default() }
    }

    /// Ends all of them.
    pub(crate) fn end(&mut self) {
        self.cell += 1;
        for process in std::mem::take(&mut self.running).into_values().flatten() {
            // One that cannot be ended has ended, or ends with its socket.
            let _ = process.kill();
        }
    }
}

fn is_program(path: &PathBuf) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let about = std::fs::metadata(path);
    about.is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
}

impl Daemon {
    /// What there is of codecs, for a cell that starts.
    pub(crate) fn codec_facts(&self) -> CodecFacts {
        let cores = sandbox::cores::count();
        // The guest core is the modules', where there is another one.
        let cores = if cores > 1 { cores - 1 } else { cores };
        let missing = self.codecs.program.is_none();
        let why = "this node has no ffmpeg on its path; install one and start the node again";
        CodecFacts { cores, missing: missing.then(|| why.to_owned()) }
    }

    /// The cell wants a codec.
    pub(crate) fn start_codec(&mut self, number: u64, wish: &str) {
        let refused = |why: &str| ToCell::CodecEnded(number, why.to_owned(), Nanos::ZERO);
        let Some(program) = self.codecs.program.clone() else {
            return self.tell(&refused("there is no ffmpeg"), &[]);
        };
        if self.codecs.running.len() >= CODECS_MAX || self.codecs.running.contains_key(&number) {
            return self.tell(&refused("there are too many codecs"), &[]);
        }
        let Ok(wish) = Wish::parse(wish.as_bytes()) else {
            return self.tell(&refused("what it is to do means nothing"), &[]);
        };
        self.codecs.running.insert(number, None);
        let (core, done) = (self.guest_core, self.done.clone());
        let which = (self.codecs.cell, number);
        let run = move || {
            let why = run(&program, core, &wish, which, &done);
            let (why, took) = why.unwrap_or_else(|error| (error.to_string(), Duration::ZERO));
            let _ = done.send(Done::Codec(which, CodecNews::Ended { why, took }));
        };
        let thread = std::thread::Builder::new().name("codec".to_owned()).spawn(run);
        if let Err(error) = thread {
            self.codecs.running.remove(&number);
            self.tell(&refused(&error.to_string()), &[]);
        }
    }

    /// A codec is not wanted any more.
    pub(crate) fn stop_codec(&mut self, number: u64) {
        if let Some(process) = self.codecs.running.remove(&number).flatten()
            && let Err(error) = process.kill()
        {
            tracing::warn!(%error, "a codec could not be ended");
        }
    }

    /// One was started, or has ended.
    pub(crate) fn codec(&mut self, (cell, number): CodecNumber, news: CodecNews) {
        let is_known = cell == self.codecs.cell;
        match news {
            CodecNews::Started { process, socket } => {
                let pid = process.pid();
                match self.codecs.running.get_mut(&number).filter(|_| is_known) {
                    Some(place) => *place = Some(process),
                    // Nobody wants it any more.
                    None => drop(process.kill()),
                }
                if is_known {
                    self.tell(&ToCell::CodecStarted(number, pid), &[socket.as_fd()]);
                }
            }
            CodecNews::Ended { why, took } => {
                // One that is not wanted was ended here, which is no failure.
                let is_wanted = is_known && self.codecs.running.remove(&number).is_some();
                let why = if is_wanted { why } else { String::new() };
                let took = Nanos(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
                if is_known {
                    self.tell(&ToCell::CodecEnded(number, why, took), &[]);
                }
            }
        }
    }
}

/// Runs a codec to its end: why it ended, nothing if as it should, and its processor time.
fn run(
    program: &Path,
    guest_core: usize,
    wish: &Wish,
    which: CodecNumber,
    done: &UnboundedSender<Done>,
) -> io::Result<(String, Duration)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    // Else it is as much as the kernel gives.
    let _ = set_socket_send_buffer_size_force(&theirs, CODEC_BUFFER);
    let mut command = Command::new(PROGRAM);
    crate::deploy::away_from_terminal(&mut command).arg("codec").env_clear();
    command.args(["--guest-core", &guest_core.to_string()]).arg(program).arg("--");
    command.args(wish.arguments());
    let (input, output) = (OwnedFd::from(theirs.try_clone()?), OwnedFd::from(theirs));
    let mut child = command.stdin(input).stdout(output).stderr(Stdio::piped()).spawn()?;
    // Its end of the socket is this process's as long as the command is there.
    drop(command);
    let process = match Stranger::open(child.id()) {
        Ok(process) => process,
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
    };
    let _ = done.send(Done::Codec(which, CodecNews::Started { process, socket: ours.into() }));
    let words = last_words(&mut child);
    let took = sandbox::process::cpu_time_at_end(child.id()).unwrap_or_default();
    let status = child.wait()?;
    let why = match (status.success(), words.is_empty()) {
        (true, _) => String::new(),
        (false, true) => status.to_string(),
        (false, false) => format!("{status}: {words}"),
    };
    Ok((why, took))
}

/// The last line that a codec says, when it says nothing more.
fn last_words(child: &mut Child) -> String {
    let Some(mut said) = child.stderr.take() else { return String::new() };
    let (mut line, mut last) = (Vec::new(), Vec::new());
    let mut buffer = [0; READ_LENGTH];
    while let Ok(count @ 1..) = said.read(&mut buffer) {
        for byte in &buffer[..count] {
            match byte {
                b'\n' | b'\r' if line.is_empty() => {}
                b'\n' | b'\r' => last = std::mem::take(&mut line),
                byte if line.len() < WORDS_MAX => line.push(*byte),
                _ => {}
            }
        }
    }
    let words = if line.is_empty() { last } else { line };
    String::from_utf8_lossy(&words).escape_debug().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_what_a_codec_says_is_kept() {
        let said = |text: &str| {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", text]).stderr(Stdio::piped());
            let mut child = shell.spawn().unwrap();
            let words = last_words(&mut child);
            child.wait().unwrap();
            words
        };
        assert_eq!(said("echo one >&2; echo two >&2; echo >&2"), "two");
        assert_eq!(said("printf 'one\\ntwo' >&2"), "two");
        assert_eq!(said("printf '\\033[1m' >&2"), "\\u{1b}[1m");
        assert_eq!(said(":"), "");
        assert_eq!(said("yes x | tr -d '\\n' | head -c 1000000 >&2").len(), WORDS_MAX);
    }
}
