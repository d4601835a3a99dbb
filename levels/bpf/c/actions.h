/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Actions on a packet that has passed a module, at nic and at kernel.
 *
 *          nic (XDP)                       kernel (tc)
 *   out    devmap                          redirect to the device
 *   back   devmap (some devices XDP_TX)    redirect to the arrival device
 *   stack  XDP_PASS                        on, or in by the arrival device once more
 *   up     socket, metadata in front       TAP device, metadata as the frame's beginning
 *   wait   dropped                         TAP device, to leave by the cell when its share allows
 *
 */
#ifndef TAM_ACTIONS_H
#define TAM_ACTIONS_H

#include "context.h"
#include "service.h"

/* Returns the metadata with a mark in front of the packet, or 0. */
static __always_inline struct tam_marked *marked_of(struct __sk_buff *ctx)
{
	struct tam_marked *marked = (void *)(long)ctx->data_meta;

	return (void *)(marked + 1) > (void *)(long)ctx->data ? 0 : marked;
}

/* Returns the metadata that XDP put in front of the packet, or 0. */
static __always_inline struct tam_meta *metadata_of(struct __sk_buff *ctx)
{
	struct tam_marked *marked = marked_of(ctx);

	if (marked)
		return &marked->meta;

	struct tam_meta *meta = (void *)(long)ctx->data_meta;

	return (void *)(meta + 1) > (void *)(long)ctx->data ? 0 : meta;
}

/* Invalidates the metadata. Where the frame's beginning was moved, other bytes lie where
 * the kernel expects the metadata. They must not look like a lane's on the next device. */
static __always_inline void unmark(struct __sk_buff *ctx)
{
	struct tam_meta *meta = metadata_of(ctx);

	if (meta)
		meta->flags = 0;
}

/* Returns true if the packet still has the properties that the stack saw on arrival. */
static __always_inline int is_as_it_came(struct __sk_buff *ctx, const struct tam_passage *passage)
{
	__u32 port = passage->meta.arrival_port;
	struct tam_port_config *config = bpf_map_lookup_elem(&tam_ports, &port);
	struct ethhdr *eth = first_byte(ctx, TAM_LEVEL_KERNEL);
	__be16 type = bpf_htons((passage->meta.flags >> 8 & 0xff) == 4 ? ETH_P_IP : ETH_P_IPV6);

	if (!config || (void *)(eth + 1) > last_byte(ctx, TAM_LEVEL_KERNEL))
		return 0;
	return ctx->len == passage->length && eth->h_proto == type &&
	       !__builtin_memcmp(eth->h_dest, config->mac, ETH_ALEN);
}

/* Returns the interface index of the port's device, 0: there is no such port. Programs of
 * tc may not look into the devmap. */
static __always_inline __u32 device_of(enum tam_level level, __u32 port)
{
	if (level == TAM_LEVEL_NIC) {
		struct bpf_devmap_val *device = bpf_map_lookup_elem(&tam_devices, &port);

		return device ? device->ifindex : 0;
	}

	struct tam_port_config *config = bpf_map_lookup_elem(&tam_ports, &port);

	return config ? config->ifindex : 0;
}

static __always_inline int out_of(void *ctx, enum tam_level level, __u32 port)
{
	if (level == TAM_LEVEL_NIC) {
		TAP_LEAVES(port);
		return bpf_redirect_map(&tam_devices, port, XDP_DROP);
	}

	__u32 device = device_of(level, port);

	if (!device)
		return TC_ACT_SHOT;
	TAP_LEAVES(port);
	unmark(ctx);
	return bpf_redirect(device, 0);
}

/* Sends a packet out of a port unchanged, also of one that takes no redirected frames. */
static __always_inline int across(void *ctx, enum tam_level level, const struct tam_passage *passage,
				  __u32 port)
{
	struct tam_port_config *other = bpf_map_lookup_elem(&tam_ports, &port);

	if (level == TAM_LEVEL_NIC && other && other->slow & TAM_SLOW_NO_REDIRECT &&
	    crosses_at_tc(passage->meta.arrival_port))
		return cross_at_tc(ctx, port);
	return out_of(ctx, level, port);
}

/* Leaves the packet to the kernel's stack as XDP_PASS does: with its current contents.
 * Properties that the stack has already recorded cannot be changed, but the packet may be
 * received again. Between the two ends of a bridge there is no stack. */
