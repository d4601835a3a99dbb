//! Progress of the calls into an instance: at rest, or suspended.

use super::Instance;
use crate::batch::{Batch, Handled};
use crate::hooks::Ended;
use abi::PacketBytes;
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Result of running an instance.
pub enum Ran<P: 'static> {
    /// Instance at rest: the work is done, or the pace let nothing more begin, or it has trapped
    /// and must not be used again.
    Rest(Box<Instance<P>>, Done),
    /// Instance with a suspended call.
    Suspended(Suspended<P>),
}

/// Work that was done.
#[derive(Debug)]
pub enum Done {
    /// Packets: they are in the output, and the last one carries the trap if there was one.
    Packets,
    /// A [`Call`](crate::Call), with its result.
    Call(Ended),
}

type Running<P> = Pin<Box<dyn Future<Output = (Box<Instance<P>>, Done)>>>;

/// Instance whose call is suspended.
pub struct Suspended<P: 'static> {
    running: Running<P>,
    batch: Rc<RefCell<Batch<P>>>,
    /// Bytes of linear memory when the call began.
    memory_bytes: u64,
}

impl<P: PacketBytes + 'static> Suspended<P> {
    pub(super) fn new(
        running: Running<P>,
        batch: Rc<RefCell<Batch<P>>>,
        memory_bytes: u64,
    ) -> Self {
        Self { running, batch, memory_bytes }
    }

    /// Takes the oldest packet that was handled before the suspended one.
    #[inline]
    pub fn pop(&mut self) -> Option<Handled<P>> {
        self.batch.borrow_mut().output.pop_front()
    }

    /// Resumes the call.
    #[must_use]
    pub fn resume(mut self) -> Ran<P> {
        // No waker is needed: the caller that polls it resumes it.
        let mut context = Context::from_waker(Waker::noop());
        match self.running.as_mut().poll(&mut context) {
            Poll::Ready((instance, done)) => Ran::Rest(instance, done),
            Poll::Pending => Ran::Suspended(self),
        }
    }

    /// Ends the call with [`TrapKind::TimeLimit`](crate::TrapKind::TimeLimit): its packet, if any,
    /// and those before it are in the output, queued ones stay queued.
    #[must_use]
    pub fn stop(self) -> Ran<P> {
        self.batch.borrow_mut().stop();
        self.resume()
    }

    /// Returns the module's counters, by name: nothing changes them while the call is suspended.
    #[must_use]
    pub fn counters(&self) -> Vec<(String, u64)> {
        self.batch.borrow().counters.copied()
    }

    /// Returns the bytes of linear memory in use when the call began.
    #[must_use]
    pub const fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}
