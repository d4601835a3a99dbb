//! Documents of `GET /v1/sessions`: what sessions were promised, and what they use.

use crate::answer::{Answer, failed};
use crate::control::authority::Sight;
use crate::control::sessions::{no_session, shown};
use crate::events::wall_clock_ms;
use crate::observe::view::View;
use crate::sessions::Usage;
use ::node::Session;
use ::session::admission::Left;
use ::session::in_kernel::Speed;
use ::session::memory::{Account, Use};
use api::{
    LeftInfo, MemoryUse, SCHEMA_VERSION, SendUse, SessionCounts, SessionDetails, SessionList,
    SessionUse,
};
use bpf_maps::Line;
use std::collections::BTreeMap;
use units::{Bytes, Name};

/// Counters of all sessions since the node started.
pub(in crate::observe) type Counts = BTreeMap<Name, SessionCounts>;

/// Services and rules of a session that a client may see.
#[derive(Default)]
struct Things {
    services: Vec<String>,
    rules: Vec<u32>,
    /// Linear memories of all services of the session.
    memory_bytes: u64,
}

/// Returns the sessions that a client may see.
///
/// # Errors
/// When a counter cannot be read.
pub(crate) fn session_list(view: &View<'_>, sight: &Sight) -> Answer<SessionList> {
    let counts = session_counts(view)?;
    let seen = view.node.sessions().filter(|session| sight.has_session(session));
    let mut things = things_by_session(view, sight);
    let sessions = seen.map(|it| shown_session(view, it, &counts, &mut things)).collect();
    let left = view.node.left().filter(|_| sight.everything).map(left_info);
    Ok(SessionList { schema_version: SCHEMA_VERSION, sessions, left })
}

/// Returns one session by a client's word for it, with its history.
///
/// # Errors
/// When the client sees no such session, or a counter cannot be read.
pub(crate) fn session_details(
    view: &View<'_>,
    sight: &Sight,
    wanted: &str,
) -> Answer<SessionDetails> {
    let counts = session_counts(view)?;
    let found = Name::new(wanted).ok().and_then(|name| view.node.session(&name));
    let found = found.filter(|session| sight.has_session(session));
    let found = found.ok_or_else(|| no_session(view.node, sight, wanted))?;
    let mut things = things_by_session(view, sight);
    let mut details = shown_session(view, found, &counts, &mut things);
    details.used.history = view.sessions.history_of(&found.name, (view.now, wall_clock_ms()));
    Ok(details)
}

/// Returns the counters of all sessions since the node started.
///
/// # Errors
/// When a counter cannot be read.
pub(in crate::observe) fn session_counts(view: &View<'_>) -> Answer<Counts> {
    let begin = |session: &Session| {
        let (packets, bytes) = view.closed.get(&session.name).copied().unwrap_or_default();
        let fuel = view.fuel_closed.get(&session.name).copied().unwrap_or_default();
        let counted = view.sessions.counted(session.id);
        (session.name.clone(), SessionCounts { packets, bytes, fuel, ..counted })
    };
    let mut counts: Counts = view.node.sessions().map(begin).collect();
    for (rule, session) in view.node.rule_sessions() {
        let stats = view.plane.front().rule_stats(rule).map_err(failed)?;
        let Some(sum) = counts.get_mut(session) else { continue };
        sum.packets += stats.packets;
        sum.bytes += stats.bytes;
    }
    for service in view.node.services() {
        let Some(below) = view.plane.below_report(service.entry) else { continue };
        let Some(sum) = counts.get_mut(&service.session) else { continue };
        sum.fuel += below.fuel;
    }
    counts.values_mut().for_each(|counts| add_below(counts, view.plane.speed()));
    Ok(counts)
}

/// Returns what all sessions use.
///
/// # Errors
/// When a counter cannot be read.
pub(crate) fn usage(view: &View<'_>) -> Answer<Usage> {
    let counts = session_counts(view)?;
    let memory = |name: &Name| {
        let session = view.node.session(name).map(|session| session.id);
        view.sessions.memory_of(session).map_or(0, |account| account.used.0)
    };
    let memory = counts.keys().map(memory).collect();
    let sent = view.sessions.is_due(view.now).then(|| sent_bytes(view));
    Ok(Usage { counts, memory, sent })
}

/// Returns the bytes that sessions have sent by ports of which they have a share.
fn sent_bytes(view: &View<'_>) -> BTreeMap<(Name, String), u64> {
    let sends = |session: &Session| {
        let name = session.name.clone();
        sends_of(view, session).into_iter().map(move |it| ((name.clone(), it.port), it.sent_bytes))
    };
    view.node.sessions().flat_map(sends).collect()
}

/// Adds the time below user level that the fuel stands for, and the sum over all levels.
fn add_below(counts: &mut SessionCounts, speed: Option<Speed>) {
    counts.below_ns = speed.map(|speed| speed.time_of(counts.fuel).0);
    let of = [counts.cpu_ns, counts.below_ns];
    counts.all_levels_ns = of.into_iter().flatten().reduce(|sum, more| sum.saturating_add(more));
}

