//! `nat`: many who are inside share one IPv4 address (network address and port
//! translation, RFC 3022), with the behaviour that RFC 4787, 5382 and 5508 ask for.
//!
//! ```text
//! from inside   10.0.0.5:4000 ▶ 192.0.2.7:80   becomes   ADDRESS:port  ▶ 192.0.2.7:80
//! from outside  192.0.2.7:80  ▶ ADDRESS:port   becomes   192.0.2.7:80  ▶ 10.0.0.5:4000
//! from inside   10.0.0.6:5000 ▶ ADDRESS:port   both: it turns around here (hairpinning)
//! ```
//!
//! Where a source was changed the packet's route stays right; where a destination was, the
//! verdict says `reroute`. Checksums are brought along (RFC 1624).

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
    /// Packets from inside that got the address.
    static OUTGOING = "outgoing";
    /// Packets to the address that went to who they are for.
    static INCOMING = "incoming";
    /// Packets from inside to the address, back to another inside.
    static HAIRPINS = "hairpins";
    /// Errors (ICMP) that were translated, with what they quote.
    static ERRORS = "errors";
    /// Packets that are none of its business, and went on as they were.
    static OTHERS = "others";
    /// Mappings that were made.
    static MAPPED = "mapped";
    /// Of these, those that got the port that they have inside.
    static PRESERVED = "preserved";
    /// Mappings without an answer that made room for others.
    static EVICTED = "evicted";
    /// Packets that were dropped, for whatever reason.
    static DROPPED = "dropped";
    /// Fragments that came before their first one, of which a copy is held for it.
    static HELD = "held";
    /// Of these, those that were sent behind it.
    static RELEASED = "released";
}

/// `[reasons]` in module.toml names them.
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

/// `on_message` refuses with this what it does not know.
const REFUSE_MESSAGE: u16 = 1;
/// The event that answers the message `report`.
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

/// `flush` forgets every mapping; `report` makes an event of how many there are, of UDP,
/// TCP and ICMP.
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

/// What became of a packet.
type Judged = Result<(&'static Counter, Verdict), Reason>;

/// On by the route that it has: its destination is as it was.
const ON: Verdict = Verdict::PASS;
/// Its destination is another one.
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
        // Whatever port its first one got: the address is the same.
        Kind::of_fragment(headers)?;
        edit::address(&mut headers.ip, End::Source, settings.address);
        headers.put(packet)?;
        return Ok((&OUTGOING, ON));
    }
    let kind = match Kind::of(packet, headers) {
        Ok(kind) => kind,
        // The router may speak what nobody outside can.
        Err(reason) if is_to_address => return unasked(settings, reason),
        Err(reason) => return Err(reason),
    };
    if let Kind::Error(quoted) = kind {
        return error_from_inside(packet, headers, quoted, settings, now);
    }
    // For another who is inside, or for the router itself?
    let target = kind.target().filter(|_| is_to_address);
    let turned = target.and_then(|target| Some((target, found(target, now)?)));
    if is_to_address && turned.is_none() {
        return unasked(settings, Reason::NoMapping);
    }
    // Nobody outside could ask.
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

/// The port that a packet from inside gets.
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

/// Lets go what nobody inside has asked for; `reason`: why it is dropped where the router does not
/// get it either.
fn unasked(settings: &Settings, reason: Reason) -> Judged {
    match settings.local {
        true => Ok((&OTHERS, ON)),
        false => Err(reason),
    }
}

/// Takes note of where a datagram to the address goes whose first fragment this is, and sends
/// those behind it that came before.
fn remember(headers: &Headers, settings: &Settings, now: u64) {
    RELEASED.add(DATAGRAMS.with(|known| {
        known.add(headers, now);
        known.release(headers, settings.address, now)
    }));
}

/// Has a later fragment to the address go where its first one went, or holds it.
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
            // Nobody inside has such a datagram.
            (None, Err(reason)) => reason,
            // The router may know what it is of: it gets it, and whoever is inside a copy.
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
        // The router may speak what nobody inside can.
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

/// Translates an error about a packet that somebody inside has sent (RFC 5508, REQ-4): it quotes
/// the packet as it was outside.
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

/// Translates an error about a packet that came to somebody inside (RFC 5508, REQ-5), from outside
/// or from another inside by the address (REQ-7).
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
            // About a packet of the router's own.
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
    // It goes to whoever sent what it quotes, and to nobody else.
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

/// Returns who inside sent a packet that is quoted as it was outside.
fn sender_of(quoted: &Quoted, settings: &Settings, now: u64) -> Option<Mapped> {
    match quoted.source == settings.address {
        true => found((quoted.protocol, quoted.source_port), now),
        false => None,
    }
}

#[cfg(test)]
mod tests;
