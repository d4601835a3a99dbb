//! The codecs of connections: sockets of processes that the owner starts.

use super::{Filter, Live};
use crate::codecs::News;
use crate::limits::{CODEC_MEMORY, TRANSCODING_MEMORY};
use crate::transcoder::{Line, Lines};
use mpeg2::{Effect, Transcoding};
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use tcp_intercept::{Closed, End, Io, Received, State};
use units::{Bytes, Held, Nanos};

impl Filter {
    /// Does for a connection's codecs what can be done; whether something has moved.
    pub(super) fn drive_codecs(
        &mut self,
        io: &mut Io<'_>,
        number: u64,
        live: &mut Live,
        left: &mut usize,
    ) -> bool {
        let message = live.protocol.transcoder().map(|(message, _)| message);
        if message != Some(live.lines.message) {
            self.drop_codecs(io, live);
        }
        let Live { protocol, lines, down, .. } = live;
        let Some((message, transcoder)) = protocol.transcoder() else { return false };
        lines.message = message;
        while let Some(effect) = transcoder.transcoding.poll_effect() {
            match effect {
                Effect::Start(id, _) if !may_have(&mut transcoder.memory, lines.all.len() + 1) => {
                    self.runner.report_codec("its session has not the memory for a change");
                    transcoder.transcoding.handle_codec_end(io.now(), id);
                }
                Effect::Start(id, wish) => {
                    let codec = transcoder.share.start(&wish);
                    self.owners.insert(codec, number);
                    lines.all.push(Line {
                        id,
                        codec,
                        end: None,
                        is_finished: false,
                        is_over: false,
                    });
                }
                Effect::Stop(id) => {
                    if let Some(place) = lines.all.iter().position(|line| line.id == id) {
                        let line = lines.all.remove(place);
                        self.drop_line(io, &line);
                        transcoder.share.stop(line.codec);
                        transcoder.memory.shrink(memory_of(lines.all.len().max(1)));
                    }
                }
            }
        }
        let unsent = transcoder.unsent();
        if unsent != lines.unsent
            && let Some(bytes) = unsent
        {
            lines.unsent = unsent;
            io.limit_unsent(*down, bytes);
        }
        let mut moved = false;
        let buffer = &mut self.buffer;
        for line in &mut lines.all {
            let Some(end) = line.end else { continue };
            let video = &mut transcoder.transcoding;
            moved |= read(io, video, line, end, buffer, left) | write(io, video, line, end);
        }
        if moved {
            protocol.handle_go(&mut self.runner);
        }
        moved
    }

    fn drop_line(&mut self, io: &mut Io<'_>, line: &Line) {
        self.owners.remove(&line.codec);
        if let Some(end) = line.end {
            self.ends.remove(&end);
            io.close(end, Closed::Reset);
        }
    }

    /// A connection has no codecs any more: those that it had end with their sockets, and whoever
    /// started them is told as their share is dropped.
    pub(super) fn drop_codecs(&mut self, io: &mut Io<'_>, live: &mut Live) {
        let Lines { all, overdue, .. } = std::mem::take(&mut live.lines);
        for line in &all {
            self.drop_line(io, line);
        }
        if let Some((at, number)) = overdue {
            self.overdue.remove(&(at, number));
        }
    }

    /// Notes when a picture that waits for the client will be late.
    pub(super) fn watch_pictures(&mut self, io: &Io<'_>, number: u64, live: &mut Live) {
        let Some((_, transcoder)) = live.protocol.transcoder() else { return };
        let late = transcoder.transcoding.poll_timeout(io.now()).map(|at| (at, number));
        if late == live.lines.overdue {
            return;
        }
        if let Some(before) = std::mem::replace(&mut live.lines.overdue, late) {
            self.overdue.remove(&before);
        }
        self.overdue.extend(late);
    }

    /// When something of codecs is to be done.
    pub(super) fn codecs_timeout(&self) -> Option<Nanos> {
        let news = self.codecs.as_ref().filter(|codecs| codecs.has_news()).map(|_| Nanos::ZERO);
        news.or(self.overdue.first().map(|(at, _)| *at))
    }

