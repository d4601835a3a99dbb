// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
/* Front door: the XDP program of every port.
 *
 * It parses a frame (parse.h), finds its rule and its route once (classify.h),
 * counts, and ends in exactly one outcome of enum tam_outcome:
 *
 *   common frame ----------------------> flow cache -- hit --------+
 *     |other, or miss                                               |
 *     v                                                             |
 *   parse -> destination MAC ----------> flow cache -- hit ---------+
 *     |            |                         |miss: the large one, |
 *     v            v                         v or                   v
 *   drop/kernel  kernel             rules, FIB, neighbour -> act: forward, drop,
 *                                                            cell, kernel, module
 *
 * A module of a service runs between this program and its second half
 * (service.h, verdict.h).
 *
 * It never allocates, waits, reads a clock, or changes a packet that it
 * hands to the kernel. Minimum kernel: 6.6 (XDP multi-buffer with AF_XDP).
 *
 */
#include "tam_bpf.h"
#include "tam_maps.h"
#include "parse.h"
#include "classify.h"
#include "large_cache.h"
#include "rewrite.h"
#include "service.h"
#include "verdict.h"
#include "ask.h"
#include "intercept.h"
#include "tc.h"
#include "tun.h"

/* Forwards one hop: cuts the trailer behind the IP packet off, decrements TTL or hop
 * limit, writes the MACs of the next hop and the egress tag, and redirects. The caller
 * has checked that the TTL is above one. */
static __always_inline int forward(struct xdp_md *ctx, const struct packet *packet,
				   const struct tam_flow *flow, struct tam_port_stats *stats)
{
	__u32 l3 = packet->l3_offset, length = without_trailer(l3, packet->ip_length);

	if (packet->length > length && bpf_xdp_adjust_tail(ctx, (int)length - (int)packet->length))
		return finish(stats, TAM_DROP_ADJUST);

	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;

	if (l3 > TAM_L3_OFFSET_MAX || data + l3 + sizeof(struct iphdr) > data_end)
		return finish(stats, TAM_DROP_ADJUST);
	if ((flow->meta.flags >> 8 & 0xff) == 4) {
		decrease_ttl(data + l3);
	} else {
		struct ipv6hdr *ip6 = data + l3;

		ip6->hop_limit--;
	}
	if (readdress(ctx, TAM_LEVEL_NIC, &flow->meta, flow->own_mac, l3))
		return finish(stats, TAM_DROP_ADJUST);
	TAP_LEAVES(flow->meta.egress_port);
	if (bpf_redirect_map(&tam_devices, flow->meta.egress_port, XDP_DROP) != XDP_REDIRECT)
		return finish(stats, TAM_DROP_EGRESS_GONE);
	finish(stats, TAM_FORWARDED);
	return XDP_REDIRECT;
}

/* Returns true if a packet without a usable route to the port that its rule names may
 * leave there unchanged: its route leads elsewhere, or it needs none. All else goes to
 * the kernel, as in plain forwarding. */
static __always_inline int needs_no_route(__u32 outcome)
{
	return outcome == TAM_FORWARDED || outcome == TAM_BRIDGED || outcome == TAM_KERNEL_LOCAL ||
	       outcome == TAM_KERNEL_EGRESS || outcome == TAM_KERNEL_NOT_IP ||
	       outcome == TAM_KERNEL_NOT_FOR_US;	/* not IP either: rules are not applied to that */
}

/* Result of act() in place of an action: the passage names the egress port. */
#define TAM_LEAVE 0x102

/* Handles a packet of a rule that names a port. Returns TAM_LEAVE, or between the two
 * ends of a bridge an action. `outcome` is TAM_FORWARDED when it has a usable route, else
 * the reason against it. */
static __always_inline int to_port(struct xdp_md *ctx, const struct tam_flow *flow, __u64 extent,
				   int outcome, struct tam_port_stats *stats)
{
	__u32 zero = 0, port = flow->meta.entry;
	int routed = flow->outcome == TAM_FORWARDED && flow->meta.egress_port == port;
	struct tam_passage *passage = bpf_map_lookup_elem(&tam_passages, &zero);

	if (!passage)
		return finish(stats, TAM_KERNEL_OTHER);	/* the map has every index: not reached */
	passage->kernel = 0;
	if (routed ? outcome != TAM_FORWARDED : !needs_no_route(flow->outcome)) {
		if (flow->meta.flags & TAM_META_BRIDGED)
			return cross_flow(ctx, flow, stats);
		passage->kernel = outcome;
	}
	fill_meta(&passage->meta, flow, extent, routed ? TAM_FORWARDED : TAM_KERNEL_OTHER);
	__builtin_memcpy(passage->own_mac, flow->own_mac, ETH_ALEN);
	passage->length = extent >> 32;
	passage->payer = session_of(flow->meta.rule);
	return TAM_LEAVE;
}

