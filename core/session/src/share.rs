//! Shares: a slice of time in each period, of a processor or of a port's rate.
//!
//! ```text
//!   slice      slice      slice
//!  ├███──────┼──███────┼────███┤   each period has the slice once, anywhere in it
//!    period     period    period
//! ```

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};
use units::Nanos;

use crate::text::{TextError, parse_percent, parse_time, serde_as_text, show_time, shown};

/// Shortest period. Stopping a module takes up to 12 µs (99th percentile of a timer signal) and a
/// stack switch; in a shorter period that would be more than 1 %.
pub const PERIOD_MIN: Nanos = Nanos::from_millis(1);
/// Longest period. A guarantee over more than a second has no effect that a user would notice.
pub const PERIOD_MAX: Nanos = Nanos::from_millis(1_000);
/// Shortest slice: four times the longest time that stopping a module may take.
pub const SLICE_MIN: Nanos = Nanos(50_000);

const _: () = assert!(SLICE_MIN.0 <= PERIOD_MIN.0 && PERIOD_MIN.0 <= PERIOD_MAX.0);

/// Whole processor or port, in parts per million.
pub const WHOLE: u64 = 1_000_000;

/// Fraction of a processor or of a port in parts per million, above a million for several of them;
/// shown in percent.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Parts(pub u64);

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (percent, rest) = (self.0 / 10_000, self.0 % 10_000);
        if rest == 0 {
            return write!(f, "{percent} %");
        }
        let digits = format!("{rest:04}");
        write!(f, "{percent}.{} %", digits.trim_end_matches('0'))
    }
}

/// `slice` in each `period`; as text `1ms/4ms`, also read as `25%/4ms`.
///
/// Valid once made: [`SLICE_MIN`] <= slice <= period, [`PERIOD_MIN`] <= period <= [`PERIOD_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share {
    slice: Nanos,
    period: Nanos,
}

/// Error of a share. The operator's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// The text has no `/`.
    #[error("the share '{text}' has no period; write slice/period, such as 1ms/4ms or 25%/4ms")]
    Form {
        /// Input, shortened.
        text: String,
    },
    /// The slice or the period is not a valid time.
    #[error("in the share '{text}': {error}")]
    Number {
        /// Input, shortened.
        text: String,
        /// Parse error of the slice or the period.
        error: TextError,
    },
    /// The slice is longer than its period.
    #[error(
        "a slice of {slice} in each period of {period} is more than there is; \
         the slice is at most the period"
    )]
    MoreThanAll {
        /// Requested slice.
        slice: Time,
        /// Requested period.
        period: Time,
    },
    /// The slice is shorter than [`SLICE_MIN`].
    #[error(
        "a slice of {slice} is too short, stopping a module takes up to 12us: \
         ask for at least {} in each period, or for a longer period",
        Time(SLICE_MIN)
    )]
    SliceShort {
        /// Requested slice.
        slice: Time,
    },
    /// The period is below [`PERIOD_MIN`] or above [`PERIOD_MAX`].
    #[error(
        "a period of {period} is not between {} and {}; take one that is, with a slice to match",
        Time(PERIOD_MIN),
        Time(PERIOD_MAX)
    )]
    Period {
        /// Requested period.
        period: Time,
    },
}

/// Time formatted for messages: `4ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Nanos);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show_time(self.0, f)
    }
}

impl Share {
    /// Makes a share of `slice` in each `period`.
    ///
    /// # Errors
    /// The period or the slice is out of its limits, or the slice is longer than the period.
    pub const fn new(slice: Nanos, period: Nanos) -> Result<Self, ShareError> {
        if period.0 < PERIOD_MIN.0 || period.0 > PERIOD_MAX.0 {
            return Err(ShareError::Period { period: Time(period) });
        }
        if slice.0 > period.0 {
            return Err(ShareError::MoreThanAll { slice: Time(slice), period: Time(period) });
        }
        if slice.0 < SLICE_MIN.0 {
            return Err(ShareError::SliceShort { slice: Time(slice) });
        }
        Ok(Self { slice, period })
    }

    /// Returns the time reserved in each period.
    #[must_use]
    pub const fn slice(self) -> Nanos {
        self.slice
    }

    /// Returns the length of the period, at whose end the slice is due.
    #[must_use]
    pub const fn period(self) -> Nanos {
        self.period
    }

