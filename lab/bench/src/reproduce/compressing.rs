//! AMnet, "On the Performance of Active Networking Services", figure 5: the time to load files of
//! seven sizes through a node that compresses them, over links of 10 and 100 Mbit/s.
//!
//! ```text
//! a client ─▶ s0 ═ n0, 10 or 100 Mbit/s (TBF) [ compress ] n1 ═ d0 ─▶ nginx, plain files
//!                 └ to 10.201.0.1: the service's; to 10.201.0.2: forwarded
//! ```
//!
//! As in the paper, the time is from the first SYN to the last FIN: each file has its own
//! connection. The server's address selects whether the service handles the connection, so that
//! both variants run in turns.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use flate2::read::MultiGzDecoder;
use namespaces::netns;

use super::{Compared, Drawn, Lab, Panel, Point, Quantity};
use crate::compress::text;
use crate::line::{PORT_IN, limit};
use crate::rounds::median;
use crate::streams::{self, nginx, within};
use crate::{Plan, Service};

/// Sizes of the pages, in bytes; the paper names very small ones, 25 KB and very large ones.
const LENGTHS: [usize; 7] = [500, 2_000, 8_000, 25_000, 100_000, 400_000, 1_600_000];
/// Bytes of an incompressible file whose content type suggests a compressible one.
const NOISE_LENGTH: usize = 100_000;
/// Rates of the link, in Mbit/s.
const RATES: [u32; 2] = [10, 100];
const NODE: &str = "bench-compressing";
const SERVED: &str = "10.201.0.1:80";
const PLAIN: &str = "10.201.0.2:80";
const RULE: &str = "dst 10.201.0.1 proto tcp dport 80";
const LOAD_TIME_MAX: Duration = Duration::from_secs(20);
/// Gains of the paper at 10 Mbit/s, in percent: 25 KB, and very large files; a small file lost.
const PAPER_GAIN: f64 = 25.0;
const PAPER_GAIN_LARGE: f64 = 40.0;
const PAPER_LOSS: f64 = 8.0;

/// File of the server.
struct Page {
    path: String,
    body: Vec<u8>,
    is_noise: bool,
}

/// Load times of one file over one link in microseconds, with the service and without.
struct Times {
    rate: u32,
    length: usize,
    is_noise: bool,
    with: f64,
    without: f64,
}

impl Times {
    /// Returns the time that the service saves, in percent.
    fn gain(&self) -> f64 {
        (1.0 - self.with / self.without) * 100.0
    }

    fn points(&self) -> [Point; 2] {
        let kind = if self.is_noise { ", no text" } else { "" };
        let point = |way: &str, time: f64| Point {
            curve: format!("{} Mbit/s, {way}{kind}", self.rate),
            length: self.length,
            time_us: Some(time),
            ..Point::default()
        };
        [point("compressed", self.with), point("plain", self.without)]
    }
}

/// Measures figure 5.
pub(super) fn compressed(lab: &mut Lab<'_>) -> Result<Drawn> {
    lab.line.carry_tcp()?;
    let folder = streams::folder()?;
    let files = within(folder.path(), "files")?;
    let pages = pages();
    for page in &pages {
        std::fs::write(files.join(&page.path[1..]), &page.body).context("writing a file")?;
    }
    let _origin = nginx::origin(&lab.line, folder.path(), &files)?;
    let plan = Plan { rule: Some(RULE.to_owned()), ..lab.line.plan(NODE, Some(Service::Compress)) };
    (lab.progress)("starting a node with compress");
    let times = lab.with_node(&plan, |lab| {
        let mut times = Vec::new();
        for rate in RATES {
            limit(&lab.line.node, PORT_IN, Some(rate))?;
            for page in &pages {
                (lab.progress)(&format!("{rate} Mbit/s, {} bytes", page.body.len()));
                times.push(load_both(lab, page, rate)?);
            }
        }
        Ok(times)
    })?;
    Ok(drawn(&times))
}

fn load_both(lab: &Lab<'_>, page: &Page, rate: u32) -> Result<Times> {
    let count = if lab.options.quick { 3 } else { 4 * lab.options.rounds() };
    let (mut with, mut without) = (Vec::new(), Vec::new());
    // The first of each is not counted: caches are empty.
    for at in 0..=count {
        let served = load(lab, page, SERVED)?;
        let plain = load(lab, page, PLAIN)?;
        if at > 0 {
            with.push(served);
            without.push(plain);
        }
    }
    Ok(Times {
        rate,
        length: page.body.len(),
        is_noise: page.is_noise,
        with: median(&with),
        without: median(&without),
    })
}

