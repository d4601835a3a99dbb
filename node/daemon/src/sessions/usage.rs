//! Usage of sessions: now, recently and since the node started.
//!
//! ```text
//! rules, lanes ─ packets, bytes, fuel ─┐
//! cell ─ SessionReport ─ time, queue ──┴─▶ totals ─ less those of a look before ─▶ the window
//! ```
//!
//! Nothing is measured for it: it reads counters once a second, when the cell has reported, and on
//! a request, so that a window is a second or two long.

use super::history::History;
use crate::control::memory::used_by;
use ::session::admission::MemoryUsed;
use ::session::memory::Account;
use api::{PeriodsKept, SessionCounts, SessionHistory};
use cell::protocol::{DEVIATION_BOUNDS, SessionReport};
use std::collections::{BTreeMap, VecDeque};
use units::{Bytes, Name, Nanos, SessionId};

/// Shortest window: in less time a few packets would look like a rate.
const WINDOW_MIN: Nanos = Nanos::from_millis(1_000);
/// Least time between two looks: they come each second, some a little late.
const LOOK_MIN: Nanos = Nanos(WINDOW_MIN.0 / 2);
/// Looks that are kept: the last one that is old enough, and those that are not yet.
const LOOKS_MAX: usize = 3;

const _: () = assert!(LOOK_MIN.0 * (LOOKS_MAX as u64 - 1) >= WINDOW_MIN.0, "one is old enough");

/// Counters of all sessions since the node started.
pub(crate) type Counts = BTreeMap<Name, SessionCounts>;

/// Usage of all sessions, as cells report it and over time.
#[derive(Default)]
pub(crate) struct Sessions {
    /// Last reports of cells.
    reports: BTreeMap<SessionId, SessionReport>,
    /// Usage in cells that are gone.
    before: BTreeMap<SessionId, SessionCounts>,
    /// Memory in use, as cells said last.
    memory: MemoryUsed,
    windows: VecDeque<Window>,
    /// Usage over time.
    history: History,
    /// True while a look waits for the answer of cells.
    is_use_asked: bool,
}

/// Usage of all sessions at one moment.
pub(crate) struct UsageSnapshot {
    pub(crate) counts: Counts,
    /// Memory in use, in the order of the counters.
    pub(crate) memory: Vec<Bytes>,
    /// Bytes that sessions sent by ports of which they have a share, if that begins a window
    /// ([`Sessions::is_due`]).
    pub(crate) sent: Option<BTreeMap<(Name, Name), Bytes>>,
}

/// Beginning of a window: usage at an earlier moment.
struct Window {
    at: Nanos,
    counts: Counts,
    /// Bytes that sessions sent by ports of which they have a share.
    sent: BTreeMap<(Name, Name), Bytes>,
}

impl Sessions {
    /// Takes over what was used in cells that are gone, as a previous daemon counted it.
    pub(crate) fn adopt(&mut self, before: BTreeMap<SessionId, SessionCounts>) {
        self.before = before;
    }

    /// Returns the usage in cells that are gone.
    pub(crate) const fn before(&self) -> &BTreeMap<SessionId, SessionCounts> {
        &self.before
    }

    /// Handles reports of a cell.
    pub(crate) fn handle_reports(&mut self, reports: Vec<SessionReport>) {
        self.reports.extend(reports.into_iter().map(|report| (report.session, report)));
    }

    /// Keeps what was used in a cell that is lost: another one begins from zero.
    pub(crate) fn cell_lost(&mut self) {
        for (session, report) in std::mem::take(&mut self.reports) {
            let before = self.before.entry(session).or_default();
            *before = plus(*before, &report);
        }
        self.memory = MemoryUsed::default();
    }

    /// Forgets a session's number, which may become another one's.
    pub(crate) fn forget(&mut self, session: SessionId) {
        self.reports.remove(&session);
        self.before.remove(&session);
        self.memory.by.remove(&session);
    }

