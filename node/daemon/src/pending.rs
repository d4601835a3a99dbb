//! Services that begin when their module is compiled.

use crate::deploy::Module;
use abi::manifest::ParameterValue;
use cell::protocol::{RetainedSizes, ServiceSpec, StateTransfer, StreamSpec};
use node::ServiceStart;
use std::collections::BTreeMap;
use units::{EntryId, Name};

/// Service, or version of one, that begins when its module is compiled.
pub(crate) struct Pending {
    pub(crate) facts: Facts,
    /// Levels to run it at, best first.
    pub(crate) levels: Vec<abi::Level>,
    /// Path by which a version that replaces another one gets its state.
    pub(crate) replaces: Option<StateTransfer>,
}

/// Description of a service for its cell.
pub(crate) enum Facts {
    /// Service that handles packets.
    Packets(ServiceSpec),
    /// Service that handles connections.
    Streams(StreamSpec),
}

impl Facts {
    /// Returns the entry of the service.
    pub(crate) const fn entry(&self) -> EntryId {
        match self {
            Self::Packets(facts) => facts.entry,
            Self::Streams(facts) => facts.entry,
        }
    }
}

/// Returns the description of a service that handles packets.
pub(crate) fn packet_facts(start: ServiceStart, module: &Module) -> ServiceSpec {
    let manifest = &module.checked.manifest;
    ServiceSpec {
        entry: start.entry,
        name: start.service.to_string(),
        session: start.session,
        window: manifest.window,
        memory_pages_min: module.checked.memory.pages_min,
        memory_pages_max: module.checked.memory.pages_max,
        // A node has one guest core so far: one instance is one for each core.
        lanes: match start.lanes {
            abi::Lanes::Count(count) => count,
            abi::Lanes::PerCore => 1,
        },
        pools: manifest.pools.clone(),
        flows_by: manifest.flows_by.clone(),
        timer_ms: manifest.timer_ms,
        brief: module.checked.brief.is_some(),
        parameters: bytes_of(start.parameters),
        refusals: manifest.refusals.clone(),
        functions: start.functions,
        closed: start.closed,
        shared: None,
        kept: RetainedSizes { module: module.wasm.len() as u32, code: 0 },
    }
}

/// Returns the description of a service of streams.
pub(crate) fn stream_facts(start: ServiceStart, module: &Module) -> StreamSpec {
    StreamSpec {
        entry: start.entry,
        name: start.service.to_string(),
        session: start.session,
        memory_pages_max: module.checked.memory.pages_max,
        parameters: bytes_of(start.parameters),
        closed: start.closed,
        kept: RetainedSizes { module: module.wasm.len() as u32, code: 0 },
    }
}

/// Returns the values of parameters as a module gets them.
fn bytes_of(parameters: BTreeMap<Name, ParameterValue>) -> BTreeMap<String, Vec<u8>> {
    parameters.iter().map(|(name, value)| (name.to_string(), value.to_bytes())).collect()
}
