//! Unit tests of a whole daemon: its cell is a socket, and its data plane has tables only.

use super::testbed::Testbed;
use super::*;
use crate::cells::SILENT_MAX;
use crate::control::change::Change;
use crate::control::testbed::{MODULES, deploy, digest};
use crate::request::{LedgerQuestion, Request};
use api::{
    DeployRequest, ErrorCode, EventKind, LedgerRecord, MessageRequest, RulesRequest, SessionRequest,
};
use cell::protocol::{
    CellReport, Failure, FromCell, ReturnedFd, ServiceReport, SessionReport, ToCell,
};
use units::{Bytes, EntryId, Packets};

fn message(data_hex: &str) -> MessageRequest {
    MessageRequest { data_hex: data_hex.to_owned() }
}

/// Request for a version of the first module.
fn version(service: &str, number: usize) -> Box<DeployRequest> {
    Box::new(deploy(service, number))
}

#[tokio::test(flavor = "current_thread")]
async fn a_cell_has_devices_memory_and_rules_before_it_counts_as_ready() {
    let mut bed = Testbed::begin();
    assert_eq!(bed.cell.starts(), 0);
    bed.until(|bed| bed.cell.starts() > 0).await;
    let words = bed.cell.take_words();
    assert_eq!(words[..6], ["Kernel", "Tap", "Memory", "Codecs", "Counts", "Rules"], "{words:?}");
    let ready = bed.events(EventKind::CellReady).await;
    assert_eq!(ready.len(), 1);
    assert!(ready[0].text.contains("process 1001"), "{}", ready[0].text);
    assert_eq!(bed.record().cell, Some(1001), "the next daemon finds it");
}

#[tokio::test(flavor = "current_thread")]
async fn a_service_is_reported_running_after_it_is_in_the_record_and_the_journal() {
    let mut bed = Testbed::new().await;
    let entry = bed.run("monitor", &["proto udp dport 53"]).await;
    let facts = bed.cell.started("monitor").unwrap();
    assert_eq!((facts.entry, facts.lanes, facts.shared), (entry, 1, None));
    assert_eq!(facts.kept.module as usize, MODULES[0].wasm.len());
    assert_eq!(bed.record().node.running().collect::<Vec<_>>(), [entry]);
    assert_eq!(bed.daemon.control.state().desired().generation(), 1);
    let services = bed.get(Request::Services).await.services;
    assert_eq!(services[0].state, "running");
    assert_eq!(services[0].stats.lanes_running, 1, "the cell was asked");
    assert_eq!(bed.events(EventKind::ServiceStarted).await.len(), 1);
}

#[tokio::test(flavor = "current_thread")]
async fn a_service_whose_cell_dies_while_it_starts_is_started_in_the_next_one() {
    let mut bed = Testbed::new().await;
    bed.cell.be_quiet(true);
    let awaited = bed.ask(|it| Request::Change(Change::Deploy(version("monitor", 0), it)));
    bed.until(|bed| bed.cell.started("monitor").is_some()).await;
    bed.cell.die();
    bed.until(|bed| !bed.has_cell()).await;
    assert_eq!(bed.events(EventKind::CellLost).await.len(), 1);
    bed.cell.be_quiet(false);
    bed.wait(100);
    bed.until(|bed| bed.runs("monitor")).await;
    assert_eq!((bed.cell.starts(), bed.record().cell), (2, Some(1002)));
    let entry = bed.entry("monitor");
    assert_eq!(bed.cell.started("monitor").unwrap().entry, entry);
    let deployed = bed.answer(awaited).await.unwrap();
    assert_eq!((deployed.service.name.as_str(), deployed.replaced.is_none()), ("monitor", true));
}

