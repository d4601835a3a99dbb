//! Tests of a node in memory between a client and a server: both ends receive what the other sent,
//! however the bytes are cut and interleaved.

mod common;

use common::node::Node;
use common::{GET, HEAD, Recorded, pieces, requests, responses};
use http1::{Reason, RequestDecoder, RequestEvent, RequestTraits, Switch};
use proptest::collection::vec;
use proptest::prelude::*;

/// Server that responds to each request, once it has ended, with the next of its prepared
/// responses.
struct Server {
    decoder: RequestDecoder,
    answers: std::vec::IntoIter<Vec<u8>>,
    read: usize,
}

impl Server {
    fn new(answers: Vec<Vec<u8>>) -> Self {
        Self { decoder: RequestDecoder::new(), answers: answers.into_iter(), read: 0 }
    }

    /// Reads the bytes that the node has sent since the last call, and returns the responses.
    fn answer(&mut self, node: &Node) -> Vec<u8> {
        let mut answers = Vec::new();
        loop {
            let step = self.decoder.decode(&node.to_server[self.read..]).unwrap();
            self.read += step.consumed;
            match step.event {
                Some(RequestEvent::End) => answers.extend(self.answers.next().unwrap()),
                Some(_) => {}
                None => return answers,
            }
        }
    }
}

/// Request with its response.
#[derive(Clone, Debug)]
struct Pair {
    traits: RequestTraits,
    request: Vec<u8>,
    answer: Vec<u8>,
}

fn chunks(body: &[u8], size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for chunk in body.chunks(size.max(1)) {
        out.extend_from_slice(format!("{:x};a=b\r\n", chunk.len()).as_bytes());
        out.extend_from_slice(&[chunk, b"\r\n"].concat());
    }
    [&out[..], b"0\r\nX-Sum: 1\r\n\r\n"].concat()
}

fn framed(head: &str, body: &[u8], size: Option<usize>) -> Vec<u8> {
    let (field, body) = match size {
        None => (format!("Content-Length: {}", body.len()), body.to_vec()),
        Some(size) => ("transfer-encoding:chunked".to_owned(), chunks(body, size)),
    };
    [format!("{head}{field}\r\n\r\n").as_bytes(), &body].concat()
}

