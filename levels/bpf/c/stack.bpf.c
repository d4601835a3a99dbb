// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
/* Counts packets that the node has left to the kernel and the kernel drops, by arrival
 * and by the kernel's reason, at the tracepoint kfree_skb.
 *
 * The kernel does not run a program recursively on the same CPU: a drop in an interrupt
 * of the few instructions here is not counted.
 */
#include "tam_bpf.h"
#include "tam_maps.h"
#include "stack.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TAM_STACK_ARRIVALS);
	__type(key, __u32);
	__type(value, struct tam_stack_stats);
} tam_stack SEC(".maps");

/* Returns the number of frames that a buffer stands for: one joined by GRO is several. */
static __always_inline __u64 frames_in(const struct sk_buff *skb)
{
	const struct skb_shared_info *shared = (const void *)(skb->head + skb->end);
	__u16 frames = BPF_CORE_READ(shared, gso_segs);

	return frames ? frames : 1;
}

static __always_inline int count(const struct sk_buff *skb, __u32 reason,
				 const struct sock *receiver)
{
	__u32 arrival = stack_arrival(skb, reason, receiver);
	const struct tam_port_config *config = bpf_map_lookup_elem(&tam_ports, &arrival);
	struct tam_stack_stats *stats = bpf_map_lookup_elem(&tam_stack, &arrival);
	__u64 frames;

	if (!stats)
		return 0;
	reason = reason_index(reason);
	frames = frames_in(skb);
	stats->reasons[reason] += frames;
	/* The device counts buffers. */
	if (stack_kinds[reason] == TAM_STACK_AT_DEVICE && config &&
	    skb->dev->ifindex == (int)config->ifindex)
		stats->device++;
	return 0;
}

/* Arguments: buffer, code location, reason, and since Linux 6.11 the receiving socket. */
SEC("tp_btf/kfree_skb")
int tam_stack_drops(__u64 *arguments)
{
	return count((const void *)arguments[0], arguments[2], (const void *)arguments[3]);
}

SEC("tp_btf/kfree_skb")
int tam_stack_drops_old(__u64 *arguments)
{
	return count((const void *)arguments[0], arguments[2], 0);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
