//! `tam apply`, `diff`, `confirm` and `rollback`: from a request to work, and its answer.
//!
//! A text becomes a desired state in three steps: what it says (`config`), which modules it means
//! (`text`), whether the node can have all that (`node::desired::check`). Each complaint has its
//! line. Only then the work begins, in `work`.

mod finish;
mod resume;
mod show;
mod text;
mod work;

use finish::{Answered, Confirm};
pub(crate) use finish::{Finish, finish};
pub(crate) use resume::{Resumption, check_wanted, open};
pub(crate) use show::{generations, shown_desired};
use text::Found;
pub(crate) use text::{Named, fingerprint, resolve};
pub(crate) use work::{Goal, Progress, Purpose, Work, present};

use super::edit::Edit;
use super::lacks;
use super::recorded::{Recorded, Unconfirmed};
use super::recording::Facts;
use super::signatures;
use super::state::NodeState;
use crate::answer::{Answer, error, usage};
use crate::config::ConfigError;
use crate::reply::Reply;
use abi::HostFunctions;
use api::{Applied, ApplyModule, ApplyRequest, Confirmed, ErrorCode, SCHEMA_VERSION};
use node::command::Memory;
use node::desired::{DesiredState, differences, losses};
use node::{ModuleInfo, RefusalClass};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use units::{Name, Nanos};

/// Longest time to confirm within: a day.
pub(crate) const CONFIRM_SECONDS_MAX: u64 = 86_400;

/// Checked state that is to be applied.
struct Target {
    state: DesiredState,
    facts: Facts,
    confirm: Option<Nanos>,
    /// Rules that no packet can reach, in words.
    shadowed: Vec<String>,
    /// Functions that its services of streams lack, in words.
    lacks: Vec<String>,
    /// Services that begin empty, with the reason.
    losses: BTreeMap<Name, String>,
    /// Treatment of the state of services.
    memory: Memory,
}

/// Handles a request to apply a state. Returns the goal of the work that it takes, unless it is
/// answered.
pub(super) fn handle_apply(
    state: &mut NodeState,
    request: &ApplyRequest,
    reply: Reply<Applied>,
) -> Option<Goal> {
    let since = state.now();
    let target = match target(state, request) {
        Ok(target) if request.dry_run => {
            reply.ok(applied(state, &target, since, true));
            return None;
        }
        target => target.and_then(|target| {
            check_billing(state, &target.state)?;
            Ok(target)
        }),
    };
    match target {
        Ok(target) => begin(state, target, since, reply),
        Err(refusal) => {
            reply.refuse(refusal);
            None
        }
    }
}

/// Refuses a state with new services while the ledger cannot bill them.
fn check_billing(state: &mut NodeState, wanted: &DesiredState) -> Answer<()> {
    let is_new = |name: &Name| state.node.service(name).is_none();
    if wanted.services.keys().any(is_new) { state.check_billing() } else { Ok(()) }
}

fn begin(
    state: &mut NodeState,
    target: Target,
    since: Nanos,
    reply: Reply<Applied>,
) -> Option<Goal> {
    let mut answer = applied(state, &target, since, false);
    let Target { state: wanted, mut facts, confirm, memory, .. } = target;
    if answer.changes.is_empty() {
        answer.confirm_within_s = None;
        if facts.node_file.is_none() {
            reply.ok(answer);
            return None;
        }
        // It is followed now, which is all that is news.
        facts.same_generation = true;
        state.record(facts, Edit::Nothing, Recorded::Followed { answer, reply });
        return None;
    }
    let back_to = state.desired.generation();
    facts.unconfirmed_over = confirm.map(|_| back_to);
    let answered = Answered { answer, cause: facts.cause.clone(), since, reply };
    let confirm = confirm.map(|within| Confirm { within, back_to });
    let purpose = Purpose::Apply(Box::new(Finish::Applied { answered, confirm }));
    Some(Goal { target: wanted, facts, purpose, memory })
}

