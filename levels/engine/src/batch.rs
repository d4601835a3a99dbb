//! Packets in a row: one entry into the module for all of them, on a stack of its own.
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
//! The loop is a module of a few instructions (`looping`), so that going from one packet to the
//! next is one call into the host and one into the module, and costs less than entering the
//! sandbox anew. What stands still stands anywhere in the module's code: its stack is kept.

use crate::call::{Call, Ended};
use crate::host::{self, Emitted, Host};
use crate::instance::Instance;
use crate::state::counter_at;
use crate::trap::{Trap, TrapKind};
use abi::layout::{MARK_LENGTH, MARK_OFFSET, META_ADDRESS, META_LENGTH};
use abi::{Meta, PacketBytes, Verdict};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use wasmtime::{Caller, Func, Store, UpdateDeadline};

/// What is to become of a call that is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// It goes on.
    GoOn,
    /// It goes on, and is asked again at its next loop or call: it is to end at its time exactly.
    Closely,
    /// It stands still, until [`Suspended::resume`] or [`Starting::resume`](crate::Starting::resume).
    Suspend,
    /// It ends, with [`TrapKind::TimeLimit`].
    Stop,
}

/// Who says how long calls run. Asked each time the epoch is raised while one runs.
pub trait Pace: Debug {
    /// What becomes of the call with this number: no two calls of a process have the same, and
    /// those of an instance rise.
    fn over(&self, call: u64) -> Over;

    /// What becomes of a call that is to begin: asked once before the sandbox is entered, since the
    /// epoch may have been raised for that just before, when nobody looked at it. Nothing begins
    /// unless it is to go on.
    fn begins(&self) -> Over {
        Over::GoOn
    }
}

/// A packet that a module has handled.
#[derive(Debug)]
pub struct Handled<P> {
    /// The packet as it is now.
    pub packet: P,
    /// What the module says, or how it ended.
    pub verdict: Result<Verdict, Trap>,
    /// What it left for the next module of the graph.
    pub mark: [u8; MARK_LENGTH],
    /// What it left beside its verdict.
    pub emitted: Option<Box<Emitted>>,
}

/// What goes in and what came out, in the same order.
pub(crate) struct Batch<P> {
    pub(crate) input: VecDeque<(P, Meta)>,
    pub(crate) output: VecDeque<Handled<P>>,
    /// The call that stands still is to end when it goes on.
    stop: bool,
    pub(crate) counters: Counters,
}

/// Copy of the module's counters, taken when a call is suspended: its memory is out of reach then.
#[derive(Default)]
pub(crate) struct Counters {
    /// Their names and addresses.
    pub(crate) read: Rc<[(String, u32)]>,
    values: Vec<u64>,
}

impl Counters {
    /// Copies them: at most [`abi::check::COUNTERS_MAX`], into memory that the first copy allocates.
    fn copy(&mut self, memory: &[u8]) {
        self.values.clear();
        let values = self.read.iter().map(|(_, at)| counter_at(memory, *at).unwrap_or_default());
        self.values.extend(values);
    }
}

impl<P> Default for Batch<P> {
    fn default() -> Self {
        Self {
            input: VecDeque::new(),
            output: VecDeque::new(),
            stop: false,
            counters: Counters::default(),
        }
    }
}

/// What running came to.
pub enum Ran<P: 'static> {
    /// What was to be done is done, or nothing was to begin any more, or it has trapped: then
    /// the instance is not to be used again.
    Rest(Box<Instance<P>>, Done),
    /// A call stands still.
    Suspended(Suspended<P>),
}

/// What was done.
#[derive(Debug)]
pub enum Done {
    /// Packets: they are in the output, and if the last one has trapped it says so.
    Packets,
    /// A [`Call`](crate::Call), and how it ended.
    Call(Ended),
}

type Running<P> = Pin<Box<dyn Future<Output = (Box<Instance<P>>, Done)>>>;

/// An instance whose call stands still.
pub struct Suspended<P: 'static> {
    running: Running<P>,
    batch: Rc<RefCell<Batch<P>>>,
    /// Bytes of linear memory when it began.
    memory_bytes: u64,
}

