//! Modules that the node holds: read from the store, checked, with their signers and their code.
//!
//! ```text
//! module, its signatures ─▶ store ─▶ signers ─ one of [trust] signers? ─▶ hold ─▶ compile, run
//!                                                └ none: refused, unless unsigned = "accept"
//! ```
//!
//! Every use of a module leads through [`Modules::hold`], so what it refuses runs nowhere. Nothing
//! is compiled here.

use crate::answer::{Answer, error};
use crate::answer::{failed, usage};
use crate::config::{TrustText, Unsigned};
use crate::deploy::{self, Code, Module};
use api::{ErrorCode, ErrorInfo};
use cell::Compiled;
use module_store::{Digest, Store};
use node::ModuleInfo;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use trust::Signer;

/// Largest number of modules that could not be written and are remembered: their deployments are
/// on their way.
const UNSTORED_MAX: usize = 64;

/// Receiver for the result of a write to the store.
pub(crate) type Stored = Receiver<Answer<()>>;

/// Modules in memory, in front of the store.
pub(crate) struct Modules {
    store: Store,
    held: BTreeMap<Digest, Module>,
    /// Signers that the node trusts.
    known: BTreeSet<Signer>,
    unsigned: Unsigned,
    /// Writes of the store under way: nothing that may name their modules is recorded before they
    /// have ended.
    stores: Vec<Stored>,
    /// Modules that could not be written, for clients that were answered before the write.
    unstored: BTreeMap<Digest, ErrorInfo>,
}

impl Modules {
    /// Creates the modules of a node, none of them in memory.
    pub(crate) fn new(store: Store, trust: &TrustText) -> Self {
        Self {
            store,
            held: BTreeMap::new(),
            known: trust.signers.clone(),
            unsigned: trust.unsigned,
            stores: Vec::new(),
            unstored: BTreeMap::new(),
        }
    }

    /// Returns the store behind them.
    pub(crate) const fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the modules in memory.
    pub(crate) const fn held(&self) -> &BTreeMap<Digest, Module> {
        &self.held
    }

    /// Returns a module that is in memory.
    pub(crate) fn get(&self, digest: &Digest) -> Option<&Module> {
        self.held.get(digest)
    }

    /// Returns true when a module need not be fetched.
    pub(crate) fn is_there(&self, digest: &Digest) -> bool {
        self.held.contains_key(digest) || self.store.has(digest)
    }

    /// Returns the code of a module in memory, compiled for the levels below user too if `bpf` says
    /// so.
    pub(crate) fn code(&self, digest: &Digest, bpf: bool) -> Option<&Arc<Compiled>> {
        self.held.get(digest)?.code(bpf)
    }

    /// Keeps the code of a module, if it is still in memory.
    pub(crate) fn set_code(&mut self, digest: &Digest, bpf: bool, compiled: &Arc<Compiled>) {
        if let Some(module) = self.held.get_mut(digest) {
            module.compiled = Some(Code { bpf, compiled: Arc::clone(compiled) });
        }
    }

    /// Keeps a checked module, unless it is in memory already.
    pub(crate) fn insert(&mut self, digest: Digest, module: Module) {
        self.held.entry(digest).or_insert(module);
    }

    /// Returns the digest of the module that a text names: by digest, or by name in the store.
    ///
    /// # Errors
    /// The module does not exist, or could not be written.
    pub(crate) fn resolve(&self, wanted: &str) -> Answer<Digest> {
        // One that is held need not be looked for, and may not be on the disk yet.
        let digest = wanted.parse().ok();
        if let Some(problem) = digest.and_then(|digest| self.unstored.get(&digest)) {
            return Err(problem.clone());
        }
        let held = digest.filter(|digest| self.held.contains_key(digest));
        held.map_or_else(|| self.store.resolve(wanted), Ok).map_err(|problem| {
            let help = "'tam deploy FILE.wasm' stores a module and deploys it";
            error(ErrorCode::NotFound, problem.to_string(), Some(help))
        })
    }

