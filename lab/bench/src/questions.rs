//! Response times of a node's API under other load.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::Subject;
use crate::measurement::{Better, GoalFor, Measurement};
use crate::rounds::percentile;

/// Goal for 99 of a hundred responses, in microseconds.
const GOAL_US: f64 = 200_000.0;
/// Pause between two requests, as of an operator's program.
const GAP: Duration = Duration::from_millis(2);

/// Returns the time of one request, in microseconds.
pub(crate) fn ask(subject: &mut dyn Subject, node: &str) -> Result<f64> {
    let begun = Instant::now();
    subject.handled(node)?;
    Ok(begun.elapsed().as_secs_f64() * 1e6)
}

/// Returns the times of all requests made within `length`, in microseconds.
pub(crate) fn ask_for(subject: &mut dyn Subject, node: &str, length: Duration) -> Result<Vec<f64>> {
    let end = Instant::now() + length;
    let mut times = Vec::new();
    while Instant::now() < end {
        times.push(ask(subject, node)?);
        std::thread::sleep(GAP);
    }
    Ok(times)
}

/// Compares the time of 99 of a hundred responses with that of an idle node.
pub(crate) fn compare(
    metric: String,
    answers: &[f64],
    idle: &[f64],
    baseline_name: &'static str,
    rounds: u32,
) -> Measurement {
    let (ours, baseline) = (percentile(answers, 99), percentile(idle, 99));
    Measurement {
        metric,
        unit: "us",
        ours,
        baseline,
        baseline_name,
        ratio: ours / baseline,
        better: Better::Lower,
        goal: Some(GOAL_US),
        goal_for: GoalFor::Ours,
        rounds,
        spread: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_is_judged_by_its_slow_answers() {
        let quick = vec![1000.0; 98];
        let slow = |count: usize| [quick.clone(), vec![300_000.0; count]].concat();
        let reached =
            |answers: &[f64]| compare("api".to_owned(), answers, &quick, "idle", 1).reached();
        assert_eq!(reached(&quick), Some(true));
        assert_eq!(reached(&slow(2)), Some(false));
    }
}
