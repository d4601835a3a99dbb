//! Usage of sessions over time: the last minute by the second, the last hour by the minute.
//!
//! ```text
//!  each second: counters ─ less those of the look before ─┬▶ seconds ▢▢▢…▢ 60
//!                                                         └▶ minutes ▢▢▢…▢ 60
//! ```
//!
//! A session that has never done anything has none. An idle session costs nothing: the steps since
//! its last one are filled in on a request, or when it becomes active again. The history is in the
//! daemon's memory only, and begins afresh with each daemon.

use api::{SessionCounts, SessionHistory, SessionStep};
use std::collections::BTreeMap;
use tokio::time::Duration;
use units::{Bytes, Name, Nanos};

/// Period of looks: the shorter of the two steps.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Number of steps of each length: a minute of seconds fits on a line of a terminal, and sixty of
/// the longer steps continue where it ends. Both take 3,840 bytes for a session, 47 MB for 12,288.
const STEPS: usize = 60;
/// Divisor for the part of the daemon's time that samples may take: with thousands of sessions
/// there are fewer, and the usage between two is spread over the seconds in between.
const LOOK_PART: u64 = 100;
const SECOND: u64 = 1_000_000_000;
/// Unit of memory in bytes, so that 32 bits can count 16 TiB.
const PAGE: u64 = 4096;

/// Usage of one step. Sums stay where their numbers end: 71 minutes of processor time,
/// four thousand million packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Step {
    cpu_us: u32,
    below_us: u32,
    dropped: u32,
    /// Largest amount that there was.
    memory_pages: u32,
    sent_bytes: u64,
    bytes: u64,
}

const _: () = assert!(2 * STEPS * size_of::<Step>() == 3_840, "what is said of it above");

impl Step {
    fn add(&mut self, more: &Self) {
        self.cpu_us = self.cpu_us.saturating_add(more.cpu_us);
        self.below_us = self.below_us.saturating_add(more.below_us);
        self.dropped = self.dropped.saturating_add(more.dropped);
        self.memory_pages = self.memory_pages.max(more.memory_pages);
        self.sent_bytes = self.sent_bytes.saturating_add(more.sent_bytes);
        self.bytes = self.bytes.saturating_add(more.bytes);
    }
}

/// Steps of one length by their numbers: a number is a time, in steps.
#[derive(Debug)]
struct Ring {
    steps: [Step; STEPS],
    first: u64,
    last: u64,
}

impl Ring {
    fn new(at: u64) -> Self {
        Self { steps: [Step::default(); STEPS], first: at, last: at }
    }

    const fn place(at: u64) -> usize {
        (at % STEPS as u64) as usize
    }

    /// Fills the steps behind the last one, up to this one: nothing was used, and memory stayed.
    fn reach(&mut self, at: u64, memory_pages: u32) {
        let idle = Step { memory_pages, ..Step::default() };
        for between in (self.last + 1..=at).rev().take(STEPS) {
            self.steps[Self::place(between)] = idle;
        }
        self.last = self.last.max(at);
    }

    fn add(&mut self, at: u64, memory_before: u32, step: &Step) {
        if at > self.last {
            self.reach(at, memory_before);
            self.steps[Self::place(at)] = *step;
        } else if self.last - at < STEPS as u64 {
            self.steps[Self::place(at)].add(step);
        }
    }

    /// Returns the steps until `end`, oldest first, with their numbers.
    fn until(&self, end: u64, memory_pages: u32) -> Vec<(u64, Step)> {
        let from = self.first.max(end.saturating_sub(STEPS as u64));
        let idle = Step { memory_pages, ..Step::default() };
        let step = |at: u64| if at > self.last { idle } else { self.steps[Self::place(at)] };
        (from..end).map(|at| (at, step(at))).collect()
    }
}

/// Steps of one session.
#[derive(Debug)]
struct Rings {
    seconds: Ring,
    minutes: Ring,
    /// Memory at the last step that was added.
    memory_pages: u32,
}

impl Rings {
    fn new(second: u64) -> Self {
        let (seconds, minutes) = (Ring::new(second), Ring::new(second / 60));
        Self { seconds, minutes, memory_pages: 0 }
    }

