//! Arrival time of a service's first packet at the end of the line, by the clock of the program
//! that sees it there (`first.bpf.c`), and slow, even traffic for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use bpf::{Link, MappedArray, Object, XdpMode, objects};
use bytemuck::{Pod, Zeroable};
use namespaces::netns;
use sockets::packet_socket::PacketSocket;

use super::module::MARK_AT;
use crate::frame;
use crate::line::Line;

/// Polling interval; the time stamp is the program's, so it costs no precision.
const POLL_INTERVAL: Duration = Duration::from_micros(200);
/// Time after which a first packet counts as lost.
const PACKET_TIMEOUT: Duration = Duration::from_secs(10);
/// Time within which frames in flight have arrived.
const ON_ITS_WAY: Duration = Duration::from_millis(5);

/// `struct words` of first.bpf.c.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
struct Words {
    wanted: u64,
    came_ns: u64,
    gap_ns: u64,
    before_ns: u64,
    packets: u64,
}
/// Indexes of the words that the reader writes.
const WANTED: usize = 0;
const CAME: usize = 1;

/// Arrival of a first packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// Time of the monotonic clock, in nanoseconds.
    pub(crate) nanos: u64,
    /// Distance to the packet before it, in nanoseconds: by this much sooner the service may have
    /// been ready.
    pub(crate) gap_ns: u64,
}

/// XDP program in place until dropped.
#[derive(Debug)]
pub(crate) struct FirstPacket {
    words: MappedArray<Words>,
    _link: Link,
}

impl FirstPacket {
    /// Attaches to the end of a line.
    pub(crate) fn new(line: &Line) -> Result<Self> {
        netns::in_namespace(&line.destination, || {
            let mut open = Object::open(objects::bench::FIRST, "first")?;
            open.set_global("mark_at", &MARK_AT)?;
            let object = open.load()?;
            let device = Line::ifindex(&line.destination, "d0")?;
            let link = object.program("wait_for")?.attach_xdp(device, XdpMode::Native)?;
            Ok(Self { words: object.map("words")?.map_array()?, _link: link })
        })?
    }

    /// Waits for a packet with this mark from now on; packets in flight have arrived before.
    pub(crate) fn expect(&self, mark: u32) {
        self.set(WANTED, 0);
        std::thread::sleep(ON_ITS_WAY);
        self.set(CAME, 0);
        self.set(WANTED, u64::from(mark));
    }

    /// Waits for the packet; returns its arrival.
    pub(crate) fn wait(&self) -> Result<Arrival> {
        let begun = Instant::now();
        loop {
            let words = self.words.load(0).context("the first packet's words have no entry")?;
            if words.came_ns != 0 {
                return Ok(Arrival { nanos: words.came_ns, gap_ns: words.gap_ns });
            }
            let traffic = words.packets;
            ensure!(
                begun.elapsed() < PACKET_TIMEOUT,
                "no packet of the service came within {PACKET_TIMEOUT:?} ({traffic} of others did)"
            );
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn set(&self, word: usize, value: u64) {
        if let Some(word) = self.words.word(0, word) {
            word.store(value, Ordering::Release);
        }
    }
}

/// Traffic at a slow, even rate until dropped: one system call a frame, so that processors stay
/// free for the measured program.
#[derive(Debug)]
pub(crate) struct Drip {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Drip {
    /// Starts sending `rate` 64-byte frames per second into a line.
    pub(crate) fn start(line: &Line, rate: u32) -> Result<Self> {
        let device = Line::ifindex(&line.source, "s0")?;
        let socket = netns::in_namespace(&line.source, || PacketSocket::open(device))??;
        let ended = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&ended);
        let thread = std::thread::Builder::new()
            .name("drip".to_owned())
            .spawn(move || drip(&socket, rate, &until))
            .context("starting the traffic's thread")?;
        Ok(Self { ended, thread: Some(thread) })
    }

    /// Stops; returns the error that ended it earlier, if any.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.halt().unwrap_or(Ok(()))
    }

    fn halt(&mut self) -> Option<Result<()>> {
        self.ended.store(true, Ordering::Release);
        let thread = self.thread.take()?;
        Some(thread.join().unwrap_or_else(|_| Err(anyhow!("the traffic's thread panicked"))))
    }
}

impl Drop for Drip {
    fn drop(&mut self) {
        // Only after an error of the measurement, which is reported instead.
        let _ = self.halt();
    }
}

fn drip(socket: &PacketSocket, rate: u32, ended: &AtomicBool) -> Result<()> {
    let thread = rustix::thread::gettid().as_raw_nonzero();
    // Packets arrive on the node's guest core, which the daemon does not use.
    let _ = sandbox::cores::pin_to(sandbox::cores::last());
    // Real packets come by interrupts and wait for no daemon; priority imitates that, where
    // permitted.
    let _ = sandbox::cores::set_realtime();
    // Otherwise the kernel may wake the thread 50 µs late. A refusal is ignored.
    let _ = std::fs::write(format!("/proc/{thread}/timerslack_ns"), "1000");
    let frame = frame::of_length(frame::Kind::Udp, 64);
    let pace = Duration::from_secs(1) / rate;
    let mut due = Instant::now();
    while !ended.load(Ordering::Acquire) {
        socket.send(&frame).context("sending a frame")?;
        let now = Instant::now();
        // Late frames are not sent in a burst, which would be other traffic.
        due = now.max(due + pace);
        std::thread::sleep(due - now);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_packet_with_the_mark_is_noted_and_no_other() {
        if !rustix::process::geteuid().is_root() {
            return testbase::skip_this("network namespaces and BPF programs need root");
        }
        let line = Line::new("t-first").unwrap();
        let first = FirstPacket::new(&line).unwrap();
        let drip = Drip::start(&line, 2_000).unwrap();
        // The kernel forwards; the frames' payload is 0xa5.
        let before = crate::measure::Reading::now(0).nanos;
        first.expect(0xa5a5_a5a5);
        let came = first.wait().unwrap();
        assert!(came.nanos > before && came.gap_ns > 0, "{came:?}");
        first.expect(7);
        std::thread::sleep(ON_ITS_WAY * 4);
        assert_eq!(first.words.load(0).unwrap().came_ns, 0);
        assert!(first.words.load(0).unwrap().packets > 4);
        drip.stop().unwrap();
    }
}
