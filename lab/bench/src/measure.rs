//! One measurement: traffic into a line, packets counted at the end of it.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::generator::{Generator, Traffic};
use crate::line::Line;

/// How long traffic runs before, and while, it is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// Caches, the neighbours and the receive rings settle.
    pub(crate) warm_up: Duration,
    /// Counted.
    pub(crate) length: Duration,
}

impl Window {
    /// Quick: 0.4 s, so that a benchmark ends within 45 s; else 1 s.
    pub(crate) const fn new(quick: bool) -> Self {
        if quick {
            Self { warm_up: Duration::from_millis(100), length: Duration::from_millis(400) }
        } else {
            Self { warm_up: Duration::from_millis(200), length: Duration::from_millis(1000) }
        }
    }
}

/// A counter at an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Since the counter began.
    pub(crate) packets: u64,
    /// Of the monotonic clock.
    pub(crate) nanos: u64,
}

impl Reading {
    /// A counter that was read just now.
    pub(crate) fn now(packets: u64) -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        // The monotonic clock begins at boot: neither part is negative.
        let nanos = now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs();
        Self { packets, nanos }
    }

    /// Packets per second since an earlier reading.
    pub(crate) fn rate_since(self, earlier: Self) -> Option<f64> {
        let nanos = self.nanos.checked_sub(earlier.nanos).filter(|&nanos| nanos > 0)?;
        Some(self.packets.saturating_sub(earlier.packets) as f64 * 1e9 / nanos as f64)
    }
}

/// Packets per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rates {
    /// Given to the node.
    pub(crate) offered: f64,
    /// Counted.
    pub(crate) counted: f64,
}

/// Sends traffic into a line and counts what `read` sees of it.
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

/// The same; `meanwhile` is called while the packets are counted, and returns after so long or
/// later.
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
