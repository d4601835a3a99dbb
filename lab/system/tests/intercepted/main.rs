//! Two hosts and a router between them that intercepts: real connections of the kernel, whose ends
//! must not notice. Here a table of netfilter marks the packets; in a node the front door does.

mod lab;
mod turns;

use std::collections::BTreeMap;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use lab::{Intercepting, PORT, REFUSED};
use netlink::{Interception, Netlink, netfilter_in_use};
use sha2::{Digest, Sha256};
use tcp_intercept::{Application, Closed, End, Io, Received, State, Talk};
use testkit::{root_or_skip, wait_for};

const SOON: Duration = Duration::from_secs(10);

/// Returns pseudo-random bytes.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let next = |_| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..length).map(next).collect()
}

fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn both_ends_see_each_others_addresses_and_every_byte() {
    if !root_or_skip("interception") {
        return;
    }
    let lab = Intercepting::up();
    for v6 in [false, true] {
        let listener = lab.listener(v6, PORT);
        let server = listener.local_addr().unwrap();
        let mut client = lab.connect(server);
        let (mut accepted, seen) = listener.accept().unwrap();
        assert_eq!(seen, client.local_addr().unwrap(), "the server sees the client");
        assert_eq!(client.peer_addr().unwrap(), server, "the client sees the server");
        assert_eq!(accepted.local_addr().unwrap(), server);

        let sent = noise(8 << 20, 7);
        let expected = Sha256::digest(&sent);
        let upload = std::thread::spawn(move || {
            client.write_all(&sent).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            read_all(&mut client)
        });
        let came = read_all(&mut accepted);
        assert_eq!(Sha256::digest(&came), expected);
        accepted.write_all(&came).unwrap();
        drop(accepted);
        assert_eq!(Sha256::digest(upload.join().unwrap()), expected);
    }
    let counts = wait_for(SOON, || Some(lab.counts()).filter(|counts| counts.ended == 2)).unwrap();
    assert_eq!((counts.accepted, counts.reset, counts.unreachable), (2, 0, 0));
    assert_eq!((counts.up, counts.down, counts.other_port), (16 << 20, 16 << 20, 0));
}

#[test]
fn each_direction_ends_by_itself() {
    if !root_or_skip("half-closed connections") {
        return;
    }
    let lab = Intercepting::up();
    let listener = lab.listener(false, PORT);
    let mut client = lab.connect(listener.local_addr().unwrap());
    let (mut accepted, _) = listener.accept().unwrap();
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut accepted), b"question");
    // The other direction stays open.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(lab.counts().open(), 1);
    accepted.write_all(b"answer").unwrap();
    drop(accepted);
    assert_eq!(read_all(&mut client), b"answer");
    wait_for(SOON, || (lab.counts().ended == 1).then_some(())).expect("it has ended");

    // The server closes first.
    let mut client = lab.connect(listener.local_addr().unwrap());
    let (mut accepted, _) = listener.accept().unwrap();
    accepted.write_all(b"greeting").unwrap();
    accepted.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut client), b"greeting");
    client.write_all(b"thanks").unwrap();
    drop(client);
    assert_eq!(read_all(&mut accepted), b"thanks");
    wait_for(SOON, || (lab.counts().ended == 2).then_some(())).expect("it has ended");
    assert_eq!(lab.counts().reset, 0);
}

/// Application that passes bytes on in upper case, to the server with a description of the
/// connection in front.
#[derive(Default)]
struct Upper {
    /// Halves by their end, each with the other end of its connection.
    ends: BTreeMap<End, Half>,
}

struct Half {
    other: End,
    is_downstream: bool,
    /// Bytes to send to this end.
    waiting: Vec<u8>,
    /// True if this end sends no more, and the other one knows.
    has_ended: bool,
}

/// Most bytes that an [`Upper`] holds for each end.
const HELD_MAX: usize = 100_000;

impl Upper {
    /// Passes bytes from one end to the other; bytes beyond [`HELD_MAX`] stay with the kernel.
    fn pass(&mut self, io: &mut Io<'_>, from: End) {
        let mut buffer = [0; 16 * 1024];
        let Some(to) = self.ends.get(&from).map(|half| half.other) else { return };
        loop {
            let Some(half) = self.ends.get_mut(&to) else { return };
            let taken = io.send(to, &[IoSlice::new(&half.waiting)]);
            half.waiting.drain(..taken);
            let is_full = half.waiting.len() >= HELD_MAX;
            let is_empty = half.waiting.is_empty();
            let Some(own) = self.ends.get_mut(&from) else { return };
            if own.has_ended && is_empty {
                io.finish(to);
                return self.end(io, from);
            }
            if own.has_ended || is_full {
                return;
            }
            match io.receive(from, &mut buffer) {
                Received::Bytes(count) => {
                    let Some(half) = self.ends.get_mut(&to) else { return };
                    half.waiting.extend(buffer[..count].iter().map(u8::to_ascii_uppercase));
                }
                Received::Ended => own.has_ended = true,
                Received::Nothing => return,
            }
        }
    }

