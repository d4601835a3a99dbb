//! Common parts of the tests of services that track flows: programs that open connections in either
//! direction, and a connection that continues while its service moves.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::common::{Line, PROGRAM_TIME_MAX, SOON};
use crate::http::HttpServer;
use serde_json::Value;
use testkit::{Output, Running};

/// Bytes that curl downloads.
const BODY_LENGTH: u64 = 4 << 20;
/// Levels at which services of this kind run, and a connection is moved to.
pub const LEVELS: [&str; 3] = ["user", "kernel", "nic"];
/// Seconds after which a missing answer counts as absent: iputils and curl accept whole seconds.
const ANSWER_TIMEOUT: &str = "1";

/// Pings a host from another one; returns true if the answers came.
pub fn pings(line: &Line, from: &str, to: IpAddr) -> bool {
    let argv = ["ping", "-c3", "-i0.05", "-W", ANSWER_TIMEOUT, &to.to_string()];
    let output = line.net.run(from, &argv, PROGRAM_TIME_MAX).unwrap();
    let all = output.stdout.contains("3 packets transmitted, 3 received");
    assert!(all || output.stdout.contains(", 0 received"), "{output:?}");
    all
}

/// Downloads a whole body over HTTP; returns `false` when no connection is established.
pub fn fetches(line: &Line, from: &str, server: &str, address: IpAddr) -> bool {
    let http = HttpServer::start(&line.net, server, address, BODY_LENGTH);
    let command = format!(
        "set -o pipefail; curl -sS -g --connect-timeout {ANSWER_TIMEOUT} http://{}/ | sha256sum",
        http.address
    );
    let output = line.net.run(from, &["bash", "-c", &command], PROGRAM_TIME_MAX).unwrap();
    if !output.status.success() {
        assert!(
            output.stderr.contains("timed out") || output.stderr.contains("Timeout"),
            "{output:?}"
        );
        // So that the server's thread ends.
        let at = http.address;
        let own = line.net.within(server, || TcpStream::connect(at).map(drop)).unwrap();
        return own.is_err();
    }
    assert_eq!(output.stdout.split_whitespace().next(), Some(&http.digest()[..]), "{output:?}");
    true
}

/// Starts an iperf3 server on a host.
fn iperf_server(line: &Line, host: &str) -> Running {
    let server = Running::start(&line.net.namespace(host).unwrap(), &["iperf3", "-s", "-1"]);
    let listening = testkit::wait_for(SOON, || {
        let sockets = line.run(host, &["ss", "-Hltn", "sport", "=", ":5201"]);
        (!sockets.is_empty()).then_some(())
    });
    assert!(listening.is_some(), "iperf3 does not listen");
    server.unwrap()
}

/// Runs four seconds of TCP from client to server, or with "-R" back, while `meanwhile` runs;
/// returns the bytes transferred.
pub fn iperf(line: &Line, more: &[&str], meanwhile: impl FnOnce(&Running)) -> u64 {
    let server = iperf_server(line, "server");
    let address = line.server(5201).ip().to_string();
    let mut argv = vec!["iperf3", "-c", &address, "-t", "4", "-b", "30M", "-J"];
    argv.extend(more);
    let client = Running::start(&line.net.namespace("client").unwrap(), &argv).unwrap();
    meanwhile(&client);
    let output: Output = client.wait(PROGRAM_TIME_MAX).unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    let ended = server.wait(Duration::from_secs(20)).unwrap();
    assert!(ended.status.success(), "{ended:?}");
    report["end"]["sum_received"]["bytes"].as_u64().unwrap()
}

/// Moves a service through all levels repeatedly; returns the number of moves. A move with too many
/// packets in flight on a busy machine fails, and the service stays where it is.
pub fn move_about(line: &Line, service: &str) -> u32 {
    let mut moves = 0;
    for _ in 0..8 {
        for level in LEVELS {
            match line.node.client().move_service(service, level) {
                Ok(moved) => {
                    assert_eq!(moved.level, level);
                    moves += 1;
                }
                Err(error) => assert!(error.to_string().contains("never idle"), "{error}"),
            }
            std::thread::sleep(Duration::from_millis(40));
        }
    }
    moves
}

/// TCP connection that stays open: both ends, and the address that the server sees.
pub struct Conversation {
    client: TcpStream,
    server: TcpStream,
    pub seen: SocketAddr,
}

impl Conversation {
    /// Connects from the client to the server.
    pub fn begin(line: &Line) -> Self {
        let address = line.server(0);
        let listener = line.net.within("server", || TcpListener::bind(address)).unwrap().unwrap();
        let at = listener.local_addr().unwrap();
        let connect = || TcpStream::connect_timeout(&at, SOON);
        let client = line.net.within("client", connect).unwrap().unwrap();
        let (server, seen) = listener.accept().unwrap();
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(SOON)).unwrap();
            stream.set_nodelay(true).unwrap();
        }
        Self { client, server, seen }
    }

    /// Sends a word in each direction.
    pub fn goes_on(&mut self) {
        use std::io::{Read, Write};
        let mut word = [0; 4];
        self.client.write_all(b"ping").unwrap();
        self.server.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"ping");
        self.server.write_all(b"pong").unwrap();
        self.client.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"pong");
    }
}
