//! Cache of fiber stacks for calls.
//!
//! A store keeps the stack of its last call for the next one. A host function that calls the module
//! needs another one meanwhile: without the cache it would be mapped and unmapped each time, which
//! takes longer than many a call.
//!
//! ```text
//!  ┌ 64 KiB ┬────── FIBER_LENGTH ──────┐
//!  │ none   │ ◀── grows downwards      │ top
//!  └────────┴──────────────────────────┘
//! ```
//!
//! Data that a call has left on a stack is invisible to the next one: compiled code reads only what
//! it has written there itself.

use std::cell::RefCell;
use std::ffi::c_void;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use wasmtime::{Config, StackCreator, StackMemory};

/// Most cached stacks of a thread: for the one nested call of each of some services that alternate.
const KEPT_MAX: usize = 8;
/// Size of the guard below each stack in bytes, so that an overflow touches nothing else; a
/// multiple of every page size on supported machines.
const GUARD_LENGTH: usize = 64 << 10;

thread_local! {
    static KEPT: RefCell<Vec<Mapping>> = const { RefCell::new(Vec::new()) };
}

/// Makes an engine's calls run on cached stacks.
pub fn cache_stacks(config: &mut Config) {
    config.with_host_stack(Arc::new(Creator));
}

struct Creator;

/// Memory of a stack, with an inaccessible guard below it.
struct Mapping {
    address: *mut c_void,
    /// Length including the guard, bytes.
    length: usize,
}

impl Mapping {
    fn new(length: usize) -> rustix::io::Result<Self> {
        let length = length + GUARD_LENGTH;
        let (nothing, flags) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let address = unsafe { mmap_anonymous(ptr::null_mut(), length, nothing, flags) }?;
        let mapping = Self { address, length };
        let usable = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: it is this mapping's, which nobody uses yet.
        unsafe { mprotect(mapping.bottom(), length - GUARD_LENGTH, usable) }?;
        Ok(mapping)
    }

    fn bottom(&self) -> *mut c_void {
        self.address.wrapping_byte_add(GUARD_LENGTH)
    }

    fn top(&self) -> *mut c_void {
        self.address.wrapping_byte_add(self.length)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it is this mapping's, and no stack is on it any more.
        let unmapped = unsafe { munmap(self.address, self.length) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can be taken away");
    }
}

/// Stack in use; `None` only while it is dropped.
struct Stack(Option<Mapping>);

// SAFETY: a mapping is memory of the process, whichever thread uses it; it is used by one call at a
// time, whose stack it is.
unsafe impl Send for Stack {}
// SAFETY: behind a shared reference there are only its addresses.
unsafe impl Sync for Stack {}

impl Stack {
    fn range(&self) -> Range<*mut c_void> {
        let none = || ptr::null_mut()..ptr::null_mut();
        self.0.as_ref().map_or_else(none, |mapping| mapping.bottom()..mapping.top())
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        let Some(mapping) = self.0.take() else { return };
        // A thread that ends caches nothing.
        let _ = KEPT.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            if kept.len() < KEPT_MAX {
                kept.push(mapping);
            }
        });
    }
}

// SAFETY: a stack is a mapping of its own that nobody else has until it is dropped, aligned to
// pages, with an inaccessible part below. New ones are zeroes; of those that were kept that is not
// promised, and not asked for: engines are made without `async_stack_zeroing`.
unsafe impl StackCreator for Creator {
    fn new_stack(&self, size: usize, zeroed: bool) -> wasmtime::Result<Box<dyn StackMemory>> {
        let length = size.next_multiple_of(GUARD_LENGTH);
        let fits = |mapping: &Mapping| mapping.length == length + GUARD_LENGTH;
        let kept = (!zeroed).then(|| KEPT.with_borrow_mut(|kept| kept.pop_if(|last| fits(last))));
        let mapping = match kept.flatten() {
            Some(mapping) => mapping,
            None => Mapping::new(length)?,
        };
        Ok(Box::new(Stack(Some(mapping))))
    }
}

// SAFETY: as of `StackCreator`; the addresses are those of the mapping, which stay as long as this.
unsafe impl StackMemory for Stack {
    fn top(&self) -> *mut u8 {
        self.range().end.cast()
    }

    fn range(&self) -> Range<usize> {
        let Range { start, end } = self.range();
        start as usize..end as usize
    }

    fn guard_range(&self) -> Range<*mut u8> {
        let bottom = self.range().start;
        bottom.wrapping_byte_sub(GUARD_LENGTH).cast()..bottom.cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_stack_is_reused_and_few_are_kept() {
        let new = |size| Creator.new_stack(size, false).unwrap();
        let first = new(128 << 10);
        let range = first.range();
        assert_eq!(range.len(), 128 << 10);
        assert_eq!(first.top() as usize, range.end);
        assert_eq!(first.guard_range().end as usize, range.start);
        // SAFETY: both are within the stack, which nobody else uses.
        unsafe {
            first.top().sub(1).write(1);
            first.guard_range().end.write(1);
        }
        let second = new(128 << 10);
        assert!(second.range().end <= range.start || range.end <= second.range().start);
        drop(first);
        let again = new(100 << 10);
        assert_eq!(again.range(), range, "a length is a multiple of 64 KiB");
        drop(again);
        let zeroed = Creator.new_stack(128 << 10, true).unwrap();
        assert_ne!(zeroed.range(), range);
        // SAFETY: within the stack.
        assert_eq!(unsafe { zeroed.top().sub(1).read() }, 0);
        let larger = new(256 << 10);
        assert_eq!(larger.range().len(), 256 << 10);
        let many: Vec<_> = (0..2 * KEPT_MAX).map(|_| new(128 << 10)).collect();
        drop((many, second, zeroed, larger));
        assert_eq!(KEPT.with_borrow(Vec::len), KEPT_MAX);
    }
}
