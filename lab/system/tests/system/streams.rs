//! Services of streams: connections that a node takes, and whose ends do not notice.

use crate::clean_end::kill;
use crate::common::{Line, SOON};
use sha2::{Digest, Sha256};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use testkit::{Service, root_or_skip, wait_for};

const PORT: u16 = 7000;

/// A module that wants to see nothing.
fn passes() -> Vec<u8> {
    let text = r#"(module $passes (memory (export "memory") 1)
        (func (export "proxy_abi_version_0_2_1")))"#;
    wat::parse_str(text).unwrap()
}

fn deploy(line: &Line, rules: &[&str]) {
    let service = Service { name: "streams", rules, ..Service::default() };
    line.node.deploy(&passes(), &service).unwrap();
}

fn stats(line: &Line) -> api::StreamStats {
    line.node.service("streams").unwrap().stats.streams.unwrap()
}

fn server(line: &Line, v6: bool, port: u16) -> TcpListener {
    let address: IpAddr = match v6 {
        true => line.net.v6("server", "r1").unwrap().into(),
        false => line.net.v4("server", "r1").unwrap().into(),
    };
    let bind = || TcpListener::bind(SocketAddr::new(address, port));
    line.net.within("server", bind).unwrap().unwrap()
}

fn connect(line: &Line, to: SocketAddr) -> TcpStream {
    let stream = line.net.within("client", || TcpStream::connect(to)).unwrap().unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

fn noise(length: usize) -> Vec<u8> {
    let mut state = 1u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
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
fn connections_go_through_a_service_with_their_addresses_and_every_byte() {
    if !root_or_skip("services of streams") {
        return;
    }
    let line = Line::up();
    line.acquaint();
    deploy(&line, &[&format!("proto tcp dport {PORT}")]);
    let sent = noise(4 << 20);
    for v6 in [false, true] {
        let listener = server(&line, v6, PORT);
        let mut client = connect(&line, listener.local_addr().unwrap());
        let (mut accepted, from) = listener.accept().unwrap();
        assert_eq!(from, client.local_addr().unwrap(), "the server sees its client");
        assert_eq!(client.peer_addr().unwrap(), listener.local_addr().unwrap());
        let bytes = sent.clone();
        let upload = std::thread::spawn(move || {
            client.write_all(&bytes).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            read_all(&mut client)
        });
        let came = read_all(&mut accepted);
        assert_eq!(Sha256::digest(&came), Sha256::digest(&sent));
        accepted.write_all(&came).unwrap();
        drop(accepted);
        assert_eq!(Sha256::digest(upload.join().unwrap()), Sha256::digest(&sent));
    }
    let ended = wait_for(SOON, || Some(stats(&line)).filter(|stats| stats.ended == 2));
    let stats = ended.unwrap_or_else(|| panic!("{:?}", stats(&line)));
    assert_eq!((stats.accepted, stats.open, stats.reset, stats.other_port), (2, 0, 0, 0));
    assert_eq!((stats.bytes_up, stats.bytes_down), (8 << 20, 8 << 20));
    assert!(stats.cpu_ns > 0, "it has worked");
    let rules = line.node.client().rules().unwrap().rules;
    let counted: u64 = rules.iter().map(|rule| rule.packets).sum();
    assert!(counted > 1000, "its rule counts both ways: {counted} packets");
}

#[test]
fn a_service_of_streams_goes_with_its_connections_and_leaves_nothing() {
    if !root_or_skip("services of streams") {
        return;
    }
    let line = Line::up();
    line.acquaint();
    let before = kernel_state(&line);
    deploy(&line, &[&format!("proto tcp dport {PORT}")]);
    let listener = server(&line, false, PORT);
    let mut client = connect(&line, listener.local_addr().unwrap());
    let (mut accepted, _) = listener.accept().unwrap();
    client.write_all(b"x").unwrap();
    accepted.read_exact(&mut [0]).unwrap();
    assert_ne!(kernel_state(&line), before, "rules, routes and a table are there meanwhile");
    line.node.remove("streams").unwrap();
    let error = client.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let gone = wait_for(SOON, || (kernel_state(&line) == before).then_some(()));
    assert!(gone.is_some(), "{}", kernel_state(&line));
    // Another connection goes plainly.
    let mut client = connect(&line, listener.local_addr().unwrap());
    let (mut accepted, _) = listener.accept().unwrap();
    accepted.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    client.write_all(b"y").unwrap();
    accepted.read_exact(&mut [0]).unwrap();
}

/// What an interception makes in the router's namespace.
fn kernel_state(line: &Line) -> String {
    let rules = line.run("r1", &["ip", "rule"]) + &line.run("r1", &["ip", "-6", "rule"]);
    rules + &line.run("r1", &["nft", "list", "ruleset"])
}

/// A byte each way.
fn talks(client: &mut TcpStream, server: &mut TcpStream) {
    server.set_read_timeout(Some(SOON)).unwrap();
    client.write_all(b"q").unwrap();
    server.read_exact(&mut [0]).unwrap();
    server.write_all(b"a").unwrap();
    client.read_exact(&mut [0]).unwrap();
}

#[test]
fn a_new_version_has_what_comes_and_open_connections_stay() {
    if !root_or_skip("services of streams") {
        return;
    }
    let line = Line::up();
    line.acquaint();
    deploy(&line, &[&format!("proto tcp dport {PORT}")]);
    let listener = server(&line, false, PORT);
    let mut pairs = Vec::new();
    for version in ["another", "yet-another"] {
        let mut client = connect(&line, listener.local_addr().unwrap());
        let (mut accepted, _) = listener.accept().unwrap();
        talks(&mut client, &mut accepted);
        pairs.push((client, accepted));
        let text = String::from("(module $v (memory (export \"memory\") 1) ")
            + &format!("(data (i32.const 16) \"{version}\")")
            + "(func (export \"proxy_abi_version_0_2_1\")))";
        let service = Service { name: "streams", ..Service::default() };
        line.node.deploy(&wat::parse_str(text).unwrap(), &service).unwrap();
        for (client, accepted) in &mut pairs {
            talks(client, accepted);
        }
    }
    assert_eq!((stats(&line).accepted, stats(&line).open), (2, 2));
    drop(pairs);
    let ended = wait_for(SOON, || (stats(&line).open == 0).then_some(()));
    assert!(ended.is_some(), "{:?}", stats(&line));
    let mut client = connect(&line, listener.local_addr().unwrap());
    talks(&mut client, &mut listener.accept().unwrap().0);
    assert_eq!(stats(&line).accepted, 3, "all versions' are counted");
}

#[test]
fn connections_outlive_their_daemon_and_new_ones_come_with_the_next() {
    if !root_or_skip("services of streams") {
        return;
    }
    let mut line = Line::up();
    line.acquaint();
    deploy(&line, &[&format!("proto tcp dport {PORT}")]);
    let listener = server(&line, false, PORT);
    let mut client = connect(&line, listener.local_addr().unwrap());
    let (mut accepted, _) = listener.accept().unwrap();
    talks(&mut client, &mut accepted);
    line.node.kill().unwrap();
    talks(&mut client, &mut accepted);
    let Line { node, net } = &mut line;
    node.start_again(net, "r1").unwrap();
    talks(&mut client, &mut accepted);
    // More than the cell had sockets for.
    for _ in 0..300 {
        let mut client = connect(&line, listener.local_addr().unwrap());
        talks(&mut client, &mut listener.accept().unwrap().0);
    }
    assert_eq!(stats(&line).accepted, 301);
    line.node.remove("streams").unwrap();
    assert!(!kernel_state(&line).contains("tamandua"), "{}", kernel_state(&line));
}

#[test]
fn a_lost_cell_is_followed_by_one_that_takes_connections() {
    if !root_or_skip("services of streams") {
        return;
    }
    let line = Line::up();
    line.acquaint();
    deploy(&line, &[&format!("proto tcp dport {PORT}")]);
    let listener = server(&line, false, PORT);
    let mut client = connect(&line, listener.local_addr().unwrap());
    let (mut accepted, _) = listener.accept().unwrap();
    talks(&mut client, &mut accepted);
    let before = line.node.cell().unwrap();
    kill(before);
    let another = || line.node.cell().ok().filter(|pid| *pid != before);
    wait_for(SOON, another).expect("another cell");
    assert!(client.read(&mut [0]).map_or(true, |count| count == 0), "it is over");
    let works = || {
        let accepts = stats_of(&line).is_some_and(|stats| stats.accepted == 0);
        accepts.then_some(())
    };
    wait_for(SOON, works).expect("the service runs again");
    let mut client = connect(&line, listener.local_addr().unwrap());
    talks(&mut client, &mut listener.accept().unwrap().0);
    assert_eq!(stats(&line).accepted, 1);
}

fn stats_of(line: &Line) -> Option<api::StreamStats> {
    line.node.service("streams").ok()?.stats.streams
}
