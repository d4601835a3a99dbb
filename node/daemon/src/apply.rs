//! `tam apply`, `diff`, `confirm` and `rollback`: from a request to work, and its answer.
//!
//! A text becomes a desired state in three looks: what it says (`config`), which modules it means
//! (here), whether the node can have all that (`node::desired::check`). Each complaint has its
//! line. Only then the work begins, in `apply/work.rs`.

mod finish;
mod resume;
mod show;
mod text;
mod work;

use finish::{Answered, Confirm, Finish};
pub(crate) use resume::{check_wanted, open};
use text::Found;
pub(crate) use text::{Modules, fingerprint, resolve};
pub(crate) use work::{Purpose, Work};

use crate::config::ConfigError;
use crate::control::recording::Facts;
use crate::daemon::Daemon;
use crate::edit::Edit;
use crate::events::Note;
use crate::http::{Answer, error};
use crate::recorded::Recorded;
use crate::reply::Reply;
use crate::state::Unconfirmed;
use crate::views::{failed, usage};
use abi::HostFunctions;
use api::{
    Applied, ApplyModule, ApplyRequest, Confirmed, DesiredInfo, ErrorCode, EventKind,
    SCHEMA_VERSION,
};
use node::command::Memory;
use node::desired::{DesiredState, differences, losses};
use node::{ModuleInfo, RefusalClass};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use units::Name;

/// Longest time to confirm within: a day.
pub(crate) const CONFIRM_SECONDS_MAX: u64 = 86_400;

/// What is to be applied, checked.
pub(crate) struct Target {
    pub(crate) state: DesiredState,
    pub(crate) facts: Facts,
    pub(crate) confirm: Option<Duration>,
    /// Rules that no packet can reach, in words.
    pub(crate) shadowed: Vec<String>,
    /// Functions that its services of streams lack, in words.
    pub(crate) lacks: Vec<String>,
    /// Services that begin empty, with the reason.
    pub(crate) losses: BTreeMap<Name, String>,
    /// What becomes of what services know.
    pub(crate) memory: Memory,
}

impl Daemon {
    pub(crate) fn apply(&mut self, request: &ApplyRequest, reply: Reply<Applied>) {
        let since = Instant::now();
        match self.target(request) {
            Ok(target) if request.dry_run => {
                reply.ok(self.applied(&target, since, true));
            }
            Ok(target) => match self.check_billing_of(&target.state) {
                Ok(()) => self.begin_apply(target, since, reply),
                Err(refusal) => reply.refuse(refusal),
            },
            Err(refusal) => reply.refuse(refusal),
        }
    }

    fn begin_apply(&mut self, target: Target, since: Instant, reply: Reply<Applied>) {
        let mut answer = self.applied(&target, since, false);
        let Target { state, mut facts, confirm, memory, .. } = target;
        if answer.changes.is_empty() {
            answer.confirm_within_s = None;
            if facts.node_file.is_none() {
                return reply.ok(answer);
            }
            // It is followed now, which is all that is news.
            facts.same_generation = true;
            return self.record(facts, Edit::Nothing, Recorded::Followed { answer, reply });
        }
        let back_to = self.desired.generation();
        facts.unconfirmed_over = confirm.map(|_| back_to);
        let answered = Answered { answer, cause: facts.cause.clone(), since, reply };
        let confirm = confirm.map(|within| Confirm { within, back_to });
        let purpose = Purpose::Apply(Box::new(Finish::Applied { answered, confirm }));
        self.begin_work(Work::new(state, facts, purpose, memory));
    }

