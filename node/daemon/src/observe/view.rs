//! Shared references to everything that documents and counters are made of.

use crate::associations::Neighbours;
use crate::cells::Cells;
use crate::compilers::Compilers;
use crate::config::NodeFile;
use crate::control::state::NodeState;
use crate::dataplane::DataPlane;
use crate::demand::Demand;
use crate::ledger::Billing;
use crate::sessions::Sessions;
use node::Node;
use std::collections::BTreeMap;
use trust::SecretKey;
use units::{Name, Nanos};

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
    pub(crate) billing: &'a Billing,
    pub(crate) demand: &'a Demand,
    pub(crate) compilers: &'a Compilers,
    /// Usage of sessions, as cells report it.
    pub(crate) sessions: &'a Sessions,
    /// Packets and bytes that removed rules had counted, by session.
    pub(crate) closed: &'a BTreeMap<Name, (u64, u64)>,
    /// Fuel that removed services had used, by session.
    pub(crate) fuel_closed: &'a BTreeMap<Name, u64>,
}
