//! Result of a benchmark: the measured value against a baseline, and whether the goal is reached.

use serde::Serialize;

/// Direction in which a metric is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Rates.
    Higher,
    /// Times and losses.
    Lower,
}

/// Quantity that a goal is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GoalFor {
    /// Ours divided by the baseline.
    #[default]
    Ratio,
    /// Ours, whatever the baseline is.
    Ours,
    /// Ours less the baseline.
    Difference,
}

/// Measurements of a benchmark, with notes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Measured {
    pub(crate) measurements: Vec<Measurement>,
    /// Notes for people, in sentences: under which conditions it was measured.
    pub(crate) notes: Vec<String>,
}

impl From<Vec<Measurement>> for Measured {
    fn from(measurements: Vec<Measurement>) -> Self {
        Self { measurements, notes: Vec::new() }
    }
}

/// A metric: ours against a baseline, medians over interleaved rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measurement {
    /// Name, `bench.case.size.variant` in lower case.
    pub metric: String,
    /// Unit of `ours` and `baseline`.
    pub unit: &'static str,
    /// Median.
    pub ours: f64,
    /// Median.
    pub baseline: f64,
    /// Name of the baseline.
    pub baseline_name: &'static str,
    /// Median of the rounds' ratios, ours divided by the baseline beside it.
    pub ratio: f64,
    /// Direction that is better.
    pub better: Better,
    /// Goal; `None` when the metric is only reported.
    pub goal: Option<f64>,
    /// Quantity that the goal is for.
    pub goal_for: GoalFor,
    /// Rounds measured.
    pub rounds: u32,
    /// (Largest - smallest) / median of the rounds' ratios.
    pub spread: f64,
}

impl Measurement {
    /// Returns true when the goal is reached; `None` without a goal.
    #[must_use]
    pub fn reached(&self) -> Option<bool> {
        let value = match self.goal_for {
            GoalFor::Ratio => self.ratio,
            GoalFor::Ours => self.ours,
            GoalFor::Difference => self.ours - self.baseline,
        };
        self.goal.map(|goal| match self.better {
            Better::Higher => value >= goal,
            Better::Lower => value <= goal,
        })
    }
}
