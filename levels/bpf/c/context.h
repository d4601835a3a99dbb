/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Differences between XDP and tc, so that the rest is written once. `level` is a constant
 * everywhere: nothing is decided at run time. */
#ifndef TAM_CONTEXT_H
#define TAM_CONTEXT_H

#include <linux/pkt_cls.h>

#include "tam_bpf.h"
#include "tam_maps.h"

/* Result of act() and afterwards() when a program must be called: no action of XDP or tc. */
#define TAM_RUN 0x100

/* Level of the front door. */
#ifdef TAM_AT_TC
#define TAM_LEVEL_DOOR TAM_LEVEL_KERNEL
#else
#define TAM_LEVEL_DOOR TAM_LEVEL_NIC
#endif

/* Shortest Ethernet frame without its FCS: padding up to it stays. */
#define TAM_FRAME_MIN 60

/* Bytes that are read and written after a module: two tags, and the longer IP header. */
#define TAM_HEAD_MAX (sizeof(struct ethhdr) + TAM_VLAN_TAGS_MAX * sizeof(struct vlan_header) + \
		      sizeof(struct ipv6hdr))

static __always_inline void *first_byte(void *ctx, enum tam_level level)
{
	return level == TAM_LEVEL_NIC ? (void *)(long)((struct xdp_md *)ctx)->data
				      : (void *)(long)((struct __sk_buff *)ctx)->data;
}

/* Returns the end of the first page. */
static __always_inline void *last_byte(void *ctx, enum tam_level level)
{
	return level == TAM_LEVEL_NIC ? (void *)(long)((struct xdp_md *)ctx)->data_end
				      : (void *)(long)((struct __sk_buff *)ctx)->data_end;
}

/* Returns the length of the whole frame in bytes. */
static __always_inline __u32 frame_length(void *ctx, enum tam_level level)
{
	return level == TAM_LEVEL_NIC ? bpf_xdp_get_buff_len(ctx) : ((struct __sk_buff *)ctx)->len;
}

/* Pulls a packet's headers into its first page; in XDP drivers see to that. */
static __always_inline void bring_head(void *ctx, enum tam_level level)
{
	if (level == TAM_LEVEL_NIC)
		return;

	__u32 length = frame_length(ctx, level);

	if (length > TAM_HEAD_MAX)
		length = TAM_HEAD_MAX;
	if (first_byte(ctx, level) + length > last_byte(ctx, level))
		bpf_skb_pull_data(ctx, length);
}

/* Moves a frame's end. Returns 0, or an error. */
static __always_inline long set_length(void *ctx, enum tam_level level, __u32 length)
{
	return level == TAM_LEVEL_NIC
		       ? bpf_xdp_adjust_tail(ctx, (int)length - (int)frame_length(ctx, level))
		       : bpf_skb_change_tail(ctx, length, 0);
}

/* Moves a frame's beginning. Returns 0, or an error. */
static __always_inline long add_head(void *ctx, enum tam_level level, __u32 bytes)
{
	return level == TAM_LEVEL_NIC ? bpf_xdp_adjust_head(ctx, -(int)bytes)
				      : bpf_skb_change_head(ctx, bytes, 0);
}

/* Removes `bytes` of tags; the caller then rewrites the frame's first 12 bytes.
 *
 * tc has no helper that shortens a frame in front, and removes only tags that the stack
 * knows. The stack learns of tags in the frame, written by a module, when another one is
 * pushed in front of them and becomes the out-of-band one. */
static __always_inline long cut_tags(void *ctx, enum tam_level level, __u32 bytes)
{
	if (level == TAM_LEVEL_NIC)
		return bpf_xdp_adjust_head(ctx, bytes);
	if (bpf_skb_vlan_push(ctx, bpf_htons(ETH_P_8021Q), 0) ||
	    bpf_skb_vlan_push(ctx, bpf_htons(ETH_P_8021Q), 0))
		return -1;
	for (int tags = 0; tags < 2 + TAM_VLAN_TAGS_MAX; tags++)
		if (tags < 2 + bytes / sizeof(struct vlan_header) && bpf_skb_vlan_pop(ctx))
			return -1;
	return 0;
}

/* Returns the offset of the packet's IP header, behind at most TAM_VLAN_TAGS_MAX tags; 0:
 * there is none. */
static __always_inline __u32 find_l3(const void *data, const void *data_end)
{
	__u32 at = 2 * ETH_ALEN;

	for (int tags = 0; tags <= TAM_VLAN_TAGS_MAX; tags++) {
		const __be16 *type = data + at;

		if ((const void *)(type + 1) > data_end)
			return 0;
		at += sizeof(*type);
		if (*type == bpf_htons(ETH_P_IP) || *type == bpf_htons(ETH_P_IPV6))
			return at;
		if (*type != bpf_htons(ETH_P_8021Q) && *type != bpf_htons(ETH_P_8021AD))
			return 0;
		at += sizeof(__be16);
	}
	return 0;
}

/* Returns the action for a dropped packet. */
static __always_inline int dropped(enum tam_level level)
{
	return level == TAM_LEVEL_NIC ? XDP_DROP : TC_ACT_SHOT;
}

/* Returns a program's result at tc: dropped packets are marked as the node's own, which
 * counts them, so that they are not taken for the kernel's drops (stack.h). */
static __always_inline int answer_at_tc(struct __sk_buff *ctx, int action)
{
	if (action == TC_ACT_SHOT)
		ctx->mark = TAM_MARK_ENDED;
	return action;
}

static __always_inline int redirected(enum tam_level level)
{
	return level == TAM_LEVEL_NIC ? XDP_REDIRECT : TC_ACT_REDIRECT;
}

#endif
