//! Stream services: connections that a node intercepts, and whose ends do not notice.

use crate::clean_end::kill;
use crate::common::{Line, SOON, module, steps_of_work};
use crate::nginx::listens;
use crate::radio::{Framing, Programme, Station, frames};
use netlink::offload::{Offload, OffloadState};
use sha2::{Digest, Sha256};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use testkit::{Net, NodeUnderTest, Running, Service, root_or_skip, service_module, wait_for};

pub const PORT: u16 = 7000;

/// Returns a module without callbacks.
pub fn passes() -> Vec<u8> {
    let text = r#"(module $passes (memory (export "memory") 1)
        (func (export "proxy_abi_version_0_2_1")))"#;
    wat::parse_str(text).unwrap()
}

pub fn deploy(line: &Line, rules: &[&str]) {
    let service = Service { name: "streams", rules, ..Service::default() };
    line.node.deploy(&passes(), &service).unwrap();
}

/// Deploys a module for connections to an L4 port.
pub fn deploys(line: &Line, name: &str, port: u16, module: &[u8], parameters: &[(&str, &str)]) {
    let rules = [&*format!("proto tcp dport {port}")];
    let service = Service { name, rules: &rules, parameters, ..Service::default() };
    line.node.deploy(module, &service).unwrap();
}

/// Deploys the reflector for live streams below `/live/`.
pub fn deploys_reflector(line: &Line) {
    let module = service_module("reflector").unwrap();
    let parameters = [("capabilities", "reflect"), ("configuration", "paths /live/")];
    deploys(line, "streams", PORT, &module, &parameters);
}

pub fn stats(line: &Line) -> api::StreamStats {
    line.node.service("streams").unwrap().stats.streams.unwrap()
}

pub fn server(line: &Line, v6: bool, port: u16) -> TcpListener {
    let address: IpAddr = match v6 {
        true => line.net.v6("server", "r1").unwrap().into(),
        false => line.net.v4("server", "r1").unwrap().into(),
    };
    let bind = || TcpListener::bind(SocketAddr::new(address, port));
    line.net.within("server", bind).unwrap().unwrap()
}

