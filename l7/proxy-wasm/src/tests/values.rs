//! Tests of the values that host functions read and write, by kind.

use super::functions::{MAP, answers, map_size, run_with};
use super::{
    BAD_ARGUMENT, CAS_MISMATCH, EMPTY, FAILED, NO_MEMORY_THERE, NOT_FOUND, NOW, OK,
    SERIALIZATION_FAILED, Script, Step, fields, spec,
};
use crate::abi::{LogLevel, StreamType};
use crate::{Call, Effect, HttpRequest, LocalResponse, Protocol, Stream, VmSpec, limits};

#[test]
fn header_maps_are_read_and_edited() {
    let mut tried = answers(&[
        ("proxy_get_header_map_value", &[0, 0x300, 3, 0x400, 0x404], OK),
        ("proxy_get_header_map_size", &[0, 0x408], OK),
        ("proxy_get_header_map_value", &[0, 0x310, 5, 0x410, 0x414], NOT_FOUND),
        ("proxy_add_header_map_value", &[0, 0x310, 5, 0x310, 0], OK),
        ("proxy_get_header_map_value", &[0, 0x310, 5, 0x410, 0x414], OK),
        ("proxy_get_header_map_pairs", &[0, 0x418, 0x41c], OK),
        ("proxy_replace_header_map_value", &[0, 0x300, 3, 0x310, 5], OK),
        ("proxy_remove_header_map_value", &[0, 0x310, 5], OK),
        ("proxy_remove_header_map_value", &[0, 0x310, 5], OK),
        // Not accessible here.
        ("proxy_get_header_map_size", &[2, 0x420], BAD_ARGUMENT),
        ("proxy_get_header_map_value", &[2, 0x300, 3, 0x420, 0x424], BAD_ARGUMENT),
        ("proxy_get_header_map_pairs", &[2, 0x420, 0x424], OK),
        ("proxy_set_header_map_pairs", &[2, MAP, map_size()], BAD_ARGUMENT),
        // No name, no map, bytes after the map.
        ("proxy_add_header_map_value", &[0, 0x300, 0, 0x310, 5], BAD_ARGUMENT),
        ("proxy_set_header_map_pairs", &[0, 0x310, 5], BAD_ARGUMENT),
        ("proxy_set_header_map_pairs", &[0, MAP, map_size() + 1], BAD_ARGUMENT),
        ("proxy_set_header_map_pairs", &[0, MAP, map_size() - 1], BAD_ARGUMENT),
    ]);
    assert_eq!(tried.answer_at(0x400, 0x404), b"1", "the first value");
    let before = fields(&[("key", "1"), ("KEY", "2"), (":path", "/p?q=1")]);
    assert_eq!(tried.word(0x408) as usize, before.serialise().len());
    assert_eq!((tried.word(0x410), tried.word(0x414)), (0, 0), "an empty value has no place");
    let added = fields(&[("key", "1"), ("KEY", "2"), (":path", "/p?q=1"), ("value", "")]);
    assert_eq!(tried.answer_at(0x418, 0x41c), added.serialise());
    assert_eq!((tried.word(0x420), tried.word(0x424)), (0, 0));
    let expected = fields(&[("key", "value"), (":path", "/p?q=1")]);
    assert_eq!(tried.stream(2).downstream.headers, expected);
    let mut tried = answers(&[("proxy_set_header_map_pairs", &[0, 0, 0], OK)]);
    assert!(tried.stream(2).downstream.headers.is_empty());
}

