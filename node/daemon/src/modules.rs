//! The node's modules: what the API asks of the store.

use crate::access::Caller;
use crate::daemon::{Daemon, Done};
use crate::deploy::{self, Module};
use crate::http::Answer;
use crate::reply::Reply;
use crate::views::{failed, usage};
use api::{ModuleList, ModuleStored, SCHEMA_VERSION};
use module_store::Digest;
use std::collections::BTreeSet;

impl Daemon {
    /// Lets go of modules that no service has run for long; the store has them.
    pub(crate) fn forget_modules(&mut self) {
        let used: BTreeSet<Digest> =
            self.modules.keys().copied().filter(|digest| self.is_used(digest)).collect();
        deploy::forget(&mut self.modules, |digest| used.contains(digest));
    }

    /// Whether a service runs a module, or a change that is going on needs it.
    pub(crate) fn is_used(&self, digest: &Digest) -> bool {
        let (digest, work) = (digest.to_string(), self.work.as_ref());
        self.node.digests().any(|used| used == digest)
            || work.is_some_and(|work| work.needs(&digest))
    }

    pub(crate) fn module_list(&mut self, caller: &Caller) -> Answer<ModuleList> {
        let listing = self.store.list().map_err(failed)?;
        let modules = self
            .may_read_modules(caller, listing.modules)
            .into_iter()
            .map(|module| ModuleStored {
                schema_version: SCHEMA_VERSION,
                digest: module.digest.to_string(),
                name: module.name.unwrap_or_default(),
                version: module.version.unwrap_or_default(),
                size_bytes: module.bytes,
            })
            .collect();
        Ok(ModuleList { schema_version: SCHEMA_VERSION, modules })
    }

    /// Writes a module to the disk, and compiles it meanwhile: it comes to be run. `early` is an
    /// answer before it is written.
    pub(crate) fn put_module(&mut self, wasm: Vec<u8>, early: bool, reply: Reply<ModuleStored>) {
        let module = match Module::check(wasm) {
            Ok(module) => module,
            Err(problem) => return reply.refuse(usage(problem)),
        };
        let digest = Digest::of(&module.wasm);
        let (store, done) = (self.store.clone(), self.done.clone());
        let (wasm, manifest) = (module.wasm.clone(), module.checked.manifest.clone());
        self.stored_for_node(wasm.len() as u64);
        let answer = ModuleStored {
            schema_version: SCHEMA_VERSION,
            digest: digest.to_string(),
            name: manifest.name.to_string(),
            version: manifest.version.clone(),
            size_bytes: wasm.len() as u64,
        };
        let reply = match early {
            true => {
                reply.ok(answer.clone());
                None
            }
            false => Some(reply),
        };
        let (written, awaited) = std::sync::mpsc::channel();
        self.desired.begin_store(&digest, awaited);
        tokio::task::spawn_blocking(move || {
            let stored = store.put(&wasm, &manifest).map(drop).map_err(failed);
            // Nobody may be waiting, and the daemon may be gone.
            let _ = written.send(stored.clone());
            let _ = done.send(Done::Stored(digest, stored.map(|()| answer), reply));
        });
        let bpf = self.bpf_now();
        let is_compiled = self.modules.entry(digest).or_insert(module).code(bpf).is_some();
        // One at a time: a whole repository may be on its way to this store. What may not run is
        // not compiled, either.
        if !is_compiled && self.compilers.is_idle() && self.permit(&digest).is_ok() {
            self.compile(digest, self.node.bpf());
        }
    }

    /// A module is in the store, or could not be written.
    pub(crate) fn stored(
        &mut self,
        digest: Digest,
        stored: Answer<ModuleStored>,
        reply: Option<Reply<ModuleStored>>,
    ) {
        self.demand_stored(&digest);
        // What runs is in use, whether or not its file could be written once more.
        match &stored {
            Err(problem) if !self.is_used(&digest) => {
                self.modules.remove(&digest);
                self.desired.not_stored(digest, problem.clone());
            }
            Err(problem) => {
                // It is being deployed, which must fail.
                let (written, awaited) = std::sync::mpsc::channel();
                let _ = written.send(Err(problem.clone()));
                self.desired.stores.push(awaited);
            }
            Ok(_) => self.forget_modules(),
        }
        if let Some(reply) = reply {
            reply.answer(stored);
        }
    }
}
