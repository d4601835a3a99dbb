//! Tests of each callback: its arguments, its access, and the effect of its result.

use super::{NOW, Script, Tried, fields, http, spec};
use crate::abi::{Action, LogLevel, PeerType, StreamType};
use crate::{Answer, Call, CallError, Effect, HttpResponse, Protocol, StartError, Stream, VmSpec};
use std::rc::Rc;

/// Returns a script that logs `name` and the parameters of a callback, a digit each.
fn logging(callback: &str, result: u32) -> Script {
    logging_also(Script::new(), callback, result)
}

fn logging_also(mut script: Script, callback: &str, result: u32) -> Script {
    // Never called: exists only for its import.
    let _ = script.invocation("proxy_log", &[0, 0, 0]);
    let signature = crate::abi::CALLBACKS.iter().find(|it| it.name == callback).unwrap().signature;
    let digits: String = (0..signature.parameters.len())
        .map(|index| {
            format!(
                "(i32.store8 (i32.const {}) (i32.add (i32.const 48) (local.get {index})))",
                0x200 + index
            )
        })
        .collect();
    let length = signature.parameters.len();
    script.exporting(
        callback,
        &format!(
            "{digits} (drop (call $proxy_log (i32.const 2) (i32.const 0x200) (i32.const {length})))
             (i32.const {result})"
        ),
    )
}

#[test]
fn each_callback_gets_its_arguments_and_its_answer_counts() {
    type Make = fn(u32) -> Call;
    let calls: [(&str, Make, &str); 9] = [
        ("proxy_on_new_connection", Call::NewConnection, "2"),
        (
            "proxy_on_downstream_data",
            |context| Call::DownstreamData { context, is_last: true },
            "231",
        ),
        ("proxy_on_upstream_data", |context| Call::UpstreamData { context, is_last: false }, "250"),
        (
            "proxy_on_request_headers",
            |context| Call::RequestHeaders { context, is_last: true },
            "211",
        ),
        ("proxy_on_request_body", |context| Call::RequestBody { context, is_last: false }, "230"),
        ("proxy_on_request_trailers", Call::RequestTrailers, "22"),
        (
            "proxy_on_response_headers",
            |context| Call::ResponseHeaders { context, is_last: false },
            "230",
        ),
        ("proxy_on_response_body", |context| Call::ResponseBody { context, is_last: true }, "251"),
        ("proxy_on_response_trailers", Call::ResponseTrailers, "24"),
    ];
    for (name, call, arguments) in calls {
        for (result, action) in [(0, Action::Continue), (1, Action::Pause), (7, Action::Pause)] {
            let mut tried = logging(name, result).start();
            let is_tcp = name.contains("stream_data") || name.contains("connection");
            let mut stream = Stream::new(if is_tcp { Protocol::Tcp } else { Protocol::Http });
            stream.downstream.headers = fields(&[("a", "1")]);
            stream.downstream.trailers = fields(&[("a", "1"), ("b", "2")]);
            stream.downstream.body = vec![0; 3];
            stream.upstream.headers = fields(&[("a", "1"), ("b", "2"), ("c", "3")]);
            stream.upstream.trailers = fields(&[("a", ""), ("b", ""), ("c", ""), ("d", "")]);
            stream.upstream.body = vec![0; 5];
            let context = tried.create(stream);
            assert_eq!(tried.action(call(context)), action, "{name}");
            assert_eq!(tried.log, [arguments], "{name}");
            let stream = tried.stream(context);
            let is_paused = stream.downstream.is_paused() || stream.upstream.is_paused();
            assert_eq!(is_paused, action == Action::Pause, "{name}");
        }
    }
}