    /// What a request asks for, if the node can have it.
    fn target(&mut self, request: &ApplyRequest) -> Answer<Target> {
        let wrong = |problem: ConfigError| {
            error(
                ErrorCode::Usage,
                problem.to_string(),
                Some("correct the file; nothing has changed"),
            )
        };
        let confirm = match request.confirm_s {
            Some(seconds) if !(1..=CONFIRM_SECONDS_MAX).contains(&seconds) => {
                return Err(usage(format!(
                    "a state is confirmed within 1 to {CONFIRM_SECONDS_MAX} s, not {seconds}"
                )));
            }
            seconds => seconds.map(Duration::from_secs),
        };
        let wanted = self.file.parse_wanted(&request.text, &request.file).map_err(wrong)?;
        let given = &request.modules;
        let modules = Modules {
            store: &self.store,
            held: &self.modules,
            find: &|module| found(given.get(module)),
        };
        let resolved = resolve(&wanted, &modules).map_err(wrong)?;
        let shadowed =
            resolved.check(&self.file.ports, self.node.capacity(), &wanted).map_err(wrong)?;
        // Of a module whose memory the client did not describe nothing can be said yet.
        let unsure = given.values().filter(|it| it.manifest.is_some() && it.memory_image.is_none());
        let unsure: BTreeSet<&str> = unsure.map(|module| module.digest.as_str()).collect();
        let losses = resolved.losses(&self.node, |digest| !unsure.contains(digest));
        if !request.discard_state && !losses.is_empty() {
            let code = api::code_of(RefusalClass::Loses);
            return Err(error(code, resolved.refusal_of(&losses, &wanted), None));
        }
        if !request.dry_run && !request.allow_older {
            self.check_versions(&resolved.state)?;
        }
        let memory = if request.discard_state { Memory::KeptIfPossible } else { Memory::Kept };
        let facts = Facts {
            cause: format!("apply {}", request.file),
            node_file: self.is_own_file(&request.file).then(|| fingerprint(&wanted)),
            ..Facts::default()
        };
        let state = resolved.state.with_owned_of(self.desired.state());
        let lacks = self.all_lack(&state);
        Ok(Target { state, facts, confirm, shadowed, lacks, losses, memory })
    }

    /// Notes the versions that run from now on.
    fn mark_desired_versions(&mut self) {
        let services = self.desired.state().services.values();
        let digests: Vec<_> = services.flat_map(|service| service.digest.parse()).collect();
        self.mark_versions(digests);
    }

    /// Whether no service becomes an older version than its signers' modules had here.
    fn check_versions(&mut self, wanted: &DesiredState) -> Answer<()> {
        let present = Arc::clone(self.desired.state());
        for (name, service) in &wanted.services {
            let same = present.services.get(name).is_some_and(|it| it.digest == service.digest);
            let Ok(digest) = service.digest.parse() else { continue };
            if same {
                continue;
            }
            self.hold(&digest)?;
            self.check_version(&digest)?;
        }
        self.forget_modules();
        Ok(())
    }

    /// Whether a path is that of the file that the node was started with.
    fn is_own_file(&self, path: &str) -> bool {
        let given = Path::new(path).canonicalize();
        given.is_ok_and(|given| self.config.canonicalize().is_ok_and(|own| own == given))
    }

    fn applied(&self, target: &Target, since: Instant, dry_run: bool) -> Applied {
        let changes = differences(self.desired.state(), &target.state);
        Applied {
            schema_version: SCHEMA_VERSION,
            dry_run,
            generation: self.desired.generation(),
            changes: changes.iter().map(|it| self.shown_change(it, &target.losses)).collect(),
            shadowed: target.shadowed.clone(),
            lacks: target.lacks.clone(),
            confirm_within_s: target.confirm.map(|within| within.as_secs()),
            took_ms: millis(since),
        }
    }

    pub(crate) fn confirm(&mut self, reply: Reply<Confirmed>) {
        let Some(unconfirmed) = self.desired.unconfirmed.take() else {
            let help = "`tam apply FILE --confirm 60s` makes one that does";
            let refusal =
                error(ErrorCode::NotFound, "nothing waits for a confirmation", Some(help));
            return reply.refuse(refusal);
        };
        let facts = Facts { same_generation: true, ..Facts::of(unconfirmed.cause.clone()) };
        self.record(facts, Edit::Nothing, Recorded::Confirmed { unconfirmed, reply });
    }

    /// Answers a confirmation; one that could not be recorded has to be sent again.
    pub(crate) fn confirmation_recorded(
        &mut self,
        unconfirmed: Unconfirmed,
        reply: Reply<Confirmed>,
        written: Answer<()>,
    ) {
        if written.is_err() {
            self.desired.unconfirmed = Some(unconfirmed);
        }
        let (schema_version, generation) = (SCHEMA_VERSION, self.desired.generation());
        reply.answer(written.map(|()| Confirmed { schema_version, generation }));
    }

    pub(crate) fn rollback(&mut self, request: &api::RollbackRequest, reply: Reply<Applied>) {
        let since = Instant::now();
        let unconfirmed = self.desired.unconfirmed.as_ref().map(|it| it.back_to);
        let wanted = request
            .generation
            .or(unconfirmed)
            .or_else(|| self.desired.generation().checked_sub(1).filter(|it| *it > 0));
        let Some(wanted) = wanted else {
            let refusal =
                error(ErrorCode::NotFound, "there is no earlier state to go back to", None);
            return reply.refuse(refusal);
        };
        let target = self.generation(wanted).map(|state| Target {
            losses: self.losses(&state),
            lacks: self.all_lack(&state),
            state,
            facts: Facts::of(format!("rollback to generation {wanted}")),
            confirm: None,
            shadowed: Vec::new(),
            memory: Memory::KeptIfPossible,
        });
        match target {
            Ok(target) if request.dry_run => {
                reply.ok(self.applied(&target, since, true));
            }
            Ok(target) => {
                let before = self.desired.unconfirmed.take();
                let answer = self.applied(&target, since, false);
                let cause = target.facts.cause.clone();
                let answered = Answered { answer, cause, since, reply };
                let purpose = Purpose::Apply(Box::new(Finish::RolledBack { answered, before }));
                self.begin_work(Work::new(target.state, target.facts, purpose, target.memory));
            }
            Err(refusal) => reply.refuse(refusal),
        }
    }

