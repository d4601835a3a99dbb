//! How hard to try, by how fast the link takes what comes out and how busy the node is.
//!
//! While a link is slower than the encoder, the processor waits for it: then a higher level is
//! paid with time that nobody else wants, and the body arrives sooner because there is less of it.
//! On a fast link, or when others want the processor, it is the other way round.
//!
//! The highest level is chosen that still gives out twice what the link takes, with the part of
//! the processor that is free, and that a node as busy as this allows. Asking again every 64 KiB
//! is early enough: what a level costs shows in how busy the node is.

use crate::{Coding, Level};

/// How much faster than its link an encoder has to be: links get faster from one moment to the
/// next, and what has not been coded by then is missing.
const AHEAD: u128 = 2;
/// The highest level while less than so many thousandths of the processor are in use. Whoever
/// codes is not alone: from 90 % on only the fastest level leaves room for the others.
const BUSY_LEVELS: [(u16, Level); 5] =
    [(500, Level::MAX), (600, level(6)), (700, level(4)), (800, level(3)), (900, level(2))];
const WHOLE: u16 = 1_000;

const fn level(number: u8) -> Level {
    match Level::new(number) {
        Some(level) => level,
        None => Level::DEFAULT,
    }
}

/// What a stream meets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Coded bytes that its link took in the last second or so; nothing while that is not known,
    /// as at the start of a connection.
    pub drained_bytes_per_second: Option<u64>,
    /// Thousandths of the processor that were in use meanwhile, by everybody.
    pub busy_permille: u16,
}

/// What an encoder does at one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed {
    /// Bytes of bodies that it takes in a second of the processor's time.
    pub bytes_per_second: u64,
    /// What goes in for 1,000 bytes that come out.
    pub ratio_permille: u32,
}

impl Speed {
    /// Whether it gives out enough for a link, in the time that the others leave.
    fn keeps_ahead(self, drained: u64, busy_permille: u16) -> bool {
        let free = u128::from(WHOLE.saturating_sub(busy_permille));
        // drained × AHEAD ≤ bytes_per_second × free ÷ 1,000 ÷ (ratio ÷ 1,000), without fractions.
        let wanted = u128::from(drained) * AHEAD * u128::from(self.ratio_permille);
        wanted <= u128::from(self.bytes_per_second) * free
    }
}

/// The level for a stream from here on. `speeds` are those of its coding, [`measured`] here or by
/// whoever asks.
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
        .find(|level| speeds[level.index()].keeps_ahead(drained, load.busy_permille))
        .unwrap_or(Level::MIN)
}

/// What a coding's levels did with 285 KB of JavaScript on one core of an AMD EPYC (Zen 4) that
/// others used, too (docs/guides/compress.md). Other machines are faster or slower by some factor, which
/// [`choose_level`]'s margin is for; bodies that are easier to code are faster as well.
#[must_use]
pub const fn measured(coding: Coding) -> &'static [Speed; Level::COUNT] {
    match coding {
        Coding::Deflate | Coding::Gzip => &GZIP,
        Coding::Brotli => &BROTLI,
        Coding::Zstd => &ZSTD,
    }
}

/// A row of the table: megabytes in a second, and what goes in for 1,000 bytes that come out.
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
        // A telephone at 1 Mbit/s, a household at 50 Mbit/s, a rack at 400 Mbit/s and 10 Gbit/s.
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
    fn a_link_that_nobody_knows_gets_the_default() {
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
