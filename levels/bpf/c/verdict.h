/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Second half of the front door: carries out a module's verdict, at nic and at kernel.
 *
 * A module's program ends here by a tail call, still in its lane; its result in the
 * hand-over is read before another CPU can enter. A packet passed by an edge to another
 * module enters that module's lane from here. The packet's passage is per CPU; the packet
 * itself is parsed anew, for the module may have changed all of it. node/cell's
 * deliver.rs does the same at user level.
 */
#ifndef TAM_VERDICT_H
#define TAM_VERDICT_H

#include "cycle.h"
#include "rewrite.h"
#include "share.h"
#include "translate.h"
#include "tun.h"
#include "actions.h"

/* Verdict codes: docs/reference/module-abi.md. */
#define VERDICT_PASS 0
#define VERDICT_REROUTE 0x100
#define VERDICT_DROP 1
#define VERDICT_BOUNCE 2
#define VERDICT_REDIRECT 3
#define VERDICT_RAISE 4

#define TAM_ENTRY_NONE 0xffffffff

/* Decrements TTL or hop limit. Returns TAM_FORWARDED, TAM_KERNEL_TTL, or
 * TAM_DROP_HEADER_LENGTH when there is no whole header. */
static __always_inline int one_hop(void *l3, const void *data_end)
{
	struct iphdr *ip = l3;
	struct ipv6hdr *ip6 = l3;

	if ((void *)(ip + 1) > data_end)
		return TAM_DROP_HEADER_LENGTH;
	if (ip->version == 4) {
		if (ip->ttl <= 1)
			return TAM_KERNEL_TTL;
		decrease_ttl(ip);
		return TAM_FORWARDED;
	}
	if (ip->version != 6 || (void *)(ip6 + 1) > data_end)
		return TAM_DROP_HEADER_LENGTH;
	if (ip6->hop_limit <= 1)
		return TAM_KERNEL_TTL;
	ip6->hop_limit--;
	return TAM_FORWARDED;
}

/* Cuts the trailer behind a frame's IP packet off. Returns 0, or an error. */
static __always_inline int trim_behind(struct xdp_md *ctx)
{
	__u32 l3 = find_l3(first_byte(ctx, TAM_LEVEL_NIC), last_byte(ctx, TAM_LEVEL_NIC));

	return !l3 || trim(ctx, TAM_LEVEL_NIC, l3);
}

/* Routes the packet one hop: decrements the TTL and writes the next hop's MACs. Returns
 * 0, or an error. */
static __always_inline int hop(struct xdp_md *ctx, const struct tam_passage *passage)
{
	void *data = first_byte(ctx, TAM_LEVEL_NIC), *data_end = last_byte(ctx, TAM_LEVEL_NIC);
	__u32 l3 = find_l3(data, data_end);

	/* The hop limit was checked before. */
	return !l3 || one_hop(data + l3, data_end) != TAM_FORWARDED ||
	       readdress(ctx, TAM_LEVEL_NIC, &passage->meta, passage->own_mac, l3);
}

static __always_inline int dropped_as_beyond(enum tam_level level, struct tam_service_stats *stats)
{
	stats->drop_share++;
	return dropped(level);
}

static __always_inline int dropped_at_kernel(struct tam_port_share *share, struct tam_service_stats *stats)
{
	__sync_fetch_and_add(&share->dropped[1], 1);
	return dropped_as_beyond(TAM_LEVEL_KERNEL, stats);
}

/* Returns the interface index of the TAP device, 0 while there is no cell. */
static __always_inline __u32 up_device(void)
{
	__u32 zero = 0;
	struct tam_config *shared = bpf_map_lookup_elem(&tam_shared, &zero);

	return shared ? *(volatile __u32 *)&shared->up_ifindex : 0;
}

/* Flag in the `port` argument of wait_for_turn(): the kernel is to route the packet then. */
#define TAM_WAIT_BY_KERNEL (1 << 16)

