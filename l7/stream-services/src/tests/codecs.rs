//! Codecs for tests: real ffmpeg processes, and generated films.

use crate::CODEC_BUFFER;
use crate::codecs::{CodecEvent, Codecs, Refusal, Share};
use mpeg2::{Header, Splitter, TranscodeParams};
use rustix::net::sockopt::set_socket_send_buffer_size_force;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::rc::{Rc, Weak};

/// Returns true if ffmpeg is installed; otherwise the test of this thread counts as skipped.
pub(crate) fn has_ffmpeg() -> bool {
    let has = Command::new("ffmpeg").arg("-version").output().is_ok_and(|it| it.status.success());
    if !has {
        testbase::skip_this("there is no ffmpeg on the path");
    }
    has
}

/// Container format of a film.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Elementary,
    Program,
    Transport,
}

impl Source {
    /// Returns ffmpeg's names of the muxer and the demuxer.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Elementary => ("mpeg2video", "mpegvideo"),
            Self::Program => ("vob", "mpeg"),
            Self::Transport => ("mpegts", "mpegts"),
        }
    }
}

/// Runs ffmpeg with these arguments on `input`; returns its output.
fn run(arguments: &[&str], input: Vec<u8>) -> Vec<u8> {
    let mut child = Command::new("ffmpeg")
        .args(["-v", "error", "-nostdin"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        let _ = stdin.write_all(&input);
    });
    let mut output = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut output).unwrap();
    writer.join().unwrap();
    assert!(child.wait().unwrap().success(), "{arguments:?}");
    output
}

/// Returns a film of this many seconds, with B pictures and sound.
pub(crate) fn source(kind: Source, rate: &str, seconds: u32) -> Vec<u8> {
    let picture = format!("testsrc=size=352x288:rate={rate}:duration={seconds}");
    let sound = format!("sine=frequency=440:duration={seconds}");
    let mut arguments = vec!["-f", "lavfi", "-i", &picture];
    if kind != Source::Elementary {
        arguments.extend(["-f", "lavfi", "-i", &sound, "-c:a", "mp2"]);
    }
    arguments.extend(["-c:v", "mpeg2video", "-b:v", "1500k", "-g", "12", "-bf", "2"]);
    arguments.extend(["-flags", "+bitexact", "-f", kind.names().0, "pipe:1"]);
    run(&arguments, Vec::new())
}

/// Returns the pictures of ffmpeg alone: its own demuxer, the same conversion.
pub(crate) fn ffmpeg(kind: Source, film: &[u8], params: &TranscodeParams) -> Vec<Vec<u8>> {
    let mut arguments = params.arguments();
    let index = arguments.iter().position(|it| it == "mpegvideo").unwrap();
    arguments[index] = kind.names().1.to_owned();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut splitter = Splitter::new(params);
    splitter.push(&run(&arguments, film.to_vec())).unwrap();
    let mut all = Vec::new();
    while let Some(picture) = splitter.first() {
        all.push(picture.to_vec());
        splitter.take().unwrap();
    }
    assert!(splitter.is_empty() && !all.is_empty());
    all
}

/// Parses the pictures in a body in the format for modules.
pub(crate) fn pictures(mut body: &[u8]) -> Vec<(Header, Vec<u8>)> {
    let mut all = Vec::new();
    while let Some((header, rest)) = Header::parse(body) {
        let Some(pixels) = rest.get(..header.length as usize) else { break };
        all.push((header, pixels.to_vec()));
        body = &rest[pixels.len()..];
    }
    all
}

/// Source of codecs that starts ffmpeg for each.
pub(crate) struct Ffmpeg {
    own: Weak<Self>,
    most: usize,
    streams: Cell<usize>,
    last: Cell<u64>,
    /// Command to start instead of ffmpeg.
    pub(crate) program: RefCell<String>,
    pub(crate) children: RefCell<BTreeMap<u64, Child>>,
    news: RefCell<VecDeque<CodecEvent>>,
}

struct Stream(Rc<Ffmpeg>, RefCell<Vec<u64>>);

impl Ffmpeg {
    /// Creates a source for at most `most` simultaneous streams.
    pub(crate) fn new(most: usize) -> Rc<Self> {
        Rc::new_cyclic(|own| Self {
            own: own.clone(),
            most,
            streams: Cell::new(0),
            last: Cell::new(0),
            program: RefCell::new("ffmpeg".to_owned()),
            children: RefCell::default(),
            news: RefCell::default(),
        })
    }

    /// Returns the number of streams with a share.
    pub(crate) fn streams(&self) -> usize {
        self.streams.get()
    }

    /// Queues events of codecs that have ended.
    pub(crate) fn reap(&self) {
        let mut children = self.children.borrow_mut();
        children.retain(|codec, child| match child.try_wait().unwrap() {
            None => true,
            Some(status) => {
                let why = if status.success() { String::new() } else { status.to_string() };
                self.news.borrow_mut().push_back(CodecEvent::Ended(*codec, why));
                false
            }
        });
    }
}

impl Codecs for Ffmpeg {
    fn admit(&self) -> Result<Rc<dyn Share>, Refusal> {
        if self.streams.get() >= self.most {
            return Err(Refusal::Busy("there are too many".to_owned()));
        }
        self.streams.set(self.streams.get() + 1);
        Ok(Rc::new(Stream(self.own.upgrade().unwrap(), RefCell::default())))
    }

    fn poll(&self) -> Option<CodecEvent> {
        self.reap();
        self.news.borrow_mut().pop_front()
    }

    fn has_events(&self) -> bool {
        self.reap();
        !self.news.borrow().is_empty()
    }
}

impl Share for Stream {
    fn start(&self, params: &TranscodeParams) -> u64 {
        let Self(codecs, own) = self;
        let codec = codecs.last.get() + 1;
        codecs.last.set(codec);
        own.borrow_mut().push(codec);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let _ = set_socket_send_buffer_size_force(&theirs, CODEC_BUFFER);
        let output: OwnedFd = theirs.try_clone().unwrap().into();
        let child = Command::new(&*codecs.program.borrow())
            .args(params.arguments())
            .stdin(OwnedFd::from(theirs))
            .stdout(output)
            .stderr(Stdio::null())
            .spawn();
        let news = match child {
            Ok(child) => {
                codecs.children.borrow_mut().insert(codec, child);
                CodecEvent::Started(codec, ours.into())
            }
            Err(error) => CodecEvent::Ended(codec, error.to_string()),
        };
        codecs.news.borrow_mut().push_back(news);
        codec
    }

    fn stop(&self, codec: u64) {
        if let Some(mut child) = self.0.children.borrow_mut().remove(&codec) {
            let _ = child.kill();
            child.wait().unwrap();
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.streams.set(self.0.streams.get() - 1);
        for codec in self.1.take() {
            self.stop(codec);
        }
    }
}
