//! Shared references to everything that documents and counters are made of.

use crate::associations::Neighbours;
use crate::cells::Cells;
use crate::compilers::Compilers;
use crate::config::NodeFile;
use crate::control::state::NodeState;
use crate::dataplane::DataPlane;
use crate::demand::Demand;
use crate::usage::Usage;
use node::Node;
use trust::SecretKey;
use units::Nanos;

/// State of a node at one moment, for reading.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    /// Time since the node started.
    pub(crate) now: Nanos,
    pub(crate) file: &'a NodeFile,
    pub(crate) node_key: &'a SecretKey,
    pub(crate) node: &'a Node,
    /// Desired state, capabilities and modules, around the node.
    pub(crate) state: &'a NodeState,
    pub(crate) plane: &'a DataPlane,
    pub(crate) cells: &'a Cells,
    /// Associations, where the node has any.
    pub(crate) neighbours: Option<&'a Neighbours>,
    pub(crate) demand: &'a Demand,
    pub(crate) compilers: &'a Compilers,
    /// Usage of sessions and of things that are gone, and what is billed.
    pub(crate) usage: &'a Usage,
}
