//! `tam stats`: the counters of a node, once or every second.

use super::Context;
use super::services::service_counts;
use crate::amounts::size;
use crate::failure::{DONE, Outcome};
use crate::output::Rows;
use api::{PortStatsInfo, Stats as Counters};
use bpf_maps::OUTCOMES;
use clap::Args;
use std::io::IsTerminal;
use std::time::Duration;

/// Arguments of `tam stats`.
#[derive(Debug, Args)]
pub struct Stats {
    /// Repeat every second, with the difference; one JSON document a line with --json
    #[arg(long)]
    watch: bool,
}

/// Interval between two readings of `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Clears a terminal and goes to its upper left corner (ECMA-48, ED and CUP).
const CLEAR: &str = "\u{1b}[2J\u{1b}[H";

impl Stats {
    pub(crate) fn run(&self, context: &Context<'_>) -> Outcome {
        let client = context.client()?;
        let mut before = client.stats()?;
        if !self.watch {
            return context.output.result(&before, || text(&before, None));
        }
        let clear = if std::io::stdout().is_terminal() { CLEAR } else { "" };
        while !context.output.is_closed() {
            std::thread::sleep(WATCH_INTERVAL);
            let now = client.stats()?;
            context.output.result(&now, || format!("{clear}{}", text(&now, Some(&before))))?;
            before = now;
        }
        Ok(DONE)
    }
}

/// Formats the counters that are not zero; with an earlier reading, the differences too.
fn text(now: &Counters, before: Option<&Counters>) -> String {
    let mut text = format!("node {}\n\n{}", crate::output::escaped(&now.node), ports(now, before));
    let reasons = reasons(&now.ports);
    if reasons.count() > 0 {
        text.push_str(&format!("\n{reasons}"));
    }
    let services = services(now);
    if services.count() > 0 {
        text.push_str(&format!("\n{services}"));
    }
    text.push_str(&format!("\n{}\n{}", sessions(now), cell(now)));
    let demand = demand(now);
    if demand.count() > 0 {
        text.push_str(&format!("\n{demand}"));
    }
    text
}

fn ports(now: &Counters, before: Option<&Counters>) -> Rows {
    let headings = [
        "port",
        "rx",
        "rx/s",
        "bytes",
        "forwarded",
        "to service",
        "to kernel",
        "dropped",
        "cached",
    ];
    let mut rows = Rows::new(headings);
    for port in &now.ports {
        let earlier = before.and_then(|b| b.ports.iter().find(|p| p.port == port.port));
        let rate = earlier.map(|earlier| port.rx_packets.saturating_sub(earlier.rx_packets));
        let outcome = |name: &str| port.outcomes.get(name).copied().unwrap_or_default();
        rows.add([
            port.port.clone(),
            port.rx_packets.to_string(),
            rate.map_or("-".to_owned(), |rate| rate.to_string()),
            size(port.rx_bytes),
            outcome("forwarded").to_string(),
            port.to_services().to_string(),
            port.outcomes_of("kernel_").to_string(),
            port.dropped().to_string(),
            port.cache_hits.to_string(),
        ]);
    }
    rows
}

/// Returns why packets went to the kernel or were dropped, with the meaning of each reason.
fn reasons(ports: &[PortStatsInfo]) -> Rows {
    let mut rows = Rows::new(["port", "packets", "outcome", "meaning"]);
    for port in ports {
        let mut add = |name: &str, count: u64, meaning: &str| {
            if count > 0 {
                rows.add([
                    port.port.clone(),
                    count.to_string(),
                    name.to_owned(),
                    meaning.to_owned(),
                ]);
            }
        };
        for (name, count) in &port.outcomes {
            let meaning = OUTCOMES.iter().find(|(known, _)| known == name).map(|(_, m)| *m);
            if name.starts_with("kernel_") || name.starts_with("drop_") {
                add(name, *count, meaning.unwrap_or_default());
            }
        }
        add("socket_ring_full", port.socket_ring_full, "dropped: the cell did not keep up");
        add("socket_dropped", port.socket_dropped, "dropped: no free packet memory for the cell");
        add("device_tx_dropped", port.device_tx_dropped, "dropped by the device on its way out");
        add("device_rx_dropped", port.device_rx_dropped, "dropped by the device on its way in");
        for (reason, count) in &port.stack_dropped {
            add(reason, *count, "left to the kernel, and dropped by its stack");
        }
    }
    rows
}

