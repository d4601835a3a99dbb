//! Tests that `tam_maps.h`, as clang lays it out, and `bpf-maps` agree.
//!
//! `c/layout.bpf.c` puts every type of the header into an object's BTF.

use std::mem::offset_of;

use bpf_maps::{
    Account, Answer, Captured, Config, End, HandOver, Key, Lane, Mask, OUTCOMES, OwnPrefix,
    PacketMeta, Passage, PortConfig, PortShare, PortStats, QueueCredits, ReasonKey, Request, Rule,
    RuleFact, RuleStats, STAGES, ServiceStats, StackKind, StackStats, Vlan, VlanKey,
};

use crate::object::{Object, OpenObject};
use crate::objects;

fn opened() -> OpenObject {
    Object::open(objects::LAYOUT, "layout").unwrap()
}

/// Compares a struct: its size, every member's name and offset, and that none is missing.
macro_rules! same {
    ($object:expr, $c:literal, $rust:ty, $($field:ident),+ $(,)?) => {{
        let expected: Vec<(String, usize)> =
            vec![$((stringify!($field).to_owned(), offset_of!($rust, $field))),+];
        let (size, members) = $object.layout($c).expect($c);
        assert_eq!((size, members), (size_of::<$rust>(), expected), "struct {}", $c);
    }};
}

#[test]
fn layout_matches_header() {
    let object = opened();
    same!(
        object,
        "tam_key",
        Key,
        source,
        destination,
        source_port_be,
        destination_port_be,
        protocol,
        ip_version,
        vlan,
        port,
        dscp,
        fragment,
        mask,
        hidden,
        source_mac,
        destination_mac,
        ethertype_be,
        tcp_flags,
        zero_end,
    );
    same!(
        object,
        "tam_captured",
        Captured,
        time_ns,
        length,
        captured,
        port,
        way,
        outcome,
        action,
        tagged,
        tci,
        tpid_be,
        session,
        entry,
        level,
        bare,
        rule,
        verdict,
        trapped,
        stack_reason,
    );
    same!(object, "tam_mask", Mask, bits, salt, rank_best, rest, list, stage, alone, rule);
    same!(object, "tam_rule_fact", RuleFact, session, entry, action, zero);
    same!(object, "tam_rule", Rule, rank, rule, session, entry, action, zero);
    same!(object, "tam_rule_stats", RuleStats, packets, bytes);
    same!(object, "tam_port_stats", PortStats, rx_packets, rx_bytes, outcomes, cache_hits);
    same!(object, "tam_port_config", PortConfig, ifindex, slow, mac, rpf, flags, mtu, bridge);
    same!(
        object,
        "tam_config",
        Config,
        generation,
        routes_heard,
        mask_count,
        hidden_count,
        tick_ns,
        shares,
        clock_jiffies,
        clock_ms,
        up_ifindex,
        kernel_ifindex,
        hash_keys,
    );
    same!(object, "tam_vlan_key", VlanKey, ifindex, vlan);
    same!(object, "tam_vlan", Vlan, ifindex, vlan, rpf, flags);
    same!(object, "tam_own_prefix", OwnPrefix, length, address_be);
    same!(
        object,
        "tam_meta",
        PacketMeta,
        rule,
        then,
        entry,
        egress_port,
        egress_vlan,
        next_hop,
        arrival_port,
        l3_offset,
        l4_offset,
        flow_hash,
        flags,
    );
}

