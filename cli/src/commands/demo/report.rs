//! Report printed at the end of the demo.

use super::traffic::{Measured, Stream};
use crate::output::Rows;
use api::{Deployed, NodeInfo, SCHEMA_VERSION, Stats};
use serde::Serialize;
use std::collections::BTreeMap;

/// Result of one phase: measurements, and packets that took the phase's path.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Phase {
    #[serde(flatten)]
    measured: Measured,
    /// Packets that took this path in the node.
    packets: u64,
}

impl Phase {
    pub(super) const fn new(measured: Measured, packets: u64) -> Self {
        Self { measured, packets }
    }
}

/// Mode of the node's ports.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ServedBy {
    /// True if the demo ran in a user namespace.
    without_root: bool,
    /// `native`, `generic` or `packet`.
    mode: String,
    /// Cost of the mode, in words.
    mode_cost: String,
    /// Reason why a port is not served in the best mode; `None` when it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    mode_reason: Option<String>,
}

impl ServedBy {
    /// Takes the mode of the first port: both ports are of the same kind.
    pub(super) fn of(node: &NodeInfo, without_root: bool) -> Self {
        let port = node.ports.first();
        Self {
            without_root,
            mode: port.map(|port| port.mode.clone()).unwrap_or_default(),
            mode_cost: port.map(|port| port.mode_cost.clone()).unwrap_or_default(),
            mode_reason: port.and_then(|port| port.mode_reason.clone()),
        }
    }

    pub(super) fn is_packet(&self) -> bool {
        self.mode == "packet"
    }

    /// Describes the mode that the figures were measured in.
    fn text(&self) -> String {
        let Self { without_root, mode, mode_cost, mode_reason } = self;
        let place = if *without_root { "Without root, in a user namespace" } else { "Here" };
        match mode.as_str() {
            "native" => String::new(),
            _ => {
                let why = mode_reason.as_ref().map(|why| format!("\n  why: {why}"));
                format!(
                    "\n{place} the ports are served as {mode}, not natively: {mode_cost}.{}\n",
                    why.unwrap_or_default()
                )
            }
        }
    }
}

/// Document of `tam demo --json`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    schema_version: u32,
    #[serde(flatten)]
    served_by: ServedBy,
    service: String,
    digest: String,
    deployed_in_ms: u64,
    plain: Phase,
    served: Phase,
    stream: Stream,
    /// Packets whose DSCP the service marked.
    marked: u64,
    /// Packets that ended in the node, or on a link from a host to it (`link`), by reason;
    /// nothing is dropped without one.
    dropped: BTreeMap<String, u64>,
}

impl Report {
    pub(super) fn new(
        served_by: ServedBy,
        deployed: &Deployed,
        [plain, served]: [Phase; 2],
        stream: Stream,
        stats: &Stats,
        lost_by_links: u64,
    ) -> Self {
        let marked = stats.services.values().filter_map(|s| s.counters.get("marked")).sum();
        Self {
            schema_version: SCHEMA_VERSION,
            served_by,
            service: deployed.service.name.clone(),
            digest: deployed.service.digest.clone(),
            deployed_in_ms: deployed.took_ms,
            plain,
            served,
            stream,
            marked,
            dropped: dropped(stats, lost_by_links),
        }
    }

    /// Formats the report for people.
    pub(super) fn text(&self) -> String {
        let mut rows = Rows::new(["", "plainly", "through the service"]);
        let (plain, served) = (&self.plain.measured, &self.served.measured);
        let mut row = |name: &str, a: String, b: String| rows.add([name.to_owned(), a, b]);
        row(
            "ping, median round trip",
            format!("{:.0} µs", plain.ping_ms * 1e3),
            format!("{:.0} µs", served.ping_ms * 1e3),
        );
        row("ping, lost", plain.ping_lost.to_string(), served.ping_lost.to_string());
        row("curl, 256 MiB", rate(plain), rate(served));
        row("packets handled", self.plain.packets.to_string(), self.served.packets.to_string());
        let stream = &self.stream;
        let lost = stream.sent.saturating_sub(stream.received);
        let dropped = match self.dropped.is_empty() {
            true => "none".to_owned(),
            false => {
                self.dropped.iter().map(|(k, n)| format!("{k} {n}")).collect::<Vec<_>>().join(", ")
            }
        };
        format!(
            "{rows}\n\
             The service '{}' was deployed in {} ms while the UDP stream ran:\n  \
             stream: {} packets sent, {} received, {lost} lost, {} reordered\n  \
             marked by the service: {} packets\n  \
             dropped by the node:   {dropped}\n{}\n\
             Next: `tam lab up FILE` makes a network of your own; the README goes on from here.",
            self.service,
            self.deployed_in_ms,
            stream.sent,
            stream.received,
            stream.reordered,
            self.marked,
            self.served_by.text(),
        )
    }
}

fn rate(measured: &Measured) -> String {
    format!("{:.2} Gbit/s", measured.download_mbit_per_second / 1e3)
}

/// Returns every counted drop by reason: the node's, and those of the links in front of it.
fn dropped(stats: &Stats, lost_by_links: u64) -> BTreeMap<String, u64> {
    let mut dropped = BTreeMap::new();
    let mut add = |reason: &str, count: u64| {
        if count > 0 {
            *dropped.entry(reason.to_owned()).or_insert(0) += count;
        }
    };
    add("link", lost_by_links);
    for port in &stats.ports {
        port.outcomes.iter().filter(|(k, _)| k.starts_with("drop_")).for_each(|(k, n)| add(k, *n));
        add("socket_ring_full", port.socket_ring_full);
        add("socket_dropped", port.socket_dropped);
        add("device_tx_dropped", port.device_tx_dropped);
    }
    for service in stats.services.values() {
        service.dropped.iter().for_each(|(reason, count)| add(reason, *count));
    }
    dropped
}
