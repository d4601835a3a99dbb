//! `tam bench load`: how long a module takes to run.
//!
//! First what compiling and loading alone take ([`program`]), then what an operator sees
//! ([`node`]): from a request to the first packet that the service has handled, cold and warm,
//! alone and in place of a version that runs. docs/benchmarks/load.md says it in whole sentences.

pub(crate) mod first;
pub(crate) mod module;
mod node;
pub(crate) mod program;
pub(crate) mod timed;

use anyhow::Result;

use crate::measurement::Measured;
use crate::{Options, Subject};

pub(crate) fn run(
    options: &Options,
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Measured> {
    let mut measured = node::run(options, subject, progress)?;
    measured.measurements.extend(program::run(options, progress)?);
    Ok(measured)
}
