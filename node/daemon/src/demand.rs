//! Demand loading: modules that are named by their digest and that the node does not hold.
//!
//! ```text
//! deploy, apply ─┐ may it reach him?                            ┌▶ signed? his? ─▶ kept ─▶ goes on
//! start          ├─▶ want_for ─▶ node::wanted ─▶ fetcher ─▶ Done┤
//! pull API       │                 │ one fetch for all          └▶ remembered ─▶ refused
//! active packets ┘                 └ who asked first pays
//! ```
//!
//! Nothing is compiled here: the request continues as if the module had been there all along, and
//! is authorized again in full.

mod fetcher;
mod start;

pub(crate) use fetcher::Fetched;
pub(crate) use start::fetch_for_start;

use crate::access::Caller;
use crate::answer::failed;
use crate::answer::{Answer, error, session as session_name};
use crate::completion::Completion;
use crate::config::{NodeFile, Wanted as FileWants};
use crate::control::Control;
use crate::control::authorize::{self, check_new, check_wanted};
use crate::control::calls::{Sender, Wanted as CallWanted};
use crate::control::change::Change;
use crate::deploy::Module;
use crate::events::Note;
use crate::ledger::Billing;
use crate::reply::Reply;
use crate::request::{Incoming, Request};
use anyhow::Result;
use api::{ErrorCode, ErrorInfo, EventKind};
use fetcher::{FetchedModule, Fetcher, Job};
use ledger::Account;
use module_store::Digest;
use node::wanted::{Fetch, FetchQueue, Hops, Miss, RequestOutcome, Waiter};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::time::Duration;
use trust::{Operation, PublicKey};
use units::Bytes;

/// Module that is on the disk, or could not be written.
pub(crate) type Stored = (Digest, Answer<api::ModuleStored>);

/// Digests that were fetched for a request already: nothing is fetched for it twice.
pub(crate) type Tried = BTreeSet<Digest>;

/// Fetches of modules that are wanted, and the clients that wait for them.
pub(crate) struct Demand {
    wanted: FetchQueue<Digest, Account, Reason>,
    waiting: BTreeMap<Waiter, Waits>,
    /// Previous nodes, by the modules that their packets named and that are not fetched yet.
    previous: BTreeMap<(Digest, Hops), PublicKey>,
    /// Fetcher; `None` without repositories.
    fetcher: Option<Fetcher>,
    /// Modules on their way to the disk, and the replies to other nodes that want them from there.
    storing: BTreeMap<Digest, Vec<Reply<()>>>,
    /// Requests whose modules have been fetched.
    released: VecDeque<(Incoming, Tried)>,
    stored: Completion<Stored>,
    counts: api::DemandStats,
}

/// Reason for a client not getting a module.
#[derive(Clone, Debug)]
struct Reason {
    code: ErrorCode,
    /// Text for the operator.
    text: String,
}

/// Client that waits for a module.
enum Waits {
    /// Node itself, for what shall run.
    Start,
    /// Active packets.
    Packets(Box<CallWanted>),
    /// Deployment, or file that is applied.
    Request(Incoming, Tried),
    /// Other node that pulls it from here.
    Pull(Caller, Reply<()>),
}

impl Waits {
    /// Returns true if the client is gone.
    fn is_gone(&self) -> bool {
        match self {
            Self::Start | Self::Packets(_) => false,
            Self::Request(incoming, _) => match &incoming.request {
                Request::Change(Change::Deploy(_, reply)) => reply.is_abandoned(),
                Request::Change(Change::Apply(_, reply)) => reply.is_abandoned(),
                _ => false,
            },
            Self::Pull(_, reply) => reply.is_abandoned(),
        }
    }

    /// Returns the client and its operation, where capabilities are asked for.
    fn caller(&self) -> Option<(Caller, Operation)> {
        match self {
            Self::Start => None,
            Self::Packets(wanted) => Some((wanted.sender.caller.clone(), Operation::Deploy)),
            Self::Request(incoming, _) => Some((incoming.caller.clone(), Operation::Deploy)),
            Self::Pull(caller, _) => Some((caller.clone(), Operation::Read)),
        }
    }
}

