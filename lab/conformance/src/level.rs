//! Interface of a level to the table, and comparison of outcomes.

use bpf::RawLoadError;
use cell::below::AloneError;

use crate::{Case, ModuleError, Outcome};

/// Port by which the frames of a case arrive; modules look it up by this name.
pub const ARRIVAL_PORT: &str = "left";
/// Port to redirect and send to.
pub const OTHER_PORT: &str = "right";

/// Runner of modules on packets.
pub trait Level {
    /// Returns the level.
    fn level(&self) -> abi::Level;

    /// Runs a case in a fresh instance of its module. An instance that traps on a frame of `before`
    /// is replaced, as in a node.
    ///
    /// # Errors
    /// The case could not be run at all; results of the module are an [`Outcome`].
    fn run(&mut self, case: &Case) -> Result<Outcome, LevelError>;
}

/// Reason why a level could not run a case, outside the table's subject.
#[derive(Debug, thiserror::Error)]
pub enum LevelError {
    /// The module is missing.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// The module does not keep to the ABI.
    #[error(transparent)]
    Check(#[from] abi::CheckError),
    /// The case's parameters do not fit the module.
    #[error(transparent)]
    Parameters(#[from] abi::manifest::ParameterError),
    /// The engine refuses the module.
    #[error(transparent)]
    Compile(#[from] engine::CompileError),
    /// The instance cannot be made: no memory, or a wrong export that the check accepted.
    #[error("the instance cannot be made: {0}")]
    Start(engine::StartError),
    /// The compiler refuses the module, for at least one reason.
    #[error("it does not become eBPF: {}", .0.first().map_or_else(String::new, ToString::to_string))]
    Refused(Vec<wasm_to_bpf::Refusal>),
    /// The kernel runs no program over a frame of this length.
    #[error("the kernel runs no program over a frame of {length} bytes: {source}")]
    Frame {
        /// Length of the frame, in bytes.
        length: usize,
        /// Error of the kernel.
        source: std::io::Error,
    },
    /// The kernel failed in another way.
    #[error(transparent)]
    Alone(AloneError),
    /// The module redirected or sent to a port that the level does not have.
    #[error("the module named port {number}, which is none of this level's")]
    Port {
        /// Number of the port.
        number: u16,
    },
}

/// Code of [`LevelError::Frame`] in the table.
const FRAME_LENGTH: &str = "frame_length";
/// Code of a program that is too complex for the kernel's verifier.
const VERIFIER: &str = "verifier";

impl LevelError {
    /// Returns the code by which a case declares that a level refuses it; `None` for an error that
    /// is no such refusal.
    #[must_use]
    pub fn refusal(&self) -> Option<&'static str> {
        match self {
            Self::Refused(refusals) => refusals.first().map(wasm_to_bpf::Refusal::code),
            Self::Frame { .. } => Some(FRAME_LENGTH),
            Self::Alone(AloneError::Load(RawLoadError::TooComplex { .. })) => Some(VERIFIER),
            _ => None,
        }
    }
}

/// Returns the differences, one sentence each; empty when the level conforms.
#[must_use]
pub fn differences(expected: &Outcome, found: &Outcome) -> Vec<String> {
    let mut differences = Vec::new();
    if found.ending != expected.ending {
        let (expected, found) = (&expected.ending, &found.ending);
        differences.push(format!("ends with '{found}', not with '{expected}'"));
    }
    if found.frame != expected.frame {
        let shown = |frame: &Option<Vec<u8>>| frame.as_ref().map_or("none".to_owned(), hex::encode);
        let (expected, found) = (shown(&expected.frame), shown(&found.frame));
        differences.push(format!("the packet is\n    {found}, not\n    {expected}"));
    }
    for (name, expected) in &expected.counters {
        let counter = found.counters.get(name);
        if counter != Some(expected) {
            differences.push(format!("counter {name} is {counter:?}, not {expected}"));
        }
    }
    if found.sent != expected.sent {
        differences.push(format!("sent {:x?}, not {:x?}", found.sent, expected.sent));
    }
    if found.events != expected.events {
        differences.push(format!("events {:x?}, not {:x?}", found.events, expected.events));
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ending, Event, Sent};

    #[test]
    fn every_part_of_an_outcome_is_compared() {
        let expected = Outcome {
            counters: [("packets".to_owned(), 1)].into(),
            ..Outcome::of(Ending::Pass(0), Some(vec![1]))
        };
        let count = |change: fn(&mut Outcome)| {
            let mut found = expected.clone();
            change(&mut found);
            differences(&expected, &found).len()
        };
        assert_eq!(count(|_| {}), 0);
        assert_eq!(count(|found| found.counters.extend([("more".to_owned(), 1)])), 0);
        assert_eq!(count(|found| found.ending = Ending::Reroute(0)), 1);
        assert_eq!(count(|found| found.frame = None), 1);
        assert_eq!(count(|found| found.frame = Some(vec![2])), 1);
        assert_eq!(count(|found| found.counters.clear()), 1);
        let sent = Sent { port: String::new(), frame: Vec::new() };
        let mut more = expected.clone();
        more.sent.push(sent);
        more.events.push(Event { code: 0, data: Vec::new() });
        assert_eq!(differences(&expected, &more).len(), 2);
    }
}
