//! Tests of modules that trap, do not start, never end, or are hostile.

use super::lab::{Peer, engine, vm_spec};
use super::{Event, Failure, Kind, Lab, module};
use crate::{Capabilities, REFLECT};
use engine::{Pace, PaceDecision};
use proxy_wasm::VmSpec;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const GET: &str = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n";
const POST: &str = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const FALLS: &str = "(unreachable)";

fn lab(callbacks: &[(&str, &str)], kind: Kind, failure: Failure) -> Lab {
    Lab::new(&module(callbacks, &[]), kind, failure)
}

fn asks(lab: &mut Lab, request: &str) -> (Peer, Peer) {
    let mut client = lab.client();
    client.send(request);
    let mut server = lab.server();
    lab.until_received(&mut server, &mut client, request.len());
    assert_eq!(server.text(), request);
    server.send(OK);
    lab.until_received(&mut client, &mut server, OK.len());
    assert_eq!(client.text(), OK);
    (client, server)
}

fn traps(lab: &Lab) -> usize {
    lab.events.iter().filter(|it| matches!(it, Event::Trapped { .. })).count()
}

#[test]
fn requests_of_a_closed_service_are_refused_when_its_module_traps() {
    for callback in ["proxy_on_request_headers", "proxy_on_request_body", "proxy_on_context_create"]
    {
        // The root context is created too.
        let trap = "(if (i32.gt_u (local.get 0) (i32.const 1)) (then (unreachable)))\
                     (i32.const 0)";
        let mut lab = lab(&[(callback, trap)], Kind::Http, Failure::Closed);
        let mut client = lab.client();
        client.send(POST);
        lab.until(&mut [&mut client], |peers| !peers[0].received_bytes.is_empty());
        assert!(client.text().starts_with("HTTP/1.1 503 "), "{callback}: {}", client.text());
        assert_eq!((traps(&lab), lab.reports.counters().traps), (1, 1));
        assert!(lab.is_alone());
        // Another VM starts at once, and traps as well.
        let mut next = lab.client();
        next.send(POST);
        lab.until(&mut [&mut next], |peers| !peers[0].received_bytes.is_empty());
        assert!(next.text().starts_with("HTTP/1.1 503 ") && traps(&lab) == 2);
    }
}

#[test]
fn a_changed_policy_applies_to_later_traps() {
    let trap = "(if (i32.gt_u (local.get 0) (i32.const 1)) (then (unreachable)))\
                 (i32.const 0)";
    let mut lab = lab(&[("proxy_on_context_create", trap)], Kind::Http, Failure::Closed);
    let mut client = lab.client();
    client.send(GET);
    lab.until(&mut [&mut client], |peers| !peers[0].received_bytes.is_empty());
    assert!(client.text().starts_with("HTTP/1.1 503 "), "{}", client.text());
    lab.failure.set(Failure::Open);
    asks(&mut lab, GET);
    lab.failure.set(Failure::Closed);
    let mut client = lab.client();
    client.send(GET);
    lab.until(&mut [&mut client], |peers| !peers[0].received_bytes.is_empty());
    assert!(client.text().starts_with("HTTP/1.1 503 "), "{}", client.text());
}

#[test]
fn requests_of_an_open_service_continue_when_its_module_traps() {
    for callback in [
        "proxy_on_request_headers",
        "proxy_on_request_body",
        "proxy_on_response_headers",
        "proxy_on_response_body",
        "proxy_on_done",
    ] {
        let mut lab = lab(&[(callback, FALLS)], Kind::Http, Failure::Open);
        let (mut client, mut server) = asks(&mut lab, POST);
        lab.rest(&mut [&mut client, &mut server]);
        assert_eq!(traps(&lab), 1, "{callback}");
        client.send(GET);
        lab.until_received(&mut server, &mut client, POST.len() + GET.len());
        // A request that has left before its module traps is not sent.
        let paid = u64::from(callback != "proxy_on_done");
        assert!(lab.reports.counters().unfiltered >= paid, "{callback}");
    }
}

#[test]
fn a_response_that_has_begun_is_reset_when_its_closed_module_traps() {
    let mut lab = lab(&[("proxy_on_response_body", FALLS)], Kind::Http, Failure::Closed);
    let mut client = lab.client();
    client.send(GET);
    let mut server = lab.server();
    lab.until_received(&mut server, &mut client, GET.len());
    server.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n");
    lab.until_ends(&mut client, "\r\n\r\n");
    server.send("ok");
    lab.until(&mut [&mut client, &mut server], |peers| peers.iter().all(|it| it.is_over()));
    assert!(client.was_reset);
}

