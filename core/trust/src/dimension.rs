//! Dimensions in which a grant can be narrow, and kinds of services.

use std::fmt;

/// In which a grant can be narrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dimension {
    /// What is done.
    Operation,
    /// Whose services and rules.
    Session,
    /// Which modules.
    Module,
    /// What modules may be.
    Kind,
    /// Where they run.
    Level,
    /// Which host functions they have.
    Function,
    /// Which packets rules match.
    Traffic,
    /// How much of a resource.
    Ceiling,
    /// Until when.
    Until,
}

impl Dimension {
    /// Those that have an extent.
    pub const EXTENTS: [Self; 7] = [
        Self::Operation,
        Self::Session,
        Self::Module,
        Self::Kind,
        Self::Level,
        Self::Function,
        Self::Traffic,
    ];

    /// As it stands in tokens.
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

/// What a service may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Before and behind everybody's services (the stages of rules).
    Infrastructure,
    /// One principal's.
    Application,
}

impl Kind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Infrastructure, Self::Application];

    /// As it stands in tokens and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Infrastructure => "infrastructure",
            Self::Application => "application",
        }
    }
}