/* Sends a packet that is ready to leave by a port to the cell, where it waits for its
 * session's share of that port; `number` is the account that could not pay. Returns
 * TC_ACT_REDIRECT, or drops and counts it.
 *
 * The lane counts the packet as sent up, so that the lane does not move while others
 * could overtake it; but the module stays at its level. */
static __noinline int wait_for_turn(struct __sk_buff *ctx, const struct tam_passage *passage, __u32 port,
				    __u32 number, struct tam_service_stats *stats)
{
	struct tam_port_share *share = bpf_map_lookup_elem(&tam_lines, &number);
	__u32 entry = passage ? passage->meta.entry : 0, device = up_device(), epoch;
	struct tam_lane *lane = bpf_map_lookup_elem(&tam_lanes, &entry);
	__u32 length = ctx->len + (ctx->vlan_present ? sizeof(struct vlan_header) : 0);
	struct tam_meta meta;
	int counted;

	if (!passage || !share || !lane || !stats)
		return TC_ACT_SHOT;	/* not reached */
	counted = device ? take_credit(passage->payer, length) : -1;
	if (counted < 0) {
		save_head(ctx, TAM_LEVEL_KERNEL, passage->payer, length);
		return dropped_at_kernel(share, stats);
	}
	meta = passage->meta;
	meta.egress_port = port;
	meta.arrival_port = passage->payer;
	meta.flow_hash = number;
	TAP_WAITS(&meta);
	if (!enter_lane(lane)) {
		return_credit(passage->payer, length, counted);
		stats->drop_lane++;
		return TC_ACT_SHOT;
	}
	epoch = epoch_of(lane);
	meta.flags = TAM_META_LEAVES | counted | epoch << TAM_META_EPOCH_SHIFT |
		     (port & TAM_WAIT_BY_KERNEL ? TAM_META_BY_KERNEL : 0);
	if (put_in_front(ctx, &meta, passage->mark)) {
		leave_lane(lane);
		return_credit(passage->payer, length, counted);
		stats->drop_malformed++;
		return TC_ACT_SHOT;
	}
	unmark(ctx);
	if (counted >> TAM_META_COUNTED_SHIFT & 1)
		__sync_fetch_and_add(&share->up[1], 1);
	else
		__sync_fetch_and_add(&share->up[0], 1);
	count_up(lane, epoch);
	leave_lane(lane);
	return bpf_redirect(device, 0);
}

/* Leaves a packet to the kernel to route, charged to the share of the port by which it
 * will leave. */
static __always_inline int leave_to_kernel(void *ctx, enum tam_level level,
					   const struct tam_passage *passage, __u32 l3,
					   struct tam_service_stats *stats)
{
	__u32 port = shared_egress(ctx, level, passage->payer, l3);
	__u32 unpaid = port == TAM_NO_EGRESS ? 0 : take_share(ctx, level, passage->payer, port - 1);

	if (unpaid && level == TAM_LEVEL_NIC)
		return dropped_as_beyond(level, stats);
	if (unpaid) {
		int action = wait_for_turn(ctx, passage, (port - 1) | TAM_WAIT_BY_KERNEL, unpaid - 1, stats);

		stats->to_kernel += action == redirected(level);
		return action;
	}
	if (give_back_source(ctx, level, l3)) {
		stats->drop_malformed++;
		return dropped(level);
	}
	stats->to_kernel++;
	return to_stack(ctx, level, passage);
}

/* Forwards by the packet's route, or leaves the packet to the kernel. */
static __always_inline int pass_by_route(void *ctx, enum tam_level level, const struct tam_passage *passage,
				   struct tam_service_stats *stats)
{
	bring_head(ctx, level);

	__u32 l3 = find_l3(first_byte(ctx, level), last_byte(ctx, level)), unpaid = 0;
	__u32 port = passage->meta.egress_port;
	int outcome = TAM_KERNEL_OTHER;