fn services(now: &Counters) -> Rows {
    let mut rows = Rows::new(["service", "what", "count"]);
    for (name, stats) in &now.services {
        for (what, value) in service_counts(stats) {
            rows.add([name.clone(), what, value]);
        }
        for (counter, value) in stats.counters.iter().filter(|(_, value)| **value > 0) {
            rows.add([name.clone(), format!("counter {counter}"), value.to_string()]);
        }
    }
    rows
}

fn sessions(now: &Counters) -> Rows {
    let mut rows = Rows::new(["session", "packets", "bytes", "fuel below user level"]);
    for (name, stats) in &now.sessions {
        let (packets, bytes) = (stats.packets.to_string(), size(stats.bytes));
        rows.add([name.clone(), packets, bytes, stats.fuel.to_string()]);
    }
    rows
}

/// Returns the counters of packets that asked for modules which the node did not hold.
fn demand(now: &Counters) -> Rows {
    let demand = &now.demand;
    let mut rows = Rows::pairs();
    let rare = [
        (demand.requests, "requests for modules that the node did not hold"),
        (demand.remembered, "of them answered by an earlier miss"),
        (demand.fetched, "modules that came"),
        (demand.missed, "fetches by which nothing came that may run here"),
        (demand.waiting, "requests that wait for a module now"),
    ];
    for (count, meaning) in rare.into_iter().filter(|(count, _)| *count > 0) {
        rows.add([count.to_string(), meaning.to_owned()]);
    }
    rows
}

fn cell(now: &Counters) -> Rows {
    let cell = &now.cell;
    let mut rows = Rows::pairs();
    let free = format!("{} of {} packet frames free", cell.frames_free, cell.frames_total);
    rows.add(["cell".into(), free]);
    let rare = [
        (cell.no_service, "packets for a service that was gone: forwarded plainly"),
        (cell.no_service_dropped, "of them dropped: they could not be forwarded"),
        (cell.oversized, "dropped: more parts than a packet may have"),
        (cell.no_metadata, "dropped: no metadata"),
        (
            cell.lost_with_cells,
            "lost when a cell died: in its rings, or dropped before its closed services' rules said so",
        ),
        (cell.egress_gone, "dropped: their egress port vanished"),
        (cell.up_dropped, "dropped: no room on the way up"),
        (
            cell.messages.dropped,
            "messages between modules dropped: too many, or their receiver was not ready",
        ),
        (cell.messages.unheard, "messages of modules that no service leads to"),
    ];
    for (count, meaning) in rare.into_iter().filter(|(count, _)| *count > 0) {
        rows.add([count.to_string(), meaning.to_owned()]);
    }
    for (reason, count) in &cell.stack_dropped {
        rows.add([
            count.to_string(),
            format!("given to the kernel, and dropped by its stack: {reason}"),
        ]);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_happened_has_a_row() {
        let port = PortStatsInfo {
            port: "left".into(),
            rx_packets: 7,
            outcomes: [
                ("forwarded", 4),
                ("kernel_local", 2),
                ("drop_rule", 1),
                ("drop_checksum", 0),
            ]
            .map(|(name, count)| (name.to_owned(), count))
            .into(),
            stack_dropped: [("stack.ip_rpfilter".to_owned(), 5)].into(),
            ..PortStatsInfo::default()
        };
        let demand = api::DemandStats { fetched: 3, ..api::DemandStats::default() };
        let text = text(&Counters { ports: vec![port], demand, ..Counters::default() }, None);
        assert!(text.contains("modules that came") && !text.contains("requests"), "{text}");
        assert!(text.contains("drop_rule") && text.contains("a rule says so"), "{text}");
        assert!(text.contains("stack.ip_rpfilter"), "{text}");
        assert!(!text.contains("drop_checksum"), "{text}");
    }
}
