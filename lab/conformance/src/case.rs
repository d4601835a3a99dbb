//! Case of the table, as a value that depends on nothing else.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::Ending;

/// Environment variable with the folder of the built services, instead of the project's own.
const SERVICES_VARIABLE: &str = "TAM_SERVICES";

/// Module, packets for it, and their expected results.
///
/// The frames are whole ones as on the wire, their MAC addresses those of `wire::build`. A level
/// with real devices replaces them by its own, and sends only those that a device can carry
/// ([`Case::is_routable`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Description of the case, unique in the table.
    pub name: String,
    /// Name of the table's file.
    pub file: String,
    /// Line in that file.
    pub line: usize,
    /// Module to run.
    pub module: Module,
    /// Parameters of the module, as text.
    pub parameters: BTreeMap<String, String>,
    /// Levels that refuse the module, each with the code of its reason: that of a module that does
    /// not compile to eBPF, `verifier` or `frame_length`. Every other level runs it.
    pub refused: BTreeMap<abi::Level, String>,
    /// Frames that the instance gets first, to set its state; their results are not compared.
    pub before: Vec<Vec<u8>>,
    /// Frame whose outcome is compared.
    pub frame: Vec<u8>,
    /// Expected outcome.
    pub expected: Outcome,
}

/// Source of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Module {
    /// Bytes of a module written as text in the table, manifest included.
    Wasm(Vec<u8>),
    /// Name of a service of the project, as `tam build` makes it.
    Service(String),
}

/// Outcome of a frame, actual or expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Verdict, or the reason why there is none.
    pub ending: Ending,
    /// Packet as the module left it, before the node acts on the verdict; `None` when it is
    /// dropped.
    pub frame: Option<Vec<u8>>,
    /// Counters of the module; expected ones are only those that matter.
    pub counters: BTreeMap<String, u64>,
    /// Frames that the call sent beside the packet, in order.
    pub sent: Vec<Sent>,
    /// Events of the call, in order.
    pub events: Vec<Event>,
}

impl Outcome {
    /// Returns an outcome with this ending and nothing else.
    #[must_use]
    pub fn of(ending: Ending, frame: Option<Vec<u8>>) -> Self {
        let (counters, sent, events) = Default::default();
        Self { ending, frame, counters, sent, events }
    }
}

/// Frame that the module sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Name of the port.
    pub port: String,
    /// Bytes of the whole frame.
    pub frame: Vec<u8>,
}

/// Event that the module raised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Code chosen by the module.
    pub code: u32,
    /// Data of the event.
    pub data: Vec<u8>,
}

/// Reason why a case's module is missing.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// The service is not built.
    #[error(
        "cannot read the service {path}: {source}; build it with 'tam build', or name the folder of \
         the services in {SERVICES_VARIABLE}",
        path = .path.display()
    )]
    NotBuilt {
        /// Expected path of the module.
        path: PathBuf,
        /// Error of the file system.
        source: std::io::Error,
    },
}

impl Case {
    /// Returns the bytes of the module.
    ///
    /// # Errors
    /// The service is not built.
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

    /// Returns true if a node would route every frame, so that a real device can bring it to a
    /// module.
    #[must_use]
    pub fn is_routable(&self) -> bool {
        let routable =
            |frame: &Vec<u8>| wire::parse_frame(frame).is_ok_and(|packet| packet.ttl > 1);
        routable(&self.frame) && self.before.iter().all(routable)
    }
}
