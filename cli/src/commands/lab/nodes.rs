//! The nodes of a lab: a node file, a process and a log for each router, and for what stands in
//! links.

use super::links;
use crate::failure::Failure;
use crate::output::Output;
use api::{Client, ErrorCode};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use topology::{NodeKind, Plan, PlannedNode, STATE_DIRECTORY};
use units::Name;

/// A node that does not answer after so long does not come up.
const START_TIME_MAX: Duration = Duration::from_secs(10);
/// Between two questions whether it is up.
const ASK_INTERVAL: Duration = Duration::from_millis(20);
/// Lines of a log that are shown when a node does not come up.
const LOG_LINES_SHOWN: usize = 20;

/// A node that was started and has not answered yet.
struct Started {
    name: Name,
    child: Child,
    log: PathBuf,
    is_in_link: bool,
}

/// Which nodes are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// All.
    All,
    /// Those in links, without which nothing passes there; the kernel forwards in routers.
    Links,
}

/// Starts the nodes and waits until all answer, and those in links do what they are for; gives
/// their names. `flakeway` is the service's file, for a plan that has such links.
pub fn start_all(
    plan: &Plan,
    start: Start,
    flakeway: Option<&Path>,
    output: &Output,
) -> Result<Vec<String>, Failure> {
    let is_meant = |node: &&PlannedNode| start == Start::All || node.kind == NodeKind::Link;
    let nodes = plan.with_node().filter(is_meant);
    let started = nodes.map(|node| begin(plan, node, flakeway)).collect::<Result<Vec<_>, _>>()?;
    let mut names = Vec::new();
    for node in started {
        output.progress(&format!("waiting for node {}", node.name));
        wait_for(&node.name, node.child, &node.log)?;
        if node.is_in_link {
            links::wait_for_service(&node.name)?;
        }
        names.push(node.name.to_string());
    }
    Ok(names)
}

/// The name of a router's node.
pub fn node_name(lab: &Name, router: &Name) -> Result<Name, Failure> {
    Name::new(format!("{lab}-{router}")).map_err(|error| {
        Failure::new(ErrorCode::Usage, format!("the node of router {router}: {error}"))
            .help("choose shorter names for the lab or the router")
    })
}

fn begin(plan: &Plan, router: &PlannedNode, flakeway: Option<&Path>) -> Result<Started, Failure> {
    let name = node_name(&plan.lab, &router.name)?;
    let base = format!("{STATE_DIRECTORY}/{}.{}", plan.lab, router.name);
    let (config, log) =
        (PathBuf::from(format!("{base}.toml")), PathBuf::from(format!("{base}.log")));
    let text = node_file(plan, router, &name, &base, flakeway);
    let refused = |path: &Path| {
        let tried = format!("writing {}", path.display());
        move |error| Failure::io(tried, &error)
    };
    std::fs::write(&config, text).map_err(refused(&config))?;
    let file = File::create(&log).map_err(refused(&log))?;
    let errors = file.try_clone().map_err(refused(&log))?;
    let program =
        std::env::current_exe().map_err(|error| Failure::io("finding this program", &error))?;
    let mut command = Command::new(program);
    command.arg("node").arg("--config").arg(&config);
    // A group of its own: what is typed at the terminal does not reach it.
    command.stdin(Stdio::null()).stdout(file).stderr(errors).process_group(0);
    let child = topology::command_in(plan.lab.as_str(), router.name.as_str(), command)
        .map_err(super::of_lab)?
        .spawn()
        .map_err(|error| Failure::io(format!("starting node {name}"), &error))?;
    topology::record_pid(plan.lab.as_str(), router.name.as_str(), child.id())
        .map_err(super::of_lab)?;
    Ok(Started { name, child, log, is_in_link: router.kind == NodeKind::Link })
}

