//! Tests of server connections that are kept for the next client of the same address.

use super::lab::{Peer, passing, vm_spec};
use super::{Kind, Lab, module};
use crate::Capabilities;
use std::net::Ipv4Addr;
use std::time::Duration;

const GET: &str = "GET /a HTTP/1.1\r\nHost: example\r\n\r\n";
const LAST_GET: &str = "GET /a HTTP/1.1\r\nHost: example\r\nConnection: close\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const LAST_OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";

fn lab() -> Lab {
    lab_of(&passing(Kind::Http))
}

fn lab_of(wasm: &[u8]) -> Lab {
    let capabilities = Capabilities { keeps_servers: true, ..Capabilities::default() };
    Lab::granted(wasm, vm_spec(), capabilities)
}

/// Sends a client's request, and expects it at this server; returns the received text.
fn ask(lab: &mut Lab, server: &mut Peer, request: &str) -> (Peer, String) {
    let before = server.received_bytes.len();
    let mut client = lab.client();
    client.send(request);
    lab.until(&mut [server, &mut client], |peers| {
        peers[0].received_bytes[before..].ends_with(b"\r\n\r\n")
    });
    let received = String::from_utf8_lossy(&server.received_bytes[before..]).into_owned();
    (client, received)
}

/// Sends the server's response, and expects it and the end at the client.
fn answer(lab: &mut Lab, server: &mut Peer, client: &mut Peer, answer: &str, expected: &str) {
    server.send(answer);
    lab.until(&mut [client, server], |peers| peers[0].is_over());
    assert_eq!((client.text().as_str(), client.was_reset), (expected, false));
}

/// Returns a server connection whose client has come and gone.
fn used(lab: &mut Lab) -> Peer {
    let mut client = lab.client();
    client.send(LAST_GET);
    let mut server = lab.server();
    lab.until_received(&mut server, &mut client, GET.len());
    assert_eq!(server.text(), GET, "the server is not told that the client ends");
    answer(lab, &mut server, &mut client, OK, LAST_OK);
    drop(client);
    lab.rest(&mut [&mut server]);
    assert!(!server.is_over());
    server
}

#[test]
fn the_next_client_of_the_same_address_reuses_the_server_connection() {
    for wasm in [passing(Kind::Http), module(&[], &[])] {
        let mut lab = lab_of(&wasm);
        let mut server = used(&mut lab);
        for _ in 0..3 {
            let (mut client, received) = ask(&mut lab, &mut server, LAST_GET);
            assert_eq!(received, GET);
            answer(&mut lab, &mut server, &mut client, OK, LAST_OK);
        }
        // A client that keeps its connection, and leaves.
        let (mut client, _) = ask(&mut lab, &mut server, GET);
        server.send(OK);
        lab.until_received(&mut client, &mut server, OK.len());
        assert_eq!(client.text(), OK);
        client.finish();
        lab.until(&mut [&mut client, &mut server], |peers| peers[0].is_over());
        drop(client);
        ask(&mut lab, &mut server, GET);
        assert!(lab.is_alone(), "one connection for all of them");
        assert_eq!(lab.reports.counters().servers_shared, 5);
    }
}

#[test]
fn concurrent_clients_and_other_addresses_have_their_own_connections() {
    let mut lab = lab();
    let mut first = used(&mut lab);
    let mut other = lab.client_of(Ipv4Addr::new(127, 0, 0, 2));
    other.send(GET);
    let mut second = lab.server();
    lab.until_received(&mut second, &mut other, GET.len());
    // Two connections of the first client.
    ask(&mut lab, &mut first, GET);
    let mut client = lab.client();
    client.send(GET);
    let mut third = lab.server();
    lab.until_received(&mut third, &mut client, GET.len());
    assert_eq!(lab.reports.counters().servers_shared, 1);
}

#[test]
fn a_connection_is_kept_for_four_seconds_unless_its_server_ends_it() {
    let mut lab = lab();
    let mut server = used(&mut lab);
    lab.skip(Duration::from_millis(3_900));
    lab.rest(&mut [&mut server]);
    assert!(!server.is_over());
    lab.skip(Duration::from_millis(200));
    lab.until(&mut [&mut server], |peers| peers[0].has_ended);
    // The server closes it, or sends unsolicited bytes.
    for surplus in ["", OK] {
        let mut server = used(&mut lab);
        server.send(surplus);
        if surplus.is_empty() {
            server.finish();
        }
        lab.until(&mut [&mut server], |peers| peers[0].is_over());
    }
    used(&mut lab);
    assert_eq!(lab.reports.counters().servers_shared, 0);
}

