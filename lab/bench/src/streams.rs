//! Common parts of the stream benchmarks: external programs, lines that carry TCP, and the load.
//!
//! ```text
//! wrk, a client ─▶ s0 ═ n0 [ a node, or a proxy ] n1 ═ d0 ─▶ origin
//!     CPU 0                     CPU 1                       CPU 0
//! ```

pub(crate) mod dial;
pub(crate) mod nginx;
pub(crate) mod process;
pub(crate) mod web;
pub(crate) mod worker;
pub(crate) mod wrk;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::line::Line;
use crate::{Options, Plan, Service, Subject};

/// CPU of clients and origins; the measured program has the other one.
pub(crate) const LOAD_CPU: usize = 0;
/// Match of a rule for connections to the origin.
pub(crate) const TO_ORIGIN: &str = "proto tcp dport 80";
/// Address of the origin, one of the far addresses behind a node.
pub(crate) const ORIGIN: &str = "10.201.0.1:80";
/// Address of a proxy that clients have to name.
pub(crate) const PROXY: &str = "10.200.0.2";

/// Makes a folder for a run; it is removed on drop.
pub(crate) fn folder() -> Result<tempfile::TempDir> {
    tempfile::tempdir().context("making a folder for the run")
}

/// Makes a folder within another.
pub(crate) fn within(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    std::fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
    Ok(path)
}

/// Returns the plan of a node with a service for connections to the origin.
pub(crate) fn plan(line: &Line, name: &str, service: Service) -> Plan {
    Plan { rule: Some(TO_ORIGIN.to_owned()), ..line.plan(name, Some(service)) }
}

/// Returns the processes of a node whose time counts as the service's: its daemon and its cell.
pub(crate) fn node(subject: &mut dyn Subject, name: &str) -> Result<Vec<u32>> {
    Ok(subject.processes(name)?.pids.to_vec())
}

/// Raises the limit of descriptors, here and in processes started from here.
pub(crate) fn raise_descriptors(needed: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    ensure!(
        limit.maximum.is_none_or(|most| most >= needed),
        "the connections of this run need {needed} descriptors and the limit is {}: raise it \
         (ulimit -Hn)",
        limit.maximum.unwrap_or_default()
    );
    let raised = Rlimit { current: limit.maximum, ..limit };
    setrlimit(Resource::Nofile, raised).context("raising the limit of descriptors")
}

/// Returns the seconds of a run of wrk, which accepts whole ones only.
pub(crate) const fn seconds(quick: bool) -> u64 {
    if quick { 1 } else { 3 }
}

/// Returns the number of rounds; the quick run has time for one only.
pub(crate) fn rounds(options: &Options) -> u32 {
    if options.quick { options.rounds.unwrap_or(1) } else { options.rounds() }
}
