/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Answers by which port the kernel would send a packet: the cell, which asks, may neither load BPF
 * nor open netlink.
 *
 *   cell ─▶ write to its TAP device: │ number, 4 │ zero, 8 │ type, 2 │ head of the IP packet │
 *             └─▶ here, at tcx ingress, on the way of that very system call
 *                   └─▶ tam_answers: │ number │ 1 + port, or 0 │      the question ends here
 */
#ifndef TAM_ASK_H
#define TAM_ASK_H

#include "egress.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tam_answer);
} tam_answers SEC(".maps");

/* Ends it, also where it is none: what is written to this device is for nobody else. */
SEC("tcx/ingress")
int tam_ask(struct __sk_buff *ctx)
{
	__u32 zero = 0, *number = (void *)(long)ctx->data;
	struct tam_answer *answer = bpf_map_lookup_elem(&tam_answers, &zero);
	const struct tam_config *shared = bpf_map_lookup_elem(&tam_shared, &zero);

	if (!answer || !shared || (void *)(number + 1) > (void *)(long)ctx->data_end)
		return TC_ACT_STOLEN;

	__u64 asked = (__u64)*number << 32;
	__u32 port = egress_of(ctx, TAM_LEVEL_KERNEL, sizeof(struct ethhdr),
			       *(volatile __u32 *)&shared->kernel_ifindex);

	*(volatile __u64 *)&answer->value = asked | port;
	return TC_ACT_STOLEN;
}

#endif
