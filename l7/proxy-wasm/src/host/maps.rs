//! Host functions for header maps and buffers.

use crate::abi::{BufferType, MapType, Status};
use crate::context::ChangeError;
use crate::host::Host;
use crate::host::memory::{Answer, answer, copy, number, put, range};
use crate::map::{HeaderMap, MapError};
use crate::stream::Stage;
use wasmtime::Caller;

impl From<ChangeError> for Status {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::NotOpen | ChangeError::Refused(_) => Self::BadArgument,
            ChangeError::Full => Self::InternalFailure,
        }
    }
}

/// Changes a map. The status blames the module for invalid bytes or names, and the host for a
/// limit.
fn change(
    host: &mut Host,
    map: u32,
    growth_max: usize,
    change: impl FnOnce(&mut HeaderMap) -> Result<(), MapError>,
) -> Answer {
    let map = MapType::parse(map).ok_or(Status::BadArgument)?;
    host.contexts.change_map(&host.limits, map, growth_max, change).map_err(|error| match error {
        ChangeError::Refused(MapError::TooLarge) => Status::InternalFailure,
        other => other.into(),
    })
}

pub(crate) fn size(memory: &mut [u8], host: &mut Host, map: u32, size_at: u32) -> Answer {
    let map = MapType::parse(map).ok_or(Status::BadArgument)?;
    let map = host.contexts.map(map).ok_or(Status::BadArgument)?;
    put(memory, size_at, map.serialised_length() as u32)
}

/// Returns all fields of a map. An inaccessible map is returned as empty, as in Envoy: the Rust SDK
/// treats every other status as a fault of the host.
pub(crate) async fn pairs(
    caller: &mut Caller<'_, Host>,
    map: u32,
    data_at: u32,
    size_at: u32,
) -> wasmtime::Result<u32> {
    let answer = answer(caller, (data_at, size_at), |_, host| {
        let map = MapType::parse(map).ok_or(Status::BadArgument)?;
        Ok(host.contexts.map(map).map(HeaderMap::serialise).unwrap_or_default())
    });
    answer.await.map(number)
}

pub(crate) fn set_pairs(
    memory: &mut [u8],
    host: &mut Host,
    map: u32,
    data: u32,
    size: u32,
) -> Answer {
    let bytes = range(memory, data, size)?;
    change(host, map, bytes.len(), |map| {
        *map = HeaderMap::parse(bytes)?;
        Ok(())
    })
}

pub(crate) async fn value(
    caller: &mut Caller<'_, Host>,
    map: u32,
    key: u32,
    key_size: u32,
    data_at: u32,
    size_at: u32,
) -> wasmtime::Result<u32> {
    let answer = answer(caller, (data_at, size_at), |memory, host| {
        let map = MapType::parse(map).ok_or(Status::BadArgument)?;
        let key = range(memory, key, key_size)?;
        let is_log = host.contexts.stage() == Stage::Log;
        let missing = if is_log { Status::NotFound } else { Status::BadArgument };
        let map = host.contexts.map(map).ok_or(missing)?;
        map.get(key).map(<[u8]>::to_vec).ok_or(Status::NotFound)
    });
    answer.await.map(number)
}

pub(crate) fn add(
    memory: &mut [u8],
    host: &mut Host,
    map: u32,
    (key, key_size): (u32, u32),
    (value, value_size): (u32, u32),
) -> Answer {
    let key = copy(memory, key, key_size)?;
    let value = range(memory, value, value_size)?;
    change(host, map, key.len() + value.len(), |map| map.add(&key, value))
}

pub(crate) fn replace(
    memory: &mut [u8],
    host: &mut Host,
    map: u32,
    (key, key_size): (u32, u32),
    (value, value_size): (u32, u32),
) -> Answer {
    let key = copy(memory, key, key_size)?;
    let value = range(memory, value, value_size)?;
    change(host, map, key.len() + value.len(), |map| map.replace(&key, value))
}

pub(crate) fn remove(
    memory: &mut [u8],
    host: &mut Host,
    map: u32,
    key: u32,
    key_size: u32,
) -> Answer {
    let key = range(memory, key, key_size)?;
    change(host, map, 0, |map| {
        map.remove(key);
        Ok(())
    })
}

pub(crate) fn set_buffer(
    memory: &mut [u8],
    host: &mut Host,
    buffer: u32,
    (start, size): (u32, u32),
    (data, data_size): (u32, u32),
) -> Answer {
    let buffer = BufferType::parse(buffer).ok_or(Status::BadArgument)?;
    host.contexts.buffer(&host.spec, buffer).ok_or(Status::NotFound)?;
    let value = range(memory, data, data_size)?;
    // Readable but immutable buffers (configurations, responses) are not accessible for writing.
    host.contexts
        .edit_buffer(&host.limits, buffer, start as usize, size as usize, value)
        .map_err(Status::from)
}

pub(crate) async fn buffer(
    caller: &mut Caller<'_, Host>,
    buffer: u32,
    start: u32,
    size_max: u32,
    data_at: u32,
    size_at: u32,
) -> wasmtime::Result<u32> {
    let answer = answer(caller, (data_at, size_at), |_, host| {
        let buffer = BufferType::parse(buffer).ok_or(Status::BadArgument)?;
        let bytes = host.contexts.buffer(&host.spec, buffer).ok_or(Status::NotFound)?;
        let rest = bytes.get(start as usize..).ok_or(Status::BadArgument)?;
        Ok(rest[..rest.len().min(size_max as usize)].to_vec())
    });
    answer.await.map(number)
}

pub(crate) fn buffer_status(
    memory: &mut [u8],
    host: &mut Host,
    buffer: u32,
    size_at: u32,
    unused_at: u32,
) -> Answer {
    let buffer = BufferType::parse(buffer).ok_or(Status::BadArgument)?;
    let length = host.contexts.buffer(&host.spec, buffer).ok_or(Status::NotFound)?.len();
    put(memory, unused_at, 0)?;
    put(memory, size_at, length as u32)
}
