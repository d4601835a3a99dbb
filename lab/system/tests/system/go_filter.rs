//! Filter that is written with the public Go SDK (`lab/filters/go`), at a node, between curl and a
//! server that repeats each request's head.
//!
//! The test needs Go 1.24 and a module proxy that has the SDK: `make test-peers` runs it.

use crate::common::{Ends, Line, SOON};
use crate::streams::{PORT, server, stats};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testkit::{Service, go_filter, root_or_skip, wait_for};

/// L4 port of the authority that the filter calls.
const AUTHORITY: u16 = PORT + 1;

/// Answers each request with the function's result for its head, until `over` is set.
fn answers<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    listener: &'scope TcpListener,
    over: &'scope AtomicBool,
    answer: impl Fn(&str) -> String + Send + 'scope,
) {
    listener.set_nonblocking(true).unwrap();
    scope.spawn(move || {
        while !over.load(Ordering::Relaxed) {
            let Ok((mut stream, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            };
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(SOON)).unwrap();
            let (mut head, mut buffer) = (Vec::new(), [0; 4096]);
            while !head.ends_with(b"\r\n\r\n") {
                match stream.read(&mut buffer) {
                    Ok(length) if length > 0 => head.extend_from_slice(&buffer[..length]),
                    _ => break,
                }
            }
            let body = answer(&String::from_utf8_lossy(&head));
            let length = body.len();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close");
            // A client that has gone needs no response.
            let _ = stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes());
        }
    });
}

#[test]
fn a_go_filter_at_a_node_edits_what_curl_and_a_server_say() {
    if !root_or_skip("a filter in Go") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let upstreams = format!("authority={}", line.server(AUTHORITY));
    let rules = [&*format!("proto tcp dport {PORT}")];
    let parameters = [("configuration", "from the node"), ("upstreams", &*upstreams)];
    let service = Service {
        name: "streams",
        rules: &rules,
        parameters: &parameters,
        on_failure: "closed",
        ..Service::default()
    };
    line.node.deploy(&go_filter().unwrap(), &service).unwrap();
    let (listener, authority) = (server(&line, false, PORT), server(&line, false, AUTHORITY));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&over);
        answers(scope, &listener, &over, str::to_owned);
        answers(scope, &authority, &over, |_| "yes".to_owned());
        let curl = |path: &str| {
            let url = format!("http://{}{path}", line.server(PORT));
            line.run("client", &["curl", "-sS", "-m", "20", "-i", &url])
        };
        let came = curl("/p");
        let (head, body) = came.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("x-seen-by: go"), "{came}");
        assert!(body.starts_with("[GET /p HTTP/1.1\r\n") && body.ends_with(']'), "{came}");
        assert!(body.contains("\r\nx-added: go\r\n"), "{came}");
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{came}");
        let came = curl("/ask");
        assert!(came.contains("[GET /ask HTTP/1.1") && came.contains("x-answer: yes"), "{came}");
        let counted = line.node.service("streams").unwrap().stats.counters;
        assert_eq!(counted.get("requests"), Some(&2), "{counted:?}");

        // The instance traps, its service's policy applies, and a new one replaces it.
        let came = curl("/panic");
        assert!(came.starts_with("HTTP/1.1 503"), "{came}");
        let again = wait_for(SOON, || curl("/p").contains("x-added: go").then_some(()));
        assert!(again.is_some(), "{:?}", line.node.service("streams"));
        let seen = line.node.service("streams").unwrap().stats;
        assert_eq!(seen.traps.values().sum::<u64>(), 1, "{seen:?}");
        assert!(stats(&line).accepted >= 4);
    });
}