pub fn connect(line: &Line, to: SocketAddr) -> TcpStream {
    let stream = line.net.within("client", || TcpStream::connect(to)).unwrap().unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

/// Returns both ends of a new connection.
pub fn pair(line: &Line, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = connect(line, listener.local_addr().unwrap());
    (client, listener.accept().unwrap().0)
}

pub fn noise(length: usize) -> Vec<u8> {
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

/// Sends bytes to the server, which sends them back, until both ends close; checks both directions.
fn there_and_back(client: &mut TcpStream, mut accepted: TcpStream, sent: &[u8]) {
    std::thread::scope(|scope| {
        let upload = scope.spawn(|| {
            client.write_all(sent).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            read_all(client)
        });
        let came = read_all(&mut accepted);
        assert_eq!(Sha256::digest(&came), Sha256::digest(sent));
        accepted.write_all(&came).unwrap();
        drop(accepted);
        assert_eq!(Sha256::digest(upload.join().unwrap()), Sha256::digest(sent));
    });
}

/// Checks an IPv4 and an IPv6 connection of a service: both ends see each other's addresses, and 4
/// MiB arrive in both directions.
pub fn two_connections_have_every_byte(line: &Line) -> api::StreamStats {
    let sent = noise(4 << 20);
    for v6 in [false, true] {
        let listener = server(line, v6, PORT);
        let mut client = connect(line, listener.local_addr().unwrap());
        let (accepted, from) = listener.accept().unwrap();
        assert_eq!(from, client.local_addr().unwrap(), "the server sees its client");
        assert_eq!(client.peer_addr().unwrap(), listener.local_addr().unwrap());
        there_and_back(&mut client, accepted, &sent);
    }
    let ended = wait_for(SOON, || Some(stats(line)).filter(|stats| stats.ended == 2));
    let stats = ended.unwrap_or_else(|| panic!("{:?}", stats(line)));
    assert_eq!((stats.accepted, stats.open, stats.reset, stats.other_port), (2, 0, 0, 0));
    assert_eq!((stats.bytes_up, stats.bytes_down), (8 << 20, 8 << 20));
    stats
}

#[test]
fn connections_go_through_a_service_with_their_addresses_and_every_byte() {
    if !root_or_skip("services of streams") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    deploy(&line, &[&format!("proto tcp dport {PORT}")]);
    let stats = two_connections_have_every_byte(&line);
    assert!(stats.cpu_ns > 0, "it has worked");
    let rules = line.node.client().rules().unwrap().rules;
    let counted: u64 = rules.iter().map(|rule| rule.packets).sum();
    assert!(counted > 1000, "its rule counts both ways: {counted} packets");
}

#[test]
fn removing_a_service_of_streams_ends_its_connections_and_leaves_nothing() {
    if !root_or_skip("services of streams") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let before = kernel_state(&line);
    deploy(&line, &[&format!("proto tcp dport {PORT}")]);
    let listener = server(&line, false, PORT);
    let (mut client, mut accepted) = pair(&line, &listener);
    client.write_all(b"x").unwrap();
    accepted.read_exact(&mut [0]).unwrap();
    assert_ne!(kernel_state(&line), before, "rules, routes and a table are there meanwhile");
    line.node.remove("streams").unwrap();
    let error = client.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let gone = wait_for(SOON, || (kernel_state(&line) == before).then_some(()));
    assert!(gone.is_some(), "{}", kernel_state(&line));
    // Another connection goes plainly.
    let (mut client, mut accepted) = pair(&line, &listener);
    accepted.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    client.write_all(b"y").unwrap();
    accepted.read_exact(&mut [0]).unwrap();
}

/// Returns the kernel state that an interception creates in the router's namespace.
pub fn kernel_state(line: &Line) -> String {
    let rules = line.run("r1", &["ip", "rule"]) + &line.run("r1", &["ip", "-6", "rule"]);
    rules + &line.run("r1", &["nft", "list", "ruleset"])
}

/// Sends a byte in each direction.
pub fn talks(client: &mut TcpStream, server: &mut TcpStream) {
    server.set_read_timeout(Some(SOON)).unwrap();
    client.write_all(b"q").unwrap();
    server.read_exact(&mut [0]).unwrap();
    server.write_all(b"a").unwrap();
    client.read_exact(&mut [0]).unwrap();
}

#[test]
fn a_new_version_gets_new_connections_and_open_ones_stay() {
    if !root_or_skip("services of streams") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    deploy(&line, &[&format!("proto tcp dport {PORT}")]);
    let listener = server(&line, false, PORT);
    let mut pairs = Vec::new();
    for version in ["another", "yet-another"] {
        let (mut client, mut accepted) = pair(&line, &listener);
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
    let (mut client, mut accepted) = pair(&line, &listener);
    talks(&mut client, &mut accepted);
    assert_eq!(stats(&line).accepted, 3, "all versions' are counted");
}

#[test]
fn connections_outlive_their_daemon_and_new_ones_come_with_the_next() {
    if !root_or_skip("services of streams") {
        return;
    }
    let mut line = Line::up();
    line.resolve_neighbours();
    let before = kernel_state(&line);
    deploy(&line, &[&format!("proto tcp dport {PORT}")]);
    let listener = server(&line, false, PORT);
    let (mut client, mut accepted) = pair(&line, &listener);
    talks(&mut client, &mut accepted);
    line.node.kill().unwrap();
    talks(&mut client, &mut accepted);
    let Line { node, net } = &mut line;
    node.start_again(net, "r1").unwrap();
    talks(&mut client, &mut accepted);
    // More than the cell had sockets for.
    for _ in 0..300 {
        let (mut client, mut accepted) = pair(&line, &listener);
        talks(&mut client, &mut accepted);
    }
    assert_eq!(stats(&line).accepted, 301);
    line.node.remove("streams").unwrap();
    let gone = wait_for(SOON, || (kernel_state(&line) == before).then_some(()));
    assert!(gone.is_some(), "nothing is left: {}", kernel_state(&line));
}

#[test]
fn a_node_that_ends_or_dies_leaves_nothing_of_its_streams() {
    if !root_or_skip("services of streams") {
        return;
    }
    let mut line = Line::up();
    let before = kernel_state(&line);
    deploy(&line, &[&format!("proto tcp dport {PORT}")]);
    assert_ne!(kernel_state(&line), before);
    assert!(line.node.stop().unwrap().success());
    assert_eq!(kernel_state(&line), before);
    let Line { node, net } = &mut line;
    node.start_again(net, "r1").unwrap();
    deploy(&line, &[&format!("proto tcp dport {PORT}")]);
    let cell = line.node.cell().unwrap();
    let its_rules = line.run("r1", &["ip", "rule", "show", "priority", "84"]);
    assert!(its_rules.contains("fwmark"), "{its_rules}");
    line.node.kill().unwrap();
    kill(cell);
    let Line { node, net } = &mut line;
    node.start_again(net, "r1").unwrap();
    // The next cell has others.
    let gone = wait_for(SOON, || (!kernel_state(&line).contains(&its_rules)).then_some(()));
    assert!(gone.is_some(), "{}", kernel_state(&line));
    line.node.remove("streams").unwrap();
    let gone = wait_for(SOON, || (kernel_state(&line) == before).then_some(()));
    assert!(gone.is_some(), "{}", kernel_state(&line));
}

#[test]
fn gro_is_on_for_stream_services_and_off_while_a_service_is_at_kernel_level() {
    if !root_or_skip("services of streams") {
        return;
    }
    let net = Net::line(1500).unwrap();
    let devices = ["client", "server"].map(|peer| net.device("r1", peer).unwrap().name);
    for device in &devices {
        let on = || netlink::offload::enable(device, &[Offload::Gro]).map(drop);
        net.within("r1", on).unwrap().unwrap();
    }
    let node = NodeUnderTest::start(&net, "r1").unwrap();
    let mut line = Line { node, net };
    let joins = |line: &Line| {
        devices.each_ref().map(|device| {
            let state = line.net.within("r1", || OffloadState::read(device)).unwrap();
            state.unwrap().is_on(Offload::Gro)
        })
    };
    assert_eq!(joins(&line), [false; 2], "a packet is a frame");
    deploy(&line, &[&format!("proto tcp dport {PORT}")]);
    assert_eq!(joins(&line), [true; 2]);
    let pass =
        r#"(memory (export "memory") 1 1) (func (export "on_packet") (result i32) (i32.const 0))"#;
    let wasm = module("passes", "window = 64\nmemory_pages_max = 1\nlevels = [\"kernel\"]", pass);
    let service = Service { name: "passes", level: "kernel", ..Service::default() };
    line.node.deploy(&wasm, &service).unwrap();
    assert_eq!(line.node.service("passes").unwrap().level, "kernel");
    assert_eq!(joins(&line), [false; 2]);
    line.node.remove("passes").unwrap();
    assert_eq!(joins(&line), [true; 2]);
    line.node.remove("streams").unwrap();
    assert_eq!(joins(&line), [false; 2]);
    assert!(line.node.stop().unwrap().success());
    assert_eq!(joins(&line), [true; 2], "as it was");
}

#[test]
fn a_router_without_ipv6_takes_connections() {
    if !root_or_skip("services of streams") {
        return;
    }
    let line = Line::up();
    for key in ["all", "default", "lo"] {
        line.run("r1", &["sysctl", "-qw", &format!("net.ipv6.conf.{key}.disable_ipv6=1")]);
    }
    let before = kernel_state(&line);
    deploy(&line, &[&format!("proto tcp dport {PORT}")]);
    let listener = server(&line, false, PORT);
    let (mut client, mut accepted) = pair(&line, &listener);
    talks(&mut client, &mut accepted);
    assert_eq!(stats(&line).accepted, 1);
    line.node.remove("streams").unwrap();
    let gone = wait_for(SOON, || (kernel_state(&line) == before).then_some(()));
    assert!(gone.is_some(), "{}", kernel_state(&line));
}

#[test]
fn a_service_that_is_removed_while_its_module_compiles_never_begins() {
    if !root_or_skip("services of streams") {
        return;
    }
    let line = Line::up();
    let before = kernel_state(&line);
    // Takes a second or so.
    let function = format!("(func (param $step i32) (param $hash i32) {})", steps_of_work(9));
    let text = String::from("(module $slow (memory (export \"memory\") 1) ")
        + "(func (export \"proxy_abi_version_0_2_1\"))"
        + &function.repeat(4_000)
        + ")";
    let slow = wat::parse_str(text).unwrap();
    let rules: &[&str] = &[&format!("proto tcp dport {PORT}")];
    std::thread::scope(|scope| {
        let service = Service { name: "streams", rules, ..Service::default() };
        let (node, slow) = (&line.node, &slow);
        let deployed = scope.spawn(move || node.deploy(slow, &service));
        let is_there = || line.node.service("streams").ok();
        let there = wait_for(SOON, is_there).unwrap();
        assert_eq!(there.state, "starting");
        line.node.remove("streams").unwrap();
        let refused = deployed.join().unwrap().unwrap_err().to_string();
        assert!(refused.contains("'streams' was removed"), "{refused}");
    });
    // Whoever waits for the same compiler begins.
    let another = Service { name: "another", rules, ..Service::default() };
    line.node.deploy(&slow, &another).unwrap();
    assert_eq!(line.node.client().services().unwrap().services.len(), 1);
    line.node.remove("another").unwrap();
    let gone = wait_for(SOON, || (kernel_state(&line) == before).then_some(()));
    assert!(gone.is_some(), "nothing of the first is left: {}", kernel_state(&line));
}

#[test]
fn a_lost_cell_is_followed_by_one_that_takes_connections() {
    if !root_or_skip("services of streams") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    deploy(&line, &[&format!("proto tcp dport {PORT}")]);
    let listener = server(&line, false, PORT);
    let (mut client, mut accepted) = pair(&line, &listener);
    talks(&mut client, &mut accepted);
    let before = line.node.cell().unwrap();
    kill(before);
    let another = || line.node.cell().ok().filter(|pid| *pid != before);
    wait_for(SOON, another).expect("another cell");
    assert!(client.read(&mut [0]).map_or(true, |count| count == 0), "it is over");
    let works = || {
        let service = line.node.service("streams").ok()?;
        (service.state == "running" && service.restarts == 1).then_some(())
    };
    wait_for(SOON, works).expect("the service runs again");
    let (mut client, mut accepted) = pair(&line, &listener);
    talks(&mut client, &mut accepted);
    assert_eq!(stats(&line).accepted, 1);
}

/// Starts Python's HTTP server on a folder of the server's.
fn serves_files(line: &Line, folder: &std::path::Path) -> Running {
    let address = line.net.v4("server", "r1").unwrap().to_string();
    let folder = folder.display().to_string();
    let port = PORT.to_string();
    let argv = ["python3", "-m", "http.server", &port, "--bind", &address, "--directory", &folder];
    let server = Running::start(&line.net.namespace("server").unwrap(), &argv).unwrap();
    listens(line, PORT);
    server
}

/// Runs curl; returns the head and the body.
fn curl(line: &Line, path: &str) -> (String, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let body = folder.path().join("body");
    let (url, body_path) =
        (format!("http://{}{path}", line.server(PORT)), body.display().to_string());
    let head = line.run("client", &["curl", "-sS", "-m", "20", "-D", "-", "-o", &body_path, &url]);
    (head, std::fs::read(&body).unwrap_or_default())
}

/// Returns an HTTP filter with this code in its callbacks for a request's and a response's head.
fn http_filter(on_request: &str, on_response: &str) -> Vec<u8> {
    let text = format!(
        r#"(module $seen
        (import "env" "proxy_add_header_map_value"
          (func $add (param i32 i32 i32 i32 i32) (result i32)))
        (memory (export "memory") 1)
        (data (i32.const 64) "x-seen-by")
        (data (i32.const 80) "tamandua")
        (func (export "proxy_abi_version_0_2_1"))
        (func (export "proxy_on_memory_allocate") (param i32) (result i32) (i32.const 1024))
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
          {on_request} (i32.const 0))
        (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
          {on_response} (i32.const 0)))"#
    );
    wat::parse_str(text).unwrap()
}

#[test]
fn a_filter_edits_what_a_client_and_a_server_say_and_every_byte_of_the_body_arrives() {
    if !root_or_skip("filters for HTTP") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let folder = tempfile::tempdir().unwrap();
    let bodies = [("small", noise(10)), ("large", noise(3 << 20))];
    for (name, body) in &bodies {
        std::fs::write(folder.path().join(name), body).unwrap();
    }
    let _server = serves_files(&line, folder.path());
    let (head, plain) = curl(&line, "/large");
    assert!(!head.contains("x-seen-by") && plain == bodies[1].1, "{head}");
    let add = "(drop (call $add (i32.const 2) (i32.const 64) (i32.const 9) (i32.const 80) (i32.const 8)))";
    deploys(&line, "streams", PORT, &http_filter("", add), &[]);
    for (name, body) in &bodies {
        let (head, came) = curl(&line, &format!("/{name}"));
        assert!(head.starts_with("HTTP/1.0 200") && head.contains("x-seen-by: tamandua"), "{head}");
        assert_eq!(Sha256::digest(&came), Sha256::digest(body), "{name}");
    }
    let (head, _) = curl(&line, "/none");
    assert!(head.starts_with("HTTP/1.0 404") && head.contains("x-seen-by"), "{head}");
    assert_eq!(stats(&line).accepted, 3);
}

/// Returns a TCP filter that counts the bytes of both directions.
pub fn counts_bytes() -> Vec<u8> {
    let text = r#"(module $counts
        (import "env" "proxy_define_metric"
          (func $define (param i32 i32 i32 i32) (result i32)))
        (import "env" "proxy_increment_metric" (func $add (param i32 i64) (result i32)))
        (memory (export "memory") 1)
        (data (i32.const 64) "bytes")
        (func (export "proxy_abi_version_0_2_1"))
        (func (export "proxy_on_configure") (param i32 i32) (result i32)
          (i32.eqz (call $define (i32.const 0) (i32.const 64) (i32.const 5) (i32.const 32))))
        (func $on_data (param $context i32) (param $bytes i32) (param $last i32) (result i32)
          (drop (call $add (i32.load (i32.const 32)) (i64.extend_i32_u (local.get $bytes))))
          (i32.const 0))
        (export "proxy_on_downstream_data" (func $on_data))
        (export "proxy_on_upstream_data" (func $on_data)))"#;
    wat::parse_str(text).unwrap()
}

