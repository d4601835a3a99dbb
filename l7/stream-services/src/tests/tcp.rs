//! Tests of TCP through filters.

use super::lab::{Peer, passing};
use super::{Failure, Kind, Lab, module};

const DATA: &[(u32, &[u8])] = &[(0x100, b"<"), (0x110, b">"), (0x120, b"last")];

fn lab(callbacks: &[(&str, &str)]) -> Lab {
    Lab::new(&module(callbacks, DATA), Kind::Tcp, Failure::Closed)
}

fn connected(lab: &mut Lab) -> (Peer, Peer) {
    let client = lab.client();
    let server = lab.server();
    (client, server)
}

#[test]
fn every_byte_passes_in_both_directions_and_each_ends_by_itself() {
    let one = [("proxy_on_downstream_data", "(i32.const 0)")];
    for wasm in [passing(Kind::Tcp), module(&[], &[]), module(&one, &[])] {
        let mut lab = Lab::new(&wasm, Kind::Tcp, Failure::Closed);
        let (mut client, mut server) = connected(&mut lab);
        let body: Vec<u8> = (0..2_000_000_u32).map(|at| (at * 7 + at / 999) as u8).collect();
        client.send(&body);
        server.send(&body);
        client.finish();
        lab.until(&mut [&mut server, &mut client], |peers| peers[0].has_ended);
        assert!(server.received_bytes == body);
        lab.until_received(&mut client, &mut server, body.len());
        assert!(client.received_bytes == body && !client.is_over());
        server.send("more");
        server.finish();
        lab.until(&mut [&mut client, &mut server], |peers| peers[0].has_ended);
        assert!(client.received_bytes.ends_with(b"more"));
        lab.rest(&mut []);
        assert_eq!((lab.counts().ended, lab.counts().open()), (1, 0));
    }
}

#[test]
fn data_is_edited_in_both_directions() {
    let edit = |buffer: u32| {
        format!(
            "(drop (call $proxy_set_buffer_bytes (i32.const {buffer}) (i32.const 0) \
             (i32.const 0) (i32.const 0x100) (i32.const 1))) \
             (drop (call $proxy_set_buffer_bytes (i32.const {buffer}) (i32.const 0x7fffffff) \
             (i32.const 0) (i32.const 0x110) (i32.const 1))) (i32.const 0)"
        )
    };
    let (down, up) = (edit(2), edit(3));
    let mut lab = lab(&[("proxy_on_downstream_data", &down), ("proxy_on_upstream_data", &up)]);
    let (mut client, mut server) = connected(&mut lab);
    client.send("one");
    lab.until_ends(&mut server, "<one>");
    server.send("two");
    lab.until_ends(&mut client, "<two>");
    client.finish();
    lab.until(&mut [&mut server, &mut client], |peers| peers[0].has_ended);
    assert_eq!(server.text(), "<one><>");
}

#[test]
fn held_data_accumulates_until_the_module_resumes() {
    // Waits for the end.
    let mut lab = lab(&[("proxy_on_downstream_data", "(i32.eqz (local.get 2))")]);
    let (mut client, mut server) = connected(&mut lab);
    client.send("one");
    lab.rest(&mut [&mut client, &mut server]);
    client.send("two");
    lab.rest(&mut [&mut client, &mut server]);
    assert_eq!(server.text(), "");
    client.finish();
    lab.until(&mut [&mut server, &mut client], |peers| peers[0].has_ended);
    assert_eq!(server.text(), "onetwo");

    let (mut client, mut server) = connected(&mut lab);
    client.send(vec![1; 2_000_000]);
    lab.until(&mut [&mut client, &mut server], |peers| peers[0].is_over());
    assert_eq!(lab.reports.counters().held_too_long, 1);
}

#[test]
fn a_held_connection_passes_no_data_until_resumed() {
    let tick = "(drop (call $proxy_set_effective_context (i32.const 2))) \
                (call $proxy_continue_stream (i32.const 2))";
    let start = "(drop (call $proxy_set_tick_period_milliseconds (i32.const 50))) (i32.const 1)";
    let callbacks = [
        ("proxy_on_new_connection", "(i32.const 1)"),
        ("proxy_on_downstream_data", "(i32.const 0)"),
        ("proxy_on_tick", tick),
        ("proxy_on_vm_start", start),
    ];
    let mut lab = lab(&callbacks);
    let (mut client, mut server) = connected(&mut lab);
    client.send("one");
    lab.rest(&mut [&mut client, &mut server]);
    assert_eq!(server.text(), "");
    lab.skip(std::time::Duration::from_millis(60));
    lab.until_received(&mut server, &mut client, 3);
}