    /// Adds what was used, evenly spread over these seconds.
    fn add(&mut self, seconds: std::ops::Range<u64>, used: &Used, memory_pages: u32) {
        let count = (seconds.end - seconds.start).max(1);
        for second in seconds.clone() {
            // What does not divide is of the last one.
            let is_last = second + 1 == seconds.end;
            let part = |all: u64| all / count + if is_last { all % count } else { 0 };
            let small = |all: u64| u32::try_from(part(all)).unwrap_or(u32::MAX);
            let step = Step {
                cpu_us: small(used.cpu_us),
                below_us: small(used.below_us),
                dropped: small(used.dropped),
                memory_pages,
                sent_bytes: part(used.sent_bytes),
                bytes: part(used.bytes),
            };
            self.seconds.add(second, self.memory_pages, &step);
            self.minutes.add(second / 60, self.memory_pages, &step);
            self.memory_pages = memory_pages;
        }
    }
}

/// Counters, and what they are more than before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Used {
    cpu_us: u64,
    below_us: u64,
    dropped: u64,
    sent_bytes: u64,
    bytes: u64,
}

impl Used {
    fn of(counts: &SessionCounts) -> Self {
        Self {
            cpu_us: counts.cpu_ns.unwrap_or(0) / 1000,
            below_us: counts.below_ns.unwrap_or(0) / 1000,
            dropped: counts.queue_dropped.unwrap_or(0),
            sent_bytes: counts.sent_bytes.unwrap_or(0),
            bytes: counts.bytes,
        }
    }

    const fn less(self, before: Self) -> Self {
        Self {
            cpu_us: self.cpu_us.saturating_sub(before.cpu_us),
            below_us: self.below_us.saturating_sub(before.below_us),
            dropped: self.dropped.saturating_sub(before.dropped),
            sent_bytes: self.sent_bytes.saturating_sub(before.sent_bytes),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }
}

#[derive(Debug, Default)]
struct Kept {
    before: Used,
    rings: Option<Box<Rings>>,
}

/// The steps of all sessions.
#[derive(Debug, Default)]
pub(crate) struct History {
    sessions: BTreeMap<Name, Kept>,
    /// The second in which was looked last, none of a daemon that has just come; and when it may
    /// be looked again.
    looked: Option<u64>,
    rests_until: Nanos,
}

impl History {
    /// Returns true when the last look was in a second before this one, and not too dear.
    pub(super) fn is_due(&self, now: Nanos) -> bool {
        self.looked.is_none_or(|looked| now.0 / SECOND > looked) && now >= self.rests_until
    }

    /// Takes note of counters, and of memory in use, as they are now.
    pub(super) fn record<'a>(
        &mut self,
        now: Nanos,
        all: impl Iterator<Item = (&'a Name, &'a SessionCounts, Bytes)>,
    ) {
        let second = now.0 / SECOND;
        let looked = self.looked.replace(second);
        for (name, counts, memory) in all {
            let (counted, nothing) = (Used::of(counts), Used::default());
            let Some(kept) = self.sessions.get_mut(name) else {
                if counted == nothing {
                    continue;
                }
                // What it had used when this daemon came, it did not use in this second.
                let before = if looked.is_none() { counted } else { nothing };
                self.sessions.insert(name.clone(), Kept { before, rings: None });
                self.note(name, looked, second, counted, memory);
                continue;
            };
            let memory_pages = pages(memory);
            let is_idle = counted.less(kept.before) == nothing
                && kept.rings.as_ref().is_none_or(|rings| rings.memory_pages == memory_pages);
            if !is_idle {
                self.note(name, looked, second, counted, memory);
            }
        }
    }

    fn note(&mut self, name: &Name, looked: Option<u64>, now: u64, counted: Used, memory: Bytes) {
        let Some(kept) = self.sessions.get_mut(name) else { return };
        let used = counted.less(std::mem::replace(&mut kept.before, counted));
        if let Some(looked) = looked {
            let rings = kept.rings.get_or_insert_with(|| Box::new(Rings::new(looked)));
            rings.add(looked..now, &used, pages(memory));
        }
    }

