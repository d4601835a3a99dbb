//! Station: one channel with its connection to the origin.

use crate::limits::{BATCH_DELAY, BATCH_LENGTH, BATCH_MAX, PAUSE_MAX};
use http1::{Error, Framing, ResponseDecoder, ResponseEvent, Version};
use reflector::icy::StatusLine;
use reflector::{Channel, Connection, Key as Asked};
use std::io::IoSlice;
use std::net::SocketAddr;
use tcp_intercept::{End, Io};
use units::{Bytes, Held, Nanos};

/// Bytes of one read before there is a head: a head, and the beginning of a body.
const HEAD_READ_LENGTH: usize = 4 * 1024;

/// Identity of a channel. Requests to different servers get different channels, whatever host they
/// name: a client chooses both, and could otherwise feed other listeners from a server of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) server: SocketAddr,
    pub(crate) key: KeySource,
}

/// Origin of a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KeySource {
    /// Key that the module has set.
    Module(Box<[u8]>),
    /// Key of the request itself.
    Request(Box<Asked>),
}

/// Connection to the origin.
pub(crate) struct Origin {
    pub(crate) end: End,
    pub(crate) connection: Connection,
    /// Part of the request that is not sent yet.
    out: Vec<u8>,
    status_line: StatusLine,
    decoder: ResponseDecoder,
    /// Bytes received until the head was complete: if the response is not shared, one client gets
    /// them.
    raw: Vec<u8>,
    /// Time and framing of the head, once it is complete.
    head: Option<Head>,
    read_at: Nanos,
    /// Time before which the origin is not read, to batch its bytes.
    batched_until: Nanos,
    /// Time until which the origin is not read because no listener can take more.
    paused_until: Option<Nanos>,
    /// True if bytes can be read.
    pub(crate) is_readable: bool,
}

#[derive(Clone, Copy)]
struct Head {
    at: Nanos,
    framing: Framing,
}

/// Result of handling an origin's bytes.
pub(crate) enum Input {
    /// Body bytes were passed to the channel.
    Consumed,
    /// A head was passed to the channel, which may have closed the connection or handed it over;
    /// `left` bytes follow it.
    Head { left: usize },
    /// The body has ended.
    End,
}

impl Origin {
    pub(crate) fn new(end: End, connection: Connection, request: Vec<u8>) -> Self {
        let mut decoder = ResponseDecoder::new();
        decoder.expect(crate::head::GET_TRAITS);
        Self {
            end,
            connection,
            out: request,
            status_line: StatusLine::new(),
            decoder,
            raw: Vec::new(),
            head: None,
            read_at: Nanos::ZERO,
            batched_until: Nanos::ZERO,
            paused_until: None,
            is_readable: false,
        }
    }

    /// Sends the rest of the request.
    pub(crate) fn ask(&mut self, io: &mut Io<'_>) {
        if !self.out.is_empty() {
            let taken = io.send(self.end, &[IoSlice::new(&self.out)]);
            self.out.drain(..taken);
        }
    }

    /// Returns true if bytes can be read, and the time for it has come.
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        self.poll_timeout().is_some_and(|at| at <= now)
    }

    /// Returns the time at which the origin has to be read.
    fn poll_timeout(&self) -> Option<Nanos> {
        self.is_readable.then_some(self.paused_until.unwrap_or(self.batched_until))
    }

    /// Handles a read of `length` bytes, and sets how long the next ones are batched.
    pub(crate) fn batch(&mut self, now: Nanos, length: usize) {
        let took = now.saturating_sub(std::mem::replace(&mut self.read_at, now));
        if self.head.is_none_or(|head| now < head.at + BATCH_DELAY) {
            return;
        }
        self.batched_until = now + pause(took, length);
    }

    /// Returns true if a client of this version can get the response unchanged.
    pub(crate) fn fits(&self, client: Version) -> bool {
        let framing = self.head.map(|head| head.framing);
        client == Version::Http11 || framing.is_some_and(|framing| framing != Framing::Chunked)
    }

    /// Returns the end, and the bytes of the response so far.
    pub(crate) fn into_parts(self) -> (End, Vec<u8>) {
        (self.end, self.raw)
    }
}

/// Returns the time in which [`BATCH_LENGTH`] bytes arrive, at the rate of `length` bytes in
/// `took`.
fn pause(took: Nanos, length: usize) -> Nanos {
    // Both factors may be large, hence u128.
    let worth = u128::from(took.0) * BATCH_LENGTH as u128 / length.max(1) as u128;
    Nanos(u64::try_from(worth).unwrap_or(u64::MAX).min(BATCH_MAX.0))
}

/// Channel with its connection to the origin.
pub(crate) struct Station {
    pub(crate) channel: Channel,
    name: Name,
    /// Client for which the origin is asked.
    client: SocketAddr,
    pub(crate) origin: Option<Origin>,
    /// Number of listeners; the channel's counters would be more expensive to read.
    listeners: usize,
    /// Time at which it is registered in the timers of all stations.
    timer: Option<Nanos>,
    /// Payload that it may keep, as charged to the account.
    share: Held,
}

impl Station {
    pub(crate) const fn new(channel: Channel, name: Name, client: SocketAddr, share: Held) -> Self {
        Self { channel, name, client, origin: None, listeners: 0, timer: None, share }
    }

    pub(crate) const fn name(&self) -> &Name {
        &self.name
    }

    /// Returns the client for which the origin is asked.
    pub(crate) const fn client(&self) -> SocketAddr {
        self.client
    }

    /// Returns the number of listeners.
    pub(crate) const fn listeners(&self) -> usize {
        self.listeners
    }

    pub(crate) const fn handle_join(&mut self) {
        self.listeners += 1;
    }