/// Returns what a request asks for, if the node can have it.
fn target(state: &mut NodeState, request: &ApplyRequest) -> Answer<Target> {
    let wrong = |problem: ConfigError| {
        error(ErrorCode::Usage, problem.to_string(), Some("correct the file; nothing has changed"))
    };
    let confirm = match request.confirm_s {
        Some(seconds) if !(1..=CONFIRM_SECONDS_MAX).contains(&seconds) => {
            return Err(usage(format!(
                "a state is confirmed within 1 to {CONFIRM_SECONDS_MAX} s, not {seconds}"
            )));
        }
        seconds => seconds.map(|seconds| Nanos::from_millis(seconds * 1000)),
    };
    let wanted = state.file.parse_wanted(&request.text, &request.file).map_err(wrong)?;
    let given = &request.modules;
    let modules = Named {
        store: state.modules.store(),
        held: state.modules.held(),
        find: &|module| found(given.get(module)),
    };
    let resolved = resolve(&wanted, &modules).map_err(wrong)?;
    let shadowed =
        resolved.check(&state.file.ports, state.node.capacity(), &wanted).map_err(wrong)?;
    // A module whose memory the client did not describe cannot be judged yet.
    let unsure = given.values().filter(|it| it.manifest.is_some() && it.memory_image.is_none());
    let unsure: BTreeSet<&str> = unsure.map(|module| module.digest.as_str()).collect();
    let losses = resolved.losses(&state.node, |digest| !unsure.contains(digest));
    if !request.discard_state && !losses.is_empty() {
        let code = api::code_of(RefusalClass::Loses);
        return Err(error(code, resolved.refusal_of(&losses, &wanted), None));
    }
    if !request.dry_run && !request.allow_older {
        check_versions(state, &resolved.state)?;
    }
    let memory = if request.discard_state { Memory::KeptIfPossible } else { Memory::Kept };
    let facts = Facts {
        cause: format!("apply {}", request.file),
        node_file: state.is_own_file(&request.file).then(|| fingerprint(&wanted)),
        ..Facts::default()
    };
    let wanted = resolved.state.with_owned_of(state.desired.state());
    let lacks = all_lack(state, &wanted);
    Ok(Target { state: wanted, facts, confirm, shadowed, lacks, losses, memory })
}

fn all_lack(state: &mut NodeState, wanted: &DesiredState) -> Vec<String> {
    let lacks = lacks::of_state(&mut state.modules, wanted);
    state.forget_modules();
    lacks
}

/// Checks that no service becomes an older version than its signers' modules had here.
fn check_versions(state: &mut NodeState, wanted: &DesiredState) -> Answer<()> {
    let present = Arc::clone(state.desired.state());
    for (name, service) in &wanted.services {
        let same = present.services.get(name).is_some_and(|it| it.digest == service.digest);
        let Ok(digest) = service.digest.parse() else { continue };
        if same {
            continue;
        }
        state.modules.hold(&digest)?;
        signatures::check_version(state, &digest)?;
    }
    state.forget_modules();
    Ok(())
}

fn applied(state: &NodeState, target: &Target, since: Nanos, dry_run: bool) -> Applied {
    let changes = differences(state.desired.state(), &target.state);
    Applied {
        schema_version: SCHEMA_VERSION,
        dry_run,
        generation: state.desired.generation(),
        changes: changes.iter().map(|it| show::shown_change(it, &target.losses)).collect(),
        shadowed: target.shadowed.clone(),
        lacks: target.lacks.clone(),
        confirm_within_s: target.confirm.map(|within| within.as_millis() / 1000),
        took_ms: state.now().saturating_sub(since).as_millis(),
    }
}

/// Handles a confirmation: it is recorded first.
pub(super) fn handle_confirm(state: &mut NodeState, reply: Reply<Confirmed>) {
    let Some(unconfirmed) = state.desired.take_unconfirmed() else {
        let help = "`tam apply FILE --confirm 60s` makes one that does";
        let refusal = error(ErrorCode::NotFound, "nothing waits for a confirmation", Some(help));
        return reply.refuse(refusal);
    };
    let facts = Facts { same_generation: true, ..Facts::of(unconfirmed.cause.clone()) };
    // Nothing changes before it is recorded: that would be taken back if it cannot be.
    state.record(facts, Edit::Nothing, Recorded::Confirmed { unconfirmed, reply });
}