impl Demand {
    /// Creates the fetches of a node file with its repositories; `config` is the file's path.
    pub(crate) fn begin(
        file: &NodeFile,
        config: &Path,
        fetched: Completion<Fetched>,
        stored: Completion<Stored>,
    ) -> Result<Self> {
        Ok(Self {
            wanted: FetchQueue::default(),
            waiting: BTreeMap::new(),
            previous: BTreeMap::new(),
            fetcher: Fetcher::begin(file, config, fetched)?,
            storing: BTreeMap::new(),
            released: VecDeque::new(),
            stored,
            counts: api::DemandStats::default(),
        })
    }

    /// Returns the counters of what was wanted since the daemon started, and of what is now.
    pub(crate) fn stats(&self) -> api::DemandStats {
        let (modules, waiting) = self.wanted.count();
        api::DemandStats { modules: modules as u64, waiting: waiting as u64, ..self.counts.clone() }
    }

    /// Handles active packets that call a module that the node does not hold. The previous node,
    /// which sent them here, is asked for it first, if it is one of the node's repositories.
    pub(crate) fn want_for_packets(&mut self, control: &mut Control, wanted: CallWanted) {
        let CallWanted { question, sender: Sender { caller, principal } } = &wanted;
        let digest = Digest::from_bytes(question.digest);
        let session = Some(node::session::best_effort());
        let payer = control.state().account_of_caller(caller, session);
        let previous = *principal;
        self.want_for(
            control,
            digest,
            payer,
            Hops::MAX,
            previous,
            Waits::Packets(Box::new(wanted)),
        );
    }

    fn want_for(
        &mut self,
        control: &mut Control,
        digest: Digest,
        payer: Account,
        hops: Hops,
        previous: Option<PublicKey>,
        waits: Waits,
    ) {
        if control.state().modules().is_there(&digest) {
            let held = control.state_mut().modules_mut().hold(&digest).map(drop);
            return self.answer_waiting(control, digest, waits, held);
        }
        if self.fetcher.is_none() || hops.next().is_none() {
            let reason = Reason::not_there("the node has no repositories: [[repository]]");
            return self.refuse_waiting_for(control, digest, waits, &reason);
        }
        self.counts.requests += 1;
        let now = control.state().now();
        match self.wanted.ask(now, digest, hops, payer) {
            RequestOutcome::Waits(waiter) => {
                if let Some(previous) = previous {
                    self.previous.entry((digest, hops)).or_insert(previous);
                }
                self.waiting.insert(waiter, waits);
                self.fetch_next();
            }
            RequestOutcome::Missed { reason, until } => {
                self.counts.remembered += 1;
                let left = until.saturating_sub(now).as_millis().div_ceil(1000);
                let text = format!("{} (as of a moment ago; asked again in {left} s)", reason.text);
                self.refuse_waiting_for(control, digest, waits, &Reason { text, ..reason });
            }
            RequestOutcome::Full => {
                let text = "too many modules are wanted at the moment".to_owned();
                let reason = Reason { code: ErrorCode::Limit, text };
                self.refuse_waiting_for(control, digest, waits, &reason);
            }
        }
    }

    fn fetch_next(&mut self) {
        while let Some(fetch) = self.wanted.poll_fetch() {
            let previous = self.previous.remove(&(fetch.digest, fetch.hops));
            if let Some(fetcher) = &self.fetcher {
                fetcher.fetch(Job { fetch, previous });
            }
        }
    }