fn things_by_session(view: &View<'_>, sight: &Sight) -> BTreeMap<Name, Things> {
    let mut things: BTreeMap<Name, Things> = BTreeMap::new();
    for service in view.node.services() {
        let of = things.entry(service.session.clone()).or_default();
        if sight.has(service.session.as_str(), service.owner) {
            of.services.push(service.name.to_string());
        }
        of.memory_bytes += view.cells.report_of(service.entry).map_or(0, |it| it.memory_bytes);
    }
    let rules = view.node.all_rules().into_iter();
    for view in rules.filter(|it| sight.has(it.rule.spec.session.as_str(), it.owner)) {
        things.entry(view.rule.spec.session).or_default().rules.push(view.rule.id.0);
    }
    things
}

fn shown_session(
    view: &View<'_>,
    session: &Session,
    counts: &Counts,
    things: &mut BTreeMap<Name, Things>,
) -> SessionDetails {
    let things = things.remove(&session.name).unwrap_or_default();
    let Things { services, mut rules, memory_bytes } = things;
    rules.sort_unstable();
    SessionDetails {
        schema_version: SCHEMA_VERSION,
        id: session.id.0,
        name: session.name.to_string(),
        owner: view.state.authority().shown(session.owner),
        built_in: session.is_built_in(),
        state: if session.leaving { "leaving" } else { "there" }.to_owned(),
        promised: shown(&session.reservation),
        short: view.state.desired().shortfall().sessions.get(&session.name).cloned(),
        used: session_use(view, session, memory_bytes, counts),
        services,
        rules,
    }
}

fn session_use(
    view: &View<'_>,
    session: &Session,
    memory_bytes: u64,
    counts: &Counts,
) -> SessionUse {
    let total = counts.get(&session.name).copied().unwrap_or_default();
    let (window_ms, window) = view.sessions.window(view.now, &session.name, total);
    SessionUse {
        memory_bytes,
        memory: view.sessions.memory_of(Some(session.id)).map(memory_use),
        queue_bytes: view.sessions.waiting(session.id),
        window_ms,
        window,
        total,
        kept: view.sessions.kept(session.id),
        send: sends_in_window(view, session),
        // Only of one that is looked at by itself.
        history: None,
    }
}

fn sends_in_window(view: &View<'_>, session: &Session) -> Vec<SendUse> {
    let mut sends = sends_of(view, session);
    for line in &mut sends {
        let before = view.sessions.sent_before(view.now, &session.name, &line.port);
        // A share that is newer than the look has sent all of it since.
        line.window_bytes = line.sent_bytes.saturating_sub(before.unwrap_or(0));
    }
    sends
}

/// Returns the bytes that a session sent by each port of which it has a share.
fn sends_of(view: &View<'_>, session: &Session) -> Vec<SendUse> {
    view.plane.lines_of(view.node, session).into_iter().map(send_use).collect()
}

fn send_use((port, line): (&Name, Line)) -> SendUse {
    let Line { account, up, dropped, sent_up, sent_above, .. } = line;
    let [nic, kernel] = account.sent;
    let kernel = kernel.saturating_add(sent_up);
    SendUse {
        port: port.to_string(),
        nic: "policed".to_owned(),
        kernel: "queued".to_owned(),
        user: "queued".to_owned(),
        sent_bytes: nic.saturating_add(kernel).saturating_add(sent_above),
        sent_nic_bytes: nic,
        sent_kernel_bytes: kernel,
        dropped_nic: dropped[0],
        dropped_kernel: dropped[1],
        waited_kernel: up[0].saturating_add(up[1]),
        window_bytes: 0,
    }
}

/// Returns a session's memory in the API's words.
fn memory_use(account: &Account) -> MemoryUse {
    let held = Use::ALL.into_iter().map(|what| (what, account.held.of(what)));
    let by_use = held.filter(|(_, bytes)| *bytes > Bytes::ZERO);
    MemoryUse {
        used_bytes: account.used.0,
        peak_bytes: account.peak.0,
        refused: account.refused,
        lows: account.lows,
        by_use: by_use.map(|(what, bytes)| (what.name().to_owned(), bytes.0)).collect(),
    }
}

/// Returns what can still be promised, in the API's words.
fn left_info(left: Left) -> LeftInfo {
    let Left { guest, below, memory, packet_memory, ports } = left;
    LeftInfo {
        cpu_parts: guest.into_iter().map(|parts| parts.0).collect(),
        below_parts: below.0,
        memory_bytes: memory.0,
        queue_bytes: packet_memory.0,
        port_parts: ports.into_iter().map(|(port, parts)| (port.to_string(), parts.0)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::Nanos;

    #[test]
    fn all_levels_are_one_account() {
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
}
