//! Tests of packets that have a rule in several stages.

use bpf_maps::{
    ACTION_DOWN, ACTION_DROP, ACTION_FORWARD, ACTION_SERVICE, ACTION_USER, Key, Mask, RULE_NONE,
    Rule, RuleFact, STAGE_IN, STAGE_OUT, STAGE_SERVICE, STAGES,
};
use wire::FrameBuilder;

use crate::harness::{XDP_DROP, XDP_REDIRECT, addressed};
use crate::namespace::{add_way_out, enter};
use crate::nic_harness::{ENTRY, Nic};

const PASS: u32 = 0;

/// Action and entry of the rule in each stage.
type Actions = [Option<(u8, u16)>; STAGES];

fn frame() -> Vec<u8> {
    addressed(FrameBuilder::new().ipv4([10, 0, 0, 1], [203, 0, 113, 9], 64).udp(1, 2).build())
}

/// Installs rules for every packet, one of each stage that has an action, best first.
fn install(nic: &mut Nic, actions: Actions) {
    let (mut masks, mut entries) = (Vec::new(), Vec::new());
    let facts = nic.door.map("tam_rule_facts");
    for (stage, action) in [STAGE_IN, STAGE_SERVICE, STAGE_OUT].into_iter().zip(actions) {
        let number = 10 + u32::from(stage);
        let (action, entry) = action.unwrap_or((ACTION_FORWARD, 0));
        let fact = RuleFact { session: stage, entry, action, zero: [0; 3] };
        facts.update(&number, &fact, bpf::Update::Any).unwrap();
        if actions[usize::from(stage)].is_none() {
            continue;
        }
        let (rank, mask) = (masks.len() as u32, masks.len() as u16);
        masks.push(Mask { rank_best: rank, stage, ..Mask::default() });
        let rule = Rule { rank, rule: number, session: stage, entry, action, zero: [0; 3] };
        entries.push((Key { mask, ..Key::default() }, rule));
    }
    nic.door.install(0, &masks, &entries);
    nic.door.activate(0);
}

#[test]
fn stages_are_evaluated_up_to_the_first_deciding_rule_and_each_rule_is_counted() {
    if !enter("stages_are_evaluated_up_to_the_first_deciding_rule_and_each_rule_is_counted") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    let counting = Some((ACTION_FORWARD, 0));
    let cases: [(Actions, &str, [u64; STAGES]); 6] = [
        ([counting, counting, counting], "forwarded", [1, 1, 1]),
        ([counting, None, Some((ACTION_DROP, 0))], "drop_rule", [1, 0, 1]),
        ([Some((ACTION_DROP, 0)), Some((ACTION_SERVICE, ENTRY)), counting], "drop_rule", [1, 0, 0]),
        ([counting, Some((ACTION_SERVICE, ENTRY)), counting], "to_nic", [1, 1, 1]),
        ([None, Some((ACTION_DOWN, ENTRY)), counting], "drop_down", [0, 1, 1]),
        ([counting, Some((ACTION_USER, 9)), None], "kernel_no_socket", [1, 1, 0]),
    ];
    for (actions, outcome, counts) in cases {
        install(&mut nic, actions);
        let before: Vec<u64> = (10..13).map(|rule| nic.door.rule_stats(rule).packets).collect();
        // Once without the cache, and once from it.
        for _ in 0..2 {
            assert_eq!(nic.verdict(&frame(), PASS).outcome, outcome, "{actions:?}");
        }
        let after = (10..13).map(|rule| nic.door.rule_stats(rule).packets);
        let counted: Vec<u64> = after.zip(before).map(|(after, before)| after - before).collect();
        assert_eq!(counted, counts.map(|count| 2 * count), "{actions:?}");
    }
}

#[test]
fn what_a_service_passes_meets_the_rules_of_the_next_stages() {
    if !enter("what_a_service_passes_meets_the_rules_of_the_next_stages") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    let service = Some((ACTION_SERVICE, ENTRY));
    // The same module in both stages: it runs twice, for two rules.
    install(&mut nic, [service, service, None]);
    let done = nic.verdict(&frame(), PASS);
    assert_eq!((done.outcome, done.action), ("to_nic", XDP_REDIRECT));
    assert_eq!((nic.stats().packets, nic.stats().passed_on, nic.stats().forwarded), (2, 1, 1));
    assert_eq!((nic.hand_over().rule, nic.hand_over().mark), (11, [0; 2]));
    assert_eq!(nic.passage().meta.then, [RULE_NONE; 2]);

    install(&mut nic, [service, None, Some((ACTION_DROP, 0))]);
    assert_eq!(nic.verdict(&frame(), PASS).action, XDP_DROP);
    assert_eq!(nic.stats().drop_rule, 1);
    install(&mut nic, [service, Some((ACTION_DOWN, 3)), Some((ACTION_DROP, 0))]);
    assert_eq!(nic.verdict(&frame(), PASS).action, XDP_DROP);
    assert_eq!((nic.stats().drop_rule, nic.stats().drop_down), (1, 1));
    // A rule that was removed meanwhile is skipped.
    install(&mut nic, [service, Some((ACTION_DOWN, 3)), None]);
    let facts = nic.door.map("tam_rule_facts");
    nic.door.run(&frame());
    facts.update(&11u32, &RuleFact::default(), bpf::Update::Any).unwrap();
    assert_eq!(nic.verdict(&frame(), PASS).action, XDP_REDIRECT);
    assert_eq!(nic.ended(), nic.stats().packets);
}

#[test]
fn without_a_cell_packets_are_dropped_if_a_later_stage_drops_or_is_closed() {
    if !enter("without_a_cell_packets_are_dropped_if_a_later_stage_drops_or_is_closed") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    // There is no cell: packets of open services go plainly, unless another stage forbids it.
    install(&mut nic, [Some((ACTION_USER, 9)), None, None]);
    assert_eq!(nic.verdict(&frame(), PASS).outcome, "kernel_no_socket");
    install(&mut nic, [Some((ACTION_USER, 9)), None, Some((ACTION_DROP, 0))]);
    assert_eq!(nic.verdict(&frame(), PASS).outcome, "drop_down");
    install(&mut nic, [Some((ACTION_USER, 9)), Some((ACTION_USER, ENTRY)), None]);
    assert_eq!(nic.verdict(&frame(), PASS).outcome, "kernel_no_socket");
    nic.lane().set_closed(true);
    assert_eq!(nic.verdict(&frame(), PASS).outcome, "drop_down");
}
