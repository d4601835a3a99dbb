//! Lab: a client, a filter and a server on the loopback interface, in one thread.

use crate::{Capabilities, Codecs, Event, Failure, Filter, FilterSpec, Kind, Reports};
use proxy_wasm::abi::{CALLBACKS, ENV, LogLevel, host_function};
use proxy_wasm::{Engine, Random, Shared, VmSpec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tcp_intercept::{Application, Counts, End, Io, ServiceNumber, Sockets, Streams, Talk};
use testbase::built_for_wasm;
use units::Nanos;

/// Real time limit, long enough for a busy machine.
const SOON: Duration = Duration::from_secs(20);

pub(crate) fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| Engine::new().unwrap())
}

struct Fresh;

impl Sockets for Fresh {
    fn take(&mut self, _: bool) -> Option<OwnedFd> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).ok()?;
        sockopt::set_socket_reuseaddr(&socket, true).ok()?;
        Some(socket)
    }
}

/// Filter whose connections go to the lab's server, as intercepted ones would.
struct Redirected {
    filter: Filter,
    server: SocketAddr,
}

impl Application for Redirected {
    fn talk(&self) -> Talk {
        self.filter.talk()
    }

    fn accepted(&mut self, io: &mut Io<'_>, end: End, client: SocketAddr, _: SocketAddr) {
        self.filter.accepted(io, end, client, self.server);
    }

    fn ready(&mut self, io: &mut Io<'_>, end: End) {
        self.filter.ready(io, end);
    }

    fn flush(&mut self, io: &mut Io<'_>) {
        self.filter.flush(io);
    }

    fn poll_timeout(&self) -> Option<Nanos> {
        self.filter.poll_timeout()
    }

    fn work(&mut self, io: &mut Io<'_>) {
        self.filter.work(io);
    }
}

struct Zeros;

impl Random for Zeros {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(0);
    }
}

pub(crate) fn vm_spec() -> VmSpec {
    VmSpec {
        number: 1,
        plugin_name: "filter".to_owned(),
        root_id: String::new(),
        vm_id: String::new(),
        vm_configuration: Rc::from(&b""[..]),
        plugin_configuration: Rc::from(&b""[..]),
        environment: BTreeMap::new(),
        upstreams: BTreeSet::new(),
        log_level: LogLevel::Trace,
        memory_bytes_max: 16 << 20,
        call_slices: 1 << 40,
        pace: None,
        room: None,
        random: Rc::new(Zeros),
        foreign: Rc::new(BTreeMap::new()),
        shared: Rc::new(RefCell::new(Shared::default())),
    }
}

/// Peer: a client's or a server's non-blocking connection.
pub(crate) struct Peer {
    socket: TcpStream,
    pub(crate) received_bytes: Vec<u8>,
    pub(crate) has_ended: bool,
    pub(crate) was_reset: bool,
    to_send: Vec<u8>,
    finishes: bool,
}

impl Peer {
    fn new(socket: TcpStream) -> Self {
        socket.set_nonblocking(true).unwrap();
        socket.set_nodelay(true).unwrap();
        let (received_bytes, to_send) = (Vec::new(), Vec::new());
        Self {
            socket,
            received_bytes,
            has_ended: false,
            was_reset: false,
            to_send,
            finishes: false,
        }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.to_send.extend_from_slice(bytes.as_ref());
        self.step();
    }

    pub(crate) fn finish(&mut self) {
        self.finishes = true;
        self.step();
    }

    /// Sends last bytes, and closes with unread bytes of the other side: the kernel resets the
    /// connection after the last bytes.
    pub(crate) fn leave_with_unread(mut self, last: impl AsRef<[u8]>) {
        self.socket.set_nonblocking(false).unwrap();
        assert!(self.socket.peek(&mut [0]).unwrap() > 0);
        self.socket.write_all(last.as_ref()).unwrap();
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.received_bytes).into_owned()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.has_ended || self.was_reset
    }

    pub(crate) fn has_sent(&self) -> bool {
        self.to_send.is_empty()
    }

    pub(crate) fn step(&mut self) {
        while !self.to_send.is_empty() {
            match self.socket.write(&self.to_send) {
                Ok(count) => {
                    self.to_send.drain(..count);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.was_reset = true;
                    return;
                }
            }
        }
        if self.finishes && self.to_send.is_empty() {
            self.finishes = false;
            let _ = self.socket.shutdown(Shutdown::Write);
        }
        let mut buffer = [0; 1 << 16];
        while !self.has_ended && !self.was_reset {
            match self.socket.read(&mut buffer) {
                Ok(0) => self.has_ended = true,
                Ok(count) => self.received_bytes.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.was_reset = true,
            }
        }
    }
}

