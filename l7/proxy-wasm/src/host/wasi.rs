//! WASI functions that SDKs and their languages need: a log, the time, random bytes, and no files.

use crate::abi::{Errno, Status};
use crate::host::Host;
use crate::host::memory::{Exited, WORD, put, put_long, range};
use crate::limits::{IOVECS_MAX, RANDOM_LENGTH_MAX};

type Answer = Result<(), Errno>;

/// A pointer outside the memory is WASI's `FAULT`: the only possible error here.
impl From<Status> for Errno {
    fn from(_: Status) -> Self {
        Self::Fault
    }
}

/// Resolution of the clock: a millisecond.
const RESOLUTION_NS: u64 = 1_000_000;
const CLOCK_REAL: u32 = 0;
const CLOCK_MONOTONIC: u32 = 1;
const STDOUT: u32 = 1;
const STDERR: u32 = 2;
/// Bytes of an `iovec`: address and length.
const IOVEC_LENGTH: u32 = 2 * WORD;
/// Bytes of an `fdstat`.
const FDSTAT_LENGTH: u32 = 24;
/// `RIGHTS_FD_WRITE`.
const RIGHT_TO_WRITE: u64 = 64;
/// Bytes of a subscription of `poll_oneoff`, and of an event.
const SUBSCRIPTION_LENGTH: u32 = 48;
const EVENT_LENGTH: u32 = 32;

pub(crate) fn number(answer: Answer) -> u32 {
    answer.err().unwrap_or(Errno::Success).number()
}

const fn is_error(fd: u32) -> Result<bool, Errno> {
    match fd {
        STDOUT => Ok(false),
        STDERR => Ok(true),
        _ => Err(Errno::Badf),
    }
}

/// Writes to the log. A line ends with its newline, or with the call.
pub(crate) fn fd_write(
    memory: &mut [u8],
    host: &mut Host,
    fd: u32,
    iovecs: u32,
    count: u32,
    written_at: u32,
) -> Answer {
    let is_error = is_error(fd)?;
    if count > IOVECS_MAX {
        return Err(Errno::Inval);
    }
    range(memory, written_at, WORD)?;
    let mut parts = Vec::new();
    for index in 0..count {
        let at = iovecs.checked_add(index * IOVEC_LENGTH).ok_or(Errno::Fault)?;
        let iovec = range(memory, at, IOVEC_LENGTH)?;
        let (address, length) = iovec.split_at(WORD as usize);
        let word = |bytes: &[u8]| bytes.try_into().map(u32::from_le_bytes).unwrap_or_default();
        let (address, length) = (word(address), word(length));
        range(memory, address, length)?;
        parts.push((address, length));
    }
    let mut written = 0_u32;
    for (address, length) in parts {
        host.write(is_error, range(memory, address, length)?);
        written = written.saturating_add(length);
    }
    Ok(put(memory, written_at, written)?)
}

pub(crate) fn fd_fdstat_get(memory: &mut [u8], _: &mut Host, fd: u32, stat_at: u32) -> Answer {
    is_error(fd)?;
    let stat = range(memory, stat_at, FDSTAT_LENGTH)?;
    stat.fill(0);
    stat[8..16].copy_from_slice(&RIGHT_TO_WRITE.to_le_bytes());
    Ok(())
}

pub(crate) fn clock_time_get(
    memory: &mut [u8],
    host: &mut Host,
    clock: u32,
    _: u64,
    time_at: u32,
) -> Answer {
    let time = match clock {
        CLOCK_REAL => host.now.real_ns,
        CLOCK_MONOTONIC => host.now.monotonic_ns,
        _ => return Err(Errno::Notsup),
    };
    Ok(put_long(memory, time_at, time)?)
}

pub(crate) fn clock_res_get(
    memory: &mut [u8],
    _: &mut Host,
    clock: u32,
    resolution_at: u32,
) -> Answer {
    match clock {
        CLOCK_REAL | CLOCK_MONOTONIC => Ok(put_long(memory, resolution_at, RESOLUTION_NS)?),
        _ => Err(Errno::Notsup),
    }
}

pub(crate) fn random_get(memory: &mut [u8], host: &mut Host, data: u32, size: u32) -> Answer {
    if size as usize > RANDOM_LENGTH_MAX {
        return Err(Errno::Inval);
    }
    host.spec.random.fill(range(memory, data, size)?);
    Ok(())
}

pub(crate) fn environ_sizes_get(
    memory: &mut [u8],
    host: &mut Host,
    count_at: u32,
    size_at: u32,
) -> Answer {
    let variables = &host.spec.environment;
    // "=" and a zero byte.
    let size: usize = variables.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
    put(memory, count_at, variables.len() as u32)?;
    Ok(put(memory, size_at, size as u32)?)
}

pub(crate) fn environ_get(
    memory: &mut [u8],
    host: &mut Host,
    array_at: u32,
    buffer_at: u32,
) -> Answer {
    let (mut array_at, mut buffer_at) = (array_at, buffer_at);
    for (name, value) in &host.spec.environment {
        let variable = format!("{name}={value}\0");
        let length = variable.len() as u32;
        range(memory, buffer_at, length)?.copy_from_slice(variable.as_bytes());
        put(memory, array_at, buffer_at)?;
        buffer_at = buffer_at.checked_add(length).ok_or(Errno::Fault)?;
        array_at = array_at.checked_add(WORD).ok_or(Errno::Fault)?;
    }
    Ok(())
}

pub(crate) fn args_sizes_get(
    memory: &mut [u8],
    _: &mut Host,
    count_at: u32,
    size_at: u32,
) -> Answer {
    put(memory, count_at, 0)?;
    Ok(put(memory, size_at, 0)?)
}

#[allow(clippy::unnecessary_wraps, reason = "as the others")]
pub(crate) const fn args_get(_: &mut [u8], _: &mut Host, _: u32, _: u32) -> Answer {
    Ok(())
}

#[allow(clippy::unnecessary_wraps, reason = "as the others")]
pub(crate) const fn sched_yield(_: &mut [u8], _: &mut Host) -> Answer {
    Ok(())
}

/// Reports the first subscription as ready at once: no call sleeps here.
pub(crate) fn poll_oneoff(
    memory: &mut [u8],
    _: &mut Host,
    subscriptions: u32,
    events: u32,
    count: u32,
    count_at: u32,
) -> Answer {
    if count == 0 {
        return Err(Errno::Inval);
    }
    let mut event = [0; EVENT_LENGTH as usize];
    // The event has the subscription's user data and, after an error of 0, its kind.
    let subscription = range(memory, subscriptions, SUBSCRIPTION_LENGTH)?;
    event[..8].copy_from_slice(&subscription[..8]);
    event[10] = subscription[8];
    range(memory, events, EVENT_LENGTH)?.copy_from_slice(&event);
    Ok(put(memory, count_at, 1)?)
}

pub(crate) fn proc_exit(code: u32) -> wasmtime::Result<()> {
    Err(wasmtime::Error::from(Exited(code)))
}
