//! `tam bench compress`: responses encoded in transit, against nginx as a proxy with gzip.
//!
//! ```text
//! wrk ─▶ s0 ═ n0 [ node: compress, gzip ]         n1 ═ d0 ─▶ origin: nginx, plain files
//! wrk ─▶ s0 ═ n0 [ nginx: gzip, levels 1 to 9 ]   n1 ═ d0 ─▶ origin
//! CPU 0                  CPU 1                         CPU 0
//! ```
//!
//! nginx runs at the coding level whose bodies are as short as the node's. Details in
//! docs/benchmarks/compress.md.

pub(crate) mod text;

use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use flate2::read::MultiGzDecoder;

use crate::line::{self, Line, NODE_CPU};
use crate::measurement::{Better, Measured, Measurement};
use crate::rounds::{Pair, Rounds, median};
use crate::streams::process::{NGINX, Process, cpu_time};
use crate::streams::web::{Answer, Client};
use crate::streams::wrk::{Load, Seen, Wrk};
use crate::streams::{self, ORIGIN, PROXY, nginx, within};
use crate::{Options, Service, Subject};

/// Goal: the node's requests per second divided by nginx's.
const GOAL_REQUESTS: f64 = 1.3;
/// Factor by which nginx's bodies may be longer than the node's.
const LENGTH_SHARE: f64 = 1.01;
const NODE: &str = "bench-compress";
const NGINX_NAME: &str = "nginx";
const ACCEPTS: &str = "Accept-Encoding: gzip";
/// The port of nginx's level 1; the others follow.
const PORT_FIRST: u16 = 8101;
const LEVELS: std::ops::RangeInclusive<u16> = 1..=9;
/// Bodies of the node sampled under load, since its coding level may depend on load.
const SAMPLES: usize = 5;
/// Requests whose median time to the first byte counts.
const FIRST_BYTES: usize = 100;
const FIRST_BYTES_QUICK: usize = 20;
const MEGABYTE: f64 = 1e6;

/// File of the origin.
struct Page {
    name: &'static str,
    path: &'static str,
    body: Vec<u8>,
    connections: u32,
}

/// Node and nginx, ready to be measured.
struct Sites {
    ours: Line,
    others: Line,
    nginx: Process,
    /// Processes of the node: daemon and cell.
    node: Vec<u32>,
    _origins: [Process; 2],
}

/// Measured server: its line, its address, and the processes that work for it.
struct Endpoint<'a> {
    line: &'a Line,
    address: String,
    processes: Vec<u32>,
}

/// Result of a run.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    requests: f64,
    /// Microseconds of processor time per MB of plain text.
    cpu: f64,
    /// Time to the first byte, in microseconds.
    first_byte: f64,
}

pub(crate) fn run(
    options: &Options,
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Measured> {
    line::needs_two_cpus()?;
    let version = NGINX.version("-v")?;
    let folder = streams::folder()?;
    let wrk = Wrk::new(folder.path())?;
    let pages = pages();
    progress("making two lines of namespaces, with an origin each");
    let sites = Sites::new(folder.path(), &pages, subject)?;
    let measured = measure(options, &sites, &pages, &wrk, progress);
    subject.stop(NODE)?;
    let mut measured = measured?;
    measured.notes.insert(0, version);
    Ok(measured)
}

fn pages() -> [Page; 2] {
    let (html, long) = (text::html(25_000), text::plain(1_000_000));
    [
        Page { name: "25k", path: "/25k.html", body: html, connections: 64 },
        Page { name: "1m", path: "/1m.html", body: long, connections: 16 },
    ]
}

impl Sites {
    fn new(folder: &Path, pages: &[Page], subject: &mut dyn Subject) -> Result<Self> {
        let files = within(folder, "files")?;
        for page in pages {
            std::fs::write(files.join(&page.path[1..]), &page.body).context("writing a file")?;
        }
        let (ours, others) = (Line::of_tcp("compress")?, Line::of_tcp("compress-nginx")?);
        let origins = [
            nginx::origin(&ours, &within(folder, "ours")?, &files)?,
            nginx::origin(&others, &within(folder, "others")?, &files)?,
        ];
        let nginx = proxy(&others, folder)?;
        subject.start(&streams::plan(&ours, NODE, Service::Compress), 0)?;
        let node = streams::node(subject, NODE)?;
        Ok(Self { ours, others, nginx, node, _origins: origins })
    }

    fn of_ours(&self) -> Endpoint<'_> {
        Endpoint { line: &self.ours, address: ORIGIN.to_owned(), processes: self.node.clone() }
    }

    fn of_nginx(&self, level: u16) -> Endpoint<'_> {
        let address = format!("{PROXY}:{}", PORT_FIRST + level - 1);
        Endpoint { line: &self.others, address, processes: self.nginx.pids() }
    }
}

