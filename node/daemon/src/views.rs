//! Requests of the API, and the documents that answer them.

use crate::access::Caller;
use crate::answer::{Answer, error, failed, usage};
use crate::cells::AfterReport;
use crate::control::apply::{generations, shown_desired};
use crate::control::authorize;
use crate::control::authorize::readable;
use crate::control::signatures::SignatureWrite;
use crate::daemon::{Daemon, Done};
use crate::demand::Tried;
use crate::deploy::Module;
use crate::ledger;
use crate::observe::documents;
use crate::observe::documents::backup::BackupRead;
use crate::observe::documents::node::node_info;
use crate::observe::documents::rules::rule_list;
use crate::observe::documents::trust::revocations;
use crate::reply::Reply;
use crate::request::{Incoming, Request};
use api::{DesiredInfo, ErrorCode, ModuleList, ModuleStored, SCHEMA_VERSION};
use module_store::Digest;
use node::ServiceState;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// Longest wait of a handover for changes to end: a new version is watched for half a second.
const SETTLED_WITHIN: Duration = Duration::from_secs(3);

impl Daemon {
    /// Handles a request. Modules that it names are fetched first, but those of `tried`, which were
    /// fetched, or were not to be had.
    pub(crate) fn handle(&mut self, incoming: Incoming, tried: Tried) {
        self.control.set_now(self.now());
        if let Some(incoming) = self.demand.fetch_first(&mut self.control, incoming, tried) {
            self.handle_fetched(incoming);
        }
        self.release_fetched();
    }

    /// Handles the requests whose modules have been fetched.
    pub(crate) fn release_fetched(&mut self) {
        while let Some((incoming, tried)) = self.demand.poll_released() {
            self.handle(incoming, tried);
        }
    }

    /// Handles a request for which the modules that it names have been looked for.
    pub(crate) fn handle_fetched(&mut self, Incoming { caller, request }: Incoming) {
        self.control.set_now(self.now());
        self.control.set_reusable(self.runtime.plane.instances().reusable());
        match request {
            Request::Change(change) => self.control.handle_change(caller, change),
            request => {
                let observe = &self.observe;
                let rule_of = |id| observe.rule_of_capture(id);
                let state = self.control.state_mut();
                match authorize::check_request(state, &caller, &request, &rule_of) {
                    Ok(()) => self.answer(caller, request),
                    Err(refusal) => request.refuse(refusal),
                }
            }
        }
    }

    /// Answers a request, now or when what it needs has come. Whoever no longer waits for the answer
    /// does not get it.
    fn answer(&mut self, caller: Caller, request: Request) {
        let sight = authorize::sight(self.control.state_mut(), &caller);
        match request {
            // Control handles them.
            Request::Change(change) => self.control.handle_change(caller, change),
            Request::Node(reply) => reply.ok(node_info(&self.view(), &sight)),
            Request::Services(reply) => {
                self.runtime.after_report(AfterReport::Services(sight, reply))
            }
            Request::Service(wanted, reply) => {
                self.runtime.after_report(AfterReport::Service(wanted, reply));
            }
            Request::Message(wanted, message, reply) => self.message(&wanted, &message, reply),
            Request::Rules(reply) => reply.answer(rule_list(&self.view(), &sight)),
            Request::Events(since, wait, reply) => {
                self.observe.handle_events(self.now(), (since, wait), sight, reply);
            }
            Request::BeginCapture(request, reply) => {
                let (observe, view) = self.observe();
                let begun = observe.begin_capture(&view, &request);
                self.tell_taps();
                reply.answer(begun);
            }
            Request::Captured(id, wait, reply) => {
                let (observe, view) = self.observe();
                observe.handle_captured(&view, (id, wait), reply);
                self.tell_taps();
            }
            Request::EndCapture(id, reply) => match self.observe.check_capture(id) {
                Ok(()) => self.runtime.after_report(AfterReport::CaptureEnds(id, reply)),
                Err(refusal) => reply.refuse(refusal),
            },
            Request::Metrics(reply) => self.runtime.after_report(AfterReport::Metrics(reply)),
            Request::Why(reply) => reply.ok(self.observe.why_list(&self.view(), &sight)),
            Request::Explain(request, reply) => self.explain(&request, reply),
            Request::Modules(reply) => reply.answer(self.module_list(&caller)),
            Request::PutModule(wasm, early, reply) => self.put_module(wasm, early, reply),
            Request::MayPull(_, reply) => reply.ok(()),
            Request::WantPull(digest, hops, reply) => {
                self.demand.want_for_pull(&mut self.control, caller, digest, hops, reply);
                self.release_fetched();
            }
            Request::AddSignatures(wanted, request, reply) => {
                self.add_signatures(&wanted, &request.file, reply);
            }
            Request::Stats(reply) => self.runtime.after_report(AfterReport::Stats(sight, reply)),
            Request::Revoke(request, reply) => self.control.handle_revocation(&request, reply),
            Request::Revocations(reply) => reply.ok(revocations(self.control.state().authority())),
            Request::Backup(reply) => {
                let latest = self.control.state_mut().capability_time().0;
                let read = BackupRead::new(&self.view(), latest);
                drop(tokio::task::spawn_blocking(move || reply.answer(read.run())));
            }
            Request::Desired(reply) => self.desired_info(reply),
            Request::Ledger(question) => {
                ledger::answer(&self.runtime.usage.billing, &self.node_key, question)
            }
            Request::Sessions(reply) => {
                self.runtime.after_report(AfterReport::Sessions(sight, reply))
            }
            Request::Session(wanted, reply) => {
                self.runtime.after_report(AfterReport::Session(sight, wanted, reply));
            }
            Request::HandOver(reply) => {
                self.handover.waiting = Some((Instant::now() + SETTLED_WITHIN, reply));
                self.hand_over_settled();
            }
        }
    }

