//! Codecs of stream services: processes that the daemon starts for its cell, which may start none.
//!
//! ```text
//!  cell: WantsCodec ─▶ thread: `tam codec` ─▶ ffmpeg, one end of a socket
//!        ◀─ CodecStarted, the other end ──┘      │ its last words, its processor time
//!        ◀─ CodecEnded ──────────────────────────┘
//! ```
//!
//! A codec ends with its socket, whichever process holds the other end: so one whose daemon has
//! died continues, as its connection does. The daemon ends those that its cell no longer wants, and
//! all of them when the cell is gone, or the node stops.

use super::number::CellNumber;
use crate::completion::Completion;
use crate::deploy::PROGRAM;
use cell::protocol::{CodecSpec, ToCell};
use mpeg2::TranscodeParams;
use rustix::net::sockopt::set_socket_send_buffer_size_force;
use sandbox::process::ForeignProcess;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use stream_services::CODEC_BUFFER;
use units::Nanos;

/// The program that turns video into pictures.
const CODEC: &str = "ffmpeg";
/// Codecs at a time, whatever a cell asks for: two for each of its streams, of which there are at
/// most half as many.
const CODECS_MAX: usize = 256;
/// Bytes of a codec's last error output that are reported: a line.
const WORDS_MAX: usize = 300;
/// Bytes of what a codec says that are read at once.
const READ_LENGTH: usize = 4_096;

/// Number of a codec: cell, process of that cell, and the cell's own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CodecNumber {
    cell: CellNumber,
    life: u64,
    number: u64,
}

/// Change of a codec's process.
pub(crate) enum CodecNews {
    Started { process: ForeignProcess, socket: OwnedFd },
    Ended { why: String, took: Duration },
}

/// Message to a cell about a codec, with the socket of one that has started.
#[derive(Debug)]
pub(super) struct CodecWord {
    pub(super) cell: CellNumber,
    pub(super) message: ToCell,
    pub(super) socket: Option<OwnedFd>,
}

/// Running codecs.
pub(super) struct Codecs {
    /// Path of the program; `None` where it is not installed.
    program: Option<PathBuf>,
    guest_core: usize,
    news: Completion<(CodecNumber, CodecNews)>,
    /// Processes by cell and number; `None` while one is being started, and while one that is no
    /// longer wanted is being started.
    running: BTreeMap<(CellNumber, u64), Option<ForeignProcess>>,
    /// Number of cell losses, which identifies codecs of an earlier cell.
    life: u64,
}

