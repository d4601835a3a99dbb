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

/// Refuses a state with services that are not there while nobody can be billed for them.
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
    // Of a module whose memory the client did not describe nothing can be said yet.
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
        error(ErrorCode::NotFound, "there is no earlier state to go back to", None)
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
    tracing::warn!(generation = back_to, "nobody confirmed what was applied: it is taken back");
    let facts = Facts::of(format!("not confirmed in time: back to generation {back_to}"));
    let cause = facts.cause.clone();
    match state.desired.read(back_to) {
        Ok(target) => {
            let purpose = Purpose::Apply(Box::new(Finish::TakenBack { cause }));
            Some(Goal { target, facts, purpose, memory: Memory::KeptIfPossible })
        }
        Err(problem) => {
            tracing::error!(problem = problem.message, "the state before is not back");
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
        // They are looked at when its bytes are here.
        imports: HostFunctions::NONE,
        granted: HostFunctions::ALL,
    };
    Ok(Found { digest, unstored: Some(module) })
}

#[cfg(test)]
mod tests {
    use super::super::action::Action;
    use super::super::change::Change;
    use super::super::testbed::{Bed, MODULES, digest, name};
    use super::*;
    use crate::reply::Awaited;
    use api::{ApplyRequest, RollbackRequest};
    use node::Event;

    fn service(name: &str, module: usize) -> String {
        let digest = digest(&MODULES[module]);
        format!(
            "[[service]]\nname = \"{name}\"\nmodule = \"{digest}\"\nrules = [\"dst 10.0.0.0/8\"]\n"
        )
    }

    fn request(text: &str) -> ApplyRequest {
        let discard_state = true;
        ApplyRequest {
            file: "state.toml".into(),
            text: text.into(),
            discard_state,
            ..Default::default()
        }
    }

    fn apply(bed: &mut Bed, request: ApplyRequest) -> Awaited<Applied> {
        bed.ask(|reply| Change::Apply(Box::new(request), reply))
    }

    /// Has all modules be compiled that somebody waits for; fails with a reason if there is one.
    fn compile(bed: &mut Bed, failure: Option<&str>) {
        let failure = failure.map(str::to_owned);
        for action in std::mem::take(&mut bed.actions) {
            if let Action::Compile(module, _) = action {
                bed.control.handle_compiled(&module, failure.as_ref());
            }
        }
        bed.settle();
    }

    /// Has the node run what a text says, one service.
    fn applied(bed: &mut Bed, text: &str, starts: &str) -> Applied {
        let mut awaited = apply(bed, request(text));
        compile(bed, None);
        bed.starts(starts);
        bed.write_all();
        awaited.try_answer().unwrap().unwrap()
    }

    fn services(bed: &Bed) -> Vec<String> {
        bed.control.node().services().map(|it| it.name.to_string()).collect()
    }

    #[test]
    fn a_state_is_recorded_when_its_services_run_and_before_others_stop() {
        let mut bed = Bed::new();
        applied(&mut bed, &service("monitor", 4), "monitor");
        let mut awaited = apply(&mut bed, request(&service("cache", 4)));
        assert!(services(&bed) == ["monitor"], "its code is not there");
        compile(&mut bed, None);
        assert_eq!((services(&bed).len(), bed.is_writing()), (2, false));
        assert!(bed.control.is_changing() && !bed.control.is_idle());
        bed.starts("cache");
        assert!(bed.is_writing());
        assert!(!bed.is_desired("cache") && bed.control.node().service(&name("monitor")).is_some());
        bed.write();
        assert!(awaited.try_answer().is_none(), "one has yet to stop");
        bed.stops("monitor");
        let answer = awaited.try_answer().unwrap().unwrap();
        assert_eq!((answer.generation, services(&bed)), (2, vec!["cache".to_owned()]));
        assert_eq!((bed.desired_rules(), bed.control.node().numbered_rules().len()), (1, 1));
    }

