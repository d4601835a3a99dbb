//! `tam lab`: a topology of network namespaces with a node in each router.
//!
//! ```text
//! FILE ─▶ topology ─▶ namespaces, links, routes
//!                └─▶ nodes.rs: a node file and a process for each router, and by links.rs for
//!                    each link that delays, loses or reorders
//! ```

mod links;
mod nodes;

pub(crate) use nodes::{Start, node_name, remove_files, start_all, wait_for};

use super::Context;
use crate::failure::{DONE, Failure, Outcome};
use crate::nodes as found_nodes;
use crate::output::Rows;
use crate::user_files::read_file;
use api::{ErrorCode, SCHEMA_VERSION};
use clap::Subcommand;
use serde_json::json;
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use topology::{Down, LabError, NodeKind, Plan, PlanError};
use units::Name;

/// Largest topology file, in bytes. The parser has a lower limit of its own.
const FILE_LENGTH_MAX: u64 = 2 << 20;

/// Subcommands of `tam lab`.
#[derive(Debug, Subcommand)]
pub enum Lab {
    /// Build the lab of a topology file, and start a node in each router
    ///
    /// A link can have a rate, an mtu and a vlan. With delay, jitter, loss, burst, reorder, late,
    /// duplicate, queue or seed a node is placed in the link and applies them
    /// (docs/guides/flakeway.md), as in:
    ///
    /// ends = ["client", "r1"], delay = "10ms", loss = "0.1%", rate = "10Mbit"
    Up {
        /// The topology
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Start no nodes in the routers: the kernel forwards
        #[arg(long)]
        no_nodes: bool,
        /// The service for links that delay, lose or reorder; by default the sample service
        /// flakeway
        #[arg(long, value_name = "FILE.wasm")]
        flakeway: Option<PathBuf>,
    },
    /// List the labs of this machine
    List,
    /// Show the nodes of a lab, their addresses, and the impairments of its links
    Show {
        /// The topology's file, or the lab's name
        #[arg(value_name = "FILE|NAME")]
        lab: String,
    },
    /// Remove a lab with every process in it
    Down {
        /// The topology's file, or the lab's name
        #[arg(value_name = "FILE|NAME", required_unless_present = "all")]
        lab: Option<String>,
        /// Remove all labs, and the remains of dead labs and dead nodes
        #[arg(long, conflicts_with = "lab")]
        all: bool,
    },
    /// Run a command in a host or router of a lab
    Exec {
        /// The topology's file, or the lab's name
        #[arg(value_name = "FILE|NAME")]
        lab: String,
        /// The host or router
        #[arg(value_name = "HOST|ROUTER")]
        inside: String,
        /// The command and its arguments
        #[arg(value_name = "COMMAND", last = true, required = true)]
        command: Vec<String>,
    },
}

impl Lab {
    pub(crate) fn run(self, context: &Context<'_>) -> Outcome {
        match self {
            Self::Up { file, no_nodes, flakeway } => {
                let start = if no_nodes { Start::Links } else { Start::All };
                up(&file, start, flakeway.as_deref(), context)
            }
            Self::List => list(context),
            Self::Show { lab } => show(&lab_name(&lab)?, context),
            Self::Down { lab: Some(lab), .. } => down(&lab_name(&lab)?, context),
            Self::Down { lab: None, .. } => down_all(context),
            Self::Exec { lab, inside, command } => {
                exec(&lab_name(&lab)?, &inside, &command, context)
            }
        }
    }
}

fn up(file: &Path, start: Start, flakeway: Option<&Path>, context: &Context<'_>) -> Outcome {
    let plan = read_plan(file)?;
    let lab = plan.lab.as_str();
    let flakeway = links::module_for(&plan, flakeway)?;
    let made = topology::up(&plan, &mut |line| context.output.progress(line)).map_err(of_lab)?;
    let started = nodes::start_all(&plan, start, flakeway.as_deref(), context.output);
    let started = started.inspect_err(|_| {
        // An incomplete lab is removed; the first failure is the one to report.
        let _ = topology::down(lab);
        nodes::remove_files(lab);
    })?;
    let document = json!({
        "schema_version": SCHEMA_VERSION,
        "lab": plan.lab,
        "namespaces": made.namespaces,
        "record": made.record,
        "nodes": started,
        "plan": plan,
    });
    context.output.result(&document, || up_text(&plan, &started))
}

fn up_text(plan: &Plan, started: &[String]) -> String {
    let nodes = match started {
        [] => "no node runs in it".to_owned(),
        _ => format!("nodes: {}", started.join(", ")),
    };
    let lab = &plan.lab;
    let inside = plan.nodes.first().map(|node| node.name.as_str()).unwrap_or_default();
    format!(
        "lab {lab} is up; {nodes}\n\n{}\n\
         next: tam lab exec {lab} {inside} -- ip address; tam lab down {lab}",
        plan_text(plan)
    )
}

