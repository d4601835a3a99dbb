//! What a node does when it starts: what its journal says, or, the first time and when its file
//! says something new, what its file says.
//!
//! | journal | node file | then |
//! |---|---|---|
//! | new | | the file's state is recorded |
//! | has a state | wants what it wanted when it was last followed | the journal's |
//! | has a state | wants something else | the file's, recorded |
//! | waits for a confirmation | | the state before it, recorded |
//!
//! What does not start is told and tried again; it stays desired.

use super::text::Found;
use super::{Modules, Purpose, Work, fingerprint, resolve};
use crate::config::NodeFile;
use crate::control::recording::Facts;
use crate::daemon::Daemon;
use crate::demand::fetch_for_start;
use crate::deploy::Module;
use crate::journal::{Journal, Record};
use crate::life::open_store;
use crate::state::Desired;
use anyhow::{Context, Result};
use module_store::Store;
use node::ModuleInfo;
use node::command::Memory;
use node::desired::{DesiredState, Place, check};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use units::Name;

/// Pause before what did not start is tried again; it doubles up to the longest.
const RETRY_PAUSE_MIN: Duration = Duration::from_secs(1);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(60);
/// Things that are left out one by one when a node cannot have its state as it is; beyond, what
/// is left is a new state, and an operator's.
const UNFIT_MAX: usize = 64;

/// Opens a node's journal and decides what shall run. `config` is the node file's path.
pub(crate) fn open(file: &NodeFile, config: &Path, store: &Store) -> Result<Desired> {
    let journal = Journal::open(&file.state, &file.name)?;
    let newest = journal.newest()?;
    let followed = journal.node_file()?;
    let fingerprint = fingerprint(&file.wanted);
    let back = match &newest {
        Some(Record { head, .. }) => head.unconfirmed_over.map(|to| (to, journal.read(to))),
        None => None,
    };
    let mut desired = Desired::new(journal, newest);
    desired.followed = Some(fingerprint.clone());
    if followed.as_ref() != Some(&fingerprint) {
        desired.fetched = fetch_for_start(file, config, store)?;
        let wanted = wanted_by_file(file, config, store, Keep::InStore)?;
        let cause = format!("node file {}", config.display());
        if followed.is_some() {
            tracing::info!(file = %config.display(), "the node file wants something new: it is followed");
        }
        let facts = Facts { node_file: Some(fingerprint), ..Facts::of(cause) };
        let wanted = wanted.with_owned_of(desired.state());
        desired.write_now(wanted, &facts)?;
    } else if let Some((to, record)) = back {
        let state =
            record.context("going back to the state before the one that nobody confirmed")?.state;
        let state = state.with_owned_of(desired.state());
        tracing::warn!(
            generation = to,
            "the node ended before its state was confirmed: it is taken back"
        );
        desired.write_now(
            state,
            &Facts::of(format!("not confirmed before a restart: back to generation {to}")),
        )?;
    }
    Ok(desired)
}

/// Checks what a node file wants, if it is not what was `followed` last: before a daemon that runs
/// is asked to leave its place. A file is not checked that names modules which have yet to come.
///
/// # Errors
/// The first mistake, with its place.
pub(crate) fn check_wanted(file: &NodeFile, config: &Path, followed: &str) -> Result<()> {
    if fingerprint(&file.wanted) == followed {
        return Ok(());
    }
    let store = open_store(file)?;
    let modules = file.wanted.services.iter().map(|service| &service.get_ref().module);
    let mut digests = modules.filter_map(|module| module.get_ref().parse().ok());
    if digests.any(|digest| !store.has(&digest)) {
        return Ok(());
    }
    wanted_by_file(file, config, &store, Keep::Nowhere).map(drop)
}

/// Destination of the modules that a node file names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    InStore,
    Nowhere,
}

