//! Pools of lanes: their events, their virtual processor, and the packet fields that choose a lane.
//!
//! ```toml
//! flows_by = ["source"]          # a sub-flow: all packets with the same values of these fields
//!
//! [pools.fast]
//! lanes = 4                      # each with a memory and a queue of its own
//! processor = 0                  # index among those that the session reserved
//! events = ["packet"]
//!
//! [pools.slow]
//! processor = 1
//! events = ["timer", "message"]
//! ```

use core::hash::{BuildHasher as _, Hasher as _};
use foldhash::fast::FixedState;
use serde::{Deserialize, Serialize};
use toml::de::DeValue;
use units::Name;

use crate::fields::Fields;
use crate::layout::{
    BEGINS_WITH_ETHERNET, LANES_MAX, META_FRAGMENT, META_LATER_FRAGMENT, POOLS_MAX, PROCESSORS_MAX,
};
use crate::manifest::error::ManifestError;
use crate::{Meta, PacketBytes};

/// Protocols whose header begins with two L4 ports: TCP, UDP, SCTP.
const PORTS_OF: [u8; 3] = [6, 17, 132];
/// Length of all fields of a key together, bytes: two addresses, two L4 ports, a protocol, an
/// arrival port, a rule.
const KEY_LENGTH_MAX: usize = 2 * 16 + 2 * 2 + 1 + 2 + 4;

/// Number of instances of a module that share the packets of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lanes {
    /// Fixed number of instances; a symmetric hash of the flow chooses the one for a packet.
    Count(u16),
    /// An instance on each CPU: a flow's packets may meet different memories.
    PerCore,
}

/// Lanes with the same events, on the same virtual processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Name of the pool.
    pub name: Name,
    /// Number of lanes.
    pub lanes: u16,
    /// Index of the virtual processor among those of its session, counted from 0. In a session with
    /// fewer the index wraps around.
    pub processor: u8,
    /// Events of its lanes, besides starting, state and memory.
    pub events: Vec<Event>,
}

/// Event that a lane handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Event {
    /// Packet, by `on_packet`.
    Packet,
    /// Timer tick, by `on_timer`.
    Timer,
    /// Control message, by `on_message`.
    Message,
}

/// Packet field by which flows are distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyField {
    /// IP source address.
    Source,
    /// IP destination address.
    Destination,
    /// Protocol after IP and its extension headers.
    Protocol,
    /// Source L4 port of TCP, UDP or SCTP.
    SourcePort,
    /// Destination L4 port of these.
    DestinationPort,
    /// Port of the node where the packet arrived.
    ArrivalPort,
    /// Rule that sent the packet here.
    Rule,
}

/// Every field of a pool.
const POOL_FIELDS: &[&str] = &["lanes", "processor", "events"];

impl Pool {
    /// Returns true if the pool handles the event.
    #[must_use]
    pub fn has(&self, event: Event) -> bool {
        self.events.contains(&event)
    }
}

impl Event {
    /// Every event.
    pub const ALL: &'static [Self] = &[Self::Packet, Self::Timer, Self::Message];

    /// Returns the word in the manifest.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packet => "packet",
            Self::Timer => "timer",
            Self::Message => "message",
        }
    }
}

impl core::fmt::Display for Lanes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Count(count) => count.fmt(f),
            Self::PerCore => f.pad("per-core"),
        }
    }
}

impl KeyField {
    /// Every field.
    pub const ALL: &'static [Self] = &[
        Self::Source,
        Self::Destination,
        Self::Protocol,
        Self::SourcePort,
        Self::DestinationPort,
        Self::ArrivalPort,
        Self::Rule,
    ];

    /// Returns the word in the manifest.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Destination => "destination",
            Self::Protocol => "protocol",
            Self::SourcePort => "source_port",
            Self::DestinationPort => "destination_port",
            Self::ArrivalPort => "arrival_port",
            Self::Rule => "rule",
        }
    }
}

/// Assignment of packets to lanes.
#[derive(Clone, Debug)]
pub struct LaneSelector {
    /// Lanes that handle packets.
    lanes: Vec<usize>,
    /// First of these lanes, for services with a single one: no further field is read.
    first: usize,
    flows_by: Vec<KeyField>,
}

