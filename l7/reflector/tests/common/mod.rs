//! Test helpers: media streams, an origin and listeners of a channel.

#![allow(dead_code, reason = "each test takes what it needs")]

use http1::{Framing, Headers, RequestHead, ResponseHead, Version};
use proptest::sample::Index;
use reflector::{Ask, Channel, Config, Connection, Effect, Ending, ListenerId, Wants};
use std::collections::BTreeMap;
use testbase::Chance;
use units::{Bytes, Nanos};

/// Returns a byte that begins no header. Garbage that happens to be a consistent header right
/// before a frame is a frame for any scanner, in about one of 100,000 cases. Misplaced headers have
/// tests of their own.
pub fn between(byte: u8) -> u8 {
    match byte {
        0x47 => 0x46,
        0xff => 0xfe,
        byte => byte,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    Mp3,
    Aac,
    Ts,
    Raw,
}

impl Media {
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Mp3 => "audio/mpeg",
            Self::Aac => "audio/aac",
            Self::Ts => "video/mp2t",
            Self::Raw => "audio/x-unknown",
        }
    }

    /// Returns the frame of this number: no two are equal.
    pub fn frame(self, number: u64) -> Vec<u8> {
        let mut numbers = Chance(number);
        let mut frame = match self {
            Self::Mp3 => {
                let padding = if number.is_multiple_of(3) { 2 } else { 0 };
                let mut frame = vec![0xff, 0xfb, 0x90 | padding, 0x64];
                let length = 413 + usize::from(padding / 2);
                frame.extend(numbers.bytes(length).into_iter().map(between));
                frame
            }
            Self::Aac => {
                let length = 300 + numbers.below(200) as usize;
                let mut frame = vec![0xff, 0xf1, 0x50, 0x80, 0, 0x1f, 0xfc];
                frame[3] |= (length >> 11) as u8;
                frame[4] = (length >> 3) as u8;
                frame[5] |= (length << 5) as u8;
                frame.extend(numbers.bytes(length - 7).into_iter().map(between));
                frame
            }
            Self::Ts => {
                let mut frame = vec![0x47, 0x01, 0x01, 0x10];
                frame.extend(numbers.bytes(184).into_iter().map(between));
                frame
            }
            Self::Raw => numbers.bytes(200),
        };
        let at = frame.len() - 16;
        frame[at..].copy_from_slice(format!("{number:016x}").as_bytes());
        frame
    }

    pub fn frames(self, numbers: std::ops::Range<u64>) -> Vec<u8> {
        numbers.flat_map(|number| self.frame(number)).collect()
    }

    /// Parses bytes that should be whole frames: returns their numbers, and the bytes left of the
    /// last.
    pub fn numbers(self, mut bytes: &[u8]) -> (Vec<u64>, usize) {
        let mut numbers = Vec::new();
        loop {
            let length = match (self, bytes) {
                (Self::Ts, _) => 188,
                (Self::Raw, _) => 200,
                (Self::Mp3, [0xff, 0xfb, third, ..]) => 417 + usize::from(third >> 1 & 1),
                (Self::Aac, [0xff, 0xf1, _, a, b, c, ..]) => {
                    usize::from(a & 3) << 11 | usize::from(*b) << 3 | usize::from(c >> 5)
                }
                _ => break,
            };
            let Some(frame) = bytes.get(..length) else { break };
            let number = std::str::from_utf8(&frame[length - 16..]).ok();
            let number = number.and_then(|digits| u64::from_str_radix(digits, 16).ok());
            let number = number.expect("a frame that somebody sent");
            assert!(frame == self.frame(number), "a frame that nobody sent");
            numbers.push(number);
            bytes = &bytes[length..];
        }
        (numbers, bytes.len())
    }
}

pub fn ask(wants: Wants) -> Ask {
    let mut headers = Headers::default();
    headers.add(b"Host", b"radio.example").unwrap();
    if wants == Wants::Titles {
        headers.add(b"Icy-MetaData", b"1").unwrap();
    }
    Ask::new(&RequestHead::new(b"GET", b"/live", Version::Http11, headers).unwrap()).unwrap()
}