    /// Handles the end of a fetch, which is billed to the first requester.
    pub(crate) fn handle_fetched(
        &mut self,
        control: &mut Control,
        billing: &mut Billing,
        fetched: Fetched,
    ) {
        let Fetched { fetch, came, took } = fetched;
        let Some(ended) = self.wanted.ended(fetch) else { return };
        let take = |(waiter, payer)| Some((self.waiting.remove(&waiter)?, payer));
        let waited: Vec<(Waits, Account)> = ended.waited.into_iter().filter_map(take).collect();
        match came {
            Ok(come) => {
                let size = Bytes(come.pulled.wasm.len() as u64);
                billing.add_fetched(&ended.payer, size);
                self.take_over(control, fetch, come, waited, took);
            }
            Err(failure) => self.missed(control, fetch, failure.miss, &failure.text, waited),
        }
        self.fetch_next();
    }

    /// Handles a module that did not come.
    fn missed(
        &mut self,
        control: &mut Control,
        fetch: Fetch<Digest>,
        miss: Miss,
        said: &str,
        waited: Vec<(Waits, Account)>,
    ) {
        let digest = fetch.digest;
        let code = match miss {
            Miss::NotThere => ErrorCode::NotFound,
            Miss::Failed => ErrorCode::Unreachable,
        };
        let reason = Reason { code, text: said.to_owned() };
        let now = control.state().now();
        self.wanted.remember(now, fetch, None, miss, reason.clone());
        self.note_missed(control, &digest, said);
        for (waits, _) in waited {
            self.refuse_waiting_for(control, digest, waits, &reason);
        }
    }

    fn note_missed(&mut self, control: &mut Control, digest: &Digest, why: &str) {
        self.counts.missed += 1;
        let text =
            format!("the module {}… that somebody wanted did not come: {why}", digest.short());
        control.note(Note::new(EventKind::ModuleMissed, text).module(digest));
    }

    /// Handles a fetched module of the right digest: it is kept if one of its requesters may have
    /// it.
    fn take_over(
        &mut self,
        control: &mut Control,
        fetch: Fetch<Digest>,
        come: FetchedModule,
        waited: Vec<(Waits, Account)>,
        took: Duration,
    ) {
        let digest = fetch.digest;
        let FetchedModule { pulled, signers, from } = come;
        let module = Module::of(pulled.wasm.clone(), pulled.checked.clone(), signers);
        let runs = control.state().modules().permit_new(&digest, &module);
        let (mut welcome, mut refused) = (Vec::new(), Vec::new());
        for (waits, payer) in waited {
            match may_have(control, &digest, &module, &waits) {
                Ok(()) => welcome.push((waits, payer)),
                Err(_) => refused.push((waits, payer, Reason::not_there("it may not be had"))),
            }
        }
        if let Err(unsigned) = &runs {
            let reason = Reason { code: unsigned.code, text: unsigned.message.clone() };
            let unsigned = welcome.drain(..).map(|(waits, payer)| (waits, payer, reason.clone()));
            refused.extend(unsigned);
            self.note_missed(control, &digest, &reason.text);
        }
        let now = control.state().now();
        for (waits, payer, reason) in refused {
            self.wanted.remember(now, fetch, Some(payer), Miss::NotThere, reason.clone());
            self.refuse_waiting_for(control, digest, waits, &reason);
        }
        if welcome.is_empty() {
            return;
        }
        self.wanted.arrived(digest);
        self.counts.fetched += 1;
        self.counts.fetched_bytes += pulled.wasm.len() as u64;
        let manifest = &module.checked.manifest;
        let text = format!(
            "the module '{}' {} ({}…, {} bytes) came from {from} in {} ms",
            manifest.name,
            manifest.version,
            digest.short(),
            pulled.wasm.len(),
            took.as_millis()
        );
        control.note(Note::new(EventKind::ModuleFetched, text).module(digest));
        control.state_mut().modules_mut().insert(digest, module);
        self.storing.entry(digest).or_default();
        self.store_pulled(control, digest, pulled);
        for (waits, _) in welcome {
            self.answer_waiting(control, digest, waits, Ok(()));
        }
    }

