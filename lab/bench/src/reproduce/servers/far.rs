//! Thread that acts as all web servers: a request to an address gets that server's page, at its
//! rate.
//!
//! A slow server's bytes come as over a slow link, a whole segment at a time. The round trip is
//! added elsewhere (`distance`).

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use namespaces::netns::{self, NetNs};

use super::sites::{self, Site};
use crate::streams::LOAD_CPU;
use crate::streams::dial::{For, Watched};
use crate::streams::worker::Worker;

/// Interval at which due segments are checked: a seventh of the fastest server's interval.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Payload of a frame of 1,514 bytes, after TCP's timestamps.
const SEGMENT: usize = 1448;
/// Longest head of a request, in bytes.
const HEAD_MAX: usize = 4096;
/// Number of the listening socket among the watched ones.
const LISTENER: u64 = 0;

/// Serves until it is dropped.
pub(super) fn start(namespace: &NetNs, all: Arc<[Site]>) -> Result<Worker> {
    let listener = netns::in_namespace(namespace, || TcpListener::bind("0.0.0.0:80"))?
        .context("opening the web servers' socket")?;
    listener.set_nonblocking(true)?;
    let sockets = Watched::new()?;
    sockets.add(&listener, LISTENER, For::Reading)?;
    let mut servers =
        Servers { listener, sockets, all, asking: BTreeMap::new(), served: Vec::new(), next: 1 };
    Ok(Worker::start(LOAD_CPU, move || servers.turn()))
}

struct Servers {
    listener: TcpListener,
    sockets: Watched,
    all: Arc<[Site]>,
    asking: BTreeMap<u64, Asking>,
    served: Vec<Served>,
    next: u64,
}

/// Client whose request has not arrived yet.
struct Asking {
    stream: TcpStream,
    site: usize,
    head: Vec<u8>,
}

/// Client that is being sent its response.
struct Served {
    stream: TcpStream,
    site: usize,
    begun: Instant,
    answer: Vec<u8>,
    sent: usize,
}

impl Servers {
    fn turn(&mut self) -> Result<()> {
        for number in self.sockets.ready(POLL_INTERVAL)? {
            match number {
                LISTENER => self.admit()?,
                _ => self.read_request(number)?,
            }
        }
        let (now, all) = (Instant::now(), &self.all);
        self.served.retain_mut(|served| {
            all.get(served.site).is_some_and(|site| served.send_due(now, site))
        });
        Ok(())
    }

    fn admit(&mut self) -> Result<()> {
        loop {
            let (stream, _) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("taking a connection to a web server"),
            };
            let IpAddr::V4(address) = stream.local_addr()?.ip() else { continue };
            let Some(site) = sites::number(address) else { continue };
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            self.sockets.add(&stream, self.next, For::Reading)?;
            self.asking.insert(self.next, Asking { stream, site, head: Vec::new() });
            self.next += 1;
        }
    }

    /// Reads a request, or a part of one. A client that sends anything else, or leaves, is dropped.
    fn read_request(&mut self, number: u64) -> Result<()> {
        let Some(asking) = self.asking.get_mut(&number) else { return Ok(()) };
        let mut buffer = [0; HEAD_MAX];
        let is_whole = match asking.stream.read(&mut buffer) {
            Ok(length) if length > 0 => {
                asking.head.extend_from_slice(buffer.get(..length).unwrap_or_default());
                asking.head.ends_with(b"\r\n\r\n")
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            _ => {
                self.asking.remove(&number);
                return Ok(());
            }
        };
        if !is_whole && asking.head.len() < HEAD_MAX {
            return Ok(());
        }
        let Some(Asking { stream, site, .. }) = self.asking.remove(&number) else { return Ok(()) };
        if let Some(served) = self.all.get(site).filter(|_| is_whole) {
            // Bytes after the request are ignored.
            self.sockets.remove(&stream)?;
            let answer = answer(&served.page);
            self.served.push(Served { stream, site, begun: Instant::now(), answer, sent: 0 });
        }
        Ok(())
    }
}

impl Served {
    /// Sends the bytes that are due; returns true if more follow.
    fn send_due(&mut self, now: Instant, site: &Site) -> bool {
        let due = due(site, now.saturating_duration_since(self.begun), self.answer.len());
        while self.sent < due {
            match self.stream.write(self.answer.get(self.sent..due).unwrap_or_default()) {
                Ok(length) if length > 0 => self.sent += length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                // The client has gone.
                _ => return false,
            }
        }
        self.sent < self.answer.len()
    }
}

fn answer(page: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.0 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n",
        page.len()
    );
    [head.as_bytes(), page].concat()
}

/// Returns the bytes of a response that a server has sent after such a time: the first segment at
/// once, and each other one when its time has passed.
fn due(site: &Site, after: Duration, length: usize) -> usize {
    let bytes = after.as_secs_f64() * site.rate.0 as f64 / 8.0;
    let segments = (bytes / SEGMENT as f64) as usize + 1;
    segments.saturating_mul(SEGMENT).min(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::BitsPerSecond;

    fn slow(page: &[u8]) -> Site {
        let round_trip = Duration::from_millis(10);
        Site { cloud: 0, round_trip, rate: BitsPerSecond(11_584), page: page.to_vec() }
    }

    #[test]
    fn a_segment_is_due_when_there_was_time_for_it() {
        // A segment a second.
        let site = slow(b"");
        let after = |milliseconds| due(&site, Duration::from_millis(milliseconds), 3000);
        assert_eq!([after(0), after(999), after(1001)], [SEGMENT, SEGMENT, 2 * SEGMENT]);
        assert_eq!(after(60_000), 3000);
    }
}
