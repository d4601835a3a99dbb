//! Documents of `GET /v1/sessions`: what sessions were promised, and what they use.

use crate::answer::Answer;
use crate::control::authority::Visibility;
use crate::control::sessions::{no_session, shown};
use crate::events::wall_clock_ms;
use crate::observe::view::View;
use crate::sessions::Counts;
use crate::usage::sent_by;
use ::node::Session;
use ::session::admission::Left;
use ::session::memory::{Account, Use};
use api::{LeftInfo, MemoryUse, SCHEMA_VERSION, SendUse, SessionDetails, SessionList, SessionUse};
use bpf_maps::PortShare;
use std::collections::BTreeMap;
use units::{Bytes, Name};

/// Services and rules of a session that a client may see.
#[derive(Default)]
struct VisibleItems {
    services: Vec<String>,
    rules: Vec<u32>,
    /// Linear memories of all services of the session.
    memory_bytes: u64,
}

/// Returns the sessions that a client may see.
///
/// # Errors
/// A counter cannot be read.
pub(crate) fn session_list(view: &View<'_>, sight: &Visibility) -> Answer<SessionList> {
    let counts = view.usage.counts(view.node, view.plane)?;
    let seen = view.node.sessions().filter(|session| sight.has_session(session));
    let mut things = things_by_session(view, sight);
    let sessions = seen.map(|it| shown_session(view, it, &counts, &mut things)).collect();
    let left = view.node.left().filter(|_| sight.everything).map(left_info);
    Ok(SessionList { schema_version: SCHEMA_VERSION, sessions, left })
}

/// Returns one session by a client's word for it, with its history.
///
/// # Errors
/// The client sees no such session, or a counter cannot be read.
pub(crate) fn session_details(
    view: &View<'_>,
    sight: &Visibility,
    wanted: &str,
) -> Answer<SessionDetails> {
    let counts = view.usage.counts(view.node, view.plane)?;
    let found = Name::new(wanted).ok().and_then(|name| view.node.session(&name));
    let found = found.filter(|session| sight.has_session(session));
    let found = found.ok_or_else(|| no_session(view.node, sight, wanted))?;
    let mut things = things_by_session(view, sight);
    let mut details = shown_session(view, found, &counts, &mut things);
    details.used.history =
        view.usage.sessions().history_of(&found.name, (view.now, wall_clock_ms()));
    Ok(details)
}

fn things_by_session(view: &View<'_>, sight: &Visibility) -> BTreeMap<Name, VisibleItems> {
    let mut things: BTreeMap<Name, VisibleItems> = BTreeMap::new();
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
    things: &mut BTreeMap<Name, VisibleItems>,
) -> SessionDetails {
    let things = things.remove(&session.name).unwrap_or_default();
    let VisibleItems { services, mut rules, memory_bytes } = things;
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
    let (since, window) = view.usage.sessions().window(view.now, &session.name, total);
    SessionUse {
        memory_bytes,
        memory: view.usage.sessions().memory_of(Some(session.id)).map(memory_use),
        queue_bytes: view.usage.sessions().waiting(session.id).map(|bytes| bytes.0),
        window_ms: since.as_millis(),
        window,
        total,
        kept: view.usage.sessions().kept(session.id),
        send: sends_in_window(view, session),
        // The history is part of a single session's document only.
        history: None,
    }
}

fn sends_in_window(view: &View<'_>, session: &Session) -> Vec<SendUse> {
    let lines = view.plane.port_shares_of(view.node, session).into_iter();
    let sends = lines.map(|(port, line)| {
        let before = view.usage.sessions().sent_before(view.now, &session.name, port);
        send_use(port, line, before.unwrap_or_default())
    });
    sends.collect()
}

/// Returns the use of a share of a port; `before` is what was sent at the beginning of the window,
/// nothing where the share is newer than that.
fn send_use(port: &Name, line: PortShare, before: Bytes) -> SendUse {
    let sent = sent_by(&line);
    let PortShare { account, up, dropped, sent_up, .. } = line;
    let [nic, kernel] = account.sent;
    let kernel = kernel.saturating_add(sent_up);
    SendUse {
        port: port.to_string(),
        nic: "policed".to_owned(),
        kernel: "queued".to_owned(),
        user: "queued".to_owned(),
        sent_bytes: sent.0,
        sent_nic_bytes: nic,
        sent_kernel_bytes: kernel,
        dropped_nic: dropped[0],
        dropped_kernel: dropped[1],
        waited_kernel: up[0].saturating_add(up[1]),
        window_bytes: sent.saturating_sub(before).0,
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