#[tokio::test(flavor = "current_thread")]
async fn everything_that_ran_runs_again_after_a_cell_that_has_died() {
    let mut bed = Testbed::new().await;
    for service in ["one", "two", "three"] {
        bed.run(service, &[]).await;
    }
    let entries = ["one", "two", "three"].map(|service| bed.entry(service));
    bed.cell.set_own_report(CellReport { oversized: 3, ..CellReport::default() });
    bed.get(Request::Stats).await;
    bed.cell.die();
    bed.until(|bed| !bed.has_cell()).await;
    assert!(!bed.runs("one"));
    assert!(bed.daemon.runtime.cells().report_of(entries[0]).is_none(), "its report went with it");
    bed.wait(100);
    bed.until(|bed| ["one", "two", "three"].iter().all(|service| bed.runs(service))).await;
    assert_eq!(["one", "two", "three"].map(|service| bed.entry(service)), entries);
    let lost = bed.events(EventKind::CellLost).await;
    assert_eq!(lost.len(), 1);
    assert_eq!(lost[0].reason.as_deref(), Some("the cell ended: killed"));
}

#[tokio::test(flavor = "current_thread")]
async fn a_cell_that_does_not_start_is_tried_again_and_the_reason_is_told() {
    let mut bed = Testbed::begin();
    bed.cell.refuse_starts(true);
    bed.settle();
    for (start, pause) in [(1, 100), (2, 200), (3, 400)] {
        assert_eq!(bed.cell.starts(), start);
        bed.wait(pause);
    }
    bed.cell.refuse_starts(false);
    bed.wait(800);
    bed.until(|bed| bed.has_cell()).await;
    assert_eq!(bed.cell.starts(), 5);
    let lost = bed.events(EventKind::CellLost).await;
    assert_eq!(lost.len(), 4);
    assert_eq!(lost[0].reason.as_deref(), Some("no such program"));
}

#[tokio::test(flavor = "current_thread")]
async fn a_silent_cell_is_reported_and_ended() {
    let mut bed = Testbed::new().await;
    bed.cell.be_quiet(true);
    let is_question = |it: &ToCell| matches!(it, ToCell::MemoryOf(None));
    for _ in 0..SILENT_MAX - 1 {
        bed.check();
        bed.settle();
    }
    assert_eq!(bed.cell.count(is_question), 1, "one question waits for its answer");
    let silent = bed.events(EventKind::CellSilent).await;
    assert_eq!(silent.len(), 1);
    assert!(silent[0].text.contains("process 1001"), "{}", silent[0].text);
    bed.check();
    bed.settle();
    assert!(!bed.has_cell());
    let lost = bed.events(EventKind::CellLost).await;
    let reason = lost[0].reason.as_deref();
    assert_eq!(reason, Some("it has not answered for 30 s; the cell ended: killed"));
}

#[tokio::test(flavor = "current_thread")]
async fn a_cell_that_answers_late_goes_on() {
    let mut bed = Testbed::new().await;
    bed.cell.be_quiet(true);
    for _ in 0..SILENT_MAX - 1 {
        bed.check();
        bed.settle();
    }
    bed.cell.be_quiet(false);
    bed.handle_cell(FromCell::SessionsReported).await;
    assert_eq!(bed.events(EventKind::CellSilent).await.len(), 2, "it answers again");
    for _ in 0..SILENT_MAX {
        bed.check();
        bed.get(Request::Stats).await;
    }
    assert_eq!(bed.cell.starts(), 1);
}

#[tokio::test(flavor = "current_thread")]
async fn a_cell_that_sends_an_undecodable_message_is_lost() {
    let mut bed = Testbed::new().await;
    bed.cell.say_bytes(&[0xff; 9]);
    bed.until(|bed| !bed.has_cell()).await;
    let lost = bed.events(EventKind::CellLost).await;
    assert!(lost[0].reason.as_ref().unwrap().contains("cannot be read"), "{:?}", lost[0]);
}

#[tokio::test(flavor = "current_thread")]
async fn answers_that_nobody_asked_for_change_nothing() {
    let mut bed = Testbed::new().await;
    let entry = bed.run("monitor", &[]).await;
    let gone = EntryId(entry.0 + 9);
    for word in [
        FromCell::Returned(ReturnedFd::Kernel),
        FromCell::Answered(entry, vec![Some(1)]),
        FromCell::Answered(gone, vec![]),
        FromCell::Reported(Box::default()),
        FromCell::SessionsReported,
        FromCell::Started(entry),
        FromCell::Started(gone),
        FromCell::Stopped(gone, Box::default()),
        FromCell::StartFailed(gone, Failure { reason: "late".to_owned(), is_short: false }),
        FromCell::VersionConfirmed(gone),
        FromCell::RolledBack(gone, "late".to_owned()),
        FromCell::Replaced(gone, 1),
        FromCell::Targeted(gone),
        FromCell::TargetFailed(gone),
        FromCell::Settled(gone),
        FromCell::Service(gone, Box::default()),
        FromCell::CodecUnwanted(3),
    ] {
        bed.handle_cell(word).await;
    }
    assert!(bed.runs("monitor") && bed.cell.starts() == 1);
    let stats = bed.get(Request::Stats).await;
    assert_eq!(stats.services.into_keys().collect::<Vec<_>>(), ["monitor"]);
    assert_eq!(bed.events(EventKind::ServiceStarted).await.len(), 1);
}

