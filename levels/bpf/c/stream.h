/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Local sockets for packets of a stream service's rule: lookup in the driver
 * (intercept.h) and at tc (tc_door.bpf.c). */
#ifndef TAM_STREAM_H
#define TAM_STREAM_H

#include <linux/tcp.h>

#include "passage.h"

/* Result of act() in place of an action: the passage says what to intercept. */
#define TAM_INTERCEPT 0x103

/* Receiver of a packet of a stream service's rule, which to_stream() stores in the
 * passage's `moved`. */
enum tam_intercept {
	TAM_BACK,	/* from the server: for a local socket */
	TAM_OPEN,	/* from a client: for the listener, or past it while there is none */
	TAM_CLOSED,	/* from a client: for the listener and nobody else */
};

/* Outcome of a packet of a stream service's rule. */
enum tam_taken {
	TAM_PAST,	/* forwarded as if there were no rule */
	TAM_TAKEN,	/* given to the kernel's TCP */
	TAM_REFUSED,	/* dropped: it would go past a closed service */
};

#define TAM_L4_OFFSET_MAX 255
#define TAM_L4_NONE 0xffff

/* Prepares the interception of a packet. Called where the stack has no space for more:
 * intercept() does the rest. `outcome` is that of the packet if it is not intercepted:
 * TAM_FORWARDED, or the reason why the kernel gets it. */
static __noinline int to_stream(const struct tam_flow *flow, __u64 extent, int outcome)
{
	__u32 zero = 0;
	struct tam_passage *passage = bpf_map_lookup_elem(&tam_passages, &zero);

	if (!passage || !flow)
		return XDP_PASS;	/* not reached */
	fill_meta(&passage->meta, flow, extent, outcome);
	__builtin_memcpy(passage->own_mac, flow->own_mac, ETH_ALEN);
	passage->length = extent >> 32;
	passage->moved = flow->action == TAM_ACTION_INTERCEPT_CLOSED ? TAM_CLOSED
		     : flow->action == TAM_ACTION_INTERCEPT	 ? TAM_OPEN
								 : TAM_BACK;
	passage->program = outcome;
	return TAM_INTERCEPT;
}

/* Returns true if a service's listener exists: on the loopback address of a packet's IP
 * version. Its cell holds it, so that the kernel knows of a cell's end before any
 * notification. */
static __always_inline int has_listener(tam_context *ctx, __u32 version, __u16 port)
{
	struct bpf_sock_tuple tuple = {};
	__u32 length = sizeof(tuple.ipv4);
	struct bpf_sock *socket;
	int found;

	if (version == 4) {
		tuple.ipv4.daddr = bpf_htonl(0x7f000001);
		tuple.ipv4.dport = bpf_htons(port);
	} else {
		length = sizeof(tuple.ipv6);
		tuple.ipv6.daddr[3] = bpf_htonl(1);
		tuple.ipv6.dport = bpf_htons(port);
	}
	socket = bpf_skc_lookup_tcp(ctx, &tuple, length, BPF_F_CURRENT_NETNS, 0);
	if (!socket)
		return 0;

	/* Both are read: the verifier accepts no pointer that is one or the other. */
	__u32 own4 = socket->src_ip4, own6 = socket->src_ip6[3];

	asm volatile("" : "+r"(own4), "+r"(own6));
	/* A listener for all addresses belongs to another program, which got the port
	 * meanwhile. */
	found = socket->state == BPF_TCP_LISTEN &&
		(version == 4 ? own4 == bpf_htonl(0x7f000001) : own6 == bpf_htonl(1));
	bpf_sk_release(socket);
	return found;
}

/* Returns true if a packet is the first of a connection, or of one with a local socket. */
static __always_inline enum tam_taken taken(tam_context *ctx, const struct tam_passage *passage)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u32 l3 = passage->meta.l3_offset, l4 = passage->meta.l4_offset, length;
	__u32 version = passage->meta.flags >> 8 & 0xff;
	/* The fragments of a segment would be reassembled behind the service. */
	enum tam_taken unread = passage->moved == TAM_CLOSED ? TAM_REFUSED : TAM_PAST;
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *socket;
	int found;

	if (l3 > TAM_L3_OFFSET_MAX || l4 > TAM_L4_OFFSET_MAX)
		return unread;	/* a later fragment has no ports */
	if (passage->meta.flags & TAM_META_FRAGMENT && unread == TAM_REFUSED)
		return TAM_REFUSED;

	struct tcphdr *tcp = data + l4;

	if ((void *)(tcp + 1) > data_end)
		return unread;
	if (passage->moved && tcp->syn && !tcp->ack)
		return has_listener(ctx, version, passage->meta.entry) ? TAM_TAKEN : unread;
	if (version == 4) {
		struct iphdr *ip = data + l3;

		if ((void *)(ip + 1) > data_end)
			return unread;
		length = sizeof(tuple.ipv4);
		tuple.ipv4.saddr = ip->saddr;
		tuple.ipv4.daddr = ip->daddr;
		tuple.ipv4.sport = tcp->source;
		tuple.ipv4.dport = tcp->dest;
	} else {
		struct ipv6hdr *ip = data + l3;

		if ((void *)(ip + 1) > data_end)
			return unread;
		length = sizeof(tuple.ipv6);
		__builtin_memcpy(tuple.ipv6.saddr, &ip->saddr, sizeof(tuple.ipv6.saddr));
		__builtin_memcpy(tuple.ipv6.daddr, &ip->daddr, sizeof(tuple.ipv6.daddr));
		tuple.ipv6.sport = tcp->source;
		tuple.ipv6.dport = tcp->dest;
	}
	socket = bpf_skc_lookup_tcp(ctx, &tuple, length, BPF_F_CURRENT_NETNS, 0);
	if (!socket)
		return TAM_PAST;
	/* A listener for all addresses belongs to another program. */
	found = socket->state != BPF_TCP_LISTEN;
	bpf_sk_release(socket);
	return found ? TAM_TAKEN : TAM_PAST;
}

#endif
