//! Search for a smaller module with the same fault: numbers of the module's tape are removed or set
//! to zero as long as the fault stays the same. A zero chooses the simplest of everything.

use super::{Engines, Fault};
use crate::random::generate;
use crate::random::rng::Rng;

/// Most modules that are tried; each takes some milliseconds.
const TRIES_MAX: u32 = 6_000;

/// Returns the fault of a seed's module in the smallest module found; `None` if it has no fault.
#[must_use]
pub fn shrink(engines: &Engines, seed: u64) -> Option<Fault> {
    let mut least = engines.compare(seed).err()?;
    let kind = least.kind();
    let mut rng = Rng::new(seed);
    generate::module(seed, &mut rng)?;
    let mut tape = rng.into_tape();
    let mut tries = 0;
    let mut chunk = tape.len() / 2;
    while chunk > 0 {
        let mut at = 0;
        while at < tape.len() && tries < TRIES_MAX {
            let changed = changes(&tape, at, chunk).into_iter().find_map(|changed| {
                tries += 1;
                let fault = fault_of(engines, seed, &changed)?;
                (fault.kind() == kind).then_some((changed, fault))
            });
            match changed {
                Some((changed, fault)) => (tape, least) = (changed, fault),
                None => at += chunk,
            }
        }
        chunk /= 2;
    }
    Some(least)
}

fn fault_of(engines: &Engines, seed: u64, tape: &[u64]) -> Option<Fault> {
    let module = generate::module(seed, &mut Rng::play(tape.to_vec()))?;
    engines.compare_module(seed, &module).err()
}

/// Returns the tape without a piece of it, and with zeros there.
fn changes(tape: &[u64], at: usize, length: usize) -> Vec<Vec<u64>> {
    let end = tape.len().min(at + length);
    let shorter = [&tape[..at], &tape[end..]].concat();
    if tape[at..end].iter().all(|number| *number == 0) {
        return vec![shorter];
    }
    let zeros = vec![0; end - at];
    vec![shorter, [&tape[..at], &zeros, &tape[end..]].concat()]
}
