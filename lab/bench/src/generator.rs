//! Traffic generator: live frames of `BPF_PROG_TEST_RUN`, from CPU 0.
//!
//! A system call costs about 25 ms whatever it sends, so one sends millions of frames and a word in
//! a shared map ends it. Slow rates are paced inside the program, by the clock, not by short calls
//! (`generator.bpf.c`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result, anyhow, ensure};
use bpf::{MappedArray, Object, Program, Update, objects};
use bytemuck::{Pod, Zeroable};
use namespaces::netns::{self, NetNs};
use rustix::thread::CpuSet;

use crate::frame::{self, Kind};

/// CPU of the generator, and thus of all work in softirq.
const CPU: usize = 0;
/// Runs of one system call: a second or more at any rate that veth reaches, so that a window of
/// a second meets at most one gap; and a tenth of one when it is stopped.
const REPEAT: u32 = 1 << 22;
/// Frames between two flushes, as a driver would have in one poll (NAPI_POLL_WEIGHT).
const BATCH: u32 = 64;
/// `struct slot` of generator.bpf.c, in parts for which `Pod` is.
type Slot = [[[u8; 25]; 32]; 3];
/// Bytes of a slot.
const SLOT_LENGTH: usize = size_of::<Slot>();
/// Rate that no generator reaches, in frames per second.
const FLOOD_MAX: u64 = 20_000_000;
/// Runs of one system call of unbroken traffic: some seconds, most of them dropped.
const REPEAT_UNBROKEN: u32 = 1 << 26;

/// `struct headers` of generator.bpf.c.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Headers([[u8; 8]; 5]);

/// `struct settings` of generator.bpf.c.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
struct Settings {
    stopped: u64,
    interval_ns: u64,
}

/// Traffic to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Bytes of each frame.
    pub(crate) length: usize,
    /// Frames per second; `None` for the highest rate possible.
    pub(crate) rate: Option<u64>,
    /// Flows to walk through, a power of two of at most 65,536.
    pub(crate) flows: u32,
    /// True if neighbouring flows are spread in time: the packets of any contiguous part of the
    /// flows come as evenly as those of all.
    pub(crate) scattered: bool,
    /// Consecutive packets of a flow, a power of two, as a sender's window arrives.
    pub(crate) train: u32,
    /// Transport of the frames.
    pub(crate) kind: Kind,
    /// True if each frame carries its number and time in its payload, for
    /// [`Arrivals`](crate::arrivals::Arrivals).
    pub(crate) stamped: bool,
    /// True if the gaps between system calls, which look like pauses of the node, shall be rare.
    /// Ending then takes seconds.
    pub(crate) unbroken: bool,
}

impl Traffic {
    /// Returns traffic of one flow at the highest rate possible.
    pub(crate) const fn flood(length: usize) -> Self {
        Self {
            length,
            rate: None,
            flows: 1,
            scattered: false,
            train: 1,
            kind: Kind::Udp,
            stamped: false,
            unbroken: false,
        }
    }

    /// Returns the step from one flow to the next: 1, or one by the golden section, whose steps are
    /// spread evenly wherever they end (the three-distance theorem).
    fn stride(&self) -> u32 {
        const GOLDEN: u64 = 0x9e37_79b9;
        if self.scattered { ((u64::from(self.flows) * GOLDEN) >> 32) as u32 | 1 } else { 1 }
    }

    /// Returns the offset of the stamp in the frames.
    pub(crate) const fn stamp_at(&self) -> u32 {
        self.kind.headers_length() as u32
    }
}