fn pair() -> impl Strategy<Value = Pair> {
    let body = || (vec(any::<u8>(), 0..40), proptest::option::of(1_usize..9));
    (0_u8..5, body(), body(), 0_usize..3).prop_map(|(kind, asks, answers, interim)| {
        let is_head = kind == 0;
        let request = match kind {
            0 => b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
            1 => b"GET / HTTP/1.1\r\nhost:a\r\n\r\n".to_vec(),
            _ => framed("POST / HTTP/1.1\r\nHost: a\r\nA: \u{e9}\r\n", &asks.0, asks.1),
        };
        let mut answer = b"HTTP/1.1 102 P\r\n\r\n".repeat(interim);
        answer.extend(match kind {
            0 => b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n".to_vec(),
            3 => b"HTTP/1.1 304 N\r\nContent-Length: 7\r\n\r\n".to_vec(),
            4 => b"HTTP/1.1 204 N\r\n\r\n".to_vec(),
            _ => framed("HTTP/1.1 200 OK\r\nServer: b\r\n", &answers.0, answers.1),
        });
        Pair { traits: if is_head { HEAD } else { GET }, request, answer }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn messages_arrive_as_they_were_sent_wherever_they_are_cut(
        pairs in vec(pair(), 1..8),
        cuts in vec(any::<usize>(), 0..10),
        size in 1_usize..40,
    ) {
        let asks: Vec<u8> = pairs.iter().flat_map(|pair| pair.request.clone()).collect();
        let answers: Vec<u8> = pairs.iter().flat_map(|pair| pair.answer.clone()).collect();
        let mut node = Node::default();
        let mut server = Server::new(pairs.iter().map(|pair| pair.answer.clone()).collect());
        for piece in pieces(&asks, &cuts) {
            node.handle_client(piece);
            for piece in server.answer(&node).chunks(size) {
                node.handle_server(piece);
            }
        }
        prop_assert!(node.error.is_none() && !node.closes && node.exchange.is_idle());
        let (received, _) = requests(&[&asks], Switch::Refused);
        let (forwarded, end) = requests(&[&node.to_server], Switch::Refused);
        prop_assert_eq!((received, Ok(())), (forwarded, end));
        let traits: Vec<RequestTraits> = pairs.iter().map(|pair| pair.traits).collect();
        let (received, _) = responses(&[&answers], &traits);
        let (forwarded, end) = responses(&[&node.to_client], &traits);
        prop_assert_eq!((received, Ok(())), (forwarded, end));
    }

    /// Both ends send arbitrary bytes: no panic, and nothing is consumed once the connections end.
    #[test]
    fn nothing_that_both_ends_send_stops_a_node(
        turns in vec((any::<bool>(), any::<prop::sample::Index>(), 1_usize..60), 1..12),
    ) {
        let rows: Vec<Vec<u8>> = common::table::rows().into_iter().map(|row| row.bytes).collect();
        let mut node = Node::default();
        for (is_client, row, size) in turns {
            for piece in row.get(&rows).chunks(size) {
                if is_client { node.handle_client(piece) } else { node.handle_server(piece) }
            }
        }
        prop_assert!(node.error.is_none() || node.closes);
    }
}

const POST: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n";

#[test]
fn a_client_that_waits_for_100_gets_it_before_it_sends_the_body() {
    let mut node = Node::default();
    let head = b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
    node.handle_client(head);
    assert_eq!(node.to_server, head, "the head goes on before the body has come");
    assert!(node.exchange.awaits_continue());
    node.handle_server(b"HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(node.to_client, b"HTTP/1.1 100 Continue\r\n\r\n");
    node.handle_client(b"body");
    assert!(node.to_server.ends_with(b"\r\n\r\nbody"));
    node.handle_server(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert!(node.exchange.is_idle() && !node.closes);
}

#[test]
fn a_refusal_in_place_of_100_ends_both_connections() {
    let mut node = Node::default();
    node.handle_client(
        b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 33\r\n\r\n",
    );
    node.handle_server(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n");
    assert!(node.to_client.ends_with(b"Content-Length: 0\r\nConnection: close\r\n\r\n"));
    let sent = node.to_server.len();
    node.handle_client(b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(node.closes && node.to_server.len() == sent);
}

#[test]
fn an_upgraded_connection_passes_bytes_as_they_are() {
    let mut node = Node::default();
    let ask = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    node.handle_client(ask);
    node.handle_client(b"GET /early");
    assert_eq!(node.to_server, ask, "nothing is read before the answer");
    let answer = b"HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x01a";
    node.handle_server(answer);
    assert_eq!(node.to_client, answer);
    node.handle_client(b"\0more");
    assert!(node.to_server.ends_with(b"\r\n\r\nGET /early\0more"));
}

#[test]
fn behind_a_connect_that_is_refused_comes_the_next_request() {
    let mut node = Node::default();
    let connect = b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n";
    let get = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    node.handle_client(&[&connect[..], get].concat());
    assert_eq!(node.to_server, connect);
    node.handle_server(b"HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(node.to_server, [&connect[..], get].concat());
}

#[test]
fn a_body_until_close_ends_with_the_servers_connection() {
    let mut node = Node::default();
    node.handle_client(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = b"HTTP/1.1 200 OK\r\n\r\nall of it";
    node.handle_server(answer);
    assert!(!node.closes);
    node.handle_server_eof();
    assert!(node.closes && node.error.is_none());
    assert_eq!(node.to_client, answer);
}

#[test]
fn a_response_that_breaks_off_is_no_whole_one_at_the_client() {
    for head in ["Content-Length: 9\r\n\r\nhalf", "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"]
    {
        let mut node = Node::default();
        node.handle_client(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        node.handle_server(format!("HTTP/1.1 200 OK\r\n{head}").as_bytes());
        node.handle_server_eof();
        assert_eq!(node.error.map(|error| error.reason), Some(Reason::IncompleteBody));
        let (all, end) = responses(&[&node.to_client], &[GET]);
        assert!(
            end.is_err() && !all.contains(&Recorded::End),
            "no second response behind half of one"
        );
    }
}

#[test]
fn a_server_that_answers_nonsense_is_a_bad_gateway() {
    let mut node = Node::default();
    node.handle_client(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    node.handle_server(b"SSH-2.0-x\r\n");
    assert!(node.to_client.starts_with(b"HTTP/1.1 502 Bad Gateway\r\n"));
    let (all, end) = responses(&[&node.to_client], &[GET]);
    assert_eq!((all.last(), end), (Some(&Recorded::End), Ok(())));
}

#[test]
fn a_response_during_an_upload_passes_and_the_upload_goes_on() {
    let mut node = Node::default();
    node.handle_client(&[POST, b"bo"].concat());
    node.handle_server(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert!(!node.closes && !node.exchange.is_idle());
    node.handle_client(b"dy");
    assert_eq!(node.to_server, [POST, b"body"].concat());
    assert!(!node.closes && node.exchange.is_idle());
}