/* Handles a packet of a rule that names a port, which the kernel has to answer or to
 * route: charged to the share of the port by which it will leave, if any. */
static __noinline int leave_as_plain(struct xdp_md *ctx, const struct tam_passage *passage,
				     struct tam_port_stats *stats)
{
	if (!passage || !stats)
		return XDP_DROP;	/* not reached */

	__u32 port = shared_egress(ctx, TAM_LEVEL_NIC, passage->payer, passage->meta.l3_offset);

	if (port != TAM_NO_EGRESS && take_share(ctx, TAM_LEVEL_NIC, passage->payer, port - 1))
		return finish(stats, TAM_DROP_SHARE);
	return finish(stats, passage->kernel);
}

/* Sends a packet out by the port that its passage names, without a module. Called where
 * the stack has space. The share is charged last: a charged packet is sent. */
static __noinline int cut_through(struct xdp_md *ctx)
{
	__u32 at = port_number;
	struct tam_port_stats *stats = bpf_map_lookup_elem(&tam_stats, &at);

	at = 0;

	struct tam_passage *passage = bpf_map_lookup_elem(&tam_passages, &at);

	if (!stats || !passage)
		return XDP_DROP;	/* not reached */
	if (passage->kernel)
		return leave_as_plain(ctx, passage, stats);
	at = passage->meta.entry;

	struct tam_port_config *to = bpf_map_lookup_elem(&tam_ports, &at);
	int routed = passage->meta.flags & TAM_META_ROUTED, action;
	__u32 l3 = 0;

	if (!to || !to->ifindex)
		return finish(stats, TAM_DROP_EGRESS_GONE);
	if (!routed && cycles(ctx, TAM_LEVEL_NIC, to, port_number))
		return finish(stats, TAM_DROP_CYCLE);
	if (!routed && !fits(to, passage->length))
		return finish(stats, TAM_DROP_TOO_LONG);
	if (to->flags & TAM_PORT_RAW) {
		l3 = find_l3(first_byte(ctx, TAM_LEVEL_NIC), last_byte(ctx, TAM_LEVEL_NIC));
		if (!l3)
			return finish(stats, TAM_DROP_ADJUST);
	}
	if (routed && trim_behind(ctx))
		return finish(stats, TAM_DROP_ADJUST);
	if (take_share(ctx, TAM_LEVEL_NIC, passage->payer, at))
		return finish(stats, TAM_DROP_SHARE);
	if (routed && hop(ctx, passage))
		return finish(stats, TAM_DROP_ADJUST);
	/* XDP in the stack redirects to any device, that in a driver only to some. */
	if ((l3 || to->slow & TAM_SLOW_NO_REDIRECT) && crosses_at_tc(port_number)) {
		action = cross_at_tc(ctx, at);
		finish(stats, action == XDP_PASS ? TAM_CUT_THROUGH : TAM_DROP_ADJUST);
		return action;
	}
	if (l3 && bpf_xdp_adjust_head(ctx, l3))
		return finish(stats, TAM_DROP_ADJUST);
	TAP_LEAVES(at);
	if (bpf_redirect_map(&tam_devices, at, XDP_DROP) != XDP_REDIRECT)
		return finish(stats, TAM_DROP_EGRESS_GONE);
	finish(stats, TAM_CUT_THROUGH);
	return XDP_REDIRECT;
}

static __noinline int to_entry(struct xdp_md *ctx, const struct tam_flow *flow, __u64 extent,
			       int outcome, struct tam_port_stats *stats)
{
	if (flow->action == TAM_ACTION_SERVICE)
		return to_service(ctx, flow, extent, outcome, stats);
	if (flow->action == TAM_ACTION_USER)
		return to_cell(ctx, flow, extent, outcome, stats);
	if (flow->action == TAM_ACTION_OUT)
		return to_port(ctx, flow, extent, outcome, stats);
	return finish(stats, TAM_DROP_DOWN);
}

