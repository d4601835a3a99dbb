//! Memory of a module: pointers into it, and results that are written to it.

use crate::abi::Status;
use crate::host::Host;
use std::fmt;
use wasmtime::{Caller, Extern, Memory};

/// Result of a host function without a value.
pub(crate) type Answer = Result<(), Status>;

/// Bytes of a word in a module's memory: an address or a length.
pub(crate) const WORD: u32 = 4;

/// The module has ended itself with this code, by WASI's `proc_exit`.
#[derive(Debug)]
pub(crate) struct Exited(pub(crate) u32);

impl fmt::Display for Exited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the module called proc_exit({})", self.0)
    }
}

impl std::error::Error for Exited {}

/// Returns the number of a result.
pub(crate) fn number(answer: Answer) -> u32 {
    answer.err().unwrap_or(Status::Ok).number()
}

fn memory_of(caller: &mut Caller<'_, Host>) -> Option<Memory> {
    // Cached at instantiation; a start function runs before that.
    let known = caller.data().memory;
    known.or_else(|| caller.get_export("memory").and_then(Extern::into_memory))
}

/// Calls a function with the module's memory and the host.
pub(crate) fn with<R>(
    caller: &mut Caller<'_, Host>,
    act: impl FnOnce(&mut [u8], &mut Host) -> R,
) -> R {
    match memory_of(caller) {
        Some(memory) => {
            let (bytes, host) = memory.data_and_store_mut(caller);
            act(bytes, host)
        }
        None => act(&mut [], caller.data_mut()),
    }
}

/// Returns the bytes at an address.
pub(crate) fn range(memory: &mut [u8], address: u32, length: u32) -> Result<&mut [u8], Status> {
    let start = address as usize;
    let end = start.checked_add(length as usize).ok_or(Status::InvalidMemoryAccess)?;
    memory.get_mut(start..end).ok_or(Status::InvalidMemoryAccess)
}

/// Returns a copy of the bytes at an address.
pub(crate) fn copy(memory: &mut [u8], address: u32, length: u32) -> Result<Vec<u8>, Status> {
    Ok(range(memory, address, length)?.to_vec())
}

/// Writes a word.
pub(crate) fn put(memory: &mut [u8], address: u32, value: u32) -> Answer {
    range(memory, address, WORD)?.copy_from_slice(&value.to_le_bytes());
    Ok(())
}

/// Writes a number of eight bytes.
pub(crate) fn put_long(memory: &mut [u8], address: u32, value: u64) -> Answer {
    range(memory, address, 2 * WORD)?.copy_from_slice(&value.to_le_bytes());
    Ok(())
}

/// Returns bytes to the module: lets the module allocate memory, copies the bytes there, and writes
/// their address and length to the module's pointers. `fetch` runs after both pointers are checked.
/// An error is a trap of the module's allocator, and ends the call.
pub(crate) async fn answer(
    caller: &mut Caller<'_, Host>,
    (data_at, size_at): (u32, u32),
    fetch: impl FnOnce(&mut [u8], &mut Host) -> Result<Vec<u8>, Status>,
) -> wasmtime::Result<Answer> {
    let fetched = with(caller, |memory, host| {
        range(memory, data_at, WORD)?;
        range(memory, size_at, WORD)?;
        fetch(memory, host)
    });
    match fetched {
        Ok(value) => write_result(caller, &value, data_at, size_at).await,
        Err(status) => Ok(Err(status)),
    }
}

async fn write_result(
    caller: &mut Caller<'_, Host>,
    value: &[u8],
    data_at: u32,
    size_at: u32,
) -> wasmtime::Result<Answer> {
    let length = value.len() as u32;
    let address = match length {
        0 => 0,
        _ => match allocate_in_module(caller, length).await? {
            Ok(address) => address,
            Err(status) => return Ok(Err(status)),
        },
    };
    Ok(with(caller, |memory, _| {
        range(memory, address, length)?.copy_from_slice(value);
        put(memory, data_at, address)?;
        put(memory, size_at, length)
    }))
}

/// Calls the module's allocation function.
async fn allocate_in_module(
    caller: &mut Caller<'_, Host>,
    length: u32,
) -> wasmtime::Result<Result<u32, Status>> {
    let host = caller.data_mut();
    // Each nested call takes a stack of the host: only one is allowed.
    let Some(allocate) = host.allocate.clone().filter(|_| !host.is_allocating) else {
        return Ok(Err(Status::InternalFailure));
    };
    host.is_allocating = true;
    let address = allocate.call_async(&mut *caller, length).await?;
    caller.data_mut().is_allocating = false;
    Ok(if address == 0 { Err(Status::InvalidMemoryAccess) } else { Ok(address) })
}