/// Answers a confirmation; one that could not be recorded has to be sent again.
pub(super) fn handle_confirmed(
    state: &mut NodeState,
    unconfirmed: Unconfirmed,
    reply: Reply<Confirmed>,
    written: Answer<()>,
) {
    if written.is_err() {
        state.desired.set_unconfirmed(Some(unconfirmed));
    }
    let (schema_version, generation) = (SCHEMA_VERSION, state.desired.generation());
    reply.answer(written.map(|()| Confirmed { schema_version, generation }));
}

/// Handles a request to go back to an earlier state. Returns the goal of the work that it takes,
/// unless it is answered.
pub(super) fn handle_rollback(
    state: &mut NodeState,
    request: &api::RollbackRequest,
    reply: Reply<Applied>,
) -> Option<Goal> {
    let since = state.now();
    match rollback_target(state, request) {
        Ok(target) if request.dry_run => {
            reply.ok(applied(state, &target, since, true));
            None
        }
        Ok(target) => {
            let before = state.desired.take_unconfirmed();
            let answer = applied(state, &target, since, false);
            let cause = target.facts.cause.clone();
            let answered = Answered { answer, cause, since, reply };
            let purpose = Purpose::Apply(Box::new(Finish::RolledBack { answered, before }));
            let Target { state: target, facts, memory, .. } = target;
            Some(Goal { target, facts, purpose, memory })
        }
        Err(refusal) => {
            reply.refuse(refusal);
            None
        }
    }
}

fn rollback_target(state: &mut NodeState, request: &api::RollbackRequest) -> Answer<Target> {
    let unconfirmed = state.desired.unconfirmed().map(|it| it.back_to);
    let before = || state.desired.generation().checked_sub(1).filter(|it| *it > 0);
    let wanted = request.generation.or(unconfirmed).or_else(before);
    let wanted = wanted.ok_or_else(|| {
        let help = Some("`tam rollback --list` shows the states that are kept");
        error(ErrorCode::NotFound, "there is no earlier state to go back to", help)
    })?;
    let target = state.desired.read(wanted)?;
    Ok(Target {
        losses: losses_to(state, &target),
        lacks: all_lack(state, &target),
        state: target,
        facts: Facts::of(format!("rollback to generation {wanted}")),
        confirm: None,
        shadowed: Vec::new(),
        memory: Memory::KeptIfPossible,
    })
}

/// Returns the services that begin empty on the way to a state, with the reason.
fn losses_to(state: &mut NodeState, wanted: &DesiredState) -> BTreeMap<Name, String> {
    let digests: BTreeSet<&String> = wanted.services.values().map(|it| &it.digest).collect();
    // One that is not to be had is a refusal later.
    let module = |digest: &String| Some((digest.clone(), state.hold(digest).ok()?));
    let modules: BTreeMap<String, ModuleInfo> = digests.into_iter().filter_map(module).collect();
    state.forget_modules();
    losses(&state.node, wanted, |digest| modules.get(digest))
}

/// Handles the end of the time for a confirmation. Returns the goal of the work back.
pub(super) fn handle_not_confirmed(state: &mut NodeState) -> Option<Goal> {
    let unconfirmed = state.desired.take_unconfirmed()?;
    let back_to = unconfirmed.back_to;
    tracing::warn!(
        generation = back_to,
        "the applied state was not confirmed in time (`tam confirm`): the node goes back to the state before"
    );
    let facts = Facts::of(format!("not confirmed in time: back to generation {back_to}"));
    let cause = facts.cause.clone();
    match state.desired.read(back_to) {
        Ok(target) => {
            let purpose = Purpose::Apply(Box::new(Finish::TakenBack { cause }));
            Some(Goal { target, facts, purpose, memory: Memory::KeptIfPossible })
        }
        Err(problem) => {
            tracing::error!(
                problem = problem.message,
                "the state before could not be restored: see `tam diff`"
            );
            None
        }
    }
}

/// Returns a module that came with the request.
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
        // The imports are checked when the module's bytes have arrived.
        imports: HostFunctions::NONE,
        granted: HostFunctions::ALL,
    };
    Ok(Found { digest, unstored: Some(module) })
}

#[cfg(test)]
mod tests;
