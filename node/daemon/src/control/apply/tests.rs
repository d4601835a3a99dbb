//! Unit tests of changes of the whole desired state: atomicity, and messages.

use super::super::action::Action;
use super::super::change::Change;
use super::super::testbed::{MODULES, Testbed, deploy, digest, holder, name};
use super::*;
use crate::reply::Awaited;
use api::{ApplyModule, ApplyRequest, RollbackRequest};
use module_store::Digest;
use node::Event;

fn service(name: &str, module: usize) -> String {
    let digest = digest(&MODULES[module]);
    format!("[[service]]\nname = \"{name}\"\nmodule = \"{digest}\"\nrules = [\"dst 10.0.0.0/8\"]\n")
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

fn apply(bed: &mut Testbed, request: ApplyRequest) -> Awaited<Applied> {
    bed.ask(|reply| Change::Apply(Box::new(request), reply))
}

/// Completes all compilations that are waited for, or fails them with a reason.
fn compile(bed: &mut Testbed, failure: Option<&str>) {
    let failure = failure.map(str::to_owned);
    for action in std::mem::take(&mut bed.actions) {
        if let Action::Compile(module, _) = action {
            bed.control.handle_compiled(&module, failure.as_ref());
        }
    }
    bed.settle();
}

/// Applies a text with one service to the node.
fn applied(bed: &mut Testbed, text: &str, starts: &str) -> Applied {
    let mut awaited = apply(bed, request(text));
    compile(bed, None);
    bed.starts(starts);
    bed.write_all();
    awaited.try_answer().unwrap().unwrap()
}

fn services(bed: &Testbed) -> Vec<String> {
    bed.control.node().services().map(|it| it.name.to_string()).collect()
}

#[test]
fn a_state_is_recorded_when_its_services_run_and_before_others_stop() {
    let mut bed = Testbed::new();
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
fn a_change_that_does_not_start_or_cannot_be_recorded_is_rolled_back_as_a_whole() {
    for is_started in [false, true] {
        let mut bed = Testbed::new();
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
    let mut bed = Testbed::new();
    let mut awaited = apply(&mut bed, request(&service("cache", 4)));
    compile(&mut bed, Some("it takes too long"));
    let message = awaited.try_answer().unwrap().unwrap_err().message;
    assert!(message.contains("'cache': it takes too long"), "{message}");
    assert!(services(&bed).is_empty() && bed.control.is_idle());
}

#[test]
fn a_state_with_a_mistake_or_for_show_or_of_what_is_there_changes_nothing() {
    let mut bed = Testbed::new();
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
fn an_unconfirmed_change_is_reverted_and_no_other_change_comes_between() {
    let mut bed = Testbed::new();
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
fn a_service_that_cannot_be_restored_loses_its_rules_and_the_rest_is_rolled_back() {
    let mut bed = Testbed::new();
    applied(&mut bed, &service("monitor", 4), "monitor");
    let text = format!(
        "[[session]]\nname = \"gold\"\n{}session = \"gold\"\n[[rule]]\nmatch = \"proto udp dport 53\"\naction = \"drop\"\nsession = \"gold\"\n",
        service("monitor", 4)
    );
    let mut awaited = apply(&mut bed, request(&text));
    compile(&mut bed, None);
    // In another session it is another service: the one before goes.
    bed.stops("monitor");
    bed.starts("monitor");
    bed.fail_write();
    bed.stops("monitor");
    let (entry, reason) = (bed.entry("monitor"), "no room".to_owned());
    bed.event(Event::ServiceFailed { entry, reason });
    let refusal = awaited.try_answer().unwrap().unwrap_err();
    assert!(refusal.message.contains("no space left"), "{}", refusal.message);
    assert_eq!((services(&bed), bed.is_desired("monitor")), (vec![], true));
    let rules = bed.control.node().numbered_rules();
    assert!(rules.is_empty(), "those of the change that was taken back: {rules:?}");
}

#[test]
fn a_confirmed_state_stays_in_its_generation() {
    let mut bed = Testbed::new();
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
    let mut bed = Testbed::new();
    let rollback = |generation| RollbackRequest { generation, ..Default::default() };
    let back = |reply| Change::Rollback(rollback(None), reply);
    assert_eq!(bed.refused(back).code, ErrorCode::NotFound);
    let rule = |r#match| format!("[[rule]]\nmatch = \"{match}\"\naction = \"drop\"\n");
    for r#match in ["proto udp", "proto tcp"] {
        let _applied = apply(&mut bed, request(&rule(r#match)));
        bed.write_all();
    }
    let rules = |bed: &Testbed| {
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

fn module_of(bed: &Testbed, service: &str) -> String {
    bed.control.node().service(&name(service)).unwrap().module.digest.clone()
}

#[test]
fn a_version_replaces_the_previous_one_and_so_does_each_rollback() {
    let mut bed = Testbed::new();
    applied(&mut bed, &service("monitor", 4), "monitor");
    let entry = bed.entry("monitor");
    let replaced = |bed: &mut Testbed| {
        compile(bed, None);
        bed.event(Event::ServiceReplaced { entry });
        bed.event(Event::ServiceKept { entry });
        bed.write_all();
    };
    let is = |bed: &Testbed, module: usize| {
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
fn a_version_that_fails_reverts_the_whole_change() {
    let reason = || "unreachable".to_owned();
    for (begins, says) in
        [(false, "'monitor' goes on as it was"), (true, "'monitor' failed at once")]
    {
        let mut bed = Testbed::new();
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
fn a_service_that_did_not_restart_is_reported_missing_and_retried() {
    let mut bed = Testbed::new();
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

/// Returns a text with a service of a module, and lines of its own.
fn with(module: usize, lines: &str) -> String {
    format!("[[service]]\nname = \"first\"\nmodule = \"{}\"\n{lines}\n", digest(&MODULES[module]))
}

#[test]
fn a_mistake_is_named_with_its_place_and_changes_nothing() {
    let mut bed = Testbed::new();
    applied(&mut bed, &service("monitor", 4), "monitor");
    let session = |name: &str| format!("[[session]]\nname = \"{name}\"\n");
    let twice = with(4, "") + &with(4, "");
    let absent = Digest::of(b"nothing");
    for (text, place, says) in [
        (with(4, "rules = [\"in lft\"]"), "line 4, column 10", "did you mean 'left'?"),
        (with(4, "rules = [\"any\", \"dst x\"]"), "line 4, column 17", "'x'"),
        (with(4, "parameters = { dscp = 1 }"), "line 4, column 14", "no parameter"),
        (with(4, "session = \"sytem\""), "line 4, column 11", "did you mean 'system'?"),
        (with(0, "level = \"nic\""), "line 4, column 9", "levels"),
        (with(4, "then = [\"frist\"]"), "line 4, column 8", "did you mean 'first'?"),
        (with(4, "then = [\"first\"]"), "line 4, column 8", "again"),
        (twice, "line 6, column 8", "there are two services 'first'; give this one another name"),
        (with(4, "").replace("sha256:", "sha256:0"), "line 3, column 10", "sha256:0"),
        ("[[service]]\nmodule = \"frst\"\n".into(), "line 2, column 10", "frst"),
        ("[[service]]\nmodule = \"./x.wasm\"\n".into(), "line 2, column 10", "not sent along"),
        (
            format!("[[service]]\nmodule = \"{absent}\"\n"),
            "line 2, column 10",
            "`tam apply` asks the node's repositories for it",
        ),
        (
            with(4, "[[rule]]\nmatch = \"any\"\naction = \"service frst\""),
            "line 4, column 1",
            "did you mean 'first'?",
        ),
        (
            "[[rule]]\nmatch = \"proto udp dprt 5\"\naction = \"drop\"\n".into(),
            "line 2, column 9",
            "did you mean 'dport'?",
        ),
        (
            session("gold") + &session("gold"),
            "line 4, column 8",
            "there are two sessions 'gold'; leave one of them out",
        ),
        (session("system"), "line 2, column 8", "system"),
        ("name = \"other\"\n".into(), "line 1, column 1", "this is the file of node 'other'"),
        ("\n\nstore = \"/elsewhere\"\n".into(), "line 3, column 9", "restart the node"),
    ] {
        let refused = apply(&mut bed, request(&text)).try_answer().unwrap().unwrap_err();
        let (code, said) = (refused.code, refused.message);
        let begins = format!("state.toml, {place}: ");
        assert!(said.starts_with(&begins) && said.contains(says), "{text}\n{said}\n{begins}{says}");
        assert_eq!(code, ErrorCode::Usage, "{said}");
        assert_eq!(refused.help.unwrap(), "correct the file; nothing has changed");
    }
    assert_eq!((services(&bed), bed.is_writing()), (vec!["monitor".to_owned()], false));
    assert_eq!(bed.control.state().desired().generation(), 1);
}

#[test]
fn a_dry_run_lists_the_changes_in_words() {
    let mut bed = Testbed::new();
    applied(&mut bed, &service("monitor", 4), "monitor");
    let diff = |bed: &mut Testbed, text: &str| {
        let dry_run = ApplyRequest { dry_run: true, ..request(text) };
        let answer = apply(bed, dry_run).try_answer().unwrap().unwrap();
        assert_eq!((answer.dry_run, answer.generation), (true, 1));
        let words = answer.changes.into_iter().map(|it| (it.kind, it.text));
        words.map(|(kind, text)| format!("{kind}: {text}")).collect::<Vec<_>>()
    };
    let rule = "rule dst 10.0.0.0/8 -> service monitor (comes with it), priority 100, session \
                best-effort, stage service";
    let text = service("monitor", 4);
    assert_eq!(diff(&mut bed, &text), [""; 0]);
    let removed = ["service-removed: service monitor".to_owned(), format!("rule-removed: {rule}")];
    assert_eq!(diff(&mut bed, ""), removed);
    let gold = format!("bpf = false\n[[session]]\nname = \"gold\"\n{text}session = \"gold\"\n");
    let [taken, given] = [rule.to_owned(), rule.replace("best-effort", "gold")];
    assert_eq!(
        diff(&mut bed, &gold),
        [
            "bpf: bpf off".to_owned(),
            "session-added: session gold".to_owned(),
            "service-changed: service monitor: begins empty, since it changes its session from \
         'best-effort' to 'gold'"
                .to_owned(),
            format!("rule-removed: {taken}"),
            format!("rule-added: {given}"),
        ]
    );
    let budget = format!("{text}budget = {{ packets = 5 }}\n");
    assert_eq!(
        diff(&mut bed, &budget),
        ["service-changed: service monitor: changes while it runs"]
    );
    let other = text.replace(&digest(&MODULES[4]).to_string(), &digest(&MODULES[5]).to_string());
    assert_eq!(
        diff(&mut bed, &other),
        ["service-changed: service monitor: another version takes its place"]
    );
    assert_eq!(services(&bed), ["monitor"]);
    assert!(!bed.is_writing());
}

#[test]
fn service_state_is_discarded_only_with_discard_state() {
    let mut bed = Testbed::new();
    applied(&mut bed, &service("monitor", 4), "monitor");
    let keep = |text: &str| ApplyRequest { discard_state: false, ..request(text) };
    let gold =
        format!("[[session]]\nname = \"gold\"\n{}session = \"gold\"\n", service("monitor", 4));
    let refused = apply(&mut bed, keep(&gold)).try_answer().unwrap().unwrap_err();
    let says = "state.toml, line 7, column 11: the service 'monitor' would lose what it knows: it \
                changes its session from 'best-effort' to 'gold'; with --discard-state it begins \
                empty";
    assert_eq!(refused.message, says);
    assert_eq!((bed.is_writing(), bed.control.is_idle()), (false, true));
    assert!(apply(&mut bed, keep(&service("monitor", 4))).try_answer().unwrap().is_ok());
}

#[test]
fn a_module_sent_with_a_file_is_checked_by_its_manifest_and_runs_when_it_is_received() {
    let mut bed = Testbed::new();
    let text = "[[service]]\nmodule = \"./beside.wasm\"\n";
    let module = &MODULES[2];
    let manifest = serde_json::to_value(&module.checked.manifest).unwrap();
    let with = |manifest: Option<serde_json::Value>, image: Option<&str>, dry_run| {
        let digest = digest(module).to_string();
        let memory_image = image.map(str::to_owned);
        let sent = ApplyModule { digest, manifest, memory_image, ..ApplyModule::default() };
        let modules = [("./beside.wasm".to_owned(), sent)].into();
        ApplyRequest { modules, dry_run, ..request(text) }
    };
    let shown = apply(&mut bed, with(Some(manifest.clone()), None, true)).try_answer();
    assert_eq!(shown.unwrap().unwrap().changes[0].text, "service m1");
    for (manifest, image, says) in [
        (Some(manifest), Some("0x7"), "line 2, column 10: its memory_image is no number"),
        (Some(serde_json::json!({})), None, "line 2, column 10: the manifest that came with"),
    ] {
        let refused = apply(&mut bed, with(manifest, image, true)).try_answer().unwrap();
        let said = refused.unwrap_err().message;
        assert!(said.contains(says), "{said}");
    }
    let mut awaited = apply(&mut bed, with(None, None, false));
    compile(&mut bed, None);
    bed.starts("m1");
    bed.write_all();
    assert_eq!(awaited.try_answer().unwrap().unwrap().changes.len(), 1);
    assert_eq!(services(&bed), ["m1"]);
}

#[test]
fn nothing_new_begins_while_nobody_can_be_billed_and_what_runs_may_change() {
    let mut bed = Testbed::new();
    applied(&mut bed, &service("monitor", 4), "monitor");
    bed.control.set_ledger_problem(Some("no space left on device".to_owned()));
    let refused = apply(&mut bed, request(&service("cache", 4))).try_answer().unwrap();
    let said = refused.unwrap_err().message;
    let says =
        "no new service is taken while the ledger cannot be written: no space left on device";
    assert_eq!(said, says);
    assert!(bed.actions.iter().any(|it| matches!(it, Action::Bill)), "it may be mended");
    let text = service("monitor", 4) + "budget = { packets = 5 }\n";
    let mut awaited = apply(&mut bed, request(&text));
    bed.write_all();
    assert!(awaited.try_answer().unwrap().is_ok());
    let shown = ApplyRequest { dry_run: true, ..request(&service("cache", 4)) };
    assert!(apply(&mut bed, shown).try_answer().unwrap().is_ok());
}

#[test]
fn generations_are_listed_with_what_made_them_and_which_one_waits() {
    let mut bed = Testbed::new();
    applied(&mut bed, &service("monitor", 4), "monitor");
    let text = "[[rule]]\nmatch = \"any\"\naction = \"forward\"\n".to_owned();
    let confirm_s = Some(60);
    let _applied =
        apply(&mut bed, ApplyRequest { confirm_s, ..request(&(service("monitor", 4) + &text)) });
    bed.write_all();
    let desired = bed.control.state().desired();
    let heads = desired.journal().lock().unwrap().list().unwrap();
    let listed = generations(heads).into_iter();
    let listed: Vec<_> =
        listed.map(|it| (it.generation, it.services, it.rules, it.unconfirmed)).collect();
    assert_eq!(listed, [(2, 1, 2, true), (1, 1, 1, false)]);
    let shown = shown_desired(&bed.control.state().file, desired, Nanos::ZERO);
    assert_eq!((shown.node.as_str(), shown.generation), ("r1", 2));
    assert!(shown.confirm_within_s.is_some_and(|left| left <= 60) && shown.waiting.is_empty());
}

#[test]
fn a_file_of_the_operator_leaves_objects_of_principals_unchanged() {
    let mut bed = Testbed::new();
    let request_of = Box::new(deploy("owned", 4));
    let _deployed = bed.ask_as(&holder(), |reply| Change::Deploy(request_of, reply));
    bed.starts("owned");
    bed.write_all();
    applied(&mut bed, &service("monitor", 4), "monitor");
    assert_eq!(services(&bed), ["monitor", "owned"]);
    let changes = apply(&mut bed, ApplyRequest { dry_run: true, ..request("") });
    let changes = { changes }.try_answer().unwrap().unwrap().changes;
    let texts: Vec<&str> = changes.iter().map(|it| it.text.as_str()).collect();
    assert!(texts.iter().all(|text| !text.contains("owned")), "{texts:?}");
}

/// Ends the steps of a change in each order that cells may report them.
#[test]
fn services_of_one_change_may_start_in_any_order_and_one_that_fails_takes_all_back() {
    let text = ["a", "b", "c"].map(|name| service(name, 4)).concat();
    for failing in [None, Some("a"), Some("b"), Some("c")] {
        for order in [["a", "b", "c"], ["c", "a", "b"], ["b", "c", "a"]] {
            let mut bed = Testbed::new();
            let mut awaited = apply(&mut bed, request(&text));
            compile(&mut bed, None);
            assert_eq!(services(&bed), ["a", "b", "c"], "they start at the same time");
            for service in order {
                assert!(!bed.is_writing(), "not before all run");
                if Some(service) == failing {
                    let (entry, reason) = (bed.entry(service), "no room".to_owned());
                    bed.event(Event::ServiceFailed { entry, reason });
                    break;
                }
                bed.starts(service);
            }
            let Some(failing) = failing else {
                bed.write_all();
                assert!(awaited.try_answer().unwrap().is_ok());
                continue;
            };
            for service in services(&bed) {
                bed.stops(&service);
            }
            let said = awaited.try_answer().unwrap().unwrap_err().message;
            assert_eq!(said, format!("the service '{failing}' did not start: no room"));
            assert_eq!((services(&bed), bed.desired_rules()), (Vec::new(), 0));
            assert!(!bed.is_writing() && bed.control.is_idle());
        }
    }
}
