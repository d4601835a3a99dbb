//! Codecs of connections: sockets of processes that the owner starts.

use super::Live;
use crate::codecs::{CodecEvent, Codecs};
use crate::limits::{CODEC_MEMORY, TRANSCODING_MEMORY};
use crate::runner::Runner;
use crate::transcoder::{ConnectionCodec, ConnectionCodecs};
use foldhash::{HashMap, HashMapExt as _};
use mpeg2::{Effect, Transcoding};
use std::collections::BTreeSet;
use std::io::IoSlice;
use std::rc::Rc;
use tcp_intercept::{Closed, End, Io, Received, State};
use units::{Bytes, Held, Nanos};

/// Numbers of the connections of ends.
type Ends = HashMap<End, u64>;

/// Codecs of the connections of a filter, by number.
pub(super) struct CodecTable {
    /// Source of codecs, if the module may use them.
    codecs: Option<Rc<dyn Codecs>>,
    /// Numbers of the connections of codecs.
    owners: HashMap<u64, u64>,
    /// Times at which waiting pictures become late, with the numbers of their connections.
    overdue: BTreeSet<(Nanos, u64)>,
}

/// Read buffer, with the number of bytes that may be read before other work.
pub(super) struct ReadBudget<'a> {
    pub(super) buffer: &'a mut [u8],
    pub(super) left: &'a mut usize,
}

impl CodecTable {
    pub(super) fn new(codecs: Option<Rc<dyn Codecs>>) -> Self {
        Self { codecs, owners: HashMap::new(), overdue: BTreeSet::new() }
    }

    /// Returns the number of the connection of a codec.
    pub(super) fn owner(&self, codec: u64) -> Option<u64> {
        self.owners.get(&codec).copied()
    }

    /// Returns the time of the next work for codecs.
    pub(super) fn poll_timeout(&self) -> Option<Nanos> {
        let news = self.codecs.as_ref().filter(|codecs| codecs.has_events()).map(|_| Nanos::ZERO);
        news.or(self.overdue.first().map(|(at, _)| *at))
    }

    /// Returns the next event of a codec.
    pub(super) fn poll_event(&self) -> Option<CodecEvent> {
        self.codecs.as_ref().and_then(|codecs| codecs.poll())
    }

    /// Returns the number of a connection whose picture has become late.
    pub(super) fn pop_overdue(&mut self, now: Nanos) -> Option<u64> {
        self.overdue.first().filter(|(at, _)| *at <= now)?;
        self.overdue.pop_first().map(|(_, number)| number)
    }

    /// Registers the time at which a waiting picture becomes late.
    pub(super) fn watch(&mut self, now: Nanos, live: &mut Live) {
        let Some((_, transcoder)) = live.protocol.transcoder() else { return };
        let late = transcoder.transcoding.poll_timeout(now).map(|at| (at, live.number));
        if late == live.lines.overdue {
            return;
        }
        if let Some(before) = std::mem::replace(&mut live.lines.overdue, late) {
            self.overdue.remove(&before);
        }
        self.overdue.extend(late);
    }

    /// Does the pending work of a connection's codecs: starts and stops them, feeds them, and reads
    /// their output. Returns true on progress.
    pub(super) fn drive(
        &mut self,
        io: &mut Io<'_>,
        ends: &mut Ends,
        live: &mut Live,
        runner: &mut Runner,
        portion: ReadBudget<'_>,
    ) -> bool {
        let message = live.protocol.transcoder().map(|(message, _)| message);
        if message != Some(live.lines.message) {
            self.drop_all(io, ends, live);
        }
        let Live { number, protocol, lines, down, .. } = live;
        let Some((message, transcoder)) = protocol.transcoder() else { return false };
        lines.message = message;
        while let Some(effect) = transcoder.transcoding.poll_effect() {
            match effect {
                Effect::Start(id, _) if !may_have(&mut transcoder.memory, lines.all.len() + 1) => {
                    runner.report_codec("its session has not the memory for a change");
                    transcoder.transcoding.handle_codec_end(io.now(), id);
                }
                Effect::Start(id, params) => {
                    let codec = transcoder.share.start(&params);
                    self.owners.insert(codec, *number);
                    lines.all.push(ConnectionCodec {
                        id,
                        codec,
                        end: None,
                        is_finished: false,
                        is_over: false,
                    });
                }
                Effect::Stop(id) => {
                    if let Some(index) = lines.all.iter().position(|line| line.id == id) {
                        let line = lines.all.remove(index);
                        self.drop_line(io, ends, &line);
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
        let ReadBudget { buffer, left } = portion;
        for line in &mut lines.all {
            let Some(end) = line.end else { continue };
            let video = &mut transcoder.transcoding;
            moved |= read(io, video, line, end, buffer, left) | write(io, video, line, end);
        }
        moved
    }

    fn drop_line(&mut self, io: &mut Io<'_>, ends: &mut Ends, line: &ConnectionCodec) {
        self.owners.remove(&line.codec);
        if let Some(end) = line.end {
            ends.remove(&end);
            io.close(end, Closed::Reset);
        }
    }

    /// Drops the codecs of a connection: they end with their sockets, and their source is notified
    /// by the drop of their share.
    pub(super) fn drop_all(&mut self, io: &mut Io<'_>, ends: &mut Ends, live: &mut Live) {
        let ConnectionCodecs { all, overdue, .. } = std::mem::take(&mut live.lines);
        for line in &all {
            self.drop_line(io, ends, line);
        }
        if let Some((at, number)) = overdue {
            self.overdue.remove(&(at, number));
        }
    }
}

/// Returns the memory that a stream with this many codecs may need.
fn memory_of(codecs: usize) -> Bytes {
    Bytes(TRANSCODING_MEMORY + CODEC_MEMORY * (codecs as u64).saturating_sub(1))
}

fn may_have(memory: &mut Held, codecs: usize) -> bool {
    memory.grow(memory_of(codecs))
}

/// Reads a codec's output, as far as it is wanted.
fn read(
    io: &mut Io<'_>,
    video: &mut Transcoding,
    line: &mut ConnectionCodec,
    end: End,
    buffer: &mut [u8],
    left: &mut usize,
) -> bool {
    let mut moved = false;
    while video.wants_output(io.now(), line.id) {
        if *left == 0 {
            io.requeue(end);
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

/// Feeds a codec as much as it accepts.
fn write(io: &mut Io<'_>, video: &mut Transcoding, line: &mut ConnectionCodec, end: End) -> bool {
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
