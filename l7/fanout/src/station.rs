//! One channel and its connection to the origin.

use crate::limits::{GATHER_LENGTH, GATHER_MAX, GATHER_NOT, HOLD_MAX};
use http1::{Error, Framing, ResponseDecoder, ResponseEvent, Version};
use reflector::icy::StatusLine;
use reflector::{Channel, Connection, Key as Asked};
use std::io::IoSlice;
use std::net::SocketAddr;
use tcp_intercept::{End, Io};
use units::{Bytes, Held, Nanos};

/// Bytes that are read at once before there is a head: one of them, and the beginning of a body.
const HEAD_READ_LENGTH: usize = 4 * 1024;

/// What tells channels apart. Whoever asks another server gets another channel, whatever name he
/// calls it by: a client chooses both, and others would hear what that server says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) server: SocketAddr,
    pub(crate) key: Named,
}

/// By whom it is named.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Named {
    /// The module says which requests ask for the same.
    Module(Box<[u8]>),
    /// The request.
    Request(Box<Asked>),
}

/// A connection to the origin.
pub(crate) struct Origin {
    pub(crate) end: End,
    pub(crate) connection: Connection,
    /// What of the request is not sent.
    out: Vec<u8>,
    status_line: StatusLine,
    decoder: ResponseDecoder,
    /// All that came until the head was whole: if the answer is not shared, somebody gets it.
    raw: Vec<u8>,
    /// The head's, once it is here.
    head: Option<Answered>,
    read_at: Nanos,
    /// Not read before, as more is to come.
    gathers_until: Nanos,
    /// Not read before, as nobody can take more; or until somebody can.
    held_until: Option<Nanos>,
    /// There is something to read.
    pub(crate) is_readable: bool,
}

#[derive(Clone, Copy)]
struct Answered {
    at: Nanos,
    framing: Framing,
}

/// What became of an origin's bytes.
pub(crate) enum Heard {
    /// They are with the channel, as far as they are a body.
    Taken,
    /// A head is with the channel, which may have closed the connection or given it away; so many
    /// bytes were behind it.
    Head { left: usize },
    /// The body is over.
    End,
}

impl Origin {
    pub(crate) fn new(end: End, connection: Connection, request: Vec<u8>) -> Self {
        let mut decoder = ResponseDecoder::new();
        decoder.expect(crate::head::ASKED);
        Self {
            end,
            connection,
            out: request,
            status_line: StatusLine::new(),
            decoder,
            raw: Vec::new(),
            head: None,
            read_at: Nanos::ZERO,
            gathers_until: Nanos::ZERO,
            held_until: None,
            is_readable: false,
        }
    }

    /// Sends what is left of the request.
    pub(crate) fn ask(&mut self, io: &mut Io<'_>) {
        if !self.out.is_empty() {
            let taken = io.send(self.end, &[IoSlice::new(&self.out)]);
            self.out.drain(..taken);
        }
    }

    /// Returns true when there is something to read, and it need not wait.
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        self.poll_timeout().is_some_and(|at| at <= now)
    }

    /// Returns the time at which it has to be read.
    fn poll_timeout(&self) -> Option<Nanos> {
        self.is_readable.then_some(self.held_until.unwrap_or(self.gathers_until))
    }

    /// Handles bytes that have been read at once, and sets how long the next ones are gathered.
    pub(crate) fn gather(&mut self, now: Nanos, length: usize) {
        let took = now.saturating_sub(std::mem::replace(&mut self.read_at, now));
        if self.head.is_none_or(|head| now < head.at + GATHER_NOT) {
            return;
        }
        self.gathers_until = now + pause(took, length);
    }

    /// Returns true when a client of this version can have the answer as it came.
    pub(crate) fn fits(&self, client: Version) -> bool {
        let framing = self.head.map(|head| head.framing);
        client == Version::Http11 || framing.is_some_and(|framing| framing != Framing::Chunked)
    }

    /// Takes its answer as it came so far, and its end.
    pub(crate) fn give_away(self) -> (End, Vec<u8>) {
        (self.end, self.raw)
    }
}

