// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
/* Front door of a port with `mode = "tc"`: at tcx ingress, behind the kernel's receive path.
 *
 *   driver --> GRO --> here: the same rules, caches and counters as in the driver (door.h)
 *                       | drop      by rule, or malformed
 *                       | a stream service's, with a local socket: the mark of the listener
 *                       v
 *                      the kernel's stack, which routes everything that is not for a socket
 *
 * For ports of streams. Packets that the kernel receives anyway need no headroom,
 * for which drivers copy, and arrive joined: a TCP segment of up to 64 KiB is handled
 * once, and counts as its original frames. Services of packets need XDP; rules that lead to
 * one are refused (core/node), and a packet that matches such a rule is forwarded plainly.
 *
 */
#define TAM_AT_TC
#include "tam_bpf.h"
#include "tam_maps.h"
#include "context.h"
#include "stream.h"

/* Length of the common frame's headers. Payload that the sender or GRO left behind them
 * in pages stays there. */
#define TAM_COMMON_HEADERS (sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct tcphdr))

/* Returns the number of frames that the kernel has joined. */
static __always_inline __u32 frames_of(const struct __sk_buff *ctx)
{
	__u32 frames = ctx->gso_segs;

	return frames ? frames : 1;
}

/* Returns the bytes of a packet on the wire, as its original frames: each had the
 * headers. */
static __always_inline __u32 on_the_wire(struct __sk_buff *ctx, const struct packet *packet,
					 __u8 protocol)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u32 frames = frames_of(ctx), l4 = packet->l4_offset, length = packet->length, headers = 0;

	if (ctx->vlan_present)
		length += frames * sizeof(struct vlan_header);
	if (frames == 1 || l4 > TAM_L4_OFFSET_MAX)
		return length;

	struct tcphdr *tcp = data + l4;

	if (protocol == IPPROTO_UDP)
		headers = l4 + 8;
	else if (protocol == IPPROTO_TCP && (void *)(tcp + 1) <= data_end)
		headers = l4 + tcp->doff * 4;
	return length + (frames - 1) * headers;
}

/* Counts a packet that has been parsed, as its original frames. */
static __always_inline void have_come(struct __sk_buff *ctx, const struct packet *packet,
				      __u8 protocol, struct tam_port_stats *stats)
{
	stats->rx_packets += frames_of(ctx);
	stats->rx_bytes += on_the_wire(ctx, packet, protocol);
}

static __always_inline int act(struct __sk_buff *ctx, const struct packet *packet,
			       const struct tam_flow *flow, struct tam_port_stats *stats)
{
	__u32 frames = frames_of(ctx);

	TAP_RULE(flow);
	if (flow->meta.rule != TAM_RULE_NONE) {
		/* As in have_come(): between the two the stack has no space for it. */
		__u32 bytes = on_the_wire(ctx, packet, flow->meta.flags >> 16);

		count_rule(flow->meta.rule, frames, bytes);
		count_others(flow, frames, bytes);
	}
	if (flow->outcome >= TAM_DROP_TRUNCATED && flow->action != TAM_ACTION_DROP)
		return finish_all(stats, flow->outcome, frames);
	switch (flow->action) {
	case TAM_ACTION_FORWARD:
		return finish_all(stats, flow->outcome, frames);
	case TAM_ACTION_INTERCEPT:
	case TAM_ACTION_INTERCEPT_BACK:
	case TAM_ACTION_INTERCEPT_CLOSED:
		return to_stream(flow, extent_of(packet), flow->outcome);
	case TAM_ACTION_DROP:
		return finish_all(stats, TAM_DROP_RULE, frames);
	case TAM_ACTION_DOWN:
		return finish_all(stats, TAM_DROP_DOWN, frames);
	}
	return finish_all(stats, TAM_KERNEL_NO_SOCKET, frames);
}

/* The kernel knows better what it has joined. */
static __always_inline int act_unread(struct __sk_buff *ctx, struct tam_port_stats *stats, int outcome)
{
	if (ctx->gso_size && outcome >= TAM_DROP_TRUNCATED)
		outcome = TAM_KERNEL_OTHER;
	return finish_all(stats, outcome, frames_of(ctx));
}

#include "door.h"

/* Gives a packet of a stream service's rule to the kernel's TCP, or forwards it. */
static __noinline int intercept_here(struct __sk_buff *ctx, struct tam_port_stats *stats)
{
	__u32 at = 0;
	struct tam_passage *passage = bpf_map_lookup_elem(&tam_passages, &at);

	if (!stats || !passage)
		return XDP_DROP;	/* not reached */

	enum tam_taken what = taken(ctx, passage);

	if (what == TAM_REFUSED)
		return finish_all(stats, TAM_DROP_DOWN, frames_of(ctx));
	if (what == TAM_PAST)
		return finish_all(stats, passage->program, frames_of(ctx));
	ctx->mark = TAM_MARK_LISTENER | passage->meta.entry;
	return finish_all(stats, TAM_INTERCEPTED, frames_of(ctx));
}

/* Pulls that much of a frame into its first page. */
static __always_inline void pull_headers(struct __sk_buff *ctx, __u32 length)
{
	if (length > ctx->len)
		length = ctx->len;
	if ((void *)(long)ctx->data + length > (void *)(long)ctx->data_end)
		bpf_skb_pull_data(ctx, length);
}

/* Returns the most bytes that the headers of a frame may take, of which those of a common
 * one are read. */
static __always_inline __u32 headers_of(struct __sk_buff *ctx)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	struct ipv6hdr *ip6 = (void *)(eth + 1);

	if ((void *)(ip + 1) > data_end)
		return 0;
	if (eth->h_proto == bpf_htons(ETH_P_IP) && ip->ihl <= sizeof(*ip) / 4)
		return TAM_COMMON_HEADERS;
	if (eth->h_proto == bpf_htons(ETH_P_IPV6) &&
	    (ip6->nexthdr == IPPROTO_TCP || ip6->nexthdr == IPPROTO_UDP))
		return sizeof(*eth) + sizeof(*ip6) + sizeof(struct tcphdr);
	return TAM_HEADERS_MAX;
}

SEC("tcx/ingress")
int tam_tc_door(struct __sk_buff *ctx)
{
	__u32 at = port_number;
	struct tam_port_stats *stats = bpf_map_lookup_elem(&tam_stats, &at);
	struct common_key common = {};
	int action;

	at = 0;

	struct tam_config *shared = bpf_map_lookup_elem(&tam_shared, &at);

	if (!stats || !shared)
		return TC_ACT_UNSPEC;	/* the maps are as large as port_number allows: not reached */
	pull_headers(ctx, TAM_COMMON_HEADERS);
	pull_headers(ctx, headers_of(ctx));
	TAP_ARRIVAL(ctx);
	action = look_up(ctx, stats, shared, &common, &at);
	if (action == TAM_INTERCEPT)
		action = intercept_here(ctx, stats);
	TAP_END(ctx, action);
	return answer_at_tc(ctx, action == XDP_PASS ? TC_ACT_UNSPEC : TC_ACT_SHOT);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