    /// Returns the share in parts of [`WHOLE`], rounded up so that sums of reservations err on the
    /// safe side.
    #[must_use]
    pub const fn parts_per_million(self) -> u64 {
        // Largest value: a second in nanoseconds times a million, 10^15.
        (self.slice.0 * WHOLE).div_ceil(self.period.0)
    }
}

impl FromStr for Share {
    type Err = ShareError;

    /// Reads `1ms/4ms` or `25%/4ms`; a percentage is rounded down to a whole nanosecond.
    fn from_str(text: &str) -> Result<Self, ShareError> {
        let Some((slice, period)) = text.split_once('/') else {
            return Err(ShareError::Form { text: shown(text) });
        };
        let number = |error| ShareError::Number { text: shown(text), error };
        let period = parse_time(period).map_err(number)?;
        let slice = if slice.ends_with('%') {
            let parts = u128::from(parse_percent(slice).map_err(number)?);
            let nanos = parts * u128::from(period.0) / u128::from(WHOLE);
            Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
        } else {
            parse_time(slice).map_err(number)?
        };
        Self::new(slice, period)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Time(self.slice), Time(self.period))
    }
}

serde_as_text!(Share);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn share(text: &str) -> Share {
        text.parse().unwrap()
    }

    #[test]
    fn a_share_is_read_in_all_its_forms_and_shown_in_one() {
        for (text, form) in [
            ("1ms/4ms", "1ms/4ms"),
            ("250us/4ms", "250us/4ms"),
            ("25%/4ms", "1ms/4ms"),
            ("0.4ms/4000us", "400us/4ms"),
            ("45%/6ms", "2700us/6ms"),
            ("100%/1s", "1s/1s"),
        ] {
            assert_eq!(share(text).to_string(), form, "{text}");
        }
        assert_eq!(serde_json::to_string(&share("25%/4ms")).unwrap(), "\"1ms/4ms\"");
    }

    #[test]
    fn a_share_outside_its_limits_is_refused() {
        let refused = |text: &str| text.parse::<Share>().unwrap_err();
        assert!(matches!(refused("5ms/4ms"), ShareError::MoreThanAll { .. }));
        assert!(matches!(refused("101%/4ms"), ShareError::MoreThanAll { .. }));
        assert!(matches!(refused("49999ns/4ms"), ShareError::SliceShort { .. }));
        assert!(matches!(refused("0ms/4ms"), ShareError::SliceShort { .. }));
        assert!(matches!(refused("100us/999us"), ShareError::Period { .. }));
        assert!(matches!(refused("1ms/1001ms"), ShareError::Period { .. }));
        assert!(matches!(refused("4ms"), ShareError::Form { .. }));
        assert!(matches!(refused("x/4ms"), ShareError::Number { .. }));
        assert!(matches!(refused("1ms/4ms/5ms"), ShareError::Number { .. }));
        assert!(serde_json::from_str::<Share>("\"5ms/4ms\"").is_err());
    }

    #[test]
    fn parts_are_shown_in_percent() {
        let shown = [0, 900_000, 333_334, 12, 1_500_000].map(|parts| Parts(parts).to_string());
        assert_eq!(shown, ["0 %", "90 %", "33.3334 %", "0.0012 %", "150 %"]);
    }

    #[test]
    fn an_invalid_share_has_an_error_with_advice() {
        let message = "100us/20us".parse::<Share>().unwrap_err().to_string();
        assert_eq!(
            message,
            "a period of 20us is not between 1ms and 1s; take one that is, with a slice to match"
        );
    }

    proptest! {
        #[test]
        fn formatting_round_trips(period in 1_000_000u64..=1_000_000_000, part in 0.0..=1.0) {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a test's dice")]
            let slice = ((period as f64 * part) as u64).clamp(SLICE_MIN.0, period);
            let share = Share::new(Nanos(slice), Nanos(period)).unwrap();
            prop_assert_eq!(share.to_string().parse::<Share>(), Ok(share));
            // Rounded up, by less than one part.
            let parts = u128::from(share.parts_per_million());
            let exact = u128::from(slice) * 1_000_000;
            prop_assert!(parts * u128::from(period) >= exact);
            prop_assert!((parts - 1) * u128::from(period) < exact);
        }
    }
}
