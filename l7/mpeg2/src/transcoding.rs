//! Transcoding of one stream through its codec, and the change from one codec to the next.
//!
//! ```text
//!   handle_bytes ─▶ Feed ─▶ input ─▶ current ─▶ handle_output ─▶ take
//!                     └───▶ input ─▶ next: drops pictures older than those taken, then becomes
//!                                          the current codec, once that has come as far
//! ```
//!
//! The time of a picture is that of the I picture with which its codec began, by the stream's own
//! rate, plus its number by the rate in the parameters. A client that takes pictures as fast as
//! they come gets all of them, and slows down a server that is faster. A client slower than the
//! stream gets fewer: a late picture is dropped as soon as a newer one is there.

use crate::demux::{Demuxer, Format, NotVideo};
use crate::feed::Feed;
use crate::limits::{AHEAD_LENGTH_MAX, KEPT_LENGTH_MAX, LATE_MAX, UNSEEN_LENGTH_MAX};
use crate::params::TranscodeParams;
use crate::picture::{Header, LEFT_OUT};
use crate::scan::Cut;
use crate::split::{OutputError, Splitter};
use std::collections::VecDeque;
use units::Nanos;

/// Number of a codec within a stream, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CodecId(pub u32);

/// Action for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Start a codec.
    Start(CodecId, TranscodeParams),
    /// Stop a codec.
    Stop(CodecId),
}

