//! Node under test: a real `tam node` in a router of a lab, asked over its API.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::client::Client;
use api::{Budget, DeployRequest, Deployed, ServiceInfo, Stats};
use namespaces::netns::command_in;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use units::Name;

use crate::net::Net;
use crate::wait_for;

/// Folder in memory for nodes' state, if there is such a file system: each change is on the disk
/// before it is answered, which takes some 10 ms on a disk that others write to. State on full or
/// failing disks is tested on disks of the tests' own.
const IN_MEMORY: &str = "/dev/shm";
/// Time for a node to load its programs and start its cell, on a busy machine.
const START_TIME_MAX: Duration = Duration::from_secs(20);
/// Time for a node to remove its pins and restore its devices after it was asked to end.
const STOP_TIME_MAX: Duration = Duration::from_secs(10);
/// Folder of the nodes' pinned BPF objects.
const PINS: &str = "/sys/fs/bpf/tamandua";

static NODES: AtomicU32 = AtomicU32::new(0);

/// Running node; on drop it is stopped, and its log is shown when the test panics.
#[derive(Debug)]
pub struct NodeUnderTest {
    name: Name,
    client: Client,
    directory: TempDir,
    child: Option<Child>,
}

/// Settings of a service to deploy, beside its module.
#[derive(Clone, Debug, Default)]
pub struct Service<'a> {
    /// Name of the service; the module's when empty.
    pub name: &'a str,
    /// Matches of the rules that lead to it.
    pub rules: &'a [&'a str],
    /// Parameters of the module, as text.
    pub parameters: &'a [(&'a str, &'a str)],
    /// Level to run at; user level when empty.
    pub level: &'a str,
    /// Services that passed packets go to next.
    pub then: &'a [&'a str],
    /// Budget below user level.
    pub budget: Option<Budget>,
    /// Session that pays; best-effort when empty.
    pub session: &'a str,
    /// Stage of its rules; that of its session when empty.
    pub stage: &'a str,
    /// Failure policy for its packets while it is down; the previous one, or open, when empty.
    pub on_failure: &'a str,
}

/// Returns the path of the program under test: `TAM_BIN`, or the workspace's release build.
#[must_use]
pub fn tam() -> PathBuf {
    let built = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release/tam");
    std::env::var_os("TAM_BIN").map_or_else(built, PathBuf::from)
}

/// Returns the bytes of one of the project's services, from `TAM_SERVICES` or the workspace.
///
/// # Errors
/// The service was not built.
pub fn service_module(name: &str) -> Result<Vec<u8>> {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../services");
    let folder = std::env::var_os("TAM_SERVICES").map_or_else(own, PathBuf::from);
    let path = folder.join(name).join(format!("{name}.wasm"));
    std::fs::read(&path).with_context(|| {
        format!("reading {}; 'tam build services/{name}' makes it", path.display())
    })
}

/// Returns the node file of a router: its links are the ports `left`, `right`, `port3` and so on.
/// `more` comes before the ports. The node's state is beside its store, at `STORE.state`.
#[must_use]
pub fn node_file(net: &Net, router: &str, name: &str, store: &Path, more: &str) -> String {
    let state = store.with_extension("state");
    let (store, state) = (store.display(), state.display());
    let mut text = format!("name = \"{name}\"\nstore = \"{store}\"\nstate = \"{state}\"\n{more}\n");
    for (number, (_, end)) in net.plan().ends_at(router).enumerate() {
        let port = match number {
            0 => "left".to_owned(),
            1 => "right".to_owned(),
            _ => format!("port{}", number + 1),
        };
        text += &format!("[[port]]\nname = \"{port}\"\ndevice = \"{}\"\n", end.device);
    }
    // Last, so that a test can add keys to the section.
    text + "[trust]\nunsigned = \"accept\"\n"
}

/// Describes the remains of a node on this machine; empty when it ended cleanly.
#[must_use]
pub fn leftovers(node: &Name) -> Vec<String> {
    let places = [Path::new(PINS).join(node.as_str()), run_directory(node)];
    places.iter().filter(|p| p.exists()).map(|p| p.display().to_string()).collect()
}

fn run_directory(node: &Name) -> PathBuf {
    Path::new(api::RUN_DIRECTORY).join(node.as_str())
}

