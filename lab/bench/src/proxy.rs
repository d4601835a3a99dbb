//! `tam bench proxy`: connections that a node takes, against programs that are proxies.
//!
//! ```text
//! wrk ─▶ s0 ═ n0 [ node: plain interception ]          n1 ═ d0 ─▶ origin: nginx
//! wrk ─▶ s0 ═ n0 [ node: pass-through filter ]         n1 ═ d0 ─▶ origin
//! wrk ─▶ s0 ═ n0 [ node: it keeps servers, too ]        n1 ═ d0 ─▶ origin
//! wrk ─▶ s0 ═ n0 XDP [ node: plain interception ] XDP  n1 ═ d0 ─▶ origin
//! wrk ─▶ s0 ═ n0 XDP [ node: pass-through filter ] XDP n1 ═ d0 ─▶ origin
//! wrk ─▶ s0 ═ n0 [ HAProxy, nginx: TCP and HTTP ]      n1 ═ d0 ─▶ origin
//! wrk ─▶ s0 ═ n0 XDP [ HAProxy: TCP and HTTP ] XDP     n1 ═ d0 ─▶ origin
//! wrk ─▶ s0 ═ n0 [ HAProxy as each client, TPROXY ]    n1 ═ d0 ─▶ origin
//! CPU 0                  CPU 1                             CPU 0
//! ```
//!
//! All are ready at the same time and take turns. Details in docs/benchmarks/proxy.md.

mod sites;

use anyhow::Result;

use crate::measurement::{Better, Measured, Measurement};
use crate::rounds::{Pair, Rounds};
use crate::streams::process::{HAPROXY, NGINX, cpu_time};
use crate::streams::wrk::{Load, Wrk};
use crate::streams::{self, web::Client};
use crate::{Options, Subject, line};
use sites::Sites;

/// Goal: the rate divided by HAProxy's.
const GOAL_RATE: f64 = 0.9;
/// Goal: the pass-through filter's rate divided by plain interception's.
const GOAL_FILTER: f64 = 0.95;
/// Sizes of the origin's files, in bytes.
const SMALL: usize = 1024;
const LARGE: usize = 1 << 20;
const MEGABYTE: f64 = 1e6;

/// Measured case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    /// Small responses over kept connections.
    Requests,
    /// Large responses.
    Bulk,
    /// Small responses, with a connection for each.
    Connections,
}

impl Case {
    const ALL: [Self; 3] = [Self::Requests, Self::Bulk, Self::Connections];

    const fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Bulk => "bulk",
            Self::Connections => "connections",
        }
    }

    /// Returns the units of the rate, and of the processor time for one.
    const fn units(self) -> (&'static str, &'static str) {
        match self {
            Self::Requests => ("requests/s", "us/request"),
            Self::Bulk => ("MB/s", "us/MB"),
            Self::Connections => ("connections/s", "us/connection"),
        }
    }

    const fn path(self) -> &'static str {
        if matches!(self, Self::Bulk) { sites::LARGE_PATH } else { sites::SMALL_PATH }
    }

    const fn connections(self) -> u32 {
        if matches!(self, Self::Bulk) { 16 } else { 64 }
    }

    fn header(self) -> Option<&'static str> {
        (self == Self::Connections).then_some("Connection: close")
    }
}

/// Contestant, in the order of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contestant {
    Plain,
    HaproxyTcp,
    NginxTcp,
    TcpBehindXdp,
    TcpTransparent,
    /// Plain interception with the node's front door in the driver, as for ports of every kind.
    PlainAtXdp,
    Filter,
    HaproxyHttp,
    NginxHttp,
    HttpBehindXdp,
    HttpTransparent,
    FilterAtXdp,
    /// Pass-through filter with connections to servers kept for the next client, as HAProxy's and
    /// nginx' are.
    Keeping,
}