#[test]
fn callbacks_of_the_root_context_get_their_arguments() {
    let calls: [(&str, Call, &str); 5] = [
        ("proxy_on_tick", Call::Tick, "1"),
        ("proxy_on_queue_ready", Call::QueueReady(4), "14"),
        (
            "proxy_on_foreign_function",
            Call::ForeignFunction { function: 6, arguments: vec![0; 2] },
            "162",
        ),
        ("proxy_on_downstream_connection_close", Call::DownstreamClose(2, PeerType::Remote), "22"),
        ("proxy_on_upstream_connection_close", Call::UpstreamClose(2, PeerType::Local), "21"),
    ];
    for (name, call, arguments) in calls {
        let mut tried = logging(name, 0).start();
        tried.create(http(&[]));
        assert_eq!(tried.call(call), Ok(Answer::Nothing), "{name}");
        assert_eq!(tried.log, [arguments], "{name}");
    }
}

#[test]
fn a_missing_callback_has_its_default() {
    let mut tried = Script::new().start();
    let context = tried.create(http(&[]));
    let shown = [
        Call::NewConnection(context),
        Call::DownstreamData { context, is_last: true },
        Call::UpstreamData { context, is_last: true },
        Call::RequestHeaders { context, is_last: true },
        Call::RequestBody { context, is_last: true },
        Call::RequestTrailers(context),
        Call::ResponseHeaders { context, is_last: true },
        Call::ResponseBody { context, is_last: true },
        Call::ResponseTrailers(context),
    ];
    for call in shown {
        assert_eq!(tried.action(call), Action::Continue);
    }
    for call in [Call::Tick, Call::QueueReady(1), Call::UpstreamClose(context, PeerType::Unknown)] {
        assert_eq!(tried.call(call), Ok(Answer::Nothing));
    }
    let ended = tried.call(Call::End(context));
    assert_eq!(ended, Ok(Answer::Ended(Some(Box::new(http(&[]))))));
    assert_eq!(tried.call(Call::End(1)), Ok(Answer::Ended(None)));
}

#[test]
fn the_start_is_in_the_specifications_order() {
    let names = ["_initialize", "main", "_start", "proxy_on_context_create", "proxy_on_vm_start"];
    let script = names.iter().fold(Script::new(), |script, name| logging_also(script, name, 1));
    let script = logging_also(script, "proxy_on_configure", 1);
    // `_initialize` does not log, `_start` is not run in addition to it.
    assert_eq!(script.start().log, ["", "00", "10", "17", "1;"]);
    let script = logging_also(Script::new(), "_start", 0);
    assert_eq!(logging_also(script, "main", 0).start().log, [""]);
}

#[test]
fn a_program_that_exits_with_zero_at_its_start_stays() {
    let start = |code: i64| {
        let script = Script::new();
        let mut script = script.on("proxy_on_vm_start", &[], 1);
        let exit = script.invocation("proc_exit", &[code]);
        let script = script.exporting("_start", &format!("{exit} (i32.const 0)"));
        Tried::start(&wat::parse_str(script.text()).unwrap(), spec())
    };
    assert!(start(0).is_ok());
    let error = start(3).err().unwrap().error;
    assert!(matches!(error, StartError::Trapped("_start", _)), "{error:?}");
}

#[test]
fn a_module_may_refuse_to_start() {
    for name in ["proxy_on_vm_start", "proxy_on_configure"] {
        let script = logging(name, 0);
        let failure = Tried::start(&wat::parse_str(script.text()).unwrap(), spec()).err().unwrap();
        assert_eq!(failure.error, StartError::Refused(name));
        assert_eq!(failure.effects.len(), 1, "what it said is kept");
    }
    let long = VmSpec { vm_configuration: Rc::from(vec![0; (1 << 20) + 1]), ..spec() };
    let error = Tried::start(&wat::parse_str(Script::new().text()).unwrap(), long).err().unwrap();
    assert_eq!(error.error, StartError::Configuration { bytes: (1 << 20) + 1 });
}

