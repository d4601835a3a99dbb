//! What a benchmark measured: ours against a baseline, and whether that is good.

use serde::Serialize;

/// Which way is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Rates.
    Higher,
    /// Times and losses.
    Lower,
}

/// What a goal is for.
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

/// What a benchmark found.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Measured {
    pub(crate) measurements: Vec<Measurement>,
    /// Sentences for people: under which conditions it was measured.
    pub(crate) notes: Vec<String>,
}

impl From<Vec<Measurement>> for Measured {
    fn from(measurements: Vec<Measurement>) -> Self {
        Self { measurements, notes: Vec::new() }
    }
}

/// One metric: ours against a baseline, medians over interleaved rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measurement {
    /// `bench.case.size.variant`, in lower case.
    pub metric: String,
    /// Of `ours` and `baseline`.
    pub unit: &'static str,
    /// Median.
    pub ours: f64,
    /// Median.
    pub baseline: f64,
    /// What the baseline is.
    pub baseline_name: &'static str,
    /// Median of the rounds' ratios, ours divided by the baseline beside it.
    pub ratio: f64,
    /// Which way is good.
    pub better: Better,
    /// What is to be reached; none when it is only reported.
    pub goal: Option<f64>,
    /// By what.
    pub goal_for: GoalFor,
    /// Rounds measured.
    pub rounds: u32,
    /// (Largest - smallest) / median of the rounds' ratios.
    pub spread: f64,
}

impl Measurement {
    /// Whether the goal is reached; none without a goal.
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