/// The state that a node file asks for.
fn wanted_by_file(
    file: &NodeFile,
    config: &Path,
    store: &Store,
    keep: Keep,
) -> Result<DesiredState> {
    let beside = config.parent().unwrap_or_else(|| Path::new("."));
    let held = RefCell::new(BTreeMap::new());
    let put = |module: &str| {
        let path = beside.join(module);
        let wasm = std::fs::read(&path)
            .map_err(|error| format!("reading the module {}: {error}", path.display()))?;
        let checked = Module::check(wasm).map_err(|problem| problem.to_string())?;
        let digest = module_store::Digest::of(&checked.wasm);
        let unstored = Some(ModuleInfo::of(digest.to_string(), &checked.checked));
        held.borrow_mut().insert(digest, checked);
        Ok(Found { digest: digest.to_string(), unstored })
    };
    let modules = Modules { store, held: &BTreeMap::new(), find: &put };
    let resolved = resolve(&file.wanted, &modules)?;
    // What the node has to give is known when its ports are there; a session for which it is too
    // little comes without a promise then.
    resolved.check(&file.ports, None, &file.wanted)?;
    let modules = held.take().into_values().filter(|_| keep == Keep::InStore);
    for module in modules {
        store
            .put(&module.wasm, &module.checked.manifest)
            .context("keeping a module of the node file")?;
    }
    Ok(resolved.state)
}

impl Daemon {
    /// Starts what shall run and does not.
    pub(crate) fn resume(&mut self) {
        for bytes in std::mem::take(&mut self.desired.fetched) {
            self.stored_for_node(bytes);
        }
        self.renew_capacity();
        // Also of what cannot start, and of a daemon before, which did not write that down.
        self.node.await_rules(self.desired.state());
        let mut target = DesiredState::clone(self.desired.state());
        target.bpf &= self.bpf_allowed;
        self.desired.short.clear();
        self.desired.missing.clear();
        self.desired.unfit.clear();
        let mut modules = BTreeMap::new();
        for (name, service) in &self.desired.state().clone().services {
            let held = service.digest.parse().map_err(|_| "its digest is none".to_owned());
            match held.and_then(|digest| self.hold(&digest).map_err(|problem| problem.message)) {
                Ok(module) => drop(modules.insert(service.digest.clone(), module)),
                Err(reason) => self.leave_out(&mut target, name, reason),
            }
        }
        self.want_missing();
        for _ in 0..UNFIT_MAX {
            let checked = check(&self.file.ports, self.node.capacity(), &target, &modules);
            let Err(fault) = checked else { break };
            let reason = fault.refusal.to_string();
            match fault.place {
                Place::Session(name) => self.leave_short(&mut target, name, reason),
                Place::Service(name) | Place::Edges(name) => {
                    self.leave_out(&mut target, &name, reason);
                }
                Place::Rule(at) => {
                    let rule = target.rules.remove(at);
                    tracing::error!(rule = %rule.spec.r#match, reason, "a rule of the desired state is left out");
                    self.desired.unfit.push((rule, reason));
                }
                Place::Whole => break,
            }
        }
        if !self.desired.is_short() {
            self.retry_pause = RETRY_PAUSE_MIN;
        }
        let (services, rules) = (target.services.len(), target.rules.len());
        if services + rules > 0 {
            tracing::info!(
                services,
                rules,
                generation = self.desired.generation(),
                "the node resumes"
            );
        }
        let (facts, memory) = (Facts::default(), Memory::KeptIfPossible);
        self.begin_work(Work::new(target, facts, Purpose::Resume, memory));
    }

    fn leave_out(&mut self, target: &mut DesiredState, name: &Name, reason: String) {
        tracing::error!(service = %name, reason, "a service of the desired state cannot start");
        *target = target.restricted_to(|other| other != name);
        self.desired.missing.insert(name.clone(), reason);
    }

    /// A session that cannot be promised what it shall be comes without a promise.
    fn leave_short(&mut self, target: &mut DesiredState, name: Name, reason: String) {
        tracing::error!(session = %name, reason, "a session is promised nothing");
        match target.sessions.get_mut(&name) {
            Some(session) if session.reservation != Default::default() => {
                session.reservation = Default::default();
            }
            _ => target.remove_session(&name),
        }
        self.desired.short.insert(name, reason);
    }

    /// As much of it as is possible is there.
    pub(crate) fn resumed(&mut self) {
        if !self.desired.is_short() {
            return;
        }
        let pause = self.retry_pause;
        self.retry_pause = (pause * 2).min(RETRY_PAUSE_MAX);
        self.retry_at = Some(tokio::time::Instant::now() + pause);
    }

    /// Tries again what did not start.
    pub(crate) fn retry_missing(&mut self) {
        self.retry_at = None;
        if !self.is_idle() {
            self.retry_at = Some(tokio::time::Instant::now() + RETRY_PAUSE_MIN);
        } else if self.desired.is_short() {
            self.resume();
        }
    }
}
