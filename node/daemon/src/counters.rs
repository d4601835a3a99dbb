//! The counters of a node as one document: every place where a packet can end.

use crate::answer::failed;
use crate::cells::CellNumber;
use crate::control::authority::Sight;
use crate::daemon::Daemon;
use crate::dataplane::instances::BelowReport;
use crate::dataplane::packets;
use crate::dataplane::ports;
use crate::drops::stack_drops;
use crate::http::Answer;
use api::{
    BelowStats, CellStats, MessageStats, PortStatsInfo, SCHEMA_VERSION, ServiceStats, SessionStats,
    Stats, StreamStats,
};
use bpf::front_door::Arrival;
use cell::protocol::{CellReport, ServiceReport, StreamReport};
use node::Service;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use units::SessionId;

const fn message_stats(cell: &CellReport) -> MessageStats {
    MessageStats {
        delivered: cell.messages_delivered,
        dropped: cell.messages_dropped,
        unheard: cell.messages_unheard,
    }
}

impl Daemon {
    pub(crate) fn stats(&self) -> Answer<Stats> {
        let links = self.plane.netlink.links().map_err(failed)?;
        let ports = self
            .plane
            .ports
            .iter()
            .map(|port| {
                let counted = self.plane.front.port_stats(port.port.id).map_err(failed)?;
                let named = bpf_maps::OUTCOMES.iter().zip(counted.outcomes);
                let device = links.iter().find(|l| l.index == port.config.ifindex);
                let (full, dropped) = self.socket_drops(port);
                let stack = self.plane.front.stack_drops(Arrival::Port(port.port.id));
                let at_device = device.map_or(0, |l| l.stats.rx_packets_dropped.0);
                Ok(PortStatsInfo {
                    port: port.port.spec.name.to_string(),
                    rx_packets: counted.rx_packets,
                    rx_bytes: counted.rx_bytes,
                    outcomes: named.map(|((name, _), n)| ((*name).to_owned(), n)).collect(),
                    cache_hits: counted.cache_hits,
                    socket_session: self.queue_session(port),
                    socket_ring_full: full,
                    socket_dropped: dropped + packets::lost_on_way_back(port, &links),
                    device_tx_dropped: device.map_or(0, |l| l.stats.tx_packets_dropped.0),
                    device_rx_dropped: at_device.saturating_sub(stack.device),
                    stack_dropped: stack_drops(stack.reasons),
                })
            })
            .collect::<Answer<_>>()?;
        Ok(Stats {
            schema_version: SCHEMA_VERSION,
            node: self.file.name.to_string(),
            ports,
            services: self
                .control
                .node()
                .services()
                .map(|s| (s.name.to_string(), self.service_stats(s)))
                .collect(),
            sessions: self.session_stats()?,
            cell: CellStats {
                no_service: self.cells.report().no_service,
                no_service_dropped: self.cells.report().no_service_dropped,
                oversized: self.cells.report().oversized,
                lost_with_cells: self.plane.lost_with_cells,
                egress_gone: self.cells.report().egress_gone,
                stack_dropped: stack_drops(self.plane.front.stack_drops(Arrival::Own).reasons),
                up_dropped: self.cells.report().up_dropped + self.up_full(&links),
                no_metadata: self.cells.report().no_metadata,
                notices_dropped: self.cells.report().notices_dropped,
                messages: message_stats(self.cells.report()),
                cpu_ns: self.cells.pid(CellNumber::FIRST).map_or(0, cpu_ns),
                frames_free: self.cells.report().frames_free,
                frames_total: self.cells.report().frames_total,
            },
            associations: self.association_stats(),
            generation: self.plane.front.generation(),
            demand: self.demand.stats(),
            compilers: self.compilers.stats(),
        })
    }

    /// What of all counters somebody sees: those of his services, and of the node nothing unless
    /// everything is his concern.
    pub(crate) fn seen_stats(&self, sight: &Sight) -> Answer<Stats> {
        let mut stats = self.stats()?;
        if sight.everything {
            return Ok(stats);
        }
        let seen =
            self.control.node().services().filter(|it| sight.has(it.session.as_str(), it.owner));
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

    /// Packets from kernel level for which the way to the cell had no room.
    fn up_full(&self, links: &[netlink::Link]) -> u64 {
        let device = links.iter().find(|link| link.index == self.plane.up_ifindex);
        device.map_or(0, |device| device.stats.tx_packets_dropped.0)
    }

    /// What the kernel dropped in front of a port's sockets: ring full, and the rest.
    pub(crate) fn socket_drops(&self, port: &ports::LivePort) -> (u64, u64) {
        let queues = (0..port.queues).filter_map(|q| self.plane.sockets.get(&(port.port.id, q)));
        let counted = queues.filter_map(|q| sockets::socket::xdp_drops(q.socket.as_fd()).ok());
        let (full, other) = port.socket_drops;
        let before = (full + self.packets_dropped(port.port.id), other);
        counted.fold(before, |sum, one| (sum.0 + one.ring_full, sum.1 + one.other))
    }

    /// The session whose packets wait in a port's queues; empty while there is none.
    pub(crate) fn queue_session(&self, port: &ports::LivePort) -> String {
        let session = self.plane.sockets.get(&(port.port.id, 0)).map(|queue| queue.session);
        // Nobody has a reservation yet, and so a queue of its own.
        let shared =
            self.plane.packets.contains_key(&port.port.id).then_some(SessionId::BEST_EFFORT);
        let session = session.or(shared);
        let named = session.and_then(|session| self.control.node().session_of(session));
        named.map(|session| session.name.to_string()).unwrap_or_default()
    }

    /// What a service did since it started.
    pub(crate) fn service_stats(&self, service: &Service) -> ServiceStats {
        let report = self.cells.report_of(service.entry).cloned().unwrap_or_default();
        let below = self.below_report(service.entry).unwrap_or_default();
        service_stats(report, below, &service.module.manifest.reasons)
    }

    fn session_stats(&self) -> Answer<BTreeMap<String, SessionStats>> {
        let stats = |(name, counts): (units::Name, api::SessionCounts)| {
            let api::SessionCounts { packets, bytes, fuel, .. } = counts;
            let memory =
                self.sessions.memory_of(self.control.node().session(&name).map(|it| it.id));
            let (memory_bytes, memory_refused) =
                memory.map_or((0, 0), |account| (account.used.0, account.refused));
            let stats = SessionStats { packets, bytes, fuel, memory_bytes, memory_refused };
            (name.to_string(), stats)
        };
        Ok(self.session_counts()?.into_iter().map(stats).collect())
    }
}

/// Processor time of a process with one thread (Documentation/scheduler/sched-stats, schedstat).
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

/// What a service did at all levels: the cell's report, and what became of its packets below.
fn service_stats(
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
