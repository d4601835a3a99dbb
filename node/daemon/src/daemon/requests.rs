//! Requests of the API, and the documents that answer them.

use crate::access::Caller;
use crate::answer::{Answer, error, failed, usage};
use crate::cells::AfterReport;
use crate::control::apply::{generations, shown_desired};
use crate::control::authority::Visibility;
use crate::control::authorize::{self, readable};
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
use crate::observe::explain::Explaining;
use crate::observe::question::Asked;
use crate::reply::Reply;
use crate::request::{Incoming, Request};
use api::{
    DesiredInfo, ErrorCode, ErrorInfo, ExplainRequest, Explanation, ModuleList, ModuleStored,
    SCHEMA_VERSION,
};
use module_store::Digest;
use node::ServiceState;
use std::sync::PoisonError;
use units::{Bytes, Nanos};

/// Longest wait of a handover for changes to end: a new version is watched for half a second.
const SETTLED_WITHIN: Nanos = Nanos::from_millis(3_000);

/// Handles a request. Modules that it names are fetched first, but those of `tried`, which were
/// fetched, or were not to be had.
pub(super) fn handle(daemon: &mut Daemon, incoming: Incoming, tried: Tried) {
    daemon.control.set_now(daemon.now());
    if let Some(incoming) = daemon.demand.fetch_first(&mut daemon.control, incoming, tried) {
        handle_fetched(daemon, incoming);
    }
}

/// Handles the next request whose modules have been fetched. Returns false when there is none.
pub(super) fn handle_released(daemon: &mut Daemon) -> bool {
    let Some((incoming, tried)) = daemon.demand.poll_released() else { return false };
    handle(daemon, incoming, tried);
    true
}

/// Handles a request for which the modules that it names have been looked for.
fn handle_fetched(daemon: &mut Daemon, Incoming { caller, request }: Incoming) {
    daemon.control.set_now(daemon.now());
    match request {
        Request::Change(change) => daemon.control.handle_change(caller, change),
        request => {
            let observe = &daemon.observe;
            let rule_of = |id| observe.rule_of_capture(id);
            let state = daemon.control.state_mut();
            match authorize::check_request(state, &caller, &request, &rule_of) {
                Ok(()) => answer(daemon, caller, request),
                Err(refusal) => request.refuse(refusal),
            }
        }
    }
}

