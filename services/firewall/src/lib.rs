//! `firewall`: hosts inside may open flows and get the answers; from outside only flows that the
//! operator allows are accepted, all else is dropped with a named reason.
//!
//! ```text
//!  packet ─▶ headers ─▶ policy: inside? ─▶ fragment? ─▶ flow known? ─▶ tcp: new state?
//!                         │ from outside                    │ no
//!                         └────────────── allowed? ◀────────┘ ─▶ a new flow, or a reason to drop
//! ```
//!
//! Both directions of a flow use one memory (one lane). Packets are never changed.

#![forbid(unsafe_code)]
#![cfg_attr(target_arch = "wasm32", no_std)]

mod flows;
mod fragments;
mod headers;
mod policy;

use flows::{Flow, Key, Look, Table};
use fragments::{Datagram, Datagrams};
use headers::{Headers, L4};
use policy::{Fragments, Policy, Side};
use tam::track::{Connection, tcp};
use tam::{Packet, Verdict};

tam::module! {
    on_packet: on_packet,
    on_start: on_start,
    on_message: on_message,
}

tam::counters! {
    /// Packets from inside that passed.
    static OUTGOING = "outgoing";
    /// Packets from outside that belong to a flow and passed.
    static INCOMING = "incoming";
    /// Packets between two hosts inside, which are not filtered.
    static WITHIN = "within";
    /// Errors about a flow (ICMP) that passed.
    static RELATED = "related";
    /// Flows that a host inside began.
    static OPENED = "opened";
    /// Flows that a host outside began, as the operator allows.
    static ALLOWED = "allowed";
    /// TCP connections from before the firewall's start that continue.
    static PICKED_UP = "picked_up";
    /// Flows without an answer that were evicted for others.
    static EVICTED = "evicted";
    /// Packets that were dropped, for any reason.
    static DROPPED = "dropped";
}

/// Drop reasons, named by `[reasons]` in module.toml.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
enum Reason {
    NotAskedFor = 1,
    TableFull = 2,
    TcpFlags = 3,
    NoConnection = 4,
    CutShort = 5,
    Fragment = 6,
    FragmentOfNothing = 7,
    IcmpUnrelated = 8,
    IcmpType = 9,
    NeitherSide = 10,
    NotIp = 11,
    FalseSource = 12,
}

/// Code with which `on_message` refuses an unknown message.
const REFUSE_MESSAGE: u16 = 1;
/// Event that answers the message `report`.
const EVENT_FLOWS: u32 = 1;

static POLICY: tam::State<Policy> = tam::State::new(Policy::new());
static FLOWS: tam::State<Table> = tam::State::new(Table::new());
static DATAGRAMS: tam::State<Datagrams> = tam::State::new(Datagrams::new());

fn on_start() -> Result<(), u16> {
    let policy = Policy::from_parameters()?;
    let seed = tam::hash::seed("seed");
    FLOWS.with(|flows| flows.begin(seed));
    DATAGRAMS.with(|datagrams| datagrams.begin(seed));
    POLICY.with(|kept| *kept = policy);
    Ok(())
}

/// Handles messages: `flush` removes every flow; `report` sends an event with their numbers.
fn on_message(message: &[u8]) -> Result<(), u16> {
    match message {
        b"flush" => {
            FLOWS.with(Table::flush);
            Ok(())
        }
        b"report" => {
            let counts = FLOWS.with(|flows| flows.count(tam::now_ms()));
            let counts = counts.map(u32::to_le_bytes);
            tam::event(EVENT_FLOWS, counts.as_flattened()).map_err(|_| REFUSE_MESSAGE)
        }
        _ => Err(REFUSE_MESSAGE),
    }
}

fn on_packet(packet: &mut Packet<'_>) -> Verdict {
    match POLICY.with(|policy| judge(packet, policy)) {
        Ok(passed) => {
            passed.add(1);
            Verdict::PASS
        }
        Err(reason) => {
            DROPPED.add(1);
            Verdict::Drop { reason: reason as u16 }
        }
    }
}

