//! Test machine that loads one page of each of many servers, some hundred at once, in one thread.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags};

use crate::streams::dial::{For, Watched, ask, dial};

/// Longest time between two checks of the clock.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// New connections per second, so that fast servers finish meanwhile and slow ones add up to
/// hundreds.
const ARRIVALS: f64 = 200.0;
/// Time after which a transfer has failed: four times the slowest server's.
const TIME_MAX: Duration = Duration::from_secs(80);
/// Interval of `each_second`.
const LOOKED: Duration = Duration::from_secs(1);
/// Longest response: more than the longest page with its head.
const ANSWER_MAX: usize = 1 << 20;
/// Bytes of a read.
const READ: usize = 65_536;

/// Result of one transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Visit {
    /// Time from the first SYN to the arrival of the last FIN.
    pub(super) time: Duration,
    /// Response as received, or the error.
    pub(super) answer: Result<Vec<u8>, String>,
}

/// Results of all transfers.
#[derive(Clone, Debug)]
pub(super) struct Visited {
    /// Transfers in the order of the addresses.
    pub(super) visits: Vec<Visit>,
    /// Most simultaneous connections.
    pub(super) at_once: usize,
    pub(super) took: Duration,
    /// Longest time between two polls.
    pub(super) pause: Duration,
}

struct Loading {
    socket: OwnedFd,
    begun: Instant,
    is_connected: bool,
    answer: Vec<u8>,
}

/// Result of a read.
enum Read {
    Nothing,
    Connected,
    Over(Result<(), String>),
}

/// Loads all pages from the namespace of the calling thread; `each_second` gets the number of
/// finished and of running transfers.
pub(super) fn visit(
    all: &[SocketAddr],
    at_once_max: usize,
    each_second: &mut dyn FnMut(usize, usize) -> Result<()>,
) -> Result<Visited> {
    let (begun, mut looked, mut at_once) = (Instant::now(), Instant::now(), 0);
    let mut machine = Machine::new(all)?;
    while machine.done.len() < all.len() {
        let due = (begun.elapsed().as_secs_f64() * ARRIVALS) as usize;
        machine.begin(due, at_once_max)?;
        let connected = machine.connected();
        at_once = connected.max(at_once);
        if looked.elapsed() >= LOOKED {
            looked = Instant::now();
            each_second(machine.done.len(), connected)?;
        }
        machine.hear()?;
        machine.give_up();
    }
    let (took, pause) = (begun.elapsed(), machine.sockets.pause());
    Ok(Visited { visits: machine.done.into_values().collect(), at_once, took, pause })
}

/// Test machine. Transfers have the numbers of their addresses.
struct Machine<'a> {
    all: &'a [SocketAddr],
    sockets: Watched,
    /// Number of the next address to visit.
    next: usize,
    loading: BTreeMap<u64, Loading>,
    done: BTreeMap<u64, Visit>,
    buffer: Vec<u8>,
}

impl<'a> Machine<'a> {
    fn new(all: &'a [SocketAddr]) -> Result<Self> {
        let (loading, done) = (BTreeMap::new(), BTreeMap::new());
        let (sockets, buffer) = (Watched::new()?, vec![0; READ]);
        Ok(Self { all, sockets, next: 0, loading, done, buffer })
    }

    /// Starts the transfers that are due, up to `at_once_max` at once.
    fn begin(&mut self, due: usize, at_once_max: usize) -> Result<()> {
        while self.next <= due && self.loading.len() < at_once_max {
            let Some(at) = self.all.get(self.next) else { break };
            let (begun, socket) = (Instant::now(), dial(*at)?);
            let number = self.next as u64;
            self.sockets.add(&socket, number, For::Writing)?;
            let new = Loading { socket, begun, is_connected: false, answer: Vec::new() };
            self.loading.insert(number, new);
            self.next += 1;
        }
        Ok(())
    }

    fn connected(&self) -> usize {
        self.loading.values().filter(|one| one.is_connected).count()
    }

    fn hear(&mut self) -> Result<()> {
        for number in self.sockets.ready(POLL_INTERVAL)? {
            let Some(one) = self.loading.get_mut(&number) else { continue };
            match one.advance(&mut self.buffer) {
                Read::Nothing => {}
                Read::Connected => self.sockets.change(&one.socket, number, For::Reading)?,
                Read::Over(over) => self.finish(number, over),
            }
        }
        Ok(())
    }

    /// Fails the transfers that have lasted too long.
    fn give_up(&mut self) {
        let is_late = |(_, one): &(&u64, &Loading)| one.begun.elapsed() > TIME_MAX;
        let late: Vec<u64> = self.loading.iter().filter(is_late).map(|(it, _)| *it).collect();
        for number in late {
            self.finish(number, Err(format!("it was not over after {} s", TIME_MAX.as_secs())));
        }
    }

    fn finish(&mut self, number: u64, over: Result<(), String>) {
        if let Some(one) = self.loading.remove(&number) {
            let answer = over.map(|()| one.answer);
            self.done.insert(number, Visit { time: one.begun.elapsed(), answer });
        }
    }
}

impl Loading {
    /// Sends the request once connected, and reads available data.
    fn advance(&mut self, buffer: &mut [u8]) -> Read {
        if !self.is_connected {
            self.is_connected = true;
            let request = "GET /index.html HTTP/1.0\r\nHost: site\r\nAccept-Encoding: gzip\r\n\r\n";
            return match ask(&self.socket, request) {
                Ok(()) => Read::Connected,
                Err(error) => Read::Over(Err(format!("{error:#}"))),
            };
        }
        match net::recv(&self.socket, &mut *buffer, RecvFlags::empty()) {
            Ok((0, _)) => Read::Over(Ok(())),
            Ok((length, _)) => {
                self.answer.extend_from_slice(buffer.get(..length).unwrap_or_default());
                match self.answer.len() {
                    0..=ANSWER_MAX => Read::Nothing,
                    _ => Read::Over(Err(format!("it brings more than {ANSWER_MAX} bytes"))),
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => Read::Nothing,
            Err(error) => {
                Read::Over(Err(format!("cut off after {} bytes: {error}", self.answer.len())))
            }
        }
    }
}