/// Prints a row for each lab; one whose record cannot be read has the reason in place of numbers.
fn list(context: &Context<'_>) -> Outcome {
    let mut labs = Vec::new();
    let mut rows = Rows::new(["lab", "hosts", "routers", "links", "nodes", "state"]);
    for lab in topology::list().map_err(of_lab)? {
        let state = match topology::load(&lab) {
            Ok(state) => state,
            Err(error) => {
                let none = String::new;
                rows.add([lab.clone(), none(), none(), none(), none(), error.to_string()]);
                labs.push(json!({ "lab": lab, "state": "damaged", "problem": error.to_string() }));
                continue;
            }
        };
        let count = |kind| state.plan.nodes.iter().filter(|node| node.kind == kind).count();
        let [hosts, routers] = [NodeKind::Host, NodeKind::Router].map(count);
        let links = state.plan.links.len();
        let started = state.nodes.iter().filter(|node| node.pid.is_some());
        let nodes: Vec<Name> = started
            .filter_map(|node| nodes::node_name(&state.plan.lab, &node.router).ok())
            .collect();
        let running = nodes.iter().filter(|node| found_nodes::answers(node)).count();
        let word = lab_state(nodes.len(), running);
        rows.add([
            lab.clone(),
            hosts.to_string(),
            routers.to_string(),
            links.to_string(),
            format!("{running} of {}", nodes.len()),
            word.to_owned(),
        ]);
        labs.push(json!({
            "lab": lab,
            "hosts": hosts,
            "routers": routers,
            "links": links,
            "nodes": nodes,
            "nodes_running": running,
            "state": word,
        }));
    }
    let document = json!({ "schema_version": SCHEMA_VERSION, "labs": labs });
    context.output.result(&document, || match rows.count() {
        0 => "no lab is up; next: tam lab up FILE.toml".to_owned(),
        _ => rows.to_string(),
    })
}

/// Returns the state of a lab in which this many nodes were started, and so many of them answer.
const fn lab_state(started: usize, running: usize) -> &'static str {
    match started {
        0 => "links only",
        _ if running == started => "running",
        _ if running == 0 => "down",
        _ => "partly running",
    }
}

fn show(lab: &str, context: &Context<'_>) -> Outcome {
    let state = topology::load(lab).map_err(of_lab)?;
    let running = state.nodes.iter().filter(|node| node.pid.is_some());
    let nodes: Vec<String> = running
        .filter_map(|node| nodes::node_name(&state.plan.lab, &node.router).ok())
        .map(|name| name.to_string())
        .collect();
    let document = json!({
        "schema_version": SCHEMA_VERSION,
        "lab": state.plan.lab,
        "nodes": nodes,
        "plan": state.plan,
    });
    context
        .output
        .result(&document, || format!("nodes: {}\n\n{}", nodes.join(", "), plan_text(&state.plan)))
}

/// Formats the nodes with their addresses, and the impairments of links.
fn plan_text(plan: &Plan) -> String {
    let mut rows = Rows::new(["node", "kind", "device", "ipv4", "ipv6", "other end"]);
    for node in &plan.nodes {
        let kind = match node.kind {
            NodeKind::Host => "host",
            NodeKind::Router => "router",
            // A node in a link is shown with its link.
            NodeKind::Link => continue,
        };
        for (link, end) in plan.ends_at(node.name.as_str()) {
            let other = link.ends.iter().find(|other| other.node != end.node);
            rows.add([
                node.name.to_string(),
                kind.to_owned(),
                end.address_device.clone(),
                end.v4.to_string(),
                end.v6.to_string(),
                other.map(|other| other.node.to_string()).unwrap_or_default(),
            ]);
        }
    }
    match links::text(plan) {
        links if links.is_empty() => rows.to_string(),
        links => format!("{rows}\n{links}"),
    }
}

fn down(lab: &str, context: &Context<'_>) -> Outcome {
    let state = topology::load(lab).map_err(of_lab)?;
    let down = topology::down(lab).map_err(of_lab)?;
    let mut left = Vec::new();
    for router in state.plan.with_node() {
        let node = nodes::node_name(&state.plan.lab, &router.name);
        if let Some(node) = node.ok().filter(daemon::is_known) {
            left.extend(cleaned(&node)?);
        }
    }
    nodes::remove_files(lab);
    print_down(&down, &left, context)
}

fn down_all(context: &Context<'_>) -> Outcome {
    let mut failures = Vec::new();
    let down = topology::down_all().unwrap_or_else(|error| {
        failures.push(of_lab(error).message);
        Down::default()
    });
    let mut left = Vec::new();
    for node in dead_nodes()? {
        match cleaned(&node) {
            Ok(removed) => left.extend(removed),
            Err(failure) => failures.push(format!("node {node}: {}", failure.message)),
        }
    }
    nodes::remove_all_files();
    print_down(&down, &left, context)?;
    if failures.is_empty() {
        return Ok(DONE);
    }
    // The document was printed; failures go to people and into the status.
    context.output.note(&format!("error: {}", failures.join("; ")));
    Ok(ErrorCode::Partial.exit_status())
}

