//! Test of a filter that was written with the public Go SDK (`lab/filters/go`), unchanged.
//!
//! The test needs Go 1.24 and a module proxy that has the SDK: `make test-peers` runs it.

use super::{Tried, fields, http, spec};
use crate::abi::{Action, StreamType};
use crate::{Answer, Call, CallError, Effect, HttpResponse, MetricValue};
use engine::TrapKind;
use std::rc::Rc;

/// A single test, since the module takes seconds to build and to compile.
#[test]
fn a_go_filter_runs_unchanged() {
    let wasm = testbase::go_filter().unwrap();
    let mut spec = spec();
    spec.memory_bytes_max = 64 << 20;
    let shared = Rc::clone(&spec.shared);
    let mut tried = Tried::start(&wasm, spec).unwrap();

    let context = tried.create(http(&[(":path", "/p")]));
    let call = Call::RequestHeaders { context, is_last: true };
    assert_eq!(tried.action(call), Action::Continue);
    assert_eq!(tried.log, ["#2 /p, 1 headers, filter-conf"]);
    let expected = fields(&[(":path", "/p"), ("x-added", "go")]);
    assert_eq!(tried.stream(context).downstream.headers, expected);
    assert_eq!(shared.borrow().metrics()[0].value, MetricValue::Counter(1));
    tried.stream(context).upstream.headers = fields(&[(":status", "200")]);
    let call = Call::ResponseHeaders { context, is_last: false };
    assert_eq!(tried.action(call), Action::Continue);
    let expected = fields(&[(":status", "200"), ("x-seen-by", "go")]);
    assert_eq!(tried.stream(context).upstream.headers, expected);
    tried.stream(context).upstream.body = b"a b".to_vec();
    let call = Call::ResponseBody { context, is_last: false };
    assert_eq!(tried.action(call), Action::Pause);
    tried.stream(context).upstream.body.extend(b"ody");
    let call = Call::ResponseBody { context, is_last: true };
    assert_eq!(tried.action(call), Action::Continue);
    assert_eq!(tried.stream(context).upstream.body, b"[a body]");
    assert!(matches!(tried.call(Call::End(context)), Ok(Answer::Ended(Some(_)))));
    assert_eq!(tried.log[1..], ["#2 done"]);

    let context = tried.create(http(&[(":path", "/ask")]));
    let call = Call::RequestHeaders { context, is_last: true };
    assert_eq!(tried.action(call), Action::Pause);
    let body = b"yes".to_vec();
    let headers = fields(&[(":status", "200")]);
    let response = HttpResponse { call: 1, headers, body, ..HttpResponse::default() };
    assert_eq!(tried.call(Call::HttpCallResponse(response)), Ok(Answer::Nothing));
    let expected = Effect::Continue { context, stream: StreamType::HttpRequest };
    assert_eq!(tried.effects.last(), Some(&expected));
    let expected = fields(&[(":path", "/ask"), ("x-answer", "yes")]);
    assert_eq!(tried.stream(context).downstream.headers, expected);

    tried.log.clear();
    let context = tried.create(http(&[(":path", "/panic")]));
    let fallen = tried.call(Call::RequestHeaders { context, is_last: true });
    let is_abort =
        matches!(&fallen, Err(CallError::Trapped(trap)) if trap.kind == TrapKind::Unreachable);
    assert!(is_abort, "{fallen:?}");
    assert_eq!(tried.log[1], "panic: as was asked for", "a line in pieces is one");
}
