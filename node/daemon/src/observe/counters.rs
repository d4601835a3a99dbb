//! Counters of a node as one document: every place where a packet can end.

use crate::answer::{Answer, failed};
use crate::cells::CellNumber;
use crate::control::authority::Visibility;
use crate::dataplane::instances::BelowReport;
use crate::dataplane::live_port::LivePort;
use crate::observe::reasons::STACK;
use crate::observe::view::View;
use abi::check::Kind;
use api::{
    AssociationStats, BelowStats, CellStats, MessageStats, PortStatsInfo, SCHEMA_VERSION,
    ServiceStats, SessionStats, Stats, StreamStats,
};
use bpf::front_door::Arrival;
use cell::protocol::{CellReport, ServiceReport, StreamReport};
use netlink::Link;
use node::Service;
use std::collections::{BTreeMap, BTreeSet};
use units::Name;

const fn message_stats(cell: &CellReport) -> MessageStats {
    MessageStats {
        delivered: cell.messages_delivered,
        dropped: cell.messages_dropped,
        unheard: cell.messages_unheard,
    }
}

/// Returns all counters.
///
/// # Errors
/// A counter cannot be read.
pub(super) fn stats(view: &View<'_>) -> Answer<Stats> {
    let links = view.plane.netlink().links().map_err(failed)?;
    let ports = view.plane.ports().iter().map(|port| port_stats(view, port, &links));
    let ports = ports.collect::<Answer<_>>()?;
    let services = view.node.services();
    let services = services.map(|it| (it.name.to_string(), service_stats(view, it))).collect();
    let cell = view.cells.report();
    Ok(Stats {
        schema_version: SCHEMA_VERSION,
        node: view.file.name.to_string(),
        ports,
        services,
        sessions: session_stats(view)?,
        cell: CellStats {
            no_service: cell.no_service,
            no_service_dropped: cell.no_service_dropped,
            oversized: cell.oversized,
            lost_with_cells: view.plane.lost_with_cells(),
            egress_gone: cell.egress_gone,
            stack_dropped: stack_drops(view.plane.front().stack_drops(Arrival::Own).reasons),
            up_dropped: cell.up_dropped + up_full(view, &links),
            no_metadata: cell.no_metadata,
            notices_dropped: cell.notices_dropped,
            messages: message_stats(cell),
            cpu_ns: view.cells.pid(CellNumber::FIRST).map_or(0, cpu_ns),
            frames_free: cell.frames_free,
            frames_total: cell.frames_total,
        },
        associations: association_stats(view),
        generation: view.plane.front().generation(),
        demand: view.demand.stats(),
        compilers: view.compilers.stats(),
    })
}

/// Returns the counters that a client may see: those of its services, and of the node none unless
/// it may see everything.
///
/// # Errors
/// A counter cannot be read.
pub(crate) fn seen_stats(view: &View<'_>, sight: &Visibility) -> Answer<Stats> {
    let mut stats = stats(view)?;
    if sight.everything {
        return Ok(stats);
    }
    let seen = view.node.services().filter(|it| sight.has(it.session.as_str(), it.owner));
    let seen: BTreeSet<&str> = seen.map(|service| service.name.as_str()).collect();
    stats.services.retain(|name, _| seen.contains(name.as_str()));
    Ok(Stats {
        ports: Vec::new(),
        sessions: BTreeMap::new(),
        cell: CellStats::default(),
        generation: 0,
        demand: api::DemandStats::default(),
        compilers: api::CompilerStats::default(),
        ..stats
    })
}

fn port_stats(view: &View<'_>, port: &LivePort, links: &[Link]) -> Answer<PortStatsInfo> {
    let counted = view.plane.front().port_stats(port.id()).map_err(failed)?;
    let named = bpf_maps::OUTCOMES.iter().zip(counted.outcomes);
    let device = links.iter().find(|link| link.index == port.config().ifindex);
    let (full, dropped) = view.plane.socket_drops(port);
    let stack = view.plane.front().stack_drops(Arrival::Port(port.id()));
    let at_device = device.map_or(0, |link| link.stats.rx_packets_dropped.0);
    Ok(PortStatsInfo {
        port: port.name().to_string(),
        rx_packets: counted.rx_packets,
        rx_bytes: counted.rx_bytes,
        outcomes: named.map(|((name, _), n)| ((*name).to_owned(), n)).collect(),
        cache_hits: counted.cache_hits,
        socket_session: queue_session(view, port),
        socket_ring_full: full,
        socket_dropped: dropped + port.lost_on_way_back(links),
        device_tx_dropped: device.map_or(0, |link| link.stats.tx_packets_dropped.0),
        device_rx_dropped: at_device.saturating_sub(stack.device),
        stack_dropped: stack_drops(stack.reasons),
    })
}

/// Returns the kernel's own drops by the names of their reasons here.
pub(super) fn stack_drops(drops: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    drops.into_iter().map(|(name, count)| (format!("{STACK}{name}"), count)).collect()
}

/// Returns the counters of associations, where the node has any.
pub(super) fn association_stats(view: &View<'_>) -> Option<AssociationStats> {
    Some(view.neighbours?.stats(&view.cells.report().associations))
}

/// Returns the packets from kernel level that the device to the cell dropped, being full.
fn up_full(view: &View<'_>, links: &[Link]) -> u64 {
    let device = links.iter().find(|link| link.index == view.plane.up_index());
    device.map_or(0, |device| device.stats.tx_packets_dropped.0)
}

