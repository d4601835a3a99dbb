//! Explanation of the front door's decision on a frame, by running a private copy of its program.
//!
//! The copy reads the node's own rules, ports, sockets and routes. Everything that a packet changes
//! (counters, the flow cache, fragments, lanes, programs of modules) is private and discarded with
//! the copy, so that nothing is counted and nothing leaves the machine.

use std::collections::BTreeMap;

use bpf_maps::{Account, OUTCOMES, PORTS_MAX, PacketMeta, PortShare, PortStats, RuleStats};
use units::{PortId, RuleId};

use super::FrontDoorError;
use super::maps::{
    AFTER, AFTER_TC, HAND_OVERS, LANES, LARGE, LINE_OF, LINES, MODULES, MODULES_TC, Maps, ORIGINS,
    PORT_STATS, REASONS, ROOMS, RULE_STATS, SERVICES, TAGS,
};
use super::programs::serve_port;
use crate::map::{Map, Update};
use crate::object::Object;
use crate::objects;
use crate::test_run::XdpContext;

/// Maps that packets change.
const CHANGED: [&str; 20] = [
    PORT_STATS,
    "tam_flows",
    LARGE,
    TAGS,
    "tam_scratch",
    RULE_STATS,
    "tam_fragments",
    LANES,
    HAND_OVERS,
    "tam_passages",
    MODULES,
    MODULES_TC,
    AFTER,
    AFTER_TC,
    SERVICES,
    REASONS,
    ROOMS,
    LINES,
    LINE_OF,
    ORIGINS,
];

/// Longest frame that can be explained: the kernel runs a program over one page.
pub const EXPLAINED_LENGTH_MAX: usize = 3_000;

/// Maps of a front door that determine the outcome of packets.
#[derive(Debug)]
pub struct Explainer {
    maps: BTreeMap<&'static str, Map>,
}

/// Outcome that a frame would have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// Name of the outcome counter.
    pub outcome: &'static str,
    /// Matching rules, at most one of each stage.
    pub rules: Vec<RuleId>,
    /// Metadata that would go to the cell in front of the frame, if it went there.
    pub meta: Option<PacketMeta>,
    /// Frame as it would leave the front door.
    pub frame: Vec<u8>,
}

impl Explainer {
    /// Takes the maps of a front door that packets do not change, with descriptors of its own: the
    /// kernel verifies the copy for a while, and another thread may wait for it.
    pub(super) fn of(maps: &Maps) -> Result<Self, FrontDoorError> {
        let kept = maps.iter().filter(|(name, _)| !CHANGED.contains(name));
        let maps = kept.map(|(name, map)| Ok((name, map.try_clone()?)));
        Ok(Self { maps: maps.collect::<Result<_, FrontDoorError>>()? })
    }

    /// Explains a frame of 14 to [`EXPLAINED_LENGTH_MAX`] bytes that arrives by this port, whose
    /// device has this index; `rules` are those that it may meet.
    ///
    /// # Errors
    /// The kernel does not load or run the copy.
    pub fn explain(
        &self,
        port: PortId,
        ifindex: u32,
        frame: &[u8],
        rules: &[RuleId],
    ) -> Result<Explained, FrontDoorError> {
        let mut object = Object::open(objects::FRONT_DOOR, "tam")?;
        let program = serve_port(&mut object, port, 0)?;
        for (name, map) in &self.maps {
            object.reuse_map(name, map)?;
        }
        let object = object.load()?;
        // Shares must not affect the explanation: here every account is full.
        let full = i64::MAX >> 1;
        let account = Account { left: full, full: full as u64, ..Account::default() };
        let port_share = PortShare { account, ..PortShare::default() };
        let port_shares = object.map(LINES)?;
        for port in 0..PORTS_MAX as u32 {
            port_shares.update(&port, &port_share, Update::Any)?;
        }
        let data_end = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        let context = XdpContext { data_end, ingress_ifindex: ifindex, ..Default::default() };
        let context = bytemuck::bytes_of(&context);
        let run = object.program(program)?.test_run(frame, Some(context), 1)?;
        let counted: Vec<PortStats> =
            object.map(PORT_STATS)?.lookup_percpu(&u32::from(port.0))?.unwrap_or_default();
        let moved = |at: &usize| counted.iter().any(|stats| stats.outcomes[*at] > 0);
        // Each packet has one outcome; without any the copy would not be the front door.
        let outcome = (0..OUTCOMES.len()).find(moved).map_or("", |at| OUTCOMES[at].0);
        let counts = object.map(RULE_STATS)?;
        let mut found = Vec::new();
        for candidate in rules {
            let counts: Vec<RuleStats> = counts.lookup_percpu(&candidate.0)?.unwrap_or_default();
            if counts.iter().any(|count| count.packets > 0) {
                found.push(*candidate);
            }
        }
        let after = run.ctx_out.as_deref().unwrap_or_default();
        let after = after.get(..size_of::<XdpContext>());
        let before =
            after.map_or(0, |bytes| bytemuck::pod_read_unaligned::<XdpContext>(bytes).data);
        let (front, rest) = run.data_out.split_at((before as usize).min(run.data_out.len()));
        let meta = front.len().checked_sub(size_of::<PacketMeta>()).map(|at| &front[at..]);
        let meta = meta.map(bytemuck::pod_read_unaligned::<PacketMeta>);
        Ok(Explained { outcome, rules: found, meta, frame: rest.to_vec() })
    }
}