	/* A packet that arrived as another protocol than IP has no route: it goes to the
	 * stack. */
	if (!l3 && !(passage->meta.flags >> 8 & 0xff)) {
		stats->to_kernel++;
		return to_stack(ctx, level, passage);
	}
	if (!l3 || trim(ctx, level, l3)) {
		stats->drop_malformed++;
		return dropped(level);
	}

	void *data = first_byte(ctx, level), *data_end = last_byte(ctx, level);

	if (passage->meta.flags & TAM_META_ROUTED &&
	    device_of(level, port) &&
	    frame_length(ctx, level) <= without_trailer(l3, passage->mtu))
		outcome = one_hop(data + l3, data_end);
	if (outcome == TAM_FORWARDED)
		unpaid = take_share(ctx, level, passage->payer, port);
	if (unpaid && level == TAM_LEVEL_NIC)
		return dropped_as_beyond(level, stats);
	if (outcome == TAM_DROP_HEADER_LENGTH ||
	    (outcome == TAM_FORWARDED &&
	     readdress(ctx, level, &passage->meta, passage->own_mac, l3))) {
		stats->drop_malformed++;
		return dropped(level);
	}
	if (unpaid && level == TAM_LEVEL_KERNEL) {
		int action = wait_for_turn(ctx, passage, port, unpaid - 1, stats);

		stats->forwarded += action == redirected(level);
		return action;
	}
	if (outcome == TAM_FORWARDED && out_of(ctx, level, port) == redirected(level)) {
		stats->forwarded++;
		return redirected(level);
	}
	if (outcome == TAM_KERNEL_OTHER)
		return leave_to_kernel(ctx, level, passage, l3, stats);
	stats->to_kernel++;
	return to_stack(ctx, level, passage);
}

/* Passes the packet unchanged to the other end of the bridge. */
static __always_inline int pass_across(void *ctx, enum tam_level level,
				       const struct tam_passage *passage,
				       struct tam_service_stats *stats)
{
	__u32 port = passage->meta.egress_port;
	struct tam_port_config *other = bpf_map_lookup_elem(&tam_ports, &port);

	if (!other || !other->ifindex) {
		stats->drop_no_port++;
		return dropped(level);
	}
	if (!fits(other, frame_length(ctx, level))) {
		stats->drop_too_long++;
		return dropped(level);
	}

	__u32 unpaid = take_share(ctx, level, passage->payer, port);
	int action;

	if (unpaid && level == TAM_LEVEL_NIC)
		return dropped_as_beyond(level, stats);
	if (unpaid) {
		action = wait_for_turn(ctx, passage, port, unpaid - 1, stats);
		stats->forwarded += action == redirected(level);
		return action;
	}
	action = across(ctx, level, passage, port);

	if (action == dropped(level))
		stats->drop_no_port++;
	else
		stats->forwarded++;
	return action;
}

static __noinline int pass_on_nic(struct xdp_md *ctx, const struct tam_passage *passage,
				  struct tam_service_stats *stats)
{
	return passage->meta.flags & TAM_META_BRIDGED ? pass_across(ctx, TAM_LEVEL_NIC, passage, stats)
						  : pass_by_route(ctx, TAM_LEVEL_NIC, passage, stats);
}

static __noinline int pass_on_tc(struct __sk_buff *ctx, const struct tam_passage *passage,
				 struct tam_service_stats *stats)
{
	return passage->meta.flags & TAM_META_BRIDGED
		       ? pass_across(ctx, TAM_LEVEL_KERNEL, passage, stats)
		       : pass_by_route(ctx, TAM_LEVEL_KERNEL, passage, stats);
}

/* Continues a packet that left its graph. Not inlined: one copy for each level, called at
 * two places. */
static __always_inline int go_on(void *ctx, enum tam_level level, const struct tam_passage *passage,
				 struct tam_service_stats *stats)
{
	return level == TAM_LEVEL_NIC ? pass_on_nic(ctx, passage, stats)
				      : pass_on_tc(ctx, passage, stats);
}

