//! `tam list`, `tam show`, `tam remove`, `tam move`: the services of a node, and the node itself.

use super::deploy::budget_text;
use super::{Context, short_digest};
use crate::amounts::{rules, size};
use crate::failure::Outcome;
use crate::output::Rows;
use api::{
    AssociationInfo, NodeInfo, PortInfo, SCHEMA_VERSION, ServiceInfo, ServiceList, ServiceStats,
    StreamStats,
};
use clap::Args;
use serde::Serialize;

/// Most associations that `tam show` lists: a screen of them.
const ASSOCIATIONS_SHOWN: usize = 20;

/// Arguments of `tam list`.
#[derive(Debug, Args)]
pub struct List {}

/// Arguments of `tam show`.
#[derive(Debug, Args)]
pub struct Show {
    /// The service; by default the node itself
    service: Option<String>,
}

/// Arguments of `tam remove`.
#[derive(Debug, Args)]
pub struct Remove {
    /// The service
    service: String,
    /// Also remove the rules that were added for the service later; those deployed with it are
    /// always removed
    #[arg(long)]
    cascade: bool,
}

/// Arguments of `tam move`.
#[derive(Debug, Args)]
pub struct Move {
    /// The service
    service: String,
    /// The level to move to: nic, kernel or user
    #[arg(long)]
    to: String,
}

/// JSON document of one service.
#[derive(Serialize)]
struct ServiceDocument<'a> {
    schema_version: u32,
    service: &'a ServiceInfo,
}

impl List {
    pub(crate) fn run(&self, context: &Context<'_>) -> Outcome {
        let list = context.client()?.services()?;
        context.output.result(&list, || list_text(&list))
    }
}

impl Show {
    pub(crate) fn run(&self, context: &Context<'_>) -> Outcome {
        let client = context.client()?;
        let Some(name) = &self.service else {
            let node = client.node()?;
            return context.output.result(&node, || node_text(&node));
        };
        let service = client.service(name)?;
        let document = ServiceDocument { schema_version: SCHEMA_VERSION, service: &service };
        context.output.result(&document, || service_text(&service))
    }
}

impl Remove {
    pub(crate) fn run(&self, context: &Context<'_>) -> Outcome {
        let removed = context.client()?.remove(&self.service, self.cascade)?;
        context.output.result(&removed, || match removed.rules.as_slice() {
            [] => format!("removed service {}", removed.service),
            numbers => {
                format!("removed service {} and its rules {}", removed.service, rules(numbers))
            }
        })
    }
}

impl Move {
    pub(crate) fn run(&self, context: &Context<'_>) -> Outcome {
        let moved = context.client()?.move_service(&self.service, &self.to)?;
        context.output.result(&moved, || match moved.from == moved.level {
            true => format!("{} is at {} already", moved.service, moved.level),
            false => format!(
                "{} moved from {} to {} in {:.1} ms, with its state",
                moved.service,
                moved.from,
                moved.level,
                moved.took_us as f64 / 1000.0
            ),
        })
    }
}

fn list_text(list: &ServiceList) -> String {
    if list.services.is_empty() {
        return "no services; start one with `tam deploy MODULE.wasm --rule MATCH`".to_owned();
    }
    let mut rows =
        Rows::new(["service", "module", "level", "state", "rules", "packets", "dropped", "traps"]);
    for service in &list.services {
        rows.add([
            service.name.clone(),
            format!("{} {}", service.module, service.version),
            service.level.clone(),
            service.state.clone(),
            rules(&service.rules),
            traffic(&service.stats),
            service.stats.dropped.values().sum::<u64>().to_string(),
            service.stats.traps.values().sum::<u64>().to_string(),
        ]);
    }
    let down: String = list.services.iter().filter_map(down_text).collect();
    format!("{rows}{down}")
}

/// Returns the line about a service that is down: why, what becomes of its packets meanwhile, and
/// until when.
fn down_text(service: &ServiceInfo) -> Option<String> {
    let packets = fate(service)?;
    let (name, state) = (&service.name, &service.state);
    let until = match state.as_str() {
        "bypassed" => "until it is deployed again",
        _ => "until it starts, which is tried again",
    };
    let reason = service.reason.as_ref().map_or_else(String::new, |it| format!(" ({it})"));
    let text = format!("{name} is {state}{reason}: {packets}, {until}");
    Some(format!("\n{}", crate::output::escaped(&text)))
}