#[test]
fn contexts_end_when_the_module_says_so() {
    let names = ["proxy_on_log", "proxy_on_delete"];
    let script = names.iter().fold(Script::new(), |script, name| logging_also(script, name, 0));
    // The end is reported at the second timer: 2 is the effective context then.
    let steps: [(&str, &[i64]); 3] =
        [("proxy_done", &[]), ("proxy_set_effective_context", &[2]), ("proxy_done", &[])];
    let mut tried = script.on("proxy_on_done", &[], 0).on("proxy_on_tick", &steps, 0).start();
    let context = tried.create(http(&[("a", "b")]));
    assert_eq!(tried.call(Call::End(context)), Ok(Answer::Pending));
    assert!(tried.log.is_empty());
    assert_eq!(tried.call(Call::Tick), Ok(Answer::Nothing));
    assert_eq!(tried.answers(3), [1, 0, 0]);
    assert_eq!(tried.effects, [Effect::Done(context)]);
    let ended = tried.call(Call::Finish(context));
    assert!(matches!(ended, Ok(Answer::Ended(Some(_)))), "{ended:?}");
    assert_eq!(tried.log, ["2", "2"]);
    assert_eq!(tried.call(Call::End(context)), Err(CallError::UnknownContext(context)));
    assert_eq!(tried.call(Call::Tick), Ok(Answer::Nothing));
    assert_eq!(tried.answers(3), [1, 2, 1], "the context is unknown now");
    let next = tried.create(http(&[]));
    assert_eq!(next, 3, "numbers are not used again");
}

#[test]
fn faults_of_the_caller_are_errors() {
    let mut tried = Script::new().start();
    let call = Call::RequestHeaders { context: 9, is_last: true };
    assert_eq!(tried.call(call), Err(CallError::UnknownContext(9)));
    let call = Call::UpstreamClose(9, PeerType::Local);
    assert_eq!(tried.call(call), Err(CallError::UnknownContext(9)));
    let response = HttpResponse { call: 9, ..HttpResponse::default() };
    assert_eq!(tried.call(Call::HttpCallResponse(response)), Err(CallError::UnknownHttpCall(9)));
    assert_eq!(tried.call(Call::Finish(9)), Err(CallError::UnknownContext(9)));
}

/// Returns the accessible maps and buffers as bits: 1 for each of the eight maps (by adding to it),
/// then 1 for each of the nine buffers (by its length).
fn open_in(callback: &'static str, call: Call, before: Option<(&'static str, Call)>) -> (u32, u32) {
    let maps: Vec<[i64; 5]> = (0..8).map(|map| [map, 0x300, 1, 0x300, 1]).collect();
    let mut steps: Vec<(&str, &[i64])> =
        maps.iter().map(|it| ("proxy_add_header_map_value", it.as_slice())).collect();
    let buffers: Vec<[i64; 3]> = (0..9).map(|buffer| [buffer, 0x400, 0x404]).collect();
    steps.extend(buffers.iter().map(|it| ("proxy_get_buffer_status", it.as_slice())));
    let mut script = Script::new().data(0x300, b"x").on(callback, &steps, 0);
    if let Some((before, _)) = &before {
        // Pauses the stream.
        script = script.on(before, &[], 1);
    }
    let mut tried = script.start();
    let name = before.as_ref().map_or(callback, |(name, _)| *name);
    let is_tcp = name.contains("stream_data") || name.contains("connection");
    tried.create(Stream::new(if is_tcp { Protocol::Tcp } else { Protocol::Http }));
    if let Some((_, before)) = before {
        tried.call(before).unwrap();
    }
    tried.call(call).unwrap();
    let answers = tried.answers(17);
    let bits = |answers: &[u32]| {
        answers.iter().enumerate().map(|(bit, answer)| u32::from(*answer == 0) << bit).sum()
    };
    (bits(&answers[..8]), bits(&answers[8..]))
}