#[test]
fn a_module_closes_a_connection_and_is_notified_of_each_end() {
    let log = |name| {
        (
            name,
            "(call $proxy_log (i32.const 2) (i32.const 0x120) (i32.add (local.get 1) (i32.const 1)))",
        )
    };
    let callbacks = [
        (
            "proxy_on_downstream_data",
            "(drop (call $proxy_close_stream (i32.const 2))) (i32.const 0)",
        ),
        log("proxy_on_downstream_connection_close"),
        log("proxy_on_upstream_connection_close"),
    ];
    let mut lab = lab(&callbacks);
    let (mut client, mut server) = connected(&mut lab);
    client.send("one");
    lab.until(&mut [&mut server, &mut client], |peers| peers.iter().all(|it| it.is_over()));
    assert!(!client.was_reset);
    client.finish();
    lab.rest(&mut [&mut client]);
    // Closed here: 1, and one letter more.
    assert_eq!(lab.log(), ["la", "la"]);
}

#[test]
fn a_reset_of_one_end_is_a_reset_of_the_other() {
    let mut lab = Lab::new(&passing(Kind::Tcp), Kind::Tcp, Failure::Closed);
    let (client, mut server) = connected(&mut lab);
    server.send("x");
    lab.rest(&mut [&mut server]);
    // Unread bytes turn the close into a reset.
    drop(client);
    lab.until(&mut [&mut server], |peers| peers[0].is_over());
    assert_eq!(lab.counts().reset + lab.counts().ended, 1);
}

#[test]
fn last_bytes_of_a_server_arrive_before_its_reset() {
    let shown = [("proxy_on_upstream_data", "(i32.const 0)")];
    for wasm in [passing(Kind::Tcp), module(&[], &[]), module(&shown, DATA)] {
        for length in [3, 20_000] {
            let mut lab = Lab::new(&wasm, Kind::Tcp, Failure::Closed);
            let (mut client, server) = connected(&mut lab);
            client.send("unread");
            lab.step();
            server.leave_with_unread(vec![b'x'; length]);
            lab.until(&mut [&mut client], |peers| peers[0].is_over());
            assert_eq!((client.received_bytes.len(), client.was_reset), (length, true));
            assert_eq!((lab.counts().reset, lab.counts().open()), (1, 0));
        }
    }
}

#[test]
fn last_bytes_of_a_client_arrive_before_its_reset() {
    let mut lab = Lab::new(&passing(Kind::Tcp), Kind::Tcp, Failure::Closed);
    let (client, mut server) = connected(&mut lab);
    server.send("unread");
    lab.step();
    client.leave_with_unread("bye");
    lab.until(&mut [&mut server], |peers| peers[0].is_over());
    assert_eq!((server.text(), server.was_reset), ("bye".to_owned(), true));
}

#[test]
fn a_reset_does_not_wait_for_ever_for_a_stalled_peer() {
    let mut lab = Lab::new(&passing(Kind::Tcp), Kind::Tcp, Failure::Closed);
    let (mut client, mut server) = connected(&mut lab);
    client.send("unread");
    // More than all buffers between server and client hold.
    server.send(vec![b'x'; 30_000_000]);
    lab.rest(&mut [&mut server]);
    assert!(!server.has_sent());
    super::lab::reset(server);
    lab.rest(&mut []);
    assert_eq!(lab.counts().open(), 1);
    // Bytes from before the reset may be read for a minute, and sent for another.
    lab.skip(std::time::Duration::from_secs(61));
    lab.skip(std::time::Duration::from_secs(61));
    assert_eq!((lab.counts().reset, lab.counts().open()), (1, 0));
    lab.until(&mut [&mut client], |peers| peers[0].was_reset);
}

#[test]
fn a_server_that_refuses_resets_its_client() {
    let mut lab = Lab::new(&passing(Kind::Tcp), Kind::Tcp, Failure::Closed).without_server();
    let mut client = lab.client();
    lab.until(&mut [&mut client], |peers| peers[0].was_reset);
    assert_eq!(lab.counts().unreachable, 1);
}
