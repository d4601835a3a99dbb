//! Receiving end of a line that checks every frame: which arrived, in which order, how often, and
//! after which delay (`arrivals.bpf.c`).
//!
//! An instance serves one generator with stamped frames. Delays are from the generator's stamp to
//! the XDP program at d0, so they include the line's own; a baseline's do, too.

use anyhow::{Result, anyhow};
use bpf::{Link, MappedArray, Object, XdpMode, objects};
use bytemuck::{Pod, Zeroable};
use namespaces::netns;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::generator::Generator;
use crate::line::Line;

/// Number of first frames whose individual delays are kept; equal to the constant in the C program.
pub(crate) const SERIES: usize = 65_536;
/// Buckets of the delay histogram; [`BUCKETS_OF_POWER`] for each power of two. Equal to the C
/// program's.
const BUCKETS: usize = 640;
const BUCKETS_OF_POWER: usize = 16;

/// `struct counts` of arrivals.bpf.c.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub(crate) struct Counts {
    /// First number that is counted; earlier ones are ignored.
    from: u64,
    /// Frames that arrived for the first time.
    pub(crate) packets: u64,
    /// Frames that arrived again.
    pub(crate) doubled: u64,
    /// Frames that arrived after a later one of their flow.
    pub(crate) reordered: u64,
    /// Longest pause since it was last read, in nanoseconds.
    pause_ns: u64,
    arrived_ns: u64,
    sent_ns: u64,
}

/// Lead of the first counted frame over those sent already.
const AHEAD: Duration = Duration::from_millis(10);
/// Time within which the generator must have sent that much; after it the generator has failed and
/// reports why.
const START_TIMEOUT: Duration = Duration::from_secs(2);
/// Words of [`Counts`].
const FROM: usize = 0;
const PAUSE: usize = 4;

/// XDP program in place until dropped.
#[derive(Debug)]
pub(crate) struct Arrivals {
    counts: MappedArray<Counts>,
    delays: MappedArray<u64>,
    series: MappedArray<u64>,
    by_flow: MappedArray<u64>,
    _link: Option<Link>,
}

impl Arrivals {
    /// Attaches to the end of a line, for frames of `flows` flows (a power of two, at most 64) with
    /// their stamp at offset `stamp_at`.
    pub(crate) fn new(line: &Line, flows: u32, stamp_at: u32) -> Result<Self> {
        Self::without(line, flows, stamp_at, (1, 0))
    }

    /// Attaches like [`Self::new`], but ignores the first flows of those that the generator walks
    /// through. `flows` is a power of two.
    pub(crate) fn without(
        line: &Line,
        flows: u32,
        stamp_at: u32,
        others: (u32, u32),
    ) -> Result<Self> {
        netns::in_namespace(&line.destination, || {
            let object = load(flows, stamp_at, others)?;
            let arrivals = Self::of(&object, None)?;
            // Nothing is counted before `begin`.
            if let Some(from) = arrivals.counts.word(0, FROM) {
                from.store(u64::MAX, Ordering::Release);
            }
            let device = Line::ifindex(&line.destination, "d0")?;
            let link = object.program("arrive")?.attach_xdp(device, XdpMode::Native)?;
            Ok(Self { _link: Some(link), ..arrivals })
        })?
    }

    fn of(object: &Object, link: Option<Link>) -> Result<Self> {
        let words = |name: &str| anyhow::Ok(object.map(name)?.map_array::<u64>()?);
        Ok(Self {
            counts: object.map("counts")?.map_array()?,
            delays: words("delays")?,
            series: words("series")?,
            by_flow: words("by_flow")?,
            _link: link,
        })
    }

    /// Counts frames that are sent from now on; returns the first one's number once it is sent.
    pub(crate) fn begin(&self, generator: &Generator) -> u64 {
        // A number that is not sent yet, however long these two lines take.
        let number = generator.sent() + generator.sent_within(AHEAD);
        if let Some(from) = self.counts.word(0, FROM) {
            from.store(number, Ordering::Release);
        }
        let begun = Instant::now();
        while generator.sent() < number && begun.elapsed() < START_TIMEOUT {
            std::thread::sleep(Duration::from_millis(1));
        }
        number
    }

