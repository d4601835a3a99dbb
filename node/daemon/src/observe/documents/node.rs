//! Document of `GET /v1/node`: the node, its ports and its cell.

use crate::associations::Neighbours;
use crate::cells::CellNumber;
use crate::control::authority::Visibility;
use crate::dataplane::live_port::LivePort;
use crate::dataplane::slow;
use crate::observe::view::View;
use ::node::PortKind;
use ::node::state::CellState;
use api::{NodeInfo, PortInfo, SCHEMA_VERSION, SessionInfo};
use session::PERIOD_MIN;
use session::admission::ONE_CORE_PERIOD_MIN;
use session::in_kernel::Speed;
use units::Nanos;

/// Returns what a client may see of the node.
pub(crate) fn node_info(view: &View<'_>, sight: &Visibility) -> NodeInfo {
    let seen = view.node.sessions().filter(|session| sight.has_session(session));
    let sessions = seen.map(|it| SessionInfo { id: it.id.0, name: it.name.to_string() }).collect();
    let associations = view.neighbours.filter(|_| sight.everything);
    NodeInfo {
        schema_version: SCHEMA_VERSION,
        name: view.file.name.to_string(),
        node_key: view.node_key.public().to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime_seconds: view.now.as_millis() / 1000,
        fast_path: view.file.fast_path.name().to_owned(),
        bpf: match view.plane.unsupported() {
            Some(reason) => format!("off: {reason}"),
            None if view.node.bpf() => "on".to_owned(),
            None => "off: it was switched off".to_owned(),
        },
        ledger: view.usage.billing().state(),
        below_fuel_per_ms: view.plane.speed().map(Speed::per_ms),
        period_min_ms: period_min(view).as_millis(),
        ports: view.plane.ports().iter().map(|port| port_info(port, view.plane.ports())).collect(),
        sessions,
        cell: cell_state(view).to_owned(),
        cell_pid: view.cells.pid(CellNumber::FIRST),
        associations: associations.map(Neighbours::list).unwrap_or_default(),
    }
}

fn cell_state(view: &View<'_>) -> &'static str {
    match view.node.cell().0 {
        CellState::Starting => "starting",
        CellState::Ready if view.cells.is_silent() => "silent",
        CellState::Ready => "ready",
        CellState::Lost { .. } => "lost",
    }
}

/// Returns the shortest period in which this node promises something.
fn period_min(view: &View<'_>) -> Nanos {
    let one_core = view.node.capacity().is_some_and(|capacity| capacity.one_core);
    if one_core { ONE_CORE_PERIOD_MIN } else { PERIOD_MIN }
}

fn port_info(port: &LivePort, all: &[LivePort]) -> PortInfo {
    let other = all.iter().find(|other| Some(other.id()) == port.bridge());
    let mac = port.config().mac.map(|byte| format!("{byte:02x}")).join(":");
    PortInfo {
        id: port.id().0,
        name: port.name().to_string(),
        device: port.spec().device.clone(),
        ifindex: port.config().ifindex,
        mac,
        mtu: port.config().mtu,
        driver: port.driver().to_owned(),
        kind: match port.spec().kind {
            PortKind::Device => "device",
            PortKind::Tun => "tun",
        }
        .to_owned(),
        mode: port.mode().name().to_owned(),
        mode_reason: port.mode_reason().map(str::to_owned),
        mode_cost: port.mode().cost().to_owned(),
        state: if port.is_away() { "away" } else { "up" }.to_owned(),
        bridge: other.map(|other| other.name().to_string()),
        away_reason: port.away_reason().map(str::to_owned),
        queues: port.queues(),
        slow_reasons: slow::reasons_of(port),
        offloads_off: port.offloads_off().to_vec(),
    }
}