#[test]
fn tcp_connections_pass_or_are_reset_when_their_module_traps() {
    for callback in ["proxy_on_new_connection", "proxy_on_downstream_data"] {
        let mut open = lab(&[(callback, FALLS)], Kind::Tcp, Failure::Open);
        let (mut client, mut server) = (open.client(), open.server());
        client.send("one");
        open.until_received(&mut server, &mut client, 3);
        server.send("two");
        open.until_received(&mut client, &mut server, 3);
        assert_eq!((client.text(), server.text()), ("two".to_owned(), "one".to_owned()));
        let (mut next, mut to) = (open.client(), open.server());
        next.send("plain");
        open.until_received(&mut to, &mut next, 5);

        let mut closed = lab(&[(callback, FALLS)], Kind::Tcp, Failure::Closed);
        let mut client = closed.client();
        client.send("one");
        closed.until(&mut [&mut client], |peers| peers[0].was_reset);
        let mut next = closed.client();
        next.send("two");
        closed.until(&mut [&mut next], |peers| peers[0].was_reset);
        assert!(traps(&closed) <= 2, "one for each connection");
    }
}

#[test]
fn a_failed_start_is_reported_and_retried_with_back_off() {
    let callbacks =
        [("proxy_on_vm_start", "(i32.const 0)"), ("proxy_on_request_headers", "(i32.const 0)")];
    let mut lab = lab(&callbacks, Kind::Http, Failure::Closed);
    let mut client = lab.client();
    client.send(GET);
    lab.until(&mut [&mut client], |peers| !peers[0].received_bytes.is_empty());
    assert!(client.text().starts_with("HTTP/1.1 503 "));
    for wait in [150, 250, 450] {
        lab.skip(Duration::from_millis(wait));
    }
    let again: Vec<u64> = lab
        .events
        .iter()
        .filter_map(|it| match it {
            Event::StartFailed { reason, again } => {
                assert!(reason.contains("proxy_on_vm_start returned false"), "{reason}");
                Some(again.as_millis())
            }
            _ => None,
        })
        .collect();
    assert!(again.len() == 4 && again[3] - again[2] > again[1] - again[0], "{again:?}");
}

/// Pace that suspends at every second check, `left` times; then it stops the call.
#[derive(Debug)]
struct Suspender(Cell<u32>);

impl Pace for Suspender {
    fn decide(&self, _: u64) -> PaceDecision {
        match self.0.get() {
            0 => PaceDecision::Stop,
            left => {
                self.0.set(left - 1);
                if left % 2 == 0 { PaceDecision::Continue } else { PaceDecision::Suspend }
            }
        }
    }
}

/// Thread that raises the epoch each millisecond.
struct Clock(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);

impl Clock {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !flag.load(Ordering::Relaxed) {
                engine().raise_epoch();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Self(stop, Some(thread))
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        if let Some(thread) = self.1.take() {
            thread.join().unwrap();
        }
    }
}

fn paced(callbacks: &[(&str, &str)], turns: u32) -> Lab {
    let pace: Rc<dyn Pace> = Rc::new(Suspender(Cell::new(turns)));
    let vm = VmSpec { pace: Some(pace), ..vm_spec() };
    Lab::with(&module(callbacks, &[]), vm, Kind::Http, Failure::Closed, BTreeMap::new())
}

#[test]
fn an_endless_call_is_suspended_and_stopped_while_others_wait() {
    let _clock = Clock::start();
    let endless = "(loop (br 0)) (i32.const 0)";
    let mut lab = paced(&[("proxy_on_request_headers", endless)], 20);
    let mut client = lab.client();
    client.send(GET);
    let mut other = lab.client();
    other.send(GET);
    lab.until(&mut [&mut client, &mut other], |peers| {
        peers.iter().all(|it| it.received_bytes.len() > 9)
    });
    assert!(
        client.text().starts_with("HTTP/1.1 503 ") && other.text().starts_with("HTTP/1.1 503 ")
    );
    let counters = lab.reports.counters();
    assert!(counters.suspended >= 1 && counters.traps == 2, "{counters:?}");
}

#[test]
fn suspended_calls_resume_and_waiting_ones_follow_in_order() {
    let _clock = Clock::start();
    // About 50 ms each.
    let long = "(i32.store (i32.const 0x700) (i32.const 0))
        (loop (i32.store (i32.const 0x700)
                (i32.add (i32.const 1) (i32.load (i32.const 0x700))))
            (br_if 0 (i32.lt_u (i32.load (i32.const 0x700)) (i32.const 30000000))))
        (i32.const 0)";
    let mut lab = paced(&[("proxy_on_request_headers", long)], u32::MAX);
    let mut clients: Vec<Peer> = (0..3).map(|_| lab.client()).collect();
    clients.iter_mut().for_each(|client| client.send(GET));
    let mut servers: Vec<Peer> = (0..3).map(|_| lab.server()).collect();
    servers.iter_mut().for_each(|server| server.send(OK));
    let mut all: Vec<&mut Peer> = clients.iter_mut().chain(&mut servers).collect();
    lab.until(&mut all, |peers| peers.iter().all(|it| it.received_bytes.len() >= GET.len()));
    assert!(lab.reports.counters().suspended >= 1);
}

