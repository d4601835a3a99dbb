//! Tests of each host function: its result, and that an invalid pointer is an error and no trap.

use super::{
    BAD_ARGUMENT, FAILED, NO_MEMORY_THERE, NOT_FOUND, OK, Script, Step, Tried, fields, http, spec,
};
use crate::abi::{self, Errno, HOST_FUNCTIONS, WASI_FUNCTIONS};
use crate::{Call, Effect, VmSpec};
use std::collections::BTreeSet;

/// Addresses for results of two words.
const AT: [i64; 2] = [0x400, 0x404];

/// Runs steps in `proxy_on_request_headers`, with a few strings in memory: "key" at 0x300, "value"
/// at 0x310, a map at 0x320, "authority" at 0x380, "upper" at 0x390, "fails" at 0x3a0.
fn run(steps: &[Step<'_>]) -> Tried {
    run_with(Script::new(), steps, spec())
}

fn map() -> Vec<u8> {
    fields(&[(":method", "GET"), (":path", "/"), (":authority", "x")]).serialise()
}

pub(super) fn run_with(script: Script, steps: &[Step<'_>], spec: VmSpec) -> Tried {
    let script = script
        .data(0x300, b"key")
        .data(0x310, b"value")
        .data(0x320, &map())
        .data(0x380, b"authority")
        .data(0x390, b"upper")
        .data(0x3a0, b"fails")
        .on("proxy_on_request_headers", steps, 0);
    let mut tried = script.start_with(spec);
    let context = tried.create(http(&[("key", "1"), ("KEY", "2"), (":path", "/p?q=1")]));
    tried.call(Call::RequestHeaders { context, is_last: false }).unwrap();
    tried
}

/// Runs steps, each with its expected status.
pub(super) fn answers(cases: &[(&str, &[i64], u32)]) -> Tried {
    let steps: Vec<Step<'_>> =
        cases.iter().map(|(name, arguments, _)| (*name, *arguments)).collect();
    let tried = run(&steps);
    for ((name, arguments, status), found) in cases.iter().zip(tried.answers(cases.len())) {
        assert_eq!(found, *status, "{name} {arguments:x?}");
    }
    tried
}

pub(super) const MAP: i64 = 0x320;

pub(super) fn map_size() -> i64 {
    map().len() as i64
}

/// Returns a call of each function that succeeds as far as possible, and the indices of its pointer
/// arguments.
fn good() -> Vec<(&'static str, Vec<i64>, &'static [usize], u32)> {
    let size = map_size();
    let body = vec![0x380, 9, MAP, size, 0x310, 5, MAP, size, 10, 0x400];
    let grpc = vec![0x380, 9, 0x300, 3, 0x300, 3, MAP, size, 0x310, 5, 10, 0x400];
    vec![
        ("proxy_done", vec![], &[], NOT_FOUND),
        ("proxy_set_effective_context", vec![1], &[], OK),
        ("proxy_set_effective_context", vec![2], &[], OK),
        ("proxy_log", vec![2, 0x300, 3], &[1], OK),
        ("proxy_get_log_level", vec![0x400], &[0], OK),
        ("proxy_get_current_time_nanoseconds", vec![0x400], &[0], OK),
        ("proxy_set_tick_period_milliseconds", vec![5], &[], OK),
        ("proxy_set_buffer_bytes", vec![0, 0, 0, 0x310, 5], &[], NOT_FOUND),
        ("proxy_get_buffer_bytes", vec![0, 0, 9, 0x400, 0x404], &[3, 4], NOT_FOUND),
        ("proxy_get_buffer_status", vec![0, 0x400, 0x404], &[], NOT_FOUND),
        ("proxy_get_header_map_size", vec![0, 0x400], &[1], OK),
        ("proxy_get_header_map_pairs", vec![0, 0x400, 0x404], &[1, 2], OK),
        ("proxy_get_header_map_value", vec![0, 0x300, 3, 0x400, 0x404], &[1, 3, 4], OK),
        ("proxy_add_header_map_value", vec![0, 0x300, 3, 0x310, 5], &[1, 3], OK),
        ("proxy_replace_header_map_value", vec![0, 0x300, 3, 0x310, 5], &[1, 3], OK),
        ("proxy_remove_header_map_value", vec![0, 0x300, 3], &[1], OK),
        ("proxy_set_header_map_pairs", vec![0, MAP, size], &[1], OK),
        ("proxy_continue_stream", vec![0], &[], OK),
        ("proxy_continue_request", vec![], &[], OK),
        ("proxy_continue_response", vec![], &[], OK),
        ("proxy_close_stream", vec![1], &[], OK),
        ("proxy_clear_route_cache", vec![], &[], OK),
        ("proxy_get_status", vec![0x400, 0x404, 0x408], &[0, 1, 2], OK),
        ("proxy_send_local_response", vec![403, 0x300, 3, 0x310, 5, MAP, size, -1], &[1, 3, 5], OK),
        ("proxy_http_call", body, &[0, 2, 4, 6, 9], OK),
        ("proxy_grpc_call", grpc.clone(), &[0, 2, 4, 6, 8, 11], FAILED),
        ("proxy_grpc_stream", grpc[..9].to_vec(), &[0, 2, 4, 6], FAILED),
        ("proxy_grpc_send", vec![1, 0x310, 5, 1], &[1], NOT_FOUND),
        ("proxy_grpc_cancel", vec![1], &[], NOT_FOUND),
        ("proxy_grpc_close", vec![1], &[], NOT_FOUND),
        ("proxy_set_shared_data", vec![0x300, 3, 0x310, 5, 0], &[0, 2], OK),
        ("proxy_get_shared_data", vec![0x300, 3, 0x400, 0x404, 0x408], &[0, 2, 3, 4], OK),
        ("proxy_register_shared_queue", vec![0x300, 3, 0x400], &[0, 2], OK),
        ("proxy_resolve_shared_queue", vec![0, 0, 0x300, 3, 0x400], &[2, 4], OK),
        ("proxy_enqueue_shared_queue", vec![1, 0x310, 5], &[1], OK),
        ("proxy_dequeue_shared_queue", vec![1, 0x400, 0x404], &[1, 2], OK),
        ("proxy_define_metric", vec![0, 0x300, 3, 0x400], &[1, 3], OK),
        ("proxy_record_metric", vec![1, 5], &[], OK),
        ("proxy_increment_metric", vec![1, 5], &[], OK),
        ("proxy_get_metric", vec![1, 0x400], &[1], OK),
        ("proxy_set_property", vec![0x300, 3, 0x310, 5], &[0, 2], OK),
        ("proxy_get_property", vec![0x300, 3, 0x400, 0x404], &[0, 2, 3], OK),
        ("proxy_call_foreign_function", vec![0x390, 5, 0x310, 5, 0x400, 0x404], &[0, 2, 4, 5], OK),
        ("fd_write", vec![1, 0x500, 1, 0x400], &[1, 3], OK),
        ("fd_fdstat_get", vec![2, 0x400], &[1], OK),
        ("clock_time_get", vec![0, 0, 0x400], &[2], OK),
        ("clock_res_get", vec![0, 0x400], &[1], OK),
        ("random_get", vec![0x400, 8], &[0], OK),
        ("environ_sizes_get", vec![0x400, 0x404], &[0, 1], OK),
        ("environ_get", vec![0x400, 0x410], &[0, 1], OK),
        ("args_sizes_get", vec![0x400, 0x404], &[0, 1], OK),
        ("args_get", vec![0x400, 0x404], &[], OK),
        ("sched_yield", vec![], &[], OK),
        ("poll_oneoff", vec![0x500, 0x600, 1, 0x400], &[0, 1, 3], OK),
    ]
}

#[test]
fn every_function_returns_its_status() {
    let cases = good();
    let cases: Vec<_> =
        cases.iter().map(|(name, it, _, status)| (*name, it.as_slice(), *status)).collect();
    answers(&cases);
    // These two have tests of their own: they have no result.
    let apart = ["emscripten_notify_memory_growth", "proc_exit"];
    let tested: BTreeSet<&str> = cases.iter().map(|(name, ..)| *name).chain(apart).collect();
    let all = HOST_FUNCTIONS.iter().chain(&WASI_FUNCTIONS).map(|it| it.name);
    assert_eq!(tested, all.collect());
}

#[test]
fn a_pointer_outside_the_memory_is_an_error() {
    let mut cases = Vec::new();
    for (name, arguments, pointers, status) in good() {
        // Valid calls first, so that the data exists.
        cases.push((name, arguments.clone(), status));
        // No argument is so short that the last byte of memory would suffice.
        for wild in [0xffff_ffff_u32, 0x8000_0000, 0x1_0000, 0xffff] {
            for &pointer in pointers {
                let mut arguments = arguments.clone();
                arguments[pointer] = i64::from(wild);
                let is_wasi = abi::host_function(abi::WASI, name).is_some();
                let expected = if is_wasi { Errno::Fault.number() } else { NO_MEMORY_THERE };
                cases.push((name, arguments, expected));
            }
        }
    }
    let cases: Vec<_> =
        cases.iter().map(|(name, it, status)| (*name, it.as_slice(), *status)).collect();
    // Split, as the results have limited space.
    let local = "proxy_send_local_response";
    for part in cases.chunk_by(|one, other| one.0 == other.0) {
        let needs: &[(&str, &[i64], u32)] = &[
            ("proxy_set_shared_data", &[0x300, 3, 0x310, 5, 0], OK),
            ("proxy_register_shared_queue", &[0x300, 3, 0x400], OK),
            ("proxy_enqueue_shared_queue", &[1, 0x310, 5], OK),
            ("proxy_enqueue_shared_queue", &[1, 0x310, 5], OK),
            ("proxy_define_metric", &[0, 0x300, 3, 0x400], OK),
            ("proxy_set_property", &[0x300, 3, 0x310, 5], OK),
        ];
        let tried = answers(&[needs, part].concat());
        let responses = tried.effects.iter().filter(|it| matches!(it, Effect::Respond { .. }));
        assert_eq!(responses.count(), usize::from(part[0].0 == local));
    }
}

#[test]
fn lengths_beyond_the_memory_are_errors() {
    let long = 0x1_0001;
    answers(&[
        ("proxy_log", &[2, 0, long], NO_MEMORY_THERE),
        ("proxy_log", &[2, 0xffff, 2], NO_MEMORY_THERE),
        ("proxy_log", &[2, 0x1_0000, 0], OK),
        ("proxy_log", &[2, 0xffff_ffff, 0xffff_ffff], NO_MEMORY_THERE),
        ("proxy_set_shared_data", &[0x300, 3, 0, long, 0], NO_MEMORY_THERE),
        ("proxy_set_header_map_pairs", &[0, 0, long], NO_MEMORY_THERE),
        ("fd_write", &[1, 0x500, 2_000, 0x400], Errno::Inval.number()),
        ("fd_write", &[1, 0xfff8, 2, 0x400], Errno::Fault.number()),
        ("random_get", &[0x400, 0xffff_ffff], Errno::Inval.number()),
    ]);
}

#[test]
fn unknown_numbers_are_bad_arguments() {
    answers(&[
        ("proxy_set_effective_context", &[0], BAD_ARGUMENT),
        ("proxy_set_effective_context", &[3], BAD_ARGUMENT),
        ("proxy_log", &[6, 0x300, 3], BAD_ARGUMENT),
        ("proxy_set_buffer_bytes", &[9, 0, 0, 0x310, 5], BAD_ARGUMENT),
        ("proxy_get_buffer_bytes", &[9, 0, 9, AT[0], AT[1]], BAD_ARGUMENT),
        ("proxy_get_buffer_status", &[9, AT[0], AT[1]], BAD_ARGUMENT),
        ("proxy_get_header_map_size", &[8, AT[0]], BAD_ARGUMENT),
        ("proxy_get_header_map_pairs", &[8, AT[0], AT[1]], BAD_ARGUMENT),
        ("proxy_set_header_map_pairs", &[8, MAP, 0], BAD_ARGUMENT),
        ("proxy_get_header_map_value", &[8, 0x300, 3, AT[0], AT[1]], BAD_ARGUMENT),
        ("proxy_add_header_map_value", &[8, 0x300, 3, 0x310, 5], BAD_ARGUMENT),
        ("proxy_replace_header_map_value", &[8, 0x300, 3, 0x310, 5], BAD_ARGUMENT),
        ("proxy_remove_header_map_value", &[8, 0x300, 3], BAD_ARGUMENT),
        ("proxy_continue_stream", &[4], BAD_ARGUMENT),
        ("proxy_close_stream", &[4], BAD_ARGUMENT),
        // An HTTP context has no TCP streams.
        ("proxy_continue_stream", &[2], BAD_ARGUMENT),
        ("proxy_close_stream", &[3], BAD_ARGUMENT),
        ("proxy_define_metric", &[3, 0x300, 3, 0x400], BAD_ARGUMENT),
        ("proxy_record_metric", &[7, 1], NOT_FOUND),
        ("proxy_increment_metric", &[7, 1], NOT_FOUND),
        ("proxy_get_metric", &[7, 0x400], NOT_FOUND),
        ("proxy_enqueue_shared_queue", &[7, 0x310, 5], NOT_FOUND),
        ("proxy_dequeue_shared_queue", &[7, AT[0], AT[1]], NOT_FOUND),
        ("fd_write", &[3, 0x500, 1, 0x400], Errno::Badf.number()),
        ("fd_fdstat_get", &[0, 0x400], Errno::Badf.number()),
        ("clock_time_get", &[2, 0, 0x400], Errno::Notsup.number()),
        ("clock_res_get", &[2, 0x400], Errno::Notsup.number()),
        ("poll_oneoff", &[0x500, 0x600, 0, 0x400], Errno::Inval.number()),
        ("fd_read", &[0, 0x500, 1, 0x400], Errno::Badf.number()),
        ("fd_prestat_get", &[3, 0x400], Errno::Badf.number()),
        ("path_open", &[3, 0, 0, 0, 0, 0, 0, 0, 0], Errno::Notsup.number()),
    ]);
}
