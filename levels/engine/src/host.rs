//! Host functions: the calls from a module into its node.
//!
//! The store owns the packet while `on_packet` runs. The window in linear memory and the packet are
//! two copies of the same bytes; each function here that reads, writes or moves bytes of the window
//! synchronises them first.

use crate::batch::Batch;
use crate::emitted::{Emitted, Event, QueueWatch, Sent};
use crate::local::Local;
use crate::memory_account::Limits;
use crate::origins::Origins;
use crate::pace::Pace;
use crate::trap::Trap;
use abi::host::{
    EVENT_LENGTH_MAX, FRAME_LENGTH_MAX, FRAME_LENGTH_MIN, Hook, QUEUE_PERCENT_MAX,
    SENDS_PER_PACKET_MAX, STATE_CHUNK_MAX, STATE_LENGTH_MAX,
};
use abi::layout::{META_ADDRESS, META_LENGTHS_LENGTH, SEND_BY_ROUTE, WINDOW_ADDRESS, host_error};
use abi::{HostFunction, HostFunctions, PacketBytes};
use level::prefetch;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use wasmtime::{Caller, Extern, Linker, Memory};

/// Host state of one instance. Fields that each packet reads come first.
#[repr(C)]
pub(crate) struct Host<P> {
    /// Packet being handled, while `on_packet` runs.
    pub(crate) packet: Local<Option<P>>,
    /// Number of the running call.
    pub(crate) calls: u64,
    /// Time of the node at the call, in milliseconds.
    pub(crate) now_ms: u64,
    /// Declared window size, bytes.
    pub(crate) window: usize,
    /// Current window size, bytes.
    pub(crate) window_length: usize,
    pub(crate) lane: u32,
    pub(crate) hook: Hook,
    /// True while a call of a batch runs, which may be suspended.
    pub(crate) can_suspend: bool,
    /// Output of calls that was not collected yet.
    pub(crate) emitted: Option<Box<Emitted>>,
    /// Packets before and after the current one, when there are several.
    pub(crate) batch: Local<Rc<RefCell<Batch<P>>>>,
    pub(crate) pace: Local<Option<Rc<dyn Pace>>>,
    pub(crate) memory: Option<Memory>,
    /// Value that the last call returned, if it was no verdict.
    pub(crate) not_a_verdict: Option<u32>,
    pub(crate) parameters: BTreeMap<String, Vec<u8>>,
    pub(crate) ports: BTreeMap<String, u16>,
    /// State being handed over, during the hooks for it.
    pub(crate) state: Vec<u8>,
    /// Bytes of the state read so far.
    pub(crate) state_at: usize,
    pub(crate) limits: Limits,
    pub(crate) origins: Arc<Origins>,
}

impl<P> Host<P> {
    /// Returns the cause that ended a call, with its position in the module.
    #[cold]
    pub(crate) fn trap(&self, error: &wasmtime::Error) -> Trap {
        Trap::in_module(error, &self.origins)
    }

    /// Prefetches the fields that each packet reads.
    #[inline]
    pub(crate) fn load_ahead(&self) {
        prefetch::load_first(self, std::mem::offset_of!(Self, batch));
    }
}

/// Result of a host function: a value for the module or one of [`host_error`].
type Answer = Result<i32, i32>;

fn code(answer: Answer) -> i32 {
    answer.unwrap_or_else(|error| error)
}

/// Links the granted host functions, and no others.
pub(crate) fn link<P: PacketBytes + 'static>(
    linker: &mut Linker<Host<P>>,
    granted: HostFunctions,
) -> wasmtime::Result<()> {
    granted.iter().try_for_each(|function| link_one(linker, function))
}

