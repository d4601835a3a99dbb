//! Connections through a filter with the policy `closed`: none reaches its server past the filter,
//! whatever part of the node is down.

use crate::clean_end::kill;
use crate::common::{Ends, Line, SOON};
use crate::streams::{PORT, server};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testkit::{Service, root_or_skip, wait_for};

/// Filter that adds a field to each response.
const MARKS: &str = r#"(module $marks
    (import "env" "proxy_add_header_map_value"
      (func $add (param i32 i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 64) "x-filtered") (data (i32.const 96) "1")
    (func (export "proxy_abi_version_0_2_1"))
    (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
      (drop (call $add (i32.const 2) (i32.const 64) (i32.const 10) (i32.const 96) (i32.const 1)))
      (i32.const 0)))"#;
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
/// Timeout of a dropped connection, so that the next one comes during the same outage.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(200);
const KILLS: usize = 5;
/// Requests of one outage: they last longer than it.
const REQUESTS: usize = 20;

/// Answers each request alike, until `over` is set.
fn serve(listener: &TcpListener, over: &AtomicBool) {
    listener.set_nonblocking(true).unwrap();
    while !over.load(Ordering::Relaxed) {
        let Ok((mut stream, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let mut head = [0; 256];
        // A client that has gone needs no response.
        let _ = stream.set_nonblocking(false);
        let _ = stream.set_read_timeout(Some(ANSWER_TIMEOUT));
        let _ = stream.read(&mut head).and_then(|_| stream.write_all(RESPONSE));
    }
}

/// Sends a request; returns whether it was filtered, `None` without an answer from the server.
fn request(to: SocketAddr) -> Option<bool> {
    let mut stream = TcpStream::connect_timeout(&to, ANSWER_TIMEOUT).ok()?;
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.write_all(REQUEST).ok()?;
    let mut answer = Vec::new();
    // A reset connection still has the bytes before it.
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    answer.ends_with("hello").then(|| answer.contains("x-filtered: 1"))
}

#[test]
fn no_connection_goes_past_a_closed_filter_while_cell_or_daemon_or_both_are_gone() {
    if !root_or_skip("a closed filter without its cell") {
        return;
    }
    let mut line = Line::up();
    line.resolve_neighbours();
    let rule = format!("proto tcp dport {PORT}");
    let (rules, on_failure) = ([&*rule], "closed");
    let service = Service { name: "marks", rules: &rules, on_failure, ..Service::default() };
    line.node.deploy(&wat::parse_str(MARKS).unwrap(), &service).unwrap();
    let (listener, over) = (server(&line, false, PORT), AtomicBool::new(false));
    let to = line.server(PORT);
    std::thread::scope(|scope| {
        let _ends = Ends(&over);
        scope.spawn(|| serve(&listener, &over));
        let requests = |line: &Line| {
            let some = || (0..REQUESTS).filter_map(|_| request(to)).collect::<Vec<bool>>();
            let got = line.net.within("client", some).unwrap();
            assert!(got.iter().all(|filtered| *filtered), "{got:?}: {}", line.node.log());
        };
        let recovers = |line: &Line| {
            let one = || line.net.within("client", || request(to)).unwrap();
            let filtered = wait_for(SOON * 6, one).expect("it comes back");
            assert!(filtered, "{}", line.node.log());
        };
        recovers(&line);
        for _ in 0..KILLS {
            kill(line.node.cell().unwrap());
            requests(&line);
            recovers(&line);
        }
        let cell = line.node.cell().unwrap();
        line.node.kill().unwrap();
        requests(&line);
        kill(cell);
        requests(&line);
        line.node.start_again(&line.net, "r1").unwrap();
        requests(&line);
        recovers(&line);
    });
}