impl NodeUnderTest {
    /// Starts a node in a router of a lab and waits until its cell is ready.
    ///
    /// # Errors
    /// The node does not come up; the message has its log.
    pub fn start(net: &Net, router: &str) -> Result<Self> {
        Self::start_with(net, router, "")
    }

    /// Starts a node with more lines in the node file.
    ///
    /// # Errors
    /// Same as [`start`](Self::start).
    pub fn start_with(net: &Net, router: &str, more: &str) -> Result<Self> {
        Self::start_edited(net, router, more, |text| text)
    }

    /// Starts a node with the node file changed by `edit`.
    ///
    /// # Errors
    /// Same as [`start`](Self::start).
    pub fn start_edited(
        net: &Net,
        router: &str,
        more: &str,
        edit: impl FnOnce(String) -> String,
    ) -> Result<Self> {
        let number = NODES.fetch_add(1, Ordering::Relaxed);
        let name = Name::new(format!("tt-sys-{}-{number}", std::process::id()))?;
        let directory = TempDir::new_in(IN_MEMORY).or_else(|_| TempDir::new())?;
        let store = directory.path().join("store");
        let text = edit(node_file(net, router, name.as_str(), &store, more));
        std::fs::write(directory.path().join("node.toml"), text)?;
        let client = Client::of(&name);
        let mut node = Self { name, client, directory, child: None };
        node.start_again(net, router)?;
        Ok(node)
    }

    /// Starts the same node once more, after [`kill`](Self::kill).
    ///
    /// # Errors
    /// The node does not come up; the message has its log.
    pub fn start_again(&mut self, net: &Net, router: &str) -> Result<()> {
        self.child = Some(self.spawn(net, router, &[])?);
        self.ready()
    }

    /// Starts another daemon that takes over from the running one; returns the exit status of the
    /// old one.
    ///
    /// # Errors
    /// The new daemon does not come up, or the old one does not end.
    pub fn take_over(&mut self, net: &Net, router: &str) -> Result<ExitStatus> {
        let next = self.spawn(net, router, &["--takeover"])?;
        let mut before = self.child.replace(next).context("the node does not run")?;
        let ended = wait_for(STOP_TIME_MAX, || before.try_wait().transpose());
        let status = ended.context("the daemon before runs on")??;
        self.ready()?;
        Ok(status)
    }

    fn spawn(&self, net: &Net, router: &str, more: &[&str]) -> Result<Child> {
        let log = File::options().create(true).append(true).open(self.log_file())?;
        let mut command = Command::new(tam());
        command
            .args(["node", "--config"])
            .arg(self.node_file())
            .args(more)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        command_in(&net.namespace(router)?, &mut command)?
            .spawn()
            .with_context(|| format!("starting {}", tam().display()))
    }

    fn ready(&mut self) -> Result<()> {
        let ready = wait_for(START_TIME_MAX, || {
            let ended = self.child.as_mut().is_some_and(|c| !matches!(c.try_wait(), Ok(None)));
            let ready = self.client.node().is_ok_and(|node| node.cell == "ready");
            (ended || ready).then_some(ready)
        });
        match ready {
            Some(true) => Ok(()),
            Some(false) => bail!("the node ended at once:\n{}", self.log()),
            None => bail!("the node was not ready in {START_TIME_MAX:?}:\n{}", self.log()),
        }
    }

    /// Returns the node's name.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Returns a client of its API.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the folder of its node file, store, state and log.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the daemon's process number.
    ///
    /// # Errors
    /// The daemon does not run.
    pub fn pid(&self) -> Result<u32> {
        Ok(self.child.as_ref().context("the node does not run")?.id())
    }

    /// Returns the path of its node file, which a test may change.
    #[must_use]
    pub fn node_file(&self) -> PathBuf {
        self.directory.path().join("node.toml")
    }

    /// Returns the cell's process number, also of a cell that an earlier daemon started.
    ///
    /// # Errors
    /// The node does not answer, or has no cell.
    pub fn cell(&self) -> Result<u32> {
        self.client.node()?.cell_pid.context("the node has no cell")
    }

