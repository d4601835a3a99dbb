//! Tests of filters that were written with the public Rust SDK (`lab/filters/rust`), unchanged.

use super::{NOW, Tried, fields, http, spec};
use crate::abi::{Action, PeerType, StreamType};
use crate::{
    Answer, Call, Effect, HttpResponse, MetricValue, Protocol, StartError, Stream, VmSpec,
};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::OnceLock;

/// Builds all filters, once per process.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        testbase::built_for_wasm("lab/filters/rust/Cargo.toml", "filters", &["--examples"])
            .join("examples")
    })
}

fn filter_with(name: &str, spec: VmSpec) -> Tried {
    let wasm = std::fs::read(built().join(format!("{name}.wasm"))).unwrap();
    Tried::start(&wasm, spec).unwrap()
}

fn filter(name: &str) -> Tried {
    filter_with(name, spec())
}

#[test]
fn headers_are_read_and_edited() {
    let mut tried = filter("headers");
    let context = tried.create(http(&[
        (":method", "GET"),
        (":path", "/"),
        ("x-replaced", "old"),
        ("x-removed", "1"),
    ]));
    assert_eq!(context, 2);
    let call = Call::RequestHeaders { context, is_last: true };
    assert_eq!(tried.action(call), Action::Continue);
    assert_eq!(tried.log[0], "#2 :method: GET");
    assert_eq!(tried.log[4], "4 headers, true");
    let expected = fields(&[
        (":method", "GET"),
        (":path", "/"),
        ("x-replaced", "new"),
        ("x-added", "1"),
        ("x-added", "2"),
    ]);
    assert_eq!(tried.stream(context).downstream.headers, expected);

    tried.stream(context).downstream.trailers = fields(&[("sum", "1")]);
    assert_eq!(tried.action(Call::RequestTrailers(context)), Action::Continue);
    let trailers = tried.stream(context).downstream.trailers.clone();
    assert_eq!(trailers, fields(&[("sum", "1"), ("x-last", "yes")]));

    tried.stream(context).upstream.headers = fields(&[(":status", "500"), ("server", "x")]);
    let call = Call::ResponseHeaders { context, is_last: false };
    assert_eq!(tried.action(call), Action::Continue);
    let headers = tried.stream(context).upstream.headers.clone();
    assert_eq!(headers.get(b"x-only"), Some(&b"this"[..]));
    assert_eq!(headers.get(b"x-bytes"), Some(&[0xff, 1][..]));
    assert_eq!((headers.len(), headers.get(b"server")), (3, None));
    assert_eq!(tried.action(Call::ResponseTrailers(context)), Action::Continue);
    assert_eq!(tried.stream(context).upstream.trailers, fields(&[("x-end", "now")]));

    tried.log.clear();
    assert!(matches!(tried.call(Call::End(context)), Ok(Answer::Ended(Some(_)))));
    assert_eq!(tried.log, ["#2 done", "#2 path Some(\"/\")"]);
}

#[test]
fn a_filter_sends_a_local_response() {
    let mut tried = filter("headers");
    let context = tried.create(http(&[(":path", "/hello")]));
    let call = Call::RequestHeaders { context, is_last: true };
    assert_eq!(tried.action(call), Action::Pause);
    let [Effect::Respond { context: 2, response }] = tried.effects.as_slice() else {
        panic!("{:?}", tried.effects);
    };
    assert_eq!((response.status, response.grpc_status), (200, None));
    assert_eq!(response.headers, fields(&[("x-from", "filter")]));
    assert_eq!(response.body, b"Hello, World!\r\n");
}

#[test]
fn a_body_is_held_until_complete() {
    let mut tried = filter("body");
    let context = tried.create(http(&[]));
    tried.stream(context).upstream.headers = fields(&[("content-length", "12"), ("a", "b")]);
    let call = Call::ResponseHeaders { context, is_last: false };
    assert_eq!(tried.action(call), Action::Continue);
    assert_eq!(tried.stream(context).upstream.headers, fields(&[("a", "b")]));
    tried.stream(context).upstream.body = b"a sec".to_vec();
    let call = Call::ResponseBody { context, is_last: false };
    assert_eq!(tried.action(call), Action::Pause);
    assert!(tried.stream(context).upstream.is_paused());
    tried.stream(context).upstream.body.extend(b"ret word");
    let call = Call::ResponseBody { context, is_last: true };
    assert_eq!(tried.action(call), Action::Continue);
    let expected = b"Original message body (13 bytes) redacted.\n";
    assert_eq!(tried.stream(context).upstream.body, expected);
    assert!(!tried.stream(context).upstream.is_paused());

    tried.stream(context).downstream.body = b"part".to_vec();
    let call = Call::RequestBody { context, is_last: false };
    assert_eq!(tried.action(call), Action::Continue);
    assert_eq!(tried.stream(context).downstream.body, b"<part>");
}

/// Returns a filter with a request that waits for the response to an HTTP call.
fn asked() -> (Tried, u32) {
    let mut tried = filter("authorize");
    let context = tried.create(http(&[(":path", "/")]));
    let call = Call::RequestHeaders { context, is_last: true };
    assert_eq!(tried.action(call), Action::Pause);
    let [Effect::HttpCall { call, request, .. }] = tried.effects.as_slice() else {
        panic!("{:?}", tried.effects);
    };
    assert_eq!((request.upstream.as_str(), request.timeout_ms), ("authority", 1_000));
    assert_eq!((request.headers.len(), request.body.as_slice()), (3, b"?".as_slice()));
    let call = *call;
    assert_eq!(tried.vm.as_ref().unwrap().http_calls().collect::<Vec<_>>(), [call]);
    tried.effects.clear();
    (tried, call)
}