/// Answers a request, now or when what it needs has come. Whoever no longer waits for the answer
/// does not get it.
fn answer(daemon: &mut Daemon, caller: Caller, request: Request) {
    match request {
        // Control handles them.
        Request::Change(change) => daemon.control.handle_change(caller, change),
        Request::Node(reply) => {
            let sight = sight(daemon, &caller);
            reply.ok(node_info(&daemon.view(), &sight));
        }
        Request::Services(reply) => {
            let sight = sight(daemon, &caller);
            daemon.runtime.after_report(AfterReport::Services(sight, reply));
        }
        Request::Service(wanted, reply) => {
            daemon.runtime.after_report(AfterReport::Service(wanted, reply));
        }
        Request::Message(wanted, request, reply) => message(daemon, &wanted, &request, reply),
        Request::Rules(reply) => {
            let sight = sight(daemon, &caller);
            reply.answer(rule_list(&daemon.view(), &sight));
        }
        Request::Events(since, wait, reply) => {
            let sight = sight(daemon, &caller);
            daemon.observe.handle_events(daemon.now(), (since, wait), sight, reply);
        }
        Request::BeginCapture(request, reply) => {
            let (observe, view) = daemon.observe();
            let begun = observe.begin_capture(&view, &request);
            daemon.send_captures();
            reply.answer(begun);
        }
        Request::Captured(id, wait, reply) => {
            let (observe, view) = daemon.observe();
            observe.handle_captured(&view, (id, wait), reply);
            daemon.send_captures();
        }
        Request::EndCapture(id, reply) => match daemon.observe.check_capture(id) {
            Ok(()) => daemon.runtime.after_report(AfterReport::CaptureEnds(id, reply)),
            Err(refusal) => reply.refuse(refusal),
        },
        Request::Metrics(reply) => daemon.runtime.after_report(AfterReport::Metrics(reply)),
        Request::Why(reply) => {
            let sight = sight(daemon, &caller);
            reply.ok(daemon.observe.why_list(&daemon.view(), &sight));
        }
        Request::Explain(request, reply) => explain(daemon, &request, reply),
        Request::Modules(reply) => reply.answer(module_list(daemon, &caller)),
        Request::PutModule(wasm, early, reply) => put_module(daemon, wasm, early, reply),
        Request::MayPull(_, reply) => reply.ok(()),
        Request::WantPull(digest, hops, reply) => {
            daemon.demand.want_for_pull(&mut daemon.control, caller, digest, hops, reply);
        }
        Request::AddSignatures(wanted, request, reply) => {
            add_signatures(daemon, &wanted, &request.file, reply);
        }
        Request::Stats(reply) => {
            let sight = sight(daemon, &caller);
            daemon.runtime.after_report(AfterReport::Stats(sight, reply));
        }
        Request::Revoke(request, reply) => daemon.control.handle_revocation(&request, reply),
        Request::Revocations(reply) => reply.ok(revocations(daemon.control.state().authority())),
        Request::Backup(reply) => {
            let latest = daemon.control.state_mut().capability_time().0;
            let read = BackupRead::new(&daemon.view(), latest);
            drop(tokio::task::spawn_blocking(move || reply.answer(read.run())));
        }
        Request::Desired(reply) => desired_info(daemon, reply),
        Request::Ledger(question) => {
            ledger::answer(daemon.runtime.usage().billing(), &daemon.identity.node_key, question)
        }
        Request::Sessions(reply) => {
            let sight = sight(daemon, &caller);
            daemon.runtime.after_report(AfterReport::Sessions(sight, reply));
        }
        Request::Session(wanted, reply) => {
            let sight = sight(daemon, &caller);
            daemon.runtime.after_report(AfterReport::Session(sight, wanted, reply));
        }
        Request::HandOver(reply) => {
            let until = daemon.now() + SETTLED_WITHIN;
            match daemon.handover.waiting {
                Some(_) => reply.refuse(handover_is_waited_for()),
                None => daemon.handover.waiting = Some((until, reply)),
            }
            hand_over_settled(daemon);
        }
    }
}

/// Answers `POST /v1/why`, now or when the kernel has run a copy of the front door.
fn explain(daemon: &Daemon, request: &ExplainRequest, reply: Reply<Explanation>) {
    match daemon.observe.explain(&daemon.view(), request) {
        Ok(Explaining::Done(explanation)) => reply.ok(*explanation),
        Ok(Explaining::Run(run)) => {
            let done = daemon.done.clone();
            tokio::task::spawn_blocking(move || {
                let (question, explained) = run.run();
                let asked = Box::new(Asked { question, reply });
                // A send fails only if the daemon has ended.
                let _ = done.send(Done::Explained(asked, explained));
            });
        }
        Err(refusal) => reply.refuse(refusal),
    }
}

/// Returns what a client may see.
fn sight(daemon: &mut Daemon, caller: &Caller) -> Visibility {
    authorize::sight(daemon.control.state_mut(), caller)
}

