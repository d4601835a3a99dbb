//! Dimensions in which a grant can be narrow, and kinds of services.

use std::fmt;

/// Dimension in which a grant can be narrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dimension {
    /// Operations.
    Operation,
    /// Sessions of services and rules.
    Session,
    /// Modules, by digest, name or signer.
    Module,
    /// Kinds of services.
    Kind,
    /// Levels that services run at.
    Level,
    /// Host functions that modules call.
    Function,
    /// Packets that rules match.
    Traffic,
    /// Amounts of resources.
    Ceiling,
    /// End of the grant.
    Until,
}

impl Dimension {
    /// Dimensions that have an extent.
    pub const EXTENTS: [Self; 7] = [
        Self::Operation,
        Self::Session,
        Self::Module,
        Self::Kind,
        Self::Level,
        Self::Function,
        Self::Traffic,
    ];

    /// Returns the name in tokens.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Operation => "operation",
            Self::Session => "session",
            Self::Module => "module",
            Self::Kind => "kind",
            Self::Level => "level",
            Self::Function => "function",
            Self::Traffic => "traffic",
            Self::Ceiling => "ceiling",
            Self::Until => "until",
        }
    }
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Kind of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Infrastructure: runs before and after all principals' services, in its own stages of rules.
    Infrastructure,
    /// Application of one principal.
    Application,
}

impl Kind {
    /// Both kinds.
    pub const ALL: [Self; 2] = [Self::Infrastructure, Self::Application];

    /// Returns the name in tokens and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Infrastructure => "infrastructure",
            Self::Application => "application",
        }
    }
}