    /// Writes a module to the disk, beside what is done with it.
    fn store_pulled(&mut self, control: &mut Control, digest: Digest, pulled: oci_client::Pulled) {
        let (store, done) = (control.state().modules().store().clone(), self.stored.clone());
        let answer = api::ModuleStored {
            schema_version: api::SCHEMA_VERSION,
            digest: digest.to_string(),
            name: pulled.checked.manifest.name.to_string(),
            version: pulled.checked.manifest.version.clone(),
            size_bytes: pulled.wasm.len() as u64,
        };
        let written = control.state_mut().modules_mut().begin_store(&digest);
        tokio::task::spawn_blocking(move || {
            let stored = pulled.store_keeping_names(&store).map_err(failed);
            // Nobody may be waiting.
            let _ = written.send(stored.clone());
            done.send((digest, stored.map(|()| answer)));
        });
    }

    /// Handles a module that is on the disk, or could not be written.
    pub(crate) fn handle_stored(&mut self, digest: &Digest) {
        for reply in self.storing.remove(digest).unwrap_or_default() {
            reply.ok(());
        }
    }

    fn answer_waiting(
        &mut self,
        control: &mut Control,
        digest: Digest,
        waits: Waits,
        answer: Answer<()>,
    ) {
        match (waits, answer) {
            (Waits::Start, Ok(())) => control.hasten_resumption(),
            (Waits::Start, Err(_)) => {}
            (Waits::Packets(wanted), answer) => control.calls().handle_fetched(*wanted, answer),
            (waits, Ok(())) if waits.is_gone() => {}
            (Waits::Request(incoming, mut tried), Ok(())) => {
                tried.insert(digest);
                self.released.push_back((incoming, tried));
            }
            (Waits::Request(incoming, _), Err(refusal)) => incoming.request.refuse(refusal),
            (Waits::Pull(_, reply), answer) => match self.storing.get_mut(&digest) {
                Some(waiting) if answer.is_ok() => waiting.push(reply),
                _ => reply.answer(answer),
            },
        }
    }

    /// Refuses a module; one that is not there and one that may not be had are one answer.
    fn refuse_waiting_for(
        &mut self,
        control: &mut Control,
        digest: Digest,
        waits: Waits,
        reason: &Reason,
    ) {
        let refusal = match waits.caller() {
            Some((caller, _)) if !matches!(caller, Caller::Operator) => reason.for_holder(&digest),
            _ => reason.for_operator(&digest),
        };
        self.answer_waiting(control, digest, waits, Err(refusal));
    }

    /// Returns the next request whose modules have been fetched, or could not be, with them.
    pub(crate) fn poll_released(&mut self) -> Option<(Incoming, Tried)> {
        self.released.pop_front()
    }

    /// Takes a request whose modules have been looked up; fetches missing ones, if its sender may
    /// have them. Returns the request if there is nothing to fetch.
    pub(crate) fn fetch_first(
        &mut self,
        control: &mut Control,
        incoming: Incoming,
        tried: Tried,
    ) -> Option<Incoming> {
        if self.fetcher.is_none() {
            return Some(incoming);
        }
        let Some(digest) = self.first_missing(control, &incoming.request, &tried) else {
            return Some(incoming);
        };
        let Incoming { caller, request } = &incoming;
        let state = control.state_mut();
        let session = match request {
            Request::Change(Change::Deploy(request, _)) => {
                match session_name(request.session.as_deref()) {
                    Ok(session) => Some(session),
                    Err(_) => return Some(incoming),
                }
            }
            _ => None,
        };
        let may = match request {
            Request::Change(Change::Deploy(..)) => {
                check_wanted(state, caller, Operation::Deploy, &digest)
            }
            request => authorize::check_request(state, caller, request, &|_| None),
        };
        // Refused the usual way, which says what is missing.
        if may.is_err() {
            return Some(incoming);
        }
        let payer = control.state().account_of_caller(&incoming.caller, session);
        self.want_for(control, digest, payer, Hops::MAX, None, Waits::Request(incoming, tried));
        None
    }