/// The router's own settings, its name, its devices as ports, a store and a state that go with
/// the lab.
fn node_file(
    plan: &Plan,
    router: &PlannedNode,
    name: &Name,
    base: &str,
    flakeway: Option<&Path>,
) -> String {
    let mut table = router.node.clone();
    table.insert("name".to_owned(), name.as_str().into());
    table.entry("store").or_insert_with(|| format!("{base}.store").into());
    table.entry("state").or_insert_with(|| format!("{base}.state").into());
    // A lab is its owner's alone: modules are tried there before anybody signs them.
    let trust = table.entry("trust").or_insert_with(|| toml::Table::new().into());
    if let Some(trust) = trust.as_table_mut().filter(|it| !it.contains_key("signers")) {
        trust.entry("unsigned").or_insert_with(|| "accept".into());
    }
    if let (Some(through), Some(module)) = (links::through(plan, &router.name), flakeway) {
        links::add_to(&mut table, through, module);
        return table.to_string();
    }
    let port = |device: &str| {
        let mut port = toml::Table::new();
        port.insert("name".to_owned(), device.into());
        port.insert("device".to_owned(), device.into());
        toml::Value::Table(port)
    };
    let ports = plan.ends_at(router.name.as_str()).map(|(_, end)| port(&end.device)).collect();
    table.insert("port".to_owned(), toml::Value::Array(ports));
    table.to_string()
}

/// Waits until the node answers.
pub(crate) fn wait_for(name: &Name, mut child: Child, log: &Path) -> Result<Child, Failure> {
    let client = Client::of(name);
    let end = Instant::now() + START_TIME_MAX;
    loop {
        if let Ok(node) = client.node()
            && node.pid == child.id()
        {
            return Ok(child);
        }
        let ended = child.try_wait().ok().flatten();
        if ended.is_none() && Instant::now() < end {
            std::thread::sleep(ASK_INTERVAL);
            continue;
        }
        let message = match ended {
            Some(status) => format!("node {name} ended before it answered ({status})"),
            None => {
                // It is ours and of no use; one that is gone already is what we want.
                let _ = child.kill();
                let _ = child.wait();
                format!("node {name} did not answer within {} s", START_TIME_MAX.as_secs())
            }
        };
        let log = log_end(log);
        return Err(Failure::failed(format!("{message}; the end of its log:\n{log}")));
    }
}

fn log_end(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
}

/// Removes node files, logs, stores and states of a lab.
pub fn remove_files(lab: &str) {
    remove_files_where(|name| name.starts_with(&format!("{lab}.")));
}

/// Removes node files, logs, stores and states of labs that are no more.
pub fn remove_all_files() {
    let labs = topology::list().unwrap_or_default();
    remove_files_where(|name| {
        name.split_once('.').is_some_and(|(lab, _)| !labs.iter().any(|known| known == lab))
    });
}

/// What cannot be removed is removed with the next lab of its name.
fn remove_files_where(is_meant: impl Fn(&str) -> bool) {
    let Ok(entries) = std::fs::read_dir(STATE_DIRECTORY) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| is_meant(name)) else { continue };
        let _ = match Path::new(name).extension().and_then(|kind| kind.to_str()) {
            Some("toml" | "log") => std::fs::remove_file(entry.path()),
            Some("store" | "state") => std::fs::remove_dir_all(entry.path()),
            _ => Ok(()),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_router_becomes_a_node_file() {
        let text = "name = \"l\"\n[[host]]\nname = \"a\"\n[[router]]\nname = \"r\"\n\
                    node = { fast_path = \"never\" }\n[[link]]\nends = [\"a\", \"r\"]\n";
        let plan = topology::Lab::parse(text, "test").unwrap();
        let router = plan.routers().next().unwrap();
        let name = node_name(&plan.lab, &router.name).unwrap();
        let file = node_file(&plan, router, &name, "/nonexistent/l.r", None);
        let node = daemon::NodeFile::parse(&file, "test").unwrap();
        assert_eq!((node.name.as_str(), node.ports.len()), ("l-r", 1));
        assert_eq!(node.fast_path, daemon::config::FastPath::Never);
        assert_eq!(node.store, Path::new("/nonexistent/l.r.store"));
    }
}