    /// Handles an end of stream; the connection ends when both directions have ended.
    fn end(&mut self, io: &mut Io<'_>, end: End) {
        let Some(half) = self.ends.get(&end) else { return };
        let other = half.other;
        let both = [end, other].map(|end| self.ends.get(&end));
        if both.iter().all(|it| it.is_some_and(|it| it.has_ended && it.waiting.is_empty())) {
            self.close(io, end, Closed::Ended);
        }
    }

    fn close(&mut self, io: &mut Io<'_>, end: End, why: Closed) {
        let Some(half) = self.ends.remove(&end) else { return };
        self.ends.remove(&half.other);
        io.close(end, why);
        io.close(half.other, why);
    }
}

impl Application for Upper {
    fn accepted(&mut self, io: &mut Io<'_>, end: End, client: SocketAddr, server: SocketAddr) {
        let upstream = io.connect(Some(client), server, Talk::Free);
        let half = |other, is_downstream, waiting| Half {
            other,
            is_downstream,
            waiting,
            has_ended: false,
        };
        self.ends.insert(end, half(upstream, true, Vec::new()));
        let begin = format!("from {client} to {server}\n").into_bytes();
        self.ends.insert(upstream, half(end, false, begin));
    }

    fn ready(&mut self, io: &mut Io<'_>, end: End) {
        let Some(half) = self.ends.get(&end) else { return };
        let other = half.other;
        match io.state(end) {
            State::Open | State::Broken => {
                self.pass(io, end);
                self.pass(io, other);
            }
            State::Unreachable if !half.is_downstream => {
                self.close(io, end, Closed::Unreachable);
            }
            State::Unreachable | State::Failed => self.close(io, end, Closed::Reset),
            State::Connecting | State::Gone => {}
        }
    }
}

#[test]
fn a_handler_sees_and_edits_bytes_in_both_directions() {
    if !root_or_skip("handled connections") {
        return;
    }
    let lab = Intercepting::up_with(|| Some(Box::new(Upper::default())));
    for v6 in [false, true] {
        let listener = lab.listener(v6, PORT);
        let server = listener.local_addr().unwrap();
        let mut client = lab.connect(server);
        let own = client.local_addr().unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        let sent = noise(4 << 20, 11);
        let expected = sent.to_ascii_uppercase();
        let upload = std::thread::spawn(move || {
            client.write_all(&sent).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            read_all(&mut client)
        });
        let came = read_all(&mut accepted);
        let begin = format!("from {own} to {server}\n");
        assert_eq!(came[..begin.len()], *begin.as_bytes());
        assert!(came[begin.len()..] == expected, "all of it, in its order");
        accepted.write_all(b"thanks").unwrap();
        drop(accepted);
        assert_eq!(upload.join().unwrap(), b"THANKS");
    }
    let ended = wait_for(SOON, || (lab.counts().ended == 2).then_some(()));
    assert!(ended.is_some(), "{:?}", lab.counts());
    assert_eq!(lab.pipes(), 0, "no pipe is needed for that");
}

#[test]
fn a_reset_of_one_end_is_a_reset_of_the_other() {
    if !root_or_skip("reset connections") {
        return;
    }
    let lab = Intercepting::up();
    let listener = lab.listener(false, PORT);
    for by_server in [true, false] {
        let mut client = lab.connect(listener.local_addr().unwrap());
        let (mut accepted, _) = listener.accept().unwrap();
        client.write_all(b"x").unwrap();
        accepted.read_exact(&mut [0]).unwrap();
        let (resets, mut other) = if by_server { (accepted, client) } else { (client, accepted) };
        lab::reset(resets);
        let error = other.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "by the server: {by_server}");
    }
    wait_for(SOON, || (lab.counts().reset == 2).then_some(())).expect("both were counted");
    assert_eq!(lab.counts().open(), 0);
}

#[test]
fn a_server_that_refuses_resets_its_client() {
    if !root_or_skip("refused connections") {
        return;
    }
    let lab = Intercepting::up();
    let server = SocketAddr::new(lab.server_address(false), REFUSED);
    let mut client = lab.connect(server);
    let error = client.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    wait_for(SOON, || (lab.counts().unreachable == 1).then_some(())).expect("it was counted");
}

#[test]
fn a_peer_that_does_not_read_stops_the_other_from_sending() {
    if !root_or_skip("back-pressure") {
        return;
    }
    for application in
        [(|| None) as fn() -> Option<Box<dyn Application>>, || Some(Box::new(Upper::default()))]
    {
        hold_back(&Intercepting::up_with(application));
    }
}