    pub(crate) const fn handle_leave(&mut self) {
        self.listeners = self.listeners.saturating_sub(1);
    }

    /// Returns the payload that it may keep.
    pub(crate) fn share(&self) -> Bytes {
        self.share.bytes()
    }

    /// Reduces the charge to the payload that the channel may still keep.
    pub(crate) fn shrink_share(&mut self) {
        self.share.shrink(self.channel.payload_max());
    }

    /// Sets the registered time; returns the one before.
    pub(crate) const fn replace_timer(&mut self, timer: Option<Nanos>) -> Option<Nanos> {
        std::mem::replace(&mut self.timer, timer)
    }

    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        let origin = self.origin.as_ref().and_then(Origin::poll_timeout);
        [self.channel.poll_timeout(), origin].into_iter().flatten().min()
    }

    /// Handles bytes of the origin as received.
    ///
    /// # Errors
    /// The bytes are no valid response.
    pub(crate) fn receive(
        &mut self,
        now: Nanos,
        bytes: &[u8],
        body: &mut Vec<u8>,
    ) -> Result<Input, Error> {
        let Self { origin: Some(origin), .. } = self else { return Ok(Input::Consumed) };
        if origin.head.is_none() {
            origin.raw.extend_from_slice(bytes);
        }
        let (first, rest) = origin.status_line.take(bytes);
        if let Input::Head { left } = self.decode(now, first, body)? {
            // The bytes of a status line are no complete head.
            return Ok(Input::Head { left: left + rest.len() });
        }
        self.decode(now, rest, body)
    }

    /// Handles bytes of the origin after the status line filter.
    ///
    /// # Errors
    /// The bytes are no valid response.
    pub(crate) fn decode(
        &mut self,
        now: Nanos,
        mut input: &[u8],
        body: &mut Vec<u8>,
    ) -> Result<Input, Error> {
        let Self { origin: Some(origin), channel, .. } = self else { return Ok(Input::Consumed) };
        body.clear();
        let connection = origin.connection;
        let result = loop {
            let step = match origin.decoder.decode(input) {
                Ok(step) => step,
                Err(error) => {
                    // The body before the error is still used.
                    channel.handle_upstream_bytes(now, connection, body);
                    return Err(error);
                }
            };
            input = input.get(step.consumed..).unwrap_or_default();
            match step.event {
                None => break Input::Consumed,
                Some(ResponseEvent::Interim(_)) => {
                    origin.raw.clear();
                    origin.raw.extend_from_slice(input);
                }
                Some(ResponseEvent::Head(head, framing)) => {
                    origin.head = Some(Head { at: now, framing });
                    channel.handle_upstream_head(now, connection, &head, framing);
                    return Ok(Input::Head { left: input.len() });
                }
                Some(ResponseEvent::Body(bytes)) => body.extend_from_slice(bytes),
                Some(ResponseEvent::End) => break Input::End,
                // Trailers have no meaning here; tunnels are not requested.
                Some(ResponseEvent::Trailers(_) | ResponseEvent::Tunnel(_)) => {}
            }
        };
        // One call for all bytes, however small the chunks: listeners are notified once.
        channel.handle_upstream_bytes(now, connection, body);
        Ok(result)
    }

    /// Drops the bytes of a head that has been handled.
    pub(crate) fn drop_raw(&mut self) {
        if let Some(origin) = &mut self.origin {
            origin.raw = Vec::new();
        }
    }

    /// Handles the end of the origin's connection; returns true if its body has ended too.
    pub(crate) fn is_whole(&mut self) -> bool {
        let Some(origin) = &mut self.origin else { return false };
        matches!(origin.decoder.eof(), Ok(Some(ResponseEvent::End)))
    }

    /// Returns true if the origin may be read now, and does not pause for its listeners.
    pub(crate) fn may_read(&mut self, now: Nanos) -> bool {
        let Self { origin: Some(origin), channel, .. } = self else { return false };
        if channel.wants_more() {
            origin.paused_until = None;
            return true;
        }
        let until = *origin.paused_until.get_or_insert(now + PAUSE_MAX);
        if until > now {
            return false;
        }
        origin.paused_until = None;
        true
    }

    /// Returns the bytes of one read: no more than the ring has space for ahead of listeners that
    /// keep up.
    pub(crate) fn read_length(&self) -> usize {
        if self.origin.as_ref().is_none_or(|origin| origin.head.is_none()) {
            return HEAD_READ_LENGTH;
        }
        usize::try_from(self.channel.payload_max().0 / 4).unwrap_or(usize::MAX)
    }

    /// Ends the pause of an origin, if a listener has taken enough.
    pub(crate) fn resume(&mut self) {
        let Self { origin: Some(origin), channel, .. } = self else { return };
        if origin.paused_until.is_some() && channel.wants_more() {
            origin.paused_until = None;
        }
    }

    /// Returns the bytes of memory outside the channel.
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
    fn fast_streams_are_batched_for_less_time() {
        let rows = [
            // A segment of 128 kbit/s, and the bytes that arrive in the longest batch.
            (Nanos::from_millis(87), 1_400, BATCH_MAX),
            (BATCH_MAX, 6_400, BATCH_MAX),
            // 8 and 80 Mbit/s, measured over different times.
            (Nanos::from_millis(10), 10_000, Nanos(16_384_000)),
            (Nanos::from_millis(100), 100_000, Nanos(16_384_000)),
            (Nanos::from_millis(10), 100_000, Nanos(1_638_400)),
            (Nanos::ZERO, 1, Nanos::ZERO),
            (Nanos(u64::MAX), 1, BATCH_MAX),
            (Nanos(u64::MAX), usize::MAX, Nanos(16_384)),
        ];
        for (took, length, expected) in rows {
            assert_eq!(pause(took, length), expected, "{took}, {length}");
        }
    }
}