#[tokio::test(flavor = "current_thread")]
async fn a_message_is_answered_by_its_service_or_refused() {
    let mut bed = Testbed::new().await;
    bed.run("monitor", &[]).await;
    let ask = |to: &str, data: &str| {
        let (to, data) = (to.to_owned(), message(data));
        move |reply| Request::Message(to, data, reply)
    };
    assert_eq!(bed.get(ask("monitor", "02ff")).await.answers, [Some(2), Some(255)]);
    for (to, data, code) in [
        ("nobody", "00", ErrorCode::NotFound),
        ("monitor", "0", ErrorCode::Usage),
        ("monitor", "0g", ErrorCode::Usage),
        ("monitor", &"00".repeat(abi::host::MESSAGE_LENGTH_MAX + 1), ErrorCode::Limit),
    ] {
        assert_eq!(bed.refused(ask(to, data)).await.code, code, "{to} {}", data.len());
    }
    bed.cell.be_quiet(true);
    let awaited = bed.ask(ask("monitor", "01"));
    bed.cell.die();
    let refusal = bed.answer(awaited).await.unwrap_err();
    assert_eq!(refusal.code, ErrorCode::Failed);
    assert_eq!(refusal.message, "the cell ended before the message was answered");
    assert_eq!(bed.refused(ask("monitor", "01")).await.code, ErrorCode::Failed, "it does not run");
}

#[tokio::test(flavor = "current_thread")]
async fn a_message_that_a_removed_service_has_not_answered_is_refused() {
    let mut bed = Testbed::new().await;
    let entry = bed.run("monitor", &[]).await;
    bed.run("next", &[]).await;
    bed.cell.be_quiet(true);
    let [first, next] = ["monitor", "next"]
        .map(|service| bed.ask(|reply| Request::Message(service.to_owned(), message("01"), reply)));
    let removed = bed.ask(|it| Request::Change(Change::Remove("monitor".into(), false, it)));
    bed.until(|bed| bed.cell.count(|it| matches!(it, ToCell::Stop(_))) > 0).await;
    bed.cell.say(&FromCell::Stopped(entry, Box::default()));
    let refusal = bed.answer(first).await.unwrap_err();
    assert_eq!(refusal.message, "the service ended before the message was answered");
    bed.answer(removed).await.unwrap();
    bed.cell.say(&FromCell::Answered(bed.entry("next"), vec![Some(7)]));
    assert_eq!(bed.answer(next).await.unwrap().answers, [Some(7)], "the other one's waits on");
}

#[tokio::test(flavor = "current_thread")]
async fn what_modules_say_and_how_they_trap_are_events_of_their_service() {
    let mut bed = Testbed::new().await;
    let entry = bed.run("monitor", &[]).await;
    bed.handle_cell(FromCell::Event(entry, 5, vec![0xab, 1])).await;
    bed.handle_cell(FromCell::Log(entry, "hello".to_owned())).await;
    bed.handle_cell(FromCell::Trapped(entry, 0, "unreachable".to_owned(), 1)).await;
    let said = bed.events(EventKind::ModuleEvent).await;
    let texts: Vec<&str> = said.iter().map(|event| event.text.as_str()).collect();
    assert_eq!(texts, ["the module says: ab01", "the module says: hello"]);
    assert_eq!(said[0].reason.as_deref(), Some("code 5"));
    let trapped = bed.events(EventKind::ServiceTrapped).await;
    for event in said.iter().chain(&trapped) {
        assert_eq!(event.service.as_deref(), Some("monitor"));
        assert_eq!(event.session.as_deref(), Some("best-effort"));
        assert_eq!(event.module, Some(digest(&MODULES[0]).to_string()));
    }
    assert!(trapped.len() == 1 && trapped[0].text.contains("unreachable"), "{trapped:?}");
}

