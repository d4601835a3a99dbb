//! Unit tests of what a node shows of itself: explanations, reasons, captures and metrics, of a daemon
//! whose cell is a socket and whose ports are packet ports that exist in tables only.

use crate::access::Caller;
use crate::control::change::Change;
use crate::control::testbed::{MODULES, deploy, digest, holder_in};
use crate::daemon::testbed::Testbed;
use crate::request::Request;
use api::{
    CaptureRequest, CapturedPacket, DeployRequest, ErrorCode, Event, EventKind, ExplainRequest,
    Explanation, RuleRequest, RulesRequest, SessionRequest, WhyReason,
};
use cell::protocol::{
    CapturePoint, CaptureSpec, CapturedFrame, CellReport, Failure, FromCell, ServiceReport, ToCell,
};
use units::{EntryId, PortId};

const DNS: &str = "proto udp src 10.0.1.2 dst 10.0.2.2 dport 53";

/// Returns a node with a service for DNS whose packets come by `left`, and with its ports served.
async fn with_service() -> (Testbed, EntryId) {
    let mut bed = Testbed::new().await;
    let entry = bed.run("monitor", &["proto udp dport 53"]).await;
    bed.serve();
    (bed, entry)
}

async fn add_rule(bed: &mut Testbed, r#match: &str, action: &str) -> u32 {
    let rules = vec![RuleRequest::new(r#match, action)];
    bed.change(|reply| Change::AddRules(RulesRequest { rules }, reply)).await.rules[0]
}

fn packet(words: &str) -> ExplainRequest {
    let port = Some("left".to_owned());
    ExplainRequest { packet: Some(words.to_owned()), port, ..ExplainRequest::default() }
}

async fn explain(bed: &mut Testbed, words: &str) -> Explanation {
    let request = packet(words);
    bed.get(|reply| Request::Explain(request, reply)).await
}

#[tokio::test(flavor = "current_thread")]
async fn an_explanation_says_rule_service_level_and_session_of_a_packet() {
    let (mut bed, _) = with_service().await;
    let dropped = add_rule(&mut bed, "dst 10.0.3.0/24", "drop").await;
    let found = explain(&mut bed, DNS).await;
    assert_eq!((found.outcome.as_str(), found.dropped), ("to_user", false));
    assert_eq!((found.port.as_str(), found.level.as_deref()), ("left", Some("user")));
    assert_eq!(found.service.as_deref(), Some("monitor"));
    assert_eq!(found.session.as_deref(), Some("best-effort"));
    let [arrival, rule, service, rest, ..] = &found.steps[..] else { panic!("{found:?}") };
    assert_eq!(
        arrival,
        "comes in by port 'left' (eth1), 42 bytes: udp from 10.0.1.2 port 49152 to 10.0.2.2 port 53"
    );
    assert!(rule.contains("'proto udp dport 53'") && rule.ends_with("service monitor"), "{rule}");
    assert_eq!(service, "the service 'monitor' gets it at user; its module decides");
    assert!(rest.starts_with("when the module passes it, the kernel has the rest"), "{rest}");

    let found = explain(&mut bed, "proto tcp src 10.0.1.2 dst 10.0.3.9").await;
    assert_eq!((found.outcome.as_str(), found.dropped), ("drop_rule", true));
    assert_eq!((found.rule, found.service, found.level), (Some(dropped), None, None));
    assert!(found.advice.contains("tam rule remove"), "{}", found.advice);

    let found = explain(&mut bed, "proto tcp src 10.0.1.2 dst 10.0.9.9").await;
    assert_eq!((found.outcome.as_str(), found.rule), ("kernel_slow", None));
    assert!(found.steps.contains(&"no rule matches: plain forwarding".to_owned()), "{found:?}");
    assert!(!found.meaning.is_empty() && !found.dropped);
}

#[tokio::test(flavor = "current_thread")]
async fn a_frame_that_lies_about_itself_is_explained_as_it_is() {
    let (mut bed, _) = with_service().await;
    let whole = explain(&mut bed, DNS).await.frame_hex;
    let mut explain_hex = async |digits: String| {
        let port = Some("left".to_owned());
        let request = ExplainRequest { frame_hex: Some(digits), port, packet: None };
        bed.get(|reply| Request::Explain(request, reply)).await
    };
    assert_eq!(explain_hex(whole.clone()).await.outcome, "to_user");
    // The IP header's length in words, of the 15th byte.
    let short = format!("{}43{}", &whole[..28], &whole[30..]);
    assert_eq!(explain_hex(short).await.outcome, "drop_header_length");
    assert_eq!(explain_hex(whole[..60].to_owned()).await.outcome, "drop_truncated");
}

#[tokio::test(flavor = "current_thread")]
async fn a_question_with_a_mistake_is_refused_with_what_would_be_right() {
    let (mut bed, _) = with_service().await;
    let hex = |digits: &str| ExplainRequest {
        frame_hex: Some(digits.to_owned()),
        port: Some("left".to_owned()),
        packet: None,
    };
    let no_port = ExplainRequest { port: None, ..packet(DNS) };
    let other_port = ExplainRequest { port: Some("middle".to_owned()), ..packet(DNS) };
    let both = ExplainRequest { frame_hex: Some("00".to_owned()), ..packet(DNS) };
    for (request, code, words) in [
        (no_port, ErrorCode::Usage, "by which port"),
        (other_port, ErrorCode::NotFound, "no port 'middle'"),
        (both, ErrorCode::Usage, "one of 'packet' and 'frame_hex'"),
        (ExplainRequest::default(), ErrorCode::Usage, "one of 'packet' and 'frame_hex'"),
        (packet("proto udp"), ErrorCode::Usage, "add 'src ADDRESS'"),
        (packet("src 10.0.1.2 dst 10.0.0.0/8"), ErrorCode::Usage, "is a network"),
        (packet("src 10.0.1.2 dst fd00::1"), ErrorCode::Usage, "'dst' is of IPv6"),
        (packet("colour red"), ErrorCode::Usage, "colour"),
        (hex("00112233"), ErrorCode::Usage, "4 bytes cannot be asked about"),
        (hex("0"), ErrorCode::Usage, "even number"),
        (hex(&"00".repeat(70_000)), ErrorCode::Usage, "at most"),
    ] {
        let refusal = bed.refused(|reply| Request::Explain(request, reply)).await;
        assert_eq!(refusal.code, code, "{}", refusal.message);
        assert!(refusal.message.contains(words), "{}", refusal.message);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn rules_of_a_service_that_does_not_run_are_named_as_waiting() {
    let (mut bed, entry) = with_service().await;
    bed.handle_cell(FromCell::Trapped(entry, 0, "unreachable".to_owned(), 1)).await;
    let failure = Failure { reason: "on_start refused".to_owned(), is_short: false };
    bed.cell.fail_starts(Some(failure.clone()));
    bed.handle_cell(FromCell::StartFailed(entry, failure)).await;
    let found = explain(&mut bed, DNS).await;
    assert_eq!((found.outcome.as_str(), found.service), ("kernel_slow", None));
    let waits = |step: &String| step.starts_with("not looked at, since their service does not run");
    assert!(found.steps.iter().any(waits), "{:?}", found.steps);
}

fn reason<'a>(reasons: &'a [WhyReason], name: &str) -> Option<&'a WhyReason> {
    reasons.iter().find(|it| it.reason == name)
}

#[tokio::test(flavor = "current_thread")]
async fn every_reason_that_counted_is_named_with_its_service_rules_and_advice() {
    let (mut bed, entry) = with_service().await;
    let rule = bed.get(Request::Rules).await.rules[0].id;
    let report = |module: u64, trap: u64| ServiceReport {
        packets: module + trap,
        drop_module: [(7, module)].into(),
        drop_trap: trap,
        ..ServiceReport::default()
    };
    bed.cell.set_report(entry, report(3, 1));
    bed.cell.set_own_report(CellReport { oversized: 2, ..CellReport::default() });
    bed.count_drops().await;
    bed.cell.set_report(entry, report(3, 5));
    bed.count_drops().await;
    let why = bed.get(Request::Why).await;
    assert!(why.all && why.node == "bed");
    let trap = reason(&why.reasons, "trap").unwrap();
    assert_eq!((trap.packets, trap.packets_last_minute, trap.dropped), (5, 5, true));
    assert_eq!((trap.service.as_deref(), &trap.rules[..]), (Some("monitor"), &[rule][..]));
    assert_eq!(trap.module, Some(digest(&MODULES[0]).to_string()));
    assert_eq!(trap.session.as_deref(), Some("best-effort"));
    assert!(!trap.meaning.is_empty() && trap.advice.contains("tam show"));
    assert_eq!(reason(&why.reasons, "module.7").unwrap().packets, 3);
    let oversized = reason(&why.reasons, "oversized").unwrap();
    assert_eq!((oversized.packets, oversized.service.as_ref()), (2, None));
    assert!(reason(&why.reasons, "no_service").is_none(), "it never counted");
    assert_eq!(why.reasons[0].reason, "trap", "what happened most comes first");
    // Each growth is one event, with its number.
    let events = bed.events(EventKind::Drops).await;
    let traps = events.iter().filter(|it| it.reason.as_deref() == Some("trap"));
    let of: Vec<_> = traps.map(|it| (it.service.as_deref(), it.rule)).collect();
    assert_eq!(of[0], (Some("monitor"), Some(rule)));
}

#[tokio::test(flavor = "current_thread")]
async fn counters_of_a_service_that_began_anew_count_from_zero() {
    let (mut bed, entry) = with_service().await;
    let traps = |count| ServiceReport { drop_trap: count, ..ServiceReport::default() };
    bed.cell.set_report(entry, traps(5));
    bed.count_drops().await;
    bed.change(|reply| Change::Remove("monitor".into(), false, reply)).await;
    bed.count_drops().await;
    let entry = bed.run("monitor", &[]).await;
    bed.cell.set_report(entry, traps(7));
    bed.count_drops().await;
    let why = bed.get(Request::Why).await;
    assert_eq!(reason(&why.reasons, "trap").unwrap().packets, 12);
}

#[tokio::test(flavor = "current_thread")]
async fn notices_that_a_storm_left_out_are_counted_once() {
    let (mut bed, _) = with_service().await;
    for lost in [4, 4, 6] {
        let report = CellReport { notices_dropped: lost, ..CellReport::default() };
        bed.cell.set_own_report(report);
        bed.count_drops().await;
        bed.wait(10_000);
    }
    let events = bed.events(EventKind::NoticesLost).await;
    assert_eq!(events.iter().map(|it| it.count).collect::<Vec<_>>(), [4, 2]);
}

fn tapped(port: PortId, seen: CapturePoint, bytes: &[u8]) -> FromCell {
    let length = bytes.len() as u32;
    let tapped =
        CapturedFrame { port, seen, length, bytes: bytes.to_vec(), ..CapturedFrame::default() };
    FromCell::Captured(Box::new(tapped))
}

async fn captured(bed: &mut Testbed, id: u32) -> Vec<CapturedPacket> {
    bed.get(|reply| Request::Captured(id, 0, reply)).await.packets
}

#[tokio::test(flavor = "current_thread")]
async fn a_capture_has_what_it_asked_for_and_cells_tap_as_long_as_it_goes_on() {
    let (mut bed, entry) = with_service().await;
    let ports: Vec<PortId> = bed.port_ids();
    let request = CaptureRequest {
        ports: vec!["left".to_owned()],
        direction: Some("in".to_owned()),
        snap: Some(64),
        ..CaptureRequest::default()
    };
    let begun = bed.get(|reply| Request::BeginCapture(request.clone(), reply)).await;
    assert_eq!((begun.id, begun.ports, begun.snap), (1, vec!["left".to_owned()], 64));
    bed.settle();
    let taps = |facts: Option<CaptureSpec>| move |it: &ToCell| matches!(it, ToCell::Capture(of) if *of == facts);
    let wanted = CaptureSpec { snap: 64, arriving: true, dropped_only: false };
    assert_eq!(bed.cell.count(taps(Some(wanted))), 1);
    let refusal = bed.refused(|reply| Request::BeginCapture(request, reply)).await;
    assert_eq!(refusal.code, ErrorCode::Limit);
    let outcome = bpf_maps::OUTCOMES.iter().position(|(name, _)| *name == "drop_rule").unwrap();
    let came = CapturePoint::Arrival(u16::try_from(outcome).unwrap());
    bed.handle_cell(tapped(ports[0], came, &[0xab; 100])).await;
    bed.handle_cell(tapped(ports[1], came, &[1; 20])).await;
    bed.handle_cell(tapped(ports[0], CapturePoint::Departure, &[2; 20])).await;
    let packets = captured(&mut bed, 1).await;
    assert_eq!(packets.len(), 1, "another port, and the other direction");
    assert_eq!(packets[0].bytes_hex, "ab".repeat(64));
    assert_eq!((packets[0].length, packets[0].port.as_str()), (100, "left"));
    assert_eq!((packets[0].outcome.as_deref(), packets[0].dropped), (Some("drop_rule"), true));
    assert!(captured(&mut bed, 1).await.is_empty(), "each is fetched once");
    bed.handle_cell(FromCell::Captured(Box::new(CapturedFrame {
        port: ports[0],
        seen: CapturePoint::End,
        entry: Some(entry),
        verdict: "drop 7".to_owned(),
        ..CapturedFrame::default()
    })))
    .await;
    let ended = bed.get(|reply| Request::EndCapture(1, reply)).await;
    assert_eq!((ended.packets.len(), ended.lost), (1, 0));
    let last = &ended.packets[0];
    assert_eq!((last.service.as_deref(), last.level.as_deref()), (Some("monitor"), Some("user")));
    assert_eq!((last.verdict.as_deref(), last.dropped), (Some("drop 7"), true));
    bed.settle();
    assert_eq!(bed.cell.count(taps(None)), 1);
    let refusal = bed.refused(|reply| Request::EndCapture(1, reply)).await;
    assert_eq!(refusal.code, ErrorCode::NotFound);
}

#[tokio::test(flavor = "current_thread")]
async fn a_capture_of_what_is_not_there_is_refused() {
    let (mut bed, _) = with_service().await;
    let base = CaptureRequest { direction: Some("in".to_owned()), ..CaptureRequest::default() };
    for (request, code) in [
        (CaptureRequest { ports: vec!["middle".to_owned()], ..base.clone() }, ErrorCode::NotFound),
        (CaptureRequest { session: Some("gold".to_owned()), ..base.clone() }, ErrorCode::NotFound),
        (CaptureRequest { rule: Some(999), ..base.clone() }, ErrorCode::NotFound),
        (CaptureRequest { session: Some("no name".to_owned()), ..base.clone() }, ErrorCode::Usage),
        (CaptureRequest { direction: Some("up".to_owned()), ..base.clone() }, ErrorCode::Usage),
        (CaptureRequest { snap: Some(63), ..base.clone() }, ErrorCode::Usage),
        (CaptureRequest { snap: Some(1 << 20), ..base }, ErrorCode::Usage),
    ] {
        let refusal = bed.refused(|reply| Request::BeginCapture(request, reply)).await;
        assert_eq!(refusal.code, code, "{}", refusal.message);
    }
    assert_eq!(bed.cell.count(|it| matches!(it, ToCell::Capture(_))), 0);
}

#[tokio::test(flavor = "current_thread")]
async fn a_cell_that_starts_during_a_capture_taps_too() {
    let mut bed = Testbed::new().await;
    let request = CaptureRequest { dropped: true, ..CaptureRequest::default() };
    bed.get(|reply| Request::BeginCapture(request, reply)).await;
    bed.cell.die();
    bed.until(|bed| !bed.has_cell()).await;
    bed.wait(100);
    bed.until(|bed| bed.cell.starts() == 2).await;
    let is_tap = |it: &ToCell| matches!(it, ToCell::Capture(Some(facts)) if facts.dropped_only);
    bed.get(Request::Stats).await;
    assert_eq!(bed.cell.count(is_tap), 1);
}

#[tokio::test(flavor = "current_thread")]
async fn the_page_of_metrics_has_what_the_documents_have() {
    let (mut bed, entry) = with_service().await;
    let report = ServiceReport { packets: 9, bytes: 900, ..ServiceReport::default() };
    bed.cell.set_report(entry, report);
    let page = bed.get(Request::Metrics).await;
    let digest = digest(&MODULES[0]);
    for line in [
        format!("tamandua_service_packets_total{{service=\"monitor\",digest=\"{digest}\"}} 9"),
        format!("tamandua_service_bytes_total{{service=\"monitor\",digest=\"{digest}\"}} 900"),
        "tamandua_port_received_packets_total{port=\"left\"} 0".to_owned(),
    ] {
        assert!(page.lines().any(|it| it == line), "{line}\n{page}");
    }
    let stats = bed.get(Request::Stats).await;
    assert_eq!(stats.services["monitor"].packets, 9);
    let node = bed.get(Request::Node).await;
    assert_eq!((node.name.as_str(), node.ports.len()), ("bed", 2));
}

#[tokio::test(flavor = "current_thread")]
async fn a_client_sees_what_is_its_own_and_nothing_of_others() {
    let mut bed = Testbed::new().await;
    for session in ["gold", "silver"] {
        let request = SessionRequest { name: session.to_owned(), ..SessionRequest::default() };
        bed.change(|reply| Change::CreateSession(Box::new(request), reply)).await;
    }
    let [gold, silver] = ["gold", "silver"].map(holder_in);
    for (caller, service, session, rule) in [
        (&gold, "own", "gold", "dst 10.1.0.0/16"),
        (&silver, "others", "silver", "dst 10.2.0.0/16"),
        (&Caller::Operator, "nodes", "gold", "dst 10.3.0.0/16"),
    ] {
        let rules = vec![rule.to_owned()];
        let session = Some(session.to_owned());
        let request = Box::new(DeployRequest { session, rules, ..deploy(service, 0) });
        let awaited =
            bed.ask_as(caller.clone(), |reply| Request::Change(Change::Deploy(request, reply)));
        bed.answer(awaited).await.unwrap();
        let report = ServiceReport { packets: 4, drop_trap: 4, ..ServiceReport::default() };
        bed.cell.set_report(bed.entry(service), report);
    }
    bed.count_drops().await;
    let stats = bed.get(Request::Stats).await;
    assert_eq!((stats.services.len(), stats.ports.len()), (3, 2));
    let awaited = bed.ask_as(gold.clone(), Request::Stats);
    let stats = bed.answer(awaited).await.unwrap();
    assert_eq!(stats.services.keys().collect::<Vec<_>>(), ["own"]);
    assert!(stats.ports.is_empty() && stats.sessions.is_empty());
    let awaited = bed.ask_as(gold.clone(), Request::Services);
    let services = bed.answer(awaited).await.unwrap().services;
    assert_eq!(services.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["own"]);
    let awaited = bed.ask_as(gold.clone(), Request::Rules);
    let rules = bed.answer(awaited).await.unwrap().rules;
    assert_eq!(rules.iter().map(|it| it.session.as_str()).collect::<Vec<_>>(), ["gold"]);
    let awaited = bed.ask_as(gold.clone(), Request::Sessions);
    let sessions = bed.answer(awaited).await.unwrap().sessions;
    assert_eq!(sessions.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["gold"]);
    let awaited = bed.ask_as(gold.clone(), Request::Why);
    let why = bed.answer(awaited).await.unwrap();
    let of: Vec<_> = why.reasons.iter().map(|it| it.service.as_deref()).collect();
    assert!(!why.all && of == [Some("own")], "{of:?}");
    let awaited = bed.ask_as(gold.clone(), |reply| Request::Events(0, 0, reply));
    let events = bed.answer(awaited).await.unwrap().events;
    let is_own = |it: &Event| it.service.as_deref() == Some("own") || it.rule == Some(rules[0].id);
    assert!(!events.is_empty() && events.iter().all(is_own), "{events:?}");
    // Counters of the whole node, and the path of a packet, are refused as a whole.
    let awaited = bed.ask_as(gold.clone(), Request::Metrics);
    assert_eq!(bed.answer(awaited).await.unwrap_err().code, ErrorCode::Refused);
    let awaited = bed.ask_as(gold, |reply| Request::Explain(packet(DNS), reply));
    assert_eq!(bed.answer(awaited).await.unwrap_err().code, ErrorCode::Refused);
    let awaited = bed.ask_as(Caller::Anyone, Request::Stats);
    assert_eq!(bed.answer(awaited).await.unwrap_err().code, ErrorCode::Refused);
}
