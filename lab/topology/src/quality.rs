//! Quality of a link: delay, loss, reordering, a rate. Read from the keys of `[[link]]`, and
//! written as the parameters of the service that applies it, `services/flakeway`.
//!
//! ```toml
//! [[link]]
//! ends = ["client", "r1"]
//! delay = "10ms/15ms"         # from client to r1, and back
//! loss = "0.1%"               # both ways
//! ```

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use units::{BitsPerSecond, Bytes, Nanos};

use crate::error::PlanError;
use crate::read::{Field, Fields};

/// Keys of `[[link]]` that belong to the quality; `rate` only beside one of them, or with one value
/// for each direction.
pub(crate) const KEYS: [&str; 9] =
    ["delay", "jitter", "loss", "burst", "reorder", "late", "duplicate", "queue", "seed"];

/// Rates in bit/s: below, one packet fills the queue for a second; above, no veth gets there.
const RATE_MIN: u64 = 1_000;
const RATE_MAX: u64 = 100_000_000_000;
/// Longest delay of a packet, one minute, so that seconds written as ms by mistake are noticed.
const TIME_MAX: Nanos = Nanos::from_millis(60_000);
/// Longest burst of lost packets; more in a row are an outage, not a burst.
const BURST_MAX: u64 = 10_000;
/// Queue lengths: one packet of the usual MTU, and the service's memory for one direction.
const QUEUE_MIN: Bytes = Bytes(2 << 10);
const QUEUE_MAX: Bytes = Bytes(4 << 20);
/// Largest seed: TOML's largest integer.
const SEED_MAX: u64 = i64::MAX as u64;
/// Most decimals of a quantity: a millionth of a second is the finest time.
const DECIMALS_MAX: usize = 6;

const TIME_EXPECTED: &str = "a time up to 60s, such as \"10ms\"; us, ms and s are units";
const SHARE_EXPECTED: &str = "a share from 0% to 100% in steps of 0.0001%, such as \"0.1%\"";
const RATE_EXPECTED: &str = "a whole number and bit, kbit, Mbit or Gbit, from 1kbit to 100Gbit";
const QUEUE_EXPECTED: &str = "a size from 2KiB to 4MiB, such as \"64KiB\"";

/// Share of all packets, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millionths(pub u32);

/// Values from the link's first end to its second, and for the other direction.
type BothWays<T> = [T; 2];

/// Quality of a link. Missing values are the service's defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quality {
    /// Delay of every packet.
    #[serde(rename = "delay_ns", skip_serializing_if = "Option::is_none")]
    pub delay: Option<BothWays<Nanos>>,
    /// Largest random delay in addition; the order of packets is kept.
    #[serde(rename = "jitter_ns", skip_serializing_if = "Option::is_none")]
    pub jitter: Option<BothWays<Nanos>>,
    /// Share of lost packets.
    #[serde(rename = "loss_millionths", skip_serializing_if = "Option::is_none")]
    pub loss: Option<BothWays<Millionths>>,
    /// Average number of consecutive lost packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u64>,
    /// Share of packets that arrive later than packets sent after them.
    #[serde(rename = "reorder_millionths", skip_serializing_if = "Option::is_none")]
    pub reorder: Option<BothWays<Millionths>>,
    /// Additional delay of reordered packets.
    #[serde(rename = "late_ns", skip_serializing_if = "Option::is_none")]
    pub late: Option<BothWays<Nanos>>,
    /// Share of packets that arrive twice.
    #[serde(rename = "duplicate_millionths", skip_serializing_if = "Option::is_none")]
    pub duplicate: Option<BothWays<Millionths>>,
    /// Rate limit.
    #[serde(rename = "rate_bits_per_second", skip_serializing_if = "Option::is_none")]
    pub rate: Option<BothWays<BitsPerSecond>>,
    /// Queue in front of the rate limit.
    #[serde(rename = "queue_bytes", skip_serializing_if = "Option::is_none")]
    pub queue: Option<BothWays<Bytes>>,
    /// Seed of the random numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

impl Quality {
    /// Reads the quality from the link's table; `None` when it has no such key.
    pub(crate) fn read(table: &Fields<'_, '_>) -> Result<Option<Self>, PlanError> {
        let is_there = |key| table.get(key).is_some();
        let rates = table.get("rate").map(|field| field.text()).transpose()?;
        let has_two_rates = rates.is_some_and(|rates| rates.contains('/'));
        if !has_two_rates && !KEYS.into_iter().any(is_there) {
            return Ok(None);
        }
        for (key, needed, example) in [
            ("burst", "loss", "loss = \"1%\""),
            ("late", "reorder", "reorder = \"1%\""),
            ("queue", "rate", "rate = \"10Mbit\""),
        ] {
            if let Some(field) = table.get(key).filter(|_| !is_there(needed)) {
                return Err(PlanError::Alone { place: field.place(), key, needed, example });
            }
        }
        let number = |key, range| table.get(key).map(|field| field.number(range, "")).transpose();
        Ok(Some(Self {
            delay: both(table, "delay", TIME_EXPECTED, time)?,
            jitter: both(table, "jitter", TIME_EXPECTED, time)?,
            loss: both(table, "loss", SHARE_EXPECTED, share)?,
            burst: number("burst", (1, BURST_MAX))?,
            reorder: both(table, "reorder", SHARE_EXPECTED, share)?,
            late: both(table, "late", TIME_EXPECTED, time)?,
            duplicate: both(table, "duplicate", SHARE_EXPECTED, share)?,
            rate: both(table, "rate", RATE_EXPECTED, parse_rate)?,
            queue: both(table, "queue", QUEUE_EXPECTED, queue)?,
            seed: number("seed", (0, SEED_MAX))?,
        }))
    }