#[test]
fn layout_of_services_matches_header() {
    let object = opened();
    same!(
        object,
        "tam_lane",
        Lane,
        sent_up,
        left,
        epoch_start,
        epoch_seen,
        epoch,
        level,
        target,
        program,
        window,
        edges,
        over,
        busy,
        cpu,
        trapped,
        ran,
        sent_tc,
        left_tc,
        tc_awaited,
        tc_began,
        tc_drained,
        path,
        tc_epoch,
        next,
        closed,
        session,
        held,
        account,
        beyond,
    );
    same!(object, "tam_account", Account, left, ticked, per_tick, full, sent, packets, unused,);
    same!(
        object,
        "tam_port_share",
        PortShare,
        account,
        up,
        dropped,
        gone,
        sent_up,
        sent_above,
        unused,
    );
    same!(object, "tam_end", End, address, port_be, zero);
    same!(object, "tam_request", Request, number, port, kind, changed, source, destination);
    same!(object, "tam_answer", Answer, value, unused);
    same!(
        object,
        "tam_queue_credits",
        QueueCredits,
        most,
        sent,
        dropped,
        epoch,
        shared,
        unused,
        done,
        unused_done,
        head_state,
        head_length,
        head,
        unused_end,
    );
    same!(
        object,
        "tam_hand_over",
        HandOver,
        packet_length,
        window_length,
        l3_offset,
        l4_offset,
        begins_with,
        ip_version,
        protocol,
        flags,
        port,
        session,
        rule,
        flow_hash,
        lane,
        now_ms,
        mark,
        level,
        verdict,
        trapped,
        padded,
        zero,
        fuel_used,
        fuel_charged,
        unused,
    );
    same!(
        object,
        "tam_passage",
        Passage,
        meta,
        own_mac,
        moved,
        mtu,
        length,
        program,
        bytes,
        mark,
        clock_jiffies,
        clock_ms,
        payer,
        kernel,
    );
    same!(
        object,
        "tam_service_stats",
        ServiceStats,
        packets,
        bytes,
        forwarded,
        to_kernel,
        bounced,
        redirected,
        passed_on,
        raised,
        plain,
        drop_module,
        drop_trap,
        drop_no_port,
        drop_too_long,
        drop_malformed,
        drop_budget,
        drop_down,
        drop_rule,
        drop_lane,
        drop_cycle,
        drop_queue,
        drop_share,
        handed_over,
        reasons_lost,
        raised_bytes,
        drop_budget_bytes,
    );
    same!(object, "tam_reason_key", ReasonKey, entry, reason);
    same!(object, "tam_stack_stats", StackStats, device, reasons);
}

#[test]
fn outcomes_match_header() {
    let mut names: Vec<String> = Vec::new();
    for (at, (name, value)) in opened().values("tam_outcome").unwrap().into_iter().enumerate() {
        assert_eq!(value, at as i64, "{name} is not in its place");
        names.push(name.trim_start_matches("TAM_").to_lowercase());
    }
    assert_eq!(names.pop().as_deref(), Some("outcomes"), "the last one counts them");
    let expected: Vec<&str> = OUTCOMES.iter().map(|&(name, _)| name).collect();
    assert_eq!(names, expected);
}

