//! Packets that taps have seen, in the words of the API.

use super::{Capture, Direction, TURN, WAITING_MAX};
use crate::dataplane::devices::{KERNEL_DEVICE, device_name};
use crate::events::wall_clock_ns;
use crate::observe::reasons::STACK;
use crate::observe::view::View;
use abi::Verdict;
use api::CapturedPacket;
use bpf::front_door::capture::{CapturedFrame, Module};
use bpf_maps::{
    CAPTURED_NO_PORT, LEVEL_NIC, NOT_A_VERDICT, NOT_RUN, OVER_BUDGET, PORT_RAW, WAY_ARRIVED,
    WAY_ENDED, WAY_LEFT_KERNEL, WAY_STACK_DROPPED,
};
use cell::below::kind_of;
use cell::protocol::{CapturePoint, CapturedFrame as CellFrame};
use units::{EntryId, PortId, SessionId};

/// Takes packets from a capture's ring.
pub(super) fn read_ring(view: &View<'_>, capture: &mut Capture) {
    for _ in 0..TURN {
        let Some(xdp) = &mut capture.xdp else { return };
        let tapped = match xdp.ring.take() {
            Ok(Some(tapped)) => tapped,
            Ok(None) => return,
            Err(problem) => {
                tracing::error!(%problem, "the ring buffer of a capture cannot be read: its packets are lost");
                return;
            }
        };
        let (direction, port) = (direction_of(&tapped), tapped.port);
        let packet = seen_at_port(view, tapped, direction, capture.clock_offset);
        if capture.filter.wants(&packet, port, direction) {
            capture.push(packet);
        }
    }
}

/// Takes packets from a capture's sockets.
pub(super) fn read_watches(view: &View<'_>, capture: &mut Capture) {
    let Capture { watches, buffer, waiting, snap, .. } = capture;
    let mut seen = Vec::new();
    for (port, watch) in watches {
        let room = TURN.min(WAITING_MAX.saturating_sub(waiting.len() + seen.len()));
        for _ in 0..room {
            // A device that goes away is seen elsewhere.
            let Ok(Some(frame)) = watch.receive(buffer) else { break };
            let packet = CapturedPacket {
                port: port_name(view, *port),
                direction: Direction::Out.name().to_owned(),
                seen_by: "kernel".to_owned(),
                length: frame.bytes.len() as u32,
                bytes_hex: hex(&frame.bytes[..frame.bytes.len().min(*snap as usize)]),
                ..CapturedPacket::default()
            };
            let time_ns = watch.stamp().unwrap_or_else(wall_clock_ns);
            seen.push((*port, CapturedPacket { time_ns, ..packet }));
        }
    }
    for (port, packet) in seen {
        if capture.filter.wants(&packet, port, Direction::Out) {
            capture.push(packet);
        }
    }
}

fn port_name(view: &View<'_>, port: PortId) -> String {
    if port.0 == CAPTURED_NO_PORT {
        return device_name(KERNEL_DEVICE, &view.file.name);
    }
    let found = view.plane.port(port);
    found.map_or_else(|| port.to_string(), |live| live.name().to_string())
}

fn session_name(view: &View<'_>, id: SessionId) -> Option<String> {
    view.node.session_of(id).map(|session| session.name.to_string())
}

fn seen_at_port(
    view: &View<'_>,
    mut tapped: CapturedFrame,
    direction: Direction,
    offset: u64,
) -> CapturedPacket {
    let by_stack = [WAY_LEFT_KERNEL, WAY_STACK_DROPPED].contains(&tapped.way)
        || tapped.module.is_some_and(|module| module.level != LEVEL_NIC);
    let live = view.plane.port(tapped.port);
    if direction == Direction::Out && live.is_some_and(|l| l.config().flags & PORT_RAW != 0) {
        put_ethernet(&mut tapped);
    }
    if tapped.is_bare {
        put_ethernet(&mut tapped);
    }
    let reason = (tapped.way == WAY_STACK_DROPPED).then(|| stack_reason(view, &tapped));
    let mut packet = CapturedPacket {
        time_ns: tapped.time.0.saturating_add(offset),
        port: port_name(view, tapped.port),
        direction: direction.name().to_owned(),
        seen_by: if by_stack { "kernel" } else { "front door" }.to_owned(),
        length: tapped.length,
        bytes_hex: hex(&tapped.bytes),
        outcome: reason.or_else(|| tapped.outcome.map(str::to_owned)),
        rule: tapped.rule.map(|rule| rule.0),
        session: tapped.rule.and_then(|_| session_name(view, tapped.session)),
        ..CapturedPacket::default()
    };
    let level = match (tapped.module, tapped.outcome) {
        (Some(module), _) if module.level == LEVEL_NIC => Some("nic"),
        (Some(_), _) => Some("kernel"),
        (None, _) if tapped.way != WAY_ARRIVED => None,
        (None, Some("to_nic")) => Some("nic"),
        (None, Some("to_kernel_module")) => Some("kernel"),
        (None, Some("to_user")) => Some("user"),
        _ => None,
    };
    if let Some(level) = level {
        packet.level = Some(level.to_owned());
        packet.service = view.node.service_of(tapped.entry).map(|s| s.name.to_string());
    }
    if let Some(module) = tapped.module {
        packet.verdict = said(module).map(|words| named(view, &words, Some(tapped.entry)));
    }
    const XDP_PASS: u8 = 2;
    packet.dropped = [WAY_ENDED, WAY_STACK_DROPPED].contains(&tapped.way)
        || (tapped.way == WAY_ARRIVED && tapped.action < XDP_PASS);
    packet
}