#[test]
fn maps_and_buffers_are_open_where_the_specification_says() {
    let context = 2;
    let headers = Call::RequestHeaders { context, is_last: false };
    assert_eq!(open_in("proxy_on_request_headers", headers, None), (1, 0));
    let body = |is_last| Call::RequestBody { context, is_last };
    assert_eq!(open_in("proxy_on_request_body", body(false), None), (0, 1));
    assert_eq!(open_in("proxy_on_request_body", body(true), None), (2, 1));
    let trailers = Call::RequestTrailers(context);
    assert_eq!(open_in("proxy_on_request_trailers", trailers, None), (2, 0));
    let headers = Call::ResponseHeaders { context, is_last: false };
    assert_eq!(open_in("proxy_on_response_headers", headers, None), (4, 0));
    let body = |is_last| Call::ResponseBody { context, is_last };
    assert_eq!(open_in("proxy_on_response_body", body(false), None), (0, 2));
    assert_eq!(open_in("proxy_on_response_body", body(true), None), (8, 2));
    let trailers = Call::ResponseTrailers(context);
    assert_eq!(open_in("proxy_on_response_trailers", trailers, None), (8, 0));
    let data = Call::DownstreamData { context, is_last: true };
    assert_eq!(open_in("proxy_on_downstream_data", data, None), (0, 4));
    let data = Call::UpstreamData { context, is_last: true };
    assert_eq!(open_in("proxy_on_upstream_data", data, None), (0, 8));
    assert_eq!(open_in("proxy_on_log", Call::Finish(context), None), (0, 0), "for reading only");
    assert_eq!(open_in("proxy_on_tick", Call::Tick, None), (0, 0));
    let call = Call::ForeignFunction { function: 1, arguments: Vec::new() };
    assert_eq!(open_in("proxy_on_foreign_function", call, None), (0, 1 << 8));

    let before = || ("proxy_on_request_headers", Call::RequestHeaders { context, is_last: false });
    let body = Call::RequestBody { context, is_last: false };
    assert_eq!(open_in("proxy_on_request_body", body, Some(before())), (1, 1), "it is paused");
    let headers = Call::ResponseHeaders { context, is_last: false };
    let both = open_in("proxy_on_response_headers", headers, Some(before()));
    assert_eq!(both, (1 | 4, 0));
    assert_eq!(open_in("proxy_on_tick", Call::Tick, Some(before())), (0, 0), "of no stream");
}

#[test]
fn configurations_are_open_while_they_are_given() {
    let steps: [(&str, &[i64]); 2] = [
        ("proxy_get_buffer_bytes", &[6, 0, 99, 0x400, 0x404]),
        ("proxy_get_buffer_bytes", &[7, 0, 99, 0x408, 0x40c]),
    ];
    let script = Script::new().on("proxy_on_vm_start", &steps, 1);
    let tried = script.on("proxy_on_configure", &steps, 1).start();
    assert_eq!(tried.answers(4), [0, 1, 1, 0]);
    assert_eq!(tried.answer_at(0x400, 0x404), b"vm-conf");
    assert_eq!(tried.answer_at(0x408, 0x40c), b"filter-conf");
}

#[test]
fn a_paused_stream_can_be_changed_from_elsewhere_and_goes_on_afterwards() {
    let steps: [(&str, &[i64]); 5] = [
        ("proxy_set_effective_context", &[2]),
        ("proxy_continue_stream", &[0]),
        // The stream is resumed when the call has ended: until then it is accessible.
        ("proxy_add_header_map_value", &[0, 0x300, 1, 0x300, 1]),
        ("proxy_get_buffer_status", &[0, 0x400, 0x404]),
        ("proxy_close_stream", &[1]),
    ];
    let script = Script::new().data(0x300, b"x").on("proxy_on_request_headers", &[], 1);
    let mut tried = script.on("proxy_on_tick", &steps, 0).start();
    let context = tried.create(http(&[]));
    tried.action(Call::RequestHeaders { context, is_last: true });
    tried.call(Call::Tick).unwrap();
    assert_eq!(tried.answers(5), [0, 0, 0, 1, 0]);
    let expected = [
        Effect::Continue { context, stream: StreamType::HttpRequest },
        Effect::Close { context, stream: StreamType::HttpResponse },
    ];
    assert_eq!(tried.effects, expected);
    assert_eq!(tried.stream(context).downstream.headers, fields(&[("x", "x")]));
    assert!(!tried.stream(context).downstream.is_paused());
    tried.call(Call::Tick).unwrap();
    assert_eq!(tried.answers(3), [0, 0, 2], "it has gone on");
}

