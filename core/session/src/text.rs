//! How times, sizes, rates and percentages are written: `250us`, `0.4ms`, `64MiB`, `100Mbit/s`,
//! `12.5%`.
//!
//! Read in any unit, with a fraction if it comes out whole; shown in the largest unit in which it
//! is a whole number. All in integers, so that what is shown is what was read.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use units::{BitsPerSecond, Bytes, Nanos};

/// Longest number that is read, in digits on either side of the point: products with every unit
/// stay far below what 128 bits hold.
const DIGITS_MAX: usize = 15;
/// What of a text is repeated in a message.
const SHOWN_MAX: usize = 40;

/// Units of time, the largest first. `µs` is read, too.
const TIMES: [(&str, u64); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];
/// Units of size, the largest first; powers of 1,024, as memory comes in pages.
const SIZES: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];
/// Units of rates, the largest first; powers of 1,000, as links are sold.
const RATES: [(&str, u64); 4] =
    [("Gbit/s", 1_000_000_000), ("Mbit/s", 1_000_000), ("kbit/s", 1_000), ("bit/s", 1)];

/// At 1 Mbit/s the longest packet takes half a second, and a period is at most one.
const RATE_MIN: u64 = 1_000_000;

/// Parts of a million in one percent.
const PERCENT: u64 = 10_000;

/// Why a time, a size or a percentage cannot be read. The operator's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// There is no number in front.
    #[error("'{text}' does not begin with a number such as 4 or 0.5; write it as in {example}")]
    Number {
        /// As given, shortened.
        text: String,
        /// How it can look.
        example: &'static str,
    },
    /// Behind the number is no unit, or another one.
    #[error("'{text}' has the unit '{unit}'; use one of {allowed}, directly behind the number")]
    Unit {
        /// As given, shortened.
        text: String,
        /// What stands behind the number, shortened.
        unit: String,
        /// The units that there are.
        allowed: &'static str,
    },
    /// The number is longer than anything that is meant.
    #[error(
        "'{text}' has more than {DIGITS_MAX} digits on one side of its point; use another unit"
    )]
    Long {
        /// As given, shortened.
        text: String,
    },
    /// A rate at which a packet takes longer than any period.
    #[error("'{text}' is too slow for shares of it; give at least 1Mbit/s")]
    Slow {
        /// As given, shortened.
        text: String,
    },
    /// It is not a whole number of the smallest unit, or does not fit into 64 bits.
    #[error("'{text}' is not a whole number of {smallest} below 2^64; leave the fraction out")]
    Whole {
        /// As given, shortened.
        text: String,
        /// What is counted in.
        smallest: &'static str,
    },
}

/// A text of somebody else's, fit to be repeated in a message: short and without control
/// characters.
pub(crate) fn shown(text: &str) -> String {
    let mut short: String = text.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN_MAX).is_some() {
        short.push('…');
    }
    short
}

/// A number with its fraction: `digits` divided by `scale`, a power of ten.
struct Decimal {
    digits: u128,
    scale: u128,
}

impl Decimal {
    /// Splits a text into the number in front and the unit behind it.
    fn split<'a>(text: &'a str, example: &'static str) -> Result<(Self, &'a str), TextError> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
            return Err(TextError::Number { text: shown(text), example });
        }
        if whole.len() > DIGITS_MAX || fraction.len() > DIGITS_MAX {
            return Err(TextError::Long { text: shown(text) });
        }
        let (mut digits, mut scale) = (0u128, 1u128);
        for digit in whole.bytes() {
            digits = digits * 10 + u128::from(digit - b'0');
        }
        for digit in fraction.bytes() {
            digits = digits * 10 + u128::from(digit - b'0');
            scale *= 10;
        }
        Ok((Self { digits, scale }, unit))
    }

    /// So many of a unit, if that is whole.
    fn times(&self, unit: u64) -> Option<u64> {
        let product = self.digits * u128::from(unit);
        product
            .is_multiple_of(self.scale)
            .then(|| u64::try_from(product / self.scale).ok())
            .flatten()
    }
}

/// Reads a time such as `250us` or `0.4ms`.
///
/// # Errors
/// When there is no number, no unit of time, or no whole number of nanoseconds.
pub fn parse_time(text: &str) -> Result<Nanos, TextError> {
    let (number, unit) = Decimal::split(text, "250us or 0.5ms")?;
    let unit = if unit == "µs" { "us" } else { unit };
    let Some(&(_, factor)) = TIMES.iter().find(|(name, _)| *name == unit) else {
        let allowed = "ns, us, ms, s";
        return Err(TextError::Unit { text: shown(text), unit: shown(unit), allowed });
    };
    let whole = || TextError::Whole { text: shown(text), smallest: "nanoseconds" };
    number.times(factor).map(Nanos).ok_or_else(whole)
}

