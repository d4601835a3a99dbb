//! Quantities with their unit in the type, and the names of objects.
//!
//! Shared by every other crate. Decides nothing and knows no protocol: a bare `u64` of bytes never
//! crosses a crate boundary, a [`Bytes`] does.

#![forbid(unsafe_code)]

mod account;
mod coarse;
mod ticks;

pub use account::{Account, Held};
pub use coarse::CoarseInstant;
pub use ticks::Ticks;

use core::fmt;
use serde::{Deserialize, Serialize};

/// Defines one quantity: a `u64` that adds, saturates and prints with its unit.
macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $unit:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// Zero.
            pub const ZERO: Self = Self(0);

            /// `self - other`, or zero: counters that were reset never go negative.
            #[must_use]
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }

        impl core::ops::Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }

        impl core::ops::AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }

        impl core::iter::Sum for $name {
            fn sum<I: Iterator<Item = Self>>(values: I) -> Self {
                values.fold(Self::ZERO, |sum, value| sum + value)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{} ", $unit), self.0)
            }
        }
    };
}

quantity!(
    /// Nanoseconds, of a duration or of a node's monotonic clock.
    Nanos, "ns"
);
quantity!(
    /// Whole milliseconds of a duration: the step of a [`CoarseInstant`].
    Millis, "ms"
);
quantity!(
    /// Bytes on the wire, without preamble and frame check sequence.
    Bytes, "B"
);
quantity!(
    /// Whole packets: one frame each, never a super-packet.
    Packets, "packets"
);
quantity!(
    /// Bits per second of a link.
    BitsPerSecond, "bit/s"
);

impl Nanos {
    /// Converts whole milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Returns whole milliseconds, rounded down: the step of a module's clock.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }
}

/// Number of a session: the resource container that every rule, instance and queue carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(pub u16);

impl SessionId {
    /// Session of housekeeping and infrastructure, charged to no principal.
    pub const SYSTEM: Self = Self(0);
    /// Session of all services without a reservation.
    pub const BEST_EFFORT: Self = Self(1);
}

/// Number of a rule: the index of its counters, reused only after the rule is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RuleId(pub u32);

/// Number of a port within its node: the index of its counters and of its slot in the device map.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct PortId(pub u16);

/// Number of a service's entry in a cell: selects the instances that get the packets of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EntryId(pub u16);

/// Destination of an edge out of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Edge {
    /// The edge leaves the graph: the packet is forwarded.
    #[default]
    Out,
    /// The edge leads to another service.
    To(EntryId),
    /// The edge leads to a service that is down: packets are dropped meanwhile.
    Down,
}

macro_rules! shown_as_number {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}
shown_as_number!(SessionId, RuleId, PortId, EntryId);

/// Longest name of a node, port, service, host or lab: it becomes part of paths
/// under `/run` and `/sys/fs/bpf` and of names of network namespaces.
pub const NAME_LENGTH_MAX: usize = 32;

/// A name that is safe in paths, namespaces and messages: `[a-z0-9][a-z0-9_-]*`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

/// Reason why a name was refused: a fault of the operator or the author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name is empty.
    #[error("a name is empty; use letters a-z, digits, '-' and '_'")]
    Empty,
    /// The name has more than [`NAME_LENGTH_MAX`] bytes.
    #[error("the name '{name}' has {length} characters, at most {NAME_LENGTH_MAX} are allowed")]
    TooLong {
        /// The name as given, shortened for the message.
        name: String,
        /// Length of the name in bytes.
        length: usize,
    },
    /// The name has a character that has a meaning in a path or a shell.
    #[error(
        "the name '{name}' has the character {character:?} at position {position}; use letters a-z, digits, '-' and '_', and begin with a letter or digit"
    )]
    Character {
        /// The name as given, with control characters escaped.
        name: String,
        /// First character that is not allowed.
        character: char,
        /// Position of the character, counted from 1.
        position: usize,
    },
}

impl Name {
    /// Parses a name.
    ///
    /// # Errors
    /// The name is empty, too long, or has a character outside `[a-z0-9_-]`.
    pub fn new(name: impl Into<String>) -> Result<Self, NameError> {
        let name = name.into();
        let shown =
            || name.chars().take(NAME_LENGTH_MAX + 8).flat_map(char::escape_default).collect();
        if name.is_empty() {
            return Err(NameError::Empty);
        }
        if name.len() > NAME_LENGTH_MAX {
            return Err(NameError::TooLong { name: shown(), length: name.len() });
        }
        let allowed = |at: usize, c: char| {
            c.is_ascii_lowercase() || c.is_ascii_digit() || (at > 0 && (c == '-' || c == '_'))
        };
        match name.chars().enumerate().find(|&(at, c)| !allowed(at, c)) {
            Some((at, character)) => {
                Err(NameError::Character { name: shown(), character, position: at + 1 })
            }
            None => Ok(Self(name)),
        }
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;
    fn try_from(name: String) -> Result<Self, NameError> {
        Self::new(name)
    }
}

impl core::str::FromStr for Name {
    type Err = NameError;
    fn from_str(name: &str) -> Result<Self, NameError> {
        Self::new(name)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_in_paths() {
        assert!(Name::new("r1_left-2").is_ok());
        assert_eq!(Name::new(""), Err(NameError::Empty));
        for bad in ["../x", "-a", "A", "a b", "a/b", "a\u{1b}[2J"] {
            assert!(matches!(Name::new(bad), Err(NameError::Character { .. })), "{bad:?}");
        }
        assert!(matches!(Name::new("a".repeat(33)), Err(NameError::TooLong { length: 33, .. })));
    }

    #[test]
    fn a_refused_name_is_escaped_in_its_message() {
        let message = Name::new("a\u{1b}[2J").unwrap_err().to_string();
        assert!(!message.contains('\u{1b}'), "{message:?}");
    }

    #[test]
    fn quantities_saturate_and_say_their_unit() {
        assert_eq!((Bytes(u64::MAX) + Bytes(1)).to_string(), format!("{} B", u64::MAX));
        assert_eq!(Packets(3).saturating_sub(Packets(5)), Packets::ZERO);
        assert_eq!(Nanos(1_999_999).as_millis(), 1);
    }
}
