//! Host functions that only record effects for the caller.

use crate::abi::{LogLevel, Status, StreamType};
use crate::effect::{Effect, HttpRequest, LocalResponse};
use crate::host::Host;
use crate::host::memory::{Answer, WORD, answer, copy, number, put, range, with};
use crate::limits::HTTP_CALLS_MAX;
use crate::map::HeaderMap;
use crate::stream::Protocol;
use wasmtime::Caller;

/// HTTP status codes of a final response.
const RESPONSE_STATUSES: std::ops::RangeInclusive<u32> = 200..=599;

fn record(host: &mut Host, effect: Effect) -> Answer {
    if host.effects.push(effect) { Ok(()) } else { Err(Status::InternalFailure) }
}

pub(crate) fn log(memory: &mut [u8], host: &mut Host, level: u32, data: u32, size: u32) -> Answer {
    let level = LogLevel::parse(level).ok_or(Status::BadArgument)?;
    let text = range(memory, data, size)?;
    host.log(level, text);
    Ok(())
}

pub(crate) fn log_level(memory: &mut [u8], host: &mut Host, level_at: u32) -> Answer {
    put(memory, level_at, host.spec.log_level.number())
}

pub(crate) fn tick_period(_: &mut [u8], host: &mut Host, period_ms: u32) -> Answer {
    record(host, Effect::TickPeriod(period_ms))?;
    host.tick_period_ms = period_ms;
    Ok(())
}

pub(crate) fn set_effective_context(_: &mut [u8], host: &mut Host, context: u32) -> Answer {
    if !host.contexts.is_known(context) {
        return Err(Status::BadArgument);
    }
    host.contexts.set_effective(context);
    Ok(())
}

pub(crate) fn done(_: &mut [u8], host: &mut Host) -> Answer {
    if !host.contexts.take_pending().ok_or(Status::NotFound)? {
        return Err(Status::NotFound);
    }
    let context = host.contexts.effective();
    record(host, Effect::Done(context))
}

pub(crate) fn continue_stream(_: &mut [u8], host: &mut Host, stream: u32) -> Answer {
    let (context, stream) = stream_of(host, stream)?;
    record(host, Effect::Continue { context, stream })
}

pub(crate) fn close_stream(_: &mut [u8], host: &mut Host, stream: u32) -> Answer {
    let (context, stream) = stream_of(host, stream)?;
    record(host, Effect::Close { context, stream })
}

/// Returns the stream of this type in the effective context.
fn stream_of(host: &mut Host, stream: u32) -> Result<(u32, StreamType), Status> {
    let stream = StreamType::parse(stream).ok_or(Status::BadArgument)?;
    let context = host.contexts.effective();
    let found = host.contexts.get_mut(context).and_then(|it| it.side_mut(stream));
    found.map(|_| (context, stream)).ok_or(Status::BadArgument)
}

/// Arguments of `proxy_send_local_response`: pointers and lengths in their order.
pub(crate) struct Response {
    pub(crate) status: u32,
    pub(crate) details: (u32, u32),
    pub(crate) body: (u32, u32),
    pub(crate) headers: (u32, u32),
    pub(crate) grpc_status: u32,
}

/// Records a local response. A second one of a stream has no effect, as in Envoy.
pub(crate) fn respond(memory: &mut [u8], host: &mut Host, response: Response) -> Answer {
    let details = copy(memory, response.details.0, response.details.1)?;
    range(memory, response.body.0, response.body.1)?;
    let headers = fields(memory, response.headers)?;
    let context = host.contexts.effective();
    let stream = host.contexts.get_mut(context).ok_or(Status::BadArgument)?;
    if stream.protocol != Protocol::Http || !RESPONSE_STATUSES.contains(&response.status) {
        return Err(Status::BadArgument);
    }
    if stream.has_responded {
        return Ok(());
    }
    let grpc_status = Some(response.grpc_status).filter(|status| *status != u32::MAX);
    let body = copy(memory, response.body.0, response.body.1)?;
    let response = LocalResponse { status: response.status, details, headers, body, grpc_status };
    record(host, Effect::Respond { context, response: Box::new(response) })?;
    if let Some(stream) = host.contexts.get_mut(context) {
        stream.has_responded = true;
    }
    Ok(())
}