static __always_inline int bounce(void *ctx, enum tam_level level, const struct tam_passage *passage,
				  struct tam_service_stats *stats)
{
	__u32 port = passage->meta.arrival_port;
	struct tam_port_config *config = bpf_map_lookup_elem(&tam_ports, &port);

	if (cycles(ctx, level, config, port)) {
		stats->drop_cycle++;
		return dropped(level);
	}
	bring_head(ctx, level);

	void *data = first_byte(ctx, level);
	struct ethhdr *eth = data;
	__u8 mac[ETH_ALEN];

	if ((void *)(eth + 1) > last_byte(ctx, level)) {
		stats->drop_malformed++;
		return dropped(level);
	}
	__builtin_memcpy(mac, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, mac, ETH_ALEN);

	__u32 unpaid = take_share(ctx, level, passage->payer, port);

	if (unpaid && level == TAM_LEVEL_NIC)
		return dropped_as_beyond(level, stats);
	if (unpaid) {
		int action = wait_for_turn(ctx, passage, port, unpaid - 1, stats);

		stats->bounced += action == redirected(level);
		return action;
	}
	stats->bounced++;
	return back_out(ctx, level, port);
}

static __always_inline int redirect(void *ctx, enum tam_level level,
				    const struct tam_passage *passage, __u32 port,
				    struct tam_service_stats *stats)
{
	struct tam_port_config *config = bpf_map_lookup_elem(&tam_ports, &port);
	int to_raw = level == TAM_LEVEL_NIC && config && config->flags & TAM_PORT_RAW;
	__u32 l3 = 0, unpaid;

	if (cycles(ctx, level, config, passage->meta.arrival_port)) {
		stats->drop_cycle++;
		return dropped(level);
	}
	if (!config || !config->ifindex) {
		stats->drop_no_port++;
		return dropped(level);
	}
	/* The kernel would drop it without a counter (xdp_ok_fwd_dev). */
	if (!fits(config, frame_length(ctx, level))) {
		stats->drop_too_long++;
		return dropped(level);
	}
	/* A device without Ethernet takes only IP. At tc the kernel sees to that. */
	if (to_raw) {
		l3 = find_l3(first_byte(ctx, level), last_byte(ctx, level));
		if (!l3) {
			stats->drop_malformed++;
			return dropped(level);
		}
	}
	unpaid = take_share(ctx, level, passage->payer, port);
	if (unpaid && level == TAM_LEVEL_NIC)
		return dropped_as_beyond(level, stats);
	if (unpaid) {
		int action = wait_for_turn(ctx, passage, port, unpaid - 1, stats);

		stats->redirected += action == redirected(level);
		return action;
	}
	/* Any device takes frames that tc redirects, or XDP in the stack. */
	if (level == TAM_LEVEL_NIC && (to_raw || config->slow & TAM_SLOW_NO_REDIRECT) &&
	    crosses_at_tc(passage->meta.arrival_port)) {
		int action = cross_at_tc(ctx, port);

		if (action == XDP_PASS)
			stats->redirected++;
		else
			stats->drop_malformed++;
		return action;
	}
	if (to_raw && bpf_xdp_adjust_head(ctx, l3)) {
		stats->drop_malformed++;
		return dropped(level);
	}
	if (out_of(ctx, level, port) != redirected(level)) {
		stats->drop_no_port++;
		return dropped(level);
	}
	stats->redirected++;
	return redirected(level);
}

static __noinline int redirect_nic(struct xdp_md *ctx, const struct tam_passage *passage, __u32 port,
				   struct tam_service_stats *stats)
{
	return passage && stats ? redirect(ctx, TAM_LEVEL_NIC, passage, port, stats) : XDP_DROP;
}