    fn desired_info(&self, reply: Reply<DesiredInfo>) {
        let mut info = shown_desired(&self.file, self.control.desired());
        let journal = self.control.desired().journal();
        // Beside the loop: the journal may be waiting for the disk.
        tokio::task::spawn_blocking(move || {
            let listed = journal.lock().unwrap_or_else(PoisonError::into_inner).list();
            reply.answer(match listed {
                Ok(heads) => {
                    info.generations = generations(heads);
                    Ok(info)
                }
                Err(problem) => Err(failed(problem)),
            });
        });
    }

    /// Writes a module to the disk, and compiles it meanwhile: it comes to be run. `early` is an
    /// answer before it is written.
    fn put_module(&mut self, wasm: Vec<u8>, early: bool, reply: Reply<ModuleStored>) {
        let module = match Module::check(wasm) {
            Ok(module) => module,
            Err(problem) => return reply.refuse(usage(problem)),
        };
        let digest = Digest::of(&module.wasm);
        let (store, done) = (self.control.modules().store().clone(), self.done.clone());
        let (wasm, manifest) = (module.wasm.clone(), module.checked.manifest.clone());
        let account = self.control.state().account(None, None);
        self.runtime.usage.billing.add_fetched(&account, wasm.len() as u64);
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
        let modules = self.control.state_mut().modules_mut();
        let written = modules.begin_store(&digest);
        modules.insert(digest, module);
        let may_run = modules.permit(&digest).is_ok();
        tokio::task::spawn_blocking(move || {
            let stored = store.put(&wasm, &manifest).map(drop).map_err(failed);
            // Nobody may be waiting, and the daemon may be gone.
            let _ = written.send(stored.clone());
            let _ = done.send(Done::Stored(digest, stored.map(|()| answer), reply));
        });
        let state = self.control.state();
        let is_compiled = state.modules().code(&digest, state.bpf_now()).is_some();
        // One at a time: a whole repository may be on its way to this store. What may not run is
        // not compiled, either.
        if !is_compiled && self.runtime.compilers.is_idle() && may_run {
            self.runtime.compilers.compile(self.control.state(), digest, self.control.node().bpf());
        }
    }

    /// Handles a module that is in the store, or could not be written.
    pub(crate) fn stored(
        &mut self,
        digest: Digest,
        stored: Answer<ModuleStored>,
        reply: Option<Reply<ModuleStored>>,
    ) {
        self.demand.handle_stored(&digest);
        self.control.handle_stored(digest, stored.as_ref().map(drop).map_err(Clone::clone));
        if let Some(reply) = reply {
            reply.answer(stored);
        }
    }

    /// Returns the modules of the store that a client may run.
    fn module_list(&mut self, caller: &Caller) -> Answer<ModuleList> {
        let listing = self.control.modules().store().list().map_err(failed)?;
        let modules = readable(self.control.state_mut(), caller, listing.modules);
        Ok(documents::modules::module_list(modules))
    }

    /// Keeps a client's signatures of a module, beside the loop.
    fn add_signatures(&mut self, wanted: &str, file: &str, reply: Reply<api::SignaturesStored>) {
        match SignatureWrite::new(self.control.state_mut().modules_mut(), wanted, file) {
            Ok(write) => drop(tokio::task::spawn_blocking(move || reply.answer(write.run()))),
            Err(refusal) => reply.refuse(refusal),
        }
    }

    /// Answers a request to hand over when no change is under way and no new version is watched, or
    /// when that takes too long. Nobody hears then what became of a change, and the next daemon goes
    /// on with what a snapshot has, which is the version before.
    pub(crate) fn hand_over_settled(&mut self) {
        let is_settled = self.control.is_settled();
        let is_due = |(until, _): &mut (Instant, _)| is_settled || *until <= Instant::now();
        let Some((_, reply)) = self.handover.waiting.take_if(is_due) else { return };
        self.handover.is_done = true;
        let (node, pid) = (self.file.name.to_string(), std::process::id());
        reply.ok(api::HandedOver { schema_version: SCHEMA_VERSION, node, pid });
    }

    /// Gives a message to a service that runs; the cell's answer goes to `reply`.
    fn message(
        &mut self,
        wanted: &str,
        request: &api::MessageRequest,
        reply: Reply<api::MessageAnswers>,
    ) {
        let checked = self.control.state().find(wanted).and_then(|service| {
            if service.state != ServiceState::Running {
                return Err(failed(format!("the service '{wanted}' does not run at present")));
            }
            Ok((service.entry, message_bytes(&request.data_hex)?))
        });
        match checked {
            Ok((entry, bytes)) => {
                self.runtime.cells.deliver(entry, bytes, reply);
            }
            Err(refusal) => reply.refuse(refusal),
        }
    }
}

/// The bytes of a control message.
fn message_bytes(digits: &str) -> Answer<Vec<u8>> {
    let length_max = abi::host::MESSAGE_LENGTH_MAX;
    if digits.len() > 2 * length_max {
        let message = format!("a message has at most {length_max} bytes");
        return Err(error(ErrorCode::Limit, message, None));
    }
    let wrong = || usage("'data_hex' has an even number of hexadecimal digits");
    if !digits.len().is_multiple_of(2) || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    let pairs = (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16));
    pairs.collect::<Result<_, _>>().map_err(|_| wrong())
}