#[tokio::test(flavor = "current_thread")]
async fn a_service_that_does_not_start_is_refused_with_the_cells_reason() {
    for (is_short, code) in [(false, ErrorCode::Failed), (true, ErrorCode::Limit)] {
        let mut bed = Testbed::new().await;
        let reason = "on_start refused: 3".to_owned();
        bed.cell.fail_starts(Some(Failure { reason, is_short }));
        let deploy = |it| Request::Change(Change::Deploy(version("monitor", 0), it));
        let refusal = bed.refused(deploy).await;
        assert!(refusal.message.contains("on_start refused: 3"), "{}", refusal.message);
        assert_eq!(refusal.code, code);
        assert!(bed.daemon.control.node().services().next().is_none());
        bed.bill().await;
        assert_eq!(records(&mut bed).await, [], "nobody pays for it");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn the_next_daemon_begins_with_the_version_before_until_the_new_one_was_watched() {
    for is_kept in [true, false] {
        let mut bed = Testbed::new().await;
        let entry = bed.run("monitor", &[]).await;
        let awaited = bed.ask(|it| Request::Change(Change::Deploy(version("monitor", 1), it)));
        bed.until(|bed| bed.cell.count(|it| matches!(it, ToCell::VersionKnown(_))) > 0).await;
        assert_eq!(bed.cell.count(|it| matches!(it, ToCell::Replace(..))), 1);
        let recorded = |bed: &Testbed| bed.recorded_node().to_string();
        let [before, after] = [0, 1].map(|at| digest(&MODULES[at]).to_string());
        assert!(recorded(&bed).contains(&before) && !recorded(&bed).contains(&after));
        bed.cell.say(&match is_kept {
            true => FromCell::VersionConfirmed(entry),
            false => FromCell::RolledBack(entry, "it trapped".to_owned()),
        });
        match bed.answer(awaited).await {
            Ok(deployed) => assert!(is_kept && deployed.replaced.is_some()),
            Err(refusal) => assert!(!is_kept && refusal.message.contains("it trapped")),
        }
        remember::at_once(&mut bed.daemon);
        assert_eq!(recorded(&bed).contains(&after), is_kept);
        assert_eq!(bed.events(EventKind::ServicePutBack).await.len(), usize::from(!is_kept));
        assert_eq!(bed.entry("monitor"), entry);
    }
}

/// Returns all records of the ledger.
async fn records(bed: &mut Testbed) -> Vec<LedgerRecord> {
    bed.get(|reply| Request::Ledger(LedgerQuestion::Records(0, reply))).await.records
}

fn packets(packets: u64) -> ServiceReport {
    ServiceReport { packets, bytes: 100 * packets, forwarded: packets, ..Default::default() }
}

#[tokio::test(flavor = "current_thread")]
async fn each_packet_is_billed_once_over_periods_removals_and_lost_cells() {
    let mut bed = Testbed::new().await;
    let entry = bed.run("monitor", &[]).await;
    let used = |records: &[LedgerRecord]| {
        let of = records.iter().filter(|it| it.service.as_deref() == Some("monitor"));
        of.map(|it| (it.used.packets_in, it.used.bytes_in, it.used.packets_out, it.last))
            .filter(|(packets, ..)| *packets > 0)
            .collect::<Vec<_>>()
    };
    let first = (5, 500, 5, false);
    bed.cell.set_report(entry, packets(5));
    bed.bill().await;
    assert_eq!(used(&records(&mut bed).await), [first]);
    bed.bill().await;
    assert_eq!(used(&records(&mut bed).await), [first], "a period without packets bills none");
    bed.cell.set_report(entry, packets(8));
    bed.get(Request::Stats).await;
    bed.cell.die();
    bed.until(|bed| !bed.has_cell()).await;
    bed.wait(100);
    bed.until(|bed| bed.runs("monitor")).await;
    bed.bill().await;
    let second = (3, 300, 3, true);
    assert_eq!(used(&records(&mut bed).await), [first, second], "the lost cell's meter has ended");
    // The next cell counts from zero, and so does its meter.
    bed.cell.set_report(entry, packets(2));
    bed.change(|reply| Change::Remove("monitor".into(), false, reply)).await;
    bed.bill().await;
    let third = (2, 200, 2, true);
    assert_eq!(used(&records(&mut bed).await), [first, second, third]);
    bed.bill().await;
    assert_eq!(used(&records(&mut bed).await).len(), 3, "a meter that has ended is billed once");
    let period = ledger::Period { since: trust::UnixTime(0), until: trust::UnixTime(u64::MAX) };
    let totals = bed.get(|it| Request::Ledger(LedgerQuestion::Totals(period, it))).await;
    assert_eq!(totals.accounts.iter().map(|it| it.used.packets_in).sum::<u64>(), 10);
    let key = bed.daemon.identity.node_key.public();
    let asked = |from| {
        let key = Box::new(key);
        move |reply| Request::Ledger(LedgerQuestion::Receipt(key, from, reply))
    };
    for (from, count) in [(0, 3), (1, 2)] {
        assert_eq!(bed.get(asked(from)).await.records, count, "the operator's are the node's");
    }
    assert_eq!(bed.refused(asked(1000)).await.code, ErrorCode::NotFound);
}

#[tokio::test(flavor = "current_thread")]
async fn what_cannot_be_written_to_the_ledger_is_kept_and_no_service_is_admitted() {
    let mut bed = Testbed::new().await;
    let question = |reply| Request::Ledger(LedgerQuestion::Records(0, reply));
    assert!(bed.refused(question).await.message.contains("is being opened"));
    let entry = bed.run("monitor", &[]).await;
    std::fs::write(bed.path("state/ledger"), "no directory").unwrap();
    bed.cell.set_report(entry, packets(4));
    bed.bill().await;
    bed.bill().await;
    assert_eq!(bed.events(EventKind::LedgerFailed).await.len(), 1, "the same problem is one event");
    assert!(bed.refused(question).await.message.contains("cannot be read"));
    let deploy = |it| Request::Change(Change::Deploy(version("other", 0), it));
    let refusal = bed.refused(deploy).await;
    assert!(refusal.message.contains("ledger"), "{}", refusal.message);
    std::fs::remove_file(bed.path("state/ledger")).unwrap();
    bed.bill().await;
    assert_eq!(bed.events(EventKind::LedgerBack).await.len(), 1);
    let packets = records(&mut bed).await.iter().map(|it| it.used.packets_in).sum::<u64>();
    assert_eq!(packets, 4, "what was kept is there, once");
    bed.run("other", &[]).await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_node_that_ends_bills_the_rest_also_when_its_cell_does_not_report() {
    for is_quiet in [false, true] {
        let mut bed = Testbed::new().await;
        let entry = bed.run("monitor", &[]).await;
        bed.cell.set_report(entry, packets(4));
        bed.get(Request::Stats).await;
        bed.cell.set_report(entry, packets(6));
        bed.cell.be_quiet(is_quiet);
        bed.daemon.end_billing();
        bed.settle();
        if is_quiet {
            assert!(!bed.daemon.runtime.usage().billing().is_writing(), "the report is waited for");
            (0..9).for_each(|number| {
                completions::handle(&mut bed.daemon, Done::ReportOverdue(number))
            });
        }
        bed.until(|bed| bed.daemon.runtime.usage().billing().has_ended()).await;
        let records = records(&mut bed).await;
        let billed = records.iter().map(|it| it.used.packets_in).sum::<u64>();
        assert_eq!(billed, if is_quiet { 4 } else { 6 });
        assert!(records.iter().all(|record| record.last));
    }
}

#[tokio::test(flavor = "current_thread")]
async fn sessions_are_told_to_cells_and_what_they_use_is_shown() {
    let mut bed = Testbed::new().await;
    let request = SessionRequest { name: "gold".into(), weight: Some(300), ..Default::default() };
    let promised = bed.change(|reply| Change::CreateSession(Box::new(request), reply)).await;
    assert_eq!(promised.session, "gold");
    let id = bed.daemon.control.node().session(&"gold".parse().unwrap()).unwrap().id;
    let is_told = |it: &ToCell| matches!(it, ToCell::Session(facts) if facts.id == id);
    assert_eq!(bed.cell.count(is_told), 1);
    let mut report = SessionReport::new(id);
    (report.cpu, report.dropped) = (Nanos::from_millis(5), 2);
    bed.cell.set_sessions(vec![report]);
    bed.poll_usage().await;
    let shown = |reply| Request::Session("gold".into(), reply);
    let used = bed.get(shown).await.used.total;
    assert_eq!((used.cpu_ns, used.queue_dropped), (Some(5_000_000), Some(2)));
    // The next cell counts from zero, and nothing is forgotten.
    bed.cell.set_sessions(Vec::new());
    bed.cell.die();
    bed.until(|bed| !bed.has_cell()).await;
    bed.wait(100);
    bed.until(|bed| bed.cell.count(is_told) > 0).await;
    report.cpu = Nanos::from_millis(1);
    bed.cell.set_sessions(vec![report]);
    assert_eq!(bed.get(shown).await.used.total.cpu_ns, Some(6_000_000));
    bed.change(|reply| Change::RemoveSession("gold".into(), false, reply)).await;
    bed.settle();
    assert_eq!(bed.cell.count(|it| matches!(it, ToCell::ForgetSession(of) if *of == id)), 1);
}

#[tokio::test(flavor = "current_thread")]
async fn memory_that_is_to_be_promised_is_asked_of_the_cell_and_not_waited_for_without_one() {
    let mut bed = Testbed::new().await;
    let create = |name: &str| {
        let (name, memory) = (name.to_owned(), Some("1MiB".to_owned()));
        let request = Box::new(SessionRequest { name, memory, ..Default::default() });
        move |reply| Change::CreateSession(request, reply)
    };
    bed.cell.take_words();
    bed.change(create("gold")).await;
    assert_eq!(bed.cell.count(|it| matches!(it, ToCell::MemoryOf(_))), 1);
    bed.cell.be_quiet(true);
    let silver = create("silver");
    let awaited = bed.ask(|reply| Request::Change(silver(reply)));
    bed.cell.die();
    bed.answer(awaited).await.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn a_node_is_handed_over_when_no_change_is_under_way() {
    let mut bed = Testbed::new().await;
    bed.cell.be_quiet(true);
    let deployed = bed.ask(|it| Request::Change(Change::Deploy(version("monitor", 0), it)));
    bed.until(|bed| bed.cell.started("monitor").is_some()).await;
    let mut awaited = bed.ask(Request::HandOver);
    assert!(awaited.try_answer().is_none() && !bed.daemon.is_handed_over());
    let second = bed.ask(Request::HandOver).try_answer().expect("it is answered at once");
    assert!(second.unwrap_err().message.contains("another handover"));
    assert!(awaited.try_answer().is_none(), "the first one is still waited for");
    bed.cell.say(&FromCell::Started(bed.entry("monitor")));
    assert_eq!(bed.answer(awaited).await.unwrap().node, "bed");
    assert!(bed.daemon.is_handed_over());
    bed.answer(deployed).await.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn a_codec_that_cannot_be_is_refused_to_its_cell() {
    let mut bed = Testbed::new().await;
    bed.handle_cell(FromCell::WantsCodec(4, "dance".to_owned())).await;
    let is_refused = |it: &ToCell| matches!(it, ToCell::CodecEnded(4, why, _) if !why.is_empty());
    assert_eq!(bed.cell.count(is_refused), 1);
}

#[tokio::test(flavor = "current_thread")]
async fn what_removed_rules_had_counted_stays_with_their_session() {
    let mut bed = Testbed::new().await;
    let rules = vec![api::RuleRequest::new("dst 10.0.0.0/8", "drop")];
    let added = bed.change(|reply| Change::AddRules(RulesRequest { rules }, reply)).await;
    let rule = units::RuleId(added.rules[0]);
    bed.change(|reply| Change::RemoveRule(rule, reply)).await;
    let kept = bed.daemon.runtime.usage().counted();
    assert_eq!(
        kept.values().copied().collect::<Vec<_>>(),
        [(Packets(0), Bytes(0))],
        "it was read before it went"
    );
    assert!(bed.daemon.control.node().rules().is_empty());
}