#[test]
fn a_request_on_a_connection_that_its_server_has_just_closed_is_repeated() {
    let mut lab = lab();
    for resets in [false, true] {
        let mut server = used(&mut lab);
        let (mut client, _) = ask(&mut lab, &mut server, LAST_GET);
        if resets {
            super::lab::reset(server);
        } else {
            drop(server);
        }
        let mut next = lab.server();
        lab.until_received(&mut next, &mut client, GET.len());
        assert_eq!(next.text(), GET);
        answer(&mut lab, &mut next, &mut client, OK, LAST_OK);
        lab.skip(Duration::from_secs(5));
        // A request on a connection of its own is sent once.
        let mut client = lab.client();
        client.send(GET);
        let mut server = lab.server();
        lab.until_received(&mut server, &mut client, GET.len());
        drop(server);
        lab.until(&mut [&mut client], |peers| peers[0].is_over());
        assert!(lab.is_alone(), "resets: {resets}");
    }
}

#[test]
fn a_request_that_must_not_be_repeated_has_a_connection_of_its_own() {
    let mut lab = lab();
    let _first = used(&mut lab);
    for request in [
        "POST /a HTTP/1.1\r\nHost: example\r\nContent-Length: 0\r\n\r\n",
        "GET /a HTTP/1.1\r\nHost: example\r\nContent-Length: 1\r\n\r\nx",
        "DELETE /a HTTP/1.1\r\nHost: example\r\n\r\n",
        "GET /a HTTP/1.1\r\nHost: example\r\nAuthorization: NTLM TlRM\r\n\r\n",
    ] {
        let mut client = lab.client();
        client.send(request);
        let mut server = lab.server();
        lab.until_received(&mut server, &mut client, request.len());
        assert_eq!(server.text(), request);
    }
    assert_eq!(lab.reports.counters().servers_shared, 0);
}

#[test]
fn connections_with_unfinished_exchanges_or_authentication_are_not_kept() {
    let get = |more: &str| format!("GET /a HTTP/1.1\r\nHost: example\r\n{more}\r\n");
    let post =
        "POST /a HTTP/1.1\r\nHost: example\r\nContent-Length: 9\r\nConnection: close\r\n\r\nx";
    let asks = "HTTP/1.1 401 No\r\nWWW-Authenticate: Negotiate\r\nContent-Length: 0\r\n\r\n";
    let until_close = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok";
    let two = format!("{OK}{OK}");
    let rows = [
        // The client leaves before its response, or authenticates the whole connection.
        (get(""), ""),
        (get("Authorization: Negotiate YII\r\nConnection: close\r\n"), OK),
        // The server asks for authentication; the client has not sent the body when it has its
        // response.
        (get("Connection: close\r\n"), asks),
        (post.to_owned(), OK),
        // The server closes the connection, or has sent unsolicited bytes.
        (get("Connection: close\r\n"), LAST_OK),
        (get("Connection: close\r\n"), until_close),
        (get("Connection: close\r\n"), &two),
    ];
    for (request, response) in rows {
        let mut lab = lab();
        let mut client = lab.client();
        client.send(&request);
        let mut server = lab.server();
        lab.until_received(&mut server, &mut client, 10);
        server.send(response);
        if response == until_close {
            server.finish();
        }
        if response.is_empty() {
            super::lab::reset(client);
            lab.until(&mut [&mut server], |peers| peers[0].is_over());
        } else {
            lab.until(&mut [&mut client, &mut server], |peers| {
                peers.iter().all(|peer| peer.is_over())
            });
        }
        used(&mut lab);
        assert_eq!(lab.reports.counters().servers_shared, 0, "{request}{response}");
    }
}

#[test]
fn a_connection_with_an_outstanding_response_is_not_kept() {
    // The module answers by itself at the same time as the server.
    let wasm = module(
        &[(
            "proxy_on_response_headers",
            "(call $proxy_send_local_response (i32.const 403) (i32.const 0) (i32.const 0) \
             (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const -1)) drop \
             (i32.const 1)",
        )],
        &[],
    );
    let mut lab = lab_of(&wasm);
    let mut client = lab.client();
    client.send(LAST_GET);
    let mut server = lab.server();
    lab.until_received(&mut server, &mut client, GET.len());
    server.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no");
    lab.until(&mut [&mut client, &mut server], |peers| peers.iter().all(|peer| peer.is_over()));
    assert!(client.text().starts_with("HTTP/1.1 403"), "{}", client.text());
}
