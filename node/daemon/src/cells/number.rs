//! Numbers of cells.

/// Number of a cell of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CellNumber(pub(super) u16);

impl CellNumber {
    /// Cell that runs all services as long as a node has one guest core.
    pub(crate) const FIRST: Self = Self(0);
}
