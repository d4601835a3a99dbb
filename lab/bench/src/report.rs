//! Report of a benchmark: the JSON document of a fixed version, and a table for people.

use comfy_table::{Table, presets};
use serde::Serialize;

use crate::limits::{self, Judged};
use crate::machine::Machine;
use crate::measurement::{GoalFor, Measured, Measurement};

/// Version of the JSON document.
pub const SCHEMA_VERSION: u32 = 1;

/// Report of a whole run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    schema_version: u32,
    bench: String,
    /// Measurements.
    pub results: Vec<Measurement>,
    machine: Machine,
    /// False if a baseline was so slow that the run means nothing.
    valid: bool,
    /// Conditions of the measurement; why it is not valid, or why that could not be judged.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

impl Report {
    pub(crate) fn new(bench: &str, measured: Measured, machine: Machine) -> Self {
        let Measured { measurements: results, mut notes } = measured;
        let Judged { valid, notes: doubts } = limits::judge(&results, &machine);
        notes.extend(doubts);
        let bench = bench.to_owned();
        Self { schema_version: SCHEMA_VERSION, bench, results, machine, valid, notes }
    }

    /// Returns true unless a baseline was known to be too slow.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.valid
    }

    /// Returns the document for programs.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!(self)
    }

    /// Returns the table for people.
    #[must_use]
    pub fn to_table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY);
        table.set_header(["metric", "unit", "ours", "baseline", "", "ratio", "spread", "goal", ""]);
        for m in &self.results {
            table.add_row([
                m.metric.clone(),
                m.unit.to_owned(),
                number(m.ours),
                number(m.baseline),
                m.baseline_name.to_owned(),
                format!("{:.2}", m.ratio),
                format!("{:.0} %", m.spread * 100.0),
                m.goal.map_or_else(String::new, |goal| match m.goal_for {
                    GoalFor::Ratio => goal.to_string(),
                    GoalFor::Ours => format!("{goal} {}", m.unit),
                    GoalFor::Difference => format!("+{goal} {}", m.unit),
                }),
                m.reached().map_or("", |yes| if yes { "reached" } else { "missed" }).to_owned(),
            ]);
        }
        let rounds = self.results.iter().map(|m| m.rounds).max().unwrap_or(0);
        let mut text = format!("{table}\n{}; medians of {rounds} rounds\n", self.machine);
        for note in &self.notes {
            text.push_str(note);
            text.push('\n');
        }
        text
    }
}

/// Formats three significant digits, with a thousands suffix: for people only.
fn number(value: f64) -> String {
    for (unit, name) in [(1e9, " G"), (1e6, " M"), (1e3, " k")] {
        if value.abs() >= unit {
            return format!("{:.2}{name}", value / unit);
        }
    }
    format!("{value:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::Better;

    fn report() -> Report {
        let measurement = Measurement {
            metric: "forward.xdp_sink.64".to_owned(),
            unit: "packets/s",
            ours: 1_900_000.0,
            baseline: 2_000_000.0,
            baseline_name: "fib_forward",
            ratio: 0.95,
            better: Better::Higher,
            goal: Some(0.95),
            goal_for: GoalFor::Ratio,
            rounds: 3,
            spread: 0.02,
        };
        let machine = Machine {
            kernel: "6.18.0".to_owned(),
            cpu: "test".to_owned(),
            cpu_family: "test/1".to_owned(),
            cores: 2,
            driver: "veth".to_owned(),
            load: 0.0,
        };
        Report::new("forward", vec![measurement].into(), machine)
    }

    #[test]
    fn the_document_has_the_fixed_fields() {
        let document = report().to_json();
        assert_eq!(document["schema_version"], 1);
        assert_eq!(document["bench"], "forward");
        assert_eq!(document["valid"], true);
        let result = document["results"][0].as_object().unwrap();
        let fields: Vec<&str> = result.keys().map(String::as_str).collect();
        for field in [
            "metric",
            "unit",
            "ours",
            "baseline",
            "baseline_name",
            "ratio",
            "better",
            "goal",
            "rounds",
            "spread",
        ] {
            assert!(fields.contains(&field), "{field} of {fields:?}");
        }
        assert_eq!(result["better"], "higher");
        assert_eq!(document["machine"]["driver"], "veth");
    }

    #[test]
    fn a_missing_goal_is_null() {
        let mut report = report();
        report.results[0].goal = None;
        assert!(report.to_json()["results"][0]["goal"].is_null());
        assert_eq!(report.results[0].reached(), None);
    }

    #[test]
    fn a_lower_is_better_goal_is_reached_from_above() {
        let mut measurement = report().results.remove(0);
        measurement.better = Better::Lower;
        measurement.goal = Some(1.1);
        measurement.ratio = 1.2;
        assert_eq!(measurement.reached(), Some(false));
        measurement.ratio = 1.05;
        assert_eq!(measurement.reached(), Some(true));
    }

    #[test]
    fn a_goal_may_be_for_ours_or_for_the_difference() {
        let mut measurement = report().results.remove(0);
        measurement.better = Better::Lower;
        (measurement.ours, measurement.baseline) = (7.0, 5.0);
        for (goal_for, goal, reached) in [
            (GoalFor::Ours, 6.0, false),
            (GoalFor::Ours, 7.0, true),
            (GoalFor::Difference, 1.0, false),
            (GoalFor::Difference, 2.0, true),
        ] {
            let measured = Measurement { goal: Some(goal), goal_for, ..measurement.clone() };
            assert_eq!(measured.reached(), Some(reached), "{goal_for:?} {goal}");
        }
    }

    #[test]
    fn the_table_says_whether_the_goal_is_reached() {
        let table = report().to_table();
        assert!(table.contains("forward.xdp_sink.64") && table.contains("reached"), "{table}");
        assert!(table.contains("1.90 M"), "{table}");
    }
}
