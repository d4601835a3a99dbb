//! `tam bench load`: time from a module's bytes to its first packet.
//!
//! First compiling and loading alone ([`program`]), then an operator's view ([`node`]): from a
//! request to the first packet that the service has handled, cold and warm, as a new service and as
//! the replacement of a running version. Details in docs/benchmarks/load.md.

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