#[test]
fn a_filter_for_tcp_is_shown_every_byte() {
    if !root_or_skip("filters for TCP") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    deploys(&line, "streams", PORT, &counts_bytes(), &[("protocol", "tcp")]);
    let sent = noise(1 << 20);
    let listener = server(&line, false, PORT);
    let mut client = connect(&line, listener.local_addr().unwrap());
    let (accepted, from) = listener.accept().unwrap();
    assert_eq!(from, client.local_addr().unwrap());
    there_and_back(&mut client, accepted, &sent);
    let stats = line.node.service("streams").unwrap().stats;
    assert_eq!(stats.memory_bytes, 65_536, "a page");
    let counted = stats.counters;
    assert_eq!(counted.get("bytes"), Some(&(2 << 20)), "{counted:?}");
}

#[test]
fn requests_of_a_trapping_filter_follow_its_services_failure_policy() {
    if !root_or_skip("filters that fall") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "here").unwrap();
    let _server = serves_files(&line, folder.path());
    let rules = [&*format!("proto tcp dport {PORT}")];
    for (on_failure, status) in [("closed", "503"), ("open", "200")] {
        let service = Service { name: "streams", rules: &rules, on_failure, ..Service::default() };
        line.node.deploy(&http_filter("(unreachable)", ""), &service).unwrap();
        let (head, body) = curl(&line, "/file");
        assert!(head.lines().next().is_some_and(|line| line.contains(status)), "{head}");
        assert_eq!(body == b"here", on_failure == "open");
        let seen = line.node.service("streams").unwrap().stats;
        assert!(seen.traps.values().sum::<u64>() >= 1, "{seen:?}");
        assert!(seen.last_trap.is_some_and(|trap| trap.contains("unreachable")));
        line.node.remove("streams").unwrap();
    }
}