    /// Puts the next look off by a multiple of the time that one took.
    pub(super) fn rest(&mut self, now: Nanos, took: Nanos) {
        self.rests_until = now + Nanos(took.0.saturating_mul(LOOK_PART));
    }

    /// Another session may have the name.
    pub(crate) fn forget(&mut self, name: &Name) {
        self.sessions.remove(name);
    }

    /// Returns what a session used over time; `at` is now, on the node's clock and in milliseconds since
    /// 1970. None where it never did anything.
    pub(super) fn shown(&self, name: &Name, at: (Nanos, u64)) -> Option<SessionHistory> {
        let (end, rings) = (self.looked?, self.sessions.get(name)?.rings.as_ref()?);
        let (now, wall_ms) = at;
        let since_1970 = |second: u64| {
            let ago = now.saturating_sub(Nanos(second.saturating_mul(SECOND)));
            wall_ms.saturating_sub(ago.as_millis())
        };
        let memory = rings.memory_pages;
        let seconds = rings.seconds.until(end, memory).into_iter();
        let seconds = seconds.map(|(at, step)| shown(since_1970(at), 1, &step)).collect();
        let minutes = rings.minutes.until(end.div_ceil(60), memory).into_iter();
        let minutes = minutes.map(|(at, step)| {
            // The first and the last may be shorter.
            let from = (at * 60).max(rings.seconds.first);
            shown(since_1970(from), (at * 60 + 60).min(end) - from.min(end), &step)
        });
        Some(SessionHistory { seconds, minutes: minutes.collect() })
    }
}

fn pages(memory: Bytes) -> u32 {
    u32::try_from(memory.0.div_ceil(PAGE)).unwrap_or(u32::MAX)
}

