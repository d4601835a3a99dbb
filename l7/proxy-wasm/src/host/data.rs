//! Host functions for shared data, properties, foreign functions and the time.

use crate::abi::{MetricType, Status};
use crate::effect::Effect;
use crate::host::Host;
use crate::host::memory::{Answer, WORD, answer, copy, number, put, put_long, range, with};
use crate::limits::{FOREIGN_LENGTH_MAX, PROPERTY_PATH_MAX, PROPERTY_VALUE_MAX};
use crate::stream::path_of;
use wasmtime::Caller;

pub(crate) fn time(memory: &mut [u8], host: &mut Host, time_at: u32) -> Answer {
    put_long(memory, time_at, host.now.real_ns)
}

pub(crate) fn set_shared(
    memory: &mut [u8],
    host: &mut Host,
    (key, key_size): (u32, u32),
    (value, value_size): (u32, u32),
    cas: u32,
) -> Answer {
    let key = copy(memory, key, key_size)?;
    let value = range(memory, value, value_size)?;
    let mut shared = host.spec.shared.borrow_mut();
    shared.set(&host.spec.vm_id, &key, value, cas).map_err(Status::from)
}

pub(crate) async fn shared(
    caller: &mut Caller<'_, Host>,
    (key, key_size): (u32, u32),
    data_at: u32,
    size_at: u32,
    cas_at: u32,
) -> wasmtime::Result<u32> {
    let mut found_cas = 0;
    let given = answer(caller, (data_at, size_at), |memory, host| {
        range(memory, cas_at, WORD)?;
        let key = range(memory, key, key_size)?;
        let shared = host.spec.shared.borrow();
        let (value, cas) = shared.get(&host.spec.vm_id, key).ok_or(Status::NotFound)?;
        found_cas = cas;
        Ok(value.to_vec())
    });
    let given = given.await?;
    Ok(number(given.and_then(|()| with(caller, |memory, _| put(memory, cas_at, found_cas)))))
}

pub(crate) fn register_queue(
    memory: &mut [u8],
    host: &mut Host,
    name: u32,
    name_size: u32,
    id_at: u32,
) -> Answer {
    range(memory, id_at, WORD)?;
    let name = range(memory, name, name_size)?;
    let (spec, mut shared) = (&host.spec, host.spec.shared.borrow_mut());
    let queue = shared.register(&spec.vm_id, name, spec.number)?;
    put(memory, id_at, queue)
}

pub(crate) fn resolve_queue(
    memory: &mut [u8],
    host: &mut Host,
    (vm_id, vm_id_size): (u32, u32),
    (name, name_size): (u32, u32),
    id_at: u32,
) -> Answer {
    range(memory, id_at, WORD)?;
    let vm_id = copy(memory, vm_id, vm_id_size)?;
    let name = range(memory, name, name_size)?;
    // An empty VM id means the module's own VM, as in Envoy.
    let vm_id = match vm_id.as_slice() {
        [] => host.spec.vm_id.clone(),
        other => String::from_utf8_lossy(other).into_owned(),
    };
    let queue = host.spec.shared.borrow().resolve(&vm_id, name).ok_or(Status::NotFound)?;
    put(memory, id_at, queue)
}

pub(crate) fn enqueue(
    memory: &mut [u8],
    host: &mut Host,
    queue: u32,
    data: u32,
    size: u32,
) -> Answer {
    let item = range(memory, data, size)?;
    let vm = host.spec.shared.borrow_mut().enqueue(queue, item)?;
    // The item stays even if there are too many effects: the next one reports it, and a queue
    // polled by a timer loses nothing.
    if host.effects.push(Effect::QueueReady { vm, queue }) {
        return Ok(());
    }
    Err(Status::InternalFailure)
}

pub(crate) async fn dequeue(
    caller: &mut Caller<'_, Host>,
    queue: u32,
    data_at: u32,
    size_at: u32,
) -> wasmtime::Result<u32> {
    let given = answer(caller, (data_at, size_at), |_, host| {
        host.spec.shared.borrow().first(queue).map(<[u8]>::to_vec).map_err(Status::from)
    });
    let given = given.await?;
    // The item is removed only when the module has received it.
    Ok(number(given.and_then(|()| {
        let mut shared = caller.data().spec.shared.borrow_mut();
        shared.dequeue(queue).map(drop).map_err(Status::from)
    })))
}

pub(crate) fn define_metric(
    memory: &mut [u8],
    host: &mut Host,
    kind: u32,
    (name, name_size): (u32, u32),
    id_at: u32,
) -> Answer {
    let kind = MetricType::parse(kind).ok_or(Status::BadArgument)?;
    range(memory, id_at, WORD)?;
    let name = range(memory, name, name_size)?;
    let metric = host.spec.shared.borrow_mut().define(kind, name)?;
    put(memory, id_at, metric)
}

pub(crate) fn record_metric(_: &mut [u8], host: &mut Host, metric: u32, value: u64) -> Answer {
    host.spec.shared.borrow_mut().record(metric, value).map_err(Status::from)
}

pub(crate) fn increment_metric(_: &mut [u8], host: &mut Host, metric: u32, delta: i64) -> Answer {
    host.spec.shared.borrow_mut().increment(metric, delta).map_err(Status::from)
}

