//! HTTP calls of a module: each has a connection to itself, which is kept and reused.
//!
//! ```text
//!   begin ─▶ waits for a connection ─▶ sent, answered ─▶ poll_response
//!                                        │ failed, timeout, too long ─▶ a response without headers
//! ```

use crate::http::add_fields;
use crate::limits::{
    CALL_CONNECTIONS_MAX, CALL_IDLE_MAX, CALL_IDLE_TIME, CALL_RESPONSE_LENGTH_MAX, CALL_TIME_MAX,
    READ_LENGTH,
};
use crate::outgoing::Outgoing;
use foldhash::HashMap;
use http1::{
    Body, Encoder, Framing, Headers, RequestHead, RequestTraits, ResponseDecoder, ResponseEvent,
    Version,
};
use proxy_wasm::{HeaderMap, HttpRequest, HttpResponse};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::IoSlice;
use std::net::SocketAddr;
use tcp_intercept::{Closed, End, Io, Received, State, Talk};
use units::Nanos;

/// Upstream server that a module may call.
struct Upstream {
    address: SocketAddr,
    /// Idle connections, each with the time since when; the newest is reused first.
    idle: Vec<(End, Nanos)>,
    connections: usize,
    /// Calls that wait for a connection.
    waiting: VecDeque<u32>,
}

/// Call without a response yet.
struct Call {
    upstream: String,
    request: Vec<u8>,
    traits: RequestTraits,
    may_repeat: bool,
    due: Nanos,
    end: Option<End>,
}

/// Connection, with the part of the response that has been received.
struct Connection {
    upstream: String,
    call: Option<u32>,
    decoder: ResponseDecoder,
    out: Outgoing,
    /// True if it has been used before.
    is_used: bool,
    has_begun: bool,
    is_persistent: bool,
    response: HttpResponse,
}

impl Connection {
    fn new(upstream: String) -> Self {
        Self {
            upstream,
            call: None,
            decoder: ResponseDecoder::new(),
            out: Outgoing::default(),
            is_used: false,
            has_begun: false,
            is_persistent: true,
            response: HttpResponse::default(),
        }
    }
}

/// Progress of a connection's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Waits,
    Whole,
    Failed,
}

#[derive(Default)]
pub(crate) struct Calls {
    upstreams: BTreeMap<String, Upstream>,
    calls: BTreeMap<u32, Call>,
    due: BTreeSet<(Nanos, u32)>,
    connections: HashMap<End, Connection>,
    responses: VecDeque<HttpResponse>,
}