    #[test]
    fn what_does_not_start_or_cannot_be_recorded_takes_all_of_it_back() {
        for is_started in [false, true] {
            let mut bed = Bed::new();
            applied(&mut bed, &service("monitor", 4), "monitor");
            let rules = bed.control.node().numbered_rules();
            let known = (bed.entry("monitor"), bed.control.state().desired().generation());
            let mut awaited = apply(&mut bed, request(&service("cache", 4)));
            compile(&mut bed, None);
            match is_started {
                true => {
                    bed.starts("cache");
                    bed.fail_write();
                    bed.stops("cache");
                }
                false => {
                    let (entry, reason) = (bed.entry("cache"), "no room".to_owned());
                    bed.event(Event::ServiceFailed { entry, reason });
                }
            }
            let refusal = awaited.try_answer().unwrap().unwrap_err();
            let says = if is_started { "no space left" } else { "'cache' did not start: no room" };
            assert!(refusal.message.contains(says), "{}", refusal.message);
            assert_eq!((services(&bed), bed.is_desired("cache")), (vec!["monitor".into()], false));
            let stays = (bed.entry("monitor"), bed.control.state().desired().generation());
            assert_eq!(stays, known);
            let specs = |rules: &[(units::RuleId, node::desired::DesiredRule)]| -> Vec<_> {
                rules.iter().map(|(_, rule)| rule.clone()).collect()
            };
            assert_eq!(specs(&bed.control.node().numbered_rules()), specs(&rules));
            assert!(!bed.control.state().desired().shortfall().is_any() && bed.control.is_idle());
        }
    }

    #[test]
    fn a_module_that_cannot_be_compiled_is_refused_before_anything_changes() {
        let mut bed = Bed::new();
        let mut awaited = apply(&mut bed, request(&service("cache", 4)));
        compile(&mut bed, Some("it takes too long"));
        let message = awaited.try_answer().unwrap().unwrap_err().message;
        assert!(message.contains("'cache': it takes too long"), "{message}");
        assert!(services(&bed).is_empty() && bed.control.is_idle());
    }

    #[test]
    fn a_state_with_a_mistake_or_for_show_or_of_what_is_there_changes_nothing() {
        let mut bed = Bed::new();
        applied(&mut bed, &service("monitor", 4), "monitor");
        let refused = apply(&mut bed, request("[[service]]\nname = 7\n")).try_answer();
        assert_eq!(refused.unwrap().unwrap_err().code, ErrorCode::Usage);
        let confirm_s = Some(CONFIRM_SECONDS_MAX + 1);
        let late = ApplyRequest { confirm_s, ..request(&service("cache", 4)) };
        assert!(apply(&mut bed, late).try_answer().unwrap().is_err());
        let shown = ApplyRequest { dry_run: true, ..request(&service("cache", 4)) };
        let shown = apply(&mut bed, shown).try_answer().unwrap().unwrap();
        assert!(shown.dry_run && !shown.changes.is_empty());
        let same = apply(&mut bed, request(&service("monitor", 4))).try_answer().unwrap().unwrap();
        assert!(same.changes.is_empty());
        assert_eq!((services(&bed), bed.is_writing()), (vec!["monitor".to_owned()], false));
    }

    #[test]
    fn what_nobody_confirms_is_taken_back_and_nothing_comes_between() {
        let mut bed = Bed::new();
        applied(&mut bed, &service("monitor", 4), "monitor");
        let rule = "[[rule]]\nmatch = \"proto udp\"\naction = \"drop\"\n";
        let text = service("monitor", 4) + rule;
        let mut awaited = apply(&mut bed, ApplyRequest { confirm_s: Some(60), ..request(&text) });
        bed.write_all();
        assert_eq!(awaited.try_answer().unwrap().unwrap().confirm_within_s, Some(60));
        assert!(bed.control.confirmed_until().is_some());
        let remove = |reply| Change::Remove("monitor".to_owned(), true, reply);
        assert!(bed.refused(remove).message.contains("waits for its confirmation"));
        // While a confirmation is recorded others wait for how that ends.
        let mut confirmed = bed.ask(Change::Confirm);
        let mut removed = bed.ask(remove);
        assert!(bed.control.confirmed_until().is_none());
        bed.fail_write();
        assert!(confirmed.try_answer().unwrap().is_err());
        assert!(removed.try_answer().unwrap().is_err(), "it would be taken back");
        bed.control.handle_not_confirmed();
        bed.settle();
        bed.write_all();
        assert_eq!((bed.desired_rules(), bed.control.node().numbered_rules().len()), (1, 1));
        assert!(bed.refused(Change::Confirm).code == ErrorCode::NotFound);
    }