/// Returns what becomes of the packets of a service that is down; `None` if it is not.
fn fate(service: &ServiceInfo) -> Option<&'static str> {
    let is_down = matches!(service.state.as_str(), "bypassed" | "failed");
    is_down.then_some(match service.on_failure.as_str() {
        "closed" => "its packets are dropped",
        _ => "its packets are forwarded without it, and not counted here",
    })
}

/// Returns the traffic of a service: packets, with those among them that the module did not get,
/// or connections and their requests.
fn traffic(stats: &ServiceStats) -> String {
    match &stats.streams {
        None if stats.plain > 0 => {
            format!("{} ({} without it)", stats.packets, stats.plain)
        }
        None => stats.packets.to_string(),
        Some(streams) if streams.requests == 0 => format!("{} connections", streams.accepted),
        Some(streams) => {
            format!("{} connections, {} requests", streams.accepted, streams.requests)
        }
    }
}

fn service_text(service: &ServiceInfo) -> String {
    let mut rows = Rows::pairs();
    let mut add = |name: &str, value: String| rows.add([name.to_owned(), value]);
    add("service", service.name.clone());
    if !service.description.is_empty() {
        add("about", service.description.clone());
    }
    let fate = fate(service).map_or_else(String::new, |packets| format!(": {packets}"));
    add("state", format!("{}{fate}", service.state));
    if let Some(reason) = &service.reason {
        add("reason", reason.clone());
    }
    let digest = short_digest(&service.digest);
    add("module", format!("{} {} {digest}", service.module, service.version));
    add("level", format!("{}: {}", service.level, service.level_reason));
    add("session", service.session.clone());
    add("lanes", format!("{} ({} running)", service.lanes, service.stats.lanes_running));
    add("memory", size(service.stats.memory_bytes));
    add("restarts", service.restarts.to_string());
    add("rules", rules(&service.rules));
    for (edge, next) in &service.then {
        add(&format!("edge {edge}"), next.clone());
    }
    if let Some(budget) = &service.budget {
        add("budget", budget_text(budget));
    }
    add("on failure", service.on_failure.clone());
    for (name, value) in &service.parameters {
        add("parameter", format!("{name} = {value}"));
    }
    for (name, value) in service_counts(&service.stats) {
        add(&name, value);
    }
    let (zero, counted): (Vec<_>, Vec<_>) =
        service.stats.counters.iter().partition(|(_, value)| **value == 0);
    for (name, value) in counted {
        add(&format!("counter {name}"), value.to_string());
    }
    if !zero.is_empty() {
        let names: Vec<&str> = zero.iter().map(|(name, _)| name.as_str()).collect();
        add("counters still 0", names.join(", "));
    }
    if let Some(trap) = &service.stats.last_trap {
        add("last trap", trap.clone());
    }
    rows.to_string()
}

/// Returns the counters of a service that are not zero, with their names and units for people.
pub(crate) fn service_counts(stats: &ServiceStats) -> Vec<(String, String)> {
    let sums = [
        ("packets", stats.packets),
        ("bytes", stats.bytes),
        ("forwarded", stats.forwarded),
        ("to the kernel", stats.to_kernel),
        ("bounced", stats.bounced),
        ("redirected", stats.redirected),
        ("to the next service", stats.passed_on),
        ("capsules ended here", stats.consumed),
        ("forwarded without it", stats.plain),
        ("packets at nic or kernel", stats.below.packets),
        ("raised to user level", stats.below.raised),
        ("packets that changed CPU", stats.below.handed_over),
        ("fuel at nic or kernel", stats.below.fuel),
        ("made by the module", stats.sent),
        ("made, dropped for room", stats.sent_dropped),
    ];
    // The kernel counts the packets of streams.
    let streams = stats.streams.as_ref().map(stream_counts);
    let always = |name: &str| match streams {
        None => matches!(name, "packets" | "forwarded"),
        Some(_) => matches!(name, "connections" | "bytes to servers" | "bytes to clients"),
    };
    let sums = sums.into_iter().chain(streams.into_iter().flatten());
    let sums = sums.filter(|(name, value)| *value > 0 || always(name));
    let dropped = stats.dropped.iter().map(|(reason, n)| (format!("dropped: {reason}"), *n));
    let traps = stats.traps.iter().map(|(kind, n)| (format!("traps: {kind}"), *n));
    sums.map(|(name, value)| (name.to_owned(), value))
        .chain(dropped.chain(traps).filter(|(_, value)| *value > 0))
        .map(|(name, value)| match name.starts_with("bytes") {
            true => (name, size(value)),
            false => (name, value.to_string()),
        })
        .collect()
}