/// Answers a question about the desired state, with the generations of the journal.
fn desired_info(daemon: &Daemon, reply: Reply<DesiredInfo>) {
    let mut info =
        shown_desired(&daemon.identity.file, daemon.control.state().desired(), daemon.now());
    let journal = daemon.control.state().desired().journal();
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
fn put_module(daemon: &mut Daemon, wasm: Vec<u8>, early: bool, reply: Reply<ModuleStored>) {
    let module = match Module::check(wasm) {
        Ok(module) => module,
        Err(problem) => return reply.refuse(usage(problem)),
    };
    let digest = Digest::of(&module.wasm);
    let (store, done) = (daemon.control.state().modules().store().clone(), daemon.done.clone());
    let (wasm, manifest) = (module.wasm.clone(), module.checked.manifest.clone());
    let account = daemon.control.state().account(None, None);
    daemon.runtime.billing().add_fetched(&account, Bytes(wasm.len() as u64));
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
    let modules = daemon.control.state_mut().modules_mut();
    let written = modules.begin_store(&digest);
    modules.insert(digest, module);
    tokio::task::spawn_blocking(move || {
        let stored = store.put(&wasm, &manifest).map(drop).map_err(failed);
        // Nobody may be waiting, and the daemon may be gone.
        let _ = written.send(stored.clone());
        let _ = done.send(Done::Stored(digest, stored.map(|()| answer), reply));
    });
    let state = daemon.control.state();
    let is_compiled = state.modules().code(&digest, state.bpf_now()).is_some();
    // One at a time: a whole repository may be on its way to this store. What may not run is
    // not compiled, either.
    if !is_compiled
        && daemon.runtime.compilers().is_idle()
        && daemon.control.state_mut().modules_mut().permit(&digest).is_ok()
    {
        daemon.runtime.compile(&daemon.control, digest, daemon.control.node().bpf());
    }
}

/// Handles a module that is in the store, or could not be written.
pub(super) fn stored(
    daemon: &mut Daemon,
    digest: Digest,
    stored: Answer<ModuleStored>,
    reply: Option<Reply<ModuleStored>>,
) {
    daemon.demand.handle_stored(&digest);
    daemon.control.handle_stored(digest, stored.as_ref().map(drop).map_err(Clone::clone));
    if let Some(reply) = reply {
        reply.answer(stored);
    }
}

/// Returns the modules of the store that a client may run.
fn module_list(daemon: &mut Daemon, caller: &Caller) -> Answer<ModuleList> {
    let listing = daemon.control.state().modules().store().list().map_err(failed)?;
    let modules = readable(daemon.control.state_mut(), caller, listing.modules);
    Ok(documents::modules::module_list(modules))
}

/// Keeps a client's signatures of a module, beside the loop.
fn add_signatures(
    daemon: &mut Daemon,
    wanted: &str,
    file: &str,
    reply: Reply<api::SignaturesStored>,
) {
    match SignatureWrite::new(daemon.control.state_mut().modules_mut(), wanted, file) {
        Ok(write) => drop(tokio::task::spawn_blocking(move || reply.answer(write.run()))),
        Err(refusal) => reply.refuse(refusal),
    }
}

/// Returns the refusal of a second handover while the first one has not been answered.
fn handover_is_waited_for() -> ErrorInfo {
    let within = SETTLED_WITHIN.as_millis();
    let help = format!("that one has its answer within {within} ms; only one daemon can take over");
    error(ErrorCode::Failed, "another handover of this node is under way", Some(&help))
}

/// Answers a request to hand over when no change is under way and no new version is on probation,
/// or when that takes too long. Then no client learns the outcome of a change, and the next daemon
/// continues from a snapshot, which has the old version.
pub(super) fn hand_over_settled(daemon: &mut Daemon) {
    let (is_settled, now) = (daemon.control.is_settled(), daemon.now());
    let is_due = |(until, _): &mut (Nanos, _)| is_settled || *until <= now;
    let Some((_, reply)) = daemon.handover.waiting.take_if(is_due) else { return };
    daemon.handover.is_done = true;
    let (node, pid) = (daemon.identity.file.name.to_string(), std::process::id());
    reply.ok(api::HandedOver { schema_version: SCHEMA_VERSION, node, pid });
}

/// Gives a message to a service that runs; the cell's answer goes to `reply`.
fn message(
    daemon: &mut Daemon,
    wanted: &str,
    request: &api::MessageRequest,
    reply: Reply<api::MessageAnswers>,
) {
    let checked = daemon.control.state().find(wanted).and_then(|service| {
        if service.state != ServiceState::Running {
            return Err(failed(format!("the service '{wanted}' does not run at present")));
        }
        Ok((service.entry, message_bytes(&request.data_hex)?))
    });
    match checked {
        Ok((entry, bytes)) => {
            daemon.runtime.deliver(entry, bytes, reply);
        }
        Err(refusal) => reply.refuse(refusal),
    }
}

/// Returns the bytes of a control message.
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