fn shown(at_ms: u64, seconds: u64, step: &Step) -> SessionStep {
    SessionStep {
        at_ms,
        length_ms: seconds * 1000,
        cpu_ns: u64::from(step.cpu_us) * 1000,
        below_ns: u64::from(step.below_us) * 1000,
        memory_bytes: u64::from(step.memory_pages) * PAGE,
        queue_dropped: u64::from(step.dropped),
        sent_bytes: step.sent_bytes,
        bytes: step.bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn name() -> Name {
        "gold".parse().unwrap()
    }

    fn counts(cpu_ms: u64, bytes: u64) -> SessionCounts {
        SessionCounts { cpu_ns: Some(cpu_ms * 1_000_000), bytes, ..SessionCounts::default() }
    }

    /// Looks a little behind the beginning of a second.
    fn record(history: &mut History, second: u64, counts: &SessionCounts, memory: u64) {
        let now = Nanos(second * SECOND + 1000);
        assert!(history.is_due(now));
        history.record(now, [(&name(), counts, Bytes(memory))].into_iter());
    }

    fn shown(history: &History, second: u64) -> Option<SessionHistory> {
        history.shown(&name(), (Nanos(second * SECOND), 1_000_000_000))
    }

    fn cpu_ms(steps: &[SessionStep]) -> Vec<u64> {
        steps.iter().map(|step| step.cpu_ns / 1_000_000).collect()
    }

    #[test]
    fn a_session_that_was_never_active_has_no_history() {
        let mut history = History::default();
        for second in 5..9 {
            record(&mut history, second, &counts(0, 0), MIB);
        }
        assert!(history.sessions.is_empty() && shown(&history, 9).is_none());
    }

    #[test]
    fn use_before_the_daemon_started_is_in_no_step_of_the_history() {
        let mut history = History::default();
        record(&mut history, 5, &counts(900, 70), MIB);
        assert!(shown(&history, 6).is_none());
        record(&mut history, 6, &counts(950, 70), MIB);
        let steps = shown(&history, 6).unwrap().seconds;
        assert_eq!(cpu_ms(&steps), [50]);
        assert_eq!((steps[0].bytes, steps[0].memory_bytes), (0, MIB));
    }

    #[test]
    fn steps_have_their_times_and_idle_ones_keep_the_memory() {
        let mut history = History::default();
        for (second, cpu) in [(10, 0), (11, 100), (12, 400), (13, 400), (14, 400)] {
            record(&mut history, second, &counts(cpu, 0), MIB);
        }
        let steps = shown(&history, 14).unwrap().seconds;
        assert_eq!(cpu_ms(&steps), [100, 300, 0, 0]);
        assert!(steps.iter().all(|step| step.memory_bytes == MIB && step.length_ms == 1000));
        let at: Vec<u64> = steps.iter().map(|step| step.at_ms).collect();
        assert_eq!(at, [999_996_000, 999_997_000, 999_998_000, 999_999_000]);
        // It gave memory back and did nothing else.
        record(&mut history, 15, &counts(400, 0), 4096);
        let steps = shown(&history, 15).unwrap().seconds;
        let memory: Vec<u64> = steps.iter().rev().map(|step| step.memory_bytes).take(2).collect();
        assert_eq!(memory, [4096, MIB]);
    }

    #[test]
    fn a_late_sample_is_spread_over_the_seconds_that_it_covers() {
        let mut history = History::default();
        record(&mut history, 10, &counts(0, 0), 0);
        record(&mut history, 14, &counts(1000, 10), 0);
        let steps = shown(&history, 14).unwrap().seconds;
        assert_eq!(cpu_ms(&steps), [250; 4]);
        assert_eq!(steps.iter().map(|step| step.bytes).collect::<Vec<_>>(), [2, 2, 2, 4]);
        history.rest(Nanos(14 * SECOND), Nanos::from_millis(30));
        assert!(!history.is_due(Nanos(16 * SECOND)) && history.is_due(Nanos(17 * SECOND)));
    }

    #[test]
    fn a_minute_of_seconds_and_an_hour_of_minutes_are_kept() {
        let mut history = History::default();
        for second in 30..=7_290 {
            record(&mut history, second, &counts(second - 30, 0), 0);
        }
        let all = shown(&history, 7_290).unwrap();
        assert_eq!(cpu_ms(&all.seconds), [1; STEPS]);
        let mut minutes = [60; STEPS];
        minutes[STEPS - 1] = 30;
        assert_eq!(cpu_ms(&all.minutes), minutes);
        assert_eq!(all.minutes[STEPS - 1].length_ms, 30_000);
        // Hours of nothing leave nothing.
        record(&mut history, 20_000, &counts(7_260, 0), 0);
        let all = shown(&history, 20_000).unwrap();
        assert_eq!((cpu_ms(&all.seconds), cpu_ms(&all.minutes)), (vec![0; STEPS], vec![0; STEPS]));
        record(&mut history, 20_001, &counts(7_265, 0), 0);
        let all = shown(&history, 20_001).unwrap();
        assert_eq!(cpu_ms(&all.seconds).iter().sum::<u64>(), 5);
        assert_eq!((all.seconds.len(), all.minutes.len()), (STEPS, STEPS));
    }

    #[test]
    fn the_first_minute_is_as_long_as_it_is_known() {
        let mut history = History::default();
        for second in [50, 51, 70] {
            record(&mut history, second, &counts(second - 50, 0), 0);
        }
        let minutes = shown(&history, 70).unwrap().minutes;
        let lengths: Vec<u64> = minutes.iter().map(|step| step.length_ms).collect();
        assert_eq!((lengths, cpu_ms(&minutes)), (vec![10_000, 10_000], vec![10, 10]));
    }

    #[test]
    fn numbers_that_have_no_room_stay_at_their_end() {
        let mut history = History::default();
        record(&mut history, 1, &counts(0, 0), 0);
        let most = SessionCounts {
            queue_dropped: Some(u64::MAX),
            sent_bytes: Some(u64::MAX),
            ..counts(u64::MAX / 1_000_000, u64::MAX)
        };
        record(&mut history, 2, &most, u64::MAX);
        let steps = shown(&history, 2).unwrap().seconds;
        assert_eq!(steps[0].queue_dropped, u64::from(u32::MAX));
        assert_eq!(steps[0].bytes, u64::MAX);
    }
}
