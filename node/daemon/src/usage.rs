//! Usage of a node: the meters that are billed, what sessions use, and what things that are gone
//! had counted.

use crate::answer::{Answer, failed};
use crate::dataplane::DataPlane;
use crate::ledger::{Billing, Meters};
use crate::sessions::{Counts, Sessions, UsageSnapshot};
use ::node::{Node, Session};
use ::session::in_kernel::Speed;
use api::SessionCounts;
use bpf_maps::PortShare;
use std::collections::BTreeMap;
use units::{Bytes, Name, Nanos, Packets, SessionId};

/// Usage of a node.
pub(crate) struct Usage {
    billing: Billing,
    sessions: Sessions,
    /// Packets and bytes that removed rules had counted, by session.
    closed: BTreeMap<Name, (Packets, Bytes)>,
    /// Fuel that removed services had used, by session.
    fuel_closed: BTreeMap<Name, u64>,
}

/// Counts of a previous daemon.
pub(crate) struct Before {
    /// Packets and bytes that removed rules had counted, by session.
    pub(crate) closed: BTreeMap<Name, (Packets, Bytes)>,
    /// Fuel that removed services had used, by session.
    pub(crate) fuel_closed: BTreeMap<Name, u64>,
    /// Usage of sessions in cells that are gone.
    pub(crate) sessions: BTreeMap<SessionId, SessionCounts>,
    /// Meters of what is billed.
    pub(crate) meters: Meters,
}

impl Usage {
    /// Creates the usage of a node that starts now.
    pub(crate) fn new(billing: Billing) -> Self {
        Self {
            billing,
            sessions: Sessions::default(),
            closed: BTreeMap::new(),
            fuel_closed: BTreeMap::new(),
        }
    }

    /// Takes over what a previous daemon counted.
    pub(crate) fn adopt(&mut self, before: Before) {
        let Before { closed, fuel_closed, sessions, meters } = before;
        (self.closed, self.fuel_closed) = (closed, fuel_closed);
        self.sessions.adopt(sessions);
        self.billing.adopt(meters);
    }

    /// Returns what is billed.
    pub(crate) const fn billing(&self) -> &Billing {
        &self.billing
    }

    /// Returns what is billed, to be changed.
    pub(crate) const fn billing_mut(&mut self) -> &mut Billing {
        &mut self.billing
    }

    /// Returns what sessions use, as cells report it.
    pub(crate) const fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Returns what sessions use, to be changed.
    pub(crate) const fn sessions_mut(&mut self) -> &mut Sessions {
        &mut self.sessions
    }

    /// Returns the packets and bytes that removed rules had counted, by session.
    pub(crate) const fn counted(&self) -> &BTreeMap<Name, (Packets, Bytes)> {
        &self.closed
    }

    /// Returns the fuel that removed services had used, by session.
    pub(crate) const fn fuel(&self) -> &BTreeMap<Name, u64> {
        &self.fuel_closed
    }

    /// Adds the packets and bytes that a removed rule had counted for a session.
    pub(crate) fn add_counted(&mut self, session: Name, (packets, bytes): (Packets, Bytes)) {
        let sum = self.closed.entry(session).or_default();
        *sum = (sum.0 + packets, sum.1 + bytes);
    }

    /// Adds the fuel that a removed service had used in a session.
    pub(crate) fn add_fuel(&mut self, session: Name, fuel: u64) {
        *self.fuel_closed.entry(session).or_default() += fuel;
    }