    /// Loads a module into memory, whether or not it may run, and returns its description.
    pub(crate) fn load(&mut self, digest: &Digest) -> Answer<ModuleInfo> {
        if !self.held.contains_key(digest) {
            let wasm = self.store.get(digest).map_err(failed)?;
            self.held.insert(*digest, Module::check(wasm).map_err(usage)?);
        }
        let module = self.held.get(digest).ok_or_else(|| failed("the module is gone"))?;
        Ok(ModuleInfo::of(digest.to_string(), &module.checked))
    }

    /// Loads a module that may run into memory, and returns its description.
    pub(crate) fn hold(&mut self, digest: &Digest) -> Answer<ModuleInfo> {
        let module = self.load(digest)?;
        self.permit(digest)?;
        Ok(module)
    }

    /// Returns the trusted signers of a module. For a module in memory, the store is read until one
    /// is found.
    pub(crate) fn signers_of(&mut self, digest: &Digest) -> Answer<BTreeSet<Signer>> {
        let held = self.held.get(digest).map(|module| module.signers.clone());
        match held {
            Some(signers) if self.known.is_empty() || !signers.is_empty() => return Ok(signers),
            _ if self.known.is_empty() => return Ok(BTreeSet::new()),
            _ => {}
        }
        let found = self.store.signers(digest, &self.known).map_err(failed)?.signers;
        if let Some(module) = self.held.get_mut(digest) {
            module.signers.clone_from(&found);
        }
        Ok(found)
    }

    /// Checks that a module in memory may run here at all.
    pub(crate) fn permit(&mut self, digest: &Digest) -> Answer<()> {
        if self.unsigned == Unsigned::Accept || !self.signers_of(digest)?.is_empty() {
            return Ok(());
        }
        let name = self.held.get(digest).map(|it| it.checked.manifest.name.to_string());
        Err(self.unsigned(digest, &name.unwrap_or_default()))
    }

    /// Checks that a module that is not in memory yet may run here.
    pub(crate) fn permit_new(&self, digest: &Digest, module: &Module) -> Answer<()> {
        match self.unsigned {
            Unsigned::Accept => Ok(()),
            Unsigned::Refuse if !module.signers.is_empty() => Ok(()),
            Unsigned::Refuse => Err(self.unsigned(digest, module.checked.manifest.name.as_str())),
        }
    }

    /// Returns the refusal of a module without a trusted signature.
    fn unsigned(&self, digest: &Digest, name: &str) -> ErrorInfo {
        let message = format!(
            "no signer that this node trusts has signed the module '{name}' ({}…)",
            digest.short()
        );
        let help = match self.known.is_empty() {
            true => {
                "put a key into the node file, [trust] signers = [\"ed25519/…\"] (`tam key new`), and sign with it (`tam sign`); or say there unsigned = \"accept\""
            }
            false => {
                "`tam sign MODULE.wasm --key NAME`, with a key of [trust] signers, and deploy it again"
            }
        };
        error(ErrorCode::Refused, message, Some(help))
    }

    /// Returns the signers that the node trusts.
    pub(crate) const fn known_signers(&self) -> &BTreeSet<Signer> {
        &self.known
    }

    /// Releases modules that no service has run for long; the store has them.
    pub(crate) fn forget(&mut self, is_used: impl Fn(&Digest) -> bool) {
        deploy::forget(&mut self.held, is_used);
    }

    /// Begins a write of a module. Returns the sender of its result.
    pub(crate) fn begin_store(&mut self, digest: &Digest) -> Sender<Answer<()>> {
        self.unstored.remove(digest);
        // Results of those that have ended were sent.
        self.stores.retain(|store| store.try_recv() == Err(TryRecvError::Empty));
        self.begin_write()
    }

    /// Begins a write beside a module that waits for all writes under way. Returns them, and the
    /// sender of its own result.
    pub(crate) fn begin_after_stores(&mut self) -> (Vec<Stored>, Sender<Answer<()>>) {
        let before = self.take_stores();
        (before, self.begin_write())
    }

    fn begin_write(&mut self) -> Sender<Answer<()>> {
        let (sender, receiver) = channel();
        self.stores.push(receiver);
        sender
    }

    /// Removes and returns the writes under way, for the caller to wait for.
    pub(crate) fn take_stores(&mut self) -> Vec<Stored> {
        std::mem::take(&mut self.stores)
    }

