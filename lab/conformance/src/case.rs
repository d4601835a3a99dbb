//! One case of the table, as a value that needs nothing beside it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::Ending;

/// The variable that names the folder of the built services, instead of the project's own.
const SERVICES_VARIABLE: &str = "TAM_SERVICES";

/// A module, packets for it, and what must come of them.
///
/// The frames are whole ones as on the wire, their MAC addresses those of
/// `wire::build`. A level with real devices gives them its own, and sends only
/// those that a device can carry ([`Case::is_routable`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// What is tried, unique in the table.
    pub name: String,
    /// The file that says so.
    pub file: String,
    /// The line of that file.
    pub line: usize,
    /// What runs.
    pub module: Module,
    /// The operator's parameters, as text.
    pub parameters: BTreeMap<String, String>,
    /// Levels that refuse it, each with the code of its reason: what cannot become
    /// eBPF, `verifier` or `frame_length`. Every other level runs it.
    pub refused: BTreeMap<abi::Level, String>,
    /// Frames that the instance gets first; only what they leave in it matters.
    pub before: Vec<Vec<u8>>,
    /// The frame whose outcome counts.
    pub frame: Vec<u8>,
    /// What must come of it.
    pub expected: Outcome,
}

/// Where a module comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Module {
    /// The bytes of a module written as text in the table, manifest included.
    Wasm(Vec<u8>),
    /// One of the project's services, by name, as `tam build` makes it.
    Service(String),
}

/// What came of a frame, or must.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The verdict, or why there is none.
    pub ending: Ending,
    /// The packet as the module left it, before the node acts on the verdict;
    /// `None` when it is dropped.
    pub frame: Option<Vec<u8>>,
    /// The module's counters; what is expected names only those that matter.
    pub counters: BTreeMap<String, u64>,
    /// Frames that the call sent beside the packet, in order.
    pub sent: Vec<Sent>,
    /// Events of the call, in order.
    pub events: Vec<Event>,
}

impl Outcome {
    /// An outcome with nothing beside its ending.
    #[must_use]
    pub fn of(ending: Ending, frame: Option<Vec<u8>>) -> Self {
        let (counters, sent, events) = Default::default();
        Self { ending, frame, counters, sent, events }
    }
}

/// A frame of the module's own making.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The port's name.
    pub port: String,
    /// The whole frame.
    pub frame: Vec<u8>,
}

/// A notice to the node's event stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Chosen by the module.
    pub code: u32,
    /// Its data.
    pub data: Vec<u8>,
}

/// Why a case's module cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// The service is not built.
    #[error(
        "cannot read the service {path}: {source}; build it with 'tam build', or name the folder of \
         the services in {SERVICES_VARIABLE}",
        path = .path.display()
    )]
    NotBuilt {
        /// Where it should lie.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
}

impl Case {
    /// The bytes of the module.
    ///
    /// # Errors
    /// When it is a service that is not built.
    pub fn wasm(&self) -> Result<Vec<u8>, ModuleError> {
        let name = match &self.module {
            Module::Wasm(bytes) => return Ok(bytes.clone()),
            Module::Service(name) => name,
        };
        let services = std::env::var_os(SERVICES_VARIABLE).map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../services"),
            PathBuf::from,
        );
        let path = services.join(name).join(format!("{name}.wasm"));
        std::fs::read(&path).map_err(|source| ModuleError::NotBuilt { path, source })
    }

    /// Whether every frame is one that a node would route, so that a real
    /// device can bring it to a module.
    #[must_use]
    pub fn is_routable(&self) -> bool {
        let routable =
            |frame: &Vec<u8>| wire::parse_frame(frame).is_ok_and(|packet| packet.ttl > 1);
        routable(&self.frame) && self.before.iter().all(routable)
    }
}