    /// Returns the counters of all sessions since the node started.
    ///
    /// # Errors
    /// A counter cannot be read.
    pub(crate) fn counts(&self, node: &Node, plane: &DataPlane) -> Answer<Counts> {
        let begin = |session: &Session| {
            let (packets, bytes) = self.closed.get(&session.name).copied().unwrap_or_default();
            let fuel = self.fuel_closed.get(&session.name).copied().unwrap_or_default();
            let counted = self.sessions.counted(session.id);
            let (packets, bytes) = (packets.0, bytes.0);
            (session.name.clone(), SessionCounts { packets, bytes, fuel, ..counted })
        };
        let mut counts: Counts = node.sessions().map(begin).collect();
        for (rule, session) in node.rule_sessions() {
            let stats = plane.front().rule_stats(rule).map_err(failed)?;
            let Some(sum) = counts.get_mut(session) else { continue };
            sum.packets += stats.packets;
            sum.bytes += stats.bytes;
        }
        for service in node.services() {
            let Some(below) = plane.below_report(service.entry) else { continue };
            let Some(sum) = counts.get_mut(&service.session) else { continue };
            sum.fuel += below.fuel;
        }
        counts.values_mut().for_each(|counts| add_below(counts, plane.speed()));
        Ok(counts)
    }

    /// Records the usage of sessions until now, as cells have reported it.
    ///
    /// # Errors
    /// A counter cannot be read.
    pub(crate) fn note(&mut self, now: Nanos, node: &Node, plane: &DataPlane) -> Answer<()> {
        let counts = self.counts(node, plane)?;
        let memory = |name: &Name| {
            let session = node.session(name).map(|session| session.id);
            self.sessions.memory_of(session).map_or(Bytes::ZERO, |account| account.used)
        };
        let memory = counts.keys().map(memory).collect();
        let sent = self.sessions.is_due(now).then(|| sent(node, plane));
        self.sessions.handle_usage(now, UsageSnapshot { counts, memory, sent });
        Ok(())
    }

    /// Releases what a session had used that is gone: another one of its name begins from zero, and
    /// the ledger has what this one used.
    pub(crate) fn forget(&mut self, session: &Name) {
        self.closed.remove(session);
        self.fuel_closed.remove(session);
        self.sessions.forget_history(session);
    }
}

/// Returns the bytes that sessions have sent by ports of which they have a share.
fn sent(node: &Node, plane: &DataPlane) -> BTreeMap<(Name, Name), Bytes> {
    let sends = |session: &Session| {
        let lines = plane.port_shares_of(node, session).into_iter();
        let sent = lines.map(|(port, line)| ((session.name.clone(), port.clone()), sent_by(&line)));
        sent.collect::<Vec<_>>()
    };
    node.sessions().flat_map(sends).collect()
}

/// Returns the bytes that a session has sent by a port, at all levels.
pub(crate) fn sent_by(line: &PortShare) -> Bytes {
    let [nic, kernel] = line.account.sent;
    Bytes(nic) + Bytes(kernel) + Bytes(line.sent_up) + Bytes(line.sent_above)
}

/// Adds the time below user level that the fuel stands for, and the sum over all levels.
fn add_below(counts: &mut SessionCounts, speed: Option<Speed>) {
    counts.below_ns = speed.map(|speed| speed.time_of(counts.fuel).0);
    let of = [counts.cpu_ns, counts.below_ns];
    counts.all_levels_ns = of.into_iter().flatten().reduce(|sum, more| sum.saturating_add(more));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_of_all_levels_is_added_up() {
        let speed = Speed::measured(2_000, Nanos(1_000)).unwrap();
        for (cpu_ns, speed, below, all) in [
            (Some(300), Some(speed), Some(50), Some(350)),
            (None, Some(speed), Some(50), Some(50)),
            (Some(300), None, None, Some(300)),
            (None, None, None, None),
        ] {
            let mut counts = SessionCounts { cpu_ns, fuel: 100, ..SessionCounts::default() };
            add_below(&mut counts, speed);
            assert_eq!((counts.below_ns, counts.all_levels_ns), (below, all));
        }
    }

    #[test]
    fn what_a_session_sent_is_the_sum_over_all_levels() {
        let mut line = PortShare { sent_up: 4, sent_above: 8, ..PortShare::default() };
        line.account.sent = [1, 2];
        assert_eq!(sent_by(&line), Bytes(15));
    }
}
