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
    /// Instance at rest: what was to be done is done, or nothing was to begin any more, or it has
    /// trapped: then the instance is not to be used again.
    Rest(Box<Instance<P>>, Done),
    /// A call stands still.
    Suspended(Suspended<P>),
}

/// Work that was done.
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

    /// The oldest packet that was handled before the one that stands still.
    #[inline]
    pub fn pop(&mut self) -> Option<Handled<P>> {
        self.batch.borrow_mut().output.pop_front()
    }

    /// Resumes the call.
    #[must_use]
    pub fn resume(mut self) -> Ran<P> {
        // Nobody is to be woken: whoever suspended it resumes it.
        let mut context = Context::from_waker(Waker::noop());
        match self.running.as_mut().poll(&mut context) {
            Poll::Ready((instance, done)) => Ran::Rest(instance, done),
            Poll::Pending => Ran::Suspended(self),
        }
    }

    /// Ends the call with [`TrapKind::TimeLimit`](crate::TrapKind::TimeLimit): if it has a packet,
    /// that and those before it are in the output, those that wait still wait.
    #[must_use]
    pub fn stop(self) -> Ran<P> {
        self.batch.borrow_mut().stop();
        self.resume()
    }

    /// Returns the module's counters, by name, as they are: nothing changes them while the call
    /// stands still.
    #[must_use]
    pub fn counters(&self) -> Vec<(String, u64)> {
        self.batch.borrow().counters.copied()
    }

    /// Returns the bytes of linear memory that were in use when the call began.
    #[must_use]
    pub const fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}