/// Encodes the complete request; returns it with its traits, and true if it may be repeated.
fn written(request: &HttpRequest) -> Option<(Vec<u8>, RequestTraits, bool)> {
    let of = |name: &[u8]| request.headers.get(name);
    let (method, path, authority) = (of(b":method")?, of(b":path")?, of(b":authority")?);
    let mut headers = Headers::new();
    headers.add(b"Host", authority).ok()?;
    add_fields(&request.headers, &mut headers).ok()?;
    for name in [&b"content-length"[..], b"transfer-encoding", b"connection", b"upgrade", b"te"] {
        headers.remove(name);
    }
    // `100-continue` is not supported here.
    headers.remove(b"expect");
    let head = RequestHead::new(method, path, Version::Http11, headers).ok()?;
    let has_body = !request.body.is_empty() || matches!(method, b"POST" | b"PUT" | b"PATCH");
    let framing = match (has_body, request.trailers.is_empty()) {
        (false, true) => Framing::None,
        (true, true) => {
            Framing::for_request(Version::Http11, Body::Known(request.body.len() as u64)).ok()?
        }
        (_, false) => Framing::Chunked,
    };
    let mut trailers = Headers::new();
    add_fields(&request.trailers, &mut trailers).ok()?;
    let mut out = Vec::new();
    let mut encoder = Encoder::request(&head, framing, &mut out).ok()?;
    encoder.write_body(&request.body, &mut out).ok()?;
    encoder.end(&trailers, &mut out).ok()?;
    // RFC 9110, section 9.2.2: idempotent methods.
    let may_repeat =
        matches!(method, b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE" | b"PUT" | b"DELETE");
    let traits = RequestTraits::by(&head);
    (!traits.may_switch()).then_some((out, traits, may_repeat))
}

impl Calls {
    pub(crate) fn new(upstreams: BTreeMap<String, SocketAddr>) -> Self {
        let upstream = |(name, address)| {
            let (idle, waiting) = (Vec::new(), VecDeque::new());
            (name, Upstream { address, idle, connections: 0, waiting })
        };
        Self { upstreams: upstreams.into_iter().map(upstream).collect(), ..Self::default() }
    }

    /// Returns true if the end belongs to a call.
    pub(crate) fn has(&self, end: End) -> bool {
        self.connections.contains_key(&end)
    }

    /// Returns the next response, the oldest first.
    pub(crate) fn poll_response(&mut self) -> Option<HttpResponse> {
        self.responses.pop_front()
    }

    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        let due = self.due.first().map(|(due, _)| *due);
        let idle = self.upstreams.values().filter_map(|it| it.idle.first());
        idle.map(|(_, since)| *since + CALL_IDLE_TIME).chain(due).min()
    }

    fn fail(&mut self, number: u32) {
        let response = HttpResponse { call: number, ..HttpResponse::default() };
        self.responses.push_back(response);
    }

    pub(crate) fn begin(&mut self, io: &mut Io<'_>, number: u32, request: &HttpRequest) {
        let is_known = self.upstreams.contains_key(&request.upstream);
        let Some((bytes, traits, may_repeat)) = written(request).filter(|_| is_known) else {
            return self.fail(number);
        };
        let wait = Nanos::from_millis(u64::from(request.timeout_ms)).min(CALL_TIME_MAX);
        let due = io.now() + wait;
        let upstream = request.upstream.clone();
        let call = Call { upstream, request: bytes, traits, may_repeat, due, end: None };
        self.due.insert((due, number));
        self.calls.insert(number, call);
        self.send(io, number);
    }

    /// Sends a call on an idle connection, or on a new one, or queues it.
    fn send(&mut self, io: &mut Io<'_>, number: u32) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        let Some(upstream) = self.upstreams.get_mut(&call.upstream) else { return };
        let end = match upstream.idle.pop() {
            Some((end, _)) => end,
            None if upstream.connections < CALL_CONNECTIONS_MAX => {
                upstream.connections += 1;
                let end = io.connect(None, upstream.address, Talk::ByTurns);
                self.connections.insert(end, Connection::new(call.upstream.clone()));
                end
            }
            None => return upstream.waiting.push_back(number),
        };
        call.end = Some(end);
        let Some(connection) = self.connections.get_mut(&end) else { return };
        connection.call = Some(number);
        connection.has_begun = false;
        connection.response = HttpResponse { call: number, ..HttpResponse::default() };
        connection.decoder.expect(call.traits);
        connection.out.end().extend_from_slice(&call.request);
        self.ready(io, end);
    }

    /// Handles events of one of the ends.
    pub(crate) fn ready(&mut self, io: &mut Io<'_>, end: End) {
        let progress = match io.state(end) {
            State::Connecting => return,
            State::Open | State::Broken => self.exchange(io, end),
            State::Unreachable | State::Failed | State::Gone => Progress::Failed,
        };
        match progress {
            Progress::Waits => {}
            Progress::Whole => self.finish(io, end),
            Progress::Failed => self.lose(io, end),
        }
    }

    fn exchange(&mut self, io: &mut Io<'_>, end: End) -> Progress {
        let Some(connection) = self.connections.get_mut(&end) else { return Progress::Waits };
        while !connection.out.is_empty() {
            match io.send(end, &[IoSlice::new(connection.out.bytes())]) {
                0 => break,
                count => connection.out.take(count),
            }
        }
        let mut buffer = [0; READ_LENGTH / 4];
        loop {
            match io.receive(end, &mut buffer) {
                Received::Nothing if io.state(end) == State::Open => return Progress::Waits,
                Received::Nothing => return Progress::Failed,
                Received::Ended => {
                    return match connection.decoder.eof() {
                        Ok(Some(ResponseEvent::End)) => {
                            connection.is_persistent = false;
                            Progress::Whole
                        }
                        _ => Progress::Failed,
                    };
                }
                Received::Bytes(count) => match connection.take(&buffer[..count]) {
                    Progress::Waits => io.await_more(end),
                    progress => return progress,
                },
            }
        }
    }

    /// Handles a complete response.
    fn finish(&mut self, io: &mut Io<'_>, end: End) {
        let Some(connection) = self.connections.get_mut(&end) else { return };
        let number = connection.call.take();
        self.responses.push_back(std::mem::take(&mut connection.response));
        let stays = connection.is_persistent && connection.out.is_empty();
        connection.is_used = true;
        if let Some(call) = number.and_then(|number| self.calls.remove(&number)) {
            self.due.remove(&(call.due, number.unwrap_or(0)));
        }
        let name = connection.upstream.clone();
        let Some(upstream) = self.upstreams.get_mut(&name) else { return };
        let next = upstream.waiting.pop_front();
        if stays && (next.is_some() || upstream.idle.len() < CALL_IDLE_MAX) {
            upstream.idle.push((end, io.now()));
        } else {
            self.drop_connection(io, end, Closed::Ended);
        }
        if let Some(next) = next {
            self.send(io, next);
        }
    }

    fn drop_connection(&mut self, io: &mut Io<'_>, end: End, why: Closed) {
        let Some(connection) = self.connections.remove(&end) else { return };
        if let Some(upstream) = self.upstreams.get_mut(&connection.upstream) {
            upstream.connections -= 1;
            upstream.idle.retain(|(idle, _)| *idle != end);
        }
        io.close(end, why);
    }

    /// Handles the loss of a connection: its call has failed, or is repeated if that does no harm.
    fn lose(&mut self, io: &mut Io<'_>, end: End) {
        let Some(connection) = self.connections.get(&end) else { return };
        let (number, name) = (connection.call, connection.upstream.clone());
        let may_repeat = connection.is_used && !connection.has_begun;
        self.drop_connection(io, end, Closed::Reset);
        if let Some(number) = number {
            match self.calls.get_mut(&number) {
                // A server may close an idle connection just when it is reused.
                Some(call) if may_repeat && call.may_repeat => {
                    (call.may_repeat, call.end) = (false, None);
                    return self.send(io, number);
                }
                _ => {
                    self.abandon(number);
                }
            }
        }
        let next = self.upstreams.get_mut(&name).and_then(|it| it.waiting.pop_front());
        if let Some(next) = next {
            self.send(io, next);
        }
    }

    fn abandon(&mut self, number: u32) -> Option<End> {
        let call = self.calls.remove(&number)?;
        self.due.remove(&(call.due, number));
        if let Some(upstream) = self.upstreams.get_mut(&call.upstream) {
            upstream.waiting.retain(|waiting| *waiting != number);
        }
        self.fail(number);
        call.end
    }

    /// Fails calls that took too long, and closes connections that were idle too long.
    pub(crate) fn handle_timeout(&mut self, io: &mut Io<'_>) {
        let now = io.now();
        while let Some((due, number)) = self.due.first().copied() {
            if due > now {
                break;
            }
            self.due.pop_first();
            if let Some(end) = self.abandon(number) {
                if let Some(connection) = self.connections.get_mut(&end) {
                    connection.call = None;
                }
                self.lose(io, end);
            }
        }
        let old = |(_, since): &(End, Nanos)| *since + CALL_IDLE_TIME <= now;
        let idle = self.upstreams.values().filter_map(|it| it.idle.first().copied().filter(old));
        for (end, _) in idle.collect::<Vec<_>>() {
            self.drop_connection(io, end, Closed::Ended);
        }
    }

    /// Drops all calls and connections: their VM has trapped.
    pub(crate) fn clear(&mut self, io: &mut Io<'_>) {
        self.calls.clear();
        self.due.clear();
        self.responses.clear();
        self.upstreams.values_mut().for_each(|it| it.waiting.clear());
        let used = self.connections.iter().filter(|(_, it)| it.call.is_some());
        for end in used.map(|(end, _)| *end).collect::<Vec<_>>() {
            self.drop_connection(io, end, Closed::Reset);
        }
    }
}

