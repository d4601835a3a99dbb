//! One stream on its way through its codec, and from one codec to the next.
//!
//! ```text
//!  handle_bytes ─▶ Feed ─▶ input ─▶ current ─▶ handle_output ─▶ take
//!                    └───▶ input ─▶ next: older pictures are dropped; the first that is not older
//!                                         makes it the current one, when that has come so far
//! ```
//!
//! Pictures have times: the time of the I picture with which their codec began, by the stream's
//! own rate, and from there on by the rate that was asked for. Whoever takes them as fast as they
//! come gets all of them, and slows down a server that is faster. Whoever is slower than the
//! stream gets fewer: a picture that is late is left out as soon as a newer one is there.

use crate::demux::{Demuxer, Format, NotVideo};
use crate::feed::Feed;
use crate::limits::{AHEAD_LENGTH_MAX, KEPT_LENGTH_MAX, LATE_MAX, UNSEEN_LENGTH_MAX};
use crate::picture::{Header, LEFT_OUT};
use crate::scan::Cut;
use crate::split::{Garbled, Splitter};
use crate::wish::Wish;
use std::collections::VecDeque;
use units::Nanos;

/// One codec of a stream: counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CodecId(pub u32);

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A codec is to be started.
    Start(CodecId, Wish),
    /// It is of no use any more.
    Stop(CodecId),
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// The server has sent everything, and so has the codec.
    #[error("it is whole")]
    Whole,
    /// The server sends something else.
    #[error(transparent)]
    NotVideo(#[from] NotVideo),
    /// The codec writes something else.
    #[error(transparent)]
    Garbled(#[from] Garbled),
    /// The codec has ended before the stream.
    #[error("the codec has ended before the stream")]
    Codec,
}

#[derive(Debug)]
struct Codec {
    id: CodecId,
    wish: Wish,
    change: u16,
    /// Headers that go before what is fed.
    headers: Vec<u8>,
    /// Up to where it is fed; none until there is a place to begin.
    cursor: Option<u64>,
    /// When its first picture is shown.
    start: Nanos,
    /// Pictures that were taken of it, or left out.
    count: u64,
    splitter: Splitter,
    has_ended: bool,
}

impl Codec {
    fn new(id: CodecId, wish: Wish, change: u16) -> Self {
        Self {
            id,
            wish,
            change,
            headers: Vec::new(),
            cursor: None,
            start: Nanos::ZERO,
            count: 0,
            splitter: Splitter::new(&wish),
            has_ended: false,
        }
    }

    fn begin(&mut self, cut: Cut, headers: &[u8]) {
        if self.cursor.is_some() {
            return;
        }
        (self.cursor, self.start) = (Some(cut.at), cut.time);
        if !cut.has_headers {
            self.headers.extend_from_slice(headers);
        }
    }

    /// When its first picture that is there, or the next one, is shown.
    fn time(&self) -> Nanos {
        self.start + self.wish.rate.time_of(self.count)
    }

    /// The first picture is gone.
    fn drop_first(&mut self) -> Result<(), Garbled> {
        self.count += 1;
        self.splitter.take()
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Transcoding {
    demuxer: Demuxer,
    feed: Feed,
    video: Vec<u8>,
    current: Codec,
    next: Option<Codec>,
    /// What was asked for while another change was under way.
    wanted: Option<(Wish, u16)>,
    last_id: u32,
    changes: u16,
    has_server_ended: bool,
    ended: Option<Ended>,
    /// When the first picture of all is shown, by the stream.
    origin: Option<Nanos>,
    /// When the last one is shown that was taken.
    shown: Option<Nanos>,
    /// When a picture of time 0 would have been on time.
    anchor: Option<Nanos>,
    /// When the current codec's first picture was there.
    came: Nanos,
    has_left_out: bool,
    effects: VecDeque<Effect>,
}

impl Transcoding {
    /// One whose codec is to be started.
    #[must_use]
    pub fn new(wish: Wish) -> Self {
        let id = CodecId(0);
        Self {
            demuxer: Demuxer::new(),
            feed: Feed::default(),
            video: Vec::new(),
            current: Codec::new(id, wish, 0),
            next: None,
            wanted: None,
            last_id: 0,
            changes: 0,
            has_server_ended: false,
            ended: None,
            origin: None,
            shown: None,
            anchor: None,
            came: Nanos::ZERO,
            has_left_out: false,
            effects: VecDeque::from([Effect::Start(id, wish)]),
        }
    }

    /// What is to be done.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// What the server sends, once that is known.
    #[must_use]
    pub const fn format(&self) -> Option<Format> {
        self.demuxer.format()
    }

    /// How it ended; nothing while it goes on, or has a picture to give.
    #[must_use]
    pub fn ended(&self) -> Option<Ended> {
        if self.current.splitter.first().is_some() && !matches!(self.ended, Some(Ended::Garbled(_)))
        {
            return None;
        }
        self.ended
    }

    /// Whether a picture has been taken.
    #[must_use]
    pub const fn has_begun(&self) -> bool {
        self.shown.is_some()
    }

    /// How much of the stream has been shown, from the first picture to the last one that was taken.
    #[must_use]
    pub fn shown(&self) -> Nanos {
        let shown = self.shown.unwrap_or_default();
        shown.saturating_sub(self.origin.unwrap_or_default())
    }

    /// Bytes that it has.
    #[must_use]
    pub fn memory(&self) -> usize {
        let next = self.next.as_ref().map_or(0, |next| next.splitter.len());
        self.demuxer.memory() + self.feed.memory() + self.current.splitter.len() + next
    }

    /// Something else is wanted from now on. What is wanted already is only counted.
    pub fn change(&mut self, wish: Wish) {
        self.changes = self.changes.wrapping_add(1);
        let change = self.changes;
        let (last, number) = match (&mut self.wanted, &mut self.next) {
            (Some((wish, change)), _) => (*wish, change),
            (None, Some(next)) => (next.wish, &mut next.change),
            (None, None) => (self.current.wish, &mut self.current.change),
        };
        if last == wish {
            *number = change;
            return;
        }
        self.wanted = Some((wish, change));
        self.start_wanted();
    }

    /// Starts what is wanted, if no other codec is being started: whoever changes too often has to
    /// wait for the one before, and the last wish counts.
    fn start_wanted(&mut self) {
        if self.next.is_some() || self.ended.is_some() {
            return;
        }
        let Some((wish, change)) = self.wanted.take() else { return };
        self.last_id += 1;
        let mut codec = Codec::new(CodecId(self.last_id), wish, change);
        self.effects.push_back(Effect::Start(codec.id, wish));
        if self.current.cursor.is_none() {
            // Nothing has come that anybody could see.
            self.effects.push_back(Effect::Stop(self.current.id));
            self.current = codec;
            return;
        }
        if let Some(cut) = self.feed.cut() {
            codec.begin(cut, self.feed.headers());
        }
        self.next = Some(codec);
    }

    /// Whether more of the server is to be read.
    #[must_use]
    pub fn wants_bytes(&self) -> bool {
        let end = self.feed.end();
        let behind = |codec: &Codec| codec.cursor.map_or(0, |cursor| end - cursor);
        let next = self.next.as_ref().map_or(0, behind);
        !self.has_server_ended
            && self.ended.is_none()
            && behind(&self.current) < AHEAD_LENGTH_MAX as u64
            && next < (KEPT_LENGTH_MAX + AHEAD_LENGTH_MAX) as u64
    }

    /// Whether the server has sent everything.
    #[must_use]
    pub const fn has_server_ended(&self) -> bool {
        self.has_server_ended
    }

    /// The server has sent this.
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        if self.ended.is_some() || self.has_server_ended {
            return;
        }
        let mut video = std::mem::take(&mut self.video);
        match self.demuxer.push(bytes, &mut video) {
            Ok(()) => self.push(&video),
            Err(error) => self.end(error.into()),
        }
        video.clear();
        self.video = video;
    }

    /// The server sends nothing more.
    pub fn handle_server_end(&mut self) {
        if self.ended.is_some() || self.has_server_ended {
            return;
        }
        let mut video = Vec::new();
        match self.demuxer.finish(&mut video) {
            Ok(()) => self.push(&video),
            Err(error) => return self.end(error.into()),
        }
        self.has_server_ended = true;
        if self.current.cursor.is_none() {
            return self.end(NotVideo::NoPicture.into());
        }
        if self.next.as_ref().is_some_and(|next| next.cursor.is_none()) {
            // There is no place left at which it could begin.
            self.stop_next();
        }
    }

    fn push(&mut self, video: &[u8]) {
        let mut first = None;
        self.feed.push(video, |cut| first = first.or(Some(cut)));
        if let Some(cut) = first {
            self.origin.get_or_insert(cut.time);
            let headers = self.feed.headers();
            for codec in std::iter::once(&mut self.current).chain(&mut self.next) {
                codec.begin(cut, headers);
            }
        } else if self.origin.is_none() && self.feed.end() > UNSEEN_LENGTH_MAX {
            return self.end(NotVideo::NoPicture.into());
        }
        self.forget();
    }

    fn forget(&mut self) {
        let end = self.feed.end();
        let cursor = |codec: &Codec| codec.cursor.unwrap_or(end);
        let next = self.next.as_ref().map_or(end, cursor);
        let before = next.min(cursor(&self.current));
        self.feed.forget(before, self.shown.unwrap_or_default());
    }

    fn end(&mut self, why: Ended) {
        self.ended.get_or_insert(why);
        self.wanted = None;
        self.stop_next();
    }

    fn stop_next(&mut self) {
        if let Some(next) = self.next.take() {
            self.effects.push_back(Effect::Stop(next.id));
        }
    }

    fn codec(&self, id: CodecId) -> Option<&Codec> {
        std::iter::once(&self.current).chain(&self.next).find(|codec| codec.id == id)
    }

    /// Whether the current codec waits until the next one has been given as much: that one has begun
    /// to give pictures, and could else never catch up with a server that is fast.
    fn is_held(&self) -> bool {
        self.next.as_ref().is_some_and(|next| {
            let is_catching_up = next.count > 0 && next.splitter.first().is_none();
            is_catching_up && next.cursor < self.current.cursor
        })
    }

    /// What a codec is to be fed next; nothing at the moment if it is empty.
    #[must_use]
    pub fn input(&self, id: CodecId) -> &[u8] {
        let Some(codec) = self.codec(id) else { return &[] };
        if codec.id == self.current.id && self.is_held() {
            return &[];
        }
        match codec.cursor {
            _ if !codec.headers.is_empty() => &codec.headers,
            Some(cursor) => self.feed.since(cursor),
            None => &[],
        }
    }

    /// It has taken so many bytes of that.
    pub fn handle_fed(&mut self, id: CodecId, count: usize) {
        let codec = std::iter::once(&mut self.current).chain(&mut self.next);
        let Some(codec) = codec.into_iter().find(|codec| codec.id == id) else { return };
        if codec.headers.is_empty() {
            codec.cursor = codec.cursor.map(|cursor| cursor + count as u64);
        } else {
            codec.headers.drain(..count.min(codec.headers.len()));
        }
        self.forget();
    }

    /// Whether a codec has everything, and is to be told that nothing follows.
    #[must_use]
    pub fn finishes(&self, id: CodecId) -> bool {
        let end = self.feed.end();
        self.has_server_ended
            && self.codec(id).is_some_and(|codec| {
                codec.headers.is_empty() && codec.cursor.is_none_or(|cursor| cursor >= end)
            })
    }

    /// Whether what a codec writes is to be read.
    #[must_use]
    pub fn wants_output(&self, now: Nanos, id: CodecId) -> bool {
        if id != self.current.id {
            return self.codec(id).is_some_and(|next| next.splitter.first().is_none());
        }
        self.current.splitter.first().is_none() || self.is_late(now)
    }

    /// Whether the first picture has waited too long for somebody to take it.
    fn is_late(&self, now: Nanos) -> bool {
        self.late_from().is_some_and(|from| now >= from)
    }

    fn late_from(&self) -> Option<Nanos> {
        Some(self.anchor? + self.current.time() + LATE_MAX)
    }

    /// When a picture that waits is late, so that newer ones are to be read.
    #[must_use]
    pub fn poll_timeout(&self, now: Nanos) -> Option<Nanos> {
        let is_waiting = self.current.splitter.first().is_some() && !self.current.has_ended;
        self.late_from().filter(|&from| is_waiting && from > now)
    }

    /// A codec has written this.
    pub fn handle_output(&mut self, now: Nanos, id: CodecId, bytes: &[u8]) {
        if id == self.current.id {
            let had_one = self.current.splitter.first().is_some();
            if let Err(error) = self.current.splitter.push(bytes) {
                return self.end(error.into());
            }
            if !had_one {
                self.came = now;
            }
            self.leave_out(now);
        } else if let Some(next) = self.next.as_mut().filter(|next| next.id == id) {
            if next.splitter.push(bytes).is_err() {
                return self.lose_next();
            }
            self.catch_up(now);
        }
    }

    /// Leaves out what is late, as long as something newer is there.
    fn leave_out(&mut self, now: Nanos) {
        while self.is_late(now) && self.current.splitter.has_second() {
            (self.has_left_out, self.came) = (true, now);
            if let Err(error) = self.current.drop_first() {
                return self.end(error.into());
            }
        }
        self.catch_up(now);
    }

    /// The next codec becomes the current one as soon as it has a picture that is not older than
    /// what was shown, and not newer than what the current one will show.
    fn catch_up(&mut self, now: Nanos) {
        let is_full = !self.has_server_ended && !self.wants_bytes();
        let Some(next) = &mut self.next else { return };
        while next.splitter.first().is_some() {
            if self.shown.is_some_and(|shown| next.time() < shown) {
                if next.drop_first().is_err() {
                    return self.lose_next();
                }
                continue;
            }
            let current = &self.current;
            let is_over = current.has_ended && current.splitter.first().is_none();
            // Else nothing could come any more that the current one waits for.
            let is_stuck = is_full && current.cursor == Some(self.feed.end());
            if next.time() > current.time() && !is_over && !is_stuck {
                return;
            }
            if let Some(next) = self.next.take() {
                let before = std::mem::replace(&mut self.current, next);
                self.effects.push_back(Effect::Stop(before.id));
                self.came = now;
            }
            self.forget();
            return self.start_wanted();
        }
    }

    /// The next codec is of no use; the current one goes on.
    fn lose_next(&mut self) {
        self.stop_next();
        self.forget();
        self.start_wanted();
    }

    /// A codec writes nothing more, and has ended or is to.
    pub fn handle_codec_end(&mut self, now: Nanos, id: CodecId) {
        if self.next.as_ref().is_some_and(|next| next.id == id) {
            self.lose_next();
        } else if self.current.id == id {
            self.current.has_ended = true;
            self.catch_up(now);
        }
        self.settle();
    }

    /// What follows when the current codec has given all that it had.
    fn settle(&mut self) {
        if !self.current.has_ended || self.current.splitter.first().is_some() {
            return;
        }
        // The other one may still come to what this one did not show.
        if self.next.is_none() {
            let is_whole = self.has_server_ended && self.current.splitter.is_empty();
            self.end(if is_whole { Ended::Whole } else { Ended::Codec });
        }
    }

    /// Takes the first picture and writes it, with its header, behind `out`; whether there was one.
    pub fn take(&mut self, now: Nanos, out: &mut Vec<u8>) -> bool {
        self.leave_out(now);
        let Some(pixels) = self.current.splitter.first() else { return false };
        let (time, wish) = (self.current.time(), self.current.wish);
        let since = time.saturating_sub(self.origin.unwrap_or(time));
        let header = Header {
            width: wish.width,
            height: wish.height,
            pixels: Header::number_of(wish.pixels),
            flags: if std::mem::take(&mut self.has_left_out) { LEFT_OUT } else { 0 },
            change: self.current.change,
            time_ms: u32::try_from(since.as_millis()).unwrap_or(u32::MAX),
            length: u32::try_from(pixels.len()).unwrap_or(u32::MAX),
        };
        out.extend_from_slice(&header.to_bytes());
        out.extend_from_slice(pixels);
        // Taken as soon as it was there: later than the ones before it is by the stream's doing.
        if self.came == now {
            let anchor = now.saturating_sub(time);
            self.anchor = Some(self.anchor.map_or(anchor, |before| before.max(anchor)));
        }
        self.shown = Some(time);
        if let Err(error) = self.current.drop_first() {
            self.end(error.into());
        }
        self.catch_up(now);
        self.settle();
        true
    }
}