impl Endpoint<'_> {
    fn connect(&self) -> Result<Client> {
        Client::connect(&self.line.source, self.address.parse()?)
    }

    /// Requests a page in gzip and checks every byte of it.
    fn coded(&self, page: &Page) -> Result<Answer> {
        let answer = self.connect()?.ask(page.path, true)?;
        ensure!(answer.is_gzip, "{} came from {} without gzip", page.path, self.address);
        let mut plain = Vec::new();
        // A body that is too long is not read to its end.
        let limit = page.body.len() as u64 + 1;
        MultiGzDecoder::new(&answer.body[..]).take(limit).read_to_end(&mut plain)?;
        ensure!(plain == page.body, "{} came from {} as other bytes", page.path, self.address);
        Ok(answer)
    }
}

/// Starts nginx with one server for each level, since only nginx defines its levels.
fn proxy(line: &Line, folder: &Path) -> Result<Process> {
    let servers: String = LEVELS
        .map(|level| {
            format!(
                "server {{ listen {PROXY}:{} backlog=4096; gzip_comp_level {level}; \
                 location / {{ proxy_pass http://u; proxy_http_version 1.1; \
                 proxy_set_header Connection \"\"; proxy_max_temp_file_size 0; }} }}\n",
                PORT_FIRST + level - 1
            )
        })
        .collect();
    let http = format!(
        "tcp_nodelay on; keepalive_requests 100000000; gzip on; gzip_proxied any; gzip_vary on; \
         upstream u {{ server {ORIGIN}; keepalive 128; keepalive_requests 100000000; }}\n{servers}"
    );
    let listens_at = format!("{PROXY}:{PORT_FIRST}").parse()?;
    let text = nginx::configuration("", &http);
    nginx::start(&text, (&line.node, NODE_CPU), folder, "nginx", listens_at)
}

fn measure(
    options: &Options,
    sites: &Sites,
    pages: &[Page],
    wrk: &Wrk,
    progress: &mut dyn FnMut(&str),
) -> Result<Measured> {
    let mut measured = Measured::default();
    let mut levels = Vec::new();
    for page in pages {
        progress(&format!("{}: how short its bodies are under load", page.name));
        let lengths = under_load(sites, page, wrk)?;
        let ours = median(&lengths);
        let theirs: Vec<(u16, f64)> = LEVELS
            .map(|level| Ok((level, sites.of_nginx(level).coded(page)?.body.len() as f64)))
            .collect::<Result<_>>()?;
        let (level, length) = alike(ours, &theirs).context("nginx has no level")?;
        measured.notes.push(note(page, &lengths, (level, length)));
        levels.push(level);
    }
    let count = streams::rounds(options);
    let mut rounds: Vec<Vec<[Run; 2]>> = pages.iter().map(|_| Vec::new()).collect();
    for round in 1..=count {
        for ((page, level), runs) in pages.iter().zip(&levels).zip(&mut rounds) {
            progress(&format!("{}, round {round} of {count}", page.name));
            let ours = one(options, &sites.of_ours(), page, wrk)?;
            runs.push([ours, one(options, &sites.of_nginx(*level), page, wrk)?]);
        }
    }
    for (page, runs) in pages.iter().zip(&rounds) {
        measured.measurements.extend(measurements(page.name, runs));
    }
    Ok(measured)
}

/// Returns body lengths of the node while it serves as many requests as it can.
fn under_load(sites: &Sites, page: &Page, wrk: &Wrk) -> Result<Vec<f64>> {
    let place = sites.of_ours();
    std::thread::scope(|scope| {
        let load = scope.spawn(|| loaded(&place, page, wrk, 1));
        // Sampled in the middle of the load.
        std::thread::sleep(Duration::from_millis(300));
        let lengths = (0..SAMPLES).map(|_| Ok(place.coded(page)?.body.len() as f64)).collect();
        load.join().map_err(|_| anyhow::anyhow!("the load ended"))??;
        lengths
    })
}