/// Resets a connection at once.
pub(crate) fn reset(peer: Peer) {
    sockopt::set_socket_linger(&peer.socket, Some(Duration::ZERO)).unwrap();
}

pub(crate) struct Lab {
    streams: Streams,
    service: ServiceNumber,
    pub(crate) reports: Reports,
    pub(crate) failure: Rc<Cell<Failure>>,
    pub(crate) at: SocketAddr,
    listener: TcpListener,
    /// Simulated time, which advances only by [`Lab::skip`].
    now: Nanos,
    pub(crate) events: Vec<Event>,
}

impl Lab {
    pub(crate) fn new(wasm: &[u8], kind: Kind, failure: Failure) -> Self {
        Self::with(wasm, vm_spec(), kind, failure, BTreeMap::new())
    }

    pub(crate) fn with(
        wasm: &[u8],
        vm: VmSpec,
        kind: Kind,
        failure: Failure,
        upstreams: BTreeMap<String, SocketAddr>,
    ) -> Self {
        proxy_wasm::check(wasm).unwrap();
        let spec = FilterSpec {
            program: engine().program(wasm).unwrap(),
            vm,
            kind,
            failure,
            upstreams,
            capabilities: Capabilities::default(),
            codecs: None,
            busy_permille: Rc::default(),
            real_offset_ns: 1_700_000_000_000_000_000,
        };
        Self::of(spec)
    }

    /// Creates a lab whose module may use codecs.
    pub(crate) fn with_codecs(wasm: &[u8], vm: VmSpec, codecs: Rc<dyn Codecs>) -> Self {
        proxy_wasm::check(wasm).unwrap();
        Self::of(FilterSpec {
            program: engine().program(wasm).unwrap(),
            vm,
            kind: Kind::Http,
            failure: Failure::Open,
            upstreams: BTreeMap::new(),
            capabilities: Capabilities::default(),
            codecs: Some(codecs),
            busy_permille: Rc::default(),
            real_offset_ns: 0,
        })
    }

    /// Creates a lab whose module may use these functions of the node.
    pub(crate) fn granted(wasm: &[u8], vm: VmSpec, capabilities: Capabilities) -> Self {
        proxy_wasm::check(wasm).unwrap();
        Self::of(FilterSpec {
            program: engine().program(wasm).unwrap(),
            vm,
            kind: Kind::Http,
            failure: Failure::Open,
            upstreams: BTreeMap::new(),
            capabilities,
            codecs: None,
            busy_permille: Rc::new(Cell::new(Some(0))),
            real_offset_ns: 0,
        })
    }

    fn of(spec: FilterSpec) -> Self {
        let filter = Filter::new(spec);
        let (reports, failure) = (filter.reports(), filter.failure());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let server = listener.local_addr().unwrap();
        let front = TcpListener::bind("127.0.0.1:0").unwrap();
        front.set_nonblocking(true).unwrap();
        let at = front.local_addr().unwrap();
        let mut streams = Streams::new(1_000, |_| 0).unwrap();
        let service =
            streams.add(vec![front.into()], Some(Box::new(Redirected { filter, server }))).unwrap();
        let now = Nanos::from_millis(1);
        Self { streams, service, reports, failure, at, listener, now, events: Vec::new() }
    }

    /// Stops the server: its address refuses connections.
    pub(crate) fn without_server(mut self) -> Self {
        // Another listener occupies the port.
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        self.listener = other;
        self
    }

    pub(crate) fn skip(&mut self, time: Duration) {
        self.now += Nanos(time.as_nanos() as u64);
        self.step();
    }

    /// Collects events without any work.
    pub(crate) fn poll(&mut self) {
        self.streams.poll(self.now).unwrap();
    }

