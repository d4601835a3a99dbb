//! `tam bench touch`: one pass over every byte of a packet, in the sandbox and in native code.
//!
//! Both run the same source. The cost of a call besides is measured with no pass and subtracted;
//! the checksums are compared.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::measurement::{Better, Measurement};
use crate::rounds::{Pair, Rounds};
use crate::{Options, Subject, Touched, frame};

#[path = "../../../services/touch/src/pass.rs"]
mod pass;

/// Packet lengths in bytes: the papers', and a small one, where the call is most of the cost.
const LENGTHS: [usize; 2] = [1460, 256];
/// Passes of a call: the service's maximum, so that the difference is large.
const PASSES: u32 = 4;
/// Packets of a measurement: a third of a second at 2 microseconds a pass.
const PACKETS: u32 = 40_000;
/// Goal: the sandbox's time divided by the native one.
const GOAL: f64 = 1.1;

pub(crate) fn run(
    options: &Options,
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Measurement>> {
    let mut measurements = Vec::new();
    for length in LENGTHS {
        let packet = frame::of_length(frame::Kind::Udp, length);
        let mut rounds = Rounds::default();
        for round in 1..=options.rounds() {
            progress(&format!("{length} bytes, round {round} of {}", options.rounds()));
            let (ours, native) = (sandboxed(subject, &packet)?, natively(&packet));
            ensure!(
                ours.checksum == native.checksum,
                "the sandbox's checksum is {:#x}, the native one {:#x}: they did not do the same \
                 work; is the built service older than its source?",
                ours.checksum,
                native.checksum
            );
            let passes = f64::from(PACKETS) * f64::from(PASSES);
            rounds.add(vec![ours.nanos as f64 / passes, native.nanos as f64 / passes]);
        }
        measurements.push(rounds.compare(Pair {
            metric: format!("touch.pass.{length}"),
            unit: "ns/pass",
            baseline_name: "native",
            baseline: 1,
            better: Better::Lower,
            goal: Some(GOAL),
        }));
    }
    Ok(measurements)
}

/// Measures the passes alone: a run with them less a run without.
fn sandboxed(subject: &mut dyn Subject, packet: &[u8]) -> Result<Touched> {
    let empty = subject.touch(packet, 0, PACKETS)?;
    let full = subject.touch(packet, PASSES, PACKETS)?;
    Ok(Touched { checksum: full.checksum, nanos: full.nanos.saturating_sub(empty.nanos) })
}

fn natively(packet: &[u8]) -> Touched {
    let (mut checksum, begun) = (0u64, Instant::now());
    for _ in 0..PACKETS {
        // Each pass begins where the last one ended: none can be left out.
        let mut hash = pass::pass(black_box(packet));
        for _ in 1..PASSES {
            hash = pass::pass_on(hash, black_box(packet));
        }
        checksum = checksum.wrapping_add(u64::from(hash));
    }
    let nanos = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Touched { checksum: black_box(checksum), nanos }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_native_checksum_is_that_of_chained_passes() {
        // Four passes over one text are one pass over the text four times.
        let once = u64::from(pass::pass(&b"foobar".repeat(PASSES as usize)));
        assert_eq!(natively(b"foobar").checksum, once.wrapping_mul(u64::from(PACKETS)));
    }
}
