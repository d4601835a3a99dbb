/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Bridged pairs: two ports in line, without addresses.
 *
 *        ┌─ a rule's service ─── pass ───────────────────┐
 *   a ───┤                                               ├──▶ b, byte for byte
 *        └─ no rule, or a frame that no rule can match ──┘
 *           (ARP, STP, LLDP, neighbour discovery, malformed headers)
 *
 * No route lookup, no TTL decrement, no MAC check. A port's configuration
 * names its other end; a flow's egress port is that end, with TAM_META_BRIDGED.
 *
 * Frames that XDP cannot give to b cross one step later, at tc (tc.h), marked by
 * metadata with TAM_META_CROSS: where b takes no redirected frames, and packets
 * whose checksum only the kernel knows to be unfinished. XDP in the stack can do both
 * by itself.
 *
 */
#ifndef TAM_BRIDGE_H
#define TAM_BRIDGE_H

#include "classify.h"

/* Makes tam_tc send the frame out of `port`. Returns XDP_PASS, or XDP_DROP when there is
 * no space for metadata. */
static __always_inline int cross_at_tc(struct xdp_md *ctx, __u32 port)
{
	/* On its way to a missing socket it got metadata already. */
	int have = (int)(ctx->data - ctx->data_meta);

	if (bpf_xdp_adjust_meta(ctx, have - (int)sizeof(struct tam_meta)))
		return XDP_DROP;

	struct tam_meta *meta = (void *)(long)ctx->data_meta;

	if ((void *)(meta + 1) > (void *)(long)ctx->data)
		return XDP_DROP;
	__builtin_memset(meta, 0, sizeof(*meta));
	meta->egress_port = port;
	meta->flags = TAM_META_CROSS;
	return XDP_PASS;
}

/* Returns true if tc sees a port's packets as XDP does. */
static __always_inline int crosses_at_tc(__u32 port)
{
	struct tam_port_config *config = bpf_map_lookup_elem(&tam_ports, &port);

	return config && !(config->flags & (TAM_PORT_RAW | TAM_PORT_GENERIC));
}

/* Returns true if a device takes a frame of this length (xdp_ok_fwd_dev,
 * include/linux/filter.h): others are dropped without a counter. */
static __always_inline int fits(const struct tam_port_config *other, __u32 length)
{
	return length <= other->mtu + sizeof(struct ethhdr) + sizeof(struct vlan_header);
}

/* Sends a frame out by the other end, unchanged. */
static __noinline int cross(struct xdp_md *ctx, __u32 port, __u32 at_tc, struct tam_port_stats *stats)
{
	struct tam_port_config *other = bpf_map_lookup_elem(&tam_ports, &port);

	if (!stats)
		return XDP_DROP;	/* not reached */
	if (!other || !other->ifindex)
		return finish(stats, TAM_DROP_EGRESS_GONE);
	if (!fits(other, bpf_xdp_get_buff_len(ctx)))
		return finish(stats, TAM_DROP_TOO_LONG);
	if ((at_tc || other->slow & TAM_SLOW_NO_REDIRECT) && crosses_at_tc(port_number)) {
		int action = cross_at_tc(ctx, port);

		finish(stats, action == XDP_PASS ? TAM_BRIDGED : TAM_DROP_ADJUST);
		return action;
	}
	TAP_LEAVES(port);
	if (bpf_redirect_map(&tam_devices, port, XDP_DROP) != XDP_REDIRECT)
		return finish(stats, TAM_DROP_EGRESS_GONE);
	finish(stats, TAM_BRIDGED);
	return XDP_REDIRECT;
}

/* Sends a packet whose flow is known out by the other end. */
static __always_inline int cross_flow(struct xdp_md *ctx, const struct tam_flow *flow,
				      struct tam_port_stats *stats)
{
	return cross(ctx, flow->meta.egress_port, flow->outcome == TAM_KERNEL_PARTIAL, stats);
}

#endif
