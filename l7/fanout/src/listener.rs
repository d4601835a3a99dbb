//! Listener: the bytes in transit to it, without payload of its own.

use crate::chunk::Chunk;
use crate::head;
use crate::limits::{INPUT_LENGTH_MAX, SEND_LENGTH_MAX};
use http1::{Framing, RequestHead, ResponseHead, Version};
use reflector::{Channel, ListenerId, Piece};
use std::array;
use std::io::IoSlice;
use std::net::SocketAddr;
use tcp_intercept::{End, Io};

/// Pieces of one send: with titles a burst of 64 KiB has five blocks between its payload.
const PIECES_MAX: usize = 12;
/// Slices of one send: the pieces, the head, and the chunk's delimiters.
const SLICES_MAX: usize = PIECES_MAX + 3;

/// Number of a channel, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StationId(pub(crate) u64);

/// Request of a client that waits for an origin's head, and may have to go to the origin on its
/// own.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    pub(crate) request: RequestHead,
    pub(crate) received: Vec<u8>,
}

impl Waiting {
    /// Returns the bytes of memory that it is.
    pub(crate) fn memory(&self) -> usize {
        let request = self.request.headers.wire_length() + self.request.target().len();
        size_of::<Self>() + request + self.received.capacity()
    }
}

/// Listener of a channel.
#[derive(Debug)]
pub(crate) struct Listener {
    end: End,
    station: StationId,
    version: Version,
    /// Request, until there is a head.
    waiting: Option<Box<Waiting>>,
    /// Part of the head that is not sent yet.
    out: Vec<u8>,
    is_chunked: bool,
    chunk: Chunk,
    /// True if it is in the queue of listeners to serve.
    is_queued: bool,
    /// Bytes that the client has sent after its request.
    input_length: usize,
}

/// Result of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    /// Bytes of payload and titles sent.
    pub(crate) data: usize,
    /// True if the kernel may accept more, and there may be more.
    pub(crate) may_continue: bool,
}

impl Listener {
    pub(crate) fn new(end: End, station: StationId, waiting: Box<Waiting>) -> Self {
        Self {
            end,
            station,
            version: waiting.request.version(),
            input_length: waiting.received.len(),
            waiting: Some(waiting),
            out: Vec::new(),
            is_chunked: false,
            chunk: Chunk::default(),
            is_queued: false,
        }
    }

    pub(crate) const fn end(&self) -> End {
        self.end
    }

    pub(crate) const fn station(&self) -> StationId {
        self.station
    }

    pub(crate) const fn version(&self) -> Version {
        self.version
    }

    /// Returns the request while the listener waits for a head.
    pub(crate) fn waiting(&self) -> Option<&Waiting> {
        self.waiting.as_deref()
    }

    /// Takes the request, if the listener waits for a head.
    pub(crate) fn into_waiting(self) -> Option<Box<Waiting>> {
        self.waiting
    }

    /// Starts the response; returns false if the head exceeds its limits with one more field.
    pub(crate) fn answer(&mut self, head: &ResponseHead, body: Framing) -> bool {
        self.waiting = None;
        let written = head::response(head, body, self.version);
        let is_written = written.is_ok();
        if let Ok((out, is_chunked)) = written {
            (self.out, self.is_chunked) = (out, is_chunked);
        }
        is_written
    }

    /// Marks the listener as queued; returns false if it was already.
    pub(crate) const fn mark_queued(&mut self) -> bool {
        !std::mem::replace(&mut self.is_queued, true)
    }

    /// Marks the listener as no longer queued.
    pub(crate) const fn mark_served(&mut self) {
        self.is_queued = false;
    }

    /// Counts bytes of the client; returns false if they exceed the limit.
    pub(crate) const fn count_input(&mut self, count: usize) -> bool {
        self.input_length = self.input_length.saturating_add(count);
        self.input_length <= INPUT_LENGTH_MAX
    }

    /// Sends the available bytes, without copying them.
    pub(crate) fn send(&mut self, io: &mut Io<'_>, channel: &Channel, id: ListenerId) -> Sent {
        let limit = self.chunk.left().unwrap_or(SEND_LENGTH_MAX);
        let mut next = channel.pieces(id, limit);
        let pieces: [Option<Piece<'_>>; PIECES_MAX] = array::from_fn(|_| next.next());
        let length = pieces.iter().flatten().map(|piece| piece.len()).sum();
        if self.is_chunked {
            self.chunk.begin(length);
        }
        let around = self.chunk.around(length);
        let data = pieces.iter().flatten().map(|piece| &**piece);
        let parts = [self.out.as_slice(), around.before()];
        let all = parts.into_iter().chain(data).chain([around.after]);
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let (mut count, mut offered) = (0, 0);
        for (slice, bytes) in slices.iter_mut().zip(all.filter(|bytes| !bytes.is_empty())) {
            *slice = IoSlice::new(bytes);
            (count, offered) = (count + 1, offered + bytes.len());
        }
        let taken = if offered == 0 { 0 } else { io.send(self.end, &slices[..count]) };
        let may_continue = taken > 0 && taken == offered && length > 0;
        let of_head = taken.min(self.out.len());
        if of_head == self.out.len() {
            self.out = Vec::new();
        } else {
            self.out.drain(..of_head);
        }
        let rest = taken - of_head;
        let data = if self.is_chunked { self.chunk.sent(rest) } else { rest };
        Sent { data, may_continue }
    }

    /// Returns the bytes that complete the response, or `None` if it cannot be completed.
    pub(crate) fn end_of_body(mut self) -> Option<Vec<u8>> {
        if self.is_chunked {
            self.out.extend(self.chunk.end()?);
        }
        Some(self.out)
    }

    /// Returns the bytes of memory beyond the struct itself.
    pub(crate) fn memory(&self) -> usize {
        self.out.capacity() + self.waiting.as_ref().map_or(0, |waiting| waiting.memory())
    }
}

const _: () = assert!(size_of::<Listener>() <= 96, "thousands of them are small");
