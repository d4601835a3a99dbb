//! Text forms of times, sizes, rates and percentages: `250us`, `0.4ms`, `64MiB`, `100Mbit/s`,
//! `12.5%`.
//!
//! Parsing takes any unit, with a fraction if the value is a whole number of the smallest unit.
//! Formatting uses the largest unit in which the value is whole. Integer arithmetic only, so that
//! formatted text parses to the same value.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use units::{BitsPerSecond, Bytes, Nanos};

/// Longest number that is parsed, in digits on either side of the point: products with every unit
/// stay far below 2^128.
const DIGITS_MAX: usize = 15;
/// Longest part of the input that a message repeats, in characters.
const SHOWN_MAX: usize = 40;

/// Units of time, the largest first. `µs` is parsed, too.
const TIMES: [(&str, u64); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];
/// Units of size, the largest first; powers of 1,024, as memory comes in pages.
const SIZES: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];
/// Units of rates, the largest first; powers of 1,000, as links are sold.
const RATES: [(&str, u64); 4] =
    [("Gbit/s", 1_000_000_000), ("Mbit/s", 1_000_000), ("kbit/s", 1_000), ("bit/s", 1)];

/// Lowest rate, 1 Mbit/s: at that rate the longest packet takes half a second, and a period is at
/// most one second.
const RATE_MIN: u64 = 1_000_000;

/// Parts per million in one percent.
const PERCENT: u64 = 10_000;

/// Parse error of a time, a size, a rate or a percentage. The operator's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The text does not begin with a number.
    #[error("'{text}' does not begin with a number such as 4 or 0.5; write it as in {example}")]
    Number {
        /// Input, shortened.
        text: String,
        /// Example of a valid text.
        example: &'static str,
    },
    /// The unit is missing or unknown.
    #[error("'{text}' has the unit '{unit}'; use one of {allowed}, directly behind the number")]
    Unit {
        /// Input, shortened.
        text: String,
        /// Text after the number, shortened.
        unit: String,
        /// Known units, separated by commas.
        allowed: &'static str,
    },
    /// The number has more than `DIGITS_MAX` digits on one side of its point.
    #[error(
        "'{text}' has more than {DIGITS_MAX} digits on one side of its point; use another unit"
    )]
    Long {
        /// Input, shortened.
        text: String,
    },
    /// The rate is below 1 Mbit/s, so that the longest packet would take longer than half of the
    /// longest period.
    #[error("'{text}' is too slow for shares of it; give at least 1Mbit/s")]
    Slow {
        /// Input, shortened.
        text: String,
    },
    /// The value is not a whole number of the smallest unit, or exceeds 64 bits.
    #[error("'{text}' is not a whole number of {smallest} below 2^64; leave the fraction out")]
    Whole {
        /// Input, shortened.
        text: String,
        /// Smallest unit, by its English name.
        smallest: &'static str,
    },
}

/// Returns untrusted text in a form fit for a message: shortened and without control characters.
pub(crate) fn shown(text: &str) -> String {
    let mut short: String = text.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN_MAX).is_some() {
        short.push('…');
    }
    short
}

/// Decimal number: `digits` divided by `scale`, a power of ten.
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

    /// Returns the number times `unit`, or `None` if that is not a whole number or exceeds 64 bits.
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
/// The text has no number, no unit of time, or no whole number of nanoseconds.
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
/// The text is no number before a `%`, or no whole number of parts per million.
pub fn parse_percent(text: &str) -> Result<u64, TextError> {
    let (number, unit) = Decimal::split(text, "25%")?;
    if unit != "%" {
        return Err(TextError::Unit { text: shown(text), unit: shown(unit), allowed: "%" });
    }
    let whole = || TextError::Whole { text: shown(text), smallest: "parts per million" };
    number.times(PERCENT).ok_or_else(whole)
}

/// Formats a time in the largest unit in which it is whole: `4ms`.
pub(crate) fn show_time(time: Nanos, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    show(time.0, &TIMES, "ms", f)
}

/// Formats a number in the largest unit in which it is whole; zero in the unit `of_zero`.
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

/// Size of memory or of a queue with its text form, `64MiB`.
///
/// Serialized as that text. A bare number of bytes is deserialized as well.
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
        // Rounded down, so that a message never shows more than is left.
        let hundredths = u128::from(bytes % unit) * 100 / u128::from(*unit);
        format!("{}.{hundredths:02}{name}", bytes / unit)
    }

    /// Returns the form for advice to request at most so much: rounded down, and without a
    /// fraction, so that it can be requested as it is: `1832KiB` for 1,876,977 bytes.
    #[must_use]
    pub fn at_most(self) -> String {
        self.whole(|bytes, unit| bytes / unit)
    }

    /// Returns the form for advice to request at least so much: rounded up, and without a fraction.
    #[must_use]
    pub fn at_least(self) -> String {
        self.whole(u64::div_ceil)
    }

    /// Returns a whole number of the largest unit if that is exact, or else of the one below it.
    fn whole(self, rounded: impl Fn(u64, u64) -> u64) -> String {
        let bytes = self.0.0;
        let reached = SIZES.iter().position(|(_, unit)| bytes >= *unit);
        let Some((name, unit)) = reached.and_then(|at| match bytes.is_multiple_of(SIZES[at].1) {
            true => SIZES.get(at),
            false => SIZES.get(at + 1),
        }) else {
            return self.to_string();
        };
        format!("{}{name}", rounded(bytes, *unit))
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

/// Rate of a port with its text form, `100Mbit/s`. At least 1 Mbit/s: below that the longest packet
/// takes longer than half of the longest period.
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

    /// Serializes the rate as text.
    ///
    /// # Errors
    /// Errors of the serializer `to`.
    #[allow(clippy::ref_option, reason = "serde calls it with a reference to the field")]
    pub fn serialize<S: Serializer>(
        rate: &Option<BitsPerSecond>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        rate.map(Rate).serialize(to)
    }

    /// Deserializes a rate from text.
    ///
    /// # Errors
    /// The text is no valid rate.
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

/// Implements serde by `FromStr` and `Display`, so that a type has the same text form everywhere.
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
    fn sizes_in_advice_can_be_requested_as_they_are() {
        for (bytes, at_most, at_least) in [
            (0, "0B", "0B"),
            (1023, "1023B", "1023B"),
            (1025, "1025B", "1025B"),
            (56 << 20, "56MiB", "56MiB"),
            (1_876_977, "1832KiB", "1833KiB"),
            ((5 << 30) + 1, "5120MiB", "5121MiB"),
        ] {
            let size = Size(Bytes(bytes));
            assert_eq!((size.at_most().as_str(), size.at_least().as_str()), (at_most, at_least));
            assert!(at_most.parse::<Size>().unwrap() <= size);
            assert!(at_least.parse::<Size>().unwrap() >= size);
        }
    }

    #[test]
    fn an_invalid_time_is_refused_with_its_reason() {
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
        fn formatting_round_trips(bytes: u64) {
            // Shifted, since byte counts with more digits than `DIGITS_MAX` are not parsed; no
            // machine has that much.
            let size = Size(Bytes(bytes >> 20));
            prop_assert_eq!(size.to_string().parse::<Size>(), Ok(size));
        }
    }
}
