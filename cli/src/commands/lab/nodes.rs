//! Nodes of a lab: a node file, a process and a log for each router, and for each node in a link.
//!
//! ```text
//!  Plan ─▶ node file ─▶ `tam node --config` in the router's namespace ─▶ answers ─▶ its name
//!              STATE_DIRECTORY/LAB.ROUTER.{toml,log,store,state}
//! ```
//!
//! Namespaces and links are made before (`topology`), and a lab that cannot start as a whole is
//! taken down by the caller.

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

/// Time within which a node has to answer.
const START_TIME_MAX: Duration = Duration::from_secs(10);
/// Interval at which a starting node is polled.
const ASK_INTERVAL: Duration = Duration::from_millis(20);
/// Last lines of a log that are shown when a node does not start.
const LOG_LINES_SHOWN: usize = 20;

/// Selection of a plan's nodes to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Nodes of routers, and those in links.
    All,
    /// Nodes in links only, without which nothing passes there; the kernel forwards in routers.
    Links,
}

/// Node whose process was started and which has not answered yet.
struct Started {
    name: Name,
    child: Child,
    log: PathBuf,
    is_in_link: bool,
}

/// Something that a lab keeps of a node, named `LAB.ROUTER.EXTENSION` in [`STATE_DIRECTORY`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Config,
    Log,
    Store,
    State,
}

/// Starts the nodes, waits until all answer and those in links run their service, and returns their
/// names. `flakeway` is the file of that service, for a plan that has such links.
///
/// # Errors
/// The first node that does not start. The others keep running; the caller takes the lab down.
pub fn start_all(
    plan: &Plan,
    start: Start,
    flakeway: Option<&Path>,
    output: &Output,
) -> Result<Vec<String>, Failure> {
    let is_meant = |node: &&PlannedNode| start == Start::All || node.kind == NodeKind::Link;
    let nodes = plan.with_node().filter(is_meant);
    // All are started before one is waited for: they start at the same time.
    let started = nodes.map(|node| spawn(plan, node, flakeway)).collect::<Result<Vec<_>, _>>()?;
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

/// Returns the name of a router's node.
///
/// # Errors
/// Lab and router together have a name that is too long for a node.
pub fn node_name(lab: &Name, router: &Name) -> Result<Name, Failure> {
    Name::new(format!("{lab}-{router}")).map_err(|error| {
        Failure::new(ErrorCode::Usage, format!("the node of router {router}: {error}"))
            .help("choose shorter names for the lab or the router")
    })
}

/// Writes the node file of a router and starts its node in the router's namespace.
fn spawn(plan: &Plan, router: &PlannedNode, flakeway: Option<&Path>) -> Result<Started, Failure> {
    let name = node_name(&plan.lab, &router.name)?;
    let [config, log] =
        [Kept::Config, Kept::Log].map(|kept| PathBuf::from(kept.path(&plan.lab, &router.name)));
    let refused = |path: &Path| {
        let tried = format!("writing {}", path.display());
        move |error| Failure::io(tried, &error)
    };
    std::fs::write(&config, node_file(plan, router, &name, flakeway)).map_err(refused(&config))?;
    let file = File::create(&log).map_err(refused(&log))?;
    let errors = file.try_clone().map_err(refused(&log))?;
    let program =
        std::env::current_exe().map_err(|error| Failure::io("finding this program", &error))?;
    let mut command = Command::new(program);
    command.arg("node").arg("--config").arg(&config);
    // In a process group of its own: signals from the terminal do not reach it.
    command.stdin(Stdio::null()).stdout(file).stderr(errors).process_group(0);
    let child = topology::command_in(plan.lab.as_str(), router.name.as_str(), command)
        .map_err(super::of_lab)?
        .spawn()
        .map_err(|error| Failure::io(format!("starting node {name}"), &error))?;
    topology::record_pid(plan.lab.as_str(), router.name.as_str(), child.id())
        .map_err(super::of_lab)?;
    Ok(Started { name, child, log, is_in_link: router.kind == NodeKind::Link })
}

/// Returns the text of a node file: settings of the router in the lab file, the node's name,
/// devices as ports, and a store and a state that are removed with the lab.
fn node_file(plan: &Plan, router: &PlannedNode, name: &Name, flakeway: Option<&Path>) -> String {
    let mut table = router.node.clone();
    table.insert("name".to_owned(), name.as_str().into());
    table.entry("store").or_insert_with(|| Kept::Store.path(&plan.lab, &router.name).into());
    table.entry("state").or_insert_with(|| Kept::State.path(&plan.lab, &router.name).into());
    // A lab has one user, who tries modules before anybody signs them.
    let trust = table.entry("trust").or_insert_with(|| toml::Table::new().into());
    if let Some(trust) = trust.as_table_mut().filter(|it| !it.contains_key("signers")) {
        trust.entry("unsigned").or_insert_with(|| "accept".into());
    }
    if let Some(through) = links::through(plan, &router.name) {
        let module = flakeway.expect("`links::module_for` finds it for a plan with such a link");
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

/// Waits until the node of this process answers.
///
/// # Errors
/// The process ends before, or does not answer within [`START_TIME_MAX`] and is killed; with the
/// end of its log.
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
                // Neither can fail but for a process that has ended meanwhile.
                let _ = child.kill();
                let _ = child.wait();
                format!("node {name} did not answer within {} s", START_TIME_MAX.as_secs())
            }
        };
        let log = log_end(log);
        return Err(Failure::failed(format!("{message}; the end of its log:\n{log}")));
    }
}