/// Returns each pool with its lanes, which are consecutive.
pub fn lanes_of(pools: &[Pool]) -> impl Iterator<Item = (core::ops::Range<usize>, &Pool)> {
    let mut first = 0;
    pools.iter().map(move |pool| {
        let lanes = first..first + usize::from(pool.lanes);
        first = lanes.end;
        (lanes, pool)
    })
}

impl LaneSelector {
    /// Makes the assignment for `lanes` lanes in these pools, or without pools.
    #[must_use]
    pub fn new(lanes: usize, pools: &[Pool], flows_by: &[KeyField]) -> Self {
        let packets: Vec<_> = lanes_of(pools)
            .filter(|(_, pool)| pool.has(Event::Packet))
            .flat_map(|it| it.0)
            .collect();
        // A manifest without a pool for packets is refused; without pools all lanes handle packets.
        let lanes = if packets.is_empty() { (0..lanes.max(1)).collect() } else { packets };
        Self { first: lanes[0], lanes, flows_by: flows_by.to_vec() }
    }

    /// Returns the lane of a packet with that hash; calls `meta` only where flows are distinguished
    /// by fields.
    #[inline]
    pub fn lane_of<P: PacketBytes>(
        &self,
        packet: &P,
        flow_hash: u32,
        meta: impl FnOnce() -> Meta,
    ) -> usize {
        match self.lanes.len() {
            1 => self.first,
            count if self.flows_by.is_empty() => self.lanes[flow_hash as usize % count],
            count => self.lanes[flow_key(packet, &meta(), &self.flows_by) as usize % count],
        }
    }
}

/// Returns the hash of a packet's flow over these fields; missing fields count as zero. The value
/// is the same at every level and in every version: lanes keep their state when their instances are
/// replaced.
fn flow_key<P: PacketBytes>(packet: &P, meta: &Meta, fields: &[KeyField]) -> u32 {
    let mut key = [0; KEY_LENGTH_MAX];
    let mut length = 0;
    for field in fields {
        length += put_field(packet, meta, *field, &mut key[length..]);
    }
    let mut hasher = FixedState::with_seed(0).build_hasher();
    hasher.write(&key[..length]);
    let hash = hasher.finish();
    (hash ^ hash >> 32) as u32
}

/// Writes a field to the front of `out`; returns the bytes written.
fn put_field<P: PacketBytes>(packet: &P, meta: &Meta, field: KeyField, out: &mut [u8]) -> usize {
    match field {
        KeyField::Source => put_address(packet, meta, (12, 8), out),
        KeyField::Destination => put_address(packet, meta, (16, 24), out),
        KeyField::SourcePort => put_port(packet, meta, 0, out),
        KeyField::DestinationPort => put_port(packet, meta, 2, out),
        KeyField::Protocol => put(&[meta.protocol], out),
        KeyField::ArrivalPort => put(&meta.port.to_le_bytes(), out),
        KeyField::Rule => put(&meta.rule.to_le_bytes(), out),
    }
}

fn put(value: &[u8], out: &mut [u8]) -> usize {
    out[..value.len()].copy_from_slice(value);
    value.len()
}

/// Writes the address at an offset of an IPv4 or IPv6 header.
fn put_address<P: PacketBytes>(
    packet: &P,
    meta: &Meta,
    (in_v4, in_v6): (usize, usize),
    out: &mut [u8],
) -> usize {
    let begin = usize::from(meta.l3_offset);
    // A packet that ends earlier leaves zeros.
    let _ = match (meta.begins_with, meta.ip_version) {
        (BEGINS_WITH_ETHERNET, 4) => packet.load(begin + in_v4, &mut out[..4]),
        (BEGINS_WITH_ETHERNET, 6) => packet.load(begin + in_v6, &mut out[..16]),
        _ => Ok(()),
    };
    16
}