#[test]
fn requests_of_a_suspended_call_are_executed_at_its_end() {
    let _clock = Clock::start();
    for (function, length) in [(content_coding::FUNCTION, 2), (REFLECT, 0)] {
        let body = format!(
            "(drop (call $proxy_call_foreign_function (i32.const 0x100) (i32.const {})
                (i32.const 0x180) (i32.const {length}) (i32.const 0) (i32.const 0)))
            (i32.store (i32.const 0x700) (i32.const 0))
            (loop (i32.store (i32.const 0x700)
                    (i32.add (i32.const 1) (i32.load (i32.const 0x700))))
                (br_if 0 (i32.lt_u (i32.load (i32.const 0x700)) (i32.const 30000000))))
            (i32.const 0)",
            function.len()
        );
        let wasm = module(
            &[("proxy_on_request_headers", &body)],
            &[(0x100, function.as_bytes()), (0x180, &[2, 1])],
        );
        let pace: Rc<dyn Pace> = Rc::new(Suspender(Cell::new(u32::MAX)));
        let vm = VmSpec { pace: Some(pace), ..vm_spec() };
        let reflects = Some(fanout::Settings::default());
        let mut lab = Lab::granted(
            &wasm,
            vm,
            Capabilities { codes_responses: true, reflects, keeps_servers: false },
        );
        let mut client = lab.client();
        client.send(GET);
        // Data received meanwhile waits, and is not lost.
        lab.step();
        client.send(GET);
        let mut server = lab.server();
        server.send(OK);
        lab.until(&mut [&mut client, &mut server], |peers| !peers[0].received_bytes.is_empty());
        let counters = lab.reports.counters();
        assert!(counters.suspended >= 1, "{counters:?}");
        assert_eq!(counters.responses_coded, u64::from(function == content_coding::FUNCTION));
        assert_eq!(counters.reflected, u64::from(function == REFLECT));
    }
}

#[test]
fn a_client_that_leaves_during_a_suspended_call_leaves_nothing() {
    let _clock = Clock::start();
    let long = "(i32.store (i32.const 0x700) (i32.const 0))
        (loop (i32.store (i32.const 0x700)
                (i32.add (i32.const 1) (i32.load (i32.const 0x700))))
            (br_if 0 (i32.lt_u (i32.load (i32.const 0x700)) (i32.const 30000000))))
        (i32.const 0)";
    let callbacks =
        [("proxy_on_context_create", long), ("proxy_on_request_headers", "(i32.const 0)")];
    let mut lab = paced(&callbacks, u32::MAX);
    let mut client = lab.client();
    client.send(GET);
    lab.until(&mut [], |_| true);
    super::lab::reset(client);
    for _ in 0..50 {
        lab.rest(&mut []);
        if lab.counts().open() == 0 {
            break;
        }
    }
    assert_eq!(lab.counts().open(), 0);
    let (client, _) = asks(&mut lab, GET);
    assert!(!client.is_over());
}

#[test]
fn excess_answers_and_foreign_contexts_do_not_affect_others() {
    // Each call answers a hundred times, and closes contexts that it does not have, and its own.
    let hostile = "(local $i i32) (loop
        (drop (call $proxy_send_local_response (i32.const 200) (i32.const 0) (i32.const 0)
            (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const -1)))
        (drop (call $proxy_set_effective_context (local.get $i)))
        (drop (call $proxy_close_stream (i32.const 0)))
        (drop (call $proxy_continue_stream (i32.const 1)))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br_if 0 (i32.lt_u (local.get $i) (i32.const 100)))) (i32.const 0)";
    let mut lab = lab(&[("proxy_on_request_headers", hostile)], Kind::Http, Failure::Closed);
    for _ in 0..3 {
        let mut client = lab.client();
        client.send(GET);
        lab.until(&mut [&mut client], |peers| {
            peers[0].is_over() || !peers[0].received_bytes.is_empty()
        });
    }
    assert_eq!(traps(&lab), 0);
}

#[test]
fn a_queue_that_feeds_itself_does_not_starve_others() {
    let register = "(drop (call $proxy_register_shared_queue (i32.const 0x100) (i32.const 1) \
                    (i32.const 0x200)))";
    let feed = "(local $i i32) (loop
        (drop (call $proxy_enqueue_shared_queue (i32.load (i32.const 0x200)) (i32.const 0x100)
            (i32.const 1)))
        (drop (call $proxy_dequeue_shared_queue (i32.load (i32.const 0x200)) (i32.const 0x300)
            (i32.const 0x304)))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br_if 0 (i32.lt_u (local.get $i) (i32.const 100)))) (i32.const 1)";
    let start = format!("{register} {}", feed.replace("(local $i i32)", ""));
    let start = format!("(local $i i32) {start}");
    let callbacks = [
        ("proxy_on_vm_start", &*start),
        ("proxy_on_queue_ready", feed),
        ("proxy_on_request_headers", "(i32.const 0)"),
    ];
    let mut lab = lab(&callbacks, Kind::Http, Failure::Closed);
    asks(&mut lab, GET);
}