    /// The services that begin empty on the way to a state, with the reason.
    fn losses(&mut self, state: &DesiredState) -> BTreeMap<Name, String> {
        let digests: BTreeSet<&String> = state.services.values().map(|it| &it.digest).collect();
        let module = |digest: &String| {
            // One that is not to be had is a refusal later.
            let module = digest.parse().ok().and_then(|digest| self.hold(&digest).ok())?;
            Some((digest.clone(), module))
        };
        let modules: BTreeMap<String, ModuleInfo> =
            digests.into_iter().filter_map(module).collect();
        self.forget_modules();
        losses(&self.node, state, |digest| modules.get(digest))
    }

    /// The state of a generation.
    fn generation(&self, wanted: u64) -> Answer<DesiredState> {
        let journal = self.desired.journal();
        let journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
        let present = self.desired.state();
        let state = journal.read(wanted).map(|record| record.state.with_owned_of(present));
        state.map_err(|problem| match problem {
            crate::journal::JournalError::NoGeneration { .. } => {
                error(ErrorCode::NotFound, problem.to_string(), None)
            }
            problem => failed(problem),
        })
    }

    /// Takes back what nobody confirmed in time.
    pub(crate) fn take_back_unconfirmed(&mut self) {
        let Some(unconfirmed) = self.desired.unconfirmed.take() else { return };
        let back_to = unconfirmed.back_to;
        tracing::warn!(generation = back_to, "nobody confirmed what was applied: it is taken back");
        let facts = Facts::of(format!("not confirmed in time: back to generation {back_to}"));
        let cause = facts.cause.clone();
        match self.generation(back_to) {
            Ok(state) => {
                let purpose = Purpose::Apply(Box::new(Finish::TakenBack { cause }));
                self.begin_work(Work::new(state, facts, purpose, Memory::KeptIfPossible));
            }
            Err(problem) => {
                tracing::error!(problem = problem.message, "the state before is not back")
            }
        }
    }

    fn note_state(&mut self, kind: EventKind, cause: &str) {
        let generation = self.desired.generation();
        let text = format!("the node runs generation {generation} of its state: {cause}");
        self.note(Note::new(kind, text));
    }

    pub(crate) fn desired_info(&mut self, reply: Reply<DesiredInfo>) {
        let mut info = self.shown_desired();
        let journal = self.desired.journal();
        // Beside the loop: the journal may be waiting for the disk.
        tokio::task::spawn_blocking(move || {
            let listed = journal.lock().unwrap_or_else(PoisonError::into_inner).list();
            reply.answer(match listed {
                Ok(heads) => {
                    info.generations = show::generations(heads);
                    Ok(info)
                }
                Err(problem) => Err(failed(problem)),
            });
        });
    }
}

/// A module that came along, if it did.
fn found(module: Option<&ApplyModule>) -> Result<Found, String> {
    let ApplyModule { digest, manifest, hands_state_over, memory_image } = module.ok_or(
        "this file was not sent along; `tam apply` sends the modules of a file, or name one in the store",
    )?;
    let Some(manifest) = manifest.clone() else {
        return Ok(Found { digest: digest.clone(), unstored: None });
    };
    let manifest = serde_json::from_value(manifest)
        .map_err(|error| format!("the manifest that came with the module: {error}"))?;
    let image = memory_image.as_ref().map_or(Ok(0), |image| u64::from_str_radix(image, 16));
    let image = image.map_err(|_| "its memory_image is no number in hexadecimal".to_owned())?;
    let (digest, hands_state_over) = (digest.clone(), *hands_state_over);
    let image = abi::check::MemoryImage(image);
    let module = ModuleInfo {
        digest: digest.clone(),
        kind: abi::check::Kind::Packets,
        manifest,
        hands_state_over,
        image,
        // They are looked at when its bytes are here.
        imports: HostFunctions::NONE,
        granted: HostFunctions::ALL,
    };
    Ok(Found { digest, unstored: Some(module) })
}

pub(crate) fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