/// Writes the port at an offset of the L4 header. As with `flow_hash`, the fragments of a datagram
/// have no ports, so that they share a lane.
fn put_port<P: PacketBytes>(packet: &P, meta: &Meta, at: usize, out: &mut [u8]) -> usize {
    let is_whole = meta.flags & (META_FRAGMENT | META_LATER_FRAGMENT) == 0;
    let has_headers = meta.begins_with == BEGINS_WITH_ETHERNET;
    if has_headers && is_whole && PORTS_OF.contains(&meta.protocol) {
        // A packet that ends earlier leaves zeros.
        let _ = packet.load(usize::from(meta.l4_offset) + at, &mut out[..2]);
    }
    2
}

/// Returns the number of lanes of a manifest without pools.
fn lanes_without_pools(fields: &Fields<'_>) -> Result<Lanes, ManifestError> {
    let Some(DeValue::String(word)) = fields.value("lanes") else {
        let count = fields.number("lanes", 1, u32::from(LANES_MAX))?.unwrap_or(1);
        return Ok(Lanes::Count(u16::try_from(count).unwrap_or(LANES_MAX)));
    };
    if word == "per-core" {
        return Ok(Lanes::PerCore);
    }
    Err(fields.no_choice("lanes", word, ["per-core", "a number from 1 to 64"]))
}

/// Returns the number of lanes and the pools; no pools when all lanes handle every event.
pub(crate) fn lanes(
    fields: &Fields<'_>,
    has_timer: bool,
) -> Result<(Lanes, Vec<Pool>), ManifestError> {
    let Some(table) = fields.table("pools")? else {
        return Ok((lanes_without_pools(fields)?, Vec::new()));
    };
    let line = fields.line_of("pools");
    if fields.value("lanes").is_some() {
        return Err(ManifestError::LanesOfPools { line: fields.line_of("lanes") });
    }
    if table.len() > POOLS_MAX {
        return Err(ManifestError::Pools { line, count: table.len() });
    }
    let pools: Vec<Pool> = table.keys().map(|key| pool(&table, key)).collect::<Result<_, _>>()?;
    let count: u16 = pools.iter().map(|pool| pool.lanes).sum();
    if count > LANES_MAX {
        return Err(ManifestError::LanesTogether { line, count });
    }
    let takes = |event| pools.iter().any(|pool| pool.has(event));
    let missing = [(Event::Packet, true), (Event::Timer, has_timer)]
        .into_iter()
        .find(|&(event, is_needed)| is_needed && !takes(event));
    if let Some((event, _)) = missing {
        return Err(ManifestError::NoPool { line, event: event.name() });
    }
    if let Some(pool) = pools.iter().find(|pool| !has_timer && pool.has(Event::Timer)) {
        return Err(ManifestError::PoolWithoutTimer { line, pool: pool.name.clone() });
    }
    Ok((Lanes::Count(count), pools))
}

fn pool(table: &Fields<'_>, key: &str) -> Result<Pool, ManifestError> {
    let line = table.line_of(key);
    let name = Name::new(key).map_err(|source| ManifestError::Name { line, source })?;
    let within = || table.missing("events", "events = [\"packet\"]");
    let fields = table.table(key)?.ok_or_else(within)?;
    fields.known(POOL_FIELDS)?;
    let lanes = fields.number("lanes", 1, u32::from(LANES_MAX))?.unwrap_or(1);
    let processor = fields.number("processor", 0, u32::from(PROCESSORS_MAX) - 1)?.unwrap_or(0);
    if fields.value("events").is_none() {
        return Err(fields.missing("events", "events = [\"packet\"]"));
    }
    let events = fields.choices("events", Event::ALL, |event| event.name())?;
    if events.is_empty() {
        let line = fields.line_of("events");
        return Err(ManifestError::Empty { line, field: "events".into() });
    }
    // Both numbers were checked against their limits.
    Ok(Pool { name, lanes: lanes as u16, processor: processor as u8, events })
}