/// As long as it takes to have what is worth a send, at the rate at which so many bytes came in so
/// much time.
fn pause(took: Nanos, length: usize) -> Nanos {
    // In u128, as both may be large.
    let worth = u128::from(took.0) * GATHER_LENGTH as u128 / length.max(1) as u128;
    Nanos(u64::try_from(worth).unwrap_or(u64::MAX).min(GATHER_MAX.0))
}

/// A channel, with the connection to its origin.
pub(crate) struct Station {
    pub(crate) channel: Channel,
    name: Name,
    /// The client that the origin is asked for.
    client: SocketAddr,
    pub(crate) origin: Option<Origin>,
    /// Number of its listeners: the channel's counters are for people, and cost more.
    listeners: usize,
    /// Time that it is noted with among all that wait for one.
    timer: Option<Nanos>,
    /// Payload that it may come to keep, as it is counted for all of them.
    share: Held,
}

impl Station {
    pub(crate) const fn new(channel: Channel, name: Name, client: SocketAddr, share: Held) -> Self {
        Self { channel, name, client, origin: None, listeners: 0, timer: None, share }
    }

    pub(crate) const fn name(&self) -> &Name {
        &self.name
    }

    /// Returns the client that the origin is asked for.
    pub(crate) const fn client(&self) -> SocketAddr {
        self.client
    }

    /// Returns the number of its listeners.
    pub(crate) const fn listeners(&self) -> usize {
        self.listeners
    }

    pub(crate) const fn handle_join(&mut self) {
        self.listeners += 1;
    }

    pub(crate) const fn handle_leave(&mut self) {
        self.listeners = self.listeners.saturating_sub(1);
    }

    /// Returns the payload that it may come to keep.
    pub(crate) fn share(&self) -> Bytes {
        self.share.bytes()
    }

    /// Gives back what its channel keeps no more.
    pub(crate) fn shrink_share(&mut self) {
        self.share.shrink(self.channel.payload_max());
    }

