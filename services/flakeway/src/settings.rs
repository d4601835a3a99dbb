//! Settings of the operator: texts, parsed once, at the start. Each is one value, or two separated
//! by a slash: from a to b, and from b to a.

use crate::chance::MILLION;

/// Largest delay, a minute: larger values are probably mistaken units.
pub const DELAY_MAX_US: u64 = 60_000_000;
/// Allowed rates in bit/s. Below, a packet of 1,500 bytes takes 12 s; above, a queue has no length.
const RATES: core::ops::RangeInclusive<u64> = 1_000..=100_000_000_000;
/// Allowed queue lengths in bytes: from one packet of the usual MTU to the size of the memory.
const QUEUES: core::ops::RangeInclusive<u64> = 2_048..=crate::held::CAPACITY as u64;
/// Longest burst: more packets in a row are an outage.
const BURST_MAX: u64 = 10_000;

/// Codes with which `on_start` refuses.
pub mod refuse {
    /// `a` or `b` names no port of the node, or both the same.
    pub const PORTS: u16 = 1;
    /// `clock` names no port of the node, and the link has to hold packets.
    pub const CLOCK: u16 = 2;
    /// `delay`, `jitter` or `late` is no time up to a minute.
    pub const TIME: u16 = 3;
    /// `loss`, `reorder` or `duplicate` is no share from 0% to 100%.
    pub const SHARE: u16 = 4;
    /// `burst` is no number from 0 to 10,000.
    pub const BURST: u16 = 5;
    /// `rate` is neither 0 nor from 1kbit to 100Gbit.
    pub const RATE: u16 = 6;
    /// `queue` is not from 2KiB to 4MiB.
    pub const QUEUE: u16 = 7;
}

/// Settings of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub delay_us: u64,
    pub jitter_us: u64,
    /// Loss in parts per million.
    pub loss: u32,
    /// Mean number of losses in a row; 0 for independent losses.
    pub burst: u32,
    pub reorder: u32,
    pub late_us: u64,
    pub duplicate: u32,
    /// Rate in bit/s; 0 means unlimited.
    pub rate: u64,
    /// Bytes that may wait for the rate.
    pub queue: u64,
}

impl Settings {
    /// Link without any effect.
    pub const PLAIN: Self = Self {
        delay_us: 0,
        jitter_us: 0,
        loss: 0,
        burst: 0,
        reorder: 0,
        late_us: 5_000,
        duplicate: 0,
        rate: 0,
        queue: 65_536,
    };

    /// Returns true if packets are ever held.
    pub const fn holds(&self) -> bool {
        self.delay_us > 0 || self.jitter_us > 0 || self.reorder > 0 || self.rate > 0
    }

    /// Parses both directions; `text` returns a parameter by name.
    pub fn read<'t>(text: impl Fn(&str) -> Option<&'t str>) -> Result<[Self; 2], u16> {
        let mut both = [Self::PLAIN; 2];
        let [first, second] = &mut both;
        let mut set = |name: &str, refusal: u16, put: fn(&mut Self, &str) -> Option<()>| {
            let Some(text) = text(name) else { return Ok(()) };
            let (one, other) = text.split_once('/').unwrap_or((text, text));
            put(first, one.trim()).ok_or(refusal)?;
            put(second, other.trim()).ok_or(refusal)
        };
        set("delay", refuse::TIME, |it, text| time(text).map(|us| it.delay_us = us))?;
        set("jitter", refuse::TIME, |it, text| time(text).map(|us| it.jitter_us = us))?;
        set("late", refuse::TIME, |it, text| time(text).map(|us| it.late_us = us))?;
        set("loss", refuse::SHARE, |it, text| share(text).map(|share| it.loss = share))?;
        set("reorder", refuse::SHARE, |it, text| share(text).map(|share| it.reorder = share))?;
        set("duplicate", refuse::SHARE, |it, text| share(text).map(|share| it.duplicate = share))?;
        set("burst", refuse::BURST, |it, text| burst(text).map(|burst| it.burst = burst))?;
        set("rate", refuse::RATE, |it, text| rate(text).map(|rate| it.rate = rate))?;
        set("queue", refuse::QUEUE, |it, text| queue(text).map(|queue| it.queue = queue))?;
        Ok(both)
    }
}

/// Parses `10ms`, `250us`, `1.5s`, or 0; returns microseconds.
fn time(text: &str) -> Option<u64> {
    let units = [("us", 1), ("ms", 1_000), ("s", 1_000_000)];
    quantity(text, &units).filter(|us| *us <= DELAY_MAX_US)
}

/// Parses `0.1%`, or 0; returns parts per million.
fn share(text: &str) -> Option<u32> {
    let millionths = quantity(text, &[("%", u64::from(MILLION) / 100)])?;
    u32::try_from(millionths).ok().filter(|share| *share <= MILLION)
}

fn burst(text: &str) -> Option<u32> {
    u32::try_from(text.parse::<u64>().ok().filter(|burst| *burst <= BURST_MAX)?).ok()
}

/// Parses a rate as in tc(8): the units are decimal.
fn rate(text: &str) -> Option<u64> {
    let units = [("bit", 1), ("kbit", 1_000), ("Mbit", 1_000_000), ("Gbit", 1_000_000_000)];
    quantity(text, &units).filter(|rate| *rate == 0 || RATES.contains(rate))
}

fn queue(text: &str) -> Option<u64> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("B", 1)];
    quantity(text, &units).filter(|bytes| QUEUES.contains(bytes))
}

/// Parses a number with up to six decimals and a unit; a bare 0 needs none. A number with a finer
/// resolution is refused, not rounded.
fn quantity(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(end);
    let &(_, size) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    if decimals.is_empty() || decimals.len() > 6 {
        return None;
    }
    let scale = 10_u64.pow(decimals.len() as u32);
    let whole = whole.parse::<u64>().ok()?.checked_mul(size)?;
    let part = decimals.parse::<u64>().ok()?.checked_mul(size)?;
    if part % scale != 0 { None } else { whole.checked_add(part / scale) }
}
