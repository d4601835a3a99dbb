//! Running labs: making one, running commands in it, removing it.

use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use namespaces::netns::{self, NetNs, NetnsError};
use serde::Serialize;
use units::Name;

use crate::build::build;
use crate::error::LabError;
use crate::plan::{NAMESPACE_PREFIX, Plan};
use crate::process::{self, Held};
use crate::state::{self, STATE_DIRECTORY, State, load};

/// Result of making a lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Up {
    /// Name of the lab.
    pub lab: Name,
    /// Network namespaces, in the order of the plan's nodes.
    pub namespaces: Vec<String>,
    /// Path of the lab's record.
    pub record: PathBuf,
}

/// Result of removing labs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Down {
    /// Names of the removed labs that had a record.
    pub labs: Vec<String>,
    /// Removed namespaces, of labs and of dead labs' remains.
    pub namespaces: Vec<String>,
    /// Processes that were ended: nodes, and all others that ran inside.
    pub processes: Vec<u32>,
}

/// Makes a lab completely or not at all: after a failure everything is removed. `progress` gets a
/// line for each step.
///
/// # Errors
/// The lab exists, the caller is not root, or the kernel lacks a feature.
pub fn up(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Up, LabError> {
    state::create(plan)?;
    let mut namespaces = Vec::new();
    match build(plan, &mut namespaces, progress) {
        Ok(()) => Ok(Up {
            lab: plan.lab.clone(),
            namespaces,
            record: PathBuf::from(STATE_DIRECTORY).join(format!("{}.json", plan.lab)),
        }),
        Err(error) => {
            // The first failure is the one to tell; what cannot be removed now keeps its
            // record and goes with `down`.
            if remove_namespaces(&namespaces, &mut Down::default()).is_ok() {
                let _ = state::remove(plan.lab.as_str());
            }
            Err(error)
        }
    }
}

/// Removes a lab: ends its nodes and all other processes in it, then removes its namespaces with
/// all devices.
///
/// # Errors
/// The lab does not exist, or a part cannot be removed; the record stays then, and a second call
/// continues.
pub fn down(lab: &str) -> Result<Down, LabError> {
    let mut removed = Down::default();
    take_down(&load(lab)?, &mut removed)?;
    Ok(removed)
}

/// Removes all labs, and every namespace named `tam-*` that a dead lab left.
///
/// # Errors
/// The first failure, after everything else was tried.
pub fn down_all() -> Result<Down, LabError> {
    down_matching("")
}

/// Removes like [`down_all`] the labs whose name begins with `prefix`.
fn down_matching(prefix: &str) -> Result<Down, LabError> {
    let mut removed = Down::default();
    let mut failure = None;
    for lab in state::list()?.into_iter().filter(|lab| lab.starts_with(prefix)) {
        let done = match load(&lab) {
            Ok(state) => take_down(&state, &mut removed),
            // Its namespaces are removed below, by their names.
            Err(LabError::Damaged { .. }) => state::remove(&lab),
            // Somebody else removed it meanwhile.
            Err(LabError::NoLab { .. }) => Ok(()),
            Err(error) => Err(error),
        };
        failure = failure.or(done.err());
    }
    let prefix = format!("{NAMESPACE_PREFIX}{prefix}");
    let orphans: Vec<String> =
        netns::list()?.into_iter().filter(|name| name.starts_with(&prefix)).collect();
    failure = failure.or(remove_namespaces(&orphans, &mut removed).err());
    match failure {
        None => Ok(removed),
        Some(error) => Err(error),
    }
}

/// Runs a command in a node of a lab and waits for it, on this terminal.
///
/// # Errors
/// The lab or node does not exist, no command, or it cannot be started.
pub fn exec(lab: &str, node: &str, argv: &[String]) -> Result<ExitStatus, LabError> {
    let [program, arguments @ ..] = argv else {
        return Err(LabError::NoCommand { node: node.to_owned() });
    };
    let mut command = Command::new(program);
    command.args(arguments);
    command_in(lab, node, command)?.status().map_err(|source| LabError::Command {
        program: program.clone(),
        node: node.to_owned(),
        source,
    })
}

/// Returns a command that will start in a node of a lab, for the caller to start.
///
/// # Errors
/// The lab or node does not exist.
pub fn command_in(lab: &str, node: &str, mut command: Command) -> Result<Command, LabError> {
    let state = load(lab)?;
    let Some(found) = state.plan.node(node) else {
        let names = state.plan.nodes.iter().map(|node| node.name.as_str());
        return Err(state::no_node(lab, node, names));
    };
    netns::command_in(&NetNs::open(&found.namespace)?, &mut command)?;
    Ok(command)
}

fn take_down(state: &State, removed: &mut Down) -> Result<(), LabError> {
    // The nodes first, while their devices are still there to be restored.
    let nodes = state.nodes.iter().filter_map(|node| Held::begun_at(node.pid?, node.started?));
    removed.processes.extend(process::end(nodes.collect()));
    let namespaces: Vec<String> =
        state.plan.nodes.iter().map(|node| node.namespace.clone()).collect();
    remove_namespaces(&namespaces, removed)?;
    state::remove(state.plan.lab.as_str())?;
    removed.labs.push(state.plan.lab.to_string());
    Ok(())
}

/// Removes namespaces and all processes inside; missing ones are no error.
fn remove_namespaces(names: &[String], removed: &mut Down) -> Result<(), LabError> {
    let inodes: Vec<u64> =
        names.iter().filter_map(|name| NetNs::open(name).ok()?.inode().ok()).collect();
    let inside = process::inside(&inodes).map_err(|source| LabError::Record {
        action: "find the processes of",
        path: PathBuf::from("/proc"),
        source,
    })?;
    removed.processes.extend(process::end(inside));
    let mut failure = None;
    for name in names {
        match netns::delete(name) {
            Ok(()) => removed.namespaces.push(name.clone()),
            Err(NetnsError::Missing { .. }) => {}
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    match failure {
        None => Ok(()),
        Some(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;
