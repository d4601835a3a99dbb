//! What the operator says: texts, read once, at the start. Each is one value, or two with a
//! slash between them: from a to b, and from b to a.

use crate::chance::MILLION;

/// A packet is under way for a minute at most: what is meant as seconds is not written as ms.
pub const DELAY_MAX_US: u64 = 60_000_000;
/// Below, a packet of 1,500 bytes takes 12 s; above, nothing that waits has a length.
const RATES: core::ops::RangeInclusive<u64> = 1_000..=100_000_000_000;
/// One packet of the usual MTU has to fit; more than the memory has is not to be had.
const QUEUES: core::ops::RangeInclusive<u64> = 2_048..=crate::held::CAPACITY as u64;
/// More packets in a row are an outage, not a burst.
const BURST_MAX: u64 = 10_000;

/// `on_start` refuses with these.
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

/// What one direction of the link does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub delay_us: u64,
    pub jitter_us: u64,
    /// In a million packets.
    pub loss: u32,
    /// Losses in a row on average; 0 for each by itself.
    pub burst: u32,
    pub reorder: u32,
    pub late_us: u64,
    pub duplicate: u32,
    /// Bits in a second; 0 for as many as come.
    pub rate: u64,
    /// Bytes that may wait for the rate.
    pub queue: u64,
}

impl Settings {
    /// A link on which nothing happens.
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

    /// Whether packets are ever held.
    pub const fn holds(&self) -> bool {
        self.delay_us > 0 || self.jitter_us > 0 || self.reorder > 0 || self.rate > 0
    }

    /// Both directions, from what `text` gives for a parameter's name.
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

/// `10ms`, `250us`, `1.5s`, or 0; in microseconds.
fn time(text: &str) -> Option<u64> {
    let units = [("us", 1), ("ms", 1_000), ("s", 1_000_000)];
    quantity(text, &units).filter(|us| *us <= DELAY_MAX_US)
}

/// `0.1%`, or 0; in millionths.
fn share(text: &str) -> Option<u32> {
    let millionths = quantity(text, &[("%", u64::from(MILLION) / 100)])?;
    u32::try_from(millionths).ok().filter(|share| *share <= MILLION)
}

fn burst(text: &str) -> Option<u32> {
    u32::try_from(text.parse::<u64>().ok().filter(|burst| *burst <= BURST_MAX)?).ok()
}

/// As tc(8) writes it: the units are decimal.
fn rate(text: &str) -> Option<u64> {
    let units = [("bit", 1), ("kbit", 1_000), ("Mbit", 1_000_000), ("Gbit", 1_000_000_000)];
    quantity(text, &units).filter(|rate| *rate == 0 || RATES.contains(rate))
}

fn queue(text: &str) -> Option<u64> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("B", 1)];
    quantity(text, &units).filter(|bytes| QUEUES.contains(bytes))
}

/// A number with up to six decimals and one of the units; a bare 0 needs none. What is finer than
/// one is not rounded away but refused.
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
