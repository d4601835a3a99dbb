//! Thousands of listeners in one thread; each requests a station and checks its frames.

use crate::common::Line;
use crate::radio::{FRAME, number_of};
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Most events of a poll, and bytes of a read.
const EVENTS: usize = 256;
const READ: usize = 64 << 10;
/// Longest time between two checks of the clock.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
/// Most bytes of a response's head.
const HEAD_MAX: usize = 4096;

/// End of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Regular end of a complete stream.
    Complete,
    /// Reset of the connection.
    Reset,
}

/// Part of a station that a listener has received. Each frame is whole, and none comes before an
/// earlier one.
#[derive(Debug, Default)]
pub struct Hearing {
    /// Head of the response so far, and whether it is complete.
    head: Vec<u8>,
    hears: bool,
    /// Bytes of the next frame so far.
    begun: Vec<u8>,
    /// First frame, and the one after the last.
    pub first: Option<u32>,
    pub next: u32,
    /// Missing frames: the expected number, and the received one.
    pub skips: Vec<(u32, u32)>,
}

impl Hearing {
    /// Takes bytes of an HTTP/1.0 response: its head, and frames until the connection ends.
    pub fn hear(&mut self, came: &[u8]) {
        if self.hears {
            return self.hear_frames(came);
        }
        self.head.extend_from_slice(came);
        let Some(at) = self.head.windows(4).position(|four| four == b"\r\n\r\n") else {
            assert!(self.head.len() < HEAD_MAX, "{}", String::from_utf8_lossy(&self.head));
            return;
        };
        let body = self.head.split_off(at + 4);
        let head = String::from_utf8_lossy(&self.head).to_ascii_lowercase();
        assert!(head.contains(" 200 ") && !head.contains("chunked"), "{head}");
        self.hears = true;
        self.hear_frames(&body);
    }

    fn hear_frames(&mut self, came: &[u8]) {
        self.begun.extend_from_slice(came);
        let whole = self.begun.len() / FRAME * FRAME;
        for frame in self.begun.drain(..whole).collect::<Vec<_>>().chunks(FRAME) {
            let number = number_of(frame);
            match self.first {
                None => self.first = Some(number),
                Some(_) if number == self.next => {}
                Some(_) => {
                    assert!(number > self.next, "frame {number} comes behind {}", self.next);
                    self.skips.push((self.next, number));
                }
            }
            self.next = number + 1;
        }
    }

    /// Returns the number of frames received.
    pub fn count(&self) -> u32 {
        let missing: u32 = self.skips.iter().map(|(from, to)| to - from).sum();
        self.first.map_or(0, |first| self.next - first - missing)
    }

    /// Returns true if the received bytes end with a whole frame.
    pub fn is_whole(&self) -> bool {
        self.begun.is_empty()
    }
}

/// Listener with its connection.
#[derive(Debug)]
pub struct Listener {
    stream: TcpStream,
    pub hearing: Hearing,
    pub end: Option<End>,
}

/// Listeners at one address; they leave when this is dropped.
pub struct Crowd<'line> {
    line: &'line Line,
    at: SocketAddr,
    path: &'static str,
    events: OwnedFd,
    pub listeners: Vec<Listener>,
    buffer: Vec<u8>,
}

/// Raises this process's limit of descriptors to `count` and some hundred more.
pub fn descriptors(count: u64) {
    let limit = getrlimit(Resource::Nofile);
    let wanted = count + 500;
    let most = limit.maximum.unwrap_or(wanted);
    assert!(most >= wanted, "{count} sockets need more descriptors than {most}: ulimit -Hn");
    setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit }).unwrap();
}

impl<'line> Crowd<'line> {
    pub fn new(line: &'line Line, at: SocketAddr, path: &'static str) -> Self {
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        Self { line, at, path, events, listeners: Vec::new(), buffer: vec![0; READ] }
    }

    /// Adds `count` listeners that request the stream.
    pub fn join(&mut self, count: usize) {
        let Self { line, at, path, .. } = *self;
        let connect = |_| {
            let mut stream = TcpStream::connect(at).unwrap();
            let request = format!("GET {path} HTTP/1.0\r\nHost: {at}\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            stream.set_nonblocking(true).unwrap();
            stream
        };
        let come = || (0..count).map(connect).collect::<Vec<_>>();
        for stream in line.net.within("client", come).unwrap() {
            let (hearing, end) = (Hearing::default(), None);
            self.listeners.push(Listener { stream, hearing, end });
            self.listens(self.listeners.len() - 1);
        }
    }

    /// Stops reading of one listener.
    pub fn pauses(&self, number: usize) {
        epoll::delete(&self.events, &self.listeners[number].stream).unwrap();
    }

    /// Resumes reading of one listener.
    pub fn listens(&self, number: usize) {
        let data = epoll::EventData::new_u64(number as u64);
        let stream = &self.listeners[number].stream;
        epoll::add(&self.events, stream, data, epoll::EventFlags::IN).unwrap();
    }

    /// Receives for `length`.
    pub fn hear(&mut self, length: Duration) {
        let end = Instant::now() + length;
        while Instant::now() < end {
            self.look();
        }
    }

    /// Receives until a condition holds for each of these listeners; returns for how many it does
    /// not after the time limit.
    pub fn hear_until(
        &mut self,
        limit: Duration,
        these: Range<usize>,
        is_so: impl Fn(&Listener) -> bool,
    ) -> usize {
        let end = Instant::now() + limit;
        loop {
            let them = &self.listeners[these.clone()];
            let others = them.iter().filter(|listener| !is_so(listener)).count();
            if others == 0 || Instant::now() >= end {
                return others;
            }
            self.look();
        }
    }

    fn look(&mut self) {
        let mut found = Vec::with_capacity(EVENTS);
        let spare = rustix::buffer::spare_capacity(&mut found);
        match epoll::wait(&self.events, spare, Some(&POLL_INTERVAL)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("waiting for what listeners hear: {error}"),
        }
        for event in found {
            let listener = &mut self.listeners[event.data.u64() as usize];
            listener.hear(&mut self.buffer);
            if listener.end.is_some() {
                epoll::delete(&self.events, &listener.stream).unwrap();
            }
        }
    }
}

impl Listener {
    fn hear(&mut self, buffer: &mut [u8]) {
        match self.stream.read(buffer) {
            Ok(0) => self.end = Some(End::Complete),
            Ok(length) => self.hearing.hear(&buffer[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => self.end = Some(End::Reset),
            Err(error) => panic!("a listener: {error}"),
        }
    }
}
