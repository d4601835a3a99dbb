//! Thousands of listeners in one thread; each requests a stream and counts its bytes.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags};

use crate::streams::dial::{For, Watched, ask, dial};

/// Most bytes of a request or of a response's head.
const HEAD_MAX: usize = 4096;
/// Bytes of a read.
const READ: usize = 65_536;
/// Longest time between two checks of the clock.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Time after its SYN at which a listener without data gives up, as people would.
const JOIN_TIME_MAX: Duration = Duration::from_secs(10);

/// State of a listener.
#[derive(Debug)]
enum State {
    /// The connection is not established yet.
    Connecting,
    /// The request was sent; the part of the response's head that has arrived.
    Asked(Vec<u8>),
    /// The body arrives.
    Hears,
}

#[derive(Debug)]
struct Listener {
    socket: OwnedFd,
    begun: Instant,
    state: State,
    /// Time from the SYN to the first byte of the body.
    join: Option<Duration>,
    /// Bytes of the body.
    bytes: u64,
}

/// Listeners in the namespace of the calling thread; they leave when this is dropped.
#[derive(Debug)]
pub(crate) struct Crowd {
    at: SocketAddr,
    request: String,
    sockets: Watched,
    /// Listeners; `None` for one that gave up.
    listeners: Vec<Option<Listener>>,
    buffer: Vec<u8>,
}