fn link_one<P: PacketBytes + 'static>(
    linker: &mut Linker<Host<P>>,
    function: HostFunction,
) -> wasmtime::Result<()> {
    const M: &str = abi::layout::IMPORT_MODULE;
    let name = function.spec().name;
    match function {
        HostFunction::PacketLoad => {
            linker.func_wrap(M, name, |mut c: Caller<'_, Host<P>>, o: u32, a: u32, l: u32| {
                code(with_memory(&mut c, |memory, host| packet_load(memory, host, o, a, l)))
            })
        }
        HostFunction::PacketStore => {
            linker.func_wrap(M, name, |mut c: Caller<'_, Host<P>>, o: u32, a: u32, l: u32| {
                code(with_memory(&mut c, |memory, host| packet_store(memory, host, o, a, l)))
            })
        }
        HostFunction::PacketResizeHead => {
            linker.func_wrap(M, name, |mut c: Caller<'_, Host<P>>, delta: i32| {
                code(with_memory(&mut c, |memory, host| {
                    resize(memory, host, delta, P::resize_head)
                }))
            })
        }
        HostFunction::PacketResizeTail => {
            linker.func_wrap(M, name, |mut c: Caller<'_, Host<P>>, delta: i32| {
                code(with_memory(&mut c, |memory, host| {
                    resize(memory, host, delta, P::resize_tail)
                }))
            })
        }
        HostFunction::PacketSend => {
            linker.func_wrap(M, name, |mut c: Caller<'_, Host<P>>, a: u32, l: u32, port: u32| {
                code(with_memory(&mut c, |memory, host| packet_send(memory, host, a, l, port)))
            })
        }
        HostFunction::Event => {
            linker.func_wrap(M, name, |mut c: Caller<'_, Host<P>>, number: u32, a: u32, l: u32| {
                code(with_memory(&mut c, |memory, host| event(memory, host, number, a, l)))
            })
        }
        HostFunction::ParamLoad => linker.func_wrap(
            M,
            name,
            |mut c: Caller<'_, Host<P>>, na: u32, nl: u32, a: u32, capacity: u32| {
                code(with_memory(&mut c, |memory, host| {
                    param_load(memory, host, na, nl, a, capacity)
                }))
            },
        ),
        HostFunction::PortFind => {
            linker.func_wrap(M, name, |mut c: Caller<'_, Host<P>>, na: u32, nl: u32| {
                code(with_memory(&mut c, |memory, host| port_find(memory, host, na, nl)))
            })
        }
        HostFunction::NowMs => {
            linker.func_wrap(M, name, |c: Caller<'_, Host<P>>| c.data().now_ms as i64)
        }
        HostFunction::MessageSend => {
            linker.func_wrap(M, name, |mut c: Caller<'_, Host<P>>, a: u32, l: u32| {
                code(with_memory(&mut c, |memory, host| message_send(memory, host, a, l)))
            })
        }
        HostFunction::StateWrite => {
            linker.func_wrap(M, name, |mut c: Caller<'_, Host<P>>, a: u32, l: u32| {
                code(with_memory(&mut c, |memory, host| state_write(memory, host, a, l)))
            })
        }
        HostFunction::StateRead => {
            linker.func_wrap(M, name, |mut c: Caller<'_, Host<P>>, a: u32, l: u32| {
                code(with_memory(&mut c, |memory, host| state_read(memory, host, a, l)))
            })
        }
        HostFunction::QueueWatch => {
            linker.func_wrap(M, name, |mut c: Caller<'_, Host<P>>, above: u32, below: u32| {
                code(queue_watch(c.data_mut(), above, below))
            })
        }
    }
    .map(drop)
}

fn with_memory<P>(
    caller: &mut Caller<'_, Host<P>>,
    act: impl FnOnce(&mut [u8], &mut Host<P>) -> Answer,
) -> Answer {
    // Set right after instantiation; during it (a start section, which the check refuses) there is
    // none yet and the export is looked up.
    let memory = match caller.data().memory {
        Some(memory) => memory,
        None => match caller.get_export("memory") {
            Some(Extern::Memory(memory)) => memory,
            _ => return Err(host_error::WRONG_HOOK),
        },
    };
    let (bytes, host) = memory.data_and_store_mut(caller);
    act(bytes, host)
}

fn range(memory: &mut [u8], address: u32, length: u32) -> Result<&mut [u8], i32> {
    let start = address as usize;
    let end = start.checked_add(length as usize).ok_or(host_error::OUT_OF_RANGE)?;
    memory.get_mut(start..end).ok_or(host_error::OUT_OF_RANGE)
}

