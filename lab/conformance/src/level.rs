//! What every level offers to the table, and how its answers are compared.

use bpf::RawLoadError;
use cell::below::AloneError;

use crate::{Case, ModuleError, Outcome};

/// The port that the frames of a case come in by; modules find it by this name.
pub const ARRIVAL_PORT: &str = "left";
/// Another port, to redirect and send to.
pub const OTHER_PORT: &str = "right";

/// Something that runs modules on packets.
pub trait Level {
    /// Which.
    fn level(&self) -> abi::Level;

    /// Runs a case in a fresh instance of its module. An instance that traps on
    /// a frame of `before` is replaced, as a node does.
    ///
    /// # Errors
    /// When the case could not be run at all; what a module does is an [`Outcome`].
    fn run(&mut self, case: &Case) -> Result<Outcome, LevelError>;
}

/// Why a level could not run a case: nothing that the table speaks of.
#[derive(Debug, thiserror::Error)]
pub enum LevelError {
    /// The module is not there.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// The module does not keep to the ABI.
    #[error(transparent)]
    Check(#[from] abi::CheckError),
    /// The case's parameters are not the module's.
    #[error(transparent)]
    Parameters(#[from] abi::manifest::ParameterError),
    /// The engine does not take the module.
    #[error(transparent)]
    Compile(#[from] engine::CompileError),
    /// No memory for an instance, or a wrong export that the check let pass.
    #[error("the instance cannot be made: {0}")]
    Start(engine::StartError),
    /// The compiler does not make eBPF of it: at least one reason.
    #[error("it does not become eBPF: {}", .0.first().map_or_else(String::new, ToString::to_string))]
    Refused(Vec<wasm_to_bpf::Refusal>),
    /// The kernel runs no program over a frame of this length.
    #[error("the kernel runs no program over a frame of {length} bytes: {source}")]
    Frame {
        /// Its bytes.
        length: usize,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// Something else in the kernel.
    #[error(transparent)]
    Alone(AloneError),
    /// The module redirected or sent to a port that the level does not have.
    #[error("the module named port {number}, which is none of this level's")]
    Port {
        /// The number.
        number: u16,
    },
}

/// The word for [`LevelError::Frame`] in the table.
const FRAME_LENGTH: &str = "frame_length";
/// The word for a program that the kernel's verifier gives up on.
const VERIFIER: &str = "verifier";

impl LevelError {
    /// The word with which a case declares that a level refuses it, when this is such a refusal.
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

/// What is not as expected, one sentence each; none when the level conforms.
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