    /// Releases the history of a session that is gone: another one of its name begins from zero.
    pub(crate) fn forget_history(&mut self, session: &Name) {
        self.history.forget(session);
    }

    /// Handles the memory in use as a cell said it: of all that reserved none, together, and of one
    /// session where it was asked for. Returns what is known now, for admission.
    pub(crate) fn handle_memory(
        &mut self,
        rest: Bytes,
        of: Option<(SessionId, Box<Account>)>,
    ) -> MemoryUsed {
        self.memory.unreserved = rest;
        self.memory.by.extend(of.map(|(session, account)| (session, used_by(&account))));
        self.memory.clone()
    }

    /// Handles the end of a cell's reports: `rest` is the memory of all that reserved none. Returns
    /// the memory in use, for admission.
    pub(crate) fn handle_reported(&mut self, rest: Bytes) -> MemoryUsed {
        let by = self.reports.iter().map(|(id, report)| (*id, used_by(&report.memory))).collect();
        self.memory = MemoryUsed { unreserved: rest, by };
        self.memory.clone()
    }

    /// Returns the counters of a session in all cells that there were.
    pub(crate) fn counted(&self, session: SessionId) -> SessionCounts {
        let before = self.before.get(&session).copied().unwrap_or_default();
        self.reports.get(&session).map_or(before, |report| plus(before, report))
    }

    /// Returns how promised time was kept in the cell that runs; nothing where no period has ended.
    pub(crate) fn kept(&self, session: SessionId) -> Vec<PeriodsKept> {
        let deviations = self.reports.get(&session).map(|report| report.deviations);
        let Some(deviations) = deviations.filter(|all| all.iter().any(|&count| count > 0)) else {
            return Vec::new();
        };
        let points = DEVIATION_BOUNDS.map(|bound| Some(bound as f64 / 10_000.0));
        let points = points.into_iter().chain([None]);
        points.zip(deviations).map(|(points, periods)| PeriodsKept { points, periods }).collect()
    }

    /// Returns the memory of a session, as the cell said last.
    pub(crate) fn memory_of(&self, session: Option<SessionId>) -> Option<&Account> {
        Some(&self.reports.get(&session?)?.memory)
    }

    /// Returns the bytes of packets that wait in the queue of a session.
    pub(crate) fn waiting(&self, session: SessionId) -> Option<Bytes> {
        self.reports.get(&session).map(|report| report.queue)
    }

    /// Begins a sample of sessions' usage, which is taken when cells have reported. Returns true if
    /// the last sample is overdue: they have not answered for a second. `None` while no sample is
    /// due.
    pub(crate) fn start_look(&mut self, now: Nanos) -> Option<bool> {
        self.history.is_due(now).then(|| std::mem::replace(&mut self.is_use_asked, true))
    }

    /// Returns true if a sample waits for cells, which have reported now.
    pub(crate) fn handle_told(&mut self) -> bool {
        std::mem::take(&mut self.is_use_asked)
    }

    /// Takes note of what sessions used since the look before.
    pub(crate) fn handle_usage(&mut self, now: Nanos, look: UsageSnapshot) {
        let UsageSnapshot { counts, memory, sent } = look;
        let all = counts.iter().zip(memory);
        self.history.record(now, all.map(|((name, counts), memory)| (name, counts, memory)));
        if let Some(sent) = sent {
            self.begin_window(now, counts, sent);
        }
    }

    /// Puts the next look off by a multiple of the time that one took.
    pub(crate) fn rest(&mut self, now: Nanos, took: Nanos) {
        self.history.rest(now, took);
    }

    /// Returns what a session used over time; `at` is now, on the node's clock and in milliseconds
    /// since 1970. `None` where it never did anything.
    pub(crate) fn history_of(&self, name: &Name, at: (Nanos, u64)) -> Option<SessionHistory> {
        self.history.shown(name, at)
    }

