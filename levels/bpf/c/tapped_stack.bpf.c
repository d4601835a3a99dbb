// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
/* Captures the kernel's drops of packets that the node has left to it: beside
 * stack.bpf.c, which goes on counting, and only during a capture.
 *
 * Keeps the bytes of the linear part, from the link header on if that still exists: of a
 * frame that arrived by XDP, and of the cell's packets, that is everything.
 */
#include "tam_bpf.h"
#include "tam_maps.h"
#include "stack.h"
#include "tap_ring.h"

/* Ports whose packets are captured, as bits; bit TAM_STACK_OWN is the second word's
 * first. */
const volatile __u64 stack_wanted[2] = {};

/* Returns true if an arrival's packets are captured. */
static __always_inline int is_wanted(__u32 arrival)
{
	return arrival < TAM_STACK_ARRIVALS && stack_wanted[arrival / 64 & 1] >> arrival % 64 & 1;
}

static __always_inline int tap(const struct sk_buff *skb, __u32 reason, const struct sock *receiver)
{
	__u32 arrival = stack_arrival(skb, reason, receiver), front, linear;
	struct tap_scratch *scratch = tap_scratch(TAP_STACK);
	const unsigned char *from = skb->data;
	__u16 mac = skb->mac_header;

	if (!scratch || !is_wanted(arrival))
		return 0;
	tap_begin(scratch, arrival == TAM_STACK_OWN ? TAP_NO_PORT : arrival);
	scratch->head.bare = mac == SKB_MAC_HEADER_NOT_SET || mac >= skb->network_header;
	if (mac != SKB_MAC_HEADER_NOT_SET && skb->head + mac < from)
		from = skb->head + mac;
	front = skb->data - from;
	linear = skb->len - skb->data_len + front;
	scratch->head.time_ns = bpf_ktime_get_ns();
	scratch->head.length = skb->len + front;
	scratch->head.way = TAM_STACK_DROPPED;
	scratch->head.stack_reason = reason;
	scratch->head.tagged = skb->vlan_proto != 0;
	scratch->head.tci = skb->vlan_tci;
	scratch->head.tpid_be = skb->vlan_proto;
	scratch->head.captured = 0;
	if (linear > tap_snap)
		linear = tap_snap;
	if (linear > TAM_SNAP_MAX)
		linear = TAM_SNAP_MAX;
	if (linear && !bpf_probe_read_kernel(scratch->bytes, linear, from))
		scratch->head.captured = linear;
	tap_put(scratch);
	return 0;
}

SEC("tp_btf/kfree_skb")
int tam_tap_stack(__u64 *arguments)
{
	return tap((const void *)arguments[0], arguments[2], (const void *)arguments[3]);
}

SEC("tp_btf/kfree_skb")
int tam_tap_stack_old(__u64 *arguments)
{
	return tap((const void *)arguments[0], arguments[2], 0);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