    pub(crate) fn counts(&self) -> Result<Counts> {
        self.counts.load(0).ok_or_else(|| anyhow!("the counters of arrivals have no entry"))
    }

    /// Returns the frames of one flow that arrived for the first time.
    pub(crate) fn of_flow(&self, flow: usize) -> u64 {
        self.by_flow.load(flow).unwrap_or(0)
    }

    /// Returns the longest pause since the last call, in microseconds: by how much a frame's
    /// distance to the frame before it grew between sending and arrival.
    pub(crate) fn take_pause(&self) -> f64 {
        let pause = self.counts.word(0, PAUSE);
        pause.map_or(0.0, |pause| pause.swap(0, Ordering::AcqRel) as f64 / 1e3)
    }

    /// Returns the delay within which this share of the frames arrived, in microseconds; `None`
    /// when none arrived.
    pub(crate) fn delay(&self, share: f64) -> Option<f64> {
        let buckets: Vec<u64> = (0..BUCKETS).map(|at| self.delays.load(at).unwrap_or(0)).collect();
        quantile(&buckets, share).map(|nanos| nanos / 1e3)
    }

    /// Returns the delay of each of the first frames in microseconds; `None` for one that has not
    /// arrived.
    pub(crate) fn series(&self, count: usize) -> Vec<Option<f64>> {
        (0..count.min(SERIES))
            .map(|at| self.series.load(at).filter(|&nanos| nanos > 0))
            .map(|nanos| nanos.map(|nanos| nanos as f64 / 1e3))
            .collect()
    }
}

fn load(flows: u32, stamp_at: u32, (all_flows, others): (u32, u32)) -> Result<Object> {
    let mut open = Object::open(objects::bench::ARRIVALS, "arrivals")?;
    open.set_global("flows", &flows)?;
    open.set_global("stamp_at", &stamp_at)?;
    open.set_global("all_flows", &all_flows)?;
    open.set_global("others", &others)?;
    Ok(open.load()?)
}

/// Returns the middle of the bucket that holds the value of this rank, in nanoseconds.
fn quantile(buckets: &[u64], share: f64) -> Option<f64> {
    let total: u64 = buckets.iter().sum();
    let rank = (total as f64 * share).ceil().max(1.0);
    let mut below = 0;
    let at = buckets.iter().position(|&count| {
        below += count;
        below as f64 >= rank
    })?;
    (total > 0).then(|| f64::midpoint(bucket_start(at), bucket_start(at + 1)))
}

