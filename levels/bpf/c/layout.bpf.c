// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
/* One variable of every type in tam_maps.h, so that their layouts are in this
 * object's BTF: the test in src/layout.rs compares them with base/bpf-maps.
 * Never loaded. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "tam_maps.h"
#include "capture.h"

struct tam_captured layout_captured;
struct tam_key layout_key;
struct tam_mask layout_mask;
struct tam_rule layout_rule;
struct tam_rule_fact layout_rule_fact;
enum tam_stage layout_stage;
struct tam_rule_stats layout_rule_stats;
struct tam_port_stats layout_port_stats;
struct tam_port_config layout_port_config;
struct tam_config layout_config;
struct tam_vlan_key layout_vlan_key;
struct tam_vlan layout_vlan;
struct tam_own_prefix layout_own_prefix;
struct tam_meta layout_meta;
struct tam_lane layout_lane;
struct tam_hand_over layout_hand_over;
struct tam_passage layout_passage;
struct tam_service_stats layout_service_stats;
struct tam_account layout_account;
struct tam_line layout_line;
struct tam_end layout_end;
struct tam_request layout_request;
struct tam_answer layout_answer;
struct tam_room layout_room;
struct tam_reason_key layout_reason_key;
struct tam_stack_stats layout_stack_stats;
enum tam_stack_kind layout_stack_kind;
enum tam_outcome layout_outcome;
enum tam_action layout_action;
enum tam_level layout_level;
enum tam_path layout_path;
enum tam_hidden layout_hidden;

/* The macros, which BTF does not hold by themselves. */
enum layout_number {
	PORTS_MAX = TAM_PORTS_MAX,
	QUEUES_MAX = TAM_QUEUES_MAX,
	RULES_MAX = TAM_RULES_MAX,
	MASKS_MAX = TAM_MASKS_MAX,
	HIDDEN_MASKS_MAX = TAM_HIDDEN_MASKS_MAX,
	FLOWS_MAX = TAM_FLOWS_MAX,
	OWN_MAX = TAM_OWN_MAX,
	VLAN_PRESENT = TAM_VLAN_PRESENT,
	VLAN_UNKNOWN = TAM_VLAN_UNKNOWN,
	FRAGMENT_NONE = TAM_FRAGMENT_NONE,
	FRAGMENT_FIRST = TAM_FRAGMENT_FIRST,
	FRAGMENT_LATER = TAM_FRAGMENT_LATER,
	SLOW_NETFILTER = TAM_SLOW_NETFILTER,
	SLOW_IPSEC = TAM_SLOW_IPSEC,
	SLOW_RULES = TAM_SLOW_RULES,
	SLOW_QDISC = TAM_SLOW_QDISC,
	SLOW_OPERATOR = TAM_SLOW_OPERATOR,
	SLOW_NO_REDIRECT = TAM_SLOW_NO_REDIRECT,
	RPF_NONE = TAM_RPF_NONE,
	RPF_STRICT = TAM_RPF_STRICT,
	RPF_LOOSE = TAM_RPF_LOOSE,
	META_ROUTED = TAM_META_ROUTED,
	META_FRAGMENT = TAM_META_FRAGMENT,
	META_LATER_FRAGMENT = TAM_META_LATER_FRAGMENT,
	META_TO_TC = TAM_META_TO_TC,
	META_UP = TAM_META_UP,
	META_INTERCEPT = TAM_META_INTERCEPT,
	MARK_LISTENER = TAM_MARK_LISTENER,
	MARK_ENDED = TAM_MARK_ENDED,
	META_MARK = TAM_META_MARK,
	META_COUNTED = TAM_META_COUNTED,
	META_COUNTED_SHIFT = TAM_META_COUNTED_SHIFT,
	META_EPOCH_SHIFT = TAM_META_EPOCH_SHIFT,
	META_BY_KERNEL = TAM_META_BY_KERNEL,
	ENTRIES_MAX = TAM_ENTRIES_MAX,
	MODULES_MAX = TAM_MODULES_MAX,
	EDGES_MAX = TAM_EDGES_MAX,
	REASONS_MAX = TAM_REASONS_MAX,
	ACCOUNTS_MAX = TAM_ACCOUNTS_MAX,
	FUEL_SHIFT = TAM_FUEL_SHIFT,
	FILL_MAX = TAM_FILL_MAX,
	ROOMS_MAX = TAM_ROOMS_MAX,
	ROOM_SHARED = TAM_ROOM_SHARED,
	FRAME_MEMORY = TAM_FRAME_MEMORY,
	FRAME_BYTES = TAM_FRAME_BYTES,
	HEAD_BYTES = TAM_HEAD_BYTES,
	HEAD_NOT = TAM_HEAD_NOT,
	HEAD_WANTED = TAM_HEAD_WANTED,
	HEAD_THERE = TAM_HEAD_THERE,
	CYCLES_MAX = TAM_CYCLES_MAX,
	CYCLE_ROUNDS = TAM_CYCLE_ROUNDS,
	CYCLE_ROUNDS_MAX = TAM_CYCLE_ROUNDS_MAX,
	PORT_RAW = TAM_PORT_RAW,
	PORT_GENERIC = TAM_PORT_GENERIC,
	PORT_CABLED = TAM_PORT_CABLED,
	PORT_TC = TAM_PORT_TC,
	PORT_SHARES = TAM_PORT_SHARES,
	PORT_PACKET = TAM_PORT_PACKET,
	PORT_ACCEPTS_OWN = TAM_PORT_ACCEPTS_OWN,
	PORT_NO_V6 = TAM_PORT_NO_V6,
	LINES_MAX = TAM_LINES_MAX,
	SESSION_SYSTEM = TAM_SESSION_SYSTEM,
	ETHERNET_REST = TAM_ETHERNET_REST,
	OVER_NOT = TAM_OVER_NOT,
	OVER_DROP = TAM_OVER_DROP,
	OVER_RAISE = TAM_OVER_RAISE,
	NOT_A_VERDICT = TAM_NOT_A_VERDICT,
	NOT_RUN = TAM_NOT_RUN,
	OVER_BUDGET = TAM_OVER_BUDGET,
	NEXT_DOWN = TAM_NEXT_DOWN,
	ASK_EGRESS = TAM_ASK_EGRESS,
	ASK_NOTE = TAM_ASK_NOTE,
	ASK_ARRIVE = TAM_ASK_ARRIVE,
	CHANGED_SOURCE = TAM_CHANGED_SOURCE,
	CHANGED_DESTINATION = TAM_CHANGED_DESTINATION,
	ETHERTYPE_ASKED = TAM_ETHERTYPE_ASKED,
	RULE_NONE = TAM_RULE_NONE,
	ORIGIN_BELOW = TAM_ORIGIN_BELOW,
	STACK_REASONS_MAX = TAM_STACK_REASONS_MAX,
	STACK_OTHER = TAM_STACK_OTHER,
	STACK_OWN = TAM_STACK_OWN,
	STACK_ARRIVALS = TAM_STACK_ARRIVALS,
};
enum layout_number layout_number;
