//! Quantities with their unit in the type, and the names of things.
//!
//! What every other crate says. It decides nothing and knows no protocol: a
//! bare `u64` of bytes never crosses a crate boundary, a [`Bytes`] does.

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
            /// None of it.
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
    /// Milliseconds of a duration, whole ones: the step of a [`CoarseInstant`].
    Millis, "ms"
);
quantity!(
    /// Bytes as they are on the wire, without preamble and frame check sequence.
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
    /// From whole milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Whole milliseconds, rounded down: the step of a module's clock.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }
}

/// A session's number: the resource container that every rule, instance and queue carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(pub u16);

impl SessionId {
    /// Housekeeping and infrastructure: charged to nobody.
    pub const SYSTEM: Self = Self(0);
    /// Those who reserved nothing.
    pub const BEST_EFFORT: Self = Self(1);
}

/// A rule's number: the index of its counters, reused only after the rule is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RuleId(pub u32);

/// A port's number within its node: the index of its counters and its place in the device map.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct PortId(pub u16);

/// The number of a service's entry in a cell: which instances get the packets of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EntryId(pub u16);

/// Where an edge out of a service leads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Edge {
    /// Out of the graph: the packet is forwarded.
    #[default]
    Out,
    /// To another service.
    To(EntryId),
    /// To one that is down, and whose packets are dropped meanwhile.
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

/// Why a name was refused. The operator's or the author's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing at all.
    #[error("a name is empty; use letters a-z, digits, '-' and '_'")]
    Empty,
    /// More than [`NAME_LENGTH_MAX`] bytes.
    #[error("the name '{name}' has {length} characters, at most {NAME_LENGTH_MAX} are allowed")]
    TooLong {
        /// The name as given, shortened for the message.
        name: String,
        /// Its length in bytes.
        length: usize,
    },
    /// A character that has a meaning in a path or a shell.
    #[error(
        "the name '{name}' has the character {character:?} at position {position}; use letters a-z, digits, '-' and '_', and begin with a letter or digit"
    )]
    Character {
        /// The name as given, with control characters escaped.
        name: String,
        /// The first character that is not allowed.
        character: char,
        /// Its place, counted from 1.
        position: usize,
    },
}

impl Name {
    /// Parses a name.
    ///
    /// # Errors
    /// When it is empty, too long, or has a character outside `[a-z0-9_-]`.
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

    /// The name as text.
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