/// Running generator; it stops when this is dropped.
#[derive(Debug)]
pub(crate) struct Generator {
    settings: MappedArray<Settings>,
    sent: MappedArray<u64>,
    rate: u64,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Generator {
    /// Starts sending out of `device` of `source`.
    pub(crate) fn start(source: &NetNs, device: u32, traffic: Traffic) -> Result<Self> {
        let frame = frame::of_length(traffic.kind, traffic.length);
        Self::send(source, device, traffic, frame, None)
    }

    /// Starts sending datagrams of one length at a given rate to an L4 port of the node.
    pub(crate) fn start_with(
        source: &NetNs,
        device: u32,
        (port, rate): (u16, u64),
        datagrams: Datagrams<'_>,
    ) -> Result<Self> {
        let first = (datagrams.next)()?;
        let frame = frame::to_node(port, &first);
        let traffic = Traffic { rate: Some(rate), ..Traffic::flood(frame.len()) };
        Self::send(source, device, traffic, frame, Some((first, datagrams)))
    }

    fn send(
        source: &NetNs,
        device: u32,
        traffic: Traffic,
        frame: Vec<u8>,
        datagrams: Option<(Vec<u8>, Datagrams<'_>)>,
    ) -> Result<Self> {
        let carried = datagrams.as_ref().map(|(first, all)| (first.len(), all.count, all.again));
        // A device's number in a map is looked up in the namespace of who writes it.
        let object = netns::in_namespace(source, || load(&frame, device, traffic, carried))??;
        if let Some((first, datagrams)) = datagrams {
            fill(&object, first, datagrams)?;
        }
        let settings = object.map("settings")?.map_array::<Settings>()?;
        let sent = object.map("sent")?.map_array::<u64>()?;
        let interval_ns = traffic.rate.map_or(0, |rate| 1_000_000_000 / rate.max(1));
        settings.store(0, &Settings { stopped: 0, interval_ns });
        let program = object.program("generate")?;
        let ended = Arc::new(AtomicBool::new(false));
        let repeat = if traffic.unbroken { REPEAT_UNBROKEN } else { REPEAT };
        let thread = spawn(source, program, (frame, repeat), Arc::clone(&ended))?;
        let rate = traffic.rate.unwrap_or(FLOOD_MAX);
        Ok(Self { settings, sent, rate, ended, thread: Some(thread) })
    }

    /// Returns the frames given to the device so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(0).unwrap_or(0)
    }

    /// Returns the most frames that are sent in such a time, plus 1.
    pub(crate) fn sent_within(&self, time: std::time::Duration) -> u64 {
        (self.rate as f64 * time.as_secs_f64()) as u64 + 1
    }

    /// Stops, waits for the last call to end, and returns the number of frames sent, or the error.
    pub(crate) fn stop(mut self) -> Result<u64> {
        self.halt().unwrap_or(Ok(()))?;
        Ok(self.sent())
    }

    fn halt(&mut self) -> Option<Result<()>> {
        self.ended.store(true, Ordering::Release);
        if let Some(stopped) = self.settings.word(0, 0) {
            stopped.store(1, Ordering::Release);
        }
        let thread = self.thread.take()?;
        Some(thread.join().unwrap_or_else(|_| Err(anyhow!("the generator's thread panicked"))))
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        // Only after an error of the measurement, which is reported instead.
        let _ = self.halt();
    }
}

/// Source of datagrams of one length, each different.
pub(crate) struct Datagrams<'a> {
    pub(crate) count: usize,
    /// True to start over after the last datagram; else nothing follows it.
    pub(crate) again: bool,
    /// Makes the next datagram.
    pub(crate) next: &'a mut dyn FnMut() -> Result<Vec<u8>>,
}

fn per_slot(length: usize) -> usize {
    SLOT_LENGTH / length.max(1)
}