impl Contestant {
    const ALL: [Self; 13] = [
        Self::Plain,
        Self::HaproxyTcp,
        Self::NginxTcp,
        Self::TcpBehindXdp,
        Self::TcpTransparent,
        Self::PlainAtXdp,
        Self::Filter,
        Self::HaproxyHttp,
        Self::NginxHttp,
        Self::HttpBehindXdp,
        Self::HttpTransparent,
        Self::FilterAtXdp,
        Self::Keeping,
    ];

    /// Returns true if the case is measured for this contestant.
    const fn takes_part(self, case: Case) -> bool {
        !matches!(self, Self::Keeping) || matches!(case, Case::Connections)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain_interception",
            Self::PlainAtXdp => "plain_interception_at_xdp",
            Self::FilterAtXdp => "filter_at_xdp",
            Self::Filter => "filter",
            Self::Keeping => "filter_keeping_servers",
            Self::HaproxyTcp => "haproxy_tcp",
            Self::HaproxyHttp => "haproxy_http",
            Self::NginxTcp => "nginx_stream",
            Self::NginxHttp => "nginx_http",
            Self::TcpBehindXdp | Self::HttpBehindXdp => "haproxy_behind_xdp",
            Self::TcpTransparent | Self::HttpTransparent => "haproxy_transparent",
        }
    }

    /// Returns the suffix of a metric's name that compares with this contestant.
    const fn suffix(self) -> &'static str {
        match self {
            Self::TcpBehindXdp | Self::HttpBehindXdp => ".behind_xdp",
            Self::TcpTransparent | Self::HttpTransparent => ".transparent",
            Self::NginxTcp | Self::NginxHttp => ".nginx",
            Self::PlainAtXdp | Self::FilterAtXdp => ".at_xdp",
            Self::Keeping => ".kept",
            Self::Plain | Self::Filter | Self::HaproxyTcp | Self::HaproxyHttp => "",
        }
    }
}

/// Result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Run {
    /// Requests, MB or connections per second.
    rate: f64,
    p50: f64,
    p99: f64,
    /// Microseconds of processor time for each of them.
    cpu: f64,
    errors: f64,
}

/// Runs of a round, by case and contestant.
type Round = Vec<(Case, Contestant, Run)>;