/// Returns the window's bytes in linear memory.
pub(crate) fn window_of(memory: &mut [u8], length: usize) -> Option<&mut [u8]> {
    memory.get_mut(WINDOW_ADDRESS as usize..)?.get_mut(..length)
}

/// Copies the packet's head and its lengths into linear memory; the rest of the metadata is
/// unchanged, including the mark that the module may have written.
#[inline]
pub(crate) fn show<P: PacketBytes>(memory: &mut [u8], host: &mut Host<P>) -> Result<(), i32> {
    let Some(packet) = host.packet.as_ref() else { return Err(host_error::WRONG_HOOK) };
    let length = packet.length();
    let shown = length.min(host.window);
    host.window_length = shown;
    let window = window_of(memory, host.window).ok_or(host_error::OUT_OF_RANGE)?;
    let (head, behind) = window.split_at_mut(shown);
    packet.load(0, head).map_err(|_| host_error::OUT_OF_RANGE)?;
    behind.fill(0);
    let lengths = length as u64 | (shown as u64) << 32;
    range(memory, META_ADDRESS, META_LENGTHS_LENGTH as u32)?
        .copy_from_slice(&lengths.to_le_bytes());
    Ok(())
}

/// Copies the window back into the packet.
#[inline]
pub(crate) fn store_window<P: PacketBytes>(
    memory: &mut [u8],
    host: &mut Host<P>,
) -> Result<(), i32> {
    let Some(packet) = host.packet.as_mut() else { return Err(host_error::WRONG_HOOK) };
    let window = window_of(memory, host.window_length).ok_or(host_error::OUT_OF_RANGE)?;
    packet.store(0, window).map_err(|_| host_error::OUT_OF_RANGE)
}

fn packet_load<P: PacketBytes>(
    memory: &mut [u8],
    host: &mut Host<P>,
    offset: u32,
    address: u32,
    length: u32,
) -> Answer {
    if (offset as usize) < host.window_length {
        store_window(memory, host)?;
    }
    let packet = host.packet.as_ref().ok_or(host_error::WRONG_HOOK)?;
    let to = range(memory, address, length)?;
    packet.load(offset as usize, to).map_err(|_| host_error::OUT_OF_RANGE)?;
    Ok(0)
}

fn packet_store<P: PacketBytes>(
    memory: &mut [u8],
    host: &mut Host<P>,
    offset: u32,
    address: u32,
    length: u32,
) -> Answer {
    let in_window = (offset as usize) < host.window_length;
    if in_window {
        store_window(memory, host)?;
    }
    let packet = host.packet.as_mut().ok_or(host_error::WRONG_HOOK)?;
    let from = range(memory, address, length)?;
    packet.store(offset as usize, from).map_err(|_| host_error::OUT_OF_RANGE)?;
    if in_window {
        show(memory, host)?;
    }
    Ok(0)
}

fn resize<P: PacketBytes>(
    memory: &mut [u8],
    host: &mut Host<P>,
    delta: i32,
    act: fn(&mut P, i32) -> Result<(), abi::packet::PacketError>,
) -> Answer {
    store_window(memory, host)?;
    let packet = host.packet.as_mut().ok_or(host_error::WRONG_HOOK)?;
    act(packet, delta).map_err(|_| host_error::OVER_LIMIT)?;
    show(memory, host)?;
    Ok(0)
}

fn packet_send<P>(
    memory: &mut [u8],
    host: &mut Host<P>,
    address: u32,
    length: u32,
    port: u32,
) -> Answer {
    if host.hook != Hook::OnPacket {
        return Err(host_error::WRONG_HOOK);
    }
    let frame = range(memory, address, length)?;
    let port = u16::try_from(port).map_err(|_| host_error::NOT_FOUND)?;
    if port != SEND_BY_ROUTE && !host.ports.values().any(|&known| known == port) {
        return Err(host_error::NOT_FOUND);
    }
    let lengths = FRAME_LENGTH_MIN..=FRAME_LENGTH_MAX;
    if host.emitted.as_ref().is_some_and(|it| it.sent.len() >= SENDS_PER_PACKET_MAX)
        || !lengths.contains(&frame.len())
    {
        return Err(host_error::OVER_LIMIT);
    }
    host.emitted.get_or_insert_default().sent.push(Sent { port, frame: frame.to_vec() });
    Ok(0)
}

