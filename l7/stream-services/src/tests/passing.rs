//! Property tests: the messages pass unchanged, whatever both ends send and wherever it is cut.

use super::{Harness, Side};
use http1::{
    Error, RequestDecoder, RequestEvent, RequestTraits, ResponseDecoder, ResponseEvent, Switch,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// Messages as text, independent of where bodies were cut.
type Recorded = (Vec<String>, Result<(), Error>);

fn push(all: &mut Vec<String>, kind: char, bytes: &[u8]) {
    let text = bytes.escape_ascii().to_string();
    match all.last_mut().filter(|last| last.starts_with(kind)) {
        Some(last) => last.push_str(&text),
        None => all.push(format!("{kind}{text}")),
    }
}

fn requests(mut bytes: &[u8]) -> (Recorded, Vec<RequestTraits>) {
    let (mut decoder, mut all, mut asked) = (RequestDecoder::new(), Vec::new(), Vec::new());
    loop {
        let step = match decoder.decode(bytes) {
            Ok(step) => step,
            Err(error) => return ((all, Err(error)), asked),
        };
        bytes = &bytes[step.consumed..];
        match step.event {
            Some(RequestEvent::Head(head, _)) => {
                asked.push(RequestTraits::by(&head));
                all.push(format!("{head:?}"));
            }
            Some(RequestEvent::Body(part)) => push(&mut all, 'b', part),
            Some(RequestEvent::Trailers(trailers)) => all.push(format!("{trailers:?}")),
            Some(RequestEvent::End) => all.push("end".to_owned()),
            Some(RequestEvent::Tunnel(part)) => push(&mut all, 't', part),
            None if decoder.awaits_switch() => decoder.switch(Switch::Refused),
            None => return ((all, Ok(())), asked),
        }
    }
}

fn responses(mut bytes: &[u8], asked: &[RequestTraits]) -> Recorded {
    let (mut decoder, mut all) = (ResponseDecoder::new(), Vec::new());
    let mut asked = asked.iter();
    loop {
        if decoder.awaits_request()
            && let Some(asked) = asked.next()
        {
            decoder.expect(*asked);
        }
        let step = match decoder.decode(bytes) {
            Ok(step) => step,
            Err(error) => return (all, Err(error)),
        };
        bytes = &bytes[step.consumed..];
        match step.event {
            Some(ResponseEvent::Head(head, _)) => all.push(format!("{head:?}")),
            Some(ResponseEvent::Interim(head)) => all.push(format!("interim {head:?}")),
            Some(ResponseEvent::Body(part)) => push(&mut all, 'b', part),
            Some(ResponseEvent::Trailers(trailers)) => all.push(format!("{trailers:?}")),
            Some(ResponseEvent::End) => all.push("end".to_owned()),
            Some(ResponseEvent::Tunnel(part)) => push(&mut all, 't', part),
            None => return (all, Ok(())),
        }
    }
}

fn chunks(body: &[u8], size: usize, trailers: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for chunk in body.chunks(size.max(1)) {
        out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        out.extend_from_slice(&[chunk, b"\r\n"].concat());
    }
    [&out[..], format!("0\r\n{trailers}\r\n").as_bytes()].concat()
}

fn framed(head: &str, body: &[u8], size: Option<usize>) -> Vec<u8> {
    let (field, body) = match size {
        None => (format!("Content-Length: {}", body.len()), body.to_vec()),
        Some(size) => {
            let trailers = if size % 2 == 0 { "X-Sum: 1\r\n" } else { "" };
            ("transfer-encoding: chunked".to_owned(), chunks(body, size, trailers))
        }
    };
    [format!("{head}{field}\r\n\r\n").as_bytes(), &body].concat()
}

/// Generates a request with its response.
fn pair() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let body = || (vec(any::<u8>(), 0..400), proptest::option::of(1_usize..90));
    (0_u8..5, body(), body(), 0_usize..3).prop_map(|(kind, asks, answers, interim)| {
        let request = match kind {
            0 => b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
            1 => b"GET http://a/x?y HTTP/1.1\r\nhost: a\r\n\r\n".to_vec(),
            _ => framed("POST / HTTP/1.1\r\nHost: a\r\nA: \u{e9}\r\n", &asks.0, asks.1),
        };
        let mut answer = b"HTTP/1.1 102 P\r\n\r\n".repeat(interim);
        answer.extend(match kind {
            0 => b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n".to_vec(),
            3 => b"HTTP/1.1 304 N\r\nContent-Length: 7\r\n\r\n".to_vec(),
            4 => b"HTTP/1.1 204 N\r\n\r\n".to_vec(),
            _ => framed("HTTP/1.1 200 OK\r\nServer: b\r\n", &answers.0, answers.1),
        });
        (request, answer)
    })
}