pub(crate) fn run(
    options: &Options,
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Measured> {
    line::needs_two_cpus()?;
    let versions = [HAPROXY.version("-v")?, NGINX.version("-v")?];
    let folder = streams::folder()?;
    let wrk = Wrk::new(folder.path())?;
    progress("making eight lines of namespaces, with an origin and a proxy each");
    let sites = Sites::new(folder.path(), subject)?;
    let measured = rounds(options, &sites, &wrk, progress);
    sites.stop(subject)?;
    let measured = measured?;
    let mut notes = vec![
        versions.join("; "),
        "load and origin on CPU 0, what is measured on CPU 1; its time is that of all its \
         processes, ours with the daemon"
            .to_owned(),
    ];
    notes.extend(failures(&measured));
    Ok(Measured { measurements: measurements(&measured), notes })
}

fn rounds(
    options: &Options,
    sites: &Sites,
    wrk: &Wrk,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Round>> {
    for contestant in Contestant::ALL {
        sites.check(contestant)?;
    }
    let count = streams::rounds(options);
    let mut rounds = Vec::new();
    for round in 1..=count {
        let mut runs = Round::new();
        for case in Case::ALL {
            progress(&format!("{}, round {round} of {count}", case.name()));
            for contestant in
                Contestant::ALL.into_iter().filter(|contestant| contestant.takes_part(case))
            {
                runs.push((case, contestant, one(options, sites, wrk, (case, contestant))?));
            }
        }
        rounds.push(runs);
    }
    Ok(rounds)
}

fn one(
    options: &Options,
    sites: &Sites,
    wrk: &Wrk,
    (case, contestant): (Case, Contestant),
) -> Result<Run> {
    let place = sites.place(contestant);
    let load = Load {
        url: &format!("http://{}{}", place.address, case.path()),
        connections: case.connections(),
        header: case.header(),
        seconds: streams::seconds(options.quick),
    };
    let before = cpu_time(&place.processes)?;
    let seen = wrk.run(place.client, &load)?;
    let used = cpu_time(&place.processes)?.saturating_sub(before);
    let count = if case == Case::Bulk { seen.bytes / MEGABYTE } else { seen.requests };
    Ok(Run {
        rate: count / seen.seconds,
        p50: seen.p50,
        p99: seen.p99,
        cpu: used.as_secs_f64() * 1e6 / count,
        errors: seen.errors,
    })
}

fn measurements(rounds: &[Round]) -> Vec<Measurement> {
    let kinds: [(&str, &[Contestant]); 2] = [
        (
            "tcp",
            &[
                Contestant::Plain,
                Contestant::HaproxyTcp,
                Contestant::NginxTcp,
                Contestant::TcpBehindXdp,
                Contestant::TcpTransparent,
                Contestant::PlainAtXdp,
            ],
        ),
        (
            "http",
            &[
                Contestant::Filter,
                Contestant::HaproxyHttp,
                Contestant::NginxHttp,
                Contestant::HttpBehindXdp,
                Contestant::HttpTransparent,
                Contestant::FilterAtXdp,
            ],
        ),
    ];
    let mut measurements = Vec::new();
    for (kind, taking_part) in kinds {
        for case in Case::ALL {
            measurements.extend(of_case(rounds, kind, case, taking_part));
        }
    }
    let kept = [Contestant::Keeping, Contestant::HaproxyHttp];
    let (rate_unit, cpu_unit) = Case::Connections.units();
    let pair = |what: &str, unit, better, goal| Pair {
        metric: format!("proxy.http.connections{}{what}", Contestant::Keeping.suffix()),
        unit,
        baseline_name: Contestant::HaproxyHttp.name(),
        baseline: 1,
        better,
        goal,
    };
    let rates = values(rounds, Case::Connections, &kept, |run| run.rate);
    let cpu = values(rounds, Case::Connections, &kept, |run| run.cpu);
    measurements.push(rates.compare(pair("", rate_unit, Better::Higher, Some(GOAL_RATE))));
    measurements.push(cpu.compare(pair(".cpu", cpu_unit, Better::Lower, None)));
    let both =
        values(rounds, Case::Requests, &[Contestant::Filter, Contestant::Plain], |run| run.rate);
    measurements.push(both.compare(Pair {
        metric: "proxy.filter.cost".to_owned(),
        unit: "requests/s",
        baseline_name: Contestant::Plain.name(),
        baseline: 1,
        better: Better::Higher,
        goal: Some(GOAL_FILTER),
    }));
    measurements
}

/// Compares a rate with each of the others, and the other values with the first, HAProxy.
fn of_case(
    rounds: &[Round],
    kind: &str,
    case: Case,
    taking_part: &[Contestant],
) -> Vec<Measurement> {
    let (rate_unit, cpu_unit) = case.units();
    let pair = |what: &str, unit, baseline: usize, better, goal| Pair {
        metric: format!("proxy.{kind}.{}{what}", case.name()),
        unit,
        baseline_name: taking_part[baseline].name(),
        baseline,
        better,
        goal,
    };
    let rates = values(rounds, case, taking_part, |run| run.rate);
    let cpu = values(rounds, case, taking_part, |run| run.cpu);
    let mut measurements =
        vec![rates.compare(pair("", rate_unit, 1, Better::Higher, Some(GOAL_RATE)))];
    for (baseline, contestant) in taking_part.iter().enumerate().skip(2) {
        let pair = pair(contestant.suffix(), rate_unit, baseline, Better::Higher, None);
        measurements.push(rates.compare(pair));
    }
    if case == Case::Requests {
        let p50 = values(rounds, case, taking_part, |run| run.p50);
        let p99 = values(rounds, case, taking_part, |run| run.p99);
        measurements.push(p50.compare(pair(".p50", "us", 1, Better::Lower, None)));
        measurements.push(p99.compare(pair(".p99", "us", 1, Better::Lower, None)));
    }
    measurements.push(cpu.compare(pair(".cpu", cpu_unit, 1, Better::Lower, None)));
    measurements
}

/// Returns a value of each contestant, round by round.
fn values(rounds: &[Round], case: Case, taking_part: &[Contestant], of: fn(&Run) -> f64) -> Rounds {
    let mut values = Rounds::default();
    for round in rounds {
        let found = |contestant: &Contestant| {
            round
                .iter()
                .find(|run| run.0 == case && run.1 == *contestant)
                .map_or(f64::NAN, |run| of(&run.2))
        };
        values.add(taking_part.iter().map(found).collect());
    }
    values
}

/// Returns a sentence for each contestant with failed connections.
fn failures(rounds: &[Round]) -> Vec<String> {
    let of = |case: Case, contestant: Contestant| -> f64 {
        let runs = rounds.iter().flatten().filter(|run| run.0 == case && run.1 == contestant);
        runs.map(|run| run.2.errors).sum()
    };
    let pairs =
        Case::ALL.into_iter().flat_map(|case| Contestant::ALL.map(|contestant| (case, contestant)));
    pairs
        .filter(|(case, contestant)| of(*case, *contestant) > 0.0)
        .map(|(case, contestant)| {
            format!(
                "{}, {}: {} connections failed",
                case.name(),
                contestant.name(),
                of(case, contestant)
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a round in which each contestant's rate is its position in the list.
    fn round() -> Round {
        let runs = Case::ALL
            .into_iter()
            .flat_map(|case| Contestant::ALL.map(|contestant| (case, contestant)));
        runs.map(|(case, contestant)| {
            let rate = (contestant as u32 + 1) as f64;
            let errors =
                f64::from(u8::from(contestant == Contestant::NginxTcp && case == Case::Bulk));
            (case, contestant, Run { rate, p50: 1.0, p99: 2.0, cpu: 1.0 / rate, errors })
        })
        .collect()
    }

    #[test]
    fn each_variant_is_compared_with_the_baseline_of_the_same_function() {
        let all = measurements(&[round(), round()]);
        let of = |metric: &str| all.iter().find(|it| it.metric == metric).unwrap();
        let plain = of("proxy.tcp.requests");
        assert_eq!((plain.ours, plain.baseline, plain.goal), (1.0, 2.0, Some(GOAL_RATE)));
        assert_eq!(plain.baseline_name, "haproxy_tcp");
        let xdp = of("proxy.tcp.bulk.behind_xdp");
        assert_eq!((xdp.baseline, xdp.goal, xdp.unit), (4.0, None, "MB/s"));
        let filter = of("proxy.http.connections.nginx");
        assert_eq!((filter.ours, filter.baseline), (7.0, 9.0));
        let transparent = of("proxy.http.connections.transparent");
        assert_eq!((transparent.ours, transparent.baseline), (7.0, 11.0));
        let at_xdp = of("proxy.tcp.bulk.at_xdp");
        assert_eq!((at_xdp.ours, at_xdp.baseline, at_xdp.goal), (1.0, 6.0, None));
        let kept = of("proxy.http.connections.kept");
        assert_eq!((kept.ours, kept.baseline, kept.goal), (13.0, 8.0, Some(GOAL_RATE)));
        let cost = of("proxy.filter.cost");
        assert_eq!((cost.ratio, cost.goal), (7.0, Some(GOAL_FILTER)));
        assert_eq!(of("proxy.http.requests.cpu").better, Better::Lower);
        assert!(all.iter().all(|it| it.rounds == 2 && it.ratio.is_finite()));
    }

    #[test]
    fn connections_that_fail_are_told() {
        assert_eq!(failures(&[round(), round()]), ["bulk, nginx_stream: 2 connections failed"]);
    }
}