    /// Notes the time at which it wants to be asked again; returns the one before.
    pub(crate) const fn replace_timer(&mut self, timer: Option<Nanos>) -> Option<Nanos> {
        std::mem::replace(&mut self.timer, timer)
    }

    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        let origin = self.origin.as_ref().and_then(Origin::poll_timeout);
        [self.channel.poll_timeout(), origin].into_iter().flatten().min()
    }

    /// Bytes of the origin, as they came.
    ///
    /// # Errors
    /// When they are no answer.
    pub(crate) fn receive(
        &mut self,
        now: Nanos,
        bytes: &[u8],
        body: &mut Vec<u8>,
    ) -> Result<Heard, Error> {
        let Self { origin: Some(origin), .. } = self else { return Ok(Heard::Taken) };
        if origin.head.is_none() {
            origin.raw.extend_from_slice(bytes);
        }
        let (first, rest) = origin.status_line.take(bytes);
        if let Heard::Head { left } = self.decode(now, first, body)? {
            // What makes up a status line is no whole head.
            return Ok(Heard::Head { left: left + rest.len() });
        }
        self.decode(now, rest, body)
    }

    /// Does the same with bytes behind a head.
    ///
    /// # Errors
    /// When they are no body.
    pub(crate) fn decode(
        &mut self,
        now: Nanos,
        mut input: &[u8],
        body: &mut Vec<u8>,
    ) -> Result<Heard, Error> {
        let Self { origin: Some(origin), channel, .. } = self else { return Ok(Heard::Taken) };
        body.clear();
        let connection = origin.connection;
        let heard = loop {
            let step = match origin.decoder.decode(input) {
                Ok(step) => step,
                Err(error) => {
                    // What was in front of it is as good as any.
                    channel.handle_upstream_bytes(now, connection, body);
                    return Err(error);
                }
            };
            input = input.get(step.consumed..).unwrap_or_default();
            match step.event {
                None => break Heard::Taken,
                Some(ResponseEvent::Interim(_)) => {
                    origin.raw.clear();
                    origin.raw.extend_from_slice(input);
                }
                Some(ResponseEvent::Head(head, framing)) => {
                    origin.head = Some(Answered { at: now, framing });
                    channel.handle_upstream_head(now, connection, &head, framing);
                    return Ok(Heard::Head { left: input.len() });
                }
                Some(ResponseEvent::Body(bytes)) => body.extend_from_slice(bytes),
                Some(ResponseEvent::End) => break Heard::End,
                // Trailers say nothing here; nobody asked for a tunnel.
                Some(ResponseEvent::Trailers(_) | ResponseEvent::Tunnel(_)) => {}
            }
        };
        // All at once, however small its chunks are: listeners are told once.
        channel.handle_upstream_bytes(now, connection, body);
        Ok(heard)
    }

    /// Forgets the bytes of a head that has had its effect.
    pub(crate) fn forget_raw(&mut self) {
        if let Some(origin) = &mut self.origin {
            origin.raw = Vec::new();
        }
    }

    /// Handles the end of the origin's connection; returns true when its body has ended, too.
    pub(crate) fn is_whole(&mut self) -> bool {
        let Some(origin) = &mut self.origin else { return false };
        matches!(origin.decoder.eof(), Ok(Some(ResponseEvent::End)))
    }

    /// Returns true when the origin may be read now, and does not wait for its listeners.
    pub(crate) fn may_read(&mut self, now: Nanos) -> bool {
        let Self { origin: Some(origin), channel, .. } = self else { return false };
        if channel.wants_more() {
            origin.held_until = None;
            return true;
        }
        let until = *origin.held_until.get_or_insert(now + HOLD_MAX);
        if until > now {
            return false;
        }
        origin.held_until = None;
        true
    }

    /// Bytes that may be read at once: no more of a stream than its ring has room for in front of
    /// those who keep up.
    pub(crate) fn read_length(&self) -> usize {
        if self.origin.as_ref().is_none_or(|origin| origin.head.is_none()) {
            return HEAD_READ_LENGTH;
        }
        usize::try_from(self.channel.payload_max().0 / 4).unwrap_or(usize::MAX)
    }

    /// Lets an origin go on that waits for a listener, which has taken something.
    pub(crate) fn let_go(&mut self) {
        let Self { origin: Some(origin), channel, .. } = self else { return };
        if origin.held_until.is_some() && channel.wants_more() {
            origin.held_until = None;
        }
    }

    /// Bytes of memory of what is not the channel's.
    pub(crate) fn memory(&self) -> usize {
        let origin = self.origin.as_ref();
        let held = origin.map_or(0, |origin| origin.raw.capacity() + origin.out.capacity());
        size_of::<Self>() + held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_streams_are_gathered_for_less_time() {
        let rows = [
            // A segment of 128 kbit/s, and what comes of it in the longest time.
            (Nanos::from_millis(87), 1_400, GATHER_MAX),
            (GATHER_MAX, 6_400, GATHER_MAX),
            // 8 and 80 Mbit/s, in whatever time it was measured.
            (Nanos::from_millis(10), 10_000, Nanos(16_384_000)),
            (Nanos::from_millis(100), 100_000, Nanos(16_384_000)),
            (Nanos::from_millis(10), 100_000, Nanos(1_638_400)),
            (Nanos::ZERO, 1, Nanos::ZERO),
            (Nanos(u64::MAX), 1, GATHER_MAX),
            (Nanos(u64::MAX), usize::MAX, Nanos(16_384)),
        ];
        for (took, length, expected) in rows {
            assert_eq!(pause(took, length), expected, "{took}, {length}");
        }
    }
}
