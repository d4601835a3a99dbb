//! Rates between two readings of a node, per second.

use api::{Client, ClientError, NodeInfo, PortStatsInfo, SCHEMA_VERSION, ServiceInfo, Stats};
use serde::Serialize;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Counters of a node at one moment.
pub struct Reading {
    at: Instant,
    node: NodeInfo,
    stats: Stats,
    services: Vec<ServiceInfo>,
}

impl Reading {
    pub fn take(client: &Client) -> Result<Self, ClientError> {
        let (node, services) = (client.node()?, client.services()?.services);
        Ok(Self { stats: client.stats()?, at: Instant::now(), node, services })
    }
}

/// Rates between two readings.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    pub schema_version: u32,
    pub node: String,
    /// Milliseconds since 1970.
    pub time_ms: u64,
    pub interval_ms: u64,
    pub uptime_seconds: u64,
    pub ports: Vec<PortRates>,
    pub services: Vec<ServiceRates>,
    pub drops: Vec<DropRate>,
    pub cell: CellRates,
}

#[derive(Clone, Debug, Serialize)]
pub struct PortRates {
    pub port: String,
    pub packets_per_second: u64,
    pub bits_per_second: u64,
    pub forwarded_per_second: u64,
    pub to_service_per_second: u64,
    pub to_kernel_per_second: u64,
    pub dropped_per_second: u64,
    pub slow_reasons: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ServiceRates {
    pub service: String,
    pub level: String,
    pub state: String,
    pub packets_per_second: u64,
    /// New connections of a stream service; null for a packet service.
    pub connections_per_second: Option<u64>,
    pub bits_per_second: u64,
    /// Mean time of a call at user level; null when none was timed.
    pub ns_per_call: Option<u64>,
    /// Mean fuel of a call below user level; null when there was none.
    pub fuel_per_call: Option<u64>,
    /// Packets that continued: forwarded, to the kernel, bounced, redirected, to the next service.
    pub passed_per_second: u64,
    pub dropped_per_second: u64,
    /// Traps since the service started.
    pub traps: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct DropRate {
    pub reason: String,
    pub place: String,
    pub per_second: u64,
    /// Packets since the node started.
    pub packets: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct CellRates {
    pub state: String,
    /// Thousandths of one core.
    pub cpu_permille: u64,
    pub frames_free: u64,
    pub frames_total: u64,
}

impl ServiceRates {
    pub fn level_and_state(&self) -> String {
        match self.state.as_str() {
            "running" => self.level.clone(),
            state => state.to_owned(),
        }
    }

    /// Returns the traffic of the service per second: packets, or connections.
    pub fn traffic(&self) -> String {
        match self.connections_per_second {
            Some(connections) => format!("{connections} conn"),
            None => self.packets_per_second.to_string(),
        }
    }

    /// Returns the cost of a call: fuel below user level, time at it.
    pub fn cost(&self) -> String {
        match (self.ns_per_call, self.fuel_per_call) {
            (_, Some(fuel)) if self.level != "user" => format!("{fuel} fuel"),
            (Some(ns), _) => format!("{ns} ns"),
            (None, Some(fuel)) => format!("{fuel} fuel"),
            (None, None) => "-".to_owned(),
        }
    }
}

impl Sample {
    pub fn between(before: &Reading, now: &Reading) -> Self {
        let elapsed = now.at.saturating_duration_since(before.at);
        let interval_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
        let rate = |now: u64, before: u64| {
            // A counter that became smaller was reset.
            let more = now.checked_sub(before).unwrap_or(now);
            more.saturating_mul(1000) / interval_ms
        };
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let cpu = now.stats.cell.cpu_ns;
        let cpu = cpu.checked_sub(before.stats.cell.cpu_ns).unwrap_or(cpu);
        Self {
            schema_version: SCHEMA_VERSION,
            node: now.node.name.clone(),
            time_ms: u64::try_from(wall.as_millis()).unwrap_or(u64::MAX),
            interval_ms,
            uptime_seconds: now.node.uptime_seconds,
            ports: ports(before, now, &rate),
            services: services(before, now, &rate),
            drops: drops(&before.stats, &now.stats, &rate),
            cell: CellRates {
                state: now.node.cell.clone(),
                cpu_permille: cpu / 1000 / interval_ms,
                frames_free: now.stats.cell.frames_free,
                frames_total: now.stats.cell.frames_total,
            },
        }
    }

    /// Returns the first line of the display.
    pub fn title(&self) -> String {
        let cell = &self.cell;
        format!(
            "node {}  up {}  cell {}: {}.{} % CPU, {}/{} frames free",
            crate::output::escaped(&self.node),
            age(self.uptime_seconds),
            cell.state,
            cell.cpu_permille / 10,
            cell.cpu_permille % 10,
            cell.frames_free,
            cell.frames_total
        )
    }
}

fn ports(before: &Reading, now: &Reading, rate: &impl Fn(u64, u64) -> u64) -> Vec<PortRates> {
    let nothing = PortStatsInfo::default();
    now.stats
        .ports
        .iter()
        .map(|port| {
            let then = before.stats.ports.iter().find(|then| then.port == port.port);
            let then = then.unwrap_or(&nothing);
            let info = now.node.ports.iter().find(|info| info.name == port.port);
            let of = |value: &dyn Fn(&PortStatsInfo) -> u64| rate(value(port), value(then));
            PortRates {
                port: port.port.clone(),
                packets_per_second: of(&|port| port.rx_packets),
                bits_per_second: of(&|port| port.rx_bytes.saturating_mul(8)),
                forwarded_per_second: of(&|port| port.outcomes_of("forwarded")),
                to_service_per_second: of(&PortStatsInfo::to_services),
                to_kernel_per_second: of(&|port| port.outcomes_of("kernel_")),
                dropped_per_second: of(&PortStatsInfo::dropped),
                slow_reasons: info.map(|info| info.slow_reasons.clone()).unwrap_or_default(),
            }
        })
        .collect()
}

fn services(before: &Reading, now: &Reading, rate: &impl Fn(u64, u64) -> u64) -> Vec<ServiceRates> {
    let mut rates: Vec<ServiceRates> = now
        .services
        .iter()
        .map(|service| {
            let then = before.services.iter().find(|then| then.name == service.name);
            let then = then.map(|then| then.stats.clone()).unwrap_or_default();
            let stats = &service.stats;
            let sent_on = |s: &api::ServiceStats| {
                let sent = s.forwarded + s.to_kernel + s.bounced + s.redirected;
                sent + s.passed_on + s.consumed + s.plain
            };
            let bits = |s: &api::ServiceStats| {
                let streams = s.streams.as_ref().map_or(0, |it| it.bytes_up + it.bytes_down);
                s.bytes.saturating_add(streams).saturating_mul(8)
            };
            let lost = |s: &api::ServiceStats| s.dropped.values().sum::<u64>();
            let timed =
                |s: &api::ServiceStats| s.call_times.buckets.iter().map(|b| b.calls).sum::<u64>();
            let calls = timed(stats).saturating_sub(timed(&then));
            let ns = stats.call_times.sum_ns.saturating_sub(then.call_times.sum_ns);
            let below = stats.below.packets.saturating_sub(then.below.packets);
            let fuel = stats.below.fuel.saturating_sub(then.below.fuel);
            ServiceRates {
                service: service.name.clone(),
                level: service.level.clone(),
                state: service.state.clone(),
                packets_per_second: rate(stats.packets, then.packets),
                connections_per_second: stats.streams.as_ref().map(|streams| {
                    rate(streams.accepted, then.streams.as_ref().map_or(0, |then| then.accepted))
                }),
                bits_per_second: rate(bits(stats), bits(&then)),
                ns_per_call: ns.checked_div(calls),
                fuel_per_call: fuel.checked_div(below),
                passed_per_second: rate(sent_on(stats), sent_on(&then)),
                dropped_per_second: rate(lost(stats), lost(&then)),
                traps: stats.traps.values().sum(),
            }
        })
        .collect();
    rates.sort_by(|a, b| {
        let busy = |rates: &ServiceRates| (rates.packets_per_second, rates.connections_per_second);
        busy(b).cmp(&busy(a)).then(a.service.cmp(&b.service))
    });
    rates
}

fn drops(before: &Stats, now: &Stats, rate: &impl Fn(u64, u64) -> u64) -> Vec<DropRate> {
    let counted = |stats: &Stats| {
        let mut all: Vec<(String, String, u64)> = Vec::new();
        for port in &stats.ports {
            let place = format!("port {}", port.port);
            let lost = port.outcomes.iter().filter(|(name, _)| name.starts_with("drop_"));
            all.extend(lost.map(|(name, count)| (name.clone(), place.clone(), *count)));
            for (name, count) in [
                ("socket_ring_full", port.socket_ring_full),
                ("socket_dropped", port.socket_dropped),
                ("device_tx_dropped", port.device_tx_dropped),
            ] {
                all.push((name.to_owned(), place.clone(), count));
            }
            let stack = port.stack_dropped.iter();
            all.extend(stack.map(|(name, count)| (name.clone(), place.clone(), *count)));
        }
        for (service, stats) in &stats.services {
            let place = format!("service {service}");
            let lost = stats.dropped.iter();
            all.extend(lost.map(|(name, count)| (name.clone(), place.clone(), *count)));
        }
        all
    };
    let then = counted(before);
    let mut rates: Vec<DropRate> = counted(now)
        .into_iter()
        .filter(|(_, _, packets)| *packets > 0)
        .map(|(reason, place, packets)| {
            let earlier = then.iter().find(|(r, p, _)| *r == reason && *p == place);
            let per_second = rate(packets, earlier.map_or(0, |(_, _, count)| *count));
            DropRate { reason, place, per_second, packets }
        })
        .collect();
    rates.sort_by_key(|rate| std::cmp::Reverse((rate.per_second, rate.packets)));
    rates
}

/// Formats an age in seconds.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::time::Duration;

    /// Returns a reading of a node with two ports and a service, `packets` after its start.
    pub fn reading(at: Instant, packets: u64) -> Reading {
        let port = |name: &str| PortStatsInfo {
            port: name.to_owned(),
            rx_packets: packets,
            rx_bytes: packets * 1000,
            outcomes: [
                ("forwarded".to_owned(), packets / 2),
                ("drop_rule".to_owned(), packets / 4),
            ]
            .into(),
            ..PortStatsInfo::default()
        };
        let mut stats = api::ServiceStats { packets, bytes: packets * 1000, ..Default::default() };
        stats.dropped.insert("trap".into(), packets / 10);
        stats.forwarded = packets - packets / 10;
        stats.call_times.sum_ns = packets * 300;
        stats.call_times.buckets = vec![api::TimeBucket { le_ns: Some(512), calls: packets }];
        let service: ServiceInfo = serde_json::from_value(serde_json::json!({
            "name": "monitor", "digest": "sha256:ab", "module": "m", "version": "1",
            "description": "", "session": "best-effort", "level": "user", "level_reason": "",
            "state": "running", "reason": null, "restarts": 0, "entry": 0, "lanes": 1,
            "parameters": {}, "rules": [], "stats": stats,
        }))
        .unwrap();
        let mut all = Stats { ports: vec![port("left"), port("right")], ..Stats::default() };
        all.services.insert("monitor".into(), service.stats.clone());
        all.cell.cpu_ns = packets * 1000;
        Reading {
            at,
            node: serde_json::from_value(serde_json::json!({
                "schema_version": 1, "name": "r1", "version": "1", "pid": 1,
                "uptime_seconds": 4000, "fast_path": "auto", "ports": [], "sessions": [],
                "cell": "ready",
            }))
            .unwrap(),
            stats: all,
            services: vec![service],
        }
    }

    #[test]
    fn rates_are_by_the_second_whatever_the_interval() {
        let at = Instant::now();
        let later = reading(at + Duration::from_secs(2), 3000);
        let sample = Sample::between(&reading(at, 1000), &later);
        let port = &sample.ports[0];
        assert_eq!((port.packets_per_second, port.bits_per_second), (1000, 8_000_000));
        assert_eq!((port.forwarded_per_second, port.dropped_per_second), (500, 250));
        let service = &sample.services[0];
        assert_eq!((service.ns_per_call, service.dropped_per_second), (Some(300), 100));
        assert_eq!((service.cost().as_str(), sample.cell.cpu_permille), ("300 ns", 1));
        assert_eq!(sample.drops[0].per_second, 250);
    }

    #[test]
    fn a_node_that_began_anew_has_no_endless_rates() {
        let at = Instant::now();
        let anew = reading(at + Duration::from_secs(1), 10);
        let sample = Sample::between(&reading(at, 1_000_000), &anew);
        assert_eq!(sample.ports[0].packets_per_second, 10);
    }
}