#[test]
fn buffers_are_read_and_edited() {
    let steps: [(&str, &[i64], u32); 11] = [
        ("proxy_get_buffer_status", &[0, 0x400, 0x404], OK),
        ("proxy_get_buffer_bytes", &[0, 1, 2, 0x408, 0x40c], OK),
        ("proxy_get_buffer_bytes", &[0, 1, 0xffff_ffff, 0x410, 0x414], OK),
        ("proxy_get_buffer_bytes", &[0, 4, 1, 0x418, 0x41c], OK),
        ("proxy_get_buffer_bytes", &[0, 5, 1, 0x418, 0x41c], BAD_ARGUMENT),
        ("proxy_set_buffer_bytes", &[0, 0, 0, 0x300, 3], OK),
        ("proxy_set_buffer_bytes", &[0, 0xffff_ffff, 0, 0x300, 3], OK),
        ("proxy_set_buffer_bytes", &[0, 3, 1, 0x310, 5], OK),
        ("proxy_set_buffer_bytes", &[0, 0, 0, 0xffff, 2], NO_MEMORY_THERE),
        ("proxy_set_buffer_bytes", &[1, 0, 0, 0x300, 3], NOT_FOUND),
        ("proxy_get_buffer_status", &[5, 0x400, 0x404], NOT_FOUND),
    ];
    let plain: Vec<Step<'_>> = steps.iter().map(|(name, it, _)| (*name, *it)).collect();
    let script = Script::new().data(0x300, b"key").data(0x310, b"value");
    let mut tried = script.on("proxy_on_request_body", &plain, 0).start();
    let context = tried.create(Stream::new(Protocol::Http));
    tried.stream(context).downstream.body = b"abcd".to_vec();
    tried.call(Call::RequestBody { context, is_last: false }).unwrap();
    let expected: Vec<u32> = steps.iter().map(|(.., status)| *status).collect();
    assert_eq!(tried.answers(steps.len()), expected);
    assert_eq!((tried.word(0x400), tried.word(0x404)), (4, 0));
    assert_eq!(tried.answer_at(0x408, 0x40c), b"bc");
    assert_eq!(tried.answer_at(0x410, 0x414), b"bcd");
    assert_eq!(tried.answer_at(0x418, 0x41c), b"");
    assert_eq!(tried.stream(context).downstream.body, b"keyvaluebcdkey");
}