/// Returns the fields that distinguish flows; empty: `flow_hash`.
pub(crate) fn flows_by(fields: &Fields<'_>) -> Result<Vec<KeyField>, ManifestError> {
    let chosen = fields.choices("flows_by", KeyField::ALL, |field| field.name())?;
    if chosen.is_empty() && fields.value("flows_by").is_some() {
        let line = fields.line_of("flows_by");
        return Err(ManifestError::Empty { line, field: "flows_by".into() });
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::OwnedPacket;

    fn pool(name: &str, lanes: u16, events: &[Event]) -> Pool {
        let name = Name::new(name).unwrap();
        Pool { name, lanes, processor: 0, events: events.to_vec() }
    }

    /// Makes an Ethernet frame of UDP over IPv4 from 10.0.0.`host`.
    fn packet(host: u8, port: u16) -> OwnedPacket {
        let mut bytes = vec![0; 60];
        bytes[26..30].copy_from_slice(&[10, 0, 0, host]);
        bytes[30..34].copy_from_slice(&[10, 0, 1, 1]);
        bytes[34..36].copy_from_slice(&port.to_be_bytes());
        OwnedPacket::new(bytes)
    }

    fn meta() -> Meta {
        Meta {
            packet_length: 60,
            window_length: 0,
            l3_offset: 14,
            l4_offset: 34,
            begins_with: BEGINS_WITH_ETHERNET,
            ip_version: 4,
            protocol: 17,
            flags: 0,
            port: 0,
            session: 2,
            rule: 1,
            flow_hash: 0,
            lane: 0,
            now_ms: 0,
            mark: [0; 16],
        }
    }

    #[test]
    fn packets_go_to_lanes_that_have_them_by_their_hash() {
        let pools = [
            pool("a", 2, &[Event::Timer]),
            pool("b", 3, &[Event::Packet]),
            pool("c", 1, &[Event::Packet, Event::Message]),
        ];
        let division = LaneSelector::new(6, &pools, &[]);
        let lane = |hash| division.lane_of(&packet(1, 1), hash, || panic!("nobody asks for it"));
        assert_eq!([0, 1, 2, 3, 4].map(lane), [2, 3, 4, 5, 2]);
        let alone = LaneSelector::new(3, &[], &[]);
        let lane = |hash| alone.lane_of(&packet(1, 1), hash, || panic!("nobody asks for it"));
        assert_eq!([0, 1, 2, 3].map(lane), [0, 1, 2, 0]);
    }

    #[test]
    fn packets_with_the_same_key_meet_and_others_are_spread() {
        let by_source = LaneSelector::new(16, &[], &[KeyField::Source]);
        let lane = |host, port| by_source.lane_of(&packet(host, port), u32::from(port), meta);
        let mut lanes: Vec<usize> = (0..64).map(|host| lane(host, 1)).collect();
        assert!((0..64).all(|host| lane(host, 1) == lane(host, 999)));
        lanes.sort_unstable();
        lanes.dedup();
        assert!(lanes.len() > 12, "64 hosts are in lanes {lanes:?}");
        let by_port = LaneSelector::new(16, &[], &[KeyField::SourcePort]);
        let lane = |host, port| by_port.lane_of(&packet(host, port), 0, meta);
        assert!((0..64).all(|host| lane(host, 7) == lane(0, 7)));
        assert!((0..64).any(|port| lane(0, port) != lane(0, 7)));
    }

    #[test]
    fn fragments_have_no_ports_and_what_is_missing_counts_as_zero() {
        let by = [KeyField::SourcePort, KeyField::Source];
        let fragment = Meta { flags: META_FRAGMENT, ..meta() };
        assert_eq!(
            flow_key(&packet(1, 5), &fragment, &by),
            flow_key(&packet(1, 6), &fragment, &by)
        );
        assert_ne!(flow_key(&packet(1, 5), &meta(), &by), flow_key(&packet(1, 6), &meta(), &by));
        let short = OwnedPacket::new(vec![0; 14]);
        assert_eq!(flow_key(&short, &meta(), &by), flow_key(&short, &fragment, &by));
        let far = Meta { l3_offset: u16::MAX, l4_offset: u16::MAX, ..meta() };
        assert_eq!(
            flow_key(&packet(1, 5), &far, KeyField::ALL),
            flow_key(&short, &far, KeyField::ALL)
        );
    }
}
