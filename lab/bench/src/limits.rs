//! Reference rates of the baselines on one known kind of machine.
//!
//! A baseline that is far slower than its reference means that the run was disturbed, and then
//! ratios to it mean nothing. On another kind of machine this cannot be judged, and the report says
//! so.

use crate::machine::Machine;
use crate::measurement::Measurement;

/// CPU family of the reference machine: a virtual machine with 2 CPUs of AMD Zen 3, Linux 6.18,
/// veth, everything in softirq on CPU 0.
const CPU_FAMILY: &str = "AuthenticAMD/25";

/// Share of its reference rate below which a baseline makes the run invalid.
const SHARE_MIN: f64 = 0.75;

/// Reference rates: baseline, beginning of the metrics and their size, packets per second.
///
/// Each is the lower of two rounds, since single runs vary by a quarter, as a median of 1-second
/// samples at the sink.
const FIGURES: [(&str, &str, &str, f64); 10] = [
    ("fib_forward", "forward.xdp_sink", "64", 2.34e6),
    ("fib_forward", "forward.xdp_sink", "1460", 3.06e6),
    ("fib_forward", "forward.sink", "64", 0.83e6),
    ("kernel", "forward.xdp_sink", "64", 0.56e6),
    ("kernel", "forward.xdp_sink", "1460", 0.79e6),
    ("kernel", "forward.sink", "64", 0.45e6),
    ("plain_xsk", "user.forward", "64", 0.56e6),
    ("plain_xsk", "user.forward", "1460", 0.46e6),
    ("plain_xsk", "user.reception", "64", 2.64e6),
    ("plain_xsk", "user.reception", "1460", 2.33e6),
];

/// Judgement of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judged {
    /// False only if a baseline is known to be too slow.
    pub(crate) valid: bool,
    /// Notes for people.
    pub(crate) notes: Vec<String>,
}

/// Load average from which generator and application do not have their CPUs to themselves.
const LOAD_MAX: f64 = 0.5;

/// Compares the baselines with the reference rates, if the machine is of that kind.
pub(crate) fn judge(results: &[Measurement], machine: &Machine) -> Judged {
    let Judged { valid, mut notes } = against_figures(results, machine);
    if machine.load > LOAD_MAX {
        notes.push(format!(
            "the machine was busy: {} tasks were runnable in the minute before; figures of user \
             level suffer most",
            machine.load
        ));
    }
    Judged { valid, notes }
}

fn against_figures(results: &[Measurement], machine: &Machine) -> Judged {
    let figure = |m: &Measurement| {
        FIGURES.iter().find(|(baseline, metric, size, _)| {
            m.baseline_name == *baseline
                && m.metric
                    .strip_prefix(metric)
                    .and_then(|rest| rest.strip_prefix('.'))
                    .is_some_and(|rest| rest.split('.').next() == Some(size))
        })
    };
    let pairs: Vec<_> = results.iter().filter_map(|m| Some((m, figure(m)?.3))).collect();
    if pairs.is_empty() {
        return Judged { valid: true, notes: Vec::new() };
    }
    if machine.cpu_family != CPU_FAMILY {
        let note = format!(
            "the baselines were not judged: their known figures are of {CPU_FAMILY}, this is {}",
            machine.cpu_family
        );
        return Judged { valid: true, notes: vec![note] };
    }
    let slow = |(m, figure): &(&Measurement, f64)| {
        (m.baseline < SHARE_MIN * figure).then(|| {
            format!(
                "invalid: the baseline {} of {} ran at {:.0} packets/s, below three quarters of \
                 {figure:.0}: the machine was disturbed, run again",
                m.baseline_name, m.metric, m.baseline
            )
        })
    };
    let notes: Vec<String> = pairs.iter().filter_map(slow).collect();
    Judged { valid: notes.is_empty(), notes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::{Better, GoalFor};

    fn judged(baseline: f64, family: &str) -> Judged {
        let measurement = Measurement {
            metric: "forward.xdp_sink.64.rules1000".to_owned(),
            unit: "packets/s",
            ours: baseline,
            baseline,
            baseline_name: "fib_forward",
            ratio: 1.0,
            better: Better::Higher,
            goal: None,
            goal_for: GoalFor::Ratio,
            rounds: 1,
            spread: 0.0,
        };
        let machine = Machine {
            kernel: String::new(),
            cpu: String::new(),
            cpu_family: family.to_owned(),
            cores: 2,
            driver: "veth".to_owned(),
            load: 0.0,
        };
        judge(&[measurement], &machine)
    }

    #[test]
    fn a_slow_baseline_makes_the_run_invalid() {
        assert!(judged(2.0e6, CPU_FAMILY).valid);
        let slow = judged(1.7e6, CPU_FAMILY);
        assert!(!slow.valid && slow.notes[0].starts_with("invalid"), "{slow:?}");
    }

    #[test]
    fn a_busy_machine_is_noted() {
        let machine = Machine { load: 2.5, ..Machine::read("veth") };
        let judged = judge(&[], &machine);
        assert!(judged.valid && judged.notes[0].contains("2.5 tasks"), "{judged:?}");
    }

    #[test]
    fn another_machine_is_not_judged() {
        let other = judged(1.0, "GenuineIntel/6");
        assert!(other.valid && other.notes[0].contains("not judged"), "{other:?}");
    }
}
