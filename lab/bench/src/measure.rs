//! Measurement of one rate: traffic into a line, and packets counted at its end.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::generator::{Generator, Traffic};
use crate::line::Line;

/// Durations of traffic before and during the count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// Time for caches, neighbours and receive rings to settle.
    pub(crate) warm_up: Duration,
    /// Time of the count.
    pub(crate) length: Duration,
}

impl Window {
    /// Returns a window of 0.4 s when quick, so that a benchmark ends within 45 s; else of 1 s.
    pub(crate) const fn new(quick: bool) -> Self {
        if quick {
            Self { warm_up: Duration::from_millis(100), length: Duration::from_millis(400) }
        } else {
            Self { warm_up: Duration::from_millis(200), length: Duration::from_millis(1000) }
        }
    }
}

/// Counter value at an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Packets since the counter began.
    pub(crate) packets: u64,
    /// Time of the monotonic clock, in nanoseconds.
    pub(crate) nanos: u64,
}

impl Reading {
    /// Returns a reading made just now.
    pub(crate) fn now(packets: u64) -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        // The monotonic clock begins at boot: neither part is negative.
        let nanos = now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs();
        Self { packets, nanos }
    }

    /// Returns packets per second since an earlier reading.
    pub(crate) fn rate_since(self, earlier: Self) -> Option<f64> {
        let nanos = self.nanos.checked_sub(earlier.nanos).filter(|&nanos| nanos > 0)?;
        Some(self.packets.saturating_sub(earlier.packets) as f64 * 1e9 / nanos as f64)
    }
}

/// Rates in packets per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rates {
    /// Packets given to the node.
    pub(crate) offered: f64,
    /// Packets counted at the end of the line.
    pub(crate) counted: f64,
}

/// Sends traffic into a line and counts by `read` the packets that arrive.
pub(crate) fn measure(
    line: &Line,
    traffic: Traffic,
    window: Window,
    read: &mut dyn FnMut() -> Result<Reading>,
) -> Result<Rates> {
    measure_while(line, traffic, window, read, &mut |length| {
        std::thread::sleep(length);
        Ok(())
    })
}

/// Measures like [`measure`]; `meanwhile` is called during the count and returns after the given
/// time or later.
pub(crate) fn measure_while(
    line: &Line,
    traffic: Traffic,
    window: Window,
    read: &mut dyn FnMut() -> Result<Reading>,
    meanwhile: &mut dyn FnMut(Duration) -> Result<()>,
) -> Result<Rates> {
    let device = Line::ifindex(&line.source, "s0")?;
    let generator = Generator::start(&line.source, device, traffic)?;
    std::thread::sleep(window.warm_up);
    let (sent_before, before) = (Reading::now(generator.sent()), read()?);
    meanwhile(window.length)?;
    let (sent_after, after) = (Reading::now(generator.sent()), read()?);
    generator.stop()?;
    let rates = sent_after.rate_since(sent_before).zip(after.rate_since(before));
    ensure!(
        rates.is_some_and(|(offered, _)| offered > 0.0),
        "the generator sent nothing: does the device of the line {} take redirected frames?",
        line.node.name()
    );
    let (offered, counted) = rates.unwrap_or_default();
    Ok(Rates { offered, counted })
}