impl<P: PacketBytes + 'static> Instance<P> {
    /// Adds a packet to those that [`Instance::run`] handles; lengths are filled in then.
    #[inline]
    pub fn push(&mut self, packet: P, meta: Meta) {
        self.batch.borrow_mut().input.push_back((packet, meta));
    }

    /// How many packets wait for [`Instance::run`].
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.batch.borrow().input.len()
    }

    /// Takes back a packet that waits, the oldest first.
    pub fn take_waiting(&mut self) -> Option<P> {
        self.batch.borrow_mut().input.pop_front().map(|(packet, _)| packet)
    }

    /// The oldest packet that was handled.
    #[inline]
    pub fn pop(&mut self) -> Option<Handled<P>> {
        self.batch.borrow_mut().output.pop_front()
    }

    /// Handles the packets that wait, as far as its [`Pace`] lets it; those that have not begun
    /// still wait.
    #[must_use]
    pub fn run(mut self: Box<Self>) -> Ran<P> {
        let batch = Rc::clone(&self.batch);
        let memory_bytes = self.memory_bytes();
        match self.store.data().pace.as_ref().map_or(Over::GoOn, |pace| pace.begins()) {
            Over::GoOn => self.arm(),
            Over::Closely => self.store.set_epoch_deadline(0),
            Over::Suspend | Over::Stop => return Ran::Rest(self, Done::Packets),
        }
        let running = Box::pin(async move {
            let looping = self.looping.clone();
            let result = looping.call_async(&mut self.store, ()).await;
            (self.ended(result), Done::Packets)
        });
        Suspended { running, batch, memory_bytes }.resume()
    }

    /// Runs a hook, as far as its [`Pace`] lets it.
    #[must_use]
    pub fn call(mut self: Box<Self>, call: Call) -> Ran<P> {
        let batch = Rc::clone(&self.batch);
        let memory_bytes = self.memory_bytes();
        let running = Box::pin(async move {
            let ended = self.end(call).await;
            (self, Done::Call(ended))
        });
        Suspended { running, batch, memory_bytes }.resume()
    }

    /// After a call has ended by itself or by a trap.
    fn ended(mut self: Box<Self>, result: wasmtime::Result<()>) -> Box<Self> {
        let Err(error) = result else { return self };
        let host = self.store.data_mut();
        let trap = match host.not_a_verdict.take() {
            Some(value) => Trap { kind: TrapKind::NotAVerdict(Some(value)), place: None },
            None => host.trap(&error),
        };
        if let Some(packet) = host.packet.take() {
            let emitted = host.emitted.take();
            let handled = Handled { packet, verdict: Err(trap), mark: [0; MARK_LENGTH], emitted };
            self.batch.borrow_mut().output.push_back(handled);
        }
        self
    }
}

impl<P: PacketBytes + 'static> Suspended<P> {
    /// The oldest packet that was handled before the one that stands still.
    #[inline]
    pub fn pop(&mut self) -> Option<Handled<P>> {
        self.batch.borrow_mut().output.pop_front()
    }

    /// Lets the call go on.
    #[must_use]
    pub fn resume(mut self) -> Ran<P> {
        // Nobody is to be woken: whoever suspended it resumes it.
        let mut context = Context::from_waker(Waker::noop());
        match self.running.as_mut().poll(&mut context) {
            Poll::Ready((instance, done)) => Ran::Rest(instance, done),
            Poll::Pending => Ran::Suspended(self),
        }
    }

    /// Ends the call with [`TrapKind::TimeLimit`]: if it has a packet, that and those before it are in the
    /// output, those that wait still wait.
    #[must_use]
    pub fn stop(self) -> Ran<P> {
        self.batch.borrow_mut().stop = true;
        self.resume()
    }

    /// Returns the module's counters, by name, as they are: nothing changes them while the call
    /// stands still.
    #[must_use]
    pub fn counters(&self) -> Vec<(String, u64)> {
        let counters = &self.batch.borrow().counters;
        let names = counters.read.iter().map(|(name, _)| name.clone());
        names.zip(counters.values.iter().copied()).collect()
    }

    /// Bytes of linear memory that were in use when it began.
    #[must_use]
    pub const fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}

/// What a store does when the epoch has been raised.
pub(crate) fn watch<P>(store: &mut Store<Host<P>>) {
    store.epoch_deadline_callback(|mut context| {
        let host = context.data_mut();
        let Some(pace) = host.pace.as_ref() else { return Ok(UpdateDeadline::Interrupt) };
        if host.batch.borrow().stop {
            return Ok(UpdateDeadline::Interrupt);
        }
        Ok(match pace.over(host.calls) {
            Over::GoOn => UpdateDeadline::Continue(1),
            Over::Closely => UpdateDeadline::Continue(0),
            // Asked once more as soon as it goes on: it may have been told to stop, or its turn
            // be over, when nobody looked.
            Over::Suspend if host.can_suspend => {
                let (memory, batch) = (host.memory, Rc::clone(&host.batch));
                if let Some(memory) = memory {
                    batch.borrow_mut().counters.copy(memory.data(&context));
                }
                UpdateDeadline::Yield(0)
            }
            Over::Suspend => UpdateDeadline::Continue(1),
            Over::Stop => UpdateDeadline::Interrupt,
        })
    });
}

/// The function that the loop calls between two packets: takes one back, shows the next one.
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

/// Shows a packet to the module.
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

/// Takes a packet back from the module, which has answered.
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

/// What a call left for the next module of the graph.
#[inline]
pub(crate) fn mark(memory: &[u8]) -> [u8; MARK_LENGTH] {
    let mark = memory.get(META_ADDRESS as usize + MARK_OFFSET..).and_then(<[u8]>::first_chunk);
    // Memory never shrinks, and it had the metadata when it began.
    mark.copied().unwrap_or_default()
}

/// What the module answered, and its window back in the packet.
#[inline]
pub(crate) fn verdict<P: PacketBytes>(
    bytes: &mut [u8],
    host: &mut Host<P>,
    value: u32,
) -> Result<Verdict, Trap> {
    host::take_back(bytes, host).map_err(|_| host.trap(&out_of_memory()))?;
    Verdict::parse(value)
        .map_err(|error| Trap { kind: TrapKind::NotAVerdict(Some(error.0)), place: None })
}

/// The window always lies in memory: `start` checked its size, which never shrinks.
fn out_of_memory() -> wasmtime::Error {
    wasmtime::Trap::MemoryOutOfBounds.into()
}