#[test]
fn numbers_match_header() {
    let object = opened();
    let actions: Vec<i64> =
        object.values("tam_action").unwrap().into_iter().map(|(_, value)| value).collect();
    let expected = [
        bpf_maps::ACTION_FORWARD,
        bpf_maps::ACTION_DROP,
        bpf_maps::ACTION_USER,
        bpf_maps::ACTION_SERVICE,
        bpf_maps::ACTION_DOWN,
        bpf_maps::ACTION_OUT,
        bpf_maps::ACTION_INTERCEPT,
        bpf_maps::ACTION_INTERCEPT_BACK,
        bpf_maps::ACTION_INTERCEPT_CLOSED,
    ];
    assert_eq!(actions, expected.map(i64::from));
    let stages: Vec<i64> =
        object.values("tam_stage").unwrap().into_iter().map(|(_, value)| value).collect();
    let expected = [bpf_maps::STAGE_IN, bpf_maps::STAGE_SERVICE, bpf_maps::STAGE_OUT];
    assert_eq!(stages[..STAGES], expected.map(i64::from));
    assert_eq!(stages[STAGES..], [STAGES as i64], "the last one counts them");
    let levels: Vec<i64> =
        object.values("tam_level").unwrap().into_iter().map(|(_, value)| value).collect();
    let expected = [bpf_maps::LEVEL_USER, bpf_maps::LEVEL_NIC, bpf_maps::LEVEL_KERNEL];
    assert_eq!(levels, expected.map(i64::from));
    let paths: Vec<i64> =
        object.values("tam_path").unwrap().into_iter().map(|(_, value)| value).collect();
    assert_eq!(paths, [bpf_maps::PATH_DIRECT, bpf_maps::PATH_TC].map(i64::from));
    let hidden: Vec<i64> =
        object.values("tam_hidden").unwrap().into_iter().map(|(_, value)| value).collect();
    assert_eq!(hidden, [0, 1, 2, 3], "as wire::Hidden");
    let kinds: Vec<i64> =
        object.values("tam_stack_kind").unwrap().into_iter().map(|(_, value)| value).collect();
    let expected = [
        StackKind::Not,
        StackKind::Drop,
        StackKind::AtDevice,
        StackKind::AtTc,
        StackKind::ByDevice,
        StackKind::Netfilter,
        StackKind::Unspecified,
        StackKind::NoSocket,
    ];
    assert_eq!(kinds, expected.map(|kind| kind as i64));

    macro_rules! numbers {
        ($($name:ident),+ $(,)?) => {
            vec![$((stringify!($name).to_owned(), bpf_maps::$name as i64)),+]
        };
    }
    let expected: Vec<(String, i64)> = numbers![
        PORTS_MAX,
        QUEUES_MAX,
        RULES_MAX,
        MASKS_MAX,
        HIDDEN_MASKS_MAX,
        FLOWS_MAX,
        OWN_MAX,
        VLAN_PRESENT,
        VLAN_UNKNOWN,
        FRAGMENT_NONE,
        FRAGMENT_FIRST,
        FRAGMENT_LATER,
        SLOW_NETFILTER,
        SLOW_IPSEC,
        SLOW_RULES,
        SLOW_QDISC,
        SLOW_OPERATOR,
        SLOW_NO_REDIRECT,
        RPF_NONE,
        RPF_STRICT,
        RPF_LOOSE,
        META_ROUTED,
        META_FRAGMENT,
        META_LATER_FRAGMENT,
        META_TO_TC,
        META_UP,
        META_INTERCEPT,
        MARK_LISTENER,
        MARK_ENDED,
        META_MARK,
        META_COUNTED,
        META_COUNTED_SHIFT,
        META_EPOCH_SHIFT,
        META_BY_KERNEL,
        ENTRIES_MAX,
        MODULES_MAX,
        EDGES_MAX,
        REASONS_MAX,
        ACCOUNTS_MAX,
        FUEL_SHIFT,
        FILL_MAX,
        ROOMS_MAX,
        ROOM_SHARED,
        FRAME_MEMORY,
        FRAME_BYTES,
        HEAD_BYTES,
        HEAD_NOT,
        HEAD_WANTED,
        HEAD_THERE,
        CYCLES_MAX,
        CYCLE_ROUNDS,
        CYCLE_ROUNDS_MAX,
        PORT_RAW,
        PORT_GENERIC,
        PORT_CABLED,
        PORT_TC,
        PORT_SHARES,
        PORT_PACKET,
        PORT_ACCEPTS_OWN,
        PORT_NO_V6,
        LINES_MAX,
        SESSION_SYSTEM,
        ETHERNET_REST,
        OVER_NOT,
        OVER_DROP,
        OVER_RAISE,
        NOT_A_VERDICT,
        NOT_RUN,
        OVER_BUDGET,
        NEXT_DOWN,
        ASK_EGRESS,
        ASK_NOTE,
        ASK_ARRIVE,
        CHANGED_SOURCE,
        CHANGED_DESTINATION,
        ETHERTYPE_ASKED,
        RULE_NONE,
        ORIGIN_BELOW,
        STACK_REASONS_MAX,
        STACK_OTHER,
        STACK_OWN,
        STACK_ARRIVALS,
    ];
    // 32 bits each, and signed in BTF.
    let found = object.values("layout_number").unwrap().into_iter();
    let found: Vec<_> = found.map(|(name, value)| (name, value & 0xffff_ffff)).collect();
    assert_eq!(found, expected);
}
