//! Rounds that take turns, and their medians.

use crate::measurement::{Better, GoalFor, Measurement};

/// Values of a case, round by round: index 0 is the node's or module's, the others are baselines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rounds {
    values: Vec<Vec<f64>>,
}

/// Comparison of a case with one baseline.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    /// `bench.case.size.variant`.
    pub(crate) metric: String,
    /// Unit of both values.
    pub(crate) unit: &'static str,
    /// Name of the baseline.
    pub(crate) baseline_name: &'static str,
    /// Index of the baseline among the values of a round.
    pub(crate) baseline: usize,
    /// Direction that is better.
    pub(crate) better: Better,
    /// Goal for the ratio.
    pub(crate) goal: Option<f64>,
}

impl Rounds {
    /// Adds a round: ours first, then the baselines.
    pub(crate) fn add(&mut self, round: Vec<f64>) {
        self.values.push(round);
    }

    /// Returns the rounds without our own value: the first baseline is then compared with the others.
    pub(crate) fn without_first(&self) -> Self {
        Self { values: self.values.iter().map(|round| round[1..].to_vec()).collect() }
    }

    /// Compares the first value with one of the baselines; ratios are taken within a round.
    pub(crate) fn compare(&self, pair: Pair) -> Measurement {
        let column = |at: usize| -> Vec<f64> {
            self.values.iter().filter_map(|round| round.get(at).copied()).collect()
        };
        let ratios: Vec<f64> = self
            .values
            .iter()
            .filter_map(|round| Some(round.first()? / round.get(pair.baseline)?))
            .filter(|ratio| ratio.is_finite())
            .collect();
        let ratio = median(&ratios);
        let range = ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max)
            - ratios.iter().copied().fold(f64::INFINITY, f64::min);
        Measurement {
            metric: pair.metric,
            unit: pair.unit,
            ours: median(&column(0)),
            baseline: median(&column(pair.baseline)),
            baseline_name: pair.baseline_name,
            ratio,
            better: pair.better,
            goal: pair.goal,
            goal_for: GoalFor::Ratio,
            rounds: self.values.len() as u32,
            spread: if ratio > 0.0 && range.is_finite() { range / ratio } else { 0.0 },
        }
    }
}

/// Returns the middle value, or the mean of the two middle ones; 0 for no values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// Returns the value of this rank of a hundred, by the nearest-rank method; 0 for no values.
pub(crate) fn percentile(values: &[f64], rank: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let at = (sorted.len() * rank).div_ceil(100);
    sorted.get(at.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_value_that_was_measured() {
        let values: Vec<f64> = (1..=50).rev().map(f64::from).collect();
        assert_eq!(percentile(&values, 99), 50.0);
        assert_eq!(percentile(&values, 50), 25.0);
        assert_eq!(percentile(&[7.0], 99), 7.0);
        assert_eq!(percentile(&[], 99), 0.0);
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let mut rounds = Rounds::default();
        // The machine is half as fast in the second round: the ratio stays the same.
        rounds.add(vec![90.0, 100.0]);
        rounds.add(vec![45.0, 50.0]);
        rounds.add(vec![99.0, 110.0]);
        let measured = rounds.compare(Pair {
            metric: "a.b".to_owned(),
            unit: "packets/s",
            baseline_name: "other",
            baseline: 1,
            better: Better::Higher,
            goal: Some(0.9),
        });
        assert!((measured.ratio - 0.9).abs() < 1e-9 && measured.spread < 1e-9, "{measured:?}");
        assert_eq!((measured.ours, measured.baseline, measured.rounds), (90.0, 100.0, 3));
    }

    #[test]
    fn the_median_of_an_even_number_is_the_mean_of_the_middle() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }
}
