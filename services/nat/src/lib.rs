//! `nat`: hosts inside share one IPv4 address (network address and port translation, RFC 3022),
//! with the behaviour required by RFC 4787, 5382 and 5508.
//!
//! ```text
//!  from inside   10.0.0.5:4000 ▶ 192.0.2.7:80   becomes   ADDRESS:port  ▶ 192.0.2.7:80
//!  from outside  192.0.2.7:80  ▶ ADDRESS:port   becomes   192.0.2.7:80  ▶ 10.0.0.5:4000
//!  from inside   10.0.0.6:5000 ▶ ADDRESS:port   both: it turns around here (hairpinning)
//! ```
//!
//! If only the source was changed, the packet's route remains valid; if the destination was, the
//! verdict has `reroute`. Checksums are updated incrementally (RFC 1624).

#![forbid(unsafe_code)]
#![cfg_attr(target_arch = "wasm32", no_std)]

mod edit;
mod fragments;
mod headers;
mod mappings;
mod others;
mod settings;

use edit::{End, Quoted};
use fragments::{Datagrams, Fate};
use headers::{Headers, Kind};
use mappings::{Mapped, Mappings, Place, Remote, Segment};
use settings::Settings;
use tam::{Counter, Packet, Verdict};

tam::module! {
    on_packet: on_packet,
    on_start: on_start,
    on_message: on_message,
}

tam::counters! {
    /// Packets from inside whose source was translated.
    static OUTGOING = "outgoing";
    /// Packets to the address that were translated to a host inside.
    static INCOMING = "incoming";
    /// Packets from inside to the address that were sent back to another host inside.
    static HAIRPINS = "hairpins";
    /// ICMP errors that were translated, with the packet they quote.
    static ERRORS = "errors";
    /// Packets that are not for this service, and were forwarded unchanged.
    static OTHERS = "others";
    /// Mappings created.
    static MAPPED = "mapped";
    /// Mappings that got the same port as inside.
    static PRESERVED = "preserved";
    /// Mappings without an answer that were evicted for others.
    static EVICTED = "evicted";
    /// Packets that were dropped, for any reason.
    static DROPPED = "dropped";
    /// Fragments before their first one of which a copy was held.
    static HELD = "held";
    /// Held fragments that were sent after their first one.
    static RELEASED = "released";
}

/// Drop reasons, named by `[reasons]` in module.toml.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
enum Reason {
    NoPort = 1,
    CutShort = 2,
    Protocol = 3,
    FragmentOfNothing = 4,
    IcmpType = 5,
    ErrorOfNothing = 6,
    NoMapping = 7,
    Held = 8,
}

/// Code with which `on_message` refuses an unknown message.
const REFUSE_MESSAGE: u16 = 1;
/// Event that answers the message `report`.
const EVENT_MAPPINGS: u32 = 1;

static SETTINGS: tam::State<Settings> = tam::State::new(Settings::new());
static MAPPINGS: tam::State<Mappings> = tam::State::new(Mappings::new());
static DATAGRAMS: tam::State<Datagrams> = tam::State::new(Datagrams::new());

fn on_start() -> Result<(), u16> {
    let settings = Settings::from_parameters()?;
    let seed = tam::hash::seed("seed");
    MAPPINGS.with(|mappings| mappings.begin(settings.first_port, settings.ports, seed));
    DATAGRAMS.with(Datagrams::begin);
    SETTINGS.with(|kept| *kept = settings);
    Ok(())
}

/// Handles messages: `flush` removes every mapping; `report` sends an event with the numbers of
/// mappings for UDP, TCP and ICMP.
fn on_message(message: &[u8]) -> Result<(), u16> {
    match message {
        b"flush" => {
            MAPPINGS.with(Mappings::flush);
            Ok(())
        }
        b"report" => {
            let counts = MAPPINGS.with(|mappings| mappings.count(tam::now_ms()));
            let counts = counts.map(u32::to_le_bytes);
            tam::event(EVENT_MAPPINGS, counts.as_flattened()).map_err(|_| REFUSE_MESSAGE)
        }
        _ => Err(REFUSE_MESSAGE),
    }
}