    /// Does one piece of work; returns true if there is more.
    pub(crate) fn work(&mut self) -> bool {
        self.streams.work(self.service, &mut Fresh, self.now, self.now)
    }

    /// Ends the turn.
    pub(crate) fn flush(&mut self) {
        self.streams.flush(self.service, &mut Fresh, self.now, self.now);
    }

    pub(crate) fn step(&mut self) {
        self.poll();
        for _ in 0..100 {
            if !self.work() {
                break;
            }
        }
        self.flush();
        while let Some(event) = self.reports.poll_event() {
            self.events.push(event);
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.streams.counts(self.service).unwrap()
    }

    /// Returns all log lines of the module.
    pub(crate) fn log(&self) -> Vec<String> {
        let text = |event: &Event| match event {
            Event::Log { text, .. } => Some(text.clone()),
            _ => None,
        };
        self.events.iter().filter_map(text).collect()
    }

    pub(crate) fn client(&mut self) -> Peer {
        Peer::new(TcpStream::connect(self.at).unwrap())
    }

    /// Creates a client with another address.
    pub(crate) fn client_of(&mut self, address: Ipv4Addr) -> Peer {
        let socket = Fresh.take(false).unwrap();
        bind(&socket, &SocketAddr::from((address, 0))).unwrap();
        // The connection is accepted at once, or a moment later.
        assert!(matches!(connect(&socket, &self.at), Ok(()) | Err(Errno::INPROGRESS)));
        Peer::new(socket.into())
    }

    /// Accepts the next connection at the server.
    pub(crate) fn server(&mut self) -> Peer {
        let mut accepted = None;
        let until = Instant::now() + SOON;
        while accepted.is_none() {
            self.step();
            accepted = self.listener.accept().ok();
            assert!(Instant::now() < until, "nobody comes: {:?}", self.events);
        }
        Peer::new(accepted.unwrap().0)
    }

    /// Accepts the next connection at another listener.
    pub(crate) fn accepted(&mut self, listener: &TcpListener, peers: &mut [&mut Peer]) -> Peer {
        let until = Instant::now() + SOON;
        loop {
            self.step();
            peers.iter_mut().for_each(|peer| peer.step());
            if let Ok((socket, _)) = listener.accept() {
                return Peer::new(socket);
            }
            assert!(Instant::now() < until, "nobody comes: {:?}", self.events);
        }
    }

    /// Returns true if no connection waits at the server.
    pub(crate) fn is_alone(&mut self) -> bool {
        self.rest(&mut []);
        self.listener.accept().is_err()
    }

    /// Runs until the condition holds; the time of the streams stands still.
    pub(crate) fn until(&mut self, peers: &mut [&mut Peer], holds: impl Fn(&[&mut Peer]) -> bool) {
        self.until_passing(Duration::ZERO, peers, holds);
    }

    /// Runs until the condition holds, with this much time of the streams in each round: for what
    /// both a timer and the kernel's delivery have to bring about, in either order.
    pub(crate) fn until_passing(
        &mut self,
        round: Duration,
        peers: &mut [&mut Peer],
        holds: impl Fn(&[&mut Peer]) -> bool,
    ) {
        let until = Instant::now() + SOON;
        loop {
            self.skip(round);
            peers.iter_mut().for_each(|peer| peer.step());
            if holds(peers) {
                return;
            }
            if Instant::now() > until {
                let texts: Vec<String> = peers.iter().map(|peer| peer.text()).collect();
                panic!("it never holds: {texts:#?}, {:?}, {:?}", self.events, self.counts());
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Runs until a peer has received `length` bytes.
    pub(crate) fn until_received(&mut self, peer: &mut Peer, other: &mut Peer, length: usize) {
        self.until(&mut [peer, other], |peers| peers[0].received_bytes.len() >= length);
    }

    /// Runs until the bytes received by a peer end like this.
    pub(crate) fn until_ends(&mut self, peer: &mut Peer, end: &str) {
        self.until(&mut [peer], |peers| peers[0].received_bytes.ends_with(end.as_bytes()));
    }

    /// Runs for a while in which nothing may happen.
    pub(crate) fn rest(&mut self, peers: &mut [&mut Peer]) {
        for _ in 0..20 {
            self.step();
            peers.iter_mut().for_each(|peer| peer.step());
            std::thread::sleep(Duration::from_micros(500));
        }
    }
}

fn types(letters: &str) -> String {
    letters.chars().map(|letter| if letter == 'i' { "i32 " } else { "i64 " }).collect()
}

/// Returns a module with these callbacks: each body leaves a result, which is dropped if the
/// callback has none. Host functions are called as `$name`; `data` is in its memory.
pub(crate) fn module(callbacks: &[(&str, &str)], data: &[(u32, &[u8])]) -> Vec<u8> {
    let text: String = callbacks.iter().map(|(_, body)| *body).collect();
    let mut imports = String::new();
    for name in proxy_wasm::abi::HOST_FUNCTIONS.iter().map(|it| it.name) {
        if text.contains(&format!("${name}")) {
            let signature = host_function(ENV, name).unwrap();
            let parameters = types(signature.parameters);
            let _ = write!(
                imports,
                r#"(import "{ENV}" "{name}" (func ${name} (param {parameters}) (result i32)))"#
            );
        }
    }
    let mut functions = String::new();
    for (name, body) in callbacks {
        let signature = CALLBACKS.iter().find(|it| it.name == *name).unwrap().signature;
        let parameters = types(signature.parameters);
        let (result, drop) =
            if signature.results.is_empty() { ("", "drop") } else { ("(result i32)", "") };
        let _ = write!(
            functions,
            r#"(func (export "{name}") (param {parameters}) {result} {body} {drop})"#
        );
    }
    let mut segments = String::new();
    for (address, bytes) in data {
        let escaped: String = bytes.iter().map(|byte| format!("\\{byte:02x}")).collect();
        let _ = write!(segments, r#"(data (i32.const {address}) "{escaped}")"#);
    }
    let text = format!(
        r#"(module {imports} (memory (export "memory") 4)
           (global $heap (mut i32) (i32.const 0x10000))
           (func (export "proxy_abi_version_0_2_1"))
           (func (export "proxy_on_memory_allocate") (param i32) (result i32)
             (if (i32.gt_u (i32.add (global.get $heap) (local.get 0)) (i32.const 0x30000))
               (then (global.set $heap (i32.const 0x10000))))
             (global.get $heap)
             (global.set $heap (i32.add (global.get $heap) (local.get 0))))
           {functions} {segments})"#
    );
    wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Returns a module that has all callbacks and lets everything go on, like one built with an SDK.
pub(crate) fn passing(kind: Kind) -> Vec<u8> {
    let prefixes: &[&str] = match kind {
        Kind::Tcp => &["proxy_on_new_", "proxy_on_downstream_", "proxy_on_upstream_"],
        Kind::Http => &["proxy_on_request_", "proxy_on_response_"],
    };
    let of_kind = |name: &&str| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let mut callbacks: Vec<(&str, &str)> = CALLBACKS
        .iter()
        .map(|it| it.name)
        .filter(of_kind)
        .map(|name| (name, "(i32.const 0)"))
        .collect();
    callbacks.extend([
        ("proxy_on_context_create", "(i32.const 0)"),
        ("proxy_on_done", "(i32.const 1)"),
        ("proxy_on_log", "(i32.const 0)"),
        ("proxy_on_delete", "(i32.const 0)"),
    ]);
    module(&callbacks, &[])
}

/// Builds all filters, once per process.
pub(crate) fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        built_for_wasm("lab/filters/rust/Cargo.toml", "filters", &["--examples"]).join("examples")
    })
}

/// Returns `services/compress`, built once per process.
pub(crate) fn compress() -> &'static [u8] {
    static MODULE: OnceLock<Vec<u8>> = OnceLock::new();
    MODULE.get_or_init(|| {
        let built = built_for_wasm("services/compress/Cargo.toml", "filters/compress", &[]);
        std::fs::read(built.join("compress.wasm")).unwrap()
    })
}

/// Returns `services/transcode`, built once per process.
pub(crate) fn transcode() -> &'static [u8] {
    static MODULE: OnceLock<Vec<u8>> = OnceLock::new();
    MODULE.get_or_init(|| {
        let built = built_for_wasm("services/transcode/Cargo.toml", "filters/transcode", &[]);
        std::fs::read(built.join("transcode.wasm")).unwrap()
    })
}