impl Connection {
    /// Handles bytes of the response.
    fn take(&mut self, mut bytes: &[u8]) -> Progress {
        self.has_begun = true;
        loop {
            let Ok(step) = self.decoder.decode(bytes) else { return Progress::Failed };
            bytes = &bytes[step.consumed..];
            match step.event {
                None => return Progress::Waits,
                Some(ResponseEvent::Interim(_)) => {}
                Some(ResponseEvent::Head(head, _)) => {
                    self.is_persistent = head.is_persistent();
                    let status = head.status().to_string();
                    let pseudo = std::iter::once((&b":status"[..], status.as_bytes()));
                    let mut map = HeaderMap::new();
                    for (name, value) in pseudo.chain(head.headers.iter()) {
                        if map.add(name, value).is_err() {
                            return Progress::Failed;
                        }
                    }
                    self.response.headers = map;
                }
                Some(ResponseEvent::Body(part)) => {
                    if self.response.body.len() + part.len() > CALL_RESPONSE_LENGTH_MAX {
                        return Progress::Failed;
                    }
                    self.response.body.extend_from_slice(part);
                }
                Some(ResponseEvent::Trailers(trailers)) => {
                    self.response.trailers = trailers.iter().collect();
                }
                Some(ResponseEvent::End) => {
                    // Bytes after the response belong to nothing.
                    self.is_persistent &= bytes.is_empty();
                    return Progress::Whole;
                }
                // Tunnels are not requested.
                Some(ResponseEvent::Tunnel(_)) => return Progress::Failed,
            }
        }
    }
}