/// Returns the lower bound of a bucket, in nanoseconds.
fn bucket_start(at: usize) -> f64 {
    if at < BUCKETS_OF_POWER {
        return at as f64;
    }
    let (power, step) = (at / BUCKETS_OF_POWER, at % BUCKETS_OF_POWER);
    // The first sixteen buckets are of one nanosecond each.
    (BUCKETS_OF_POWER + step) as f64 * 2f64.powi(power as i32 - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Reading;

    /// Magic number of a stamp, as in stamp.h.
    const MAGIC: u32 = 0x7374_616d;

    fn stamped(number: u64, sent_ns: u64) -> Vec<u8> {
        let mut frame = vec![0; 80];
        frame[42..46].copy_from_slice(&MAGIC.to_le_bytes());
        frame[46..54].copy_from_slice(&number.to_le_bytes());
        frame[54..62].copy_from_slice(&sent_ns.to_le_bytes());
        frame
    }

    fn now_ns() -> u64 {
        Reading::now(0).nanos
    }

    #[test]
    fn each_frame_is_new_doubled_or_overtaken() {
        if !rustix::process::geteuid().is_root() {
            return testbase::skip_this("loading BPF programs needs root");
        }
        let object = load(2, 42, (1, 0)).unwrap();
        let arrivals = Arrivals::of(&object, None).unwrap();
        let program = object.program("arrive").unwrap();
        let arrive = |frame: &[u8]| assert_eq!(program.test_run(frame, None, 1).unwrap().retval, 1);
        // Two flows, even and odd: 2 comes after 3 and overtakes no frame of its flow.
        for number in [0, 1, 3, 2, 6, 4, 6, 3, 5] {
            arrive(&stamped(number, now_ns()));
        }
        arrive(&[0; 80]);
        let counts = arrivals.counts().unwrap();
        assert_eq!((counts.packets, counts.doubled, counts.reordered), (7, 2, 1));
        assert_eq!((arrivals.of_flow(0), arrivals.of_flow(1)), (4, 3));
    }

    #[test]
    fn frames_of_other_flows_are_not_measured() {
        if !rustix::process::geteuid().is_root() {
            return testbase::skip_this("loading BPF programs needs root");
        }
        let object = load(1, 42, (8, 3)).unwrap();
        let arrivals = Arrivals::of(&object, None).unwrap();
        let program = object.program("arrive").unwrap();
        for number in 0..16 {
            // Frames of the other flows are late.
            let ago = if number % 8 < 3 { 50_000_000 } else { 0 };
            program.test_run(&stamped(number, now_ns() - ago), None, 1).unwrap();
        }
        assert_eq!(arrivals.counts().unwrap().packets, 10);
        assert!(arrivals.delay(1.0).unwrap() < 50_000.0);
    }

    #[test]
    fn delays_and_pauses_are_computed_from_time_stamps() {
        if !rustix::process::geteuid().is_root() {
            return testbase::skip_this("loading BPF programs needs root");
        }
        let object = load(1, 42, (1, 0)).unwrap();
        let arrivals = Arrivals::of(&object, None).unwrap();
        let program = object.program("arrive").unwrap();
        // Sent 3 ms and 1 ms ago: the first one was later by about 2 ms, the second came at once.
        for (number, ago) in [(0, 3_000_000), (1, 1_000_000)] {
            program.test_run(&stamped(number, now_ns() - ago), None, 1).unwrap();
        }
        assert_eq!(arrivals.take_pause(), 0.0, "the second came sooner behind the first");
        program.test_run(&stamped(2, now_ns() - 50_000_000), None, 1).unwrap();
        let pause = arrivals.take_pause();
        assert!(pause >= 48_000.0, "{pause}");
        assert_eq!(arrivals.take_pause(), 0.0);
        let series = arrivals.series(4);
        let delays: Vec<f64> = series[..3].iter().map(|delay| delay.unwrap()).collect();
        assert!(
            delays[0] >= 3_000.0 && delays[1] >= 1_000.0 && delays[2] >= 50_000.0,
            "{delays:?}"
        );
        assert_eq!(series[3], None);
        let median = arrivals.delay(0.5).unwrap();
        assert!((median / delays[0] - 1.0).abs() < 0.07, "{median} of {delays:?}");
    }

    #[test]
    fn buckets_grow_by_powers_of_two() {
        assert_eq!(bucket_start(15), 15.0);
        assert_eq!(bucket_start(16), 16.0);
        assert_eq!(bucket_start(17), 17.0);
        assert_eq!(bucket_start(32), 32.0);
        assert_eq!(bucket_start(33), 34.0);
        assert_eq!(bucket_start(16 * 7), 1024.0);
    }

    #[test]
    fn a_quantile_is_in_the_bucket_of_its_rank() {
        let mut buckets = vec![0; BUCKETS];
        assert_eq!(quantile(&buckets, 0.5), None);
        buckets[10] = 99;
        buckets[16 * 7] = 1;
        assert_eq!(quantile(&buckets, 0.5), Some(10.5));
        assert_eq!(quantile(&buckets, 0.99), Some(10.5));
        assert_eq!(quantile(&buckets, 1.0), Some(1056.0));
    }
}