/// End of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum End {
    /// The server and the codec have sent everything.
    #[error("it is whole")]
    Whole,
    /// The server's stream is no usable video.
    #[error(transparent)]
    NotVideo(#[from] NotVideo),
    /// The codec's output is not valid.
    #[error(transparent)]
    OutputError(#[from] OutputError),
    /// The codec has ended before the stream.
    #[error("the codec has ended before the stream")]
    Codec,
}

#[derive(Debug)]
struct Codec {
    id: CodecId,
    params: TranscodeParams,
    change: u16,
    /// Headers to be fed before the stream.
    headers: Vec<u8>,
    /// Position up to which the codec has been fed; `None` before its first cut.
    cursor: Option<u64>,
    /// Presentation time of its first picture.
    start: Nanos,
    /// Pictures taken or dropped.
    count: u64,
    splitter: Splitter,
    has_ended: bool,
}

impl Codec {
    fn new(id: CodecId, params: TranscodeParams, change: u16) -> Self {
        Self {
            id,
            params,
            change,
            headers: Vec::new(),
            cursor: None,
            start: Nanos::ZERO,
            count: 0,
            splitter: Splitter::new(&params),
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

    /// Returns the presentation time of the first picture held, or of the next one.
    fn time(&self) -> Nanos {
        self.start + self.params.rate.time_of(self.count)
    }

    /// Removes the first picture.
    fn drop_first(&mut self) -> Result<(), OutputError> {
        self.count += 1;
        self.splitter.take()
    }
}

/// Transcoding of one stream; the module's documentation has the details.
#[derive(Debug)]
pub struct Transcoding {
    demuxer: Demuxer,
    feed: Feed,
    video: Vec<u8>,
    current: Codec,
    next: Option<Codec>,
    /// Parameters requested while another change was in progress.
    requested: Option<(TranscodeParams, u16)>,
    last_id: u32,
    changes: u16,
    has_server_ended: bool,
    ended: Option<End>,
    /// Presentation time of the very first picture.
    origin: Option<Nanos>,
    /// Presentation time of the last picture taken.
    shown: Option<Nanos>,
    /// Time at which a picture with presentation time 0 would have been punctual.
    anchor: Option<Nanos>,
    /// Time at which the current codec's first picture became available.
    available_at: Nanos,
    has_dropped: bool,
    effects: VecDeque<Effect>,
}

impl Transcoding {
    /// Creates a transcoding, with an effect that starts its codec.
    #[must_use]
    pub fn new(params: TranscodeParams) -> Self {
        let id = CodecId(0);
        Self {
            demuxer: Demuxer::new(),
            feed: Feed::default(),
            video: Vec::new(),
            current: Codec::new(id, params, 0),
            next: None,
            requested: None,
            last_id: 0,
            changes: 0,
            has_server_ended: false,
            ended: None,
            origin: None,
            shown: None,
            anchor: None,
            available_at: Nanos::ZERO,
            has_dropped: false,
            effects: VecDeque::from([Effect::Start(id, params)]),
        }
    }

    /// Returns the next effect.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns the format of the server's stream, once it is known.
    #[must_use]
    pub const fn format(&self) -> Option<Format> {
        self.demuxer.format()
    }

    /// Returns the end of the stream; `None` while it continues, or has a picture to take.
    #[must_use]
    pub fn ended(&self) -> Option<End> {
        if self.current.splitter.first().is_some()
            && !matches!(self.ended, Some(End::OutputError(_)))
        {
            return None;
        }
        self.ended
    }

    /// Returns true if a picture has been taken.
    #[must_use]
    pub const fn has_begun(&self) -> bool {
        self.shown.is_some()
    }

    /// Returns the presented duration, from the first picture to the last one taken.
    #[must_use]
    pub fn shown(&self) -> Nanos {
        let shown = self.shown.unwrap_or_default();
        shown.saturating_sub(self.origin.unwrap_or_default())
    }

    /// Returns the bytes of memory held.
    #[must_use]
    pub fn memory(&self) -> usize {
        let next = self.next.as_ref().map_or(0, |next| next.splitter.len());
        self.demuxer.memory() + self.feed.memory() + self.current.splitter.len() + next
    }

    /// Requests other parameters from now on. A request for the same parameters only increments the
    /// number of changes.
    pub fn change(&mut self, params: TranscodeParams) {
        self.changes = self.changes.wrapping_add(1);
        let change = self.changes;
        let (last, number) = match (&mut self.requested, &mut self.next) {
            (Some((params, change)), _) => (*params, change),
            (None, Some(next)) => (next.params, &mut next.change),
            (None, None) => (self.current.params, &mut self.current.change),
        };
        if last == params {
            *number = change;
            return;
        }
        self.requested = Some((params, change));
        self.start_requested();
    }

    /// Starts a codec with the requested parameters, unless another one is starting: too frequent
    /// changes wait for the previous one, and the last request counts.
    fn start_requested(&mut self) {
        if self.next.is_some() || self.ended.is_some() {
            return;
        }
        let Some((params, change)) = self.requested.take() else { return };
        self.last_id += 1;
        let mut codec = Codec::new(CodecId(self.last_id), params, change);
        self.effects.push_back(Effect::Start(codec.id, params));
        if self.current.cursor.is_none() {
            // No visible output yet.
            self.effects.push_back(Effect::Stop(self.current.id));
            self.current = codec;
            return;
        }
        if let Some(cut) = self.feed.cut() {
            codec.begin(cut, self.feed.headers());
        }
        self.next = Some(codec);
    }

    /// Returns true if more should be read from the server.
    #[must_use]
    pub fn wants_bytes(&self) -> bool {
        let end = self.feed.end();
        let lag = |codec: &Codec| codec.cursor.map_or(0, |cursor| end - cursor);
        let next = self.next.as_ref().map_or(0, lag);
        !self.has_server_ended
            && self.ended.is_none()
            && lag(&self.current) < AHEAD_LENGTH_MAX as u64
            && next < (KEPT_LENGTH_MAX + AHEAD_LENGTH_MAX) as u64
    }

    /// Returns true if the server has sent everything.
    #[must_use]
    pub const fn has_server_ended(&self) -> bool {
        self.has_server_ended
    }

    /// Handles bytes of the server.
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

    /// Handles the end of the server's stream.
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
            // No cut is left at which the next codec could begin.
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

    fn end(&mut self, why: End) {
        self.ended.get_or_insert(why);
        self.requested = None;
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

    /// Returns true if the current codec's input pauses until the next one has been fed as much:
    /// the next one has begun to output pictures, and could otherwise never catch up with a fast
    /// server.
    fn is_paused(&self) -> bool {
        self.next.as_ref().is_some_and(|next| {
            let is_catching_up = next.count > 0 && next.splitter.first().is_none();
            is_catching_up && next.cursor < self.current.cursor
        })
    }

    /// Returns the next input of a codec; empty if there is none at the moment.
    #[must_use]
    pub fn input(&self, id: CodecId) -> &[u8] {
        let Some(codec) = self.codec(id) else { return &[] };
        if codec.id == self.current.id && self.is_paused() {
            return &[];
        }
        match codec.cursor {
            _ if !codec.headers.is_empty() => &codec.headers,
            Some(cursor) => self.feed.since(cursor),
            None => &[],
        }
    }

    /// Handles that a codec has taken `count` bytes of its input.
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

    /// Returns true if a codec has all of its input, which then has to be closed.
    #[must_use]
    pub fn finishes(&self, id: CodecId) -> bool {
        let end = self.feed.end();
        self.has_server_ended
            && self.codec(id).is_some_and(|codec| {
                codec.headers.is_empty() && codec.cursor.is_none_or(|cursor| cursor >= end)
            })
    }

    /// Returns true if a codec's output should be read.
    #[must_use]
    pub fn wants_output(&self, now: Nanos, id: CodecId) -> bool {
        if id != self.current.id {
            return self.codec(id).is_some_and(|next| next.splitter.first().is_none());
        }
        self.current.splitter.first().is_none() || self.is_late(now)
    }

    /// Returns true if the first picture has waited longer than [`LATE_MAX`].
    fn is_late(&self, now: Nanos) -> bool {
        self.late_from().is_some_and(|from| now >= from)
    }

    fn late_from(&self) -> Option<Nanos> {
        Some(self.anchor? + self.current.time() + LATE_MAX)
    }

    /// Returns the time at which a waiting picture becomes late, so that newer ones have to be
    /// read.
    #[must_use]
    pub fn poll_timeout(&self, now: Nanos) -> Option<Nanos> {
        let is_waiting = self.current.splitter.first().is_some() && !self.current.has_ended;
        self.late_from().filter(|&from| is_waiting && from > now)
    }

    /// Handles output of a codec.
    pub fn handle_output(&mut self, now: Nanos, id: CodecId, bytes: &[u8]) {
        if id == self.current.id {
            let had_one = self.current.splitter.first().is_some();
            if let Err(error) = self.current.splitter.push(bytes) {
                return self.end(error.into());
            }
            if !had_one {
                self.available_at = now;
            }
            self.drop_late(now);
        } else if let Some(next) = self.next.as_mut().filter(|next| next.id == id) {
            if next.splitter.push(bytes).is_err() {
                return self.abandon_next();
            }
            self.catch_up(now);
        }
    }

    /// Drops late pictures, as long as a newer one is there.
    fn drop_late(&mut self, now: Nanos) {
        while self.is_late(now) && self.current.splitter.has_second() {
            (self.has_dropped, self.available_at) = (true, now);
            if let Err(error) = self.current.drop_first() {
                return self.end(error.into());
            }
        }
        self.catch_up(now);
    }

    /// Makes the next codec the current one as soon as it has a picture that is not older than the
    /// last one shown, and not newer than the current codec's next one.
    fn catch_up(&mut self, now: Nanos) {
        let is_full = !self.has_server_ended && !self.wants_bytes();
        let Some(next) = &mut self.next else { return };
        while next.splitter.first().is_some() {
            if self.shown.is_some_and(|shown| next.time() < shown) {
                if next.drop_first().is_err() {
                    return self.abandon_next();
                }
                continue;
            }
            let current = &self.current;
            let is_over = current.has_ended && current.splitter.first().is_none();
            // Otherwise the input that the current codec waits for could never come.
            let is_stuck = is_full && current.cursor == Some(self.feed.end());
            if next.time() > current.time() && !is_over && !is_stuck {
                return;
            }
            if let Some(next) = self.next.take() {
                let before = std::mem::replace(&mut self.current, next);
                self.effects.push_back(Effect::Stop(before.id));
                self.available_at = now;
            }
            self.forget();
            return self.start_requested();
        }
    }

    /// Abandons the next codec; the current one continues.
    fn abandon_next(&mut self) {
        self.stop_next();
        self.forget();
        self.start_requested();
    }

    /// Handles the end of a codec's output.
    pub fn handle_codec_end(&mut self, now: Nanos, id: CodecId) {
        if self.next.as_ref().is_some_and(|next| next.id == id) {
            self.abandon_next();
        } else if self.current.id == id {
            self.current.has_ended = true;
            self.catch_up(now);
        }
        self.end_if_done();
    }

    /// Ends the transcoding when the current codec has no more pictures.
    fn end_if_done(&mut self) {
        if !self.current.has_ended || self.current.splitter.first().is_some() {
            return;
        }
        // The next codec may still reach the pictures that this one did not output.
        if self.next.is_none() {
            let is_whole = self.has_server_ended && self.current.splitter.is_empty();
            self.end(if is_whole { End::Whole } else { End::Codec });
        }
    }

    /// Takes the first picture: appends it with its header to `out`. Returns false if there is
    /// none.
    pub fn take(&mut self, now: Nanos, out: &mut Vec<u8>) -> bool {
        self.drop_late(now);
        let Some(pixels) = self.current.splitter.first() else { return false };
        let (time, params) = (self.current.time(), self.current.params);
        let since = time.saturating_sub(self.origin.unwrap_or(time));
        let header = Header {
            width: params.width,
            height: params.height,
            pixels: Header::number_of(params.pixels),
            flags: if std::mem::take(&mut self.has_dropped) { LEFT_OUT } else { 0 },
            change: self.current.change,
            time_ms: u32::try_from(since.as_millis()).unwrap_or(u32::MAX),
            length: u32::try_from(pixels.len()).unwrap_or(u32::MAX),
        };
        out.extend_from_slice(&header.to_bytes());
        out.extend_from_slice(pixels);
        // Taken as soon as it was available: a delay against earlier pictures comes from the
        // stream.
        if self.available_at == now {
            let anchor = now.saturating_sub(time);
            self.anchor = Some(self.anchor.map_or(anchor, |before| before.max(anchor)));
        }
        self.shown = Some(time);
        if let Err(error) = self.current.drop_first() {
            self.end(error.into());
        }
        self.catch_up(now);
        self.end_if_done();
        true
    }
}