/// Decision about a packet: counter and verdict, or the reason to drop it.
type Judged = Result<(&'static Counter, Verdict), Reason>;

/// Verdict for a packet with an unchanged destination: its route remains valid.
const ON: Verdict = Verdict::PASS;
/// Verdict for a packet with a changed destination.
const REROUTED: Verdict = Verdict::Pass { edge: 0, reroute: true };

fn on_packet(packet: &mut Packet<'_>) -> Verdict {
    let judged = SETTINGS.with(|settings| {
        let Some(mut headers) = Headers::of(packet) else { return Ok((&OTHERS, ON)) };
        let is_to_address = headers.destination == settings.address;
        let judged = match (settings.is_inside(headers.source), is_to_address) {
            (true, _) => from_inside(packet, &mut headers, settings),
            (false, true) => to_address(packet, &mut headers, settings),
            (false, false) => return Ok((&OTHERS, ON)),
        };
        if is_to_address && packet.is_fragment() && !packet.is_later_fragment() {
            remember(&headers, settings, packet.now_ms());
        }
        judged
    });
    match judged {
        Ok((counter, verdict)) => {
            counter.add(1);
            verdict
        }
        Err(reason) => {
            DROPPED.add(1);
            Verdict::Drop { reason: reason as u16 }
        }
    }
}

fn from_inside(packet: &mut Packet<'_>, headers: &mut Headers, settings: &Settings) -> Judged {
    if settings.is_inside(headers.destination) {
        return Ok((&OTHERS, ON));
    }
    let now = packet.now_ms();
    let is_to_address = headers.destination == settings.address;
    if packet.is_later_fragment() {
        if is_to_address {
            return later_to_address(packet, headers, settings, now);
        }
        // The port of the first fragment does not matter: the address is the same.
        Kind::of_fragment(headers)?;
        edit::address(&mut headers.ip, End::Source, settings.address);
        headers.put(packet)?;
        return Ok((&OUTGOING, ON));
    }
    let kind = match Kind::of(packet, headers) {
        Ok(kind) => kind,
        // The router may use protocols that hosts outside cannot.
        Err(reason) if is_to_address => return unasked(settings, reason),
        Err(reason) => return Err(reason),
    };
    if let Kind::Error(quoted) = kind {
        return error_from_inside(packet, headers, quoted, settings, now);
    }
    // For another host inside, or for the router itself.
    let target = kind.target().filter(|_| is_to_address);
    let turned = target.and_then(|target| Some((target, found(target, now)?)));
    if is_to_address && turned.is_none() {
        return unasked(settings, Reason::NoMapping);
    }
    // No host outside could have asked.
    let place = kind.mapped(headers).ok_or(Reason::IcmpType)?;
    let flags = kind.flags();
    let segment = Segment { remote: kind.to(headers), flags, now };
    let mapped = MAPPINGS.with(|mappings| {
        let port = outgoing(mappings, &place, &segment, settings)?;
        if let Some((target, _)) = turned {
            let remote = Remote { address: settings.address, port };
            mappings.incoming(target, &Segment { remote, flags, now }, settings);
        }
        Ok(port)
    })?;
    if let Some((_, mapped)) = turned {
        headers.fate = Fate { inside: mapped.address, turned: true };
    }
    edit::end(headers, End::Source, settings.address, mapped);
    if let Some((_, mapped)) = turned {
        edit::end(headers, End::Destination, mapped.address, mapped.port);
    }
    headers.put(packet)?;
    Ok(if turned.is_some() { (&HAIRPINS, REROUTED) } else { (&OUTGOING, ON) })
}

/// Returns the port for a packet from inside.
fn outgoing(
    mappings: &mut Mappings,
    place: &Place,
    segment: &Segment,
    settings: &Settings,
) -> Result<u16, Reason> {
    let (port, made) = mappings.outgoing(place, segment, settings)?;
    if let Some(made) = made {
        MAPPED.add(1);
        PRESERVED.add(u64::from(port == place.port));
        EVICTED.add(u64::from(made.evicted));
    }
    Ok(port)
}

fn found(target: (headers::Protocol, u16), now: u64) -> Option<Mapped> {
    MAPPINGS.with(|mappings| mappings.find(target, now))
}

/// Decides about a packet to the address that no host inside has asked for: forwards it to the
/// router if the settings say so, otherwise drops it for `reason`.
fn unasked(settings: &Settings, reason: Reason) -> Judged {
    match settings.local {
        true => Ok((&OTHERS, ON)),
        false => Err(reason),
    }
}

/// Records the destination of a datagram to the address by its first fragment, and sends the held
/// fragments after it.
fn remember(headers: &Headers, settings: &Settings, now: u64) {
    RELEASED.add(DATAGRAMS.with(|known| {
        known.add(headers, now);
        known.release(headers, settings.address, now)
    }));
}

/// Sends a later fragment to the address to the destination of its first one, or holds it.
fn later_to_address(
    packet: &mut Packet<'_>,
    headers: &mut Headers,
    settings: &Settings,
    now: u64,
) -> Judged {
    let reason =
        match (DATAGRAMS.with(|known| known.find(headers, now)), Kind::of_fragment(headers)) {
            (Some(fate), _) if fate.inside != 0 => {
                fragments::translate(&mut headers.ip, fate, settings.address);
                headers.put(packet)?;
                return Ok((if fate.turned { &HAIRPINS } else { &INCOMING }, REROUTED));
            }
            (Some(_), _) => Reason::FragmentOfNothing,
            // No host inside expects such a datagram.
            (None, Err(reason)) => reason,
            // The router may expect it: it gets the fragment, and a copy is held for a host inside.
            (None, Ok(_)) => match DATAGRAMS.with(|known| known.hold(packet, headers, now)) {
                true => {
                    HELD.add(1);
                    Reason::Held
                }
                false => Reason::FragmentOfNothing,
            },
        };
    unasked(settings, reason)
}

fn to_address(packet: &mut Packet<'_>, headers: &mut Headers, settings: &Settings) -> Judged {
    let now = packet.now_ms();
    if packet.is_later_fragment() {
        return later_to_address(packet, headers, settings, now);
    }
    let kind = match Kind::of(packet, headers) {
        Ok(kind) => kind,
        // The router may use protocols that hosts inside cannot.
        Err(reason) => return unasked(settings, reason),
    };
    if let Kind::Error(quoted) = kind {
        return error_to_address(packet, headers, quoted, settings, now);
    }
    let target = kind.target();
    let Some((target, mapped)) = target.and_then(|target| Some((target, found(target, now)?)))
    else {
        return unasked(settings, Reason::NoMapping);
    };
    let segment = Segment { remote: kind.from(headers), flags: kind.flags(), now };
    MAPPINGS.with(|mappings| mappings.incoming(target, &segment, settings));
    headers.fate = Fate { inside: mapped.address, turned: false };
    edit::end(headers, End::Destination, mapped.address, mapped.port);
    headers.put(packet)?;
    Ok((&INCOMING, REROUTED))
}

/// Translates an error about a packet from a host inside (RFC 5508, REQ-4): it quotes the packet as
/// it was outside.
fn error_to_address(
    packet: &mut Packet<'_>,
    headers: &mut Headers,
    mut quoted: Quoted,
    settings: &Settings,
    now: u64,
) -> Judged {
    let Some(mapped) = sender_of(&quoted, settings, now) else {
        return unasked(settings, Reason::ErrorOfNothing);
    };
    headers.fate = Fate { inside: mapped.address, turned: false };
    quoted.change(headers, End::Source, mapped.address, mapped.port);
    quoted.put(packet)?;
    edit::address(&mut headers.ip, End::Destination, mapped.address);
    headers.put(packet)?;
    Ok((&ERRORS, REROUTED))
}

/// Translates an error about a packet to a host inside (RFC 5508, REQ-5), from outside or from
/// another host inside through the address (REQ-7).
fn error_from_inside(
    packet: &mut Packet<'_>,
    headers: &mut Headers,
    mut quoted: Quoted,
    settings: &Settings,
    now: u64,
) -> Judged {
    let turned = match headers.destination == settings.address {
        true => match sender_of(&quoted, settings, now) {
            Some(sender) => Some(sender),
            // An error about a packet of the router's own.
            None => return unasked(settings, Reason::ErrorOfNothing),
        },
        false => None,
    };
    let place = Place {
        protocol: quoted.protocol,
        address: quoted.destination,
        port: quoted.destination_port,
    };
    let port = MAPPINGS.with(|mappings| mappings.look(&place, now));
    // The error goes to the sender of the quoted packet only.
    let port = port.filter(|_| quoted.source == headers.destination);
    let port = port.ok_or(Reason::ErrorOfNothing)?;
    quoted.change(headers, End::Destination, settings.address, port);
    edit::address(&mut headers.ip, End::Source, settings.address);
    if let Some(sender) = turned {
        headers.fate = Fate { inside: sender.address, turned: true };
        quoted.change(headers, End::Source, sender.address, sender.port);
        edit::address(&mut headers.ip, End::Destination, sender.address);
    }
    quoted.put(packet)?;
    headers.put(packet)?;
    Ok((&ERRORS, if turned.is_some() { REROUTED } else { ON }))
}

/// Returns the host inside that sent a packet, which is quoted as it was outside.
fn sender_of(quoted: &Quoted, settings: &Settings, now: u64) -> Option<Mapped> {
    match quoted.source == settings.address {
        true => found((quoted.protocol, quoted.source_port), now),
        false => None,
    }
}

#[cfg(test)]
mod tests;