    #[test]
    fn a_confirmed_state_stays_in_its_generation() {
        let mut bed = Bed::new();
        let text = "[[rule]]\nmatch = \"proto udp\"\naction = \"drop\"\n";
        let _applied = apply(&mut bed, ApplyRequest { confirm_s: Some(60), ..request(text) });
        bed.write_all();
        let confirmed = bed.made(Change::Confirm);
        assert_eq!(confirmed.generation, bed.control.state().desired().generation());
        assert!(bed.control.state().desired().unconfirmed().is_none());
        assert!(bed.control.confirmed_until().is_none(), "nothing takes it back");
        bed.wait(120_000);
        assert_eq!(bed.desired_rules(), 1);
    }

    #[test]
    fn a_rollback_goes_to_the_state_before_and_fails_where_there_is_none() {
        let mut bed = Bed::new();
        let rollback = |generation| RollbackRequest { generation, ..Default::default() };
        let back = |reply| Change::Rollback(rollback(None), reply);
        assert_eq!(bed.refused(back).code, ErrorCode::NotFound);
        let rule = |r#match| format!("[[rule]]\nmatch = \"{match}\"\naction = \"drop\"\n");
        for r#match in ["proto udp", "proto tcp"] {
            let _applied = apply(&mut bed, request(&rule(r#match)));
            bed.write_all();
        }
        let rules = |bed: &Bed| {
            let rules = bed.control.node().numbered_rules();
            rules.iter().map(|(_, rule)| rule.spec.r#match.to_string()).collect::<Vec<_>>()
        };
        let answer = bed.made(back);
        assert_eq!((answer.generation, rules(&bed)), (3, vec!["proto udp".to_owned()]));
        let mut failed = bed.ask(|reply| Change::Rollback(rollback(Some(2)), reply));
        bed.fail_write();
        assert!(failed.try_answer().unwrap().is_err());
        assert_eq!(rules(&bed), ["proto udp"]);
        // Forth, and to one that is named.
        for (to, expected) in [(None, "proto tcp"), (None, "proto udp"), (Some(2), "proto tcp")] {
            bed.made(|reply| Change::Rollback(rollback(to), reply));
            assert_eq!(rules(&bed), [expected], "{to:?}");
        }
        let far = |reply| Change::Rollback(rollback(Some(77)), reply);
        assert_eq!(bed.refused(far).code, ErrorCode::NotFound);
    }

    /// Returns the request for another version of a service that a node has, with its state.
    fn version(module: usize, more: &str) -> ApplyRequest {
        let text = service("monitor", module) + more;
        ApplyRequest { discard_state: false, ..request(&text) }
    }

    fn module_of(bed: &Bed, service: &str) -> String {
        bed.control.node().service(&name(service)).unwrap().module.digest.clone()
    }

    #[test]
    fn a_version_takes_the_place_of_the_one_before_and_each_way_back_does_the_same() {
        let mut bed = Bed::new();
        applied(&mut bed, &service("monitor", 4), "monitor");
        let entry = bed.entry("monitor");
        let replaced = |bed: &mut Bed| {
            compile(bed, None);
            bed.event(Event::ServiceReplaced { entry });
            bed.event(Event::ServiceKept { entry });
            bed.write_all();
        };
        let is = |bed: &Bed, module: usize| {
            let expected = (entry, digest(&MODULES[module]).to_string(), 1);
            let rules = bed.control.node().numbered_rules().len();
            assert_eq!((bed.entry("monitor"), module_of(bed, "monitor"), rules), expected);
            assert!(bed.control.is_idle());
        };
        let mut awaited = apply(&mut bed, version(5, ""));
        replaced(&mut bed);
        let change = awaited.try_answer().unwrap().unwrap().changes.remove(0);
        assert_eq!((change.replaced, change.state_lost), (true, None));
        is(&bed, 5);
        let mut awaited = bed.ask(|reply| Change::Rollback(RollbackRequest::default(), reply));
        replaced(&mut bed);
        let change = awaited.try_answer().unwrap().unwrap().changes.remove(0);
        assert_eq!((change.replaced, change.state_lost), (true, None));
        is(&bed, 4);
        let unconfirmed = ApplyRequest { confirm_s: Some(1), ..version(5, "") };
        let mut awaited = apply(&mut bed, unconfirmed);
        replaced(&mut bed);
        assert_eq!(awaited.try_answer().unwrap().unwrap().confirm_within_s, Some(1));
        is(&bed, 5);
        bed.control.handle_not_confirmed();
        bed.settle();
        replaced(&mut bed);
        is(&bed, 4);
    }

    #[test]
    fn a_version_that_fails_takes_the_whole_change_back() {
        let reason = || "unreachable".to_owned();
        for (begins, says) in
            [(false, "'monitor' goes on as it was"), (true, "'monitor' failed at once")]
        {
            let mut bed = Bed::new();
            applied(&mut bed, &service("monitor", 4), "monitor");
            let (entry, rules) = (bed.entry("monitor"), bed.control.node().numbered_rules());
            let generation = bed.control.state().desired().generation();
            let drop = "[[rule]]\nmatch = \"proto udp\"\naction = \"drop\"\n";
            let mut awaited = apply(&mut bed, version(5, drop));
            compile(&mut bed, None);
            match begins {
                true => {
                    bed.event(Event::ServiceReplaced { entry });
                    bed.event(Event::ServicePutBack { entry, reason: reason() });
                }
                false => bed.event(Event::ReplaceFailed { entry, reason: reason() }),
            }
            let refusal = awaited.try_answer().unwrap().unwrap_err();
            assert!(refusal.message.contains(says), "{}", refusal.message);
            assert_eq!(module_of(&bed, "monitor"), digest(&MODULES[4]).to_string());
            assert_eq!(bed.entry("monitor"), entry);
            assert_eq!(bed.control.node().numbered_rules(), rules);
            assert_eq!(bed.control.state().desired().generation(), generation);
            assert!(bed.control.is_idle() && !bed.is_writing());
        }
    }

    #[test]
    fn what_did_not_come_back_is_said_to_be_missing_and_tried_again() {
        let mut bed = Bed::new();
        applied(&mut bed, &service("monitor", 4), "monitor");
        bed.event(Event::CellLost { reason: "killed".to_owned() });
        bed.wait(10_000);
        // It fails while another state is applied.
        let _removed = bed
            .control
            .state
            .command(node::Command::Remove { service: name("monitor"), cascade: true });
        bed.settle();
        bed.stops("monitor");
        bed.control.resume();
        bed.settle();
        let (entry, reason) = (bed.entry("monitor"), "no room".to_owned());
        bed.event(Event::ServiceFailed { entry, reason });
        let missing = &bed.control.state().desired().shortfall().services;
        assert!(missing.contains_key(&name("monitor")), "{missing:?}");
        let at = bed.control.resumes_at().expect("it is tried again");
        bed.wait(at.as_millis());
        assert!(bed.control.handle_resumption());
        bed.control.resume();
        bed.settle();
        bed.starts("monitor");
        assert!(!bed.control.state().desired().shortfall().is_any());
    }
}