/// Returns the time from the first SYN to the last FIN, in microseconds.
fn load(lab: &Lab<'_>, page: &Page, from: &str) -> Result<f64> {
    let at: SocketAddr = from.parse()?;
    let begun = Instant::now();
    let mut stream = netns::in_namespace(&lab.line.source, || TcpStream::connect(at))?
        .with_context(|| format!("connecting to {at}"))?;
    stream.set_read_timeout(Some(LOAD_TIME_MAX))?;
    write!(stream, "GET {} HTTP/1.0\r\nHost: {at}\r\nAccept-Encoding: gzip\r\n\r\n", page.path)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).with_context(|| format!("loading {}", page.path))?;
    let took = begun.elapsed();
    ensure!(body(&answer)? == page.body, "{} came from {from} as other bytes", page.path);
    Ok(took.as_secs_f64() * 1e6)
}

fn pages() -> Vec<Page> {
    let page = |length: usize| Page {
        path: format!("/{length}.html"),
        body: text::html(length),
        is_noise: false,
    };
    let mut pages: Vec<Page> = LENGTHS.into_iter().map(page).collect();
    pages.push(Page { path: "/noise.html".to_owned(), body: noise(), is_noise: true });
    pages
}

/// Returns incompressible bytes, the same each time (xorshift64).
fn noise() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..NOISE_LENGTH).map(next).collect()
}

/// Returns the decoded body of a response.
pub(super) fn body(answer: &[u8]) -> Result<Vec<u8>> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let (head, body) = answer.split_at(end.context("an answer without a head")? + 4);
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    if !head.contains(" 200 ") {
        bail!("the answer is {head}");
    }
    if !head.contains("content-encoding: gzip") {
        return Ok(body.to_vec());
    }
    let mut plain = Vec::new();
    MultiGzDecoder::new(body).read_to_end(&mut plain).context("decoding an answer")?;
    Ok(plain)
}

fn drawn(times: &[Times]) -> Drawn {
    let gains = |rate: u32, wanted: &dyn Fn(&Times) -> bool| -> Vec<f64> {
        let of_rate = times.iter().filter(|one| one.rate == rate && wanted(one));
        of_rate.map(Times::gain).collect()
    };
    let at = |rate: u32, length: usize| {
        gains(rate, &|one: &Times| one.length == length && !one.is_noise).first().copied()
    };
    let least = |values: &[f64]| values.iter().copied().reduce(f64::min);
    let hard = gains(RATES[0], &|one: &Times| one.is_noise || one.length < 1_000);
    let saved = |what: String, paper, ours| Compared { what, unit: "% of the time", paper, ours };
    let compared = vec![
        saved("25 KB at 10 Mbit/s, saved".to_owned(), PAPER_GAIN, at(RATES[0], 25_000)),
        saved(
            "the largest at 10 Mbit/s, saved".to_owned(),
            PAPER_GAIN_LARGE,
            at(RATES[0], LENGTHS[LENGTHS.len() - 1]),
        ),
        saved(
            "tiny, or no text, at 10 Mbit/s: lost at most".to_owned(),
            PAPER_LOSS,
            least(&hard).map(|gain| (-gain).max(0.0)),
        ),
    ];
    let mut notes: Vec<String> = RATES
        .map(|rate| {
            let values: Vec<String> = times
                .iter()
                .filter(|one| one.rate == rate)
                .map(|one| {
                    let kind = if one.is_noise { " of no text" } else { "" };
                    format!("{} bytes{kind} {:+.1} %", one.length, one.gain())
                })
                .collect();
            format!("saved at {rate} Mbit/s: {}", values.join(", "))
        })
        .into();
    notes.push("the paper: at 100 Mbit/s the transmission is always delayed".to_owned());
    Drawn {
        points: times.iter().flat_map(Times::points).collect(),
        compared,
        columns: &[Quantity::Length, Quantity::Time],
        panels: vec![Panel::logarithmic(Quantity::Length, Quantity::Time)],
        notes,
        references: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;

    #[test]
    fn an_answer_is_decoded() {
        let mut coder = GzEncoder::new(Vec::new(), Compression::fast());
        coder.write_all(b"a page").unwrap();
        let head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n";
        let answer = [&head[..], &coder.finish().unwrap()].concat();
        assert_eq!(body(&answer).unwrap(), b"a page");
        assert_eq!(body(b"HTTP/1.1 200 OK\r\n\r\nplain").unwrap(), b"plain");
        assert!(body(b"HTTP/1.1 404 Not Found\r\n\r\n").is_err());
        assert!(body(b"HTTP/1.1 200 OK\r\n").is_err());
    }

    #[test]
    fn savings_are_a_percentage_of_the_uncompressed_time() {
        let times =
            |rate, length, is_noise, with| Times { rate, length, is_noise, with, without: 100.0 };
        let drawn = drawn(&[
            times(10, 500, false, 101.0),
            times(10, 25_000, false, 60.0),
            times(10, 1_600_000, false, 40.0),
            times(10, NOISE_LENGTH, true, 102.0),
        ]);
        let ours: Vec<f64> = drawn.compared.iter().map(|one| one.ours.unwrap().round()).collect();
        assert_eq!(ours, [40.0, 60.0, 2.0]);
        assert_eq!(drawn.points.len(), 8);
    }
}
