//! Axis of a plot: positions of its values, its range, its ticks and their labels.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use super::super::{Point, Quantity};

/// Space above the highest point: as a factor, and in powers of ten.
const HEADROOM: f64 = 1.08;
const HEADROOM_LOG: f64 = 0.15;
/// Most ticks of an axis: labels of the longest numbers fit beside each other.
const TICKS_MAX: usize = 8;
/// Number of powers of ten below which 2 and 5 of each are ticks, too.
const POWERS_MIN: usize = 3;

/// Mapping between values and positions on an axis.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    pub(super) quantity: Quantity,
    pub(super) is_log: bool,
}

impl Axis {
    /// Returns the position of a point; `None` for a value that has no logarithm.
    pub(super) fn place(self, point: &Point) -> Option<f64> {
        self.at(self.quantity.of(point)?)
    }

    pub(super) fn at(self, value: f64) -> Option<f64> {
        match self.is_log {
            true => (value > 0.0).then(|| value.log10()),
            false => Some(value),
        }
    }

    pub(super) fn value(self, place: f64) -> f64 {
        if self.is_log { 10f64.powf(place) } else { place }
    }

    /// Returns the range of all positions, with space above them.
    pub(super) fn range(self, places: impl Iterator<Item = f64> + Clone, room: bool) -> Range<f64> {
        let most = places.clone().reduce(f64::max).unwrap_or(1.0);
        if self.is_log {
            let least = places.fold(most, f64::min).floor();
            return least..(most + HEADROOM_LOG).max(least + 1.0);
        }
        let most = if most > 0.0 { most } else { 1.0 };
        0.0..if room { most * HEADROOM } else { most }
    }

    /// Returns the ticks of a range: no two have the same label.
    pub(super) fn ticks(self, range: &Range<f64>) -> Vec<f64> {
        if self.is_log { log_ticks(range) } else { linear_ticks(range) }
    }

    /// Returns the label of a tick; `range` determines its precision.
    pub(super) fn label(self, place: f64, range: &Range<f64>) -> String {
        match self.is_log {
            true => short(self.value(place)),
            false => {
                let (unit, name) = unit_of(range.end);
                let decimals = (-(step_of(range) / unit).log10().floor()).max(0.0) as usize;
                format!("{:.decimals$}{name}", place / unit)
            }
        }
    }
}

/// Range of positions with its ticks, for plotters, whose own ticks fall on odd numbers.
pub(super) struct Ticked {
    axis: Axis,
    range: Range<f64>,
}

impl Ticked {
    pub(super) const fn new(axis: Axis, range: Range<f64>) -> Self {
        Self { axis, range }
    }
}