#[test]
fn a_configuration_cannot_be_written() {
    let steps: [Step<'_>; 1] = [("proxy_set_buffer_bytes", &[7, 0, 0, 0x300, 3])];
    let tried = Script::new().on("proxy_on_configure", &steps, 1).start();
    assert_eq!(tried.answers(1), [BAD_ARGUMENT]);
}

#[test]
fn calls_and_responses_are_effects() {
    let size = map_size();
    let tried = answers(&[
        ("proxy_http_call", &[0x380, 9, MAP, size, 0x310, 5, 0, 0, 7, 0x400], OK),
        ("proxy_http_call", &[0x380, 9, MAP, size, 0x310, 5, 0, 0, 7, 0x404], OK),
        // An upstream that was not granted; no headers; no map.
        ("proxy_http_call", &[0x300, 3, MAP, size, 0, 0, 0, 0, 7, 0x408], BAD_ARGUMENT),
        ("proxy_http_call", &[0x380, 9, 0, 0, 0, 0, 0, 0, 7, 0x408], BAD_ARGUMENT),
        ("proxy_http_call", &[0x380, 9, 0x310, 5, 0, 0, 0, 0, 7, 0x408], BAD_ARGUMENT),
        ("proxy_send_local_response", &[99, 0, 0, 0, 0, 0, 0, -1], BAD_ARGUMENT),
        ("proxy_send_local_response", &[600, 0, 0, 0, 0, 0, 0, -1], BAD_ARGUMENT),
        ("proxy_send_local_response", &[503, 0, 0, 0, 0, 0x310, 5, -1], BAD_ARGUMENT),
        ("proxy_send_local_response", &[503, 0x300, 3, 0x310, 5, MAP, size, 14], OK),
        ("proxy_send_local_response", &[200, 0, 0, 0, 0, 0, 0, -1], OK),
        ("proxy_set_tick_period_milliseconds", &[250], OK),
        ("proxy_set_effective_context", &[1], OK),
        ("proxy_send_local_response", &[200, 0, 0, 0, 0, 0, 0, -1], BAD_ARGUMENT),
        ("proxy_continue_stream", &[0], BAD_ARGUMENT),
        ("proxy_close_stream", &[0], BAD_ARGUMENT),
    ]);
    let request = HttpRequest {
        upstream: "authority".to_owned(),
        headers: fields(&[(":method", "GET"), (":path", "/"), (":authority", "x")]),
        body: b"value".to_vec(),
        trailers: fields(&[]),
        timeout_ms: 7,
    };
    let response = LocalResponse {
        status: 503,
        details: b"key".to_vec(),
        headers: request.headers.clone(),
        body: b"value".to_vec(),
        grpc_status: Some(14),
    };
    let expected = [
        Effect::HttpCall { context: 2, call: 1, request: Box::new(request.clone()) },
        Effect::HttpCall { context: 2, call: 2, request: Box::new(request) },
        Effect::Respond { context: 2, response: Box::new(response) },
        Effect::TickPeriod(250),
    ];
    assert_eq!(tried.effects, expected);
    assert_eq!((tried.word(0x400), tried.word(0x404)), (1, 2));
}

#[test]
fn tcp_contexts_have_tcp_streams() {
    let steps: [Step<'_>; 5] = [
        ("proxy_continue_stream", &[2]),
        ("proxy_close_stream", &[3]),
        ("proxy_continue_stream", &[0]),
        ("proxy_send_local_response", &[200, 0, 0, 0, 0, 0, 0, -1]),
        ("proxy_get_header_map_pairs", &[0, 0x400, 0x404]),
    ];
    let mut tried = Script::new().on("proxy_on_new_connection", &steps, 0).start();
    let context = tried.create(Stream::new(Protocol::Tcp));
    tried.call(Call::NewConnection(context)).unwrap();
    assert_eq!(tried.answers(5), [OK, OK, BAD_ARGUMENT, BAD_ARGUMENT, OK]);
    let expected = [
        Effect::Continue { context, stream: StreamType::Downstream },
        Effect::Close { context, stream: StreamType::Upstream },
    ];
    assert_eq!(tried.effects, expected);
}

#[test]
fn data_is_shared_and_compared() {
    let tried = answers(&[
        ("proxy_get_shared_data", &[0x300, 3, 0x400, 0x404, 0x408], NOT_FOUND),
        ("proxy_set_shared_data", &[0x300, 3, 0x310, 5, 9], CAS_MISMATCH),
        ("proxy_set_shared_data", &[0x300, 3, 0x310, 5, 0], OK),
        ("proxy_get_shared_data", &[0x300, 3, 0x400, 0x404, 0x408], OK),
        ("proxy_set_shared_data", &[0x300, 3, 0x300, 3, 1], OK),
        ("proxy_set_shared_data", &[0x300, 3, 0x310, 5, 1], CAS_MISMATCH),
        ("proxy_get_shared_data", &[0x300, 3, 0x410, 0x414, 0x418], OK),
        ("proxy_set_shared_data", &[0, 300, 0x310, 5, 0], FAILED),
    ]);
    assert_eq!((tried.answer_at(0x400, 0x404), tried.word(0x408)), (b"value".to_vec(), 1));
    assert_eq!((tried.answer_at(0x410, 0x414), tried.word(0x418)), (b"key".to_vec(), 2));
}

#[test]
fn queues_are_found_by_their_vm_and_name() {
    let spec = spec();
    spec.shared.borrow_mut().register("other", b"key", 8).unwrap();
    let steps: [Step<'_>; 8] = [
        ("proxy_register_shared_queue", &[0x300, 3, 0x400]),
        ("proxy_resolve_shared_queue", &[0x3b0, 5, 0x300, 3, 0x404]),
        ("proxy_resolve_shared_queue", &[0x3b0, 5, 0x310, 5, 0x408]),
        ("proxy_enqueue_shared_queue", &[1, 0x310, 5]),
        ("proxy_enqueue_shared_queue", &[2, 0x300, 3]),
        ("proxy_dequeue_shared_queue", &[2, 0x410, 0x414]),
        ("proxy_dequeue_shared_queue", &[2, 0x418, 0x41c]),
        ("proxy_enqueue_shared_queue", &[0, 0x300, 3]),
    ];
    let tried = run_with(Script::new().data(0x3b0, b"other"), &steps, spec);
    assert_eq!(tried.answers(8), [OK, OK, NOT_FOUND, OK, OK, OK, EMPTY, NOT_FOUND]);
    assert_eq!((tried.word(0x400), tried.word(0x404)), (2, 1));
    assert_eq!(tried.answer_at(0x410, 0x414), b"key");
    let ready = [(8, 1), (3, 2)].map(|(vm, queue)| Effect::QueueReady { vm, queue });
    assert_eq!(tried.effects, ready);
}

#[test]
fn metrics_are_counted() {
    let tried = answers(&[
        ("proxy_define_metric", &[0, 0x300, 3, 0x400], OK),
        ("proxy_define_metric", &[1, 0x300, 3, 0x404], BAD_ARGUMENT),
        ("proxy_define_metric", &[1, 0x310, 5, 0x404], OK),
        ("proxy_define_metric", &[2, 0x390, 5, 0x408], OK),
        ("proxy_increment_metric", &[1, 3], OK),
        ("proxy_increment_metric", &[1, -1], BAD_ARGUMENT),
        ("proxy_record_metric", &[2, 9], OK),
        ("proxy_increment_metric", &[2, -2], OK),
        ("proxy_record_metric", &[3, 9], OK),
        ("proxy_increment_metric", &[3, 1], BAD_ARGUMENT),
        ("proxy_get_metric", &[1, 0x410], OK),
        ("proxy_get_metric", &[2, 0x418], OK),
        ("proxy_get_metric", &[3, 0x420], BAD_ARGUMENT),
    ]);
    assert_eq!((tried.word(0x410), tried.word(0x418)), (3, 7));
}

#[test]
fn properties_are_given_or_set() {
    let given = "plugin_name\0plugin_root_id\0request\0path\0request\0query\0\
                 request\0headers\0key\0response\0code\0source\0port\0";
    let at = 0x500;
    let path = |text: &str| [at + given.find(text).unwrap() as i64, text.len() as i64];
    let get = |text: &str, index: i64| {
        let [data, size] = path(text);
        vec![data, size, 0x800 + 8 * index, 0x804 + 8 * index]
    };
    let asked = [
        get("plugin_name", 0),
        get("plugin_root_id", 1),
        get("request\0path", 2),
        get("request\0query", 3),
        // A zero byte at the end is part of it.
        get("request\0headers\0key\0", 4),
        get("response\0code", 5),
        get("source\0port", 6),
        get("request", 7),
    ];
    let [name, name_size] = path("plugin_name");
    let set_name = [name, name_size, 0x310, 5];
    let mut steps: Vec<Step<'_>> = vec![
        ("proxy_set_property", &[0x300, 3, 0x310, 5]),
        ("proxy_set_property", &set_name),
        ("proxy_get_property", &[0x300, 3, 0x400, 0x404]),
        ("proxy_get_property", &[0, 0x200, 0x400, 0x404]),
        // Each context has its own properties.
        ("proxy_set_effective_context", &[1]),
        ("proxy_get_property", &[0x300, 3, 0x408, 0x40c]),
        ("proxy_set_property", &[0x300, 3, 0x300, 3]),
        ("proxy_get_property", &[0x300, 3, 0x408, 0x40c]),
        ("proxy_set_effective_context", &[2]),
    ];
    steps.extend(asked.iter().map(|it| ("proxy_get_property", it.as_slice())));
    let script = Script::new().data(at as u32, given.as_bytes());
    let tried = run_with(script, &steps, spec());
    let expected = [OK, OK, OK, NOT_FOUND, OK, NOT_FOUND, OK, OK, OK];
    assert_eq!(tried.answers(9), expected);
    assert_eq!(tried.answers(17)[9..], [OK, OK, OK, OK, OK, NOT_FOUND, NOT_FOUND, NOT_FOUND]);
    assert_eq!(tried.answer_at(0x400, 0x404), b"value");
    assert_eq!(tried.answer_at(0x408, 0x40c), b"key");
    let found = |index: u32| tried.answer_at(0x800 + 8 * index, 0x804 + 8 * index);
    assert_eq!(found(0), b"filter", "what the host says goes first");
    let rest: Vec<_> = (1..5).map(found).collect();
    assert_eq!(rest, [b"root".as_slice(), b"/p?q=1", b"q=1", b"1,2"]);
    let mut stream = Stream::new(Protocol::Http);
    stream.describe_number(&["source", "port"], 258);
    stream.describe_flag(&["connection", "mtls"], true);
    assert_eq!(stream.properties[b"source\0port".as_slice()], [2, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(stream.properties[b"connection\0mtls".as_slice()], [1]);
}

#[test]
fn foreign_functions_are_those_that_are_granted() {
    let tried = answers(&[
        ("proxy_call_foreign_function", &[0x390, 5, 0x310, 5, 0x400, 0x404], OK),
        // The module does not want the results.
        ("proxy_call_foreign_function", &[0x390, 5, 0x310, 5, 0, 0], OK),
        ("proxy_call_foreign_function", &[0x300, 3, 0x310, 5, 0x408, 0x40c], NOT_FOUND),
        ("proxy_call_foreign_function", &[0x3a0, 5, 0, 0, 0x408, 0x40c], SERIALIZATION_FAILED),
    ]);
    assert_eq!(tried.answer_at(0x400, 0x404), b"VALUE");
}

#[test]
fn wasi_has_a_log_the_time_and_random_bytes() {
    let script = Script::new()
        // "key" and "value\n" as one line.
        .data(0x500, &[0x00, 0x03, 0, 0, 3, 0, 0, 0, 0x20, 0x05, 0, 0, 6, 0, 0, 0])
        .data(0x520, b"value\n")
        // A subscription with user data.
        .data(0x540, &[9, 8, 7, 6, 5, 4, 3, 2, 1]);
    let steps: [Step<'_>; 12] = [
        ("fd_write", &[1, 0x500, 2, 0x400]),
        // A line in three pieces, and one without an end.
        ("fd_write", &[2, 0x500, 1, 0x404]),
        ("fd_write", &[2, 0x500, 2, 0x400]),
        ("fd_write", &[2, 0x500, 1, 0x404]),
        ("fd_write", &[2, 0, 0, 0x408]),
        ("clock_time_get", &[0, 0, 0x410]),
        ("clock_time_get", &[1, 0, 0x418]),
        ("random_get", &[0x420, 4]),
        ("environ_sizes_get", &[0x430, 0x434]),
        ("environ_get", &[0x440, 0x448]),
        ("args_sizes_get", &[0x424, 0x428]),
        ("poll_oneoff", &[0x540, 0x600, 1, 0x450]),
    ];
    let tried = run_with(script, &steps, spec());
    assert_eq!(tried.answers(12), [OK; 12]);
    assert_eq!(tried.log, ["keyvalue", "keykeyvalue", "key"]);
    assert_eq!((tried.word(0x400), tried.word(0x404), tried.word(0x408)), (9, 3, 0));
    assert_eq!(tried.memory(0x410, 8), NOW.real_ns.to_le_bytes());
    assert_eq!(tried.memory(0x418, 8), NOW.monotonic_ns.to_le_bytes());
    assert_eq!(tried.memory(0x420, 4), [7; 4]);
    assert_eq!((tried.word(0x430), tried.word(0x434)), (1, 4));
    assert_eq!((tried.word(0x440), tried.memory(0x448, 4)), (0x448, b"A=1\0".to_vec()));
    assert_eq!((tried.word(0x424), tried.word(0x428)), (0, 0));
    assert_eq!(tried.word(0x450), 1);
    assert_eq!(tried.memory(0x600, 12), [9, 8, 7, 6, 5, 4, 3, 2, 0, 0, 1, 0]);
}

#[test]
fn excess_fails() {
    let value = i64::from(u32::try_from(limits::PROPERTY_VALUE_MAX).unwrap());
    answers(&[
        ("proxy_set_property", &[0x300, 3, 0, value], OK),
        ("proxy_set_property", &[0x300, 3, 0, value + 1], FAILED),
        ("proxy_set_property", &[0, 258, 0, 1], NOT_FOUND),
        ("proxy_add_header_map_value", &[0, 0x300, 3, 0, 0xffff], OK),
        ("proxy_add_header_map_value", &[0, 0x300, 3, 0, 0xffff], FAILED),
        ("proxy_set_shared_data", &[0x300, 3, 0, 0xffff, 0], OK),
        ("proxy_define_metric", &[0, 0, 257, 0x400], FAILED),
        ("proxy_register_shared_queue", &[0, 257, 0x400], FAILED),
    ]);
    let quiet = VmSpec { log_level: LogLevel::Critical, ..spec() };
    let tried = run_with(Script::new(), &[("proxy_log", &[4, 0x300, 3])], quiet);
    assert!(tried.log.is_empty());
}