/// Returns the nodes of this machine that left remains and do not answer.
fn dead_nodes() -> Result<BTreeSet<Name>, Failure> {
    let pinned = bpf::front_door::pinned_nodes()
        .map_err(|error| Failure::io("listing what nodes have pinned", &error))?;
    let pinned = pinned.into_iter().filter_map(|name| Name::new(name).ok());
    let (_, without_answer) = found_nodes::found();
    Ok(pinned.filter(|node| !found_nodes::answers(node)).chain(without_answer).collect())
}

/// Removes the remains of a dead node; returns what was removed.
fn cleaned(node: &Name) -> Result<Vec<String>, Failure> {
    Ok(daemon::cleanup(node)?)
}

fn print_down(down: &Down, left: &[String], context: &Context<'_>) -> Outcome {
    let document = json!({
        "schema_version": SCHEMA_VERSION,
        "labs": down.labs,
        "namespaces": down.namespaces,
        "processes": down.processes,
        "left_by_nodes": left,
    });
    context.output.result(&document, || {
        let mut rows = Rows::pairs();
        let processes: Vec<_> = down.processes.iter().map(u32::to_string).collect();
        let all = [
            ("labs", &down.labs),
            ("namespaces", &down.namespaces),
            ("processes", &processes),
            ("left by nodes", &left.to_vec()),
        ];
        for (what, names) in all.into_iter().filter(|(_, names)| !names.is_empty()) {
            rows.add([what.to_owned(), names.join(", ")]);
        }
        if rows.count() == 0 { "nothing to remove".to_owned() } else { format!("removed\n{rows}") }
    })
}

fn exec(lab: &str, inside: &str, command: &[String], context: &Context<'_>) -> Outcome {
    if !context.output.is_json() {
        return Ok(status_of(topology::exec(lab, inside, command).map_err(of_lab)?));
    }
    let [program, arguments @ ..] = command else {
        return Err(Failure::new(ErrorCode::Usage, "there is no command to run"));
    };
    let mut child = Command::new(program);
    child.args(arguments);
    let output = topology::command_in(lab, inside, child)
        .map_err(of_lab)?
        .output()
        .map_err(|error| Failure::io(format!("running {program} in {inside}"), &error))?;
    let document = json!({
        "schema_version": SCHEMA_VERSION,
        "status": status_of(output.status),
        "stdout": String::from_utf8_lossy(&output.stdout),
        "stderr": String::from_utf8_lossy(&output.stderr),
    });
    context.output.result(&document, String::new)?;
    Ok(status_of(output.status))
}

/// Returns the exit status as a shell reports it: 128 plus the signal for a process that a signal
/// ended.
fn status_of(status: ExitStatus) -> u8 {
    const SIGNALLED: i32 = 128;
    let code = status.code().or_else(|| Some(SIGNALLED + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

/// Returns the name of the lab that an argument means: a topology file or the name itself.
fn lab_name(lab: &str) -> Result<String, Failure> {
    let path = Path::new(lab);
    if path.is_file() || lab.ends_with(".toml") || lab.contains('/') {
        return Ok(read_plan(path)?.lab.to_string());
    }
    Ok(lab.to_owned())
}

fn read_plan(file: &Path) -> Result<Plan, Failure> {
    let bytes = read_file(file, FILE_LENGTH_MAX)?;
    let shown = file.display().to_string();
    let text = String::from_utf8(bytes)
        .map_err(|_| Failure::new(ErrorCode::Usage, format!("{shown} is not UTF-8 text")))?;
    topology::Lab::parse(&text, &shown).map_err(|error| of_plan(&error))
}

fn of_plan(error: &PlanError) -> Failure {
    Failure::new(ErrorCode::Usage, error.to_string())
        .help("correct the topology file at that line; nothing was made")
}

pub(crate) fn of_lab(error: LabError) -> Failure {
    let code = match &error {
        LabError::NoLab { .. } | LabError::NoNode { .. } => ErrorCode::NotFound,
        LabError::NoCommand { .. } => ErrorCode::Usage,
        LabError::Exists { .. } | LabError::NamespaceTaken { .. } => ErrorCode::Failed,
        _ => return Failure::from_chain(&anyhow::Error::new(error)),
    };
    Failure::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_seen_in_the_status() {
        assert_eq!(status_of(ExitStatus::from_raw(9)), 137);
        assert_eq!(status_of(ExitStatus::from_raw(3 << 8)), 3);
    }

    #[test]
    fn a_labs_state_says_whether_all_of_its_nodes_answer() {
        let states = [(0, 0), (2, 2), (2, 0), (2, 1)].map(|(of, it)| lab_state(of, it));
        assert_eq!(states, ["links only", "running", "down", "partly running"]);
    }

    #[test]
    fn a_name_is_taken_as_it_is() {
        assert_eq!(lab_name("demo").unwrap(), "demo");
        assert_eq!(lab_name("/nonexistent/lab.toml").unwrap_err().code, ErrorCode::NotFound);
    }
}
