/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* What XDP and tc do differently with a packet, so that the rest is written once.
 * `level` is a constant everywhere: nothing is decided when it runs. */
#ifndef TAM_CONTEXT_H
#define TAM_CONTEXT_H

#include <linux/pkt_cls.h>

#include "tam_bpf.h"
#include "tam_maps.h"

/* What act() and afterwards() return when a program is to be called: no action of XDP or tc. */
#define TAM_RUN 0x100

/* Where the front door is. */
#ifdef TAM_AT_TC
#define TAM_LEVEL_DOOR TAM_LEVEL_KERNEL
#else
#define TAM_LEVEL_DOOR TAM_LEVEL_NIC
#endif

/* The shortest Ethernet frame without its FCS: what pads one up to that stays. */
#define TAM_FRAME_MIN 60

/* What is looked at and written after a module: two tags, and the longer IP header. */
#define TAM_HEAD_MAX (sizeof(struct ethhdr) + TAM_VLAN_TAGS_MAX * sizeof(struct vlan_header) + \
		      sizeof(struct ipv6hdr))

static __always_inline void *first_byte(void *ctx, enum tam_level level)
{
	return level == TAM_LEVEL_NIC ? (void *)(long)((struct xdp_md *)ctx)->data
				      : (void *)(long)((struct __sk_buff *)ctx)->data;
}

/* Of the first page. */
static __always_inline void *last_byte(void *ctx, enum tam_level level)
{
	return level == TAM_LEVEL_NIC ? (void *)(long)((struct xdp_md *)ctx)->data_end
				      : (void *)(long)((struct __sk_buff *)ctx)->data_end;
}

/* Bytes of the whole frame. */
static __always_inline __u32 frame_length(void *ctx, enum tam_level level)
{
	return level == TAM_LEVEL_NIC ? bpf_xdp_get_buff_len(ctx) : ((struct __sk_buff *)ctx)->len;
}

/* Brings a packet's headers into its first page; in XDP drivers see to that. */
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

/* Moves a frame's end; 0, or an error. */
static __always_inline long set_length(void *ctx, enum tam_level level, __u32 length)
{
	return level == TAM_LEVEL_NIC
		       ? bpf_xdp_adjust_tail(ctx, (int)length - (int)frame_length(ctx, level))
		       : bpf_skb_change_tail(ctx, length, 0);
}

/* Moves a frame's beginning; 0, or an error. */
static __always_inline long add_head(void *ctx, enum tam_level level, __u32 bytes)
{
	return level == TAM_LEVEL_NIC ? bpf_xdp_adjust_head(ctx, -(int)bytes)
				      : bpf_skb_change_head(ctx, bytes, 0);
}

/* Takes `bytes` of tags away, whose frame's first 12 bytes are written anew afterwards.
 *
 * tc has no helper that shortens a frame in front, and takes off only tags that
 * the stack knows of. It comes to know of those in the frame, which a module has
 * put there, when one is put in front of them and becomes the one beside it. */
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

/* Where a packet's IP header begins now, behind at most TAM_VLAN_TAGS_MAX tags; 0: nowhere. */
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

/* What a program answers when the packet is gone, and when it leaves by a device. */
static __always_inline int dropped(enum tam_level level)
{
	return level == TAM_LEVEL_NIC ? XDP_DROP : TC_ACT_SHOT;
}

/* What a program at tc answers: what it drops is marked as the node's own, which counts it, so that
 * it is not taken for a drop of the kernel's (stack.h). */
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
