/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Whether a packet of a stream service's rule has a socket here: in the driver (intercept.h) and
 * at tc (tc_door.bpf.c). */
#ifndef TAM_STREAM_H
#define TAM_STREAM_H

#include <linux/tcp.h>

#include "passage.h"

/* What act() returns in place of an action: the packet's way says what for. */
#define TAM_INTERCEPT 0x103

#define TAM_L4_OFFSET_MAX 255
#define TAM_L4_NONE 0xffff

/* Called where the stack has no room for more: the rest is intercept()'s. `outcome` is what
 * becomes of the packet if it is not intercepted: TAM_FORWARDED, or why the kernel has it. */
static __noinline int to_stream(const struct tam_flow *flow, __u64 extent, int outcome)
{
	__u32 zero = 0;
	struct tam_passage *way = bpf_map_lookup_elem(&tam_passages, &zero);

	if (!way || !flow)
		return XDP_PASS;	/* not reached */
	fill_way(&way->meta, flow, extent, outcome);
	__builtin_memcpy(way->own_mac, flow->own_mac, ETH_ALEN);
	way->length = extent >> 32;
	way->moved = flow->action == TAM_ACTION_INTERCEPT;
	way->program = outcome;
	return TAM_INTERCEPT;
}

/* Whether a packet is the first of a connection, or of one that has a socket here. */
static __always_inline int is_of_a_socket(tam_context *ctx, const struct tam_passage *way)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u32 l3 = way->meta.l3_offset, l4 = way->meta.l4_offset, length;
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *socket;
	int found;

	if (l3 > TAM_L3_OFFSET_MAX || l4 > TAM_L4_OFFSET_MAX)
		return 0;	/* a later fragment has no ports */

	struct tcphdr *tcp = data + l4;

	if ((void *)(tcp + 1) > data_end)
		return 0;
	if (way->moved && tcp->syn && !tcp->ack)
		return 1;
	if ((way->meta.flags >> 8 & 0xff) == 4) {
		struct iphdr *ip = data + l3;

		if ((void *)(ip + 1) > data_end)
			return 0;
		length = sizeof(tuple.ipv4);
		tuple.ipv4.saddr = ip->saddr;
		tuple.ipv4.daddr = ip->daddr;
		tuple.ipv4.sport = tcp->source;
		tuple.ipv4.dport = tcp->dest;
	} else {
		struct ipv6hdr *ip = data + l3;

		if ((void *)(ip + 1) > data_end)
			return 0;
		length = sizeof(tuple.ipv6);
		__builtin_memcpy(tuple.ipv6.saddr, &ip->saddr, sizeof(tuple.ipv6.saddr));
		__builtin_memcpy(tuple.ipv6.daddr, &ip->daddr, sizeof(tuple.ipv6.daddr));
		tuple.ipv6.sport = tcp->source;
		tuple.ipv6.dport = tcp->dest;
	}
	socket = bpf_skc_lookup_tcp(ctx, &tuple, length, BPF_F_CURRENT_NETNS, 0);
	if (!socket)
		return 0;
	/* One that listens for all addresses is somebody else's. */
	found = socket->state != BPF_TCP_LISTEN;
	bpf_sk_release(socket);
	return found;
}

#endif