/// Reads a percentage such as `25%` or `12.5%`, in parts per million.
///
/// # Errors
/// When it is no number before a `%`, or no whole number of parts per million.
pub fn parse_percent(text: &str) -> Result<u64, TextError> {
    let (number, unit) = Decimal::split(text, "25%")?;
    if unit != "%" {
        return Err(TextError::Unit { text: shown(text), unit: shown(unit), allowed: "%" });
    }
    let whole = || TextError::Whole { text: shown(text), smallest: "parts per million" };
    number.times(PERCENT).ok_or_else(whole)
}

/// A time as `4ms`: in the largest unit in which it is whole.
pub(crate) fn show_time(time: Nanos, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    show(time.0, &TIMES, "ms", f)
}

/// A number in the largest unit in which it is whole; zero has a usual one.
fn show(
    number: u64,
    units: &[(&str, u64)],
    of_zero: &str,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let whole = units.iter().find(|(_, unit)| number.is_multiple_of(*unit));
    match whole.filter(|_| number > 0) {
        Some((name, unit)) => write!(f, "{}{name}", number / unit),
        None => write!(f, "0{of_zero}"),
    }
}

/// A number of bytes with its text form, `64MiB`: of memory and of queues.
///
/// In JSON and TOML it is that text; a bare number of bytes is read, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub Bytes);

impl FromStr for Size {
    type Err = TextError;

    /// Reads a size such as `64MiB` or `1.5KiB`.
    fn from_str(text: &str) -> Result<Self, TextError> {
        let (number, unit) = Decimal::split(text, "64MiB")?;
        let Some(&(_, factor)) = SIZES.iter().find(|(name, _)| *name == unit) else {
            let allowed = "B, KiB, MiB, GiB";
            return Err(TextError::Unit { text: shown(text), unit: shown(unit), allowed });
        };
        let whole = || TextError::Whole { text: shown(text), smallest: "bytes" };
        number.times(factor).map(|bytes| Self(Bytes(bytes))).ok_or_else(whole)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(self.0.0, &SIZES, "B", f)
    }
}

impl Size {
    /// Returns the form for reading only, in the largest unit that it reaches, with two decimals
    /// where it is not whole: `1.79MiB` for 1,876,977 bytes.
    #[must_use]
    pub fn rounded(self) -> String {
        let bytes = self.0.0;
        let Some((name, unit)) = SIZES.iter().find(|(_, unit)| bytes >= *unit) else {
            return self.to_string();
        };
        if bytes.is_multiple_of(*unit) {
            return format!("{}{name}", bytes / unit);
        }
        // Rounded down: what is left is never said to be more.
        let hundredths = u128::from(bytes % unit) * 100 / u128::from(*unit);
        format!("{}.{hundredths:02}{name}", bytes / unit)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Size;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"64MiB\", or a number of bytes")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_u64<E: serde::de::Error>(self, bytes: u64) -> Result<Size, E> {
                Ok(Size(Bytes(bytes)))
            }
            fn visit_i64<E: serde::de::Error>(self, bytes: i64) -> Result<Size, E> {
                let negative = || E::custom(format!("{bytes} bytes: a size is not negative"));
                u64::try_from(bytes).map(|bytes| Size(Bytes(bytes))).map_err(|_| negative())
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// A rate with its text form, `100Mbit/s`: of a port. At least 1 Mbit/s: below that the longest
/// packet takes longer than half of the longest period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(pub BitsPerSecond);

impl FromStr for Rate {
    type Err = TextError;

    /// Reads a rate such as `100Mbit/s` or `2.5Gbit/s`.
    fn from_str(text: &str) -> Result<Self, TextError> {
        let (number, unit) = Decimal::split(text, "100Mbit/s")?;
        let Some(&(_, factor)) = RATES.iter().find(|(name, _)| *name == unit) else {
            let allowed = "bit/s, kbit/s, Mbit/s, Gbit/s";
            return Err(TextError::Unit { text: shown(text), unit: shown(unit), allowed });
        };
        let whole = || TextError::Whole { text: shown(text), smallest: "bits per second" };
        let rate = number.times(factor).ok_or_else(whole)?;
        if rate < RATE_MIN {
            return Err(TextError::Slow { text: shown(text) });
        }
        Ok(Self(BitsPerSecond(rate)))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(self.0.0, &RATES, "bit/s", f)
    }
}

serde_as_text!(Rate);

/// `Option<BitsPerSecond>` in the text form of [`Rate`], for `#[serde(with = …)]`.
pub mod optional_rate {
    use super::{BitsPerSecond, Rate};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// As text.
    ///
    /// # Errors
    /// Those of `to`.
    #[allow(clippy::ref_option, reason = "serde calls it with a reference to the field")]
    pub fn serialize<S: Serializer>(
        rate: &Option<BitsPerSecond>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        rate.map(Rate).serialize(to)
    }

    /// From text.
    ///
    /// # Errors
    /// When it is no rate.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<BitsPerSecond>, D::Error> {
        Ok(Option::<Rate>::deserialize(from)?.map(|rate| rate.0))
    }
}

/// `Option<Bytes>` in the text form of [`Size`], for `#[serde(with = …)]`.
pub(crate) mod optional_size {
    use super::{Bytes, Deserialize, Deserializer, Serialize, Serializer, Size};

