//! Weights: proportions in which sessions divide the surplus.

use core::fmt;
use core::num::ParseIntError;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::text::shown;

/// Largest weight. With larger ones a session of weight 1 would wait for seconds.
pub const WEIGHT_MAX: u16 = 1_000;

/// Proportional weight in the division of the surplus: 1 to [`WEIGHT_MAX`], by default 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct Weight(u16);

/// Error of a weight. The operator's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightError {
    /// The text is not a whole number.
    #[error("the weight '{text}' is no whole number; use 1 to {WEIGHT_MAX}, 100 is usual")]
    Number {
        /// Input, shortened.
        text: String,
    },
    /// The number is zero or larger than [`WEIGHT_MAX`].
    #[error("a weight of {weight} is not between 1 and {WEIGHT_MAX}; 100 is usual")]
    Range {
        /// Number requested.
        weight: u16,
    },
}

impl Weight {
    /// Makes a weight from a number.
    ///
    /// # Errors
    /// The number is not between 1 and [`WEIGHT_MAX`].
    pub const fn new(weight: u16) -> Result<Self, WeightError> {
        if weight >= 1 && weight <= WEIGHT_MAX {
            Ok(Self(weight))
        } else {
            Err(WeightError::Range { weight })
        }
    }

    /// Returns the weight as a number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self(100)
    }
}

impl TryFrom<u16> for Weight {
    type Error = WeightError;
    fn try_from(weight: u16) -> Result<Self, WeightError> {
        Self::new(weight)
    }
}

impl From<Weight> for u16 {
    fn from(weight: Weight) -> Self {
        weight.0
    }
}

impl FromStr for Weight {
    type Err = WeightError;
    fn from_str(text: &str) -> Result<Self, WeightError> {
        let number = |_: ParseIntError| WeightError::Number { text: shown(text) };
        Self::new(text.parse().map_err(number)?)
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_is_between_1_and_1000() {
        assert_eq!("200".parse::<Weight>().unwrap().get(), 200);
        assert_eq!(Weight::default().to_string(), "100");
        assert_eq!("0".parse::<Weight>(), Err(WeightError::Range { weight: 0 }));
        assert_eq!("1001".parse::<Weight>(), Err(WeightError::Range { weight: 1001 }));
        assert!(matches!("much".parse::<Weight>(), Err(WeightError::Number { .. })));
        assert!(serde_json::from_str::<Weight>("0").is_err());
    }
}