pub fn head(status: u16, fields: &[(&str, &str)]) -> ResponseHead {
    let mut headers = Headers::default();
    for (name, value) in fields {
        headers.add(name.as_bytes(), value.as_bytes()).unwrap();
    }
    ResponseHead::new(Version::Http10, status, b"", headers).unwrap()
}

/// Bytes and events that a listener has received.
#[derive(Debug, Default)]
pub struct Received {
    pub head: Option<ResponseHead>,
    pub bytes: Vec<u8>,
    pub is_ready: bool,
    pub ending: Option<Ending>,
    pub alone: Option<reflector::NotLive>,
    pub passed: Option<reflector::NotLive>,
}

/// Channel with its requests to the origin, and what its listeners have received.
pub struct Segment {
    pub channel: Channel,
    pub now: Nanos,
    pub received: BTreeMap<ListenerId, Received>,
    pub connection: Connection,
    pub is_open: bool,
    pub opened: usize,
}

impl Segment {
    pub fn new(ring: u64) -> Self {
        let config =
            Config { ring_audio: Bytes(ring), ring_video: Bytes(ring), ..Config::default() };
        Self {
            channel: Channel::new(config, &ask(Wants::Media)),
            now: Nanos::from_millis(1_000),
            received: BTreeMap::new(),
            connection: Connection(0),
            is_open: false,
            opened: 0,
        }
    }

    /// Creates a channel whose origin has responded with a stream of this media, and one listener.
    pub fn live(ring: u64, media: Media) -> Self {
        let mut run = Self::new(ring);
        run.join(0, Wants::Media);
        run.head(200, &[("Content-Type", media.content_type())]);
        run
    }

    /// Executes the channel's effects.
    pub fn poll(&mut self) {
        while let Some(effect) = self.channel.poll_effect() {
            match effect {
                Effect::Open { connection, request } => {
                    assert!(!self.is_open, "one connection at a time");
                    assert_eq!(request.headers.get(b"Icy-MetaData"), Some(&b"1"[..]));
                    (self.connection, self.is_open) = (connection, true);
                    self.opened += 1;
                }
                Effect::Close { connection } => {
                    assert!(self.is_open && connection == self.connection);
                    self.is_open = false;
                }
                Effect::Head { to, head, .. } => {
                    let before = self.listener(to).head.replace((*head).clone());
                    assert_eq!(before, None, "one head each");
                }
                Effect::Ready { to } => {
                    assert!(self.listener(to).head.is_some(), "a head is first");
                    self.listener(to).is_ready = true;
                }
                Effect::End { to, ending } => {
                    assert_eq!(self.listener(to).ending.replace(ending), None);
                }
                Effect::Pass { to, connection, why } => {
                    assert_eq!(connection, self.connection);
                    self.is_open = false;
                    self.listener(to).passed = Some(why);
                }
                Effect::Alone { to, why } => self.listener(to).alone = Some(why),
            }
        }
    }

    pub fn listener(&mut self, id: ListenerId) -> &mut Received {
        self.received.get_mut(&id).expect("it has joined and not left")
    }

    pub fn join(&mut self, id: u64, wants: Wants) {
        self.channel.handle_join(self.now, ListenerId(id), wants).unwrap();
        self.received.insert(ListenerId(id), Received::default());
        self.poll();
    }

    pub fn leave(&mut self, id: u64) -> Received {
        self.channel.handle_leave(ListenerId(id));
        self.poll();
        self.received.remove(&ListenerId(id)).unwrap()
    }

    pub fn head(&mut self, status: u16, fields: &[(&str, &str)]) {
        self.framed_head(status, fields, Framing::UntilClose);
    }

    pub fn framed_head(&mut self, status: u16, fields: &[(&str, &str)], framing: Framing) {
        let head = head(status, fields);
        self.channel.handle_upstream_head(self.now, self.connection, &head, framing);
        self.poll();
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.channel.handle_upstream_bytes(self.now, self.connection, bytes);
        self.poll();
    }