pub(crate) fn metric(memory: &mut [u8], host: &mut Host, metric: u32, value_at: u32) -> Answer {
    range(memory, value_at, 2 * WORD)?;
    let value = host.spec.shared.borrow_mut().value(metric)?;
    put_long(memory, value_at, value)
}

/// Reads a property's path: parts separated by a zero byte, with an optional one at the end.
fn path(memory: &mut [u8], (data, size): (u32, u32)) -> Result<Vec<u8>, Status> {
    let bytes = range(memory, data, size)?;
    let path = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    if path.len() > PROPERTY_PATH_MAX { Err(Status::NotFound) } else { Ok(path.to_vec()) }
}

/// Returns a property of the effective context; the host's values take precedence over the
/// module's.
fn find(host: &Host, path: &[u8]) -> Option<Vec<u8>> {
    let spec = &host.spec;
    match path {
        b"plugin_name" => return Some(spec.plugin_name.clone().into_bytes()),
        b"plugin_root_id" => return Some(spec.root_id.clone().into_bytes()),
        b"plugin_vm_id" => return Some(spec.vm_id.clone().into_bytes()),
        _ => {}
    }
    match host.contexts.get(host.contexts.effective()) {
        None => host.contexts.module_property(path).cloned(),
        Some(stream) => {
            let given = stream.properties.get(path).cloned();
            given
                .or_else(|| stream.module_properties.get(path).cloned())
                .or_else(|| of_message(stream, path))
        }
    }
}

/// Returns a property that is part of the request or the response.
fn of_message(stream: &crate::stream::Stream, path: &[u8]) -> Option<Vec<u8>> {
    let (request, response) = (&stream.downstream.headers, &stream.upstream.headers);
    let header = |name: &[u8]| request.get(name).map(<[u8]>::to_vec);
    let of = |parts: &[&str]| path == path_of(parts);
    let under =
        |parts: &[&str]| path.strip_prefix([path_of(parts).as_slice(), b"\0"].concat().as_slice());
    if let Some(name) = under(&["request", "headers"]) {
        return request.joined(name);
    }
    if let Some(name) = under(&["response", "headers"]) {
        return response.joined(name);
    }
    if of(&["request", "path"]) {
        return header(b":path");
    }
    if of(&["request", "url_path"]) {
        let path = request.get(b":path")?;
        return path.split(|byte| *byte == b'?').next().map(<[u8]>::to_vec);
    }
    if of(&["request", "query"]) {
        let path = request.get(b":path")?;
        return path.splitn(2, |byte| *byte == b'?').nth(1).map(<[u8]>::to_vec);
    }
    if of(&["request", "host"]) {
        return header(b":authority");
    }
    if of(&["request", "method"]) {
        return header(b":method");
    }
    if of(&["request", "scheme"]) {
        return header(b":scheme");
    }
    if of(&["request", "referer"]) {
        return header(b"referer");
    }
    if of(&["request", "useragent"]) {
        return header(b"user-agent");
    }
    if of(&["request", "id"]) {
        return header(b"x-request-id");
    }
    if of(&["response", "code"]) {
        let code: i64 = std::str::from_utf8(response.get(b":status")?).ok()?.parse().ok()?;
        return Some(code.to_le_bytes().to_vec());
    }
    None
}

pub(crate) async fn property(
    caller: &mut Caller<'_, Host>,
    path_at: u32,
    path_size: u32,
    data_at: u32,
    size_at: u32,
) -> wasmtime::Result<u32> {
    let answer = answer(caller, (data_at, size_at), |memory, host| {
        let path = path(memory, (path_at, path_size))?;
        find(host, &path).ok_or(Status::NotFound)
    });
    answer.await.map(number)
}

pub(crate) fn set_property(
    memory: &mut [u8],
    host: &mut Host,
    path_at: (u32, u32),
    (value, value_size): (u32, u32),
) -> Answer {
    let value = copy(memory, value, value_size)?;
    let path = path(memory, path_at)?;
    let context = host.contexts.effective();
    if value.len() > PROPERTY_VALUE_MAX {
        return Err(Status::InternalFailure);
    }
    host.contexts.keep_property(&host.limits, context, path, value).map_err(Status::from)
}

/// Calls a foreign function, and writes its result if the module has passed pointers for it.
pub(crate) async fn call_foreign(
    caller: &mut Caller<'_, Host>,
    (name, name_size): (u32, u32),
    (arguments, arguments_size): (u32, u32),
    data_at: u32,
    size_at: u32,
) -> wasmtime::Result<u32> {
    let call = |memory: &mut [u8], host: &mut Host| {
        let name = range(memory, name, name_size)?;
        let name = std::str::from_utf8(name).map_err(|_| Status::NotFound)?.to_owned();
        let arguments = range(memory, arguments, arguments_size)?;
        let function = host.spec.foreign.get(&name).cloned().ok_or(Status::NotFound)?;
        if arguments.len() > FOREIGN_LENGTH_MAX {
            return Err(Status::InternalFailure);
        }
        let results = function(host.contexts.effective(), arguments)?;
        if results.len() > FOREIGN_LENGTH_MAX { Err(Status::InternalFailure) } else { Ok(results) }
    };
    if data_at == 0 || size_at == 0 {
        return Ok(number(with(caller, call).map(drop)));
    }
    answer(caller, (data_at, size_at), call).await.map(number)
}
