//! Linker: registers every function of the ABI by its name.

use crate::abi::{ENV, WASI, WASI_REFUSED};
use crate::host::effects::{HttpCall, Response};
use crate::host::memory::{number, with};
use crate::host::{Host, data, effects, maps, wasi};
use wasmtime::{Caller, FuncType, Linker, Val, ValType};

/// Registers host functions that return at once: with memory and host, then the parameters.
macro_rules! at_once {
    ($linker:ident: $($name:literal($($argument:ident: $ty:ty),*) => $act:expr;)*) => {$(
        $linker.func_wrap(
            ENV,
            concat!("proxy_", $name),
            |mut caller: Caller<'_, Host>, $($argument: $ty),*| -> u32 {
                number(with(&mut caller, |memory, host| $act(memory, host)))
            },
        )?;
    )*};
}

/// Registers host functions that first allocate memory in the module.
macro_rules! with_allocation {
    ($linker:ident: $($name:literal($($argument:ident),*) => $act:expr;)*) => {$(
        $linker.func_wrap_async(
            ENV,
            concat!("proxy_", $name),
            |mut caller: Caller<'_, Host>, ($($argument,)*): ($(with_allocation!(@word $argument),)*)| {
                Box::new(async move { $act(&mut caller).await })
            },
        )?;
    )*};
    (@word $argument:ident) => { u32 };
}

/// Registers functions of WASI.
macro_rules! of_wasi {
    ($linker:ident: $($name:ident($($argument:ident: $ty:ty),*);)*) => {$(
        $linker.func_wrap(
            WASI,
            stringify!($name),
            |mut caller: Caller<'_, Host>, $($argument: $ty),*| -> u32 {
                wasi::number(with(&mut caller, |memory, host| {
                    wasi::$name(memory, host, $($argument),*)
                }))
            },
        )?;
    )*};
}

/// Links all functions: a module may import any of them.
pub(crate) fn link(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    link_effects(linker)?;
    link_maps(linker)?;
    link_data(linker)?;
    link_grpc(linker)?;
    link_wasi(linker)?;
    // The store's limiter handles memory growth.
    linker.func_wrap(ENV, "emscripten_notify_memory_growth", |_: u32| {})?;
    Ok(())
}

fn link_effects(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    use crate::abi::StreamType::{HttpRequest, HttpResponse};
    at_once!(linker:
        "done"() => effects::done;
        "set_effective_context"(context: u32) => |m, h| effects::set_effective_context(m, h, context);
        "log"(level: u32, data: u32, size: u32) => |m, h| effects::log(m, h, level, data, size);
        "get_log_level"(level_at: u32) => |m, h| effects::log_level(m, h, level_at);
        "set_tick_period_milliseconds"(period: u32) => |m, h| effects::tick_period(m, h, period);
        "continue_stream"(stream: u32) => |m, h| effects::continue_stream(m, h, stream);
        "continue_request"() => |m, h| effects::continue_stream(m, h, HttpRequest.number());
        "continue_response"() => |m, h| effects::continue_stream(m, h, HttpResponse.number());
        "close_stream"(stream: u32) => |m, h| effects::close_stream(m, h, stream);
        "send_local_response"(
            status: u32, details: u32, details_size: u32, body: u32, body_size: u32,
            headers: u32, headers_size: u32, grpc_status: u32
        ) => |m, h| effects::respond(m, h, Response {
            status,
            details: (details, details_size),
            body: (body, body_size),
            headers: (headers, headers_size),
            grpc_status,
        });
        "http_call"(
            upstream: u32, upstream_size: u32, headers: u32, headers_size: u32, body: u32,
            body_size: u32, trailers: u32, trailers_size: u32, timeout_ms: u32, call_at: u32
        ) => |m, h| effects::http_call(m, h, HttpCall {
            upstream: (upstream, upstream_size),
            headers: (headers, headers_size),
            body: (body, body_size),
            trailers: (trailers, trailers_size),
            timeout_ms,
            call_at,
        });
        // Routes are chosen after the filters: no route is cached.
        "clear_route_cache"() => |_, _| Ok(());
    );
    with_allocation!(linker:
        "get_status"(code_at, data_at, size_at) =>
            async |c| effects::status(c, code_at, data_at, size_at).await;
    );
    Ok(())
}

fn link_maps(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    at_once!(linker:
        "get_header_map_size"(map: u32, size_at: u32) => |m, h| maps::size(m, h, map, size_at);
        "set_header_map_pairs"(map: u32, data: u32, size: u32) =>
            |m, h| maps::set_pairs(m, h, map, data, size);
        "add_header_map_value"(map: u32, key: u32, key_size: u32, value: u32, value_size: u32) =>
            |m, h| maps::add(m, h, map, (key, key_size), (value, value_size));
        "replace_header_map_value"(map: u32, key: u32, key_size: u32, value: u32, value_size: u32) =>
            |m, h| maps::replace(m, h, map, (key, key_size), (value, value_size));
        "remove_header_map_value"(map: u32, key: u32, key_size: u32) =>
            |m, h| maps::remove(m, h, map, key, key_size);
        "set_buffer_bytes"(buffer: u32, start: u32, size: u32, data: u32, data_size: u32) =>
            |m, h| maps::set_buffer(m, h, buffer, (start, size), (data, data_size));
        "get_buffer_status"(buffer: u32, size_at: u32, unused_at: u32) =>
            |m, h| maps::buffer_status(m, h, buffer, size_at, unused_at);
    );
    with_allocation!(linker:
        "get_header_map_pairs"(map, data_at, size_at) =>
            async |c| maps::pairs(c, map, data_at, size_at).await;
        "get_header_map_value"(map, key, key_size, data_at, size_at) =>
            async |c| maps::value(c, map, key, key_size, data_at, size_at).await;
        "get_buffer_bytes"(buffer, start, size_max, data_at, size_at) =>
            async |c| maps::buffer(c, buffer, start, size_max, data_at, size_at).await;
    );
    Ok(())
}

