//! Unit tests of connections through a service of streams, by loopback sockets of this process.

use super::*;
use crate::memory::Memory;
use crate::protocol::RetainedSizes;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};

fn socket() -> OwnedFd {
    std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into()
}

#[test]
fn how_busy_the_thread_is_is_measured_now_and_then() {
    let mut busy = Busy::default();
    let at = |ms| Nanos::from_millis(ms);
    busy.poll(at(1000), || at(500));
    assert_eq!(busy.permille.get(), None, "from now on");
    busy.poll(at(1050), || unreachable!("too soon"));
    busy.poll(at(1100), || at(525));
    assert_eq!(busy.permille.get(), Some(250));
    busy.poll(at(1200), || at(900));
    assert_eq!(busy.permille.get(), Some(1000), "clocks differ a little");
}

#[test]
fn sockets_are_asked_for_before_they_are_needed_and_again_when_they_do_not_come() {
    let mut pool = Pool::default();
    let at = Nanos::from_millis;
    assert_eq!(pool.wants(at(5000)), Some([READY_MAX; 2]));
    assert_eq!(pool.wants(at(5999)), None, "they are on their way");
    assert_eq!(pool.wants(at(6000)), Some([READY_MAX; 2]), "they did not come");
    pool.requested = [0; 2];
    pool.ready = [(0..READY_MAX).map(|_| socket()).collect(), Vec::new()];
    pool.requested[1] = READY_MAX;
    for _ in 1..REQUEST_MIN {
        assert!(pool.take(false).is_some());
    }
    assert_eq!(pool.wants(at(6500)), None);
    assert!(pool.take(false).is_some() && !pool.is_short);
    assert_eq!(pool.wants(at(6500)), Some([REQUEST_MIN, 0]));
    assert!(pool.take(true).is_none() && pool.is_short);
}

const ENTRY: EntryId = EntryId(6);
/// Time of all tests: nothing here waits.
const NOW: Nanos = Nanos::from_millis(5_000);
const UNTIL: Nanos = Nanos(u64::MAX);
/// Polls of connections before a test gives up.
const POLLS_MAX: usize = 200_000;
/// Size that is set for each kernel buffer on the path, in bytes: the kernel doubles it.
const BUFFER: usize = 16 << 10;

/// Returns a TCP socket as the daemon makes them: not connected, and with small buffers.
fn tcp_socket() -> OwnedFd {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    sockopt::set_socket_send_buffer_size(&socket, BUFFER).unwrap();
    sockopt::set_socket_recv_buffer_size(&socket, BUFFER).unwrap();
    socket
}

fn listening(address: SocketAddrV4) -> TcpListener {
    let socket = tcp_socket();
    sockopt::set_socket_reuseport(&socket, true).unwrap();
    net::bind(&socket, &address).unwrap();
    net::listen(&socket, 8).unwrap();
    socket.into()
}

/// Service of streams whose module inspects nothing, a client, and the server that it calls.
///
/// A client's server is at another machine where a node intercepts connections. Here the service
/// listens at all addresses, and, once the client is on its way, the server at the one that it
/// calls.
struct Bench {
    services: StreamServices,
    client: TcpStream,
    server: TcpListener,
}

fn facts() -> StreamSpec {
    StreamSpec {
        entry: ENTRY,
        name: "pipes".into(),
        session: SessionId::BEST_EFFORT,
        memory_pages_max: 1,
        parameters: BTreeMap::new(),
        closed: false,
        kept: RetainedSizes::default(),
    }
}

impl Bench {
    fn new(sockets: usize) -> Self {
        let listener = listening(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));
        let port = listener.local_addr().unwrap().port();
        let called = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2), port);
        let client = tcp_socket();
        // The connection is established once the service's listener has it.
        let _ = net::connect(&client, &called);
        let client = TcpStream::from(client);
        let is_connected = (0..POLLS_MAX).any(|_| client.peer_addr().is_ok());
        assert!(is_connected);
        let server = listening(called);
        let mut services = StreamServices::new().unwrap();
        let charge = Memory::new().charge_streams(&facts()).unwrap();
        services.start(facts(), socket(), vec![listener.into()], None, charge).unwrap();
        services.provide(false, (0..sockets).map(|_| tcp_socket()).collect());
        Self { services, client, server }
    }

    /// Polls connections once, and works on them; returns true if there was work.
    fn turn(&mut self) -> bool {
        self.services.poll(NOW).unwrap();
        let is_ready = self.services.ready(NOW).count() > 0;
        while self.services.work(ENTRY, NOW, UNTIL) {}
        is_ready
    }

    /// Works until `of` returns a result.
    fn until<T>(&mut self, mut of: impl FnMut(&mut Self) -> Option<T>) -> T {
        for _ in 0..POLLS_MAX {
            self.turn();
            if let Some(it) = of(self) {
                return it;
            }
            std::thread::yield_now();
        }
        panic!("nothing came of it");
    }

    /// Returns the server's end of the connection.
    fn accepted(&mut self) -> TcpStream {
        let accepted = self.until(|bench| bench.server.accept().ok());
        accepted.0.set_nonblocking(true).unwrap();
        accepted.0
    }

    /// Reads this many bytes at one end.
    fn read(&mut self, from: &TcpStream, length: usize) -> Vec<u8> {
        let mut all = Vec::new();
        let mut from = from;
        self.until(|_| {
            let mut buffer = [0; 8192];
            let most = buffer.len().min(length - all.len());
            if let Ok(count) = from.read(&mut buffer[..most]) {
                all.extend_from_slice(&buffer[..count]);
            }
            (all.len() == length).then_some(())
        });
        all
    }

    fn counts(&self) -> Counts {
        let (_, report) = self.services.all().next().unwrap();
        report.streams.unwrap().counts
    }
}