impl Codecs {
    /// Looks for the program on the path of this process.
    pub(super) fn find(guest_core: usize, news: Completion<(CodecNumber, CodecNews)>) -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let program = std::env::split_paths(&path).map(|folder| folder.join(CODEC));
        let program = program.filter(|it| it.is_absolute()).find(is_program);
        Self { program, guest_core, news, running: BTreeMap::new(), life: 0 }
    }

    /// Returns the available codecs, for a cell that starts.
    pub(super) fn facts(&self) -> CodecSpec {
        let cores = sandbox::cores::count();
        // The guest core is the modules', where there is another one.
        let cores = if cores > 1 { cores - 1 } else { cores };
        let missing = self.program.is_none();
        let why = "this node has no ffmpeg on its path; install one and start the node again";
        CodecSpec { cores, missing: missing.then(|| why.to_owned()) }
    }

    /// Starts a codec that a cell asks for.
    ///
    /// # Errors
    /// The message to the cell that no codec runs.
    pub(super) fn handle_wish(
        &mut self,
        cell: CellNumber,
        number: u64,
        params: &str,
    ) -> Result<(), CodecWord> {
        let refused = |why: &str| CodecWord {
            cell,
            message: ToCell::CodecEnded(number, why.to_owned(), Nanos::ZERO),
            socket: None,
        };
        let program = self.program.clone().ok_or_else(|| refused("there is no ffmpeg"))?;
        if self.running.len() >= CODECS_MAX || self.running.contains_key(&(cell, number)) {
            return Err(refused("there are too many codecs"));
        }
        let params = TranscodeParams::parse(params.as_bytes());
        let params = params.map_err(|_| refused("what it is to do means nothing"))?;
        self.running.insert((cell, number), None);
        let (core, news) = (self.guest_core, self.news.clone());
        let which = CodecNumber { cell, life: self.life, number };
        let run = move || {
            let why = run(&program, core, &params, |started| news.send((which, started)));
            let (why, took) = why.unwrap_or_else(|error| (error.to_string(), Duration::ZERO));
            news.send((which, CodecNews::Ended { why, took }));
        };
        let thread = std::thread::Builder::new().name("codec".to_owned()).spawn(run);
        thread.map(drop).map_err(|error| {
            self.running.remove(&(cell, number));
            refused(&error.to_string())
        })
    }

    /// Ends a codec that its cell no longer needs.
    pub(super) fn handle_unwanted(&mut self, cell: CellNumber, number: u64) {
        if let Some(process) = self.running.remove(&(cell, number)).flatten()
            && let Err(error) = process.kill()
        {
            tracing::warn!(%error, "a codec's process could not be ended");
        }
    }

    /// Handles the start or end of a codec; returns the message to its cell, if that is still
    /// there.
    pub(super) fn handle_news(&mut self, which: CodecNumber, news: CodecNews) -> Option<CodecWord> {
        let CodecNumber { cell, life, number } = which;
        let is_known = life == self.life;
        let (message, socket) = match news {
            CodecNews::Started { process, socket } => {
                let pid = process.pid();
                match self.running.get_mut(&(cell, number)).filter(|_| is_known) {
                    Some(place) => *place = Some(process),
                    // The codec is no longer wanted.
                    None => drop(process.kill()),
                }
                (ToCell::CodecStarted(number, pid), Some(socket))
            }
            CodecNews::Ended { why, took } => {
                // One that is not wanted was ended here, which is no failure.
                let is_wanted = is_known && self.running.remove(&(cell, number)).is_some();
                let why = if is_wanted { why } else { String::new() };
                let took = Nanos(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
                (ToCell::CodecEnded(number, why, took), None)
            }
        };
        is_known.then_some(CodecWord { cell, message, socket })
    }

    /// Ends all codecs.
    pub(super) fn end(&mut self) {
        self.life += 1;
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

/// Runs a codec to its end: why it ended, nothing if as it should, and its processor time.
fn run(
    program: &Path,
    guest_core: usize,
    params: &TranscodeParams,
    started: impl FnOnce(CodecNews),
) -> io::Result<(String, Duration)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    // Else it is as much as the kernel gives.
    let _ = set_socket_send_buffer_size_force(&theirs, CODEC_BUFFER);
    let mut command = Command::new(PROGRAM);
    crate::deploy::away_from_terminal(&mut command).arg("codec").env_clear();
    command.args(["--guest-core", &guest_core.to_string()]).arg(program).arg("--");
    command.args(params.arguments());
    let (input, output) = (OwnedFd::from(theirs.try_clone()?), OwnedFd::from(theirs));
    let mut child = command.stdin(input).stdout(output).stderr(Stdio::piped()).spawn()?;
    // Its end of the socket is this process's as long as the command is there.
    drop(command);
    let process = match ForeignProcess::open(child.id()) {
        Ok(process) => process,
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
    };
    started(CodecNews::Started { process, socket: ours.into() });
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

    const CELL: CellNumber = CellNumber::FIRST;

    fn codecs(program: Option<&str>) -> Codecs {
        let mut codecs = Codecs::find(0, Completion::new(drop));
        codecs.program = program.map(PathBuf::from);
        codecs
    }

    fn why(word: CodecWord) -> String {
        match word.message {
            ToCell::CodecEnded(1, why, Nanos::ZERO) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_codec_that_cannot_be_is_refused_with_a_reason() {
        let refused = |codecs: &mut Codecs, params: &str| {
            why(codecs.handle_wish(CELL, 1, params).unwrap_err())
        };
        assert_eq!(refused(&mut codecs(None), ""), "there is no ffmpeg");
        let mut without_room = codecs(Some("/bin/false"));
        without_room.running = (0..CODECS_MAX as u64).map(|it| ((CELL, it + 9), None)).collect();
        assert_eq!(refused(&mut without_room, ""), "there are too many codecs");
        let mut others = codecs(Some("/bin/false"));
        assert_eq!(refused(&mut others, "dance"), "what it is to do means nothing");
        assert!(others.running.is_empty());
        assert!(codecs(None).facts().missing.is_some());
        assert!(others.facts().missing.is_none() && others.facts().cores > 0);
    }

    #[test]
    fn the_end_of_a_codec_is_reported_to_its_cell_and_to_no_later_one() {
        let mut codecs = codecs(Some("/bin/false"));
        let ended = || CodecNews::Ended { why: "status 1".to_owned(), took: Duration::ZERO };
        let which = CodecNumber { cell: CELL, life: 0, number: 1 };
        codecs.running.insert((CELL, 1), None);
        assert_eq!(why(codecs.handle_news(which, ended()).unwrap()), "status 1");
        codecs.running.insert((CELL, 1), None);
        codecs.handle_unwanted(CELL, 1);
        assert_eq!(why(codecs.handle_news(which, ended()).unwrap()), "", "it was ended here");
        codecs.running.insert((CELL, 1), None);
        codecs.end();
        assert!(codecs.handle_news(which, ended()).is_none(), "its cell is lost");
        assert!(codecs.running.is_empty());
    }

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