fn link_data(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    at_once!(linker:
        "get_current_time_nanoseconds"(time_at: u32) => |m, h| data::time(m, h, time_at);
        "set_shared_data"(key: u32, key_size: u32, value: u32, value_size: u32, cas: u32) =>
            |m, h| data::set_shared(m, h, (key, key_size), (value, value_size), cas);
        "register_shared_queue"(name: u32, name_size: u32, id_at: u32) =>
            |m, h| data::register_queue(m, h, name, name_size, id_at);
        "resolve_shared_queue"(vm: u32, vm_size: u32, name: u32, name_size: u32, id_at: u32) =>
            |m, h| data::resolve_queue(m, h, (vm, vm_size), (name, name_size), id_at);
        "enqueue_shared_queue"(queue: u32, data: u32, size: u32) =>
            |m, h| data::enqueue(m, h, queue, data, size);
        "define_metric"(kind: u32, name: u32, name_size: u32, id_at: u32) =>
            |m, h| data::define_metric(m, h, kind, (name, name_size), id_at);
        "record_metric"(metric: u32, value: u64) => |m, h| data::record_metric(m, h, metric, value);
        "increment_metric"(metric: u32, delta: i64) =>
            |m, h| data::increment_metric(m, h, metric, delta);
        "get_metric"(metric: u32, value_at: u32) => |m, h| data::metric(m, h, metric, value_at);
        "set_property"(path: u32, path_size: u32, value: u32, value_size: u32) =>
            |m, h| data::set_property(m, h, (path, path_size), (value, value_size));
    );
    with_allocation!(linker:
        "get_shared_data"(key, key_size, data_at, size_at, cas_at) =>
            async |c| data::shared(c, (key, key_size), data_at, size_at, cas_at).await;
        "dequeue_shared_queue"(queue, data_at, size_at) =>
            async |c| data::dequeue(c, queue, data_at, size_at).await;
        "get_property"(path, path_size, data_at, size_at) =>
            async |c| data::property(c, path, path_size, data_at, size_at).await;
        "call_foreign_function"(name, name_size, arguments, arguments_size, data_at, size_at) =>
            async |c| data::call_foreign(
                c, (name, name_size), (arguments, arguments_size), data_at, size_at,
            ).await;
    );
    Ok(())
}

fn link_grpc(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    use crate::abi::Status::NotFound;
    at_once!(linker:
        "grpc_call"(
            a: u32, a_size: u32, b: u32, b_size: u32, c: u32, c_size: u32, d: u32, d_size: u32,
            e: u32, e_size: u32, _timeout_ms: u32, id_at: u32
        ) => |m, _| effects::grpc(
            m, &[(a, a_size), (b, b_size), (c, c_size), (d, d_size), (e, e_size)], id_at,
        );
        "grpc_stream"(
            a: u32, a_size: u32, b: u32, b_size: u32, c: u32, c_size: u32, d: u32, d_size: u32,
            id_at: u32
        ) => |m, _| effects::grpc(m, &[(a, a_size), (b, b_size), (c, c_size), (d, d_size)], id_at);
        "grpc_send"(_stream: u32, data: u32, size: u32, _is_last: u32) =>
            |m, _| effects::grpc_send(m, data, size);
        "grpc_cancel"(_id: u32) => |_, _| Err(NotFound);
        "grpc_close"(_id: u32) => |_, _| Err(NotFound);
    );
    Ok(())
}

fn link_wasi(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    of_wasi!(linker:
        fd_write(fd: u32, iovecs: u32, count: u32, written_at: u32);
        fd_fdstat_get(fd: u32, stat_at: u32);
        clock_time_get(clock: u32, precision: u64, time_at: u32);
        clock_res_get(clock: u32, resolution_at: u32);
        random_get(data: u32, size: u32);
        environ_sizes_get(count_at: u32, size_at: u32);
        environ_get(array_at: u32, buffer_at: u32);
        args_sizes_get(count_at: u32, size_at: u32);
        args_get(array_at: u32, buffer_at: u32);
        sched_yield();
        poll_oneoff(subscriptions: u32, events: u32, count: u32, count_at: u32);
    );
    linker.func_wrap(WASI, "proc_exit", wasi::proc_exit)?;
    for (function, errno) in WASI_REFUSED {
        let parameters = function.signature.parameters.chars().map(|letter| match letter {
            'i' => ValType::I32,
            _ => ValType::I64,
        });
        let ty = FuncType::new(linker.engine(), parameters, [ValType::I32]);
        linker.func_new(WASI, function.name, ty, move |_, _, results| {
            results[0] = Val::I32(errno.number() as i32);
            Ok(())
        })?;
    }
    Ok(())
}
