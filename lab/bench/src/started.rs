//! Start of several nodes at once; none is left behind.

use anyhow::Result;

use crate::{Plan, Subject};

/// Starts nodes, runs `work` with them, and stops those that have started, whatever the result.
pub(crate) fn with_nodes<T>(
    plans: &[Plan],
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
    work: impl FnOnce(&mut dyn Subject, &mut dyn FnMut(&str)) -> Result<T>,
) -> Result<T> {
    let start = |run: &mut Run<'_>, plan: &Plan| {
        (run.progress)(&format!("starting the node {}", plan.name));
        run.subject.start(plan, 0)
    };
    let stop = |run: &mut Run<'_>, plan: &Plan| run.subject.stop(&plan.name);
    let mut run = Run { subject, progress };
    while_started(&mut run, plans, start, stop, |run| work(run.subject, run.progress))
}

struct Run<'a> {
    subject: &'a mut dyn Subject,
    progress: &'a mut dyn FnMut(&str),
}

fn while_started<S, I, T>(
    subject: &mut S,
    all: &[I],
    start: impl Fn(&mut S, &I) -> Result<()>,
    stop: impl Fn(&mut S, &I) -> Result<()>,
    work: impl FnOnce(&mut S) -> Result<T>,
) -> Result<T> {
    let mut started = 0;
    let mut done = all.iter().try_for_each(|one| {
        start(subject, one)?;
        started += 1;
        Ok(())
    });
    let mut worked = None;
    if done.is_ok() {
        worked = Some(work(subject));
    }
    for one in &all[..started] {
        let stopped = stop(subject, one);
        done = done.and(stopped);
    }
    match worked {
        Some(worked) => worked.and_then(|worked| done.map(|()| worked)),
        None => Err(done.err().unwrap_or_else(|| anyhow::anyhow!("nothing was started"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    /// Runs with `starts` of three nodes that start and work that succeeds if `works`; returns the
    /// result and the calls.
    fn done(starts: usize, works: bool) -> (Result<()>, Vec<String>) {
        let mut log = Vec::new();
        let start = |log: &mut Vec<String>, one: &usize| {
            if *one >= starts {
                bail!("{one} does not start");
            }
            log.push(format!("start {one}"));
            Ok(())
        };
        let stop = |log: &mut Vec<String>, one: &usize| {
            log.push(format!("stop {one}"));
            if *one == 0 {
                bail!("it is not stopped");
            }
            Ok(())
        };
        let work = |log: &mut Vec<String>| {
            log.push("work".to_owned());
            if works { Ok(()) } else { bail!("it does not work") }
        };
        let result = while_started(&mut log, &[0, 1, 2], start, stop, work);
        (result, log)
    }

    #[test]
    fn started_nodes_are_stopped_and_the_first_failure_is_returned() {
        let said = |result: Result<()>| result.unwrap_err().to_string();
        let (result, log) = done(2, true);
        assert_eq!(said(result), "2 does not start");
        assert_eq!(log, ["start 0", "start 1", "stop 0", "stop 1"]);
        let (result, log) = done(3, false);
        assert_eq!(said(result), "it does not work");
        assert_eq!(log[3..], ["work", "stop 0", "stop 1", "stop 2"]);
        assert_eq!(said(done(3, true).0), "it is not stopped");
    }
}