    /// Returns the numbers of its worker processes: the cell, and running compilers.
    ///
    /// # Errors
    /// The node does not run.
    pub fn workers(&self) -> Result<Vec<u32>> {
        let pid = self.pid()?;
        let mut workers = Vec::new();
        for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let text = std::fs::read_to_string(task?.path().join("children"))?;
            workers.extend(text.split_whitespace().filter_map(|number| number.parse::<u32>().ok()));
        }
        Ok(workers)
    }

    /// Stores a module and deploys it.
    ///
    /// # Errors
    /// The node refuses either.
    pub fn deploy(&self, wasm: &[u8], service: &Service<'_>) -> Result<Deployed> {
        let module = self.client.store_module(wasm.to_vec())?.digest;
        let texts = |texts: &[(&str, &str)]| -> BTreeMap<String, String> {
            texts.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        Ok(self.client.deploy(&DeployRequest {
            name: (!service.name.is_empty()).then(|| service.name.to_owned()),
            module,
            parameters: texts(service.parameters),
            rules: service.rules.iter().map(|rule| (*rule).to_owned()).collect(),
            level: Some(if service.level.is_empty() { "user" } else { service.level }.to_owned()),
            budget: service.budget.clone(),
            then: service.then.iter().map(|next| (*next).to_owned()).collect(),
            session: (!service.session.is_empty()).then(|| service.session.to_owned()),
            stage: (!service.stage.is_empty()).then(|| service.stage.to_owned()),
            on_failure: (!service.on_failure.is_empty()).then(|| service.on_failure.to_owned()),
            ..DeployRequest::default()
        })?)
    }

    /// Removes a service with its rules and waits until it is gone: its name is free then.
    ///
    /// # Errors
    /// The node refuses, or the service does not end.
    pub fn remove(&self, service: &str) -> Result<()> {
        self.client.remove(service, true)?;
        let gone = || self.client.service(service).is_err().then_some(());
        wait_for(STOP_TIME_MAX, gone).with_context(|| format!("'{service}' does not end"))
    }

    /// Returns all counters.
    ///
    /// # Errors
    /// The node does not answer.
    pub fn stats(&self) -> Result<Stats> {
        Ok(self.client.stats()?)
    }

    /// Returns the state of a service.
    ///
    /// # Errors
    /// The service does not exist, or the node does not answer.
    pub fn service(&self, name: &str) -> Result<ServiceInfo> {
        Ok(self.client.service(name)?)
    }

    /// Returns its log so far.
    #[must_use]
    pub fn log(&self) -> String {
        let mut bytes = Vec::new();
        let read = File::open(self.log_file()).and_then(|mut file| file.read_to_end(&mut bytes));
        match read {
            Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) => format!("(the log cannot be read: {error})"),
        }
    }

    /// Asks the node to end, and waits for it.
    ///
    /// # Errors
    /// The node does not end in time.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.end(Signal::TERM)
    }

    /// Kills the node, so that it cannot clean up.
    ///
    /// # Errors
    /// The node does not run.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        self.end(Signal::KILL)
    }

    fn end(&mut self, signal: Signal) -> Result<ExitStatus> {
        let child = self.child.as_mut().context("the node does not run")?;
        if child.try_wait()?.is_none() {
            // The child is not waited for yet: the number is still its own.
            kill_process(Pid::from_child(child), signal)?;
        }
        let ended = wait_for(STOP_TIME_MAX, || child.try_wait().transpose());
        let status = ended
            .with_context(|| format!("the node runs on {STOP_TIME_MAX:?} after {signal:?}"))??;
        self.child = None;
        Ok(status)
    }

    fn log_file(&self) -> PathBuf {
        self.directory.path().join("node.log")
    }
}

impl Drop for NodeUnderTest {
    fn drop(&mut self) {
        if self.child.is_some() && self.stop().is_err() && self.kill().is_err() {
            eprintln!("the node {} could not be ended", self.name);
        }
        if std::thread::panicking() {
            eprintln!("--- log of the node {}\n{}---", self.name, self.log());
        }
        if leftovers(&self.name).is_empty() {
            return;
        }
        // Only a killed node leaves these, and its cell.
        let name = self.name.as_str();
        let cleaned = Command::new(tam()).args(["node", "--cleanup", name]).output();
        if !cleaned.as_ref().is_ok_and(|output| output.status.success()) {
            eprintln!("the node {name} was not cleaned up: {cleaned:?}");
        }
        for left in leftovers(&self.name) {
            if let Err(error) = std::fs::remove_dir_all(&left) {
                eprintln!("{left} was not removed: {error}");
            }
        }
    }
}