/// Returns nginx's lowest level whose bodies are as short as the node's, with their length; its
/// shortest if none is.
fn alike(ours: f64, theirs: &[(u16, f64)]) -> Option<(u16, f64)> {
    let short = theirs.iter().find(|(_, length)| *length <= ours * LENGTH_SHARE);
    short.or_else(|| theirs.iter().min_by(|a, b| a.1.total_cmp(&b.1))).copied()
}

fn note(page: &Page, ours: &[f64], (level, theirs): (u16, f64)) -> String {
    let (plain, length) = (page.body.len() as f64, median(ours));
    let (shortest, longest) =
        ours.iter().fold((f64::INFINITY, 0.0), |(low, high), it| (it.min(low), it.max(high)));
    let beyond = if theirs > length * LENGTH_SHARE { ", its shortest" } else { "" };
    format!(
        "{}: {plain} bytes; ours {length} under load ({shortest} to {longest}), {:.2} times \
         shorter; nginx at gzip_comp_level {level}{beyond}: {theirs}, {:.2} times",
        page.name,
        plain / length,
        plain / theirs
    )
}

fn loaded(place: &Endpoint<'_>, page: &Page, wrk: &Wrk, seconds: u64) -> Result<Seen> {
    let url = format!("http://{}{}", place.address, page.path);
    let load = Load { url: &url, connections: page.connections, header: Some(ACCEPTS), seconds };
    let seen = wrk.run(&place.line.source, &load)?;
    let each = seen.bytes / seen.requests;
    ensure!(each * 2.0 < page.body.len() as f64, "{each} bytes each came from {url}: not in gzip");
    Ok(seen)
}

fn one(options: &Options, place: &Endpoint<'_>, page: &Page, wrk: &Wrk) -> Result<Run> {
    let before = cpu_time(&place.processes)?;
    let seen = loaded(place, page, wrk, streams::seconds(options.quick))?;
    let used = cpu_time(&place.processes)?.saturating_sub(before);
    let mut client = place.connect()?;
    let count = if options.quick { FIRST_BYTES_QUICK } else { FIRST_BYTES };
    // The first answer comes over a connection that is not there yet on the other side.
    client.ask(page.path, true)?;
    let times = (0..count)
        .map(|_| Ok(client.ask(page.path, true)?.first_byte.as_secs_f64() * 1e6))
        .collect::<Result<Vec<_>>>()?;
    let megabytes = seen.requests * page.body.len() as f64 / MEGABYTE;
    Ok(Run {
        requests: seen.requests / seen.seconds,
        cpu: used.as_secs_f64() * 1e6 / megabytes,
        first_byte: median(&times),
    })
}

fn measurements(page: &str, runs: &[[Run; 2]]) -> [Measurement; 3] {
    let compare = |what: &str, unit, better, goal, of: fn(&Run) -> f64| {
        let mut rounds = Rounds::default();
        runs.iter().for_each(|round| rounds.add(round.iter().map(of).collect()));
        let metric = format!("compress.{page}.{what}");
        rounds.compare(Pair { metric, unit, baseline_name: NGINX_NAME, baseline: 1, better, goal })
    };
    [
        compare("requests", "requests/s", Better::Higher, Some(GOAL_REQUESTS), |run| run.requests),
        compare("cpu", "us/MB", Better::Lower, None, |run| run.cpu),
        compare("first_byte", "us", Better::Lower, None, |run| run.first_byte),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nginx_has_the_cheapest_level_that_is_as_short() {
        let theirs = [(1, 1200.0), (2, 1009.0), (3, 950.0)];
        assert_eq!(alike(1000.0, &theirs), Some((2, 1009.0)));
        assert_eq!(alike(990.0, &theirs), Some((3, 950.0)));
        assert_eq!(alike(900.0, &theirs), Some((3, 950.0)), "none is: its shortest");
        assert_eq!(alike(900.0, &[]), None);
    }

    #[test]
    fn values_are_compared_with_nginx_of_the_same_round() {
        let run = |factor: f64| Run { requests: 100.0 * factor, cpu: 5.0, first_byte: 7.0 };
        let [requests, cpu, first_byte] =
            measurements("25k", &[[run(1.4), run(1.0)], [run(0.7), run(0.5)]]);
        assert_eq!(requests.metric, "compress.25k.requests");
        assert!((requests.ratio - 1.4).abs() < 1e-9 && requests.reached() == Some(true));
        assert_eq!((cpu.ratio, first_byte.ours, first_byte.goal), (1.0, 7.0, None));
    }
}