/* Acts on one packet by its flow's rule and route. Returns an XDP action, or TAM_RUN. */
static __always_inline int act(struct xdp_md *ctx, const struct packet *packet,
			       const struct tam_flow *flow, struct tam_port_stats *stats)
{
	__u32 kernel = flow->outcome;	/* TAM_FORWARDED, the reason why the kernel routes it, or why it is dropped */

	TAP_RULE(flow);
	if (flow->meta.rule != TAM_RULE_NONE)
		count_rule(flow->meta.rule, 1, packet->length);
	if (flow->meta.then[0] != TAM_RULE_NONE || flow->counted[0] != TAM_RULE_NONE)
		count_others(flow, 1, packet->length);
	if (flow->action == TAM_ACTION_DROP)
		return finish(stats, TAM_DROP_RULE);
	if (kernel == TAM_FORWARDED) {
		if (packet->ttl <= 1)
			kernel = TAM_KERNEL_TTL;
		else if (packet->options)
			kernel = TAM_KERNEL_OPTIONS;
		else if (packet->ip_length > flow->mtu)
			kernel = TAM_KERNEL_TOO_BIG;
		else if (packet->vlan_tags > 1)
			kernel = TAM_KERNEL_VLAN_DEPTH;
	} else if (kernel >= TAM_DROP_TRUNCATED) {
		return finish(stats, kernel);
	}
	if (flow->action >= TAM_ACTION_INTERCEPT && !(flow->meta.flags & TAM_META_BRIDGED))
		return to_stream(flow, extent_of(packet), kernel);
	/* Between the ends of a bridge nothing is intercepted. */
	if (flow->action == TAM_ACTION_INTERCEPT_CLOSED)
		return finish(stats, TAM_DROP_DOWN);
	if (flow->action != TAM_ACTION_FORWARD && flow->action < TAM_ACTION_INTERCEPT)
		return to_entry(ctx, flow, extent_of(packet), kernel, stats);
	if (kernel != TAM_FORWARDED)
		return flow->meta.flags & TAM_META_BRIDGED ? cross_flow(ctx, flow, stats)
							   : finish(stats, kernel);
	return forward(ctx, packet, flow, stats);
}

/* Counts a frame that has been parsed. */
static __always_inline void have_come(struct xdp_md *ctx, const struct packet *packet,
				      __u8 protocol, struct tam_port_stats *stats)
{
	(void)ctx, (void)protocol;
	stats->rx_packets++;
	stats->rx_bytes += packet->length;
}

/* Handles a frame that cannot be classified. */
static __always_inline int act_unread(struct xdp_md *ctx, struct tam_port_stats *stats, int outcome)
{
	__u32 at = port_number;
	const struct tam_port_config *config = bpf_map_lookup_elem(&tam_ports, &at);

	return config && config->bridge ? cross(ctx, config->bridge - 1, 0, stats) : finish(stats, outcome);
}

#include "door.h"

SEC("xdp.frags")
int tam_front_door(struct xdp_md *ctx)
{
	struct common_key common = {};
	__u32 at = port_number;	/* as in take_apart() */
	struct tam_port_stats *stats = bpf_map_lookup_elem(&tam_stats, &at);
	int action;

	at = 0;

	struct tam_config *shared = bpf_map_lookup_elem(&tam_shared, &at);

	if (!stats || !shared)
		return XDP_PASS;	/* the maps are as large as port_number allows: not reached */
	if (begins_with_ip && put_ethernet(ctx)) {
		stats->rx_packets++;
		return finish(stats, TAM_DROP_ADJUST);
	}
	TAP_ARRIVAL(ctx);

	action = look_up(ctx, stats, shared, &common, &at);
	if (action == TAM_LEAVE)
		action = cut_through(ctx);
	if (action == TAM_INTERCEPT)
		action = intercept(ctx);
	TAP_END(ctx, action);
	/* The tail call is made here: none of a subprogram's stack is held across it. */
	if (action != TAM_RUN)
		return begins_with_ip ? take_ethernet(ctx, action) : action;
	keep_origin_nic(ctx);
	run_module(ctx, &tam_modules, &tam_after);
	return begins_with_ip ? take_ethernet(ctx, XDP_PASS) : XDP_PASS;
}

/* Renews the lease of cached routes, in the kernel's own time. Run by the daemon through
 * test-run. The first run sets the modules' clock. */
SEC("xdp")
int tam_heartbeat(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct tam_config *shared = bpf_map_lookup_elem(&tam_shared, &zero);

	(void)ctx;
	if (!shared)
		return XDP_DROP;
	shared->routes_heard = bpf_jiffies64();
	if (!shared->clock_jiffies) {
		shared->clock_jiffies = shared->routes_heard;
		shared->clock_ms = bpf_ktime_get_coarse_ns() / 1000000;
	}
	return XDP_DROP;
}

/* Tells whether a packet can carry metadata with a mark. Run by the daemon through
 * test-run. Older kernels have space for 32 bytes. */
SEC("xdp")
int tam_carries_marks(struct xdp_md *ctx)
{
	return bpf_xdp_adjust_meta(ctx, -(int)sizeof(struct tam_marked)) ? XDP_DROP : XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