static __always_inline int to_stack(void *ctx, enum tam_level level, const struct tam_passage *passage)
{
	struct __sk_buff *skb = ctx;

	if (passage->meta.flags & TAM_META_BRIDGED)
		return across(ctx, level, passage, passage->meta.egress_port);
	if (level == TAM_LEVEL_NIC)
		return XDP_PASS;
	if (skb->vlan_present || is_as_it_came(ctx, passage))
		return TC_ACT_UNSPEC;
	unmark(ctx);
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/* Sends a packet back. A veth keeps a packet of XDP_TX until another one comes, unless an
 * XDP program is at its other end (veth_xdp_flush, drivers/net/veth.c): so the packet is
 * redirected to the arrival device, if that exists and takes it. */
static __always_inline int back_out(void *ctx, enum tam_level level, __u32 port)
{
	TAP_LEAVES(port);
	if (level == TAM_LEVEL_NIC) {
		struct tam_port_config *config = bpf_map_lookup_elem(&tam_ports, &port);

		if (config && config->flags & TAM_PORT_RAW && bpf_xdp_adjust_head(ctx, sizeof(struct ethhdr)))
			return XDP_DROP;
		if (config && config->slow & TAM_SLOW_NO_REDIRECT)
			return XDP_TX;
		return bpf_redirect_map(&tam_devices, port, XDP_TX);
	}
	unmark(ctx);
	return bpf_redirect(((struct __sk_buff *)ctx)->ifindex, 0);
}

/* Takes a tag that the stack keeps out of band, and puts it into `tag`. Returns its
 * length in the frame, 0 when there is none, or an error. The next one takes its place. */
static __always_inline long take_tag(struct __sk_buff *ctx, struct vlan_header *tag)
{
	if (!ctx->vlan_present)
		return 0;
	/* In the order of a frame: the ethertype of the tag, then its contents. */
	tag->tci_be = (__be16)ctx->vlan_proto;
	tag->ethertype_be = bpf_htons(ctx->vlan_tci);
	return bpf_skb_vlan_pop(ctx) ? -1 : (long)sizeof(*tag);
}

/* Puts the metadata, the mark and the tags in front of the frame, whose MACs move to the
 * front of the tags. Returns 0, or an error. */
static __always_inline long put_in_front(struct __sk_buff *ctx, const struct tam_meta *meta,
					 const __u64 mark[2])
{
	struct vlan_header tags[TAM_VLAN_TAGS_MAX];
	long outer = take_tag(ctx, &tags[0]), inner = outer > 0 ? take_tag(ctx, &tags[1]) : 0;
	__u8 macs[2 * ETH_ALEN];
	__u32 marked = meta->flags & TAM_META_MARK ? 2 * sizeof(*mark) : 0;
	__u32 at = sizeof(*meta) + marked;

	if (outer < 0 || inner < 0 || bpf_skb_load_bytes(ctx, 0, macs, sizeof(macs)) ||
	    bpf_skb_change_head(ctx, at + outer + inner, 0) ||
	    bpf_skb_store_bytes(ctx, 0, meta, sizeof(*meta), 0) ||
	    (marked && bpf_skb_store_bytes(ctx, sizeof(*meta), mark, 2 * sizeof(*mark), 0)))
		return -1;
	if (!outer)
		return 0;
	if (bpf_skb_store_bytes(ctx, at, macs, sizeof(macs), 0) ||
	    bpf_skb_store_bytes(ctx, at + sizeof(macs), &tags[0], sizeof(tags[0]), 0))
		return -1;
	return inner ? bpf_skb_store_bytes(ctx, at + sizeof(macs) + sizeof(tags[0]), &tags[1],
					   sizeof(tags[1]), 0)
		     : 0;
}

/* Sends a packet from tc to user level, as send_up(). The caller is in the lane, whose
 * other packets take the same path from now on: one by the socket would overtake this
 * one. */
static __always_inline int send_up_by_tap(struct __sk_buff *ctx, struct tam_lane *lane,
					  const struct tam_passage *passage)
{
	__u32 zero = 0, epoch = epoch_of(lane);
	struct tam_config *shared = bpf_map_lookup_elem(&tam_shared, &zero);
	__u32 device = shared ? *(volatile __u32 *)&shared->up_ifindex : 0;
	struct tam_meta meta = passage->meta;
	__u32 length = ctx->len + (ctx->vlan_present ? sizeof(struct vlan_header) : 0);
	int counted;

	lane->level = TAM_LEVEL_USER;
	lane->path = TAM_PATH_TC;
	if (!device)
		return TC_ACT_UNSPEC;
	counted = take_credit(lane->session, length);
	if (counted < 0) {
		save_head(ctx, TAM_LEVEL_KERNEL, lane->session, length);
		return TAM_NO_CREDIT;
	}
	meta.flags |= epoch << TAM_META_EPOCH_SHIFT | counted;
	if (put_in_front(ctx, &meta, passage->mark)) {
		return_credit(lane->session, length, counted);
		return TC_ACT_SHOT;
	}
	unmark(ctx);
	count_up(lane, epoch);
	return bpf_redirect(device, 0);
}

/* Drops a packet that would go up by a held lane. The caller is in the lane. */
static __always_inline int dropped_as_held(enum tam_level level, struct tam_lane *lane,
					   struct tam_service_stats *stats)
{
	stats->drop_lane++;
	leave_lane(lane);
	return dropped(level);
}

/* Drops a packet that its service did not have, and that may take no other path. */
static __always_inline int dropped_as_down(enum tam_level level, struct tam_service_stats *stats)
{
	stats->drop_down++;
	return dropped(level);
}

/* Raises a packet to user level, or without a cell treats it as from a rule whose cell is
 * gone. The caller is in the lane, and out of it afterwards. */
static __always_inline int raise(void *ctx, enum tam_level level, struct tam_lane *lane,
				 const struct tam_passage *passage, struct tam_service_stats *stats)
{
	int action = level == TAM_LEVEL_NIC ? send_up(ctx, lane, passage)
					    : send_up_by_tap(ctx, lane, passage);

	leave_lane(lane);
	if (action == redirected(level)) {
		stats->raised++;
		stats->raised_bytes += passage->bytes;
		return action;
	}
	if (action == TAM_NO_CREDIT) {
		stats->drop_queue++;
		return dropped(level);
	}
	if (action == dropped(level)) {
		stats->drop_malformed++;
		return action;
	}
	if (stays_here(&passage->meta))
		return dropped_as_down(level, stats);
	stats->plain++;
	return to_stack(ctx, level, passage);
}

#endif