    /// What became of codecs, and pictures that are late by now.
    pub(super) fn handle_codecs(&mut self, io: &mut Io<'_>) {
        while let Some(news) = self.codecs.as_ref().and_then(|codecs| codecs.poll()) {
            match news {
                News::Started(codec, socket) => self.take_codec(io, codec, socket),
                News::Ended(codec, why) => self.lose_codec(io, codec, &why),
            }
        }
        while let Some(&(at, number)) = self.overdue.first() {
            if at > io.now() {
                break;
            }
            self.overdue.pop_first();
            if let Some(live) = self.live.get_mut(&number) {
                live.lines.overdue = None;
            }
            self.with(io, number, |_, _| {});
        }
    }

    fn line(&mut self, codec: u64) -> Option<(u64, &mut Line)> {
        let number = *self.owners.get(&codec)?;
        let lines = &mut self.live.get_mut(&number)?.lines.all;
        Some((number, lines.iter_mut().find(|line| line.codec == codec)?))
    }

    fn take_codec(&mut self, io: &mut Io<'_>, codec: u64, socket: OwnedFd) {
        // Nobody wants it any more: it ends with its socket.
        let Some((number, line)) = self.line(codec) else { return };
        line.end = io.adopt(socket);
        match line.end {
            Some(end) => {
                self.ends.insert(end, number);
                self.with(io, number, |_, _| {});
            }
            None => self.lose_codec(io, codec, "the kernel does not tell of its socket"),
        }
    }

    /// A codec has ended. What it has written is still read; one that never began has written
    /// nothing.
    fn lose_codec(&mut self, io: &mut Io<'_>, codec: u64, why: &str) {
        let Some((number, line)) = self.line(codec) else { return };
        let (id, has_begun) = (line.id, line.end.is_some());
        if !why.is_empty() {
            self.runner.report_codec(why);
        }
        if !has_begun {
            let now = io.now();
            self.with(io, number, |live, module| {
                if let Some((_, transcoder)) = live.transcoder() {
                    transcoder.transcoding.handle_codec_end(now, id);
                }
                live.handle_go(module);
            });
        }
    }
}

/// What a stream with so many codecs may need.
fn memory_of(codecs: usize) -> Bytes {
    Bytes(TRANSCODING_MEMORY + CODEC_MEMORY * (codecs as u64).saturating_sub(1))
}

fn may_have(memory: &mut Held, codecs: usize) -> bool {
    memory.grow(memory_of(codecs))
}

/// Reads what a codec has written, as far as it is wanted.
fn read(
    io: &mut Io<'_>,
    video: &mut Transcoding,
    line: &mut Line,
    end: End,
    buffer: &mut [u8],
    left: &mut usize,
) -> bool {
    let mut moved = false;
    while video.wants_output(io.now(), line.id) {
        if *left == 0 {
            io.again(end);
            return false;
        }
        match io.receive(end, buffer) {
            Received::Bytes(count) => {
                *left = left.saturating_sub(count);
                video.handle_output(io.now(), line.id, &buffer[..count]);
                moved = true;
            }
            Received::Ended => {
                video.handle_codec_end(io.now(), line.id);
                return !std::mem::replace(&mut line.is_over, true);
            }
            Received::Nothing => {
                if io.state(end) != State::Open && !std::mem::replace(&mut line.is_over, true) {
                    video.handle_codec_end(io.now(), line.id);
                    return true;
                }
                return moved;
            }
        }
    }
    moved
}

/// Feeds a codec as much as it takes.
fn write(io: &mut Io<'_>, video: &mut Transcoding, line: &mut Line, end: End) -> bool {
    let mut moved = false;
    loop {
        let input = video.input(line.id);
        if input.is_empty() {
            break;
        }
        match io.send(end, &[IoSlice::new(input)]) {
            0 => return moved,
            count => {
                moved = true;
                video.handle_fed(line.id, count);
            }
        }
    }
    if video.finishes(line.id) && !std::mem::replace(&mut line.is_finished, true) {
        io.finish(end);
    }
    moved
}
