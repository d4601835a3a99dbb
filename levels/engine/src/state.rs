//! State on its way from one instance to the one that takes its place.
//!
//! ```text
//!  the same memory image      memory, globals ─▶ in place before on_start
//!  state_out, state_in        bytes of the module's choice ─▶ state_in after on_start; counters by name
//! ```

use abi::PacketBytes;
use abi::host::{COUNTER_PREFIX, Hook};
use std::rc::Rc;
use wasmtime::Store;

use crate::host::Host;
use crate::trap::Trap;
use crate::{Instance, StartError};

/// What an instance leaves to the next one.
#[derive(Debug)]
pub enum Kept {
    /// Its memory and mutable globals as they are: the next one has the same code and constants
    /// at the same places.
    Memory {
        /// All of linear memory.
        bytes: Vec<u8>,
        /// Mutable globals by index.
        globals: Vec<(u32, u64)>,
    },
    /// What its `state_out` wrote.
    Handed {
        /// The bytes, in the order in which they were written.
        bytes: Vec<u8>,
        /// Its counters by name: they go on counting.
        counters: Vec<(String, u64)>,
    },
}

impl Kept {
    /// Bytes of it, but for globals and counters.
    #[must_use]
    pub const fn length(&self) -> u64 {
        match self {
            Self::Memory { bytes, .. } | Self::Handed { bytes, .. } => bytes.len() as u64,
        }
    }
}

/// Why state was not handed over. The module's author's fault, or the operator's.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// No such hook.
    #[error("the module exports no '{0}'")]
    NoHook(&'static str),
    /// The hook trapped: the instance it ran in is not used again.
    #[error("{0} trapped: {1}")]
    Trapped(&'static str, Trap),
    /// The hook returned a number other than 0.
    #[error("{0} returned {1}: the module does not {2} this state")]
    Refused(&'static str, i32, &'static str),
    /// It does not fit.
    #[error("the state has {bytes} bytes of memory, and the new instance may have less")]
    TooLarge {
        /// Bytes of memory.
        bytes: usize,
    },
}

impl<P: PacketBytes + 'static> Instance<P> {
    /// Memory and globals as they are.
    pub fn keep_memory(&mut self) -> Kept {
        let globals = self.globals().collect();
        Kept::Memory { bytes: self.memory().to_vec(), globals }
    }

    /// Runs `state_out`.
    pub(crate) async fn state_out(&mut self, now_ms: u64) -> Result<Kept, StateError> {
        const NAME: &str = "state_out";
        let state_out = self.rest.state_out.clone().ok_or(StateError::NoHook(NAME))?;
        let hook = async |store: &mut Store<Host<P>>| state_out.call_async(store, ()).await;
        let answer = self.hook(Hook::StateOut, now_ms, hook).await;
        let host = self.store.data_mut();
        let bytes = std::mem::take(&mut host.state);
        host.limits.give_state();
        match answer {
            Ok(0) => Ok(Kept::Handed { bytes, counters: self.counters() }),
            Ok(code) => Err(StateError::Refused(NAME, code, "hand over")),
            Err(trap) => Err(StateError::Trapped(NAME, trap)),
        }
    }

    /// Puts memory and globals in place.
    pub(crate) fn put_memory(
        &mut self,
        bytes: &[u8],
        globals: &[(u32, u64)],
    ) -> Result<(), StateError> {
        let too_large = || StateError::TooLarge { bytes: bytes.len() };
        if !self.grow_to(bytes.len() as u64) {
            return Err(too_large());
        }
        let memory = self.memory.data_mut(&mut self.store);
        memory.get_mut(..bytes.len()).ok_or_else(too_large)?.copy_from_slice(bytes);
        self.set_globals(|index| globals.iter().find(|(i, _)| *i == index).map(|(_, v)| *v));
        Ok(())
    }

    /// Runs `state_in` over what another instance handed over; its counters go on.
    pub(crate) async fn state_in(
        &mut self,
        bytes: Vec<u8>,
        counters: &[(String, u64)],
        now_ms: u64,
    ) -> Result<(), StateError> {
        const NAME: &str = "state_in";
        let state_in = self.rest.state_in.clone().ok_or(StateError::NoHook(NAME))?;
        let length = bytes.len() as u32;
        let host = self.store.data_mut();
        (host.state, host.state_at) = (bytes, 0);
        let hook = async |store: &mut Store<Host<P>>| state_in.call_async(store, length).await;
        let answer = self.hook(Hook::StateIn, now_ms, hook).await;
        self.store.data_mut().state = Vec::new();
        match answer {
            Ok(0) => {}
            Ok(code) => return Err(StateError::Refused(NAME, code, "take")),
            Err(trap) => return Err(StateError::Trapped(NAME, trap)),
        }
        let memory = self.memory.data_mut(&mut self.store);
        for (name, at) in self.rest.counters.iter() {
            let value = counters.iter().find(|(known, _)| known == name);
            let room = memory.get_mut(*at as usize..).and_then(<[u8]>::first_chunk_mut);
            if let (Some((_, value)), Some(room)) = (value, room) {
                *room = value.to_le_bytes();
            }
        }
        Ok(())
    }
}

/// Returns the counter at an address of linear memory.
pub(crate) fn counter_at(memory: &[u8], address: u32) -> Option<u64> {
    let bytes = memory.get(address as usize..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

/// The counters that a module exports, with their addresses.
pub(crate) fn counters_of<P>(
    instance: &wasmtime::Instance,
    store: &mut Store<Host<P>>,
) -> Rc<[(String, u32)]> {
    let globals: Vec<_> = instance
        .exports(&mut *store)
        .filter_map(|export| {
            let name = export.name().strip_prefix(COUNTER_PREFIX)?.to_owned();
            Some((name, export.into_global()?))
        })
        .collect();
    globals
        .into_iter()
        .filter_map(|(name, global)| Some((name, global.get(&mut *store).i32()? as u32)))
        .collect()
}

impl From<StateError> for StartError {
    fn from(error: StateError) -> Self {
        Self::State(error)
    }
}