#[test]
fn compress_codes_what_a_client_accepts_and_every_byte_comes_back() {
    if !root_or_skip("compress") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let folder = tempfile::tempdir().unwrap();
    let text: String = (0..40_000).map(|at| format!("line {at} of some text\n")).collect();
    std::fs::write(folder.path().join("text.txt"), &text).unwrap();
    std::fs::write(folder.path().join("noise.png"), noise(100_000)).unwrap();
    let _server = serves_files(&line, folder.path());
    let module = service_module("compress").unwrap();
    deploys(&line, "streams", PORT, &module, &[("capabilities", "code-responses")]);
    let (head, plain) = curl(&line, "/text.txt");
    let varies = head.to_ascii_lowercase().contains("vary: accept-encoding");
    assert!(plain == text.as_bytes() && varies, "{head}");
    let scratch = tempfile::tempdir().unwrap();
    for coding in ["gzip", "deflate", "br", "zstd"] {
        let body = scratch.path().join(coding).display().to_string();
        let url = format!("http://{}/text.txt", line.server(PORT));
        let accept = format!("Accept-Encoding: {coding}");
        let argv = ["curl", "-sS", "-m", "20", "-D", "-", "-o", &body, "-H", &accept, &url];
        let head = line.run("client", &argv).to_ascii_lowercase();
        assert!(head.contains(&format!("content-encoding: {coding}")), "{head}");
        let coded = std::fs::read(&body).unwrap();
        assert!(coded.len() * 4 < text.len(), "{coding}: {} bytes", coded.len());
        let decode = match coding {
            "gzip" => "gzip -dc",
            "deflate" => {
                "python3 -c 'import sys,zlib; sys.stdout.buffer.write(zlib.decompress(sys.stdin.buffer.read()))'"
            }
            "br" => "brotli -dc",
            _ => "zstd -dqc",
        };
        let decoded = line.run("client", &["sh", "-c", &format!("{decode} < {body}")]);
        assert!(decoded == text, "{coding}: {} bytes come back", decoded.len());
    }
    let (head, png) = curl(&line, "/noise.png");
    let is_coded = head.to_ascii_lowercase().contains("content-encoding");
    assert!(!is_coded && png == noise(100_000), "{head}");
    let counters = line.node.service("streams").unwrap().stats.counters;
    assert_eq!(counters.get("coded.gzip"), Some(&1), "{counters:?}");
}

