//! Distance of servers: a thread that carries frames between the node's line and the servers, and
//! delays those of a server by its round trip.
//!
//! ```text
//! d0 ─────────── at once ───────────▶ e0
//! d0 ◀── when they are due ── held ── e0
//! ```
//!
//! TCP at both ends sees the round trip, whichever direction has the delay: in its handshake, in
//! slow start, and at its end.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use namespaces::netns;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sockets::frame_socket::{Buffer, FrameSocket, Unfinished};

use super::sites::{self, Site};
use crate::line::{FAR_END, Line, NEAR_END};
use crate::streams::LOAD_CPU;
use crate::streams::worker::Worker;

/// Interval at which the end is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Most frames held: 40 of each of 400 connections, four times the initial window. Further ones are
/// lost, as on a line.
const HELD_MAX: usize = 16_384;
/// Offsets in an Ethernet frame: ethertype and IPv4 source address.
const ETHERTYPE: std::ops::Range<usize> = 12..14;
const SOURCE: std::ops::Range<usize> = 26..30;
const IPV4: [u8; 2] = [0x08, 0x00];

/// Carries frames until it is dropped.
pub(super) fn start(line: &Line, all: Arc<[Site]>) -> Result<Worker> {
    let open = |device| -> Result<FrameSocket> {
        let index = Line::ifindex(&line.destination, device)?;
        let socket = netns::in_namespace(&line.destination, || {
            let socket = FrameSocket::open(index)?;
            socket.take()?;
            std::io::Result::Ok(socket)
        })?;
        socket.with_context(|| format!("opening a packet socket on {device}"))
    };
    let (near, far) = (open(NEAR_END)?, open(FAR_END)?);
    let mut carrier = Carrier { near, far, all, held: Held::default(), buffer: Buffer::default() };
    Ok(Worker::start(LOAD_CPU, move || carrier.step()))
}

struct Carrier {
    near: FrameSocket,
    far: FrameSocket,
    all: Arc<[Site]>,
    held: Held<(Vec<u8>, Unfinished)>,
    buffer: Buffer,
}

impl Carrier {
    /// Waits until a frame arrives or one is due, and handles it.
    fn step(&mut self) -> Result<()> {
        let wait = self.held.wait(Instant::now()).min(POLL_INTERVAL);
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) };
        let mut sockets = [self.near.as_fd(), self.far.as_fd()]
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut sockets, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("waiting for frames"),
        }
        while let Some(frame) = self.near.receive(&mut self.buffer)? {
            send(&self.far, frame.bytes, frame.unfinished)?;
        }
        while let Some(frame) = self.far.receive(&mut self.buffer)? {
            let Some(number) = source(frame.bytes).and_then(sites::number) else { continue };
            let Some(site) = self.all.get(number) else { continue };
            let kept = (frame.bytes.to_vec(), frame.unfinished);
            self.held.hold(Instant::now() + site.round_trip, kept);
        }
        while let Some((bytes, unfinished)) = self.held.due(Instant::now()) {
            send(&self.near, &bytes, unfinished)?;
        }
        Ok(())
    }
}

/// Sends a frame; one that finds no space in the device's queue is lost, as on a line.
fn send(socket: &FrameSocket, bytes: &[u8], unfinished: Unfinished) -> Result<()> {
    match socket.send(&[bytes], unfinished) {
        Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => {
            Err(error).context("carrying a frame")
        }
        _ => Ok(()),
    }
}

/// Returns the IPv4 source address of a frame.
fn source(frame: &[u8]) -> Option<Ipv4Addr> {
    let is_ipv4 = frame.get(ETHERTYPE)? == IPV4;
    let address: [u8; 4] = frame.get(SOURCE)?.try_into().ok()?;
    is_ipv4.then(|| address.into())
}

/// Queue by due time, the earliest first; entries of one time in order of arrival.
#[derive(Debug)]
struct Held<T> {
    kept: BTreeMap<(Instant, u64), T>,
    next: u64,
}

impl<T> Default for Held<T> {
    fn default() -> Self {
        Self { kept: BTreeMap::new(), next: 0 }
    }
}

impl<T> Held<T> {
    fn hold(&mut self, until: Instant, what: T) {
        if self.kept.len() < HELD_MAX {
            self.kept.insert((until, self.next), what);
            self.next += 1;
        }
    }

    /// Returns the time until the first entry is due.
    fn wait(&self, now: Instant) -> Duration {
        let first = self.kept.first_key_value();
        first.map_or(Duration::MAX, |((until, _), _)| until.saturating_duration_since(now))
    }

    fn due(&mut self, now: Instant) -> Option<T> {
        let first = self.kept.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_frames_come_when_due_and_in_order() {
        let begin = Instant::now();
        let at = |milliseconds| begin + Duration::from_millis(milliseconds);
        let mut held = Held::default();
        assert_eq!((held.due(at(0)), held.wait(at(0))), (None, Duration::MAX));
        for (until, what) in [(200, 'c'), (10, 'a'), (10, 'b')] {
            held.hold(at(until), what);
        }
        assert_eq!((held.due(at(9)), held.wait(at(9))), (None, Duration::from_millis(1)));
        assert_eq!(
            [held.due(at(10)), held.due(at(10)), held.due(at(10))],
            [Some('a'), Some('b'), None]
        );
        assert_eq!((held.due(at(300)), held.wait(at(300))), (Some('c'), Duration::MAX));
    }

    #[test]
    fn a_frame_beyond_the_limit_is_lost() {
        let now = Instant::now();
        let mut held = Held::default();
        (0..=HELD_MAX).for_each(|what| held.hold(now, what));
        let all: Vec<usize> = std::iter::from_fn(|| held.due(now)).collect();
        assert!(all.into_iter().eq(0..HELD_MAX));
    }

    #[test]
    fn a_server_is_known_by_its_frames() {
        let mut frame = [0; 60];
        frame[ETHERTYPE].copy_from_slice(&IPV4);
        frame[SOURCE].copy_from_slice(&[10, 203, 1, 7]);
        assert_eq!(source(&frame).and_then(sites::number), Some(7));
        assert_eq!(source(&frame[..29]), None);
        frame[12] = 0x86;
        assert_eq!(source(&frame), None);
    }
}