    /// Returns a digest that a request names, that is not held and has not been looked up.
    fn first_missing(&self, control: &Control, request: &Request, tried: &Tried) -> Option<Digest> {
        let is_missing = |digest: &Digest| {
            !tried.contains(digest) && !control.state().modules().is_there(digest)
        };
        match request {
            Request::Change(Change::Deploy(request, _)) => {
                request.module.parse().ok().filter(is_missing)
            }
            Request::Change(Change::Apply(request, _)) if !request.dry_run || request.fetch => {
                let modules = FileWants::modules(&request.text, &request.file).ok()?;
                modules.iter().filter_map(|it| it.module.parse().ok()).find(is_missing)
            }
            _ => None,
        }
    }

    /// Handles a pull of a module that the node does not hold. `hops` more nodes may be asked.
    pub(crate) fn want_for_pull(
        &mut self,
        control: &mut Control,
        caller: Caller,
        digest: Digest,
        hops: Hops,
        reply: Reply<()>,
    ) {
        let payer = control.state().account_of_caller(&caller, None);
        self.want_for(control, digest, payer, hops, None, Waits::Pull(caller, reply));
    }

    /// Fetches what shall run and is not held, when the node starts or tries it again.
    pub(crate) fn want_missing(&mut self, control: &mut Control) {
        let desired = control.state().desired().state().clone();
        for name in
            control.state().desired().shortfall().services.keys().cloned().collect::<Vec<_>>()
        {
            let Some(service) = desired.services.get(&name) else { continue };
            let Ok(digest) = service.digest.parse::<Digest>() else { continue };
            if control.state().modules().is_there(&digest) || self.wanted.is_wanted(digest) {
                continue;
            }
            let session = Some(service.session.clone());
            let payer = control.state().account_of_owner(service.owner, session);
            self.want_for(control, digest, payer, Hops::MAX, None, Waits::Start);
        }
    }

    /// Discards clients that have gone; another requester pays then. Called once a second.
    pub(crate) fn handle_second(&mut self) {
        let gone = self.waiting.iter().filter(|(_, waits)| waits.is_gone());
        for waiter in gone.map(|(waiter, _)| *waiter).collect::<Vec<_>>() {
            self.wanted.cancel(waiter);
            self.waiting.remove(&waiter);
        }
        // A module without a requester is not fetched, and cannot be recommended.
        let wanted = &self.wanted;
        self.previous.retain(|(digest, _), _| wanted.is_wanted(*digest));
    }
}

/// Checks whether the requester may have a module, now that it is known.
fn may_have(control: &mut Control, digest: &Digest, module: &Module, waits: &Waits) -> Answer<()> {
    match waits.caller() {
        Some((caller, operation)) => {
            check_new(control.state_mut(), &caller, operation, digest, module)
        }
        None => Ok(()),
    }
}

impl Reason {
    fn not_there(text: &str) -> Self {
        Self { code: ErrorCode::NotFound, text: text.to_owned() }
    }

    /// Returns the refusal for the operator.
    fn for_operator(&self, digest: &Digest) -> ErrorInfo {
        let message =
            format!("the node does not hold {digest}, and it did not come: {}", self.text);
        let help = match self.code {
            ErrorCode::NotFound => {
                "'tam deploy FILE.wasm' stores a module; or push it where a [[repository]] of the node file leads"
            }
            ErrorCode::Unreachable => {
                "see whether the repositories of the node file answer (`tam pull` asks one); then try again"
            }
            ErrorCode::Refused => {
                "`tam sign` it where it comes from, with a key of [trust] signers"
            }
            _ => "try again in some seconds",
        };
        error(self.code, message, Some(help))
    }

    /// Returns the refusal for a holder of a capability, which says nothing of repositories.
    fn for_holder(&self, digest: &Digest) -> ErrorInfo {
        match self.code {
            ErrorCode::NotFound => authorize::not_granted(&digest.to_string()),
            ErrorCode::Unreachable => {
                let message =
                    "the module is not held, and what the node asks for it does not answer";
                error(ErrorCode::Unreachable, message, Some("try again in some seconds"))
            }
            code => error(code, self.text.clone(), None),
        }
    }
}

#[cfg(test)]
mod request_tests;
#[cfg(test)]
mod tests;
