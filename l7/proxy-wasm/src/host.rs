//! State behind the host functions, and their access to a module's memory.

mod data;
mod effects;
mod link;
mod maps;
mod memory;
mod wasi;

pub(crate) use link::link;
pub(crate) use memory::Exited;

use crate::abi::{LogLevel, StreamType};
use crate::context::Contexts;
use crate::effect::{Effect, Effects};
use crate::limits::{LOG_LENGTH_MAX, TABLE_ELEMENTS_MAX};
use crate::map::HeaderMap;
use crate::spec::{Now, VmSpec};
use engine::{Limits, Part, ThreadBound};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use wasmtime::{Memory, TypedFunc};

/// Data of a store.
pub(crate) struct Host {
    pub(crate) spec: ThreadBound<VmSpec>,
    pub(crate) limits: Limits,
    /// True if the suspended call must end when it is resumed.
    pub(crate) stop: ThreadBound<Rc<Cell<bool>>>,
    /// Memory of the module, and its allocation function.
    pub(crate) memory: Option<Memory>,
    pub(crate) allocate: Option<TypedFunc<u32, u32>>,
    /// True during a call of the allocation function, which must not cause another one.
    pub(crate) is_allocating: bool,
    /// Number of calls so far; identifies a call for its pace.
    pub(crate) calls: u64,
    pub(crate) now: Now,
    pub(crate) contexts: Contexts,
    /// HTTP calls in progress.
    pub(crate) http_calls: BTreeSet<u32>,
    pub(crate) last_http_call: u32,
    pub(crate) tick_period_ms: u32,
    pub(crate) effects: Effects,
    /// Incomplete lines written to file descriptors 1 and 2.
    pub(crate) written: [Vec<u8>; 2],
}

impl Drop for Host {
    fn drop(&mut self) {
        self.limits.give(Part::State, self.contexts.added_bytes());
    }
}

impl Host {
    pub(crate) fn new(spec: VmSpec, stop: Rc<Cell<bool>>) -> Self {
        let limits =
            Limits::new((spec.memory_bytes_max, TABLE_ELEMENTS_MAX), spec.room.clone(), false);
        Self {
            limits,
            spec: ThreadBound::new(spec),
            stop: ThreadBound::new(stop),
            memory: None,
            allocate: None,
            is_allocating: false,
            calls: engine::first_call(),
            now: Now::default(),
            contexts: Contexts::default(),
            http_calls: BTreeSet::new(),
            last_http_call: 0,
            tick_period_ms: 0,
            effects: Effects::default(),
            written: [Vec::new(), Vec::new()],
        }
    }

    /// Adds a line to the log if its level suffices.
    pub(crate) fn log(&mut self, level: LogLevel, text: &[u8]) {
        if level >= self.spec.log_level {
            self.effects.log(level, text);
        }
    }

    /// Adds text written to a file descriptor, line by line: some languages write lines in pieces.
    pub(crate) fn write(&mut self, is_error: bool, text: &[u8]) {
        let level = if is_error { LogLevel::Error } else { LogLevel::Info };
        let mut line = std::mem::take(&mut self.written[usize::from(is_error)]);
        for piece in text.split_inclusive(|byte| *byte == b'\n') {
            let room = LOG_LENGTH_MAX.saturating_sub(line.len());
            line.extend_from_slice(&piece[..piece.len().min(room + 1)]);
            if piece.ends_with(b"\n") {
                let whole = line.strip_suffix(b"\n").unwrap_or(&line);
                self.log(level, whole);
                line.clear();
            }
        }
        self.written[usize::from(is_error)] = line;
    }

    /// Completes the pending lines at the end of a call.
    pub(crate) fn end_lines(&mut self) {
        for is_error in [false, true] {
            if !self.written[usize::from(is_error)].is_empty() {
                self.write(is_error, b"\n");
            }
        }
    }

    /// Applies a call's effects to the streams that it touched.
    pub(crate) fn apply_effects(&mut self) {
        let continued = self.effects.iter().filter_map(|effect| match effect {
            Effect::Continue { context, stream } => Some((*context, *stream)),
            _ => None,
        });
        for (context, stream) in continued.collect::<Vec<(u32, StreamType)>>() {
            let side = self.contexts.get_mut(context).and_then(|it| it.side_mut(stream));
            if let Some(side) = side {
                side.held = crate::stream::Held::default();
            }
            self.contexts.release_added(&self.limits, context);
        }
    }

    /// Returns the HTTP status of the response that the callback is for.
    pub(crate) fn call_status(&self) -> u32 {
        let status =
            |headers: &HeaderMap| std::str::from_utf8(headers.get(b":status")?).ok()?.parse().ok();
        self.contexts.response().and_then(|it| status(&it.headers)).unwrap_or(0)
    }
}
