//! What host functions work on, and how they reach a module's memory.

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

/// The data of a store.
pub(crate) struct Host {
    pub(crate) spec: ThreadBound<VmSpec>,
    pub(crate) limits: Limits,
    /// The call that stands still is to end when it goes on.
    pub(crate) stop: ThreadBound<Rc<Cell<bool>>>,
    /// The module's memory, and what gives places in it.
    pub(crate) memory: Option<Memory>,
    pub(crate) allocate: Option<TypedFunc<u32, u32>>,
    /// A place is being asked for: its function may not ask for another one.
    pub(crate) is_allocating: bool,
    /// Numbers the calls, for their pace.
    pub(crate) calls: u64,
    pub(crate) now: Now,
    pub(crate) contexts: Contexts,
    /// HTTP calls that are under way.
    pub(crate) http_calls: BTreeSet<u32>,
    pub(crate) last_http_call: u32,
    pub(crate) tick_period_ms: u32,
    pub(crate) effects: Effects,
    /// What was written to descriptors 1 and 2 and is no whole line yet.
    pub(crate) written: [Vec<u8>; 2],
}

impl Drop for Host {
    fn drop(&mut self) {
        self.limits.give(Part::State, self.contexts.added());
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

    /// Keeps a line if it is grave enough.
    pub(crate) fn log(&mut self, level: LogLevel, text: &[u8]) {
        if level >= self.spec.log_level {
            self.effects.log(level, text);
        }
    }

    /// Keeps what was written to a descriptor, line by line: some languages write lines in pieces.
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

    /// A call ends: what it wrote last is a line as well.
    pub(crate) fn end_lines(&mut self) {
        for is_error in [false, true] {
            if !self.written[usize::from(is_error)].is_empty() {
                self.write(is_error, b"\n");
            }
        }
    }

    /// What effects of a call mean for the streams that it touched.
    pub(crate) fn settle_effects(&mut self) {
        let continued = self.effects.iter().filter_map(|effect| match effect {
            Effect::Continue { context, stream } => Some((*context, *stream)),
            _ => None,
        });
        for (context, stream) in continued.collect::<Vec<(u32, StreamType)>>() {
            let side = self.contexts.get_mut(context).and_then(|it| it.side_mut(stream));
            if let Some(side) = side {
                side.held = crate::stream::Held::default();
            }
            self.contexts.give_added(&self.limits, context);
        }
    }

    /// The status of the answer that is being shown.
    pub(crate) fn call_status(&self) -> u32 {
        let status =
            |headers: &HeaderMap| std::str::from_utf8(headers.get(b":status")?).ok()?.parse().ok();
        self.contexts.response().and_then(|it| status(&it.headers)).unwrap_or(0)
    }
}
