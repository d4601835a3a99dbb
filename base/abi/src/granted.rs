//! Grants of host functions.
//!
//! A function that is not granted is not linked, at any level, so no check is needed per packet. A
//! module that imports such a function is refused as a whole: the code of a module is the same for
//! every principal that may run it.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::host::{HOST_FUNCTIONS, HostFunction};

/// Text form of [`HostFunctions::ALL`].
const ALL: &str = "all";

/// Set of host functions. Written as their names, or as the one word `all`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "Vec<String>", try_from = "Vec<String>")]
pub struct HostFunctions(u64);

const _: () = assert!(HOST_FUNCTIONS.len() < u64::BITS as usize, "each function has a bit");

impl HostFunctions {
    /// Every function, those of later versions of the ABI included.
    pub const ALL: Self = Self(u64::MAX);
    /// No function.
    pub const NONE: Self = Self(0);

    /// Returns this set with a function added.
    #[must_use]
    pub const fn with(self, function: HostFunction) -> Self {
        Self(self.0 | 1 << function as u32)
    }

    /// Returns this set with a function removed. [`Self::ALL`] is reduced to the functions of this
    /// version.
    #[must_use]
    pub fn without(self, function: HostFunction) -> Self {
        self.iter().filter(|it| *it != function).collect()
    }

    /// Returns true if the set contains a function.
    #[must_use]
    pub const fn has(self, function: HostFunction) -> bool {
        self.0 & 1 << function as u32 != 0
    }

    /// Iterates over the functions that this version knows, in the order of the table.
    pub fn iter(self) -> impl Iterator<Item = HostFunction> {
        HOST_FUNCTIONS.iter().map(|spec| spec.function).filter(move |it| self.has(*it))
    }

    /// Checks that everything in `imported` is granted by this set.
    ///
    /// # Errors
    /// Every function that is missing.
    pub fn permit(self, imported: Self) -> Result<(), NotGranted> {
        match Self(imported.0 & !self.0) {
            Self::NONE => Ok(()),
            missing => Err(NotGranted { missing }),
        }
    }
}

impl Default for HostFunctions {
    /// Returns all functions: a principal without this field is not limited.
    fn default() -> Self {
        Self::ALL
    }
}

impl FromIterator<HostFunction> for HostFunctions {
    fn from_iter<T: IntoIterator<Item = HostFunction>>(functions: T) -> Self {
        functions.into_iter().fold(Self::NONE, Self::with)
    }
}

impl fmt::Display for HostFunctions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Vec::from(*self).join(", "))
    }
}

impl fmt::Debug for HostFunctions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(Vec::from(*self)).finish()
    }
}

impl From<HostFunctions> for Vec<String> {
    fn from(functions: HostFunctions) -> Self {
        if functions == HostFunctions::ALL {
            return vec![ALL.to_owned()];
        }
        functions.iter().map(|function| function.spec().name.to_owned()).collect()
    }
}

impl TryFrom<Vec<String>> for HostFunctions {
    type Error = UnknownFunction;

    fn try_from(names: Vec<String>) -> Result<Self, Self::Error> {
        if matches!(names.as_slice(), [word] if word == ALL) {
            return Ok(Self::ALL);
        }
        let find = |name: String| {
            let spec = HOST_FUNCTIONS.iter().find(|spec| spec.name == name);
            spec.map(|spec| spec.function).ok_or(UnknownFunction { name })
        };
        names.into_iter().map(find).collect()
    }
}

/// The name is no host function's: a fault of the set's author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{name}' is no host function; known are {}, or '{ALL}' alone",
    HOST_FUNCTIONS.iter().map(|spec| spec.name).collect::<Vec<_>>().join(", ")
)]
pub struct UnknownFunction {
    /// Name as written.
    pub name: String,
}

/// The module imports functions that its principal may not use. The same at every level.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
#[error(
    "it imports {missing}, which is not granted; leave that out, or ask for a token with these host functions"
)]
pub struct NotGranted {
    /// Imports that are not granted.
    pub missing: HostFunctions,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_put_in_and_reads_back_as_it_is_written() {
        let set = HostFunctions::NONE.with(HostFunction::NowMs).with(HostFunction::Event);
        for spec in HOST_FUNCTIONS {
            let wanted = matches!(spec.function, HostFunction::NowMs | HostFunction::Event);
            assert_eq!(set.has(spec.function), wanted, "{}", spec.name);
            assert!(HostFunctions::ALL.has(spec.function));
        }
        for set in [set, HostFunctions::NONE, HostFunctions::ALL] {
            assert_eq!(HostFunctions::try_from(Vec::from(set)), Ok(set));
        }
        assert_eq!(Vec::from(set), ["event", "now_ms"]);
        assert_eq!(
            set.without(HostFunction::Event),
            HostFunctions::from_iter([HostFunction::NowMs])
        );
    }

    #[test]
    fn what_is_not_granted_is_named() {
        let imported = HostFunctions::from_iter([HostFunction::PacketSend, HostFunction::NowMs]);
        assert_eq!(HostFunctions::ALL.permit(imported), Ok(()));
        assert_eq!(imported.permit(imported), Ok(()));
        let refused = HostFunctions::ALL.without(HostFunction::PacketSend).permit(imported);
        let refused = refused.unwrap_err();
        assert_eq!(refused.missing, HostFunctions::NONE.with(HostFunction::PacketSend));
        assert!(refused.to_string().starts_with("it imports packet_send, which is not granted"));
    }

    #[test]
    fn a_name_that_is_none_is_answered_with_those_that_are() {
        let names = vec!["event".to_owned(), "packet_sent".to_owned()];
        let error = HostFunctions::try_from(names).unwrap_err();
        assert!(
            error.to_string().contains("'packet_sent'")
                && error.to_string().contains("packet_send,")
        );
    }
}
