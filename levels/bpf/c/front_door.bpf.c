// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
/* The front door: the XDP program of every port.
 *
 * It parses a frame (parse.h), finds its rule and its route once (classify.h),
 * counts, and ends in exactly one outcome of enum tam_outcome:
 *
 *   common frame ----------------------> flow cache -- hit --------+
 *     |other, or miss                                               |
 *     v                                                             |
 *   parse -> destination MAC ----------> flow cache -- hit ---------+
 *     |            |                         |miss                  |
 *     v            v                         v                      v
 *   drop/kernel  kernel             rules, FIB, neighbour -> act: forward, drop,
 *                                                            cell, kernel, module
 *
 * A module of a service runs between this program and its second half
 * (service.h, afterwards.h).
 *
 * What it never does: allocate, wait, read a clock, or change a packet that it
 * hands to the kernel. Minimum kernel: 6.6 (XDP multi-buffer with AF_XDP).
 */
#include "tam_bpf.h"
#include "tam_maps.h"
#include "parse.h"
#include "classify.h"
#include "rewrite.h"
#include "service.h"
#include "afterwards.h"
#include "tc.h"

/* One hop further: TTL or hop limit down by one, MACs of the next hop, the
 * egress tag, and out. The caller has checked that the TTL is above one. */
static __always_inline int forward(struct xdp_md *ctx, const struct packet *packet,
				   const struct tam_flow *flow, struct tam_port_stats *stats)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	__u32 l3 = packet->l3_offset;

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
	if (bpf_redirect_map(&tam_devices, flow->meta.egress_port, XDP_DROP) != XDP_REDIRECT)
		return finish(stats, TAM_DROP_EGRESS_GONE);
	finish(stats, TAM_FORWARDED);
	return XDP_REDIRECT;
}

static __noinline int to_entry(struct xdp_md *ctx, const struct tam_flow *flow, __u64 extent,
			       int outcome, struct tam_port_stats *stats)
{
	if (flow->action == TAM_ACTION_USER)
		return sent_up(stats, give_to_socket(ctx, flow, extent, outcome, 0));
	return to_service(ctx, flow, extent, outcome, stats);
}

/* Does what the flow's rule and route say with this one packet. Returns an XDP
 * action, or TAM_RUN. */
static __always_inline int act(struct xdp_md *ctx, const struct packet *packet,
			       const struct tam_flow *flow, struct tam_port_stats *stats)
{
	__u32 kernel = flow->outcome;	/* TAM_FORWARDED, or why the kernel routes it */

	if (flow->meta.rule != TAM_RULE_NONE)
		count_rule(flow->meta.rule, packet->length);
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
	}
	if (flow->action != TAM_ACTION_FORWARD)
		return to_entry(ctx, flow, extent_of(packet), kernel, stats);
	if (kernel != TAM_FORWARDED)
		return finish(stats, kernel);
	return forward(ctx, packet, flow, stats);
}

static __always_inline int is_fresh(const struct tam_flow *flow, const struct tam_config *shared)
{
	return flow->generation == *(volatile __u64 *)&shared->generation &&
	       bpf_jiffies64() - *(volatile __u64 *)&shared->routes_heard < TAM_ROUTES_LEASE;
}

/* Any frame: taken apart, then looked up by what it is matched by. `common` is the
 * key of a common frame that the cache lacks; of another frame its last word is 0. */
static __noinline int take_apart(struct xdp_md *ctx, const __u64 common[TAM_KEY_WORDS],
				 struct tam_port_stats *stats)
{
	struct packet packet = {};
	__u32 at = port_number;	/* one word for all keys: the stack is nearly full */
	struct tam_port_config *config = bpf_map_lookup_elem(&tam_ports, &at);

	at = 0;

	struct tam_config *shared = bpf_map_lookup_elem(&tam_shared, &at);
	struct tam_flow *flow;
	const __u64 *key = (const __u64 *)&packet.key;

	if (!config || !shared || !common || !stats)
		return XDP_PASS;	/* the maps are as large as port_number allows: not reached */

	int outcome = parse(ctx, config, &packet);

	stats->rx_packets++;
	stats->rx_bytes += packet.length;
	if (outcome >= 0)
		return finish(stats, outcome);
	packet.key.port = port_number;
	if (packet.key.fragment && shared->mask_count[*(volatile __u64 *)&shared->generation & 1])
		track_fragment(&packet);
	if (common[5]) {
		key = common;
		at = common_slot(key, shared->hash_seed);
	} else {
		at = flow_slot(key, shared->hash_seed);
	}
	flow = bpf_map_lookup_elem(&tam_flows, &at);
	if (!flow)
		return finish(stats, TAM_KERNEL_OTHER);
	if (same_key(flow->key, key) && is_fresh(flow, shared)) {
		stats->cache_hits++;
	} else {
		__builtin_memcpy(flow->key, key, sizeof(flow->key));
		resolve(ctx, &packet, shared, flow);
	}
	return act(ctx, &packet, flow, stats);
}

SEC("xdp.frags")
int tam_front_door(struct xdp_md *ctx)
{
	struct packet packet;
	__u64 key[TAM_KEY_WORDS];
	__u32 at = port_number;	/* as in take_apart() */
	struct tam_port_stats *stats = bpf_map_lookup_elem(&tam_stats, &at);
	int action;

	at = 0;

	struct tam_config *shared = bpf_map_lookup_elem(&tam_shared, &at);

	if (!stats || !shared)
		return XDP_PASS;	/* the maps are as large as port_number allows: not reached */
	key[5] = 0;
	if (take_every_frame_apart || !parse_common(ctx, &packet, key))
		goto other;
	key[5] = TAM_COMMON | port_number;
	at = common_slot(key, shared->hash_seed);

	struct tam_flow *flow = bpf_map_lookup_elem(&tam_flows, &at);

	if (!flow || !same_key(flow->key, key) || !is_fresh(flow, shared))
		goto other;
	stats->rx_packets++;
	stats->rx_bytes += packet.length;
	stats->cache_hits++;
	action = act(ctx, &packet, flow, stats);
	goto done;
other:
	action = take_apart(ctx, key, stats);
done:
	/* The call is made here: none of a subprogram's stack is held across it. */
	if (action != TAM_RUN)
		return action;
	run_module(ctx, &tam_modules, &tam_after);
	return XDP_PASS;
}

/* Run by the daemon through test-run: "I listen", in the kernel's own time. The
 * first time the modules' clock is set. */
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

/* Run by the daemon through test-run: does a packet carry metadata with a mark? Older
 * kernels have room for 32 bytes. */
SEC("xdp")
int tam_carries_marks(struct xdp_md *ctx)
{
	return bpf_xdp_adjust_meta(ctx, -(int)sizeof(struct tam_marked)) ? XDP_DROP : XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