static __noinline int redirect_tc(struct __sk_buff *ctx, const struct tam_passage *passage, __u32 port,
				  struct tam_service_stats *stats)
{
	return passage && stats ? redirect(ctx, TAM_LEVEL_KERNEL, passage, port, stats) : TC_ACT_SHOT;
}

/* A rule of a later stage names an egress port: uses the packet's route, if that leads
 * there. */
static __always_inline int leave_as_ruled(void *ctx, enum tam_level level,
					  const struct tam_passage *passage, __u32 port,
					  struct tam_service_stats *stats)
{
	if (passage->meta.flags & TAM_META_ROUTED && passage->meta.egress_port == port)
		return go_on(ctx, level, passage, stats);
	return level == TAM_LEVEL_NIC ? redirect_nic(ctx, passage, port, stats)
				      : redirect_tc(ctx, passage, port, stats);
}

static __noinline int count_reason(__u32 entry, __u32 reason, struct tam_service_stats *stats)
{
	struct tam_reason_key key = { .entry = entry, .reason = reason };
	__u64 one = 1, *count = bpf_map_lookup_elem(&tam_reasons, &key);

	if (!stats)
		return 0;
	stats->drop_module++;
	if (count)
		++*count;
	else if (bpf_map_update_elem(&tam_reasons, &key, &one, BPF_NOEXIST))
		stats->reasons_lost++;
	return 0;
}

/* Continues a packet that the module did not run on, as if there were no rule. */
static __always_inline int go_plainly(void *ctx, enum tam_level level, const struct tam_passage *passage,
				      struct tam_service_stats *stats)
{
	__u64 forwarded = stats->forwarded, to_kernel = stats->to_kernel;
	int action = go_on(ctx, level, passage, stats);

	if (action != dropped(level))
		stats->plain++;
	stats->forwarded = forwarded;
	stats->to_kernel = to_kernel;
	return action;
}

static __always_inline int is_verdict(__u32 verdict)
{
	switch (verdict & 0xffff) {
	case VERDICT_DROP:
	case VERDICT_REDIRECT:
		return 1;
	case VERDICT_PASS:
	case VERDICT_REROUTE:
		return verdict >> 16 < TAM_EDGES_MAX;
	case VERDICT_BOUNCE:
	case VERDICT_RAISE:
		return !(verdict >> 16);
	default:
		return 0;
	}
}

/* Returns the entry after this one, or TAM_ENTRY_NONE when the packet leaves its graph. */
static __always_inline __u32 entry_after(const struct tam_lane *lane, __u32 verdict)
{
	__u32 edge = verdict >> 16 & (TAM_EDGES_MAX - 1);

	if ((verdict & 0xff) != VERDICT_PASS || !(lane->edges >> edge & 1))
		return TAM_ENTRY_NONE;
	return lane->next[edge];	/* or TAM_NEXT_DOWN */
}

/* Destination of a packet that left its graph: the service of the next stage, or a value
 * beyond the entries for its enum tam_action. */
#define TAM_ENTRY_DROP 0xfffe
#define TAM_ENTRY_OUT 0x10000	/* | the number of the port that its rule names */
static __noinline __u32 next_stage(struct tam_passage *passage)
{
	if (!passage)
		return TAM_ENTRY_NONE;
	for (int at = 0; at < 2; at++) {
		__u32 rule = passage->meta.then[0];
		const struct tam_rule_fact *fact = fact_of(rule);

		passage->meta.then[0] = passage->meta.then[1];
		passage->meta.then[1] = TAM_RULE_NONE;
		if (!fact || fact->action == TAM_ACTION_FORWARD)
			continue;
		if (fact->action == TAM_ACTION_DROP)
			return TAM_ENTRY_DROP;
		if (fact->action == TAM_ACTION_DOWN)
			return TAM_NEXT_DOWN;
		passage->meta.rule = rule;
		if (fact->action == TAM_ACTION_OUT) {
			passage->payer = fact->session;
			return TAM_ENTRY_OUT | fact->entry;
		}
		passage->mark[0] = 0;
		passage->mark[1] = 0;
		return fact->entry;
	}
	return TAM_ENTRY_NONE;
}