#[test]
fn an_http_call_resumes_a_request() {
    let (mut tried, call) = asked();
    let headers = fields(&[(":status", "200")]);
    let response = HttpResponse { call, headers, body: vec![2], trailers: fields(&[]) };
    assert_eq!(tried.call(Call::HttpCallResponse(response)), Ok(Answer::Nothing));
    assert_eq!(tried.log, ["1 headers, 1 bytes, 0 trailers", "status Some(\"200\")"]);
    let expected = Effect::Continue { context: 2, stream: StreamType::HttpRequest };
    assert_eq!(tried.effects, [expected]);
    let stream = tried.stream(2);
    assert!(!stream.downstream.is_paused());
    assert_eq!(stream.downstream.headers, fields(&[(":path", "/"), ("x-authorized", "yes")]));
}

#[test]
fn an_http_call_that_failed_refuses_a_request() {
    let (mut tried, call) = asked();
    let response = HttpResponse { call, ..HttpResponse::default() };
    assert_eq!(tried.call(Call::HttpCallResponse(response)), Ok(Answer::Nothing));
    assert_eq!(tried.log, ["0 headers, 0 bytes, 0 trailers"]);
    let [Effect::Respond { context: 2, response }] = tried.effects.as_slice() else {
        panic!("{:?}", tried.effects);
    };
    assert_eq!(response.status, 403);
}

#[test]
fn data_queues_metrics_and_properties_are_shared() {
    let spec = spec();
    let shared = Rc::clone(&spec.shared);
    let mut tried = filter_with("share", spec);
    assert_eq!(tried.log, ["vm vm-conf"]);
    assert_eq!(tried.effects, [Effect::TickPeriod(50)]);
    tried.log.clear();
    tried.effects.clear();
    for _ in 0..2 {
        let mut stream = http(&[(":path", "/p")]);
        stream.describe(&["source", "address"], "10.0.0.1:7");
        let context = tried.create(stream);
        let call = Call::RequestHeaders { context, is_last: true };
        assert_eq!(tried.action(call), Action::Continue, "{:?}", tried.log);
    }
    let lines = [
        "requests Ok(2)",
        "source Some([49, 48, 46, 48, 46, 48, 46, 49, 58, 55])",
        "path Some([47, 112])",
        "name Some([102, 105, 108, 116, 101, 114])",
        "upper Ok(Some([65, 66, 67]))",
    ];
    assert_eq!(tried.log[5..], lines);
    assert_eq!(tried.effects, [const { Effect::QueueReady { vm: 3, queue: 1 } }; 2]);
    tried.log.clear();
    assert_eq!(tried.call(Call::QueueReady(1)), Ok(Answer::Nothing));
    assert_eq!(tried.log, ["job one", "job one"]);
    let shared = shared.borrow();
    assert_eq!(shared.get("vm", b"count").unwrap().0, [2]);
    assert_eq!(shared.metrics()[0].value, MetricValue::Counter(2));
}

#[test]
fn a_timer_wakes_the_module() {
    let mut tried = filter("share");
    tried.log.clear();
    assert_eq!(tried.call(Call::Tick), Ok(Answer::Nothing));
    assert_eq!(tried.log, [format!("tick at {}s", NOW.real_ns / 1_000_000_000)]);
    assert_eq!(tried.effects.last(), Some(&Effect::TickPeriod(0)));
    assert_eq!(tried.vm.as_ref().unwrap().tick_period_ms(), 0);
}

#[test]
fn a_filter_refuses_its_configuration() {
    let wasm = std::fs::read(built().join("share.wasm")).unwrap();
    let spec = VmSpec { plugin_configuration: Rc::from(b"refuse".as_slice()), ..spec() };
    let failure = Tried::start(&wasm, spec).err().unwrap();
    assert_eq!(failure.error, StartError::Refused("proxy_on_configure"));
    let is_said = |it: &Effect| matches!(it, Effect::Log { text, .. } if text == "I refuse.");
    assert!(failure.effects.iter().any(is_said), "{:?}", failure.effects);
}

#[test]
fn tcp_streams_are_edited_in_both_directions() {
    let mut tried = filter("replace");
    let context = tried.create(Stream::new(Protocol::Tcp));
    assert_eq!(tried.action(Call::NewConnection(context)), Action::Continue);
    tried.stream(context).downstream.body = b"hel".to_vec();
    let call = Call::DownstreamData { context, is_last: false };
    assert_eq!(tried.action(call), Action::Pause);
    tried.stream(context).downstream.body.extend(b"lo\n");
    let call = Call::DownstreamData { context, is_last: false };
    assert_eq!(tried.action(call), Action::Continue);
    assert_eq!(tried.stream(context).downstream.body, b"HELLO\n");
    tried.stream(context).upstream.body = b"hello".to_vec();
    let call = Call::UpstreamData { context, is_last: true };
    assert_eq!(tried.action(call), Action::Continue);
    assert_eq!(tried.stream(context).upstream.body, b"[ello]");

    tried.stream(context).downstream.body = b"quit".to_vec();
    let call = Call::DownstreamData { context, is_last: false };
    assert_eq!(tried.action(call), Action::Continue);
    assert_eq!(tried.effects, [Effect::Close { context, stream: StreamType::Downstream }]);
    let closed = Call::UpstreamClose(context, PeerType::Remote);
    assert_eq!(tried.call(closed), Ok(Answer::Nothing));
    let closed = Call::DownstreamClose(context, PeerType::Local);
    assert_eq!(tried.call(closed), Ok(Answer::Nothing));
    assert!(matches!(tried.call(Call::End(context)), Ok(Answer::Ended(Some(_)))));
    let expected = ["new connection", "upstream closed: 2", "downstream closed: 1", "log"];
    assert_eq!(tried.log, expected);
}
