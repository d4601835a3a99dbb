//! Test world: a service on real sockets, with an origin and clients in the same thread. Time is
//! simulated, and advances only in explicit calls.

#![allow(dead_code, reason = "each binary takes what it needs")]

use fanout::{Fanout, FanoutStats, Join, Key, Settings};
use http1::{Framing, RequestDecoder, RequestEvent, ResponseDecoder, ResponseEvent, ResponseHead};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tcp_intercept::{
    Application, Closed, End, Io, Received, ServiceNumber, Sockets, State, Streams,
};
use units::Nanos;

/// Real time after which a test that waits for a condition fails.
const DEADLINE: Duration = Duration::from_secs(60);
/// Simulated time that passes at most while waiting, in milliseconds: less than any timeout.
const ADVANCE_MAX: u64 = 4_000;

/// Application that joins every request it reads; the server is the one in Host.
struct JoinAll {
    fanout: Rc<RefCell<Fanout>>,
    reading: BTreeMap<End, (RequestDecoder, SocketAddr)>,
    key: Rc<RefCell<Vec<u8>>>,
}

impl JoinAll {
    fn read(&mut self, io: &mut Io<'_>, end: End) {
        let Some((decoder, client)) = self.reading.get_mut(&end) else { return };
        let client = *client;
        let mut buffer = [0; 4096];
        loop {
            let count = match io.receive(end, &mut buffer) {
                Received::Bytes(count) => count,
                Received::Nothing if io.state(end) == State::Open => return,
                Received::Nothing | Received::Ended => {
                    self.reading.remove(&end);
                    return io.close(end, Closed::Ended);
                }
            };
            let step = decoder.decode(&buffer[..count]).unwrap();
            let Some(RequestEvent::Head(request, _)) = step.event else { continue };
            self.reading.remove(&end);
            let received = buffer[step.consumed..count].to_vec();
            let host = std::str::from_utf8(request.headers.get(b"Host").unwrap()).unwrap();
            let server = host.parse().unwrap();
            let key = Key::new(&self.key.borrow()).unwrap();
            let join = Join { key, client, server, request, received };
            return self.fanout.borrow_mut().join(io, end, join);
        }
    }
}

impl Application for JoinAll {
    fn accepted(&mut self, io: &mut Io<'_>, end: End, client: SocketAddr, _: SocketAddr) {
        self.reading.insert(end, (RequestDecoder::new(), client));
        io.requeue(end);
    }

    fn ready(&mut self, io: &mut Io<'_>, end: End) {
        let is_joined = self.fanout.borrow().owns(end);
        if is_joined {
            self.fanout.borrow_mut().ready(io, end);
        } else {
            self.read(io, end);
        }
    }

    fn poll_timeout(&self) -> Option<Nanos> {
        self.fanout.borrow().poll_timeout()
    }

    fn work(&mut self, io: &mut Io<'_>) {
        self.fanout.borrow_mut().work(io);
    }
}

struct Plain;

impl Sockets for Plain {
    fn take(&mut self, v6: bool) -> Option<OwnedFd> {
        let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        socket_with(family, SocketType::STREAM, flags, None).ok()
    }
}

pub struct World {
    streams: Streams,
    number: ServiceNumber,
    fanout: Rc<RefCell<Fanout>>,
    pub now: Nanos,
    address: SocketAddr,
    /// Key that a module would set.
    pub key: Rc<RefCell<Vec<u8>>>,
}

impl World {
    pub fn new(settings: Settings) -> Self {
        Self::of(Fanout::new(settings))
    }