/* Returns true if a frame has no VLAN tag, which the kernel would strip before tc. */
static __always_inline int is_untagged(struct xdp_md *ctx)
{
	const struct ethhdr *eth = first_byte(ctx, TAM_LEVEL_NIC);

	return (const void *)(eth + 1) <= last_byte(ctx, TAM_LEVEL_NIC) &&
	       eth->h_proto != bpf_htons(ETH_P_8021Q) && eth->h_proto != bpf_htons(ETH_P_8021AD);
}

/* Enters the lane of another module, with the mark; as to_service() and arrive(). Along
 * the graph or up, never down. Returns an action, or TAM_RUN. */
static __always_inline int visit(void *ctx, enum tam_level level, struct tam_passage *passage,
				 __u32 entry)
{
	struct tam_lane *lane = bpf_map_lookup_elem(&tam_lanes, &entry);
	struct tam_service_stats *stats = bpf_map_lookup_elem(&tam_services, &entry);
	int runs = 0;

	if (!lane || !stats)
		return dropped(level);
	passage->meta.entry = entry;
	passage->meta.flags |= TAM_META_MARK;
	passage->bytes = frame_length(ctx, level);
	if (!enter_lane(lane)) {
		count_packet(stats, passage->bytes);
		stats->drop_lane++;
		return dropped(level);
	}
	if (level == TAM_LEVEL_NIC) {
		int whole = is_untagged(ctx), which = choose_destination(lane, 1, whole);

		if (which == TAM_GO_TC) {
			int action = send_to_tc(ctx, lane, passage, whole);

			leave_lane(lane);
			if (action != XDP_PASS) {
				count_packet(stats, passage->bytes);
				stats->drop_malformed++;
			}
			return action;
		}
		runs = which == TAM_GO_NIC;
	} else {
		runs = runs_at_tc(lane);
	}
	if (!runs) {
		count_packet(stats, passage->bytes);
		if (is_held(lane))
			return dropped_as_held(level, lane, stats);
		return raise(ctx, level, lane, passage, stats);
	}
	fill_hand_over(passage, &passage->meta, lane,
		       (__u64)passage->bytes << 32 | (__u32)passage->meta.l4_offset << 16 |
			       passage->meta.l3_offset,
		       level);
	return TAM_RUN;
}

static __noinline int visit_nic(struct xdp_md *ctx, struct tam_passage *passage, __u32 entry)
{
	return passage ? visit(ctx, TAM_LEVEL_NIC, passage, entry) : XDP_DROP;
}

static __noinline int visit_tc(struct __sk_buff *ctx, struct tam_passage *passage, __u32 entry)
{
	return passage ? visit(ctx, TAM_LEVEL_KERNEL, passage, entry) : TC_ACT_SHOT;
}