impl Crowd {
    pub(crate) fn new(at: SocketAddr, path: &str) -> Result<Self> {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {at}\r\nUser-Agent: crowd\r\nAccept: */*\r\n\r\n"
        );
        let sockets = Watched::new()?;
        Ok(Self { at, request, sockets, listeners: Vec::new(), buffer: vec![0; READ] })
    }

    /// Adds `count` listeners at a rate of `per_second`; returns when each has received data or
    /// given up, with the number that gave up.
    pub(crate) fn arrive(&mut self, count: usize, per_second: u32) -> Result<usize> {
        let begun = Instant::now();
        while self.listeners.len() < count {
            let due = begun.elapsed().as_secs_f64() * f64::from(per_second);
            while self.listeners.len() < count && (self.listeners.len() as f64) < due {
                self.connect()?;
            }
            self.look()?;
        }
        let end = Instant::now() + JOIN_TIME_MAX;
        while self.present().any(|listener| listener.join.is_none()) && Instant::now() < end {
            self.look()?;
        }
        for place in &mut self.listeners {
            place.take_if(|listener| listener.join.is_none());
        }
        Ok(self.listeners.len() - self.present().count())
    }

    /// Receives for `length`; returns the time that it really took.
    pub(crate) fn listen(&mut self, length: Duration) -> Result<Duration> {
        let begun = Instant::now();
        while begun.elapsed() < length {
            self.look()?;
        }
        Ok(begun.elapsed())
    }

    /// Returns the bytes that each listener has received so far.
    pub(crate) fn heard(&self) -> Vec<u64> {
        self.present().map(|listener| listener.bytes).collect()
    }

    /// Returns the seconds until each received its first byte; for one that gave up, the time that
    /// it waited.
    pub(crate) fn joins(&self) -> Vec<f64> {
        let join =
            |listener: &Option<Listener>| listener.as_ref().map_or(JOIN_TIME_MAX, Listener::waited);
        self.listeners.iter().map(|listener| join(listener).as_secs_f64()).collect()
    }

    /// Returns the longest time between two polls.
    pub(crate) fn pause(&self) -> Duration {
        self.sockets.pause()
    }

    fn present(&self) -> impl Iterator<Item = &Listener> {
        self.listeners.iter().flatten()
    }

    fn connect(&mut self) -> Result<()> {
        let begun = Instant::now();
        let socket = dial(self.at)?;
        self.sockets.add(&socket, self.listeners.len() as u64, For::Writing)?;
        let state = State::Connecting;
        self.listeners.push(Some(Listener { socket, begun, state, join: None, bytes: 0 }));
        Ok(())
    }

    /// Polls once: completes connections and reads available data.
    fn look(&mut self) -> Result<()> {
        for number in self.sockets.ready(POLL_INTERVAL)? {
            let listener = self.listeners.get_mut(number as usize).and_then(Option::as_mut);
            let Some(listener) = listener else { continue };
            match listener.state {
                State::Connecting => {
                    ask(&listener.socket, &self.request)?;
                    listener.state = State::Asked(Vec::new());
                    self.sockets.change(&listener.socket, number, For::Reading)?;
                }
                _ => listener.hear(&mut self.buffer)?,
            }
        }
        Ok(())
    }
}

impl Listener {
    /// Returns the time until the first byte, or until now.
    fn waited(&self) -> Duration {
        self.join.unwrap_or_else(|| self.begun.elapsed())
    }

    fn hear(&mut self, buffer: &mut [u8]) -> Result<()> {
        let length = match net::recv(&self.socket, &mut *buffer, RecvFlags::empty()) {
            Ok((0, _)) => bail!("a stream ended after {} bytes", self.bytes),
            Ok((length, _)) => length,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(error) => bail!("a listener was cut off after {} bytes: {error}", self.bytes),
        };
        let came = buffer.get(..length).unwrap_or_default();
        let body = match &mut self.state {
            State::Asked(head) => {
                let Some(body) = behind_head(head, came)? else { return Ok(()) };
                self.state = State::Hears;
                body
            }
            _ => length,
        };
        self.bytes += body as u64;
        if body > 0 && self.join.is_none() {
            self.join = Some(self.begun.elapsed());
        }
        Ok(())
    }
}

/// Returns the number of body bytes after the head, once the head is complete.
fn behind_head(head: &mut Vec<u8>, came: &[u8]) -> Result<Option<usize>> {
    head.extend_from_slice(came);
    let Some(at) = head.windows(4).position(|four| four == b"\r\n\r\n") else {
        ensure!(head.len() < HEAD_MAX, "an answer's head has more than {HEAD_MAX} bytes");
        return Ok(None);
    };
    let first: Vec<u8> = head.iter().copied().take_while(|byte| *byte != b'\r').collect();
    let status = String::from_utf8_lossy(&first);
    ensure!(status.split(' ').nth(1) == Some("200"), "a listener was answered '{status}'");
    Ok(Some(head.len() - at - 4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reflector::station::{RATE, Station};
    use namespaces::netns::NetNs;

    #[test]
    fn a_body_begins_behind_its_head_wherever_that_is_cut() {
        let answer = b"HTTP/1.0 200 OK\r\nserver: x\r\n\r\nbody";
        for cut in 1..answer.len() - 4 {
            let mut head = Vec::new();
            assert_eq!(behind_head(&mut head, &answer[..cut]).unwrap(), None, "{cut}");
            assert_eq!(behind_head(&mut head, &answer[cut..]).unwrap(), Some(4), "{cut}");
        }
        let refused = behind_head(&mut Vec::new(), b"HTTP/1.1 503 No\r\n\r\n").unwrap_err();
        assert!(refused.to_string().contains("503 No"), "{refused}");
        assert!(behind_head(&mut Vec::new(), &[b'a'; HEAD_MAX]).is_err());
    }

    #[test]
    fn every_listener_of_a_crowd_receives_what_is_played() {
        let here = NetNs::current().unwrap();
        let bound = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = bound.local_addr().unwrap();
        drop(bound);
        let begun = Instant::now();
        let _station = Station::asked(&here, at, 1).unwrap();
        let mut crowd = Crowd::new(at, "/live").unwrap();
        assert_eq!(crowd.arrive(20, 1000).unwrap(), 0);
        let before = crowd.heard();
        let heard_more = || {
            crowd.listen(POLL_INTERVAL).unwrap();
            crowd.heard().iter().zip(&before).all(|(after, before)| after > before).then_some(())
        };
        testbase::wait_for(JOIN_TIME_MAX, heard_more).unwrap();
        assert_eq!(crowd.joins().len(), 20);
        // A frame begins before all of it has been played.
        let played = (RATE * begun.elapsed().as_secs_f64()) as u64 + 417;
        assert!(crowd.heard().iter().all(|heard| *heard <= played), "{played}");
    }
}