/// Returns the last lines of a log; none of one that cannot be read.
fn log_end(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
}

/// Removes node files, logs, stores and states of a lab.
pub fn remove_files(lab: &str) {
    remove_files_of(Path::new(STATE_DIRECTORY), |name| name == lab);
}

/// Removes node files, logs, stores and states of labs that no longer exist.
pub fn remove_all_files() {
    let labs = topology::list().unwrap_or_default();
    remove_files_of(Path::new(STATE_DIRECTORY), |name| !labs.iter().any(|known| known == name));
}

/// Removes the files that a folder holds for the labs whose names match. A file that cannot be
/// removed is left to the next lab of its name.
fn remove_files_of(folder: &Path, is_meant: impl Fn(&str) -> bool) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some((lab, _)) = name.to_str().and_then(|name| name.split_once('.')) else { continue };
        let _ = match Kept::of(Path::new(&name)).filter(|_| is_meant(lab)) {
            Some(Kept::Config | Kept::Log) => std::fs::remove_file(entry.path()),
            Some(Kept::Store | Kept::State) => std::fs::remove_dir_all(entry.path()),
            None => Ok(()),
        };
    }
}

impl Kept {
    const ALL: [Self; 4] = [Self::Config, Self::Log, Self::Store, Self::State];

    const fn extension(self) -> &'static str {
        match self {
            Self::Config => "toml",
            Self::Log => "log",
            Self::Store => "store",
            Self::State => "state",
        }
    }

    fn path(self, lab: &Name, router: &Name) -> String {
        format!("{STATE_DIRECTORY}/{lab}.{router}.{}", self.extension())
    }

    /// Returns the kind of a file or folder by its extension; `None` when it belongs to no node.
    fn of(name: &Path) -> Option<Self> {
        let extension = name.extension()?;
        Self::ALL.into_iter().find(|kept| extension == kept.extension())
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
        let file = node_file(&plan, router, &name, None);
        let node = daemon::NodeFile::parse(&file, "test").unwrap();
        assert_eq!((node.name.as_str(), node.ports.len()), ("l-r", 1));
        assert_eq!(node.fast_path, daemon::config::FastPath::Never);
        assert_eq!(node.store, Path::new(STATE_DIRECTORY).join("l.r.store"));
    }

    #[test]
    fn everything_of_the_meant_labs_is_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for file in ["one.r.toml", "one.r.log", "one.json", "one-more.r.toml", "toml"] {
            std::fs::write(at(file), "").unwrap();
        }
        for store in ["one.r.store", "one.r.state", "two.r.state"] {
            std::fs::create_dir(at(store)).unwrap();
            std::fs::write(at(store).join("blob"), "").unwrap();
        }
        remove_files_of(folder.path(), |lab| lab == "one");
        let mut left: Vec<_> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort_unstable();
        assert_eq!(left, ["one-more.r.toml", "one.json", "toml", "two.r.state"]);
    }

    #[test]
    fn the_end_of_a_log_is_its_last_lines_whatever_bytes_they_have() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        assert_eq!(log_end(&log), "", "there is none yet");
        std::fs::write(&log, b"first\n\xff\n").unwrap();
        assert_eq!(log_end(&log), "first\n\u{fffd}");
        let lines: Vec<String> = (0..=LOG_LINES_SHOWN).map(|line| line.to_string()).collect();
        std::fs::write(&log, lines.join("\n")).unwrap();
        assert_eq!(log_end(&log), lines[1..].join("\n"));
    }
}