#[test]
fn listeners_of_a_station_share_one_connection_and_the_first_may_leave() {
    if !root_or_skip("shared live streams") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    deploys_reflector(&line);
    let programme = Programme::numbered();
    let station = Station::opens(&line, PORT, programme, 200.0, Framing::UntilClose);
    let folder = tempfile::tempdir().unwrap();
    let url = format!("http://{}/live/one.mp3", line.server(PORT));
    std::thread::scope(|scope| {
        let (line, url, folder) = (&line, &url, folder.path());
        let listens = |name: &str, seconds: &str| {
            let heard = folder.join(name);
            let path = heard.display().to_string();
            let argv = ["curl", "-sS", "-m", seconds, "-o", &path, url];
            // A live stream has no end: curl says that its time is over.
            let output = line.net.run("client", &argv, Duration::from_secs(30)).unwrap();
            assert_eq!(output.status.code(), Some(28), "{output:#?}");
            frames(&std::fs::read(heard).unwrap())
        };
        let first = scope.spawn(move || listens("first", "3"));
        std::thread::sleep(Duration::from_millis(1500));
        let second = scope.spawn(move || listens("second", "6"));
        let heard = [first.join().unwrap(), second.join().unwrap()];
        for heard in &heard {
            assert!(heard.len() > 100, "{} frames", heard.len());
            assert!(heard.is_sorted_by(|a, b| a + 1 == *b), "none is missing or twice");
        }
        assert_eq!(station.connections(), 1, "one for both");
        assert!(heard[1].last() > heard[0].last(), "it goes on behind the first");
        let counters = line.node.service("streams").unwrap().stats.counters;
        assert_eq!(counters.get("reflected"), Some(&2), "{counters:?}");
    });
}
