//! Captures of a project: `captures/NAME.toml` holds the expectations for `captures/NAME.pcap`.

use crate::commands::run::Run;
use crate::failure::Failure;
use serde::Serialize;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Result of running one capture.
#[derive(Debug, Serialize)]
pub struct Checked {
    capture: PathBuf,
    packets: u64,
    /// Differences from the expectations; empty when there are none.
    pub differences: Vec<String>,
}

/// Runs a module over every capture that has expectations, in the order of names.
pub fn check(project: &Path, module: &Path) -> Result<Vec<Checked>, Failure> {
    expectations(&project.join("captures"))?.into_iter().map(|path| one(module, path)).collect()
}

fn one(module: &Path, expected: PathBuf) -> Result<Checked, Failure> {
    let pcapng = expected.with_extension("pcapng");
    let capture = if pcapng.exists() { pcapng } else { expected.with_extension("pcap") };
    let report = Run::of_project(module, &capture, Some(expected)).report()?;
    let mut differences = report.differences().unwrap_or_default().to_vec();
    differences.extend(report.fault().map(str::to_owned));
    Ok(Checked { capture, packets: report.packets(), differences })
}

/// Returns the files of expectations; none when there is no such folder.
fn expectations(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let refused = |error: io::Error| Failure::io(format!("reading {}", folder.display()), &error);
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(refused)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(refused)?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (capture, packets) = (self.capture.display(), self.packets);
        if self.differences.is_empty() {
            return write!(f, "{capture}: {packets} packets, as expected");
        }
        write!(f, "{capture}: {packets} packets, not as expected")?;
        self.differences.iter().try_for_each(|difference| write!(f, "\n  {difference}"))
    }
}
