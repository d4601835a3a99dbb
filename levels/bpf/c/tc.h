/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Services at kernel level: the program at tcx ingress of every port.
 *
 *   XDP: to_service() -- metadata in front, XDP_PASS --> stack --> tam_tc: the lane again
 *     | no packet of a lane: on, untouched
 *     | cannot run here: up, by the TAP device (actions.h)
 *     v
 *   run_module() --tail call--> the module --tail call--> tam_afterwards_tc (verdict.h)
 *
 * One copy serves all ports: the port's properties are in the metadata.
 * Ports have GRO off while a service is at this level, so that one buffer is one frame here.
 * Otherwise it may be on for intercepted packets (the daemon's settle_gro()).
 *
 */
#ifndef TAM_TC_H
#define TAM_TC_H

#include "verdict.h"

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, TAM_MODULES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} tam_modules_tc SEC(".maps");

/* Program at index 0: the end of modules' programs. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} tam_after_tc SEC(".maps");

/* Fills the part of the passage that XDP's cache provides at nic, without which a packet
 * has no route. */
static __always_inline void fill_route(struct __sk_buff *ctx, struct tam_passage *passage)
{
	__u32 l3 = passage->meta.l3_offset, ip_length = 0, port = passage->meta.egress_port;
	struct tam_port_config *config = bpf_map_lookup_elem(&tam_ports, &port);

	/* The packet fitted on arrival. The kernel checks the length of one that the
	 * module makes longer. */
	bring_head(ctx, TAM_LEVEL_KERNEL);
	if (l3 <= TAM_L3_OFFSET_MAX)
		ip_length = ip_length_at(first_byte(ctx, TAM_LEVEL_KERNEL) + l3,
					 last_byte(ctx, TAM_LEVEL_KERNEL));
	passage->mtu = ip_length;
	if (config)
		__builtin_memcpy(passage->own_mac, config->mac, ETH_ALEN);
	else
		passage->meta.flags &= ~TAM_META_ROUTED;
}

/* Handles a packet of a lane that arrived here. Returns a tc action, or TAM_RUN. */
static __always_inline int arrive(struct __sk_buff *ctx, struct tam_meta *meta)
{
	__u32 zero = 0, entry = meta->entry, flags = meta->flags, length = ctx->len;
	struct tam_passage *passage = bpf_map_lookup_elem(&tam_passages, &zero);
	struct tam_lane *lane = bpf_map_lookup_elem(&tam_lanes, &entry);
	struct tam_service_stats *stats = bpf_map_lookup_elem(&tam_services, &entry);

	if (!passage || !lane || !stats)
		return TC_ACT_UNSPEC;
	passage->mark[0] = 0;
	passage->mark[1] = 0;
	if (flags & TAM_META_MARK) {
		struct tam_marked *marked = marked_of(ctx);

		if (marked)
			__builtin_memcpy(passage->mark, marked->mark, sizeof(passage->mark));
	}
	meta->flags = 0;
	passage->meta = *meta;
	passage->meta.flags = flags & ((1 << TAM_META_EPOCH_SHIFT) - 1) &
			  ~(TAM_META_TO_TC | TAM_META_UP);
	if (!enter_lane(lane)) {
		count_packet(stats, length);
		stats->drop_lane++;
		return TC_ACT_SHOT;
	}
	count_at_tc(lane, flags >> TAM_META_EPOCH_SHIFT);
	passage->length = length;
	passage->bytes = length;
	if (flags & TAM_META_UP || !runs_at_tc(lane)) {
		count_packet(stats, length);
		if (is_held(lane))
			return dropped_as_held(TAM_LEVEL_KERNEL, lane, stats);
		return raise(ctx, TAM_LEVEL_KERNEL, lane, passage, stats);
	}
	fill_hand_over(passage, &passage->meta, lane,
		       (__u64)length << 32 | (__u32)passage->meta.l4_offset << 16 | passage->meta.l3_offset,
		       TAM_LEVEL_KERNEL);
	fill_route(ctx, passage);
	return TAM_RUN;
}

/* Not "tcx/ingress": programs that call each other must have been loaded for the same
 * place, and those of modules are for tc as such. */
SEC("tcx/ingress")
int tam_tc(struct __sk_buff *ctx)
{
	struct tam_meta *meta = metadata_of(ctx);
	int action;

	if (!meta)
		return TC_ACT_UNSPEC;
	if ((meta->flags & TAM_META_INTERCEPT) == TAM_META_INTERCEPT) {
		ctx->mark = TAM_MARK_LISTENER | meta->entry;
		return TC_ACT_UNSPEC;
	}
	if (meta->flags & TAM_META_CROSS)
		return answer_at_tc(ctx, out_of(ctx, TAM_LEVEL_KERNEL, meta->egress_port));
	if (!(meta->flags & TAM_META_TO_TC))
		return TC_ACT_UNSPEC;
	action = arrive(ctx, meta);
	if (action != TAM_RUN)
		return answer_at_tc(ctx, action);
	keep_origin_tc(ctx);
	run_module(ctx, &tam_modules_tc, &tam_after_tc);
	return TC_ACT_UNSPEC;
}

SEC("tcx/ingress")
int tam_afterwards_tc(struct __sk_buff *ctx)
{
	int action = afterwards(ctx, TAM_LEVEL_KERNEL);

	TAP_AFTER_TC(ctx, action);
	if (action != TAM_RUN)
		return answer_at_tc(ctx, action);
	run_module(ctx, &tam_modules_tc, &tam_after_tc);
	return TC_ACT_UNSPEC;
}

#endif