/// Returns the counter of a packet that passes, or the reason to drop it.
fn judge(packet: &Packet<'_>, policy: &Policy) -> Result<&'static tam::Counter, Reason> {
    let headers = Headers::of(packet)?;
    let side = policy.side(packet.arrival_port(), headers.source, headers.destination)?;
    if side == Side::Within {
        return Ok(&WITHIN);
    }
    let (from_inside, now) = (side == Side::FromInside, packet.now_ms());
    let passed = if from_inside { &OUTGOING } else { &INCOMING };
    let (mut first_of, mut is_whole) = (None, true);
    if packet.is_fragment() {
        if policy.fragments == Fragments::Drop {
            return Err(Reason::Fragment);
        }
        let (datagram, is_all) = Datagram::of(packet, &headers)?;
        if packet.is_later_fragment() {
            return match DATAGRAMS.with(|known| known.has(&datagram, now)) {
                true => Ok(passed),
                false => Err(Reason::FragmentOfNothing),
            };
        }
        (first_of, is_whole) = (Some(datagram), is_all);
    }
    let l4 = L4::of(packet, &headers, is_whole)?;
    let passed = judge_headers(&headers, &l4, policy, from_inside, now, passed)?;
    if let Some(datagram) = first_of {
        DATAGRAMS.with(|known| known.add(&datagram, now));
    }
    Ok(passed)
}

/// Decides about a packet by its L4 header.
fn judge_headers(
    headers: &Headers,
    l4: &L4,
    policy: &Policy,
    from_inside: bool,
    now: u64,
    passed: &'static tam::Counter,
) -> Result<&'static tam::Counter, Reason> {
    if let L4::IcmpError { quoted } = l4 {
        // An error goes to the sender of the quoted packet.
        if quoted.source != headers.destination {
            return Err(Reason::IcmpUnrelated);
        }
        let key = Key::new(quoted, !from_inside);
        return match FLOWS.with(|flows| matches!(flows.look(&key, now), Look::Found(_))) {
            true => Ok(&RELATED),
            false => Err(Reason::IcmpUnrelated),
        };
    }
    let ends = l4.ends(headers);
    let key = Key::new(&ends, from_inside);
    FLOWS.with(|flows| {
        let flow = match flows.look(&key, now) {
            Look::Found(flow) => {
                if !flow.connection.has_ended() || !is_first(l4) {
                    follow(flow, l4, &ends, policy, from_inside, now)?;
                    return Ok(passed);
                }
                // Reused ports (RFC 1122, section 4.2.2.13).
                flow
            }
            Look::Free(flow) => flow,
            Look::Full => {
                // A packet that must not begin a flow is dropped for that reason.
                may_begin(l4, &ends, policy, from_inside)?;
                return Err(Reason::TableFull);
            }
        };
        let connection = may_begin(l4, &ends, policy, from_inside)?;
        if flow.is_alive(now) && !flow.has(&key) {
            EVICTED.add(1);
        }
        *flow = Flow::begin(&key, connection, policy.until(connection, l4, now));
        match (from_inside, is_picked_up(l4)) {
            (true, true) => PICKED_UP.add(1),
            (true, false) => OPENED.add(1),
            (false, _) => ALLOWED.add(1),
        }
        Ok(passed)
    })
}

/// Returns true for a TCP connection's first segment.
const fn is_first(l4: &L4) -> bool {
    matches!(l4, L4::Tcp { flags, .. } if tcp::is_first(*flags))
}

/// Returns true for another TCP segment: a flow that begins with it existed before.
const fn is_picked_up(l4: &L4) -> bool {
    matches!(l4, L4::Tcp { flags, .. } if !tcp::is_first(*flags))
}

/// Returns the flow that a packet of an unknown flow begins, if it is allowed.
fn may_begin(
    l4: &L4,
    ends: &headers::Ends,
    policy: &Policy,
    from_inside: bool,
) -> Result<Connection, Reason> {
    let begun = match l4 {
        L4::Tcp { flags, .. } if !tcp::is_first(*flags) => {
            // A reset or the second half of a handshake begins nothing.
            let goes_on = from_inside && policy.pick_up && tcp::is_in_the_middle(*flags);
            if !goes_on {
                return Err(Reason::NoConnection);
            }
            Connection::pick_up(from_inside, *flags)
        }
        L4::Echo { request: false, .. } => return Err(Reason::NotAskedFor),
        _ => Connection::begin(from_inside),
    };
    match from_inside || policy.allows(ends) {
        true => Ok(begun),
        false => Err(Reason::NotAskedFor),
    }
}

/// Handles a packet of a known flow.
fn follow(
    flow: &mut Flow,
    l4: &L4,
    ends: &headers::Ends,
    policy: &Policy,
    from_inside: bool,
    now: u64,
) -> Result<(), Reason> {
    match l4 {
        L4::Tcp { flags, .. } => {
            // A new connection with the ports of a half-closed one must be allowed like any other.
            if flow.connection.is_closing() && tcp::is_first(*flags) {
                may_begin(l4, ends, policy, from_inside)?;
            }
            flow.connection.segment(from_inside, *flags);
        }
        _ => flow.connection.packet(from_inside),
    }
    flow.expires_ms = policy.until(flow.connection, l4, now);
    Ok(())
}

#[cfg(test)]
mod tests;