/// Passes bytes of both sides in pieces of these sizes, alternating.
fn run(harness: &mut Harness, asks: &[u8], answers: &[Vec<u8>], sizes: &[usize]) {
    let (mut from, mut answered, mut waiting) = (0, 0, Vec::new());
    for round in 0..100_000 {
        let size = sizes[round % sizes.len()];
        let to = (from + size).min(asks.len());
        let mut moved = false;
        if from < to && harness.handle_bytes(Side::Downstream, &asks[from..to]) {
            (from, moved) = (to, true);
        }
        // Each complete request is answered.
        let (recorded, _) = requests(harness.sent(Side::Upstream)).0;
        let whole = recorded.iter().filter(|it| *it == "end").count();
        while answered < whole.min(answers.len()) {
            waiting.extend_from_slice(&answers[answered]);
            answered += 1;
        }
        let count = size.min(waiting.len());
        if count > 0 && harness.handle_bytes(Side::Upstream, &waiting[..count]) {
            waiting.drain(..count);
            moved = true;
        }
        if !moved {
            break;
        }
    }
    assert!(from == asks.len() && waiting.is_empty(), "all of it has been taken");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn messages_arrive_as_they_were_sent_wherever_they_are_cut(
        pairs in vec(pair(), 1..6),
        sizes in vec(1_usize..300, 1..6),
        has_callbacks: bool,
    ) {
        let asks: Vec<u8> = pairs.iter().flat_map(|pair| pair.0.clone()).collect();
        let answers: Vec<Vec<u8>> = pairs.iter().map(|pair| pair.1.clone()).collect();
        let mut harness = Harness::new(has_callbacks);
        run(&mut harness, &asks, &answers, &sizes);
        let (received_bytes, asked) = requests(&asks);
        prop_assert_eq!(received_bytes, requests(harness.sent(Side::Upstream)).0);
        let received_bytes = responses(&answers.concat(), &asked);
        prop_assert_eq!(received_bytes, responses(harness.sent(Side::Downstream), &asked));
        prop_assert!(!harness.is_over());
        prop_assert_eq!(harness.contexts(), 0, "all of them have ended");
        harness.handle_end(Side::Downstream);
        prop_assert!(harness.is_over() && !harness.is_reset());
    }

    /// Parts of messages in any order: no panic, and the output is valid.
    #[test]
    fn forwarded_messages_are_valid_whatever_both_ends_send(
        turns in vec((any::<bool>(), pair(), vec((any::<prop::sample::Index>(), any::<u8>()), 0..2)), 1..6),
        size in 1_usize..80,
        has_callbacks: bool,
    ) {
        let mut harness = Harness::new(has_callbacks);
        for (is_client, (request, answer), changes) in turns {
            let mut bytes = if is_client { request } else { answer };
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let side = if is_client { Side::Downstream } else { Side::Upstream };
            for piece in bytes.chunks(size) {
                harness.handle_bytes(side, piece);
            }
        }
        let ((_, recorded), asked) = requests(harness.sent(Side::Upstream));
        prop_assert!(recorded.is_ok(), "{recorded:?}");
        // The node's own responses may be to requests that were not forwarded.
        let mut decoder = asked;
        decoder.extend([RequestTraits { method: http1::MethodClass::Other, upgrade: false }; 8]);
        let (_, recorded) = responses(harness.sent(Side::Downstream), &decoder);
        prop_assert!(recorded.is_ok() || harness.is_over(), "{recorded:?}");
        harness.handle_end(Side::Upstream);
        harness.handle_end(Side::Downstream);
        prop_assert!(!harness.is_over() || harness.contexts() == 0);
    }
}