/// Reads a serialised map; an invalid one is a bad argument.
fn fields(memory: &mut [u8], (data, size): (u32, u32)) -> Result<HeaderMap, Status> {
    HeaderMap::parse(range(memory, data, size)?).map_err(|_| Status::BadArgument)
}

/// Arguments of `proxy_http_call`.
pub(crate) struct HttpCall {
    pub(crate) upstream: (u32, u32),
    pub(crate) headers: (u32, u32),
    pub(crate) body: (u32, u32),
    pub(crate) trailers: (u32, u32),
    pub(crate) timeout_ms: u32,
    pub(crate) call_at: u32,
}

pub(crate) fn http_call(memory: &mut [u8], host: &mut Host, call: HttpCall) -> Answer {
    range(memory, call.call_at, WORD)?;
    for (data, size) in [call.upstream, call.headers, call.body, call.trailers] {
        range(memory, data, size)?;
    }
    let upstream = range(memory, call.upstream.0, call.upstream.1)?;
    let upstream = std::str::from_utf8(upstream).map_err(|_| Status::BadArgument)?.to_owned();
    if !host.spec.upstreams.contains(&upstream) {
        return Err(Status::BadArgument);
    }
    let headers = fields(memory, call.headers)?;
    let trailers = fields(memory, call.trailers)?;
    let required: [&[u8]; 3] = [b":method", b":path", b":authority"];
    // The values may be empty: a filter in the Go SDK's examples has no authority.
    if !required.iter().all(|name| headers.get(name).is_some()) {
        return Err(Status::BadArgument);
    }
    if host.http_calls.len() >= HTTP_CALLS_MAX {
        return Err(Status::InternalFailure);
    }
    let body = copy(memory, call.body.0, call.body.1)?;
    let timeout_ms = call.timeout_ms;
    let request = HttpRequest { upstream, headers, body, trailers, timeout_ms };
    let number = next_call(host);
    let context = host.contexts.effective();
    record(host, Effect::HttpCall { context, call: number, request: Box::new(request) })?;
    host.http_calls.insert(number);
    put(memory, call.call_at, number)
}

/// Returns a call number that is not in use. Never 0.
fn next_call(host: &mut Host) -> u32 {
    loop {
        host.last_http_call = host.last_http_call.checked_add(1).unwrap_or(1);
        if !host.http_calls.contains(&host.last_http_call) {
            return host.last_http_call;
        }
    }
}

/// Returns the status of the HTTP call whose response the callback is for; 0 if it failed, and in
/// other callbacks. The message is always empty.
pub(crate) async fn status(
    caller: &mut Caller<'_, Host>,
    code_at: u32,
    data_at: u32,
    size_at: u32,
) -> wasmtime::Result<u32> {
    let code = caller.data().call_status();
    if let Err(status) = with(caller, |memory, _| put(memory, code_at, code)) {
        return Ok(status.number());
    }
    answer(caller, (data_at, size_at), |_, _| Ok(Vec::new())).await.map(number)
}

/// Fails a gRPC call, which is not supported, after a check of the pointers.
pub(crate) fn grpc(memory: &mut [u8], parts: &[(u32, u32)], id_at: u32) -> Answer {
    for (data, size) in parts {
        range(memory, *data, *size)?;
    }
    range(memory, id_at, WORD)?;
    Err(Status::InternalFailure)
}

/// Fails a message on a gRPC stream: none exists.
pub(crate) fn grpc_send(memory: &mut [u8], data: u32, size: u32) -> Answer {
    range(memory, data, size)?;
    Err(Status::NotFound)
}