    pub fn end(&mut self) {
        self.is_open = false;
        self.channel.handle_upstream_end(self.now, self.connection);
        self.poll();
    }

    pub fn reset(&mut self) {
        self.is_open = false;
        let failure = reflector::Failure::Reset;
        self.channel.handle_upstream_failed(self.now, self.connection, failure);
        self.poll();
    }

    /// Advances the time, stopping at each timeout of the channel.
    pub fn pass(&mut self, millis: u64) {
        let until = self.now + Nanos::from_millis(millis);
        while let Some(at) = self.channel.poll_timeout().filter(|&at| at <= until) {
            self.now = self.now.max(at);
            self.channel.handle_timeout(self.now);
            self.poll();
            let next = self.channel.poll_timeout();
            assert!(next.is_none_or(|next| next > at), "time goes on");
        }
        self.now = until;
    }

    /// Takes at most `limit` bytes for a listener, in pieces as a socket would.
    pub fn take(&mut self, id: u64, limit: usize) -> usize {
        let id = ListenerId(id);
        let received = self.received.get_mut(&id).expect("it has joined and not left");
        let before = received.bytes.len();
        for piece in self.channel.pieces(id, limit) {
            assert!(!piece.is_empty());
            received.bytes.extend_from_slice(&piece);
        }
        let taken = received.bytes.len() - before;
        assert!(taken <= limit);
        if taken > 0 {
            assert!(received.is_ready, "it was told that there are bytes");
        }
        if taken < limit {
            received.is_ready = false;
        }
        self.channel.handle_taken(self.now, id, taken);
        self.poll();
        taken
    }

    /// Takes all available bytes for a listener.
    pub fn take_all(&mut self, id: u64) {
        while self.take(id, 50_000) > 0 {}
    }

    pub fn ids(&self) -> Vec<u64> {
        self.received.keys().map(|id| id.0).collect()
    }

    pub fn of(&self, id: u64) -> &Received {
        &self.received[&ListenerId(id)]
    }
}

/// Interleaves payload and titles, independently of the crate: the simplest implementation.
pub fn interleave(payload: &[u8], interval: usize, titles: &[(usize, &str)]) -> Vec<u8> {
    let (mut wire, mut last) = (Vec::new(), "");
    for (index, &byte) in payload.iter().enumerate() {
        wire.push(byte);
        if (index + 1).is_multiple_of(interval) {
            let current = titles.iter().rev().find(|(from, _)| *from <= index + 1);
            let current = current.map_or("", |(_, title)| title);
            let text = if current == last { "" } else { current };
            last = current;
            let units = text.len().div_ceil(16);
            wire.push(units as u8);
            wire.extend_from_slice(text.as_bytes());
            wire.extend(std::iter::repeat_n(0, units * 16 - text.len()));
        }
    }
    wire
}

/// Separates such a stream into the payload and the titles with their positions.
pub fn separate(wire: &[u8], interval: usize) -> (Vec<u8>, Vec<(usize, String)>) {
    let (mut payload, mut titles, mut at) = (Vec::new(), Vec::new(), 0);
    while at < wire.len() {
        payload.push(wire[at]);
        at += 1;
        if payload.len().is_multiple_of(interval) && at < wire.len() {
            let length = usize::from(wire[at]) * 16;
            let end = (at + 1 + length).min(wire.len());
            let text = String::from_utf8_lossy(&wire[at + 1..end]).into_owned();
            if length > 0 && end == at + 1 + length {
                titles.push((payload.len(), text.trim_end_matches('\0').to_owned()));
            }
            at = end;
        }
    }
    (payload, titles)
}

/// Returns the slices of bytes between cuts.
pub fn parts<'b>(bytes: &'b [u8], cuts: &[Index]) -> Vec<&'b [u8]> {
    let mut at: Vec<usize> =
        cuts.iter().map(|discontinuity| discontinuity.index(bytes.len() + 1)).collect();
    at.sort_unstable();
    let ends = at.iter().copied().chain([bytes.len()]);
    let mut from = 0;
    ends.map(|end| &bytes[std::mem::replace(&mut from, end)..end]).collect()
}