fn stream_counts(streams: &StreamStats) -> [(&'static str, u64); 9] {
    [
        ("connections", streams.accepted),
        ("open", streams.open),
        ("requests", streams.requests),
        ("ended", streams.ended),
        ("reset", streams.reset),
        ("server unreachable", streams.unreachable),
        ("from another port", streams.other_port),
        ("bytes to servers", streams.bytes_up),
        ("bytes to clients", streams.bytes_down),
    ]
}

fn node_text(node: &NodeInfo) -> String {
    let mut rows = Rows::pairs();
    let mut add = |name: &str, value: String| rows.add([name.to_owned(), value]);
    add("node", format!("{} (tam {}, process {})", node.name, node.version, node.pid));
    add("key", node.node_key.clone());
    add("up", format!("{} s", node.uptime_seconds));
    add("cell", node.cell.clone());
    add("fast path", node.fast_path.clone());
    add("bpf", node.bpf.clone());
    if let Some(per_ms) = node.below_fuel_per_ms {
        let per_us = format!("{}.{}", per_ms / 1_000, per_ms % 1_000 / 100);
        add("fuel", format!("{per_us} a microsecond below user level"));
    }
    if node.period_min_ms > 1 {
        let found = format!("nothing in less than {} ms: it has one core", node.period_min_ms);
        add("promises", found);
    }
    add("ledger", node.ledger.clone());
    let sessions: Vec<_> = node.sessions.iter().map(|session| session.name.as_str()).collect();
    add("sessions", sessions.join(", "));
    let ports = &node.ports;
    let beside =
        [modes_text(ports), bridges_text(ports), away_text(ports), slow_text(ports)].concat();
    format!("{rows}\n{}{beside}{}", ports_text(ports), associations_text(&node.associations))
}

/// Formats the node's associations; a long list is cut.
fn associations_text(associations: &[AssociationInfo]) -> String {
    if associations.is_empty() {
        return String::new();
    }
    let mut rows = Rows::new(["association", "principal", "address", "for"]);
    for it in associations.iter().take(ASSOCIATIONS_SHOWN) {
        let age = format!("{} s", it.age_seconds);
        rows.add([it.id.clone(), it.principal.clone(), it.address.clone(), age]);
    }
    let more = match associations.len().saturating_sub(ASSOCIATIONS_SHOWN) {
        0 => String::new(),
        more => format!("and {more} more; 'tam show --json' has all of them\n"),
    };
    format!("\n{rows}{more}")
}

/// Formats the ports whose mode is slower than native.
fn modes_text(ports: &[PortInfo]) -> String {
    let slower = ports.iter().filter(|port| port.state == "up" && port.mode != "native");
    let text = slower.map(|port| {
        let reason = port.mode_reason.as_deref().unwrap_or("the node file says so");
        let (name, mode, cost) = (&port.name, &port.mode, &port.mode_cost);
        let text = format!("port {name} is {mode}, not native XDP: {reason}; {cost}");
        format!("\n{}\n", crate::output::escaped(&text))
    });
    text.collect()
}

/// Formats the bridged pairs of ports.
fn bridges_text(ports: &[PortInfo]) -> String {
    let pairs = ports.iter().filter_map(|port| Some((&port.name, port.bridge.as_ref()?)));
    let once = pairs.filter(|(one, other)| one < other);
    once.map(|(one, other)| {
        format!("\nports {one} and {other} are a bridge: what enters one leaves by the other\n")
    })
    .collect()
}

/// Formats the ports that are not served now, with the reason.
fn away_text(ports: &[PortInfo]) -> String {
    let away = |port: &PortInfo| {
        let reason = port.away_reason.as_ref()?;
        let text = format!("port {} is away: {reason}", port.name);
        Some(format!("\n{}", crate::output::escaped(&text)))
    };
    let text: String = ports.iter().filter_map(away).collect();
    match text.as_str() {
        "" => text,
        _ => format!(
            "{text}\nPackets routed to it are the kernel's until its device can be served.\n"
        ),
    }
}

fn ports_text(ports: &[PortInfo]) -> String {
    let mut rows = Rows::new(["port", "device", "mac", "mtu", "driver", "xdp", "queues", "off"]);
    for port in ports {
        rows.add([
            port.name.clone(),
            port.device.clone(),
            port.mac.clone(),
            port.mtu.to_string(),
            port.driver.clone(),
            if port.state == "away" { &port.state } else { &port.mode }.clone(),
            port.queues.to_string(),
            port.offloads_off.join(" "),
        ]);
    }
    rows.to_string()
}

/// Formats the ports that are off the fast path, with the reason and its effect.
fn slow_text(ports: &[PortInfo]) -> String {
    let mut text = String::new();
    // The meaning of a mode is shown with the port.
    let routing = ports.iter().filter(|port| port.bridge.is_none() && port.mode != "tc");
    for port in routing.filter(|port| !port.slow_reasons.is_empty()) {
        let reasons = port.slow_reasons.join("; ");
        text.push_str(&crate::output::escaped(&format!(
            "plain packets of port {} go through the kernel: {reasons}",
            port.name
        )));
        text.push('\n');
    }
    if text.is_empty() {
        return text;
    }
    format!(
        "\n{text}The fast path would skip what these ask of the kernel. Rules and services take their packets\n\
         as ever; what they pass goes through the kernel, too. fast_path = \"always\" in the node file\n\
         forwards without them.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_streams(requests: u64) -> ServiceStats {
        let streams = StreamStats {
            accepted: 12,
            open: 1,
            requests,
            bytes_up: 100,
            bytes_down: 900,
            ..StreamStats::default()
        };
        ServiceStats { streams: Some(streams), ..ServiceStats::default() }
    }

    fn service(state: &str, on_failure: &str, stats: ServiceStats) -> ServiceInfo {
        serde_json::from_value(serde_json::json!({
            "name": "fragile", "digest": "sha256:ab", "module": "fragile", "version": "0.1.0",
            "description": "", "session": "best-effort", "level": "user", "level_reason": "",
            "state": state, "reason": "a bug", "restarts": 0, "entry": 0, "lanes": 1,
            "parameters": {}, "rules": [0], "on_failure": on_failure, "stats": stats,
        }))
        .unwrap()
    }

    #[test]
    fn a_service_that_is_down_says_what_becomes_of_its_packets() {
        let list = |state, on_failure| {
            let service = service(state, on_failure, ServiceStats::default());
            list_text(&ServiceList { schema_version: SCHEMA_VERSION, services: vec![service] })
        };
        let text = list("bypassed", "bypass=2");
        let line = "\nfragile is bypassed (a bug): its packets are forwarded without it, and not \
                    counted here, until it is deployed again";
        assert!(text.ends_with(line), "{text}");
        let text = list("failed", "closed");
        assert!(text.contains("its packets are dropped, until it starts"), "{text}");
        assert_eq!(list("running", "closed").lines().count(), 2);
        let shown = service_text(&service("bypassed", "bypass=2", ServiceStats::default()));
        assert!(shown.contains("bypassed: its packets are forwarded without it"), "{shown}");
    }

    #[test]
    fn counters_are_shown_in_words_and_with_units() {
        let mut stats = ServiceStats { packets: 12, plain: 3, ..ServiceStats::default() };
        stats.bytes = 3 << 20;
        stats.memory_bytes = 1_876_977;
        stats.counters = [("seen".to_owned(), 0), ("lost".to_owned(), 0)].into();
        stats.below.handed_over = 5;
        assert_eq!(traffic(&stats), "12 (3 without it)");
        let text = service_text(&service("running", "open", stats));
        for wanted in [
            "memory                    1.79MiB",
            "bytes                     3MiB",
            "forwarded without it      3",
            "packets that changed CPU  5",
            "counters still 0          lost, seen",
        ] {
            assert!(text.lines().any(|line| line == wanted), "no '{wanted}' in\n{text}");
        }
    }

    #[test]
    fn a_service_of_streams_shows_connections_where_others_show_packets() {
        assert_eq!(traffic(&ServiceStats { packets: 7, ..ServiceStats::default() }), "7");
        assert_eq!(traffic(&of_streams(0)), "12 connections");
        assert_eq!(traffic(&of_streams(34)), "12 connections, 34 requests");
        let counts = service_counts(&of_streams(34));
        let of =
            |name: &str| counts.iter().find(|(it, _)| it == name).map(|(_, count)| count.as_str());
        assert_eq!((of("connections"), of("requests")), (Some("12"), Some("34")));
        assert_eq!(of("packets"), None);
        assert_eq!((of("bytes to servers"), of("bytes to clients")), (Some("100B"), Some("900B")));
        let idle = ServiceStats { streams: Some(StreamStats::default()), ..of_streams(0) };
        assert!(
            service_counts(&idle).iter().any(|(name, count)| name == "connections" && count == "0")
        );
    }
}