    /// Handles the failure of a write. A module that is used is being deployed, which then fails;
    /// another one is forgotten, and its deployment refused later.
    pub(crate) fn handle_not_stored(&mut self, digest: Digest, problem: ErrorInfo, is_used: bool) {
        if is_used {
            // Nobody may be recording.
            let _ = self.begin_write().send(Err(problem));
            return;
        }
        self.held.remove(&digest);
        if self.unstored.len() >= UNSTORED_MAX {
            self.unstored.pop_first();
        }
        self.unstored.insert(digest, problem);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::failed;

    fn wasm(number: u8) -> Vec<u8> {
        let manifest =
            format!(r#"abi = 1\nname = \"m{number}\"\nversion = \"0.1.0\"\nwindow = 0\n"#);
        let text = format!(
            r#"(module (@custom "tamandua" "{manifest}") (memory (export "memory") 1)
            (func (export "on_packet") (result i32) (i32.const 0)))"#
        );
        wat::parse_str(text).unwrap()
    }

    fn modules(unsigned: Unsigned) -> (Modules, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let trust = TrustText { unsigned, ..TrustText::default() };
        (Modules::new(store, &trust), folder)
    }

    fn put(modules: &Modules, number: u8) -> Digest {
        let module = Module::check(wasm(number)).unwrap();
        modules.store.put(&module.wasm, &module.checked.manifest).unwrap();
        Digest::of(&module.wasm)
    }

    #[test]
    fn a_module_of_the_store_is_loaded_once_and_an_unsigned_one_runs_only_where_that_is_accepted() {
        let (mut modules, _folder) = modules(Unsigned::Accept);
        let digest = put(&modules, 1);
        assert!(modules.is_there(&digest) && modules.get(&digest).is_none());
        assert_eq!(modules.resolve("m1").unwrap(), digest);
        assert_eq!(modules.hold(&digest).unwrap().digest, digest.to_string());
        assert!(modules.get(&digest).is_some());
        modules.unsigned = Unsigned::Refuse;
        let refused = modules.hold(&digest).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Refused);
        assert!(refused.message.contains("'m1'"), "{}", refused.message);
        assert!(modules.load(&digest).is_ok(), "it may be looked at");
    }

    #[test]
    fn a_module_that_could_not_be_written_is_refused_by_name_of_the_reason_until_it_comes_again() {
        let (mut modules, _folder) = modules(Unsigned::Accept);
        let digest = Digest::of(&wasm(2));
        modules.insert(digest, Module::check(wasm(2)).unwrap());
        assert_eq!(modules.resolve(&digest.to_string()).unwrap(), digest, "in memory");
        modules.handle_not_stored(digest, failed("the disk is full"), false);
        let refused = modules.resolve(&digest.to_string()).unwrap_err();
        assert_eq!(refused.message, "the disk is full");
        let _written = modules.begin_store(&digest);
        assert_ne!(modules.resolve(&digest.to_string()).unwrap_err().message, "the disk is full");
        for number in 0..=UNSTORED_MAX {
            let other = Digest::of(&number.to_le_bytes());
            modules.handle_not_stored(other, failed("full"), false);
        }
        assert_eq!(modules.unstored.len(), UNSTORED_MAX);
    }

    #[test]
    fn recording_waits_for_all_module_writes_and_fails_with_a_used_one() {
        let (mut modules, _folder) = modules(Unsigned::Accept);
        let [a, b] = [1, 2].map(|number| Digest::of(&wasm(number)));
        let ended = modules.begin_store(&a);
        ended.send(Ok(())).unwrap();
        let going_on = modules.begin_store(&b);
        let before = modules.take_stores();
        assert_eq!(before.len(), 1, "the first has ended");
        going_on.send(Ok(())).unwrap();
        assert!(before[0].recv().unwrap().is_ok());
        modules.handle_not_stored(a, failed("full"), true);
        let (before, _own) = modules.begin_after_stores();
        assert!(before[0].recv().unwrap().is_err());
        assert_eq!(modules.take_stores().len(), 1, "its own");
    }
}