    /// Begins a window: takes note of how much was used until now.
    fn begin_window(&mut self, at: Nanos, counts: Counts, sent: BTreeMap<(Name, Name), Bytes>) {
        self.windows.push_back(Window { at, counts, sent });
        if self.windows.len() > LOOKS_MAX {
            self.windows.pop_front();
        }
    }

    /// Returns true if the last sample was so long ago that a new window begins.
    pub(crate) fn is_due(&self, at: Nanos) -> bool {
        self.windows.back().is_none_or(|last| at.saturating_sub(last.at) >= LOOK_MIN)
    }

    /// Returns the last look that is so old that a window since then says something.
    fn window_before(&self, now: Nanos) -> Option<&Window> {
        let is_old = |look: &&Window| now.saturating_sub(look.at) >= WINDOW_MIN;
        self.windows.iter().rev().find(is_old)
    }

    /// Returns the bytes that a session had sent by a port at the look before this one.
    pub(crate) fn sent_before(&self, now: Nanos, name: &Name, port: &Name) -> Option<Bytes> {
        self.window_before(now)?.sent.get(&(name.clone(), port.clone())).copied()
    }

    /// Returns the time since the look before this one, and what was used since.
    pub(crate) fn window(
        &self,
        now: Nanos,
        name: &Name,
        total: SessionCounts,
    ) -> (Nanos, SessionCounts) {
        let Some(look) = self.window_before(now) else {
            return (Nanos::ZERO, SessionCounts::default());
        };
        let before = look.counts.get(name).copied().unwrap_or_default();
        (now.saturating_sub(look.at), less(total, before))
    }
}

fn plus(one: SessionCounts, report: &SessionReport) -> SessionCounts {
    let sum = |counted: Option<u64>, more: u64| Some(counted.unwrap_or(0).saturating_add(more));
    SessionCounts {
        cpu_ns: sum(one.cpu_ns, report.cpu.0),
        sent_bytes: sum(one.sent_bytes, report.sent.0),
        queue_dropped: sum(one.queue_dropped, report.dropped),
        ..one
    }
}