#[test]
fn bytes_go_both_ways_and_are_counted_until_both_ends_have_ended() {
    let mut bench = Bench::new(1);
    let server = bench.accepted();
    (&bench.client).write_all(b"a question").unwrap();
    assert_eq!(bench.read(&server, 10), b"a question");
    (&server).write_all(b"an answer").unwrap();
    let client = bench.client.try_clone().unwrap();
    assert_eq!(bench.read(&client, 9), b"an answer");
    let Counts { accepted, up, down, ended, .. } = bench.counts();
    assert_eq!((accepted, up, down, ended), (1, 10, 9, 0));
    for end in [&client, &server] {
        end.shutdown(std::net::Shutdown::Write).unwrap();
    }
    bench.until(|bench| (bench.counts().open() == 0).then_some(()));
    assert_eq!((bench.counts().ended, bench.counts().reset), (1, 0));
}

#[test]
fn a_server_that_does_not_read_holds_its_client_back_and_takes_no_turns() {
    let mut bench = Bench::new(1);
    let mut server = bench.accepted();
    let byte = |at: usize| (at % 251) as u8;
    let mut written = 0;
    // The client writes as long as data moves.
    let mut idle = 0;
    while idle < 2_000 {
        let next: Vec<u8> = (written..written + 4096).map(byte).collect();
        let count = (&bench.client).write(&next).unwrap_or(0);
        written += count;
        let worked = bench.turn();
        idle = if count > 0 || worked { 0 } else { idle + 1 };
        assert!(written < 8 << 20, "nobody holds it back");
    }
    let held = bench.counts().up;
    assert!(held > 0 && (held as usize) < written, "{held} of {written}");
    assert!(!bench.turn(), "there is nothing to do for it");
    // All data arrives, in order, once the server reads.
    let mut read = 0;
    bench.until(|_| {
        let mut buffer = [0; 8192];
        let count = server.read(&mut buffer).unwrap_or(0);
        assert!(buffer[..count].iter().zip(read..).all(|(found, at)| *found == byte(at)));
        read += count;
        (read == written).then_some(())
    });
    assert_eq!(bench.counts().up as usize, written);
    assert!((&bench.client).write(&[0]).is_ok(), "it may go on");
}

#[test]
fn a_connection_without_a_socket_waits_with_the_kernel_until_the_daemon_has_sent_some() {
    let mut bench = Bench::new(0);
    (&bench.client).write_all(b"early").unwrap();
    for _ in 0..50 {
        bench.turn();
    }
    assert_eq!(bench.counts().accepted, 0);
    assert_eq!(bench.services.wants(), Some([READY_MAX; 2]));
    assert_eq!(bench.services.wants(), None, "it was asked");
    bench.services.provide(false, vec![tcp_socket()]);
    let server = bench.accepted();
    assert_eq!(bench.read(&server, 5), b"early");
    // Requests to an old daemon are not outstanding with a new one.
    bench.services.discard_requests();
    assert_eq!(bench.services.wants(), Some([READY_MAX; 2]));
}

#[test]
fn connections_of_the_version_before_go_on_and_their_counts_are_the_services() {
    let mut bench = Bench::new(1);
    let server = bench.accepted();
    assert_eq!(bench.services.poll_notice(), Some((ENTRY, StreamNotice::Started)));
    let charge = Memory::new().charge_streams(&facts()).unwrap();
    bench.services.replace(facts(), None, charge).unwrap();
    assert_eq!(bench.services.poll_notice(), Some((ENTRY, StreamNotice::Replaced)));
    (&bench.client).write_all(b"on").unwrap();
    assert_eq!(bench.read(&server, 2), b"on");
    drop(server);
    bench.client.shutdown(std::net::Shutdown::Both).unwrap();
    bench.until(|bench| (bench.counts().open() == 0).then_some(()));
    // The old version is removed; its counters are kept.
    bench.turn();
    assert!(bench.services.services[0].draining.is_empty());
    assert_eq!((bench.counts().accepted, bench.counts().up), (1, 2));
    let missing = StreamSpec { entry: EntryId(7), ..facts() };
    let charge = Memory::new().charge_streams(&missing).unwrap();
    assert!(bench.services.replace(missing, None, charge).is_err());
}

#[test]
fn a_service_that_stops_resets_its_connections() {
    let mut bench = Bench::new(2);
    let mut server = bench.accepted();
    let report = bench.services.stop(ENTRY).unwrap().streams.unwrap();
    assert_eq!((report.counts.accepted, report.counts.open()), (1, 1));
    assert!(!bench.services.has_services() && bench.services.pool.ready[0].is_empty());
    let ended = (0..POLLS_MAX).find_map(|_| match server.read(&mut [0; 8]) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            bench.services.poll(NOW).unwrap();
            None
        }
        ended => Some(ended.map_err(|error| error.kind())),
    });
    assert_eq!(ended, Some(Err(io::ErrorKind::ConnectionReset)));
    bench.services.provide(false, vec![tcp_socket()]);
    assert!(bench.services.pool.ready[0].is_empty(), "nobody connects any more");
}