    #[allow(clippy::ref_option, reason = "serde calls it with a reference to the field")]
    pub fn serialize<S: Serializer>(size: &Option<Bytes>, to: S) -> Result<S::Ok, S::Error> {
        size.map(Size).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Bytes>, D::Error> {
        Ok(Option::<Size>::deserialize(from)?.map(|size| size.0))
    }
}

/// `FromStr` and `Display` as what serde reads and writes, so that a type has one form everywhere.
macro_rules! serde_as_text {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(from)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use serde_as_text;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_and_sizes_are_read_in_any_unit_and_shown_in_the_largest() {
        for (text, nanos) in [("250us", 250_000), ("0.4ms", 400_000), ("1s", 1_000_000_000)] {
            assert_eq!(parse_time(text), Ok(Nanos(nanos)), "{text}");
        }
        assert_eq!(parse_time("7µs"), Ok(Nanos(7_000)));
        for (text, shown) in [("65536KiB", "64MiB"), ("1.5KiB", "1536B"), ("0B", "0B")] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), shown, "{text}");
        }
        assert_eq!(parse_percent("12.5%"), Ok(125_000));
        for (text, shown) in [("0.1Gbit/s", "100Mbit/s"), ("1500kbit/s", "1500kbit/s")] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), shown, "{text}");
        }
    }

    #[test]
    fn sizes_are_rounded_to_the_largest_unit_that_they_reach() {
        for (bytes, shown) in [
            (0, "0B"),
            (1023, "1023B"),
            (65_536, "64KiB"),
            (1_876_977, "1.79MiB"),
            ((64 << 20) + 1, "64.00MiB"),
            (u64::MAX, "17179869183.99GiB"),
        ] {
            assert_eq!(Size(Bytes(bytes)).rounded(), shown, "{bytes}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused_with_what_is_wrong_with_it() {
        assert!(matches!(parse_time("ms"), Err(TextError::Number { .. })));
        assert!(matches!(parse_time(".5ms"), Err(TextError::Number { .. })));
        assert!(matches!(parse_time("1.2.3ms"), Err(TextError::Number { .. })));
        assert!(matches!(parse_time("-1ms"), Err(TextError::Number { .. })));
        assert!(matches!(parse_time("4"), Err(TextError::Unit { .. })));
        assert!(matches!(parse_time("4 ms"), Err(TextError::Unit { .. })));
        assert!(matches!(parse_time("0.5ns"), Err(TextError::Whole { .. })));
        assert!(matches!(parse_time("999999999999s"), Err(TextError::Whole { .. })));
        assert!(matches!(parse_time(&"9".repeat(99)), Err(TextError::Long { .. })));
        assert!(matches!("64MB".parse::<Size>(), Err(TextError::Unit { .. })));
        assert!(matches!(parse_percent("25"), Err(TextError::Unit { .. })));
        assert!(matches!("100Mbps".parse::<Rate>(), Err(TextError::Unit { .. })));
        assert!(matches!("999kbit/s".parse::<Rate>(), Err(TextError::Slow { .. })));
    }

    #[test]
    fn a_refused_text_is_short_and_escaped_in_its_message() {
        let message = parse_time(&format!("\u{1b}[2J{}", "x".repeat(1000))).unwrap_err();
        let message = message.to_string();
        assert!(!message.contains('\u{1b}') && message.len() < 200, "{message:?}");
    }

    #[test]
    fn a_size_is_text_in_json_and_a_number_is_read() {
        let size = Size(Bytes(64 << 20));
        assert_eq!(serde_json::to_string(&size).unwrap(), "\"64MiB\"");
        assert_eq!(serde_json::from_str::<Size>("67108864").unwrap(), size);
        assert!(serde_json::from_str::<Size>("-1").is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = (parse_time(&text), parse_percent(&text), text.parse::<Size>());
            let _ = text.parse::<Rate>();
        }

        #[test]
        fn what_is_shown_is_what_was_read(bytes: u64) {
            // Numbers of bytes with more digits than are read are beyond any memory.
            let size = Size(Bytes(bytes >> 20));
            prop_assert_eq!(size.to_string().parse::<Size>(), Ok(size));
        }
    }
}
