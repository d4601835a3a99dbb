//! Choice of the coding level by the rate of the link and the load of the node.
//!
//! While a link is slower than the encoder, the processor waits for it: a higher level then uses
//! idle time, and the body arrives sooner because it is smaller. On a fast link, or when others
//! need the processor, a lower level is better.
//!
//! The highest level is chosen whose output rate, with the free share of the processor, is still
//! twice that of the link, and that the node's load allows. Choosing again every 64 KiB is early
//! enough: the cost of a level shows in the load.

use crate::{Coding, Level};

/// Required ratio of the encoder's output rate to the link's rate: the rate of a link can rise from
/// one moment to the next.
const RATE_MARGIN: u128 = 2;
/// Highest level by processor load in thousandths. From 90 % on only the fastest level leaves time
/// for other work.
const BUSY_LEVELS: [(u16, Level); 5] =
    [(500, Level::MAX), (600, level(6)), (700, level(4)), (800, level(3)), (900, level(2))];
const WHOLE: u16 = 1_000;

const fn level(number: u8) -> Level {
    match Level::new(number) {
        Some(level) => level,
        None => Level::DEFAULT,
    }
}

/// Conditions of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Coded bytes that the link has taken in about the last second; `None` while unknown, as at
    /// the start of a connection.
    pub drained_bytes_per_second: Option<u64>,
    /// Load of the processor in the same time, by all processes, in thousandths.
    pub busy_permille: u16,
}

/// Speed of an encoder at one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed {
    /// Input bytes per second of processor time.
    pub bytes_per_second: u64,
    /// Input bytes per 1,000 output bytes.
    pub ratio_permille: u32,
}

impl Speed {
    /// Returns true if the output rate suffices for a link, in the processor time that is free.
    fn outruns(self, drained: u64, busy_permille: u16) -> bool {
        let free = u128::from(WHOLE.saturating_sub(busy_permille));
        // drained × RATE_MARGIN ≤ bytes_per_second × free ÷ 1,000 ÷ (ratio ÷ 1,000), without fractions.
        let wanted = u128::from(drained) * RATE_MARGIN * u128::from(self.ratio_permille);
        wanted <= u128::from(self.bytes_per_second) * free
    }
}

/// Returns the level for a stream from here on. `speeds` are those of its coding, from [`measured`]
/// or the caller's own measurement.
#[must_use]
pub fn choose_level(load: Load, speeds: &[Speed; Level::COUNT]) -> Level {
    let Some(drained) = load.drained_bytes_per_second else { return Level::DEFAULT };
    let limit = BUSY_LEVELS
        .iter()
        .find(|(busy, _)| load.busy_permille < *busy)
        .map_or(Level::MIN, |(_, level)| *level);
    Level::all()
        .rev()
        .skip_while(|level| *level > limit)
        .find(|level| speeds[level.index()].outruns(drained, load.busy_permille))
        .unwrap_or(Level::MIN)
}

/// Returns the speeds of a coding's levels, measured with 285 KB of JavaScript on one core of a
/// shared AMD EPYC (Zen 4) (docs/guides/compress.md). Other machines differ by some factor, which
/// [`choose_level`]'s margin covers; bodies that compress better are faster as well.
#[must_use]
pub const fn measured(coding: Coding) -> &'static [Speed; Level::COUNT] {
    match coding {
        Coding::Deflate | Coding::Gzip => &GZIP,
        Coding::Brotli => &BROTLI,
        Coding::Zstd => &ZSTD,
    }
}

/// Row of the table: input megabytes per second, and input bytes per 1,000 output bytes.
const fn speed(megabytes: u64, ratio_permille: u32) -> Speed {
    Speed { bytes_per_second: megabytes * 1_000_000, ratio_permille }
}

const GZIP: [Speed; Level::COUNT] = [
    speed(202, 2_939),
    speed(163, 3_211),
    speed(121, 3_307),
    speed(107, 3_365),
    speed(78, 3_380),
    speed(78, 3_380),
    speed(50, 3_406),
    speed(40, 3_410),
    speed(40, 3_410),
];
const BROTLI: [Speed; Level::COUNT] = [
    speed(127, 3_220),
    speed(117, 3_255),
    speed(72, 3_343),
    speed(48, 3_581),
    speed(47, 3_644),
    speed(47, 3_644),
    speed(47, 3_644),
    speed(47, 3_644),
    speed(47, 3_644),
];
const ZSTD: [Speed; Level::COUNT] = [
    speed(432, 2_992),
    speed(396, 3_116),
    speed(327, 3_287),
    speed(277, 3_292),
    speed(165, 3_442),
    speed(120, 3_534),
    speed(108, 3_560),
    speed(87, 3_579),
    speed(87, 3_579),
];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chosen(coding: Coding, drained: u64, busy_permille: u16) -> u8 {
        let load = Load { drained_bytes_per_second: Some(drained), busy_permille };
        choose_level(load, measured(coding)).number()
    }

    #[test]
    fn a_slow_link_gets_small_bodies_and_a_fast_one_fast_ones() {
        // Phone at 1 Mbit/s, household at 50 Mbit/s, rack at 400 Mbit/s and 10 Gbit/s.
        let links = [125_000, 6_250_000, 50_000_000, 1_250_000_000];
        let levels = |coding| links.map(|drained| chosen(coding, drained, 0));
        assert_eq!(levels(Coding::Gzip), [9, 7, 1, 1]);
        assert_eq!(levels(Coding::Deflate), levels(Coding::Gzip));
        assert_eq!(levels(Coding::Brotli), [9, 9, 1, 1]);
        assert_eq!(levels(Coding::Zstd), [9, 9, 2, 1]);
    }

    #[test]
    fn a_busy_node_tries_less_whatever_the_link() {
        let levels = [0, 499, 500, 600, 700, 800, 900, 1_000, u16::MAX]
            .map(|busy| chosen(Coding::Gzip, 1_000, busy));
        assert_eq!(levels, [9, 9, 6, 4, 3, 2, 1, 1, 1]);
    }

    #[test]
    fn an_unknown_link_gets_the_default_level() {
        let load = Load { drained_bytes_per_second: None, busy_permille: 0 };
        assert_eq!(choose_level(load, measured(Coding::Zstd)), Level::DEFAULT);
        assert_eq!(chosen(Coding::Zstd, 0, 0), 9, "a link that takes nothing has time");
    }

    #[test]
    fn every_measured_level_costs_more_and_is_no_larger_than_the_one_below() {
        for coding in Coding::ALL {
            for pair in measured(coding).windows(2) {
                assert!(pair[1].bytes_per_second <= pair[0].bytes_per_second, "{coding}");
                assert!(pair[1].ratio_permille >= pair[0].ratio_permille, "{coding}");
            }
        }
    }

    proptest! {
        #[test]
        fn more_drain_or_more_use_never_raises_the_level(
            coding in prop::sample::select(Coding::ALL.as_slice()),
            drained in any::<u64>(), more in any::<u64>(),
            busy in any::<u16>(), busier in any::<u16>(),
        ) {
            let level = chosen(coding, drained, busy);
            prop_assert!(chosen(coding, drained.saturating_add(more), busy) <= level);
            prop_assert!(chosen(coding, drained, busy.saturating_add(busier)) <= level);
        }
    }
}