    /// Returns the service's parameters: names and values.
    #[must_use]
    pub fn parameters(&self) -> toml::Table {
        let texts = self.texts().into_iter();
        let mut parameters: toml::Table =
            texts.map(|(key, text)| (key.to_owned(), toml::Value::String(text))).collect();
        let seed = self.seed.and_then(|seed| i64::try_from(seed).ok());
        parameters.extend(seed.map(|seed| ("seed".to_owned(), toml::Value::Integer(seed))));
        parameters
    }

    /// Formats the quality in a line for people: `delay 10ms, loss 0.1%`.
    #[must_use]
    pub fn text(&self) -> String {
        let mut line = String::new();
        for (key, text) in self.texts() {
            let comma = if line.is_empty() { "" } else { ", " };
            // Writing to a string cannot fail.
            let _ = write!(line, "{comma}{key} {text}");
        }
        line
    }

    fn texts(&self) -> Vec<(&'static str, String)> {
        let all = [
            ("delay", self.delay.map(|it| text_of(it, time_text))),
            ("jitter", self.jitter.map(|it| text_of(it, time_text))),
            ("loss", self.loss.map(|it| text_of(it, share_text))),
            ("burst", self.burst.map(|burst| burst.to_string())),
            ("reorder", self.reorder.map(|it| text_of(it, share_text))),
            ("late", self.late.map(|it| text_of(it, time_text))),
            ("duplicate", self.duplicate.map(|it| text_of(it, share_text))),
            ("rate", self.rate.map(|it| text_of(it, rate_text))),
            ("queue", self.queue.map(|it| text_of(it, size_text))),
        ];
        all.into_iter().filter_map(|(key, text)| Some((key, text?))).collect()
    }
}

/// Reads one value for both directions, or two with a slash between them.
fn both<T>(
    table: &Fields<'_, '_>,
    key: &'static str,
    expected: &'static str,
    read: fn(&str) -> Option<T>,
) -> Result<Option<BothWays<T>>, PlanError> {
    let of = |field: Field<'_, '_>| {
        let text = field.text()?;
        let (one, other) = text.split_once('/').unwrap_or((text, text));
        match (read(one.trim()), read(other.trim())) {
            (Some(one), Some(other)) => Ok([one, other]),
            _ => Err(PlanError::Quality {
                place: field.place(),
                key,
                found: text.chars().take(64).flat_map(char::escape_default).collect(),
                expected,
            }),
        }
    };
    table.get(key).map(of).transpose()
}

fn time(text: &str) -> Option<Nanos> {
    let units = [("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
    // The service counts microseconds.
    let time = quantity(text, &units).filter(|time| time % 1_000 == 0).map(Nanos);
    time.filter(|time| *time <= TIME_MAX)
}

fn share(text: &str) -> Option<Millionths> {
    let share = u32::try_from(quantity(text, &[("%", 10_000)])?).ok()?;
    (share <= 1_000_000).then_some(Millionths(share))
}

fn queue(text: &str) -> Option<Bytes> {
    let units = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20)];
    quantity(text, &units).map(Bytes).filter(|size| (QUEUE_MIN..=QUEUE_MAX).contains(size))
}

/// Parses a number, perhaps with decimals, with one of the units; returns `None` for a fraction of
/// the smallest unit.
fn quantity(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(end);
    let &(_, size) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    if decimals.is_empty() || decimals.len() > DECIMALS_MAX {
        return None;
    }
    let scale = 10_u64.pow(u32::try_from(decimals.len()).ok()?);
    let whole = whole.parse::<u64>().ok()?.checked_mul(size)?;
    let part = decimals.parse::<u64>().ok()?.checked_mul(size)?;
    if part % scale == 0 { whole.checked_add(part / scale) } else { None }
}

fn text_of<T: PartialEq>([one, other]: BothWays<T>, text: fn(T) -> String) -> String {
    if one == other { text(one) } else { format!("{}/{}", text(one), text(other)) }
}

/// Formats a number in the largest unit that leaves it whole.
fn whole(number: u64, units: &[(&str, u64)]) -> String {
    let fits = units.iter().find(|(_, size)| number >= *size && number.is_multiple_of(*size));
    let (unit, size) = fits.or(units.last()).copied().unwrap_or(("", 1));
    format!("{}{unit}", number / size)
}

fn time_text(time: Nanos) -> String {
    whole(time.0, &[("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)])
}

fn share_text(Millionths(share): Millionths) -> String {
    let decimals = format!("{:04}", share % 10_000);
    match decimals.trim_end_matches('0') {
        "" => format!("{}%", share / 10_000),
        decimals => format!("{}.{decimals}%", share / 10_000),
    }
}

fn rate_text(rate: BitsPerSecond) -> String {
    let units = [("Gbit", 1_000_000_000), ("Mbit", 1_000_000), ("kbit", 1_000), ("bit", 1)];
    whole(rate.0, &units)
}

fn size_text(size: Bytes) -> String {
    whole(size.0, &[("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)])
}

/// Parses a whole number with a unit of tc(8): the units are decimal.
pub(crate) fn parse_rate(text: &str) -> Option<BitsPerSecond> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let unit: u64 = match text[digits..].trim_start() {
        "bit" => 1,
        "kbit" => 1_000,
        "Mbit" => 1_000_000,
        "Gbit" => 1_000_000_000,
        _ => return None,
    };
    let rate = text[..digits].parse::<u64>().ok()?.checked_mul(unit)?;
    (RATE_MIN..=RATE_MAX).contains(&rate).then_some(BitsPerSecond(rate))
}

#[cfg(test)]
mod tests;