fn hold_back(lab: &Intercepting) {
    let listener = lab.listener(false, PORT);
    let mut client = lab.connect(listener.local_addr().unwrap());
    let (mut accepted, _) = listener.accept().unwrap();
    client.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let block = noise(1 << 16, 3);
    let mut sent = 0;
    let stopped = loop {
        match client.write(&block) {
            Ok(bytes) => sent += bytes,
            Err(error) => break error,
        }
        assert!(sent < 64 << 20, "nobody reads, and {sent} bytes went");
    };
    assert_eq!(stopped.kind(), ErrorKind::WouldBlock);
    assert!(sent > 0);
    drop(client);
    let came = std::io::copy(&mut accepted, &mut std::io::sink()).unwrap();
    let begin = came - sent as u64;
    assert!(begin < 100, "all of it arrives when it is read, behind what a handler begins with");
}

#[test]
fn ten_thousand_connections_are_open_at_once() {
    if !root_or_skip("ten thousand connections") {
        return;
    }
    let lab = Intercepting::up();
    let count = lab::most_connections().min(10_000);
    let server = SocketAddr::new(lab.server_address(false), PORT);
    let (listens, all_open, all_said) = (Barrier::new(2), Barrier::new(3), Barrier::new(3));
    std::thread::scope(|scope| {
        // The port identifies the connection's ends.
        let serving = scope.spawn(|| {
            let listener = lab.listener_of_own(server);
            listens.wait();
            let mut ends: Vec<_> = (0..count).map(|_| listener.accept().unwrap().0).collect();
            all_open.wait();
            for end in &mut ends {
                let mut port = [0; 2];
                end.read_exact(&mut port).unwrap();
                assert_eq!(u16::from_be_bytes(port), end.peer_addr().unwrap().port());
                end.write_all(&port).unwrap();
            }
            all_said.wait();
        });
        let asking = scope.spawn(|| {
            let wait = || {
                listens.wait();
            };
            let mut ends = lab.connect_of_own(server, count, wait);
            all_open.wait();
            for end in &mut ends {
                let port = end.local_addr().unwrap().port();
                end.write_all(&port.to_be_bytes()).unwrap();
            }
            for end in &mut ends {
                let mut port = [0; 2];
                end.read_exact(&mut port).unwrap();
                assert_eq!(u16::from_be_bytes(port), end.local_addr().unwrap().port());
            }
            all_said.wait();
        });
        all_open.wait();
        let opened = wait_for(SOON, || (lab.counts().open() == count as u64).then_some(()));
        assert!(opened.is_some(), "of {count}: {:?}", lab.counts());
        all_said.wait();
        serving.join().unwrap();
        asking.join().unwrap();
    });
    assert!(lab.pipes() <= 256, "{} pipes for connections that say nothing", lab.pipes());
    let ended = wait_for(2 * SOON, || (lab.counts().open() == 0).then_some(()));
    assert!(ended.is_some(), "{:?}", lab.counts());
    assert_eq!(lab.counts().other_port, 0);
}

#[test]
fn an_interception_leaves_nothing_and_slows_nobody_down() {
    if !root_or_skip("what interception leaves") {
        return;
    }
    let lab = Intercepting::up();
    let router = lab.net.netlink("r1").unwrap();
    assert!(router.rules().unwrap().iter().any(|rule| rule.ours), "there is a rule of ours");
    assert_eq!(router.extra_rules().unwrap(), 0, "and none that plain packets may meet");
    let others = || lab.net.within("r1", netfilter_in_use).unwrap().unwrap();
    assert!(others(), "this lab's own table marks packets");
    lab.remove_marks();
    assert!(!others(), "ours is for marked ones");
    // An interception that is killed leaves rules, which the next one removes, but not those of a
    // running one.
    let dead = lab.net.within("r1", || {
        let netlink = Netlink::open().unwrap();
        drop(Interception::begin(&netlink, 4).unwrap());
        let left = || netlink.rules().unwrap().iter().filter(|rule| rule.ours).count();
        let before = left();
        // Another test's child may have a copy of its socket until it is another program.
        let found =
            || Some(netlink.remove_orphaned_interceptions().unwrap()).filter(|it| !it.is_empty());
        assert_eq!(wait_for(SOON, found), Some(vec![4]));
        (before, left())
    });
    assert_eq!(dead.unwrap(), (4, 2), "one for each version of IP");
    let begin = Instant::now();
    let net = lab.end();
    assert!(begin.elapsed() < SOON);
    let router = net.netlink("r1").unwrap();
    assert!(router.rules().unwrap().iter().all(|rule| rule.standard));
    let left = net.run("r1", &["nft", "list", "ruleset"], SOON).unwrap();
    assert_eq!(left.stdout.trim(), "", "no table is left");
}