impl Ranged for Ticked {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, place: &f64, (from, to): (i32, i32)) -> i32 {
        let share = (place - self.range.start) / (self.range.end - self.range.start);
        from + (f64::from(to - from) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.axis.ticks(&self.range)
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Ticked {
    fn format(place: &f64) -> String {
        place.to_string()
    }

    fn format_ext(&self, place: &f64) -> String {
        self.axis.label(*place, &self.range)
    }
}

fn unit_of(most: f64) -> (f64, &'static str) {
    match most {
        1e7.. => (1e6, " M"),
        1e4.. => (1e3, " k"),
        _ => (1.0, ""),
    }
}

/// Returns the distance between ticks: 1, 2 or 5 of a power of ten.
fn step_of(range: &Range<f64>) -> f64 {
    let rough = (range.end - range.start).max(f64::MIN_POSITIVE) / TICKS_MAX as f64;
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    steps.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(10.0 * power)
}

fn linear_ticks(range: &Range<f64>) -> Vec<f64> {
    let step = step_of(range);
    let first = (range.start / step).ceil() as i64;
    let last = (range.end / step).floor() as i64;
    (first..=last).map(|number| number as f64 * step).collect()
}

fn log_ticks(range: &Range<f64>) -> Vec<f64> {
    let powers: Vec<f64> =
        (range.start.ceil() as i32..=range.end.floor() as i32).map(f64::from).collect();
    if powers.len() >= POWERS_MIN {
        return powers;
    }
    let first = range.start.floor() as i32;
    let between = (first..=range.end.floor() as i32)
        .flat_map(|power| [1f64, 2.0, 5.0].map(|factor| f64::from(power) + factor.log10()));
    between.filter(|place| range.contains(place)).collect()
}

/// Formats a number with a suffix: 0.32, 3.2, 32, 320, 3.2 k, 3.2 M.
fn short(value: f64) -> String {
    let (value, unit) = match value {
        9.995e5.. => (value / 1e6, " M"),
        999.5.. => (value / 1e3, " k"),
        _ => (value, ""),
    };
    let decimals = match value {
        ..0.00995 => 4,
        ..0.995 => 2,
        ..9.95 => 1,
        _ => 0,
    };
    let text = format!("{value:.decimals$}");
    let text = if text.contains('.') { text.trim_end_matches('0') } else { &text };
    format!("{}{unit}", text.trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(is_log: bool) -> Axis {
        Axis { quantity: Quantity::Delay, is_log }
    }

    #[test]
    fn zero_and_missing_values_have_no_position_on_a_logarithmic_axis() {
        let point = |delay| Point { delay_us: delay, ..Point::default() };
        assert_eq!(axis(true).place(&point(Some(100.0))), Some(2.0));
        assert_eq!(axis(true).place(&point(Some(0.0))), None);
        assert_eq!(axis(true).place(&point(None)), None);
        assert_eq!(axis(true).label(3.0, &(0.0..4.0)), "1 k");
    }

    #[test]
    fn no_two_ticks_have_the_same_label() {
        let ends = [0.004, 0.7, 1.0, 3.2, 9.9, 47.0, 100.0, 1_500.0, 12_345.0, 8.1e6, 7.07e7];
        for end in ends {
            let range = 0.0..end;
            let ticks = axis(false).ticks(&range);
            let labels: Vec<String> =
                ticks.iter().map(|tick| axis(false).label(*tick, &range)).collect();
            let mut unique = labels.clone();
            unique.dedup();
            assert_eq!(unique, labels, "{end}");
            assert!((3..=TICKS_MAX + 1).contains(&ticks.len()), "{end}: {labels:?}");
            assert!(*ticks.last().unwrap() <= end);
        }
        let range = 0.0..3.2;
        let labels: Vec<String> = axis(false)
            .ticks(&range)
            .into_iter()
            .map(|tick| axis(false).label(tick, &range))
            .collect();
        assert_eq!(labels, ["0.0", "0.5", "1.0", "1.5", "2.0", "2.5", "3.0"]);
    }

    #[test]
    fn a_short_range_of_powers_has_ticks_between_them() {
        let labels = |range: Range<f64>| -> Vec<String> {
            let ticks = axis(true).ticks(&range);
            ticks.into_iter().map(|tick| axis(true).label(tick, &range)).collect()
        };
        assert_eq!(labels(0.0..4.1), ["1", "10", "100", "1 k", "10 k"]);
        assert_eq!(labels(0.0..1.2), ["1", "2", "5", "10"]);
        assert_eq!(labels(-1.0..0.5), ["0.1", "0.2", "0.5", "1", "2"]);
    }

    #[test]
    fn numbers_are_short() {
        let places = [-0.5, 0.0, 0.5, 1.0, 1.5, 2.5, 3.0, 4.5, 6.5];
        let texts = ["0.32", "1", "3.2", "10", "32", "316", "1 k", "32 k", "3.2 M"];
        assert_eq!(places.map(|place| short(10f64.powf(place))), texts);
    }

    #[test]
    fn an_axis_range_contains_all_values() {
        let range = axis(false).range([3.0, 10.0].into_iter(), true);
        assert!(range.start == 0.0 && range.end > 10.0);
        assert_eq!(axis(false).range([3.0, 10.0].into_iter(), false), 0.0..10.0);
        let powers = axis(true).range([0.3, 2.0].into_iter(), true);
        assert!(powers.start == 0.0 && powers.end > 2.0);
        assert_eq!(axis(false).range(std::iter::empty(), false), 0.0..1.0);
    }
}