/// Returns the name of the session whose packets wait in a port's queues; empty while there is
/// none.
pub(super) fn queue_session(view: &View<'_>, port: &LivePort) -> String {
    let session = view.plane.queue_session(port.id());
    let named = session.and_then(|session| view.node.session_of(session));
    named.map(|session| session.name.to_string()).unwrap_or_default()
}

/// Returns the counters of a service since it started, at all levels together.
pub(super) fn service_stats(view: &View<'_>, service: &Service) -> ServiceStats {
    let report = view.cells.report_of(service.entry).cloned().unwrap_or_default();
    let below = view.plane.below_report(service.entry).unwrap_or_default();
    let mut stats = sum_of_levels(report, below, &service.module.manifest.reasons);
    if service.module.kind == Kind::Streams {
        // All zero until the cell has reported.
        stats.streams.get_or_insert_default();
    }
    stats
}

fn session_stats(view: &View<'_>) -> Answer<BTreeMap<String, SessionStats>> {
    let stats = |(name, counts): (Name, api::SessionCounts)| {
        let api::SessionCounts { packets, bytes, fuel, .. } = counts;
        let memory = view.usage.sessions().memory_of(view.node.session(&name).map(|it| it.id));
        let (memory_bytes, memory_refused) =
            memory.map_or((0, 0), |account| (account.used.0, account.refused));
        let stats = SessionStats { packets, bytes, fuel, memory_bytes, memory_refused };
        (name.to_string(), stats)
    };
    Ok(view.usage.counts(view.node, view.plane)?.into_iter().map(stats).collect())
}

/// Returns the processor time of a process with one thread (Documentation/scheduler/sched-stats,
/// schedstat).
fn cpu_ns(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

fn call_times(times: &cell::timing::CallTimes) -> api::CallTimes {
    let bucket = |(at, calls): (usize, &u64)| api::TimeBucket {
        le_ns: cell::timing::bound_ns(at),
        calls: *calls,
    };
    api::CallTimes {
        timed_of: cell::timing::TIMED_OF,
        sum_ns: times.sum_ns,
        buckets: times.buckets.iter().enumerate().map(bucket).collect(),
    }
}

const fn stream_stats(report: &StreamReport) -> StreamStats {
    let StreamReport { counts, requests, cpu } = report;
    StreamStats {
        accepted: counts.accepted,
        open: counts.open(),
        ended: counts.ended,
        reset: counts.reset,
        unreachable: counts.unreachable,
        other_port: counts.other_port,
        requests: *requests,
        bytes_up: counts.up,
        bytes_down: counts.down,
        cpu_ns: cpu.0,
    }
}

/// Returns the sum of the cell's report and the counters below user level.
fn sum_of_levels(
    report: ServiceReport,
    below: BelowReport,
    reasons: &BTreeMap<u16, String>,
) -> ServiceStats {
    let BelowReport { stats: below, reasons: reasons_below, fuel, records_lost } = below;
    let mut drop_module = report.drop_module;
    for (reason, count) in reasons_below {
        *drop_module.entry(reason).or_default() += count;
    }
    let mut dropped: BTreeMap<String, u64> = drop_module
        .iter()
        .map(|(reason, count)| match reasons.get(reason) {
            Some(name) => (format!("module.{name}"), *count),
            None => (format!("module.{reason}"), *count),
        })
        .collect();
    let others = [
        ("trap", report.drop_trap + below.drop_trap),
        ("rule", report.drop_rule + below.drop_rule),
        ("down", report.drop_down + below.drop_down),
        ("queue", report.drop_queue + below.drop_queue),
        ("raise", report.drop_raise),
        ("budget", below.drop_budget),
        ("share", below.drop_share),
        ("lane", below.drop_lane),
        ("redirect_cycle", report.drop_cycle + below.drop_cycle),
        ("no_port", report.drop_no_port + below.drop_no_port),
        ("too_long", report.drop_too_long + below.drop_too_long),
        ("egress_full", report.drop_egress_full),
        ("malformed", report.drop_malformed + below.drop_malformed),
        ("vlan", report.drop_vlan),
        ("kernel", report.drop_kernel),
        ("module.not_counted", below.reasons_lost),
    ];
    dropped.extend(others.iter().filter(|(_, n)| *n > 0).map(|(k, n)| ((*k).to_owned(), *n)));
    ServiceStats {
        // A raised packet is counted where it is handled.
        packets: report.packets + below.packets - below.raised,
        bytes: report.bytes + below.bytes - below.raised_bytes,
        forwarded: report.forwarded + below.forwarded,
        to_kernel: report.to_kernel + below.to_kernel,
        bounced: report.bounced + below.bounced,
        redirected: report.redirected + below.redirected,
        passed_on: report.passed_on + below.passed_on,
        consumed: report.consumed,
        plain: report.plain + below.plain,
        dropped,
        sent: report.sent,
        sent_dropped: report.sent_dropped,
        traps: report.traps,
        last_trap: report.last_trap,
        memory_bytes: report.memory_bytes,
        lanes_running: report.lanes_running,
        call_times: call_times(&report.call_times),
        streams: report.streams.as_ref().map(stream_stats),
        counters: report.counters,
        below: BelowStats {
            packets: below.packets,
            bytes: below.bytes,
            raised: below.raised,
            handed_over: below.handed_over,
            records_lost,
            fuel,
        },
    }
}