fn less(total: SessionCounts, before: SessionCounts) -> SessionCounts {
    let rest = |total: Option<u64>, before: Option<u64>| {
        total.map(|total| total.saturating_sub(before.unwrap_or(0)))
    };
    SessionCounts {
        cpu_ns: rest(total.cpu_ns, before.cpu_ns),
        fuel: total.fuel.saturating_sub(before.fuel),
        below_ns: rest(total.below_ns, before.below_ns),
        all_levels_ns: rest(total.all_levels_ns, before.all_levels_ns),
        packets: total.packets.saturating_sub(before.packets),
        bytes: total.bytes.saturating_sub(before.bytes),
        sent_bytes: rest(total.sent_bytes, before.sent_bytes),
        queue_dropped: rest(total.queue_dropped, before.queue_dropped),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::session::admission::UsedBy;

    fn report(cpu: u64) -> SessionReport {
        let (session, queue, sent) = (SessionId(2), Bytes(1500), Bytes(9));
        SessionReport { cpu: Nanos(cpu), queue, dropped: 1, sent, ..SessionReport::new(session) }
    }

    #[test]
    fn what_a_cell_counted_is_kept_when_it_is_lost() {
        let mut sessions = Sessions::default();
        assert_eq!(sessions.counted(SessionId(2)).cpu_ns, None, "nobody has measured it");
        sessions.handle_reports(vec![report(100)]);
        sessions.handle_reports(vec![report(150)]);
        sessions.cell_lost();
        sessions.handle_reports(vec![report(7)]);
        let counted = sessions.counted(SessionId(2));
        assert_eq!((counted.cpu_ns, counted.queue_dropped), (Some(157), Some(2)));
        assert_eq!(sessions.waiting(SessionId(2)), Some(Bytes(1500)));
        sessions.forget(SessionId(2));
        assert_eq!(sessions.counted(SessionId(2)), SessionCounts::default());
    }

    #[test]
    fn session_memory_is_from_the_last_report_of_all_sessions_or_of_one() {
        let account = |used: u64| {
            let mut account = Account::default();
            account.used = Bytes(used);
            account
        };
        let used = |memory: &MemoryUsed| -> Vec<(u16, UsedBy)> {
            memory.by.iter().map(|(session, used)| (session.0, *used)).collect()
        };
        let mut sessions = Sessions::default();
        sessions.handle_reports(vec![SessionReport { memory: account(5), ..report(1) }]);
        let all = sessions.handle_reported(Bytes(7));
        assert_eq!((all.unreserved, used(&all)), (Bytes(7), vec![(2, used_by(&account(5)))]));
        let one = sessions.handle_memory(Bytes(8), Some((SessionId(3), Box::new(account(6)))));
        let both = vec![(2, used_by(&account(5))), (3, used_by(&account(6)))];
        assert_eq!(
            (one.unreserved, used(&one)),
            (Bytes(8), both),
            "what the others use is as before"
        );
        sessions.forget(SessionId(2));
        assert_eq!(used(&sessions.handle_memory(Bytes(8), None)), [(3, used_by(&account(6)))]);
        sessions.cell_lost();
        assert_eq!(sessions.handle_memory(Bytes(9), None).by.len(), 0, "it went with the cell");
    }

    #[test]
    fn a_window_is_a_second_or_longer_and_ends_now() {
        let mut sessions = Sessions::default();
        let [name, right] = ["gold", "right"].map(|name| Name::new(name).unwrap());
        let at = |ms: u64| Nanos::from_millis(ms);
        let counts = |packets: u64| {
            let counts = SessionCounts { packets, ..SessionCounts::default() };
            BTreeMap::from([(name.clone(), counts)])
        };
        let mut record = |ms: u64, packets: u64| {
            if sessions.is_due(at(ms)) {
                let sent = BTreeMap::from([((name.clone(), right.clone()), Bytes(packets))]);
                sessions.begin_window(at(ms), counts(packets), sent);
            }
            let total = counts(packets)[&name];
            let (window, used) = sessions.window(at(ms), &name, total);
            let before = sessions.sent_before(at(ms), &name, &right).map_or(packets, |it| it.0);
            assert_eq!(packets - before, used.packets, "the same window for what was sent");
            (window.as_millis(), used.packets)
        };
        assert_eq!(record(0, 5), (0, 0), "there was no look before");
        assert_eq!(record(400, 7), (0, 0));
        assert_eq!(record(1_200, 10), (1_200, 5));
        assert_eq!(record(1_500, 12), (1_500, 7));
        assert_eq!(record(2_300, 20), (1_100, 10));
        assert_eq!(record(2_700, 21), (1_500, 11), "too soon behind the last one");
        assert_eq!(record(9_000, 30), (6_700, 10));
    }

    #[test]
    fn with_a_sample_each_second_a_window_is_at_most_two_seconds_long() {
        let mut sessions = Sessions::default();
        let name: Name = "gold".parse().unwrap();
        // A processor and a half; looks come a little late, as the cell's answers do.
        for ms in 0..60_000_u64 {
            let (now, cpu_ns) = (Nanos::from_millis(ms), Some(ms * 1_500_000));
            let total = SessionCounts { cpu_ns, ..SessionCounts::default() };
            if ms % 1_000 == ms / 1_000 % 7 && sessions.is_due(now) {
                sessions.begin_window(
                    now,
                    BTreeMap::from([(name.clone(), total)]),
                    BTreeMap::new(),
                );
            }
            let (window, used) = sessions.window(now, &name, total);
            let window = window.as_millis();
            if ms > 1_006 {
                assert!((1_000..2_010).contains(&window), "{window} ms at {ms}");
                assert_eq!(used.cpu_ns, Some(window * 1_500_000));
            }
        }
    }
}