#[test]
fn the_response_to_an_http_call_is_passed_once() {
    let call = [0x300, 9, 0x320, 64, 0, 0, 0, 0, 500, 0x400];
    let steps: [(&str, &[i64]); 4] = [
        ("proxy_get_status", &[0x410, 0x414, 0x418]),
        ("proxy_get_header_map_value", &[6, 0x31c, 1, 0x420, 0x424]),
        ("proxy_get_header_map_pairs", &[7, 0x428, 0x42c]),
        ("proxy_get_buffer_bytes", &[4, 1, 9, 0x430, 0x434]),
    ];
    let headers = fields(&[(":method", "GET"), (":path", "/"), (":authority", "x")]).serialise();
    let script = Script::new()
        .data(0x300, b"authority")
        .data(0x31c, b"k")
        .data(0x320, &headers)
        .on(
            "proxy_on_tick",
            &[("proxy_http_call", &{
                let mut call = call;
                call[3] = headers.len() as i64;
                call
            })],
            0,
        )
        .on("proxy_on_http_call_response", &steps, 0)
        .on("proxy_on_queue_ready", &steps, 0);
    let mut tried = script.start();
    tried.call(Call::Tick).unwrap();
    assert_eq!((tried.answers(1), tried.word(0x400)), (vec![0], 1));
    let response = HttpResponse {
        call: 1,
        headers: fields(&[(":status", "418"), ("K", "v")]),
        body: b"body".to_vec(),
        trailers: fields(&[("t", "u")]),
    };
    tried.call(Call::HttpCallResponse(response.clone())).unwrap();
    assert_eq!(tried.answers(5)[1..], [0; 4]);
    assert_eq!(tried.word(0x410), 418);
    assert_eq!(tried.answer_at(0x420, 0x424), b"v");
    assert_eq!(tried.answer_at(0x428, 0x42c), fields(&[("t", "u")]).serialise());
    assert_eq!(tried.answer_at(0x430, 0x434), b"ody");
    let again = tried.call(Call::HttpCallResponse(response));
    assert_eq!(again, Err(CallError::UnknownHttpCall(1)));
    tried.call(Call::QueueReady(1)).unwrap();
    assert_eq!(tried.answers(9)[5..], [0, 2, 0, 1], "elsewhere there is none");
    assert_eq!((tried.word(0x410), tried.answer_at(0x428, 0x42c)), (0, vec![]));
}

#[test]
fn log_lines_below_the_level_are_dropped() {
    let steps: [(&str, &[i64]); 3] = [
        ("proxy_log", &[1, 0x300, 1]),
        ("proxy_log", &[4, 0x300, 1]),
        ("proxy_get_log_level", &[0x400]),
    ];
    let script = Script::new().data(0x300, b"x").on("proxy_on_tick", &steps, 0);
    let mut tried = script.start_with(VmSpec { log_level: LogLevel::Warn, ..spec() });
    let outcome = tried.vm.take().unwrap().call(Call::Tick, NOW).finish();
    let expected = Effect::Log { level: LogLevel::Error, text: "x".to_owned() };
    assert_eq!((outcome.1.effects, outcome.1.log_lines_dropped), (vec![expected], 0));
    tried.vm = Some(outcome.0);
    assert_eq!((tried.answers(3), tried.word(0x400)), (vec![0; 3], 3));
}
