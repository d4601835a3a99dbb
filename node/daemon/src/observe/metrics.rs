//! `GET /metrics`: the node's counters as OpenMetrics text, for Prometheus; `exposition` converts
//! it to the older text format for clients that do not accept OpenMetrics.
//!
//! Made from the documents of the API, so that it says what `tam stats` says. Nothing is counted
//! for it: times of calls are sampled in the cell (`node/cell/src/timing.rs`).

use crate::answer::{Answer, failed};
use crate::control::authority::Visibility;
use crate::observe::counters::stats;
use crate::observe::documents::node::node_info;
use crate::observe::documents::rules::rule_list;
use crate::observe::documents::services::service_infos;
use crate::observe::view::View;
use api::{NodeInfo, RuleInfo, ServiceInfo, SessionStats, Stats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::collections::BTreeMap;
use std::fmt::Error;

/// Documents of one moment, as metrics.
#[derive(Debug)]
struct Page {
    node: NodeInfo,
    stats: Stats,
    rules: Vec<RuleInfo>,
    services: Vec<ServiceInfo>,
    events: u64,
}

type Labels = Vec<(&'static str, String)>;

/// Returns the counters as OpenMetrics text; `events` is the number of reported events.
///
/// # Errors
/// A counter cannot be read.
pub(crate) fn metrics_page(view: &View<'_>, events: u64) -> Answer<String> {
    let all = Visibility::of_everything();
    let page = Page {
        node: node_info(view, &all),
        stats: stats(view)?,
        rules: rule_list(view, &all)?.rules,
        services: service_infos(view, view.node.services()),
        events,
    };
    text(page).map_err(failed)
}

fn text(page: Page) -> Result<String, Error> {
    let mut registry = Registry::with_prefix("tamandua");
    registry.register_collector(Box::new(page));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        self.node(&mut encoder)?;
        self.ports(&mut encoder)?;
        self.rules(&mut encoder)?;
        self.services(&mut encoder)?;
        self.calls(&mut encoder)?;
        self.sessions(&mut encoder)?;
        self.demand(&mut encoder)?;
        self.cell(&mut encoder)
    }
}

fn packets() -> Unit {
    Unit::Other("packets".to_owned())
}

fn counters(
    encoder: &mut DescriptorEncoder<'_>,
    (name, unit, help): (&str, Option<Unit>, &str),
    rows: impl IntoIterator<Item = (Labels, u64)>,
) -> Result<(), Error> {
    let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
    for (labels, value) in rows {
        ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    (name, unit, help): (&str, Option<Unit>, &str),
    rows: impl IntoIterator<Item = (Labels, u64)>,
) -> Result<(), Error> {
    let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
    for (labels, value) in rows {
        ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

impl Page {
    fn node(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let labels: Labels =
            vec![("node", self.node.name.clone()), ("version", self.node.version.clone())];
        encoder
            .encode_descriptor("node", "The node and its version", None, MetricType::Info)?
            .encode_info(&labels)?;
        let up = [(vec![], self.node.uptime_seconds)];
        gauges(encoder, ("uptime", Some(Unit::Seconds), "Since the node started"), up)?;
        let events = [(vec![], self.events)];
        counters(encoder, ("events", None, "Events that tam events told"), events)?;
        let generation = [(vec![], self.stats.generation)];
        gauges(encoder, ("generation", None, "Changes of rules and routes"), generation)
    }

    fn ports(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let ports = &self.stats.ports;
        let label = |port: &api::PortStatsInfo| vec![("port", port.port.clone())];
        let rows = ports.iter().map(|port| (label(port), port.rx_packets));
        counters(encoder, ("port_received", Some(packets()), "Frames that came in"), rows)?;
        let rows = ports.iter().map(|port| (label(port), port.rx_bytes));
        counters(encoder, ("port_received", Some(Unit::Bytes), "Their bytes"), rows)?;
        let rows = ports.iter().flat_map(|port| {
            let with =
                |outcome: &String| vec![("port", port.port.clone()), ("outcome", outcome.clone())];
            port.outcomes.iter().map(move |(outcome, count)| (with(outcome), *count))
        });
        let help = "Frames by where they ended in the front door";
        counters(encoder, ("port_outcome", Some(packets()), help), rows)?;
        let rows = ports.iter().map(|port| (label(port), port.cache_hits));
        let help = "Frames whose rule and route came from the flow cache";
        counters(encoder, ("port_cache_hits", Some(packets()), help), rows)?;
        let rows = ports.iter().flat_map(|port| {
            [
                ("socket_ring_full", port.socket_ring_full),
                ("socket_dropped", port.socket_dropped),
                ("device_tx_dropped", port.device_tx_dropped),
                ("device_rx_dropped", port.device_rx_dropped),
            ]
            .map(|(reason, count)| {
                (vec![("port", port.port.clone()), ("reason", reason.to_owned())], count)
            })
        });
        let help = "Frames dropped beside the front door";
        counters(encoder, ("port_dropped", Some(packets()), help), rows)?;
        let rows = ports.iter().flat_map(|port| {
            let with =
                |reason: &String| vec![("port", port.port.clone()), ("reason", reason.clone())];
            port.stack_dropped.iter().map(move |(reason, count)| (with(reason), *count))
        });
        let help = "Frames left to the kernel that its stack dropped, by its reason";
        counters(encoder, ("port_stack_dropped", Some(packets()), help), rows)?;
        let slow = |port: &api::PortInfo| u64::from(!port.slow_reasons.is_empty());
        let rows =
            self.node.ports.iter().map(|port| (vec![("port", port.name.clone())], slow(port)));
        let help = "1 when plain forwarding is kept off the fast path";
        gauges(encoder, ("port_slow", None, help), rows)
    }

    fn rules(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let labels = |rule: &RuleInfo| {
            vec![
                ("rule", rule.id.to_string()),
                ("action", rule.action.clone()),
                ("session", rule.session.clone()),
            ]
        };
        let rows = self.rules.iter().map(|rule| (labels(rule), rule.packets));
        let help = "Packets that the rule was the best match of";
        counters(encoder, ("rule", Some(packets()), help), rows)?;
        let rows = self.rules.iter().map(|rule| (labels(rule), rule.bytes));
        counters(encoder, ("rule", Some(Unit::Bytes), "Their bytes"), rows)
    }

    /// Returns one value of each service.
    fn each<'a>(
        &'a self,
        value: impl Fn(&api::ServiceStats) -> u64 + 'a,
    ) -> impl Iterator<Item = (Labels, u64)> + 'a {
        self.services.iter().map(move |service| (of(service), value(&service.stats)))
    }

    /// Returns several values of each service, named by one more label.
    fn several<'a, I: IntoIterator<Item = (String, u64)>>(
        &'a self,
        label: &'static str,
        values: impl Fn(&'a api::ServiceStats) -> I + 'a,
    ) -> impl Iterator<Item = (Labels, u64)> + 'a {
        self.services.iter().flat_map(move |service| {
            let labels = of(service);
            let rows: Vec<_> = values(&service.stats)
                .into_iter()
                .map(|(name, value)| {
                    let mut labels = labels.clone();
                    labels.push((label, name));
                    (labels, value)
                })
                .collect();
            rows
        })
    }

    fn services(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let rows = self.services.iter().map(|service| {
            let mut labels = of(service);
            labels.extend([
                ("module", service.module.clone()),
                ("version", service.version.clone()),
                ("level", service.level.clone()),
                ("session", service.session.clone()),
                ("state", service.state.clone()),
            ]);
            (labels, u64::from(service.state == "running"))
        });
        let help = "1 when the service runs; where, what and whose it is";
        gauges(encoder, ("service_running", None, help), rows)?;
        let help = "Packets given to the service";
        counters(encoder, ("service", Some(packets()), help), self.each(|stats| stats.packets))?;
        let rows = self.each(|stats| stats.bytes);
        counters(encoder, ("service", Some(Unit::Bytes), "Their bytes"), rows)?;
        let rows = self.several("verdict", |stats| {
            [
                ("forwarded", stats.forwarded),
                ("to_kernel", stats.to_kernel),
                ("bounced", stats.bounced),
                ("redirected", stats.redirected),
                ("passed_on", stats.passed_on),
                ("consumed", stats.consumed),
                ("plain", stats.plain),
                ("dropped", stats.dropped.values().sum()),
            ]
            .map(|(name, count)| (name.to_owned(), count))
        });
        let help = "Packets of the service by what became of them";
        counters(encoder, ("service_verdict", Some(packets()), help), rows)?;
        let rows = self.several("reason", |stats| {
            stats.dropped.iter().map(|(reason, count)| (reason.clone(), *count))
        });
        let help = "Packets that the service dropped, by reason";
        counters(encoder, ("service_dropped", Some(packets()), help), rows)?;
        let rows = self.several("trap", |stats| {
            stats.traps.iter().map(|(trap, count)| (trap.clone(), *count))
        });
        counters(encoder, ("service_traps", None, "Traps by kind"), rows)?;
        let rows = self.services.iter().map(|service| (of(service), service.restarts.into()));
        counters(encoder, ("service_restarts", None, "Restarts as a whole"), rows)?;
        let rows = self.each(|stats| stats.memory_bytes);
        gauges(encoder, ("service_memory", Some(Unit::Bytes), "Linear memory"), rows)?;
        let rows = self.each(|stats| stats.lanes_running.into());
        gauges(encoder, ("service_lanes", None, "Instances that run"), rows)?;
        let rows = self.several("counter", |stats| {
            stats.counters.iter().map(|(name, value)| (name.clone(), *value))
        });
        // A module may set its counters as it likes.
        gauges(encoder, ("module_counter", None, "The module's own counters"), rows)
    }

    fn calls(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let rows = self.several("level", calls_by_level);
        let help = "Packets that the module has handled, by level";
        counters(encoder, ("service_calls", None, help), rows)?;
        let rows = self.each(|stats| stats.below.fuel);
        let fuel = Some(Unit::Other("fuel".to_owned()));
        counters(encoder, ("service_below", fuel, "Fuel of its calls below user level"), rows)?;
        let help = "Time of calls at user level, one of 64 timed";
        let seconds = Unit::Seconds;
        let mut family = encoder.encode_descriptor(
            "service_call",
            help,
            Some(&seconds),
            MetricType::Histogram,
        )?;
        for service in &self.services {
            let times = &service.stats.call_times;
            let bound = |ns: Option<u64>| ns.map_or(f64::INFINITY, |ns| ns as f64 / 1e9);
            let buckets: Vec<(f64, u64)> =
                times.buckets.iter().map(|bucket| (bound(bucket.le_ns), bucket.calls)).collect();
            if buckets.is_empty() {
                continue;
            }
            let labels = of(service);
            family.encode_family(&labels)?.encode_histogram::<Labels>(
                times.sum_ns as f64 / 1e9,
                buckets.iter().map(|(_, calls)| calls).sum(),
                &buckets,
                None,
            )?;
        }
        Ok(())
    }

    fn sessions(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let shown = shown_sessions(&self.stats.sessions);
        let rows = |value: fn(&api::SessionStats) -> u64| {
            let of = |name: &str| vec![("session", name.to_owned())];
            shown.iter().map(move |(name, stats)| (of(name), value(stats)))
        };
        let count = [(vec![], self.stats.sessions.len() as u64)];
        gauges(encoder, ("sessions", None, "Sessions that there are"), count)?;
        let help = "Packets that the session's rules took";
        counters(encoder, ("session", Some(packets()), help), rows(|stats| stats.packets))?;
        counters(encoder, ("session", Some(Unit::Bytes), "Their bytes"), rows(|s| s.bytes))?;
        let fuel = Some(Unit::Other("fuel".to_owned()));
        let help = "Fuel of its services below user level";
        counters(encoder, ("session", fuel, help), rows(|stats| stats.fuel))?;
        let help = "Memory that it uses, all of it";
        gauges(
            encoder,
            ("session_memory", Some(Unit::Bytes), help),
            rows(|stats| stats.memory_bytes),
        )?;
        let help = "Times that a module of it was refused more memory, since its cell started";
        let refused = Some(Unit::Other("refused".to_owned()));
        counters(encoder, ("session_memory", refused, help), rows(|stats| stats.memory_refused))
    }

    fn demand(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let demand = &self.stats.demand;
        let requests =
            [("asked", demand.requests - demand.remembered), ("remembered", demand.remembered)]
                .map(|(how, count)| (vec![("how", how.to_owned())], count));
        let help = "Requests for modules that the node did not hold";
        counters(encoder, ("modules_wanted", None, help), requests)?;
        let ended = [("came", demand.fetched), ("missed", demand.missed)]
            .map(|(end, count)| (vec![("end", end.to_owned())], count));
        counters(encoder, ("modules_fetched", None, "Fetches of modules, by their end"), ended)?;
        let bytes = [(vec![], demand.fetched_bytes)];
        let help = "Bytes of modules that came";
        counters(encoder, ("modules_fetched", Some(Unit::Bytes), help), bytes)?;
        let waiting = [(vec![], demand.waiting)];
        gauges(encoder, ("modules_waiting", None, "Requests that wait for a module"), waiting)?;
        let compilers = &self.stats.compilers;
        let compiled = [("compiler", compilers.started), ("disk", compilers.from_disk)]
            .map(|(from, count)| (vec![("from", from.to_owned())], count));
        let help = "Code of modules, by where it came from; a compiler may have failed";
        counters(encoder, ("modules_compiled", None, help), compiled)?;
        let queue = [(vec![], compilers.waiting)];
        gauges(encoder, ("compilations_waiting", None, "Modules that wait for a compiler"), queue)
    }

    fn cell(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let cell = &self.stats.cell;
        let up = [(vec![], u64::from(self.node.cell == "ready"))];
        gauges(encoder, ("cell_ready", None, "1 when the cell takes packets"), up)?;
        let help = "Processor time of the cell that runs now";
        let unit = Some(&Unit::Seconds);
        let cpu = encoder.encode_descriptor("cell_cpu", help, unit, MetricType::Counter)?;
        ConstCounter::new(cell.cpu_ns as f64 / 1e9).encode(cpu)?;
        let frames = [("free", cell.frames_free), ("all", cell.frames_total)]
            .map(|(name, count)| (vec![("frames", name.to_owned())], count));
        gauges(encoder, ("cell_frames", None, "Packet frames of the cell"), frames)?;
        let dropped = [
            ("no_service", cell.no_service_dropped),
            ("oversized", cell.oversized),
            ("up_dropped", cell.up_dropped),
            ("no_metadata", cell.no_metadata),
        ]
        .map(|(reason, count)| (vec![("reason", reason.to_owned())], count));
        let active = self.stats.associations.as_ref();
        let active = active.into_iter().flat_map(|it| &it.dropped);
        let active = active.map(|(reason, count)| (vec![("reason", reason.clone())], *count));
        let dropped = dropped.into_iter().chain(active);
        let help = "Packets that the cell dropped outside its services";
        counters(encoder, ("cell_dropped", Some(packets()), help), dropped)?;
        let stack = cell.stack_dropped.iter();
        let stack = stack.map(|(reason, count)| (vec![("reason", reason.clone())], *count));
        let help = "Packets that the cell gave to the kernel and its stack dropped, by its reason";
        counters(encoder, ("cell_stack_dropped", Some(packets()), help), stack)?;
        let lost = [(vec![], cell.notices_dropped)];
        let help = "Events of modules and notices of traps left out of a storm";
        counters(encoder, ("cell_notices_lost", None, help), lost)?;
        let messages = cell.messages;
        let ends = [
            ("delivered", messages.delivered),
            ("dropped", messages.dropped),
            ("unheard", messages.unheard),
        ]
        .map(|(end, count)| (vec![("end", end.to_owned())], count));
        let help = "Messages between modules, by what became of them";
        counters(encoder, ("cell_messages", None, help), ends)
    }
}

/// Sessions that have metrics of their own, at most: each is five series, and a Prometheus keeps
/// every series that it ever saw.
const SESSIONS_SHOWN_MAX: usize = 256;
/// Name that all others have together: no session can have it.
const OTHER_SESSIONS: &str = "(others)";

/// Returns the sessions with the most packets, by name, and the sum of the others.
fn shown_sessions(all: &BTreeMap<String, SessionStats>) -> Vec<(&str, SessionStats)> {
    let mut shown: Vec<_> = all.iter().map(|(name, stats)| (name.as_str(), *stats)).collect();
    if shown.len() <= SESSIONS_SHOWN_MAX {
        return shown;
    }
    shown.sort_by_key(|(name, stats)| (std::cmp::Reverse(stats.packets), *name));
    let sum = |sum: SessionStats, (_, more): (&str, SessionStats)| SessionStats {
        packets: sum.packets + more.packets,
        bytes: sum.bytes + more.bytes,
        fuel: sum.fuel + more.fuel,
        memory_bytes: sum.memory_bytes + more.memory_bytes,
        memory_refused: sum.memory_refused + more.memory_refused,
    };
    let others = shown.drain(SESSIONS_SHOWN_MAX..).fold(SessionStats::default(), sum);
    shown.sort_by_key(|(name, _)| *name);
    shown.push((OTHER_SESSIONS, others));
    shown
}

/// Returns the packets that a service has handled at each level: together its packets. What was
/// raised, whether its program ran or the lane was at user level, counts where it was handled.
fn calls_by_level(stats: &api::ServiceStats) -> [(String, u64); 2] {
    let below = stats.below.packets.saturating_sub(stats.below.raised);
    let user = stats.packets.saturating_sub(below);
    [("user".to_owned(), user), ("below".to_owned(), below)]
}

fn of(service: &ServiceInfo) -> Labels {
    vec![("service", service.name.clone()), ("digest", service.digest.clone())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{CallTimes, PortStatsInfo, ServiceStats, TimeBucket};

    fn page() -> Page {
        let mut stats = ServiceStats { packets: 7, ..ServiceStats::default() };
        stats.below.packets = 5;
        stats.below.raised = 2;
        stats.dropped.insert("module.say \"no\"\n".into(), 3);
        stats.call_times = CallTimes {
            timed_of: 64,
            sum_ns: 900,
            buckets: vec![
                TimeBucket { le_ns: Some(128), calls: 1 },
                TimeBucket { le_ns: None, calls: 2 },
            ],
        };
        let service = ServiceInfo {
            name: "monitor".into(),
            digest: "sha256:ab".into(),
            state: "running".into(),
            stats,
            ..serde_json::from_value(serde_json::json!({
                "name": "", "digest": "", "module": "m", "version": "1", "description": "",
                "session": "best-effort", "level": "user", "level_reason": "", "state": "",
                "reason": null, "restarts": 0, "entry": 0, "lanes": 1, "parameters": {},
                "rules": [], "stats": ServiceStats::default(),
            }))
            .unwrap()
        };
        let port = PortStatsInfo {
            port: "left".into(),
            rx_packets: 4,
            outcomes: [("forwarded".to_owned(), 4)].into(),
            stack_dropped: [("stack.ip_rpfilter".to_owned(), 2)].into(),
            ..PortStatsInfo::default()
        };
        Page {
            node: serde_json::from_value(serde_json::json!({
                "schema_version": 1, "name": "r1", "version": "1", "pid": 1,
                "uptime_seconds": 3, "fast_path": "auto", "ports": [], "sessions": [],
                "cell": "ready",
            }))
            .unwrap(),
            stats: Stats { ports: vec![port], ..Stats::default() },
            rules: vec![],
            services: vec![service],
            events: 9,
        }
    }

    #[test]
    fn what_was_counted_is_there_with_its_unit() {
        let text = text(page()).unwrap();
        for line in [
            "tamandua_port_received_packets_total{port=\"left\"} 4",
            "tamandua_port_outcome_packets_total{port=\"left\",outcome=\"forwarded\"} 4",
            "tamandua_port_stack_dropped_packets_total{port=\"left\",reason=\"stack.ip_rpfilter\"} 2",
            "tamandua_service_packets_total{service=\"monitor\",digest=\"sha256:ab\"} 7",
            "tamandua_service_calls_total{service=\"monitor\",digest=\"sha256:ab\",level=\"user\"} 4",
            "tamandua_service_calls_total{service=\"monitor\",digest=\"sha256:ab\",level=\"below\"} 3",
            "tamandua_service_call_seconds_count{service=\"monitor\",digest=\"sha256:ab\"} 3",
            "tamandua_events_total{} 9",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "no line '{line}' in\n{text}");
        }
    }

    #[test]
    fn a_name_cannot_break_out_of_its_label() {
        let text = text(page()).unwrap();
        assert!(text.contains(r#"reason="module.say \"no\"\n"} 3"#), "{text}");
    }

    #[test]
    fn metrics_of_ten_thousand_sessions_name_some_and_sum_up_the_rest() {
        let stats = |packets| SessionStats {
            packets,
            bytes: 2 * packets,
            fuel: 1,
            memory_bytes: 3,
            ..SessionStats::default()
        };
        let all: BTreeMap<String, SessionStats> =
            (0..10_000).map(|number| (format!("s{number:05}"), stats(number))).collect();
        let shown = shown_sessions(&all);
        assert_eq!(shown.len(), SESSIONS_SHOWN_MAX + 1);
        assert_eq!(shown[0], ("s09744", stats(9_744)));
        let (name, others) = shown[SESSIONS_SHOWN_MAX];
        let rest: u64 = (0..9_744).sum();
        assert_eq!((name, others.packets, others.fuel), (OTHER_SESSIONS, rest, 9_744));
        assert_eq!(shown_sessions(&all).iter().map(|(_, it)| it.packets).sum::<u64>(), 49_995_000);
    }

    #[test]
    fn packets_by_level_are_all_packets_wherever_the_service_has_moved() {
        // Before, on the way, and up again with everything still raised.
        for (user, below, raised) in [(4, 0, 0), (4, 5, 2), (9, 10, 10)] {
            let mut stats = ServiceStats { packets: user + below - raised, ..Default::default() };
            (stats.below.packets, stats.below.raised) = (below, raised);
            let [(_, at_user), (_, at_below)] = calls_by_level(&stats);
            assert_eq!((at_user, at_below), (user, below - raised));
            assert_eq!(at_user + at_below, stats.packets);
        }
    }

    #[test]
    fn the_last_bucket_has_all_calls() {
        let text = text(page()).unwrap();
        let last = text.lines().find(|line| line.contains("le=\"+Inf\"")).unwrap();
        assert!(last.ends_with(" 3"), "{last}");
    }
}