fn load(
    frame: &[u8],
    device: u32,
    traffic: Traffic,
    carried: Option<(usize, usize, bool)>,
) -> Result<Object> {
    let mut open = Object::open(objects::bench::GENERATOR, "generator")?;
    let mut headers = Headers::zeroed();
    let bytes = bytemuck::bytes_of_mut(&mut headers);
    let known = bytes.len().min(frame.len());
    bytes[..known].copy_from_slice(&frame[..known]);
    open.set_global("headers", &headers)?;
    open.set_global("flows", &traffic.flows)?;
    open.set_global("stride", &traffic.stride())?;
    ensure!(traffic.train.is_power_of_two(), "a train of {} packets", traffic.train);
    open.set_global("train", &traffic.train.ilog2())?;
    open.set_global("waits", &u32::from(!traffic.unbroken && !traffic.stamped))?;
    if traffic.stamped {
        open.set_global("stamp_at", &traffic.stamp_at())?;
    }
    if let Some((length, count, again)) = carried {
        ensure!(length <= SLOT_LENGTH, "a datagram of {length} bytes is too long");
        let slots = count.div_ceil(per_slot(length));
        open.set_max_entries("datagrams", u32::try_from(slots).context("too many datagrams")?)?;
        open.set_global("datagram_length", &(length as u32))?;
        open.set_global("datagrams_per_slot", &(per_slot(length) as u32))?;
        open.set_global("datagrams_count", &u32::try_from(count)?)?;
        open.set_global("datagrams_again", &u32::from(again))?;
    }
    let object = open.load()?;
    object.map("device")?.update(&0u32, &device, Update::Any)?;
    Ok(object)
}

/// Makes all datagrams and writes them to the map that the program sends from.
fn fill(object: &Object, first: Vec<u8>, datagrams: Datagrams<'_>) -> Result<()> {
    let (map, length) = (object.map("datagrams")?, first.len());
    let (mut first, mut left) = (Some(first), datagrams.count);
    for slot in 0..datagrams.count.div_ceil(per_slot(length)) {
        let mut bytes = Slot::zeroed();
        for place in bytemuck::bytes_of_mut(&mut bytes).chunks_exact_mut(length).take(left) {
            let datagram = first.take().map_or_else(&mut *datagrams.next, Ok)?;
            ensure!(datagram.len() == length, "datagrams of different lengths");
            place.copy_from_slice(&datagram);
            left -= 1;
        }
        map.update(&(slot as u32), &bytes, Update::Any)?;
    }
    Ok(())
}

fn spawn(
    source: &NetNs,
    program: Program,
    (frame, repeat): (Vec<u8>, u32),
    ended: Arc<AtomicBool>,
) -> Result<JoinHandle<Result<()>>> {
    let source = NetNs::open(source.name())?;
    std::thread::Builder::new()
        .name("generator".to_owned())
        .spawn(move || {
            // Namespace and CPU of the thread end with its traffic.
            netns::enter(&source)?;
            let mut cpus = CpuSet::new();
            cpus.set(CPU);
            rustix::thread::sched_setaffinity(None, &cpus).context("binding to CPU 0")?;
            while !ended.load(Ordering::Acquire) {
                program.test_run_live(&frame, 0, repeat, BATCH)?;
            }
            Ok(())
        })
        .context("starting the generator's thread")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_flows_are_all_there_and_come_evenly() {
        const FLOWS: u32 = 16_384;
        let traffic = Traffic { flows: FLOWS, scattered: true, ..Traffic::flood(80) };
        let flows: Vec<u32> =
            (0..FLOWS).map(|number| number.wrapping_mul(traffic.stride()) & (FLOWS - 1)).collect();
        let mut all = flows.clone();
        all.sort_unstable();
        assert_eq!(all, (0..FLOWS).collect::<Vec<_>>());
        // Each of 16 blocks occurs among any 34 packets, and none twice in a row.
        let blocks: Vec<u32> = flows.iter().map(|flow| flow / (FLOWS / 16)).collect();
        assert!(blocks.windows(2).all(|two| two[0] != two[1]));
        assert!(blocks.windows(34).all(|some| (0..16).all(|block| some.contains(&block))));
        assert_eq!(Traffic { scattered: false, ..traffic }.stride(), 1);
    }
}
