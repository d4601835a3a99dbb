//! Record of a lab in `/run/tamandua/lab/NAME.json`: its plan, and the processes of its nodes. It
//! is written before the first namespace is made, so that a lab whose maker died can be removed by
//! name, and is removed after the last namespace.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use units::Name;

use crate::error::LabError;
use crate::plan::{Plan, SCHEMA_VERSION};
use crate::process;
use crate::suggest::did_you_mean_or_list;

/// Folder of the labs' records; like the labs themselves it does not survive a reboot.
pub const STATE_DIRECTORY: &str = "/run/tamandua/lab";

/// Existing lab.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Version of this structure.
    pub schema_version: u32,
    /// Plan that the lab was made from.
    pub plan: Plan,
    /// Processes of the nodes in its routers and links.
    pub nodes: Vec<NodeProcess>,
}

/// Process of the node in a router or a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeProcess {
    /// Name of the router, or of the node in a link.
    pub router: Name,
    /// Process number; `None` if no process was started.
    pub pid: Option<u32>,
    /// Start time of the process in the kernel's ticks since boot: a process of the same number
    /// that started at another time is unrelated.
    pub started: Option<u64>,
}

/// Reads the record of a lab.
///
/// # Errors
/// The lab does not exist, or its record cannot be read.
pub fn load(lab: &str) -> Result<State, LabError> {
    let path = path_of(lab)?;
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Err(no_lab(lab)),
        Err(source) => return Err(LabError::Record { action: "read", path, source }),
    };
    serde_json::from_str(&text).map_err(|source| LabError::Damaged { path, source })
}

/// Returns the names of all labs that have a record, sorted.
///
/// # Errors
/// The directory cannot be read.
pub fn list() -> Result<Vec<String>, LabError> {
    let refused =
        |source| LabError::Record { action: "list", path: STATE_DIRECTORY.into(), source };
    let entries = match fs::read_dir(STATE_DIRECTORY) {
        Ok(entries) => entries,
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(refused(source)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(refused)?.file_name();
        if let Some(name) = name.to_str().and_then(|name| name.strip_suffix(".json")) {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Records the process of a router's node, so that removing the lab ends it. One caller at a time:
/// the record is read, changed and replaced.
///
/// # Errors
/// The lab does not exist, router or process.
pub fn record_pid(lab: &str, router: &str, pid: u32) -> Result<(), LabError> {
    let mut state = load(lab)?;
    let started = process::started(pid).map_err(|source| LabError::Process {
        action: "examine",
        pid,
        source,
    })?;
    let Some(node) = state.nodes.iter_mut().find(|node| node.router.as_str() == router) else {
        return Err(no_node(lab, router, state.nodes.iter().map(|node| node.router.as_str())));
    };
    node.pid = Some(pid);
    node.started = Some(started);
    let path = path_of(lab)?;
    write(&state, &path, |new| fs::rename(new, &path)).map_err(|source| LabError::Record {
        action: "write",
        path: path.clone(),
        source,
    })
}

/// Writes the record of a lab about to be made; of two concurrent callers one succeeds.
pub(crate) fn create(plan: &Plan) -> Result<(), LabError> {
    let path = path_of(plan.lab.as_str())?;
    let nodes = plan
        .with_node()
        .map(|node| NodeProcess { router: node.name.clone(), pid: None, started: None })
        .collect();
    let state = State { schema_version: SCHEMA_VERSION, plan: plan.clone(), nodes };
    let link = |new: &Path| {
        // A link, not a rename: it refuses to replace.
        let linked = fs::hard_link(new, &path);
        fs::remove_file(new)?;
        linked
    };
    let written = fs::create_dir_all(STATE_DIRECTORY).and_then(|()| write(&state, &path, link));
    written.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => LabError::Exists { lab: plan.lab.to_string() },
        _ => LabError::Record { action: "write", path: path.clone(), source },
    })
}

/// Removes the record; a missing one is no error.
pub(crate) fn remove(lab: &str) -> Result<(), LabError> {
    let path = path_of(lab)?;
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(LabError::Record { action: "remove", path, source })
        }
        _ => Ok(()),
    }
}

pub(crate) fn no_node<'name>(
    lab: &str,
    node: &str,
    names: impl IntoIterator<Item = &'name str> + Clone,
) -> LabError {
    let suggestion = did_you_mean_or_list(node, names);
    LabError::NoNode { lab: lab.to_owned(), node: node.to_owned(), suggestion }
}

fn no_lab(lab: &str) -> LabError {
    let names = list().unwrap_or_default();
    let suggestion = did_you_mean_or_list(lab, names.iter().map(String::as_str));
    LabError::NoLab { lab: lab.to_owned(), suggestion }
}

/// Writes a file atomically: under another name, then renamed.
fn write(
    state: &State,
    path: &Path,
    place: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let new = path.with_extension(format!("new-{}", std::process::id()));
    let mut file = fs::File::create(&new)?;
    file.write_all(&serde_json::to_vec_pretty(state)?)?;
    place(&new)
}

/// Returns the path of a lab's record; an error for text from a command line that is no name.
fn path_of(lab: &str) -> Result<PathBuf, LabError> {
    match Name::new(lab) {
        Ok(name) => Ok(Path::new(STATE_DIRECTORY).join(format!("{name}.json"))),
        Err(_) => Err(LabError::NoLab {
            lab: lab.chars().take(64).flat_map(char::escape_default).collect(),
            suggestion: String::new(),
        }),
    }
}
