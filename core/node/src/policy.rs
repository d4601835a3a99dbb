//! Failure policies: the treatment of a service's packets while it is down.
//!
//! ```text
//!          it runs        it is down           it has trapped N times within a minute
//! open     the service    forwarded plainly    as before: another instance
//! closed   the service    dropped              as before: another instance
//! bypass   the service    forwarded plainly    forwarded plainly, until an operator deploys it
//! ```
//!
//! A packet whose call traps is always dropped: the module may have left it half changed.

use core::fmt;
use core::str::FromStr;
use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use units::Nanos;

use crate::message::shown;

/// Default number of traps within [`TRAPS_WITHIN`] after which a service is bypassed. It is above
/// one because a module that traps on packets of one kind can still do its work.
pub const BYPASS_AFTER: u16 = 10;
/// Upper limit of that number: the node stores the time of each trap.
pub const BYPASS_AFTER_MAX: u16 = 1000;
/// Window of the trap counter; earlier traps do not count.
pub const TRAPS_WITHIN: Nanos = Nanos::from_millis(60_000);

/// Treatment of a service's packets while it is down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum OnFailure {
    /// Forward plainly.
    #[default]
    Open,
    /// Drop.
    Closed,
    /// Forward plainly, and do not start the service again after `after` traps within a minute.
    Bypass {
        /// Number of traps, from 1 to [`BYPASS_AFTER_MAX`].
        after: u16,
    },
}

/// Error of parsing a failure policy. Fault of the text's author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OnFailureError {
    /// The text is none of the three policies.
    #[error("'{text}' is no failure policy; use 'open', 'closed', 'bypass' or 'bypass=N'")]
    Unknown {
        /// Text as given, escaped and shortened.
        text: String,
    },
    /// The number of traps is no number, or out of bounds.
    #[error("'{text}': a service is bypassed after 1 to {BYPASS_AFTER_MAX} traps within a minute")]
    Number {
        /// Text as given, escaped and shortened.
        text: String,
    },
}

impl OnFailure {
    /// Returns true if packets are dropped while the service is down.
    #[must_use]
    pub const fn is_closed(self) -> bool {
        matches!(self, Self::Closed)
    }
}

impl FromStr for OnFailure {
    type Err = OnFailureError;

    fn from_str(text: &str) -> Result<Self, OnFailureError> {
        match text {
            "open" => return Ok(Self::Open),
            "closed" => return Ok(Self::Closed),
            "bypass" => return Ok(Self::Bypass { after: BYPASS_AFTER }),
            _ => {}
        }
        let Some(number) = text.strip_prefix("bypass=") else {
            return Err(OnFailureError::Unknown { text: shown(text) });
        };
        match number.parse() {
            Ok(after @ 1..=BYPASS_AFTER_MAX) => Ok(Self::Bypass { after }),
            _ => Err(OnFailureError::Number { text: shown(text) }),
        }
    }
}

impl fmt::Display for OnFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.pad("open"),
            Self::Closed => f.pad("closed"),
            Self::Bypass { after } => write!(f, "bypass={after}"),
        }
    }
}

impl TryFrom<String> for OnFailure {
    type Error = OnFailureError;

    fn try_from(text: String) -> Result<Self, OnFailureError> {
        text.parse()
    }
}

impl From<OnFailure> for String {
    fn from(policy: OnFailure) -> Self {
        policy.to_string()
    }
}

/// Times of a service's recent traps.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Traps {
    /// Times, oldest first; at most as many as the policy counts.
    at: VecDeque<Nanos>,
}

impl Traps {
    /// Records traps; returns true if the service is to be bypassed.
    pub(crate) fn add(&mut self, now: Nanos, count: u64, policy: OnFailure) -> bool {
        let OnFailure::Bypass { after } = policy else {
            self.at.clear();
            return false;
        };
        let after = usize::from(after);
        let news = usize::try_from(count).unwrap_or(after).min(after);
        self.at.extend(std::iter::repeat_n(now, news));
        let beyond = self.at.len().saturating_sub(after);
        self.at.drain(..beyond);
        self.at.retain(|at| now.saturating_sub(*at) < TRAPS_WITHIN);
        self.at.len() >= after
    }

    /// Clears the record, for a new version or another try by the operator.
    pub(crate) fn forget(&mut self) {
        self.at.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_written_as_they_are_read() {
        for text in ["open", "closed", "bypass=1", "bypass=1000"] {
            assert_eq!(text.parse::<OnFailure>().unwrap().to_string(), text);
        }
        let without = "bypass".parse::<OnFailure>().unwrap();
        assert_eq!(without, OnFailure::Bypass { after: BYPASS_AFTER });
        for text in ["bypass=0", "bypass=1001", "bypass=", "bypass=x"] {
            assert!(
                matches!(text.parse::<OnFailure>(), Err(OnFailureError::Number { .. })),
                "{text}"
            );
        }
        for text in ["", "Open", "close", "bypass 3"] {
            assert!(
                matches!(text.parse::<OnFailure>(), Err(OnFailureError::Unknown { .. })),
                "{text}"
            );
        }
    }

    #[test]
    fn only_traps_of_one_minute_count() {
        let second = |n: u64| Nanos::from_millis(1000 * n);
        let policy = OnFailure::Bypass { after: 3 };
        let mut traps = Traps::default();
        assert!(!traps.add(second(0), 1, policy));
        assert!(!traps.add(second(30), 1, policy));
        assert!(!traps.add(second(60), 1, policy), "the first is a minute ago");
        assert!(traps.add(second(61), 1, policy));
        let mut many = Traps::default();
        assert!(many.add(second(0), u64::MAX, policy), "all at once");
        assert_eq!(many.at.len(), 3, "no more than counts is remembered");
    }

    #[test]
    fn other_policies_never_bypass() {
        let mut traps = Traps::default();
        for policy in [OnFailure::Open, OnFailure::Closed] {
            assert!(!traps.add(Nanos::ZERO, u64::MAX, policy));
        }
    }
}
