//! `tam run`: runs a module over a capture, packet by packet, in this process.
//!
//! ```text
//! FILE.pcap ─▶ capture ─▶ parse_frame ─▶ lanes ─▶ instance ─▶ outcome ─▶ report
//!                             │                  (engine, kernel)   ├▶ OUT.pcap
//!                             │                                     └▶ expect
//!                             └─▶ frames that no rule can match: the front door's own outcome
//! ```
//!
//! Needs no node and no device. At `user` it uses the same engine as a cell and needs no root; at
//! `nic` and `kernel` it runs the same program as a node, in the kernel. The steps of a node after
//! the module (route, TTL, MAC addresses) do not happen here.

pub(super) mod capture;
mod expect;
mod instance;
mod lanes;
mod reader;
mod report;

use super::{Context, key_and_value, read_packet_module};
use crate::failure::{Failure, Outcome};
use abi::{Checked, Level};
use api::ErrorCode;
use capture::{Capture, CaptureWriter};
use clap::Args;
use expect::{Actual, Expectation};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use units::Name;

pub(crate) use lanes::Lanes;
pub(crate) use report::Report;

/// Arguments of `tam run`.
#[derive(Debug, Args)]
pub struct Run {
    /// The module
    #[arg(value_name = "MODULE.wasm")]
    module: PathBuf,
    /// The capture: pcap or pcapng, of Ethernet
    #[arg(value_name = "FILE.pcap")]
    capture: PathBuf,
    /// A parameter of the module; may be repeated
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = key_and_value)]
    parameters: Vec<(String, String)>,
    /// Compare the results with the expectations in this file, and fail when they differ
    #[arg(long, value_name = "FILE.toml")]
    expect: Option<PathBuf>,
    /// Write the packets that the module passes, and those that it sends, to this file
    #[arg(long, value_name = "OUT.pcap")]
    out: Option<PathBuf>,
    /// The level to run at: user, or nic or kernel, which need root
    #[arg(long, default_value = "user", value_parser = level)]
    level: Level,
    /// The name of a port that the module can look up; numbered from 0, packets enter by the first
    #[arg(long = "port", value_name = "NAME")]
    ports: Vec<Name>,
}

impl Run {
    /// Returns the arguments for a run of a project's own capture.
    pub(crate) fn of_project(module: &Path, capture: &Path, expect: Option<PathBuf>) -> Self {
        Self {
            module: module.to_owned(),
            capture: capture.to_owned(),
            parameters: Vec::new(),
            expect,
            out: None,
            level: Level::User,
            ports: Vec::new(),
        }
    }

    pub(crate) fn run(self, context: &Context<'_>) -> Outcome {
        self.report()?.print(context)
    }

    /// Runs the module over the capture.
    pub(crate) fn report(self) -> Result<Report, Failure> {
        let (bytes, checked) = read_packet_module(&self.module)?;
        let mut capture = Capture::open(&self.capture)?;
        let mut expected = self.expect.as_deref().map(Expectation::read).transpose()?;
        let mut out = self.out.as_deref().map(CaptureWriter::create).transpose()?;
        let said = expected.as_mut().map(|expected| std::mem::take(&mut expected.parameters));
        let mut given = said.unwrap_or_default();
        given.extend(self.parameters);
        let parameters = parameters(&checked, given)?;
        let named = expected.as_ref().map_or(&[][..], |expected| &expected.ports);
        let names = if self.ports.is_empty() { named } else { &self.ports };
        let ports = (0..).zip(names).map(|(id, name)| (name.to_string(), id)).collect();
        let mut lanes = Lanes::start(&bytes, &checked, parameters, ports, self.level)?;
        let mut report = Report::new(&checked, &bytes, &self.capture);
        let mut found = Actual::default();
        while let Some(frame) = capture.next_frame() {
            let frame = match frame {
                Ok(frame) => frame,
                Err(fault) => {
                    report.end_with(fault);
                    break;
                }
            };
            let done = lanes.handle(&frame)?;
            if let Some(out) = &mut out {
                out.write(frame.time, &done)?;
            }
            let verdict = report.add(&frame, &done);
            if expected.is_some() {
                found.verdicts.push(verdict);
                found.out.extend(capture::leaving(&done).map(|frame| frame.into_owned()));
            }
        }
        if let Some(out) = out {
            out.finish()?;
        }
        report.finish(lanes.counters());
        if let Some(expected) = &expected {
            found.counters = lanes.counters();
            report.compare(expected.differences(&found)?);
        }
        Ok(report)
    }
}

/// Parses the name of a level.
fn level(word: &str) -> Result<Level, String> {
    let words = || Level::ALL.iter().map(|level| level.name()).collect::<Vec<_>>().join(", ");
    let found = Level::ALL.iter().find(|level| level.name() == word);
    found.copied().ok_or_else(|| format!("a level is one of: {}", words()))
}

/// Returns the bytes that `param_load` returns for each parameter.
pub(crate) fn parameters(
    checked: &Checked,
    given: BTreeMap<String, String>,
) -> Result<BTreeMap<String, Vec<u8>>, Failure> {
    let values = checked
        .manifest
        .values(&given)
        .map_err(|error| Failure::new(ErrorCode::Usage, error.to_string()))?;
    Ok(values.into_iter().map(|(name, value)| (name.to_string(), value.to_bytes())).collect())
}
