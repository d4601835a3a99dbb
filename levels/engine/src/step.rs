//! Batches of packets: one entry into the module for all of them, on a stack of its own.
//!
//! ```text
//!  input ─▶ ┌ the fiber's stack ─────────────────────────────┐ ─▶ output
//!           │ loop:  step ─▶ on_packet ─▶ step ─▶ on_packet …│
//!           │          │ nothing left            │ Pace: stop here
//!           └──────────┼─────────────────────────┼───────────┘
//!                      ▼                         ▼
//!                 Ran::Rest                Ran::Suspended ─ resume ─▶ …
//! ```
//!
//! The loop is a module of a few instructions (`batch_loop`), so that going from one packet to the
//! next is one call into the host and one into the module, and costs less than entering the
//! sandbox anew. A call can be suspended anywhere in the module's code: its stack is kept.

use crate::batch::Handled;
use crate::host::{self, Host};
use crate::pace::PaceDecision;
use crate::trap::{Trap, TrapKind};
use abi::layout::{MARK_LENGTH, MARK_OFFSET, META_ADDRESS, META_LENGTH};
use abi::{Meta, PacketBytes, Verdict};
use std::rc::Rc;
use wasmtime::{Caller, Func, Store, UpdateDeadline};

/// Sets the store's reaction to a raised epoch: it consults the pace.
pub(crate) fn watch<P>(store: &mut Store<Host<P>>) {
    store.epoch_deadline_callback(|mut context| {
        let host = context.data_mut();
        let Some(pace) = host.pace.as_ref() else { return Ok(UpdateDeadline::Interrupt) };
        if host.batch.borrow().is_stopped() {
            return Ok(UpdateDeadline::Interrupt);
        }
        Ok(match pace.decide(host.calls) {
            PaceDecision::Continue => UpdateDeadline::Continue(1),
            PaceDecision::ContinueClosely => UpdateDeadline::Continue(0),
            // Consulted again right after resumption: the call may have been stopped, or its time
            // used up, meanwhile.
            PaceDecision::Suspend if host.can_suspend => {
                let (memory, batch) = (host.memory, Rc::clone(&host.batch));
                if let Some(memory) = memory {
                    batch.borrow_mut().counters.copy(memory.data(&context));
                }
                UpdateDeadline::Yield(0)
            }
            PaceDecision::Suspend => UpdateDeadline::Continue(1),
            PaceDecision::Stop => UpdateDeadline::Interrupt,
        })
    });
}

/// Returns the function that the loop calls between two packets: it finishes one and begins the
/// next.
pub(crate) fn step<P: PacketBytes + 'static>(store: &mut Store<Host<P>>) -> Func {
    Func::wrap(store, |mut caller: Caller<'_, Host<P>>, verdict: u32| -> wasmtime::Result<u32> {
        let memory = caller.data().memory.ok_or_else(out_of_memory)?;
        let (bytes, host) = memory.data_and_store_mut(&mut caller);
        if host.packet.is_some() {
            let handled = finish(bytes, host, verdict)?;
            host.batch.borrow_mut().output.push_back(handled);
        }
        let next = host.batch.borrow_mut().input.pop_front();
        let Some((packet, meta)) = next else {
            host.can_suspend = false;
            return Ok(0);
        };
        host.can_suspend = true;
        begin(bytes, host, packet, &meta)?;
        Ok(1)
    })
}

/// Copies a packet's head and metadata into the module's memory.
#[inline]
pub(crate) fn begin<P: PacketBytes>(
    bytes: &mut [u8],
    host: &mut Host<P>,
    packet: P,
    meta: &Meta,
) -> wasmtime::Result<()> {
    *host.packet = Some(packet);
    host.now_ms = meta.now_ms;
    host.calls += 1;
    let at = bytes.get_mut(META_ADDRESS as usize..).and_then(<[u8]>::first_chunk_mut);
    let at: &mut [u8; META_LENGTH] = at.ok_or_else(out_of_memory)?;
    meta.write_to(at);
    at[28..32].copy_from_slice(&host.lane.to_le_bytes());
    host::show(bytes, host).map_err(|_| out_of_memory())
}

/// Copies the window back into the packet after the call.
#[inline]
fn finish<P: PacketBytes>(
    bytes: &mut [u8],
    host: &mut Host<P>,
    value: u32,
) -> wasmtime::Result<Handled<P>> {
    let verdict = verdict(bytes, host, value).map_err(|trap| {
        host.not_a_verdict = Some(value);
        wasmtime::Error::msg(trap.to_string())
    })?;
    let mark = mark(bytes);
    let packet = host.packet.take().ok_or_else(out_of_memory)?;
    Ok(Handled { packet, verdict: Ok(verdict), mark, emitted: host.emitted.take() })
}

/// Returns the mark that a call left for the next module of the graph.
#[inline]
pub(crate) fn mark(memory: &[u8]) -> [u8; MARK_LENGTH] {
    let mark = memory.get(META_ADDRESS as usize + MARK_OFFSET..).and_then(<[u8]>::first_chunk);
    // Memory never shrinks, and it had the metadata when it began.
    mark.copied().unwrap_or_default()
}

/// Returns the module's verdict, and copies its window back into the packet.
#[inline]
pub(crate) fn verdict<P: PacketBytes>(
    bytes: &mut [u8],
    host: &mut Host<P>,
    value: u32,
) -> Result<Verdict, Trap> {
    host::store_window(bytes, host).map_err(|_| host.trap(&out_of_memory()))?;
    Verdict::parse(value)
        .map_err(|error| Trap { kind: TrapKind::NotAVerdict(Some(error.0)), place: None })
}

/// Error for an impossible case: the window always lies in memory, since `start` checked its size,
/// which never shrinks.
fn out_of_memory() -> wasmtime::Error {
    wasmtime::Trap::MemoryOutOfBounds.into()
}