    pub fn of(fanout: Fanout) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let fanout = Rc::new(RefCell::new(fanout));
        let key = Rc::new(RefCell::new(Vec::new()));
        let joining =
            JoinAll { fanout: Rc::clone(&fanout), reading: BTreeMap::new(), key: Rc::clone(&key) };
        let mut streams = Streams::new(8_000, |_| 0).unwrap();
        let number = streams.add(vec![listener.into()], Some(Box::new(joining))).unwrap();
        Self { streams, number, fanout, now: Nanos::from_millis(1_000), address, key }
    }

    /// Does all work possible at this time; returns true if there was some.
    pub fn work(&mut self) -> bool {
        self.streams.poll(self.now).unwrap();
        let mut has_worked = false;
        while self.streams.ready(self.now).next().is_some() {
            self.streams.work(self.number, &mut Plain, self.now, self.now);
            has_worked = true;
        }
        has_worked
    }

    /// Advances the time, and does all work that becomes due.
    pub fn pass(&mut self, millis: u64) {
        for _ in 0..millis.div_ceil(50) {
            self.now += Nanos::from_millis(50);
            self.work();
        }
    }

    /// Waits for a condition, while a little time passes.
    pub fn until<T>(&mut self, what: &str, mut is_there: impl FnMut(&mut Self) -> Option<T>) -> T {
        let begin = Instant::now();
        for step in 0_u64.. {
            let has_worked = self.work();
            if let Some(there) = is_there(self) {
                return there;
            }
            if step < ADVANCE_MAX {
                self.now += Nanos::from_millis(1);
            }
            if !has_worked {
                std::thread::sleep(Duration::from_micros(50));
            }
            assert!(begin.elapsed() < DEADLINE, "{what}: {:?}", self.stats());
        }
        unreachable!("it has been too long before")
    }

    pub fn stats(&self) -> FanoutStats {
        self.fanout.borrow().stats()
    }

    /// Returns the number of open client connections.
    pub fn open(&self) -> u64 {
        self.streams.counts(self.number).unwrap().open()
    }

    pub fn poll_timeout(&self) -> Option<Nanos> {
        self.fanout.borrow().poll_timeout()
    }

    /// Returns a client that has sent a request.
    pub fn ask(&mut self, request: &str) -> Client {
        self.ask_with(request, None, "127.0.0.1")
    }

    /// Returns a client with this source address.
    pub fn ask_from(&mut self, request: &str, address: &str) -> Client {
        self.ask_with(request, None, address)
    }

    /// Returns a client with a small receive buffer.
    pub fn ask_slowly(&mut self, request: &str) -> Client {
        self.ask_with(request, Some(4 * 1024), "127.0.0.1")
    }

    fn ask_with(&mut self, request: &str, buffer: Option<usize>, address: &str) -> Client {
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .unwrap();
        if let Some(length) = buffer {
            sockopt::set_socket_recv_buffer_size(&socket, length).unwrap();
        }
        let own = SocketAddr::new(address.parse().unwrap(), 0);
        rustix::net::bind(&socket, &own).unwrap();
        rustix::net::connect(&socket, &self.address).unwrap();
        let mut stream = TcpStream::from(socket);
        stream.write_all(request.as_bytes()).unwrap();
        stream.set_nonblocking(true).unwrap();
        self.work();
        Client { stream, wire: Vec::new(), end: None }
    }

    /// Returns a client of a stream that has received the head.
    pub fn listen(&mut self, origin: &Server, target: &str, fields: &str) -> Client {
        let mut client = self.ask(&origin.get(target, "HTTP/1.1", fields));
        self.until("a head", |_| client.response().map(|_| ()));
        client
    }
}

/// End of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Closed,
    Reset,
}

pub struct Client {
    pub stream: TcpStream,
    pub wire: Vec<u8>,
    pub end: Option<Ended>,
}

/// Response as a client has decoded it.
#[derive(Debug)]
pub struct Response {
    pub head: ResponseHead,
    pub framing: Framing,
    pub body: Vec<u8>,
    /// True if the response is complete.
    pub is_whole: bool,
}

impl Response {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name.as_bytes()).map(|value| std::str::from_utf8(value).unwrap())
    }
}

impl Client {
    /// Reads all available bytes.
    pub fn read(&mut self) {
        self.end = self.end.or(read(&mut self.stream, &mut self.wire));
    }

    /// Sends bytes, as far as the kernel accepts them.
    pub fn say(&mut self, bytes: &[u8]) {
        let _ = self.stream.write(bytes);
    }