/* Carries out a verdict. Returns an action, or TAM_RUN. */
static __always_inline int afterwards(void *ctx, enum tam_level level)
{
	__u32 zero = 0;
	struct tam_passage *passage = bpf_map_lookup_elem(&tam_passages, &zero);

	if (!passage)
		return dropped(level);	/* the maps have every index: not reached */

	__u32 entry = passage->meta.entry;
	const struct tam_hand_over *hand_over = hand_over_of(entry);
	__u32 verdict = hand_over->verdict, trapped = hand_over->trapped;
	struct tam_lane *lane = bpf_map_lookup_elem(&tam_lanes, &entry);
	struct tam_service_stats *stats = bpf_map_lookup_elem(&tam_services, &entry);

	TAP_VERDICT(level, &passage->meta, verdict, trapped);
	if (!lane || !stats)
		return dropped(level);
	count_packet(stats, passage->bytes);
	stats->handed_over += passage->moved;
	if (trapped == TAM_OVER_BUDGET) {
		if ((lane->over ? lane->over : lane->beyond) != TAM_OVER_DROP)
			return raise(ctx, level, lane, passage, stats);
		leave_lane(lane);
		stats->drop_budget++;
		stats->drop_budget_bytes += passage->bytes;
		return dropped(level);
	}
	if (!trapped && !is_verdict(verdict))
		trapped = TAM_NOT_A_VERDICT;
	if (trapped && trapped != TAM_NOT_RUN) {
		lane->trapped = trapped;
		leave_lane(lane);
		stats->drop_trap++;
		return dropped(level);
	}
	if (!trapped && verdict == VERDICT_RAISE)
		return raise(ctx, level, lane, passage, stats);

	__u32 next = trapped ? TAM_ENTRY_NONE : entry_after(lane, verdict);

	if (next != TAM_ENTRY_NONE)
		__builtin_memcpy(passage->mark, hand_over->mark, sizeof(passage->mark));
	leave_lane(lane);
	if (trapped && lane->closed)
		return dropped_as_down(level, stats);
	if ((trapped || (verdict & 0xff) == VERDICT_PASS) && next == TAM_ENTRY_NONE &&
	    passage->meta.then[0] != TAM_RULE_NONE) {
		if (!trapped && verdict & VERDICT_REROUTE)
			passage->meta.flags &= ~TAM_META_ROUTED;
		next = next_stage(passage);
	}
	if (next == TAM_NEXT_DOWN)
		return dropped_as_down(level, stats);
	if (next == TAM_ENTRY_DROP) {
		stats->drop_rule++;
		return dropped(level);
	}
	if (next >> 16 == TAM_ENTRY_OUT >> 16)
		return leave_as_ruled(ctx, level, passage, next & 0xffff, stats);
	if (trapped && next == TAM_ENTRY_NONE)
		return go_plainly(ctx, level, passage, stats);
	if (trapped) {
		stats->plain++;
		return level == TAM_LEVEL_NIC ? visit_nic(ctx, passage, next)
					      : visit_tc(ctx, passage, next);
	}
	switch (verdict & 0xffff) {
	case VERDICT_DROP:
		count_reason(entry, verdict >> 16, stats);
		return dropped(level);
	case VERDICT_BOUNCE:
		return bounce(ctx, level, passage, stats);
	case VERDICT_REDIRECT:
		return level == TAM_LEVEL_NIC ? redirect_nic(ctx, passage, verdict >> 16, stats)
					      : redirect_tc(ctx, passage, verdict >> 16, stats);
	default:
		if (verdict & VERDICT_REROUTE)
			passage->meta.flags &= ~TAM_META_ROUTED;
		if (next == TAM_ENTRY_NONE)
			return go_on(ctx, level, passage, stats);
		stats->passed_on++;
		return level == TAM_LEVEL_NIC ? visit_nic(ctx, passage, next)
					      : visit_tc(ctx, passage, next);
	}
}

/* Restores a packet for the kernel to the form in which it arrived by a port without
 * Ethernet. */
static __noinline int pass_to_kernel(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct tam_passage *passage = bpf_map_lookup_elem(&tam_passages, &zero);
	__u32 port = passage ? passage->meta.arrival_port : 0;
	struct tam_port_config *config = bpf_map_lookup_elem(&tam_ports, &port);

	return config && config->flags & TAM_PORT_RAW ? take_ethernet(ctx, XDP_PASS) : XDP_PASS;
}

SEC("xdp.frags")
int tam_afterwards(struct xdp_md *ctx)
{
	int action = afterwards(ctx, TAM_LEVEL_NIC);

	TAP_AFTER_NIC(ctx, action);
	if (action == TAM_RUN)
		run_module(ctx, &tam_modules, &tam_after);
	else if (action != XDP_PASS)
		return action;
	return pass_to_kernel(ctx);
}

#endif