fn event<P>(
    memory: &mut [u8],
    host: &mut Host<P>,
    number: u32,
    address: u32,
    length: u32,
) -> Answer {
    let data = range(memory, address, length)?;
    if data.len() > EVENT_LENGTH_MAX || host.emitted.as_ref().is_some_and(|it| it.is_full()) {
        return Err(host_error::OVER_LIMIT);
    }
    host.emitted.get_or_insert_default().events.push(Event { code: number, data: data.to_vec() });
    Ok(0)
}

fn message_send<P>(memory: &mut [u8], host: &mut Host<P>, address: u32, length: u32) -> Answer {
    let message = range(memory, address, length)?;
    if message.len() > EVENT_LENGTH_MAX || host.emitted.as_ref().is_some_and(|it| it.is_full()) {
        return Err(host_error::OVER_LIMIT);
    }
    host.emitted.get_or_insert_default().messages.push(message.to_vec());
    Ok(0)
}

fn queue_watch<P>(host: &mut Host<P>, above: u32, below: u32) -> Answer {
    preparing(host)?;
    if above > QUEUE_PERCENT_MAX || below > above {
        return Err(host_error::OUT_OF_RANGE);
    }
    host.emitted.get_or_insert_default().watch = Some(QueueWatch { above, below });
    Ok(0)
}

fn state_write<P>(memory: &mut [u8], host: &mut Host<P>, address: u32, length: u32) -> Answer {
    if host.hook != Hook::StateOut {
        return Err(host_error::WRONG_HOOK);
    }
    let bytes = range(memory, address, length)?;
    if bytes.len() > STATE_CHUNK_MAX || host.state.len() + bytes.len() > STATE_LENGTH_MAX {
        return Err(host_error::OVER_LIMIT);
    }
    if !host.limits.take_state(bytes.len()) {
        return Err(host_error::OVER_LIMIT);
    }
    host.state.extend_from_slice(bytes);
    Ok(0)
}

/// Copies up to `length` bytes of the state; returns 0 at its end.
fn state_read<P>(memory: &mut [u8], host: &mut Host<P>, address: u32, length: u32) -> Answer {
    if host.hook != Hook::StateIn {
        return Err(host_error::WRONG_HOOK);
    }
    let to = range(memory, address, length)?;
    if to.len() > STATE_CHUNK_MAX {
        return Err(host_error::OVER_LIMIT);
    }
    let from = host.state.get(host.state_at..).unwrap_or_default();
    let count = to.len().min(from.len());
    to[..count].copy_from_slice(&from[..count]);
    host.state_at += count;
    Ok(count as i32)
}

/// Reads a name in memory; one that is not UTF-8 is unknown.
fn name_at(memory: &mut [u8], address: u32, length: u32) -> Result<String, i32> {
    let bytes = range(memory, address, length)?;
    core::str::from_utf8(bytes).map(str::to_owned).map_err(|_| host_error::NOT_FOUND)
}

fn preparing<P>(host: &Host<P>) -> Result<(), i32> {
    match host.hook {
        Hook::OnStart | Hook::OnMessage => Ok(()),
        _ => Err(host_error::WRONG_HOOK),
    }
}

fn param_load<P>(
    memory: &mut [u8],
    host: &mut Host<P>,
    name_address: u32,
    name_length: u32,
    address: u32,
    capacity: u32,
) -> Answer {
    preparing(host)?;
    let name = name_at(memory, name_address, name_length)?;
    let value = host.parameters.get(&name).ok_or(host_error::NOT_FOUND)?;
    if value.len() > capacity as usize {
        return Err(host_error::OVER_LIMIT);
    }
    range(memory, address, value.len() as u32)?.copy_from_slice(value);
    Ok(value.len() as i32)
}

fn port_find<P>(
    memory: &mut [u8],
    host: &mut Host<P>,
    name_address: u32,
    name_length: u32,
) -> Answer {
    preparing(host)?;
    let name = name_at(memory, name_address, name_length)?;
    host.ports.get(&name).map(|&port| i32::from(port)).ok_or(host_error::NOT_FOUND)
}