    /// Reads at most `length` bytes.
    pub fn read_some(&mut self, length: usize) {
        let mut buffer = vec![0; length];
        match self.stream.read(&mut buffer) {
            Ok(count) => self.wire.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns the response so far, once there is a head.
    pub fn response(&mut self) -> Option<Response> {
        self.read();
        let mut decoder = ResponseDecoder::new();
        decoder.expect(http1::RequestTraits { method: http1::MethodClass::Other, upgrade: false });
        let (mut rest, mut response) = (self.wire.as_slice(), None);
        while !decoder.awaits_request() {
            let step = decoder.decode(rest).unwrap();
            rest = &rest[step.consumed..];
            match step.event {
                None => break,
                Some(ResponseEvent::Head(head, framing)) => {
                    response = Some(Response { head, framing, body: Vec::new(), is_whole: false });
                }
                Some(ResponseEvent::Body(bytes)) => {
                    response.as_mut().unwrap().body.extend_from_slice(bytes);
                }
                Some(ResponseEvent::End) => response.as_mut().unwrap().is_whole = true,
                Some(other) => panic!("{other:?}"),
            }
        }
        assert!(rest.is_empty(), "bytes behind a response");
        if self.end == Some(Ended::Closed)
            && let Some(response) = &mut response
        {
            response.is_whole |= matches!(decoder.eof(), Ok(Some(ResponseEvent::End)));
        }
        response
    }

    /// Returns the response, once it is complete.
    pub fn whole(&mut self) -> Option<Response> {
        self.response().filter(|response| response.is_whole)
    }

    /// Returns the first `length` bytes of the body, once they are there.
    pub fn body(&mut self, length: usize) -> Option<Vec<u8>> {
        self.response().map(|response| response.body).filter(|body| body.len() >= length)
    }
}

fn read(stream: &mut TcpStream, wire: &mut Vec<u8>) -> Option<Ended> {
    let mut buffer = [0; 16 * 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Some(Ended::Closed),
            Ok(count) => wire.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Some(Ended::Reset),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Server of live streams.
pub struct Server {
    listener: Option<TcpListener>,
    pub address: SocketAddr,
}

/// Connection that the server has accepted.
pub struct Served {
    stream: TcpStream,
    asked: Vec<u8>,
}

impl Server {
    pub fn new() -> Self {
        let mut server = Self { listener: None, address: "127.0.0.1:0".parse().unwrap() };
        server.start();
        server
    }

    /// Starts again at the same address.
    pub fn start(&mut self) {
        let listener = TcpListener::bind(self.address).unwrap();
        listener.set_nonblocking(true).unwrap();
        self.address = listener.local_addr().unwrap();
        self.listener = Some(listener);
    }

    /// Stops: connections are refused.
    pub fn stop(&mut self) {
        self.listener = None;
    }

    pub fn get(&self, target: &str, version: &str, fields: &str) -> String {
        format!("GET {target} {version}\r\nHost: {}\r\n{fields}\r\n", self.address)
    }

    /// Accepts the next connection, and reads its request.
    pub fn accept(&self, world: &mut World) -> Served {
        let mut served = world.until("a connection to the origin", |_| self.accept_now());
        world.until("a request", |_| served.request());
        served
    }

    /// Accepts a connection, if one waits.
    pub fn accept_now(&self) -> Option<Served> {
        let (stream, _) = self.listener.as_ref()?.accept().ok()?;
        stream.set_nonblocking(true).unwrap();
        Some(Served { stream, asked: Vec::new() })
    }
}

impl Served {
    /// Returns the request, once it is complete.
    pub fn request(&mut self) -> Option<String> {
        let end = read(&mut self.stream, &mut self.asked);
        assert_eq!(end, None, "whoever asks waits for an answer");
        self.asked.ends_with(b"\r\n\r\n").then(|| String::from_utf8(self.asked.clone()).unwrap())
    }

    pub fn asked(&mut self) -> String {
        read(&mut self.stream, &mut self.asked);
        String::from_utf8(self.asked.clone()).unwrap()
    }

    /// Sends bytes, waiting for buffer space.
    pub fn send(&mut self, world: &mut World, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    world.now += Nanos::from_millis(1);
                    world.work();
                }
                Err(error) => panic!("{error}"),
            }
        }
        world.work();
    }

    /// Sends as many bytes as possible; returns the rest.
    pub fn send_now<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        match self.stream.write(bytes) {
            Ok(count) => &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => bytes,
            Err(error) => panic!("{error}"),
        }
    }

    /// Sends as many bytes as possible, and discards the rest.
    pub fn try_send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write(bytes);
    }

    /// Returns the client address that the server sees.
    pub fn peer(&self) -> SocketAddr {
        self.stream.peer_addr().unwrap()
    }

    /// Resets the connection, as if the process was killed.
    pub fn kill(self) {
        sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO)).unwrap();
    }

    /// Returns true if the peer has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        read(&mut self.stream, &mut self.asked).is_some()
    }
}

impl AsFd for Served {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Head of a live stream.
pub const LIVE: &str = "HTTP/1.0 200 OK\r\nContent-Type: audio/mpeg\r\nicy-name: Radio\r\n\r\n";
pub const CHUNKED: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\nTransfer-Encoding: chunked\r\n\r\n";

pub fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}
