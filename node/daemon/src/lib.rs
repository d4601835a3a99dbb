//! The daemon: core/node's decisions made real.
//!
//! ```text
//!  HTTP ─▶ http ─▶ ┌────────┐ ─▶ front door (BPF maps, programs)
//!  cell ─▶ link ─▶ │ daemon │ ─▶ cell (a child process)
//!  netlink ──────▶ │        │ ─▶ ports (offloads, TUN)
//!  clock ────────▶ └────────┘ ─▶ log
//! ```
//!
//! A single task owns everything and does one thing at a time; what takes longer
//! (compiling, a cell's report) comes back to it as an event. It never runs a
//! module: that is the cell's.

#![forbid(unsafe_code)]

mod access;
mod answer;
mod associations;
pub mod backup;
mod barrier;
mod cells;
mod clock;
mod code_cache;
mod compilers;
mod completion;
pub mod config;
mod control;
mod daemon;
mod dataplane;
mod demand;
mod deploy;
mod done;
mod events;
mod http;
pub mod journal;
pub mod ledger;
mod life;
mod listen;
mod mounts;
mod node_key;
mod observe;
mod pace;
mod pending;
mod private;
mod pull;
mod record;
mod remote;
mod reply;
mod request;
mod runtime;
mod server;
mod sessions;
mod systemd;
mod token_file;
mod usage;

pub use config::{ConfigError, NodeFile, SAMPLE_CONFIG, Wanted};
pub use dataplane::requirements::MTU_MAX as PORT_MTU_MAX;
pub use journal::JournalError;

use anyhow::{Context, Result};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use units::Name;

/// Options of a node's start.
#[derive(Clone, Debug)]
pub struct Options {
    /// The node file.
    pub config: PathBuf,
    /// Set if modules may run as BPF programs; else all run at user level.
    pub bpf: bool,
    /// Set if a running daemon of this node is to end, and this one takes over what it runs.
    pub take_over: bool,
    /// Format of the log; cells write theirs in the same.
    pub log_format: LogFormat,
}

/// Format of the log on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// JSON, one object a line.
    Json,
}

impl LogFormat {
    /// Returns the format's name on a command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

impl std::str::FromStr for LogFormat {
    type Err = String;

    /// # Errors
    /// The text is neither `text` nor `json`.
    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Text, Self::Json]
            .into_iter()
            .find(|format| format.name() == text)
            .ok_or_else(|| format!("a log format is 'text' or 'json', not '{text}'"))
    }
}

/// Runs a node until SIGINT or SIGTERM; then takes down what it set up. Notifies a service manager
/// when the node is ready, or of the reason for its failure.
///
/// # Errors
/// The node file is wrong, another node of that name runs, or the kernel
/// or a device cannot do what the node needs.
pub fn run(options: Options) -> Result<()> {
    run_node(options).inspect_err(|error| {
        systemd::send(&systemd::Notifier::failed(&format!("{error:#}")));
    })
}

fn run_node(options: Options) -> Result<()> {
    sandbox::child::close_inherited_on_exec()
        .context("closing inherited file descriptors to child processes")?;
    let text = std::fs::read_to_string(&options.config)
        .with_context(|| format!("reading the node file {}", options.config.display()))?;
    let file = NodeFile::parse(&text, &options.config.display().to_string())?;
    // Before anything that runs is asked to end: a node without its key does not start.
    let key = node_key::open(&file.state)?;
    daemon::adopt::check_place(&file, &options.config)?;
    listen::check_addresses(&file)?;
    // The guest core is the cell's: what the daemon, its compilers and the verifier do for it
    // takes no time there, if there is another core.
    let guest_core = file.guest_core.unwrap_or_else(sandbox::cores::last);
    if let Err(error) = sandbox::cores::exclude(guest_core) {
        tracing::warn!(guest_core, %error, "the daemon may run on the guest core, too: its threads could not be kept from it");
    }
    deploy::set_guest_core(guest_core);
    let lock = if options.take_over { take_over(&file.name)? } else { life::lock(&file.name)? };
    mounts::warn_of_own();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let file = Arc::new(file);
    let (config, log_format) = (options.config, options.log_format);
    let start = daemon::Start { file, config, key: Arc::new(key), guest_core, log_format };
    let ended = runtime.block_on(life::run(start, lock, options.bpf));
    // A running compiler is not waited for: its code is no longer needed.
    runtime.shutdown_background();
    ended
}

/// A daemon that handed over has ended within this.
const HANDED_OVER_WITHIN: Duration = Duration::from_secs(10);

/// Asks the running daemon, if there is one, to hand the node over, and takes its name.
fn take_over(name: &Name) -> Result<File> {
    let client = api::Client::of(name).with_on_delay(Some(|place| {
        tracing::warn!(%place, "the daemon that runs does not answer yet; waiting for it");
    }));
    let hand_over = || -> Result<u32> {
        mounts::check_shared_with(client.node()?.pid)?;
        Ok(client.hand_over()?.pid)
    };
    match hand_over() {
        Ok(pid) => tracing::info!(pid, "the daemon before hands over"),
        Err(error) => match error.downcast_ref() {
            Some(api::ClientError::Unreachable { .. }) => {
                tracing::info!("no daemon of this node runs");
            }
            Some(api::ClientError::Silent { .. }) => {
                let lock = run_directory(name).join("lock");
                return Err(error.context(format!(
                    "the daemon of '{name}' hangs: end the process that holds {} (fuser says \
                     which) with SIGKILL, and start this one again: it adopts what runs",
                    lock.display()
                )));
            }
            _ => {
                return Err(error.context(format!("asking the node '{name}' to hand over")));
            }
        },
    }
    let asked = Instant::now();
    loop {
        match life::lock(name) {
            Err(_) if asked.elapsed() < HANDED_OVER_WITHIN => {
                std::thread::sleep(Duration::from_millis(5));
            }
            locked => return locked,
        }
    }
}

/// Returns the directory of a node's files that last as long as it runs.
fn run_directory(name: &Name) -> PathBuf {
    Path::new(api::RUN_DIRECTORY).join(name.as_str())
}

/// Returns true when something of the node is there, whether it runs or not: its run directory or
/// its pins.
#[must_use]
pub fn is_known(name: &Name) -> bool {
    let pins = Path::new(bpf::front_door::PIN_DIRECTORY).join(name.as_str());
    run_directory(name).exists() || pins.exists()
}

/// Removes what a dead node left: its cell, pins, offload settings, its run directory.
/// Gives the names of what was there.
///
/// # Errors
/// The node still runs, or something cannot be removed.
pub fn cleanup(name: &Name) -> Result<Vec<String>> {
    let lock = life::lock(name).context("another process holds the node")?;
    let take_down = || -> Result<Vec<String>> {
        let removed = daemon::adopt::take_down(name)?;
        dataplane::closing::open_names(name);
        Ok(removed)
    };
    let mut removed = match life::namespace_of(name)? {
        Some(namespace) => namespaces::netns::in_namespace(&namespace, take_down)??,
        None => take_down()?,
    };
    drop(lock);
    let directory = run_directory(name);
    if directory.exists() {
        std::fs::remove_dir_all(&directory)
            .with_context(|| format!("removing {}", directory.display()))?;
        removed.push(directory.display().to_string());
    }
    Ok(removed)
}