/// Returns a packet that the cell has seen, with the cell's time, and its direction.
pub(super) fn of_cell(view: &View<'_>, tapped: &CellFrame) -> (CapturedPacket, Direction) {
    let direction = match tapped.seen {
        CapturePoint::Departure => Direction::Out,
        CapturePoint::Arrival(_) | CapturePoint::End => Direction::In,
    };
    let service = tapped.entry.and_then(|entry| view.node.service_of(entry));
    let outcome = match tapped.seen {
        CapturePoint::Arrival(outcome) => {
            bpf_maps::OUTCOMES.get(usize::from(outcome)).map(|(it, _)| *it)
        }
        CapturePoint::Departure | CapturePoint::End => None,
    };
    let session = match tapped.entry {
        // What came is known by its rule only.
        Some(_) if outcome.is_none() => session_name(view, SessionId(tapped.session)),
        _ => tapped.rule.and_then(|rule| session_of_rule(view, rule)),
    };
    let said = !tapped.verdict.is_empty();
    let packet = CapturedPacket {
        time_ns: tapped.time_ns,
        port: port_name(view, tapped.port),
        direction: direction.name().to_owned(),
        seen_by: "cell".to_owned(),
        length: tapped.length,
        bytes_hex: hex(&tapped.bytes),
        rule: tapped.rule,
        session,
        service: service.map(|service| service.name.to_string()),
        level: tapped.entry.map(|_| "user".to_owned()),
        verdict: said.then(|| named(view, &tapped.verdict, tapped.entry)),
        outcome: outcome.map(str::to_owned),
        dropped: tapped.seen == CapturePoint::End
            || outcome.is_some_and(|outcome| outcome.starts_with("drop_")),
    };
    (packet, direction)
}

/// Returns the kernel's reason for dropping a packet, as it is counted.
fn stack_reason(view: &View<'_>, tapped: &CapturedFrame) -> String {
    let named = |front: &bpf::FrontDoor| Ok(front.stack_reason(tapped.stack_reason).to_owned());
    format!("{STACK}{}", view.plane.front().with_front(named).unwrap_or_default())
}

fn session_of_rule(view: &View<'_>, rule: u32) -> Option<String> {
    let rules = view.node.rules();
    let found = rules.iter().find(|view| view.rule.id.0 == rule);
    found.map(|view| view.rule.spec.session.to_string())
}

/// Returns a verdict with the module's own name of its reason.
fn named(view: &View<'_>, verdict: &str, entry: Option<EntryId>) -> String {
    let reason = verdict.strip_prefix("drop ").and_then(|n| n.parse::<u16>().ok());
    let service = entry.and_then(|entry| view.node.service_of(entry));
    let named = service.zip(reason).and_then(|(s, n)| s.module.manifest.reasons.get(&n));
    named.map_or_else(|| verdict.to_owned(), |name| format!("drop {name}"))
}

fn direction_of(tapped: &CapturedFrame) -> Direction {
    match tapped.way {
        WAY_ARRIVED | WAY_ENDED | WAY_STACK_DROPPED => Direction::In,
        _ => Direction::Out,
    }
}

/// Returns a module's verdict below user level, in words; `None` when it was not run.
fn said(module: Module) -> Option<String> {
    let Module { verdict, trapped, .. } = module;
    let verdict = match (trapped, Verdict::parse(verdict)) {
        (NOT_RUN | OVER_BUDGET, _) => return None,
        (0, Ok(verdict)) => Ok(verdict),
        (0, Err(_)) => Err(kind_of(NOT_A_VERDICT)?),
        (code, _) => Err(kind_of(code)?),
    };
    Some(CellFrame::words(verdict))
}

/// Puts an Ethernet header in front of a packet that leaves by a TUN device, which begins with its
/// IP header: as it came it had another in front.
fn put_ethernet(tapped: &mut CapturedFrame) {
    let ethertype = match tapped.bytes.first() {
        Some(first) if first >> 4 == 6 => [0x86, 0xdd],
        _ => [0x08, 0x00],
    };
    let header = [[0; 12].as_slice(), &ethertype].concat();
    tapped.length += header.len() as u32;
    tapped.bytes.splice(0..0, header);
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}
